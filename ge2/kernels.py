"""Kernels as a user sees them: which one is chosen for a problem, and why; single operations by name.

>>> import numpy as np, ge2
>>> choice = ge2.kernels.select("dot_general", [np.ones((64, 64)), np.ones((64, 64))], "sm_90a",
...                             contract=((1,), (0,)), beside=((), ()))
>>> choice.taken.family.name, choice.by
('small product in CUDA', 'order')

`op_call` runs one operation on arrays by its name, compiled as any other function and remembered: an
operation of a graph, or one of the functions of neural networks, which are plain NumPy here.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np

from ge2.base.arrays import BOOL, FLOAT32, HALF, on_gpu
from ge2.base.config import config
from ge2.base.errors import ArgumentError, CompilerTrouble, Ge2Error, InputError, NoRuleError
from ge2.base.source import here
from ge2.base.tracebacks import hides, publish
from ge2.choice import Measured as Measured
from ge2.choice import Pin as Pin
from ge2.choice import Prefs as Prefs
from ge2.choice import Problem, prefs
from ge2.choice.choose import Candidate as Candidate
from ge2.choice.choose import Choice as Choice
from ge2.choice.choose import choose, settled
from ge2.compile import how_to_make, stand_in
from ge2.compile.catalog import catalog_of, check_family, family_names
from ge2.dispatch import jit
from ge2.dispatch.pins import unpin as unpin
from ge2.dispatch.pins import use as use
from ge2.dispatch.user_kernels import bench as bench
from ge2.dispatch.user_kernels import check as check
from ge2.dispatch.user_kernels import launch as launch
from ge2.dispatch.user_kernels import register as register
from ge2.dispatch.user_kernels import registered as registered
from ge2.dispatch.user_kernels import unregister as unregister
from ge2.ir import Eqn, Graph, Op, Var, type_of
from ge2.numpy import axes, composite, creation, products, shapes
from ge2.numpy import elementwise as e
from ge2.numpy.promotion import cast
from ge2.numpy.rare import special
from ge2.ops import KNOWN
from ge2.program import Program, Step
from ge2.targets.cuda.device import Device
from ge2.targets.cuda.limits import MULTIPROCESSOR, Limits, capability
from ge2.targets.cuda.load import loaded_nvrtc
from ge2.trace import is_traced
from ge2.transforms.arguments import make_jaxpr

__all__ = [
    "Candidate", "Choice", "Measured", "Pin", "Prefs", "bench", "check", "families", "launch", "names",
    "register", "registered", "select", "unpin", "unregister", "use",
]  # fmt: skip


def names() -> tuple[str, ...]:
    """The names that `ge2.op_call` and `select` know: of functions, then of operations.

    >>> "sdpa" in names(), "dot_general" in names()
    (True, True)
    """
    return (*FUNCTIONS, *KNOWN)


def families() -> tuple[str, ...]:
    """The names of the families of kernels, which preferences may name.

    >>> "product by BLAS" in families()
    True
    """
    return family_names()


def select(
    op: str | Op,
    problem: Sequence[Any] | Problem,
    hw_caps: Any = None,
    prefs: Prefs | None = None,
    **attributes: Any,
) -> Choice:
    """The choice of a kernel for an operation on operands like these.

    `op`: an operation, or a name of `names()` with its attributes. `problem`: arrays, or
    ShapeDtypeStructs, of which the first have layouts where they are NumPy's; or a `Problem`.
    `hw_caps`: None is where programs run now; "sm_90a" or a `Limits` is such a GPU, which need not
    be here; "c" is the processor. `prefs`: None are those of the settings.

    Raises InputError for names that there are not, with the nearest, and for a function that becomes
    more than one kernel; NoRuleError where every family refuses the problem.
    """
    wanted = preferences() if prefs is None else known(prefs)
    device = device_of(hw_caps)
    if isinstance(problem, Problem):
        return chosen(replace(problem, target=target_of(device)), device, wanted)
    if not isinstance(problem, list | tuple):
        what = f"select takes a list of arrays, the operands of {op}; got {problem!r:.60}"
        raise InputError(what, where=here(), fix="[x]")
    operands = [*problem]
    with config.using(executor="c" if hw_caps == "c" else config.executor):
        program = program_of(graph_of(op, operands, attributes), device)
    step = only_kernel(program, op)
    found = Problem.of(step.eqn, program.target, program.operand, step.shared)
    return chosen(as_they_lie(found, step, program, operands), device, wanted)


def preferences() -> Prefs:
    for name in config.prefer:
        check_family(name.removeprefix("-").strip())
    return prefs()


def known(given: Any) -> Prefs:
    """The preferences. InputError for what is none, and for names that there are not."""
    if not isinstance(given, Prefs):
        what = f"prefs are ge2.kernels.Prefs; got {given!r:.60}"
        raise InputError(what, where=here(), fix="ge2.kernels.Prefs(tune='off')")
    if given.tune not in (modes := ("off", "cached", "on")):
        what = f"Prefs(tune=) is {' or '.join(map(repr, modes))}; got {given.tune!r:.60}"
        raise InputError(what, where=here(), fix="tune='cached'")
    for name in (*given.only, *given.without, *(pin.family for pin in given.pins)):
        check_family(name)
    return given


def device_of(caps: Any) -> Device | None:
    """The device that limits or words name; None is the processor."""
    if caps is None:
        return stand_in()
    if isinstance(caps, str) and caps == "c":
        return None
    if hasattr(caps, "limits"):
        return caps  # type: ignore[no-any-return]
    if isinstance(caps, str | Limits):
        from ge2.targets.cuda.emulator import OfflineDevice, limits_of

        return OfflineDevice(caps if isinstance(caps, Limits) else limits_of(architecture(caps)))
    what = f"hw_caps is an architecture, limits or a device; got {caps!r:.60}"
    raise InputError(what, where=here(), fix="'sm_90a', 'c', or None")


def architecture(text: str) -> str:
    """The architecture. InputError for what is none, or none that NVRTC has heard of."""
    number = capability(text)
    known = number in MULTIPROCESSOR or f"sm_{number}" in compiled_for()
    if not text.startswith("sm_") or not number.isdecimal() or not known:
        fix = ", ".join(compiled_for()) or "'sm_90a'"
        raise InputError(f"{text!r} is no architecture of a GPU", where=here(), fix=fix)
    return text


def compiled_for() -> tuple[str, ...]:
    """The architectures that the NVRTC at hand compiles for; none without one."""
    try:
        return loaded_nvrtc().architectures()
    except CompilerTrouble:
        return ()


def target_of(device: Device | None) -> str:
    return how_to_make("select", device).target


def graph_of(op: str | Op, operands: list[Any], attributes: Mapping[str, Any]) -> Graph:
    types = [type_of(x) for x in operands]
    if isinstance(op, str) and op in FUNCTIONS:
        graph: Graph = make_jaxpr(function_of(op, attributes))(*operands).graph
        return graph
    made = op_of(op, attributes) if isinstance(op, str) else op
    inputs, outs = tuple(map(Var, types)), tuple(map(Var, made.infer(*types)))
    return Graph(inputs, (Eqn(made, inputs, outs),), outs)


def program_of(graph: Graph, device: Device | None) -> Program:
    how = how_to_make("select", device)
    return how.scheduled(how.rewritten(graph))


def only_kernel(program: Program, op: str | Op) -> Step:
    """The kernel that an operation is."""
    found = [s for s in program.steps if s.kind in ("kernel", "copy", "matmul", "library")]
    if len(found) == 1:
        return found[0]
    name, steps = op if isinstance(op, str) else op.name, ", ".join(s.name for s in found)
    what = f"{name} becomes {len(found)} kernels on {program.target}: {steps or 'nothing is left'}"
    raise InputError(what, where=here(), fix="ge2.explain(f)(*args), which shows all choices")


def as_they_lie(problem: Problem, step: Step, program: Program, operands: list[Any]) -> Problem:
    """The problem with the strides of the arrays that it was asked with."""
    numbers = {v: n for n, v in enumerate(program.graph.inputs)}
    lies = list(problem.operands)
    for n, a in enumerate(step.eqn.inputs):
        x = operands[numbers[a]] if isinstance(a, Var) and a in numbers else None
        if isinstance(x, np.ndarray) and x.size and not lies[n].value:
            strides = tuple(s // x.itemsize for s in x.strides)
            loose = x.__array_interface__["data"][0] // x.itemsize % (16 // min(x.itemsize, 16))
            lies[n] = replace(lies[n], strides=strides, loose=loose)
    return replace(problem, operands=tuple(lies))


def chosen(problem: Problem, device: Device | None, wanted: Prefs) -> Choice:
    """The choice among the families of the target; of NumPy's functions where none serves."""
    caps, catalog = caps_of(problem.target, device), catalog_of(problem.target)
    try:
        return settled(None, problem, caps, wanted, tuple(f for f in catalog if f.target))
    except NoRuleError:
        return choose(problem, caps, wanted, catalog)


