"""Every error that ge2 raises on purpose, and texts about names that a module does not have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import FrozenInstanceError
from typing import Final

import numpy as np
from numpy.linalg import LinAlgError

# -------- Every error that ge2 raises on purpose.
# Ge2Error ├── TypeRuleError an operation was applied to arrays it does not accept │ └── ShapeError
# ... because their shapes do not fit (also a ValueError) │ └── OutOfBoundsError ... because an axis
# or an index lies outside (also an IndexError) ├── InputError an argument is of a kind that ge2
# does not take │ ├── NotAValue an operand is of a class that NumPy knows nothing of │ ├──
# UnknownSetting there is no setting of that name (also an AttributeError) │ ├── ArgumentError ...
# of a value that the function does not take (also a ValueError) │ ├── ZeroWeightsError ... weights
# that sum to zero (also a ZeroDivisionError) │ └── PytreeError two containers differ in structure
# (also a ValueError) ├── TraceError a traced value was used in a way its trace does not allow │ ├──
# ConcretizationTypeError its value was asked for where it is not known │ │ ├──
# TracerBoolConversionError │ │ ├── TracerIntegerConversionError │ │ └── TracerArrayConversionError
# │ ├── UnexpectedTracerError it was used outside its trace │ ├── InPlaceError it was changed in
# place in a way that is not supported │ │ └── ReadOnlyError ... because its memory is read-only
# (also a ValueError) │ └── ImpureError the traced function drew random numbers or has another side
# effect ├── WideningError a value became wider than `jit(widest=...)` allows ├── RetraceError a
# jitted function was called with more signatures than it was to have ├── NonFiniteError a result
# holds NaN or infinity where that was to be an error ├── FrozenError a field of a module was
# assigned to (also a FrozenInstanceError) ├── FileError a file of arrays is damaged, or does not
# fit what it is loaded into ├── GradientError a derivative was asked of something that has none ├──
# NoRuleError an operation lacks the rule that a transform asked for ├── ParseError a text is not a
# graph ├── VerifyError a graph is malformed: a bug in ge2, never in the user's program ├──
# MemoryLimitError a program does not fit in the memory it was given (also a MemoryError) │ └──
# OutOfMemoryError ... or in what its GPU has left ├── CompileError a generated kernel was refused
# by its compiler │ └── CompilerTrouble ... or the compiler is missing, hangs or makes junk ├──
# DeviceError a GPU was asked for that is not there or cannot be used ├── KernelError a CUDA kernel
# did, where it could be seen, what has no meaning └── CacheTrouble the cache on disk cannot be used


DEEPER = "sys.setrecursionlimit(10_000), of frames that calls inside each other may have"


class Ge2Error(Exception):
    """An error with a remedy: what happened, where, and what to write instead."""

    def __init__(self, what: str, *, where: object = None, fix: str = "") -> None:
        lines = [what]
        if where is not None and str(where):
            lines.append(f"  at   {where}")
        if fix:
            lines.append(f"  try  {fix}")
        super().__init__("\n".join(lines))


class TypeRuleError(Ge2Error, TypeError):
    """Raised far below the user's line, which it looks up itself."""

    def __init__(self, what: str, *, where: object = None, fix: str = "") -> None:
        from ge2.base.source import here  # the errors come before all else

        super().__init__(what, where=here() if where is None else where, fix=fix)


class ShapeError(TypeRuleError, ValueError): ...


class OutOfBoundsError(ShapeError, IndexError): ...


class InputError(Ge2Error, TypeError): ...


class NotAValue(InputError): ...


class UnknownSetting(InputError, AttributeError): ...  # so that `hasattr` and `copy` work


class ArgumentError(InputError, ValueError): ...


class ZeroWeightsError(ArgumentError, ZeroDivisionError): ...


class PytreeError(InputError, ValueError): ...


class TraceError(Ge2Error, TypeError): ...


class ConcretizationTypeError(TraceError): ...


class TracerBoolConversionError(ConcretizationTypeError): ...


class TracerIntegerConversionError(ConcretizationTypeError): ...


class TracerArrayConversionError(ConcretizationTypeError): ...


class UnexpectedTracerError(TraceError): ...


class InPlaceError(TraceError): ...


class ReadOnlyError(InPlaceError, ValueError): ...


class FrozenError(Ge2Error, FrozenInstanceError): ...


class ImpureError(TraceError): ...


class WideningError(Ge2Error, TypeError): ...


class RetraceError(Ge2Error, RuntimeError): ...


class NonFiniteError(Ge2Error, FloatingPointError): ...


class FileError(Ge2Error, ValueError): ...


class GradientError(Ge2Error, TypeError): ...


# so that `except NotImplementedError` catches it
class NoRuleError(Ge2Error, NotImplementedError): ...


class ParseError(Ge2Error, ValueError): ...


class VerifyError(Ge2Error): ...


class CompileError(Ge2Error): ...


class CompilerTrouble(CompileError): ...


class TooLong(CompilerTrouble): ...


class DeviceError(Ge2Error, RuntimeError): ...


class KernelError(Ge2Error, RuntimeError): ...


class MemoryLimitError(Ge2Error, MemoryError): ...


class OutOfMemoryError(MemoryLimitError): ...


class CacheTrouble(Ge2Error): ...


NEGATIVE_POWER: Final = "Integers to negative integer powers are not allowed."
AS_FLOAT: Final = "x.astype(float) ** n"
BY_VALUES: Final = LinAlgError, IndexError, ValueError  # among them are those that `locate` knows


def locate(error: Exception, source: object) -> None:
    """Adds the user's line to an error that NumPy raises for values of a program, and a fix."""
    if not isinstance(error, LinAlgError | IndexError) and str(error) != NEGATIVE_POWER:
        return
    noted = any("  at   " in note for note in getattr(error, "__notes__", ()))
    if source is not None and not noted:
        fix = fix_of(error)
        error.add_note(f"  at   {source}" + (f"\n  try  {fix}" if fix else ""))


def fix_of(error: Exception) -> str:
    """The code to write instead, for an error that NumPy raises; "" where none is known."""
    if isinstance(error, IndexError):
        return ""
    if str(error) == NEGATIVE_POWER:
        return AS_FLOAT
    if "converge" in str(error):
        return "np.isfinite(a) of the matrix first"
    return "a + 1e-8 * np.eye(len(a)), or except np.linalg.LinAlgError around the call"


# -------- Texts of errors about names that a module does not have.