def caps_of(target: str, device: Device | None) -> Any:
    """The limits that kernels are written by."""
    if device is not None:
        from ge2.targets.cuda.device import Caps as CudaCaps

        return CudaCaps.of(device)
    from ge2.compile.pipeline import tuning_now
    from ge2.targets.c.libraries import limits

    return limits(config.thread_count(), tuning_now().c)


publish(globals())


# -------- One operation on arrays, by its name: compiled as any other function, and remembered.


REMEMBERED: Final = 512  # operations with their attributes


@hides
def op_call(name: str | Op, *arrays: Any, **attributes: Any) -> Any:
    """The result of one operation of arrays: of a name in `ge2.kernels.names()`, or of an `Op`.

    Attributes are the operation's parameters, or further arguments of the function. The program is
    made of the kernel that is chosen for it, and remembered by its signature; inside a traced
    function it is recorded. InputError for a name that there is not, with the nearest, and for
    attributes that it does not take.

    >>> import numpy as np
    >>> op_call("softmax", np.array([[0.0, 0.0]]))
    array([[0.5, 0.5]])
    >>> op_call("reduce_sum", np.ones((2, 3)), axes=(1,))
    array([3., 3.])
    """
    named = {k: x for k, x in attributes.items() if is_value(x)}
    plain = tuple((k, frozen(x)) for k, x in sorted(attributes.items()) if k not in named)
    try:
        function = compiled(name, plain)
    except TypeError as error:
        if isinstance(error, InputError) or "unhashable" not in str(error):
            raise
        what = f"op_call({name!r}): attributes are numbers, words, sequences of them, or arrays"
        raise InputError(what, where=here()) from None
    return function(*arrays, **named)


def is_value(x: Any) -> bool:
    return isinstance(x, np.ndarray | np.generic) or is_traced(x) or on_gpu(x)


def frozen(x: Any) -> Any:
    return tuple(map(frozen, x)) if isinstance(x, list | tuple) else x


@lru_cache(REMEMBERED)
def compiled(name: str | Op, attributes: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    return jit(function_of(name, dict(attributes)))


def function_of(name: str | Op, attributes: Mapping[str, Any]) -> Callable[..., Any]:
    """The function of arrays that a name stands for."""
    if isinstance(name, Op):
        return applied(name)
    if name in FUNCTIONS:
        check_attributes(name, inspect.signature(FUNCTIONS[name]).parameters, attributes)
        return called(name, partial(FUNCTIONS[name], **attributes))
    return applied(op_of(name, attributes))


def op_of(name: str, attributes: Mapping[str, Any]) -> Op:
    """The operation of a name with these parameters. InputError if there is none."""
    if name not in KNOWN:
        from difflib import get_close_matches

        near = get_close_matches(str(name), [*FUNCTIONS, *KNOWN], 1, 0.0)
        raise InputError(f"there is no operation {name!r}", where=here(), fix=repr(near[0]))
    made: Any = KNOWN[name]
    parameters: list[str] = [f.name for f in fields(made)] if is_dataclass(made) else []
    check_attributes(name, parameters, attributes)
    try:
        found: Op = made(**attributes)
        return found
    except TypeError as error:
        needed = [f.name for f in fields(made) if f.default is f.default_factory is MISSING]
        if lacking := [each for each in needed if each not in attributes]:
            fix = f"{', '.join(f'{each}=...' for each in lacking)}: attributes as ge2.make_jaxpr prints them"
            what = f"{name} needs {', '.join(lacking)}"
            raise InputError(what, where=here(), fix=fix) from None
        takes = ", ".join(parameters) or "no attributes"
        raise InputError(f"{name} takes {takes}: {error}", where=here()) from None


def check_attributes(name: str, known: Any, attributes: Mapping[str, Any]) -> None:
    """InputError for an attribute that there is not."""
    for each in attributes:
        if each not in known:
            from difflib import get_close_matches

            near = get_close_matches(each, list(known), 1, 0.0)
            fix = f"{near[0]}=" if near else "no attributes"
            raise InputError(f"{name} has no attribute {each!r}", where=here(), fix=fix)


def applied(op: Op) -> Callable[..., Any]:
    """The operation as a function. InputError for parameters of another kind than it has."""

    def function(*xs: Any) -> Any:
        try:
            return op(*xs)
        except Ge2Error:
            raise
        except (TypeError, AttributeError, ValueError, LookupError) as error:
            types = ", ".join(str(type_of(x)) for x in xs)
            what = f"{op!r:.200} is no operation of {types}: {error}"
            fix = "attributes as ge2.make_jaxpr prints them"
            raise InputError(what, where=here(), fix=fix) from error

    return called(op.name, function)


def called(name: str, f: Callable[..., Any]) -> Callable[..., Any]:
    """A function under a name, by which errors and reports call it."""

    def function(*xs: Any, **more: Any) -> Any:
        return f(*xs, **more)

    function.__name__ = function.__qualname__ = name
    return function


# -------- Functions of neural networks, of values: those that `op_call` names beside operations.
# Half types are computed in float32 inside and rounded once, at the end. There is nothing here that
# NumPy could not say: the compiler finds their kernels.


Function = Callable[..., Any]


def inside(x: Any) -> Any:
    """The values in which a function of x is computed: float32 for half types."""
    x = special.floating(x, "a layer")
    return cast(x, FLOAT32) if type_of(x).dtype in HALF else x


def as_was(y: Any, x: Any) -> Any:
    """A result in the dtype of what it was made of, if that was a half type."""
    dtype = type_of(x).dtype
    return cast(y, dtype) if dtype in HALF else y


def relu(x: Any) -> Any:
    """max(x, 0)."""
    return e.maximum(x, 0)


def silu(x: Any) -> Any:
    """x / (1 + exp(-x)), also known as swish."""
    wide = inside(x)
    return as_was(e.multiply(wide, special.expit(wide)), x)


def gelu(x: Any, approximate: bool = True) -> Any:
    """x times the normal distribution function of x, by tanh, or by erf if not `approximate`.

    Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.
    """
    wide = inside(x)
    if approximate:
        cube = e.multiply(0.044715, e.multiply(wide, e.multiply(wide, wide)))
        part = e.tanh(e.multiply(math.sqrt(2 / math.pi), e.add(wide, cube)))
    else:
        part = special.erf(e.multiply(wide, math.sqrt(0.5)))
    return as_was(e.multiply(e.multiply(0.5, wide), e.add(1.0, part)), x)


def softmax(x: Any, axis: int = -1) -> Any:
    """exp(x) by their sum along an axis; of no elements, none."""
    if not type_of(x).size:
        return as_was(inside(x), x)
    return as_was(special.softmax(inside(x), axis), x)


def log_softmax(x: Any, axis: int = -1) -> Any:
    """The logarithm of `softmax`."""
    if not type_of(x).size:
        return as_was(inside(x), x)
    return as_was(special.log_softmax(inside(x), axis), x)


def layer_norm(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """x[..., n] less its mean over its standard deviation along the last axis, times weight[n], plus
    bias[n]. Ba, Kiros and Hinton, "Layer Normalization", 2016.
    """
    wide = inside(x)
    away = e.subtract(wide, axes.mean(wide, -1, keepdims=True))
    variance = axes.mean(e.multiply(away, away), -1, keepdims=True)
    y = e.divide(away, e.sqrt(e.add(variance, eps)))
    return as_was(scaled(y, weight, bias), x)


def rms_norm(x: Any, weight: Any = None, eps: float = 1e-5) -> Any:
    """x[..., n] over the root of its mean square along the last axis, times weight[n]."""
    wide = inside(x)
    square = axes.mean(e.multiply(wide, wide), -1, keepdims=True)
    return as_was(scaled(e.divide(wide, e.sqrt(e.add(square, eps))), weight, None), x)


def scaled(y: Any, weight: Any, bias: Any) -> Any:
    y = y if weight is None else e.multiply(y, inside(weight))
    return y if bias is None else e.add(y, inside(bias))


def gemm(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False) -> Any:
    """a[..., m, k] @ b[..., k, n], either of which may be given with its last axes exchanged."""
    a = shapes.swapaxes(a, -1, -2) if transpose_a else a
    return products.matmul(a, shapes.swapaxes(b, -1, -2) if transpose_b else b)


def bias_add(x: Any, bias: Any) -> Any:
    """x[..., n] + bias[n]."""
    return e.add(x, bias)


def gemm_bias_act(a: Any, b: Any, bias: Any, act: str = "gelu") -> Any:
    """An activation of a[..., m, k] @ b[k, n] + bias[n]: relu, gelu, silu, tanh or none."""
    if act not in ACTIVATIONS:
        what = f"gemm_bias_act: there is no activation {act!r}"
        raise ArgumentError(what, where=here(), fix=" or ".join(map(repr, ACTIVATIONS)))
    return ACTIVATIONS[act](bias_add(gemm(a, b), bias))


ACTIVATIONS: Final[dict[str, Function]] = {
    "relu": relu, "gelu": gelu, "silu": silu, "tanh": e.tanh, "none": lambda x: x,
}  # fmt: skip


def sdpa(
    q: Any, k: Any, v: Any, mask: Any = None, causal: bool = False, scale: float | None = None
) -> Any:
    """Attention of q[..., s, d] to k[..., t, d] and v[..., t, e]: softmax(q k^T scale) v.

    `mask`: bool[..., s, t], False where nothing is read; `causal`: row i reads columns up to
    i + t - s. `scale` is 1 / sqrt(d) unless given. Vaswani and others, "Attention Is All You Need",
    2017.
    """
    scale = 1 / math.sqrt(type_of(q).shape[-1]) if scale is None else scale
    scores = e.multiply(inside(gemm(q, k, transpose_b=True)), scale)
    s, t = type_of(scores).shape[-2:]
    if causal:
        scores = composite.where(creation.tri(s, t, t - s, dtype=bool), scores, -math.inf)
    if mask is not None:
        if (given := type_of(mask)).dtype != BOOL:
            what = f"sdpa: a mask is of bool, True where a key is read; got {given}"
            raise InputError(what, where=here(), fix="mask > -np.inf, of one that would be added")
        scores = composite.where(mask, scores, -math.inf)
    return products.matmul(as_was(special.softmax(scores, -1), q), v)


FUNCTIONS: Final[dict[str, Function]] = {
    f.__name__: f
    for f in (
        relu, silu, gelu, softmax, log_softmax, layer_norm, rms_norm, gemm, bias_add, gemm_bias_act, sdpa,
    )
}  # fmt: skip