# fmt: off
ELSEWHERE: Final = {  # names that users of JAX look for
    "PRNGKey": "ge2.random.key(seed)",
    "block_until_ready": "the result itself: it is NumPy's array, and is ready",
    "device_get": "x itself, NumPy's array; x.get() of CuPy's",
    "device_put": "np.asarray(x), or cupy.asarray(x): a function runs where its arguments are",
    "named_call": "ge2.named_scope(name)",
    "pmap": "ge2.vmap, on one device",
    "conv": "np.convolve of one axis; np.lib.stride_tricks.sliding_window_view and np.einsum of more",
    "dot": "np.dot, or ge2.numpy.dot_general",
    "tree_map": "ge2.tree.map(f, tree)",
}
CONVOLUTION: Final = "np.einsum of np.lib.stride_tricks.sliding_window_view: there are no convolutions yet"
MEAN: Final = "the sum or mean along the axis of what ge2.vmap returns: there are no collectives"
INSIDE: Final = {  # and users of PyTorch and optax, in a module of ge2
    "ge2.lax": {
        "add": "x + y", "sub": "x - y", "mul": "x * y", "div": "x / y", "rem": "np.fmod(x, y)",
        "neg": "-x", "eq": "x == y", "ne": "x != y", "lt": "x < y", "le": "x <= y", "gt": "x > y",
        "ge": "x >= y", "pow": "x ** y", "integer_pow": "x ** n", "rsqrt": "1 / np.sqrt(x)",
        "batch_matmul": "x @ y", "rev": "np.flip(x, axes)", "broadcast_in_dim": "np.broadcast_to",
        "is_finite": "np.isfinite(x)", "population_count": "np.bitwise_count(x)",
        "complex": "x + 1j * y", "convert_element_type": "x.astype(dtype)",
        "bitcast_convert_type": "x.view(dtype)", "iota": "np.arange(n)",
        "broadcasted_iota": "np.arange(n)[:, None], which broadcasts",
        "cumlogsumexp": "np.logaddexp.accumulate(x)", "cummax": "np.maximum.accumulate(x)",
        "cummin": "np.minimum.accumulate(x)",
        **{n: f"ge2.scipy.special.{n}" for n in ("erf", "erfc", "digamma", "polygamma", "zeta")},
        "erf_inv": "ge2.scipy.special.erfinv", "lgamma": "ge2.scipy.special.gammaln",
        "logistic": "ge2.scipy.special.expit", "bessel_i0e": "ge2.scipy.special.i0e",
        "bessel_i1e": "ge2.scipy.special.i1e", "reduce_max": "x.max(axis)", "reduce_min": "x.min(axis)",
        "reduce_sum": "x.sum(axis)", "reduce_prod": "x.prod(axis)", "reduce_and": "x.all(axis)",
        "reduce_or": "x.any(axis)", "gather": "x[indices]", "scatter": "y = x.copy(); y[i] = v",
        "scatter_add": "y = x.copy(); np.add.at(y, i, v)", "sort_key_val": "i = np.argsort(keys)",
        "scatter_max": "y = x.copy(); np.maximum.at(y, i, v)",
        "scatter_min": "y = x.copy(); np.minimum.at(y, i, v)",
        "reduce_window": "np.lib.stride_tricks.sliding_window_view(x, n).max(-1)",
        "shift_left": "x << n", "shift_right_arithmetic": "x >> n",
        "conv_general_dilated": CONVOLUTION,
        "psum": MEAN, "pmean": MEAN, "pmax": MEAN, "pmin": MEAN, "all_gather": MEAN, "axis_index": MEAN,
    },
    "ge2.tree_util": {
        "ravel_pytree": "ge2.tree.ravel(tree)",
        "register_static": "a field made with field(metadata={'static': True})",
    },
    "ge2.random": {
        "cauchy": "np.tan(np.pi * (uniform(key, shape) - 0.5))",
        "laplace": "exponential(key, shape) * (2 * bernoulli(other_key, 0.5, shape) - 1)",
        "logistic": "u = uniform(key, shape); np.log(u) - np.log1p(-u)",
        "multivariate_normal": "mean + normal(key, (n, d)) @ np.linalg.cholesky(cov).T",
        "rademacher": "2 * bernoulli(key, 0.5, shape) - 1",
        "truncated_normal": "ge2.scipy.special.ndtri(uniform(key, shape, minval=p, maxval=q)), p = ndtr(low)",
    },
    "ge2.nn": {
        "functional": "ge2.nn itself, whose functions have small letters: nn.relu, nn.cross_entropy",
        "Parameter": "the array itself: the fields of a module are its parameters",
        "ModuleList": "a list of modules in a field",
        "ModuleDict": "a dict of modules in a field",
        "Dense": "ge2.nn.Linear.init(key, ins, outs)",
        "Flatten": "lambda x: x.reshape(len(x), -1)",
        "Identity": "lambda x: x",
        "swish": "ge2.nn.silu",
        "MSELoss": "ge2.nn.mse(predictions, targets)",
        "mse_loss": "ge2.nn.mse(predictions, targets)",
        "L1Loss": "ge2.nn.mae(predictions, targets)",
        "l1_loss": "ge2.nn.mae(predictions, targets)",
        "smooth_l1_loss": "ge2.nn.huber(predictions, targets)",
        "nll_loss": "ge2.nn.cross_entropy(logits, labels)",
        "BCELoss": "ge2.nn.binary_cross_entropy(p, targets)",
        "BCEWithLogitsLoss": "ge2.nn.binary_cross_entropy(x, targets, with_logits=True)",
        "binary_cross_entropy_with_logits": "ge2.nn.binary_cross_entropy(x, targets, with_logits=True)",
        "scaled_dot_product_attention": "ge2.nn.attention(q, k, v)",
        "Conv1d": CONVOLUTION, "Conv2d": CONVOLUTION, "Conv": CONVOLUTION, "conv2d": CONVOLUTION,
    },
    "ge2.optim": {
        "apply_updates": "params, state = optimizer.update(grads, state, params)",
        "chain": "optimizer.update(ge2.optim.clip_by_global_norm(grads, 1.0), state, params)",
        "clip": "ge2.optim.clip_by_value(grads, limit)",
        "clip_grad_norm_": "ge2.optim.clip_by_global_norm(grads, limit)",
        "lr_scheduler": "a schedule as the rate: ge2.optim.adam(ge2.optim.cosine(1e-3, 100, 1000))",
        "warmup_cosine_decay_schedule": "ge2.optim.cosine(peak, warmup, steps, end)",
        "cosine_decay_schedule": "ge2.optim.cosine(peak, 0, steps, end)",
        "linear_schedule": "ge2.optim.linear(start, end, steps)",
        "exponential_decay": "ge2.optim.exponential(start, factor, steps)",
        "piecewise_constant_schedule": "ge2.optim.step_decay(start, factor, steps)",
        "MultiSteps": "ge2.optim.accumulate(optimizer, steps)",
        "incremental_update": "ge2.optim.ema(decay)",
        "masked": "mask= of an optimiser for its decay, or ge2.optim.split(mask, first, second)",
        "multi_transform": "ge2.optim.split(mask, first, second)",
    },
    "ge2.io": {
        "DataLoader": "ge2.io.prefetch of a generator of batches",
        "save_checkpoint": "ge2.io.save_state(folder, step, state)",
        "load_checkpoint": "ge2.io.load_state(folder, into=state)",
        "save_model": "ge2.io.save(path, model)",
        "load_model": "ge2.io.load(path, into=model)",
        "tqdm": "ge2.io.progress(iterable)",
    },
    "a module": {
        "parameters": "ge2.tree.leaves(model)",
        "named_parameters": "ge2.tree.leaves_with_path(model)",
        "state_dict": "ge2.io.save(path, model)",
        "load_state_dict": "ge2.io.load(path, into=model)",
        "forward": "model(x)",
        "apply": "model(x)",
        "train": "model(x, key=key), which trains unless training=False",
        "eval": "model(x, training=False)",
        "zero_grad": "nothing: ge2.grad makes new gradients",
        "to": "ge2.tree.map(cupy.asarray, model)",
        "cuda": "ge2.tree.map(cupy.asarray, model)",
        "half": "ge2.autocast(loss, 'f16')",
    },
}
# fmt: on


def lacking(module: str, name: str, names: Iterable[str]) -> str:
    """The text of an AttributeError: the name, and one of the module's that is like it.

    >>> print(lacking("ge2", "gard", ["grad", "jit"]))
    module 'ge2' has no attribute 'gard'
      try  ge2.grad
    """
    from difflib import get_close_matches  # for errors alone

    # what begins with _ is asked by tools that look at a module, thousands of times
    plain = {} if name[:1] == "_" else {n.replace("_", "").lower(): n for n in names}
    near = get_close_matches(name.replace("_", "").lower(), plain, 1, cutoff=0.7)
    fix = INSIDE.get(module, {}).get(name) or ELSEWHERE.get(name, "")
    if not fix and module == "ge2.lax" and name in np.__all__:
        fix = f"np.{name}, NumPy's own function"
    fix = fix or (f"{module}.{plain[near[0]]}" if near else "")
    return f"module {module!r} has no attribute {name!r}" + (f"\n  try  {fix}" if fix else "")
