"""Checks for what you write: derivatives against differences, operations of your own against laws."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ge2.base.arrays import COMPLEX, FLOAT64, HALF, INEXACT, beside, host, real_part
from ge2.base.config import config
from ge2.base.detect import toolchain
from ge2.base.errors import ArgumentError, CompilerTrouble, DeviceError
from ge2.base.pytree import flatten, unflatten
from ge2.base.source import here
from ge2.base.tracebacks import publish
from ge2.compile import compile_graph
from ge2.ir import Flags, Op, type_of
from ge2.ops.pointlike import Elementwise
from ge2.ops.user_ops import Own
from ge2.targets.cuda.device import Device, kept_as
from ge2.targets.cuda.emulator import OfflineDevice, ShimDevice
from ge2.targets.cuda.limits import H200
from ge2.targets.cuda.load import gpu, loaded_nvrtc
from ge2.test_util import laws
from ge2.test_util.laws import STENCIL, paired
from ge2.transforms.api import jvp, vjp
from ge2.transforms.arguments import is_array
from ge2.transforms.graphs import empty, is_float0

__all__ = ["check_grads", "check_op"]
Function = Callable[..., Any]
MODES = frozenset(("fwd", "rev"))


def check_grads(
    f: Function,
    args: Sequence[Any],
    order: int,
    modes: str | Sequence[str] = ("fwd", "rev"),
    atol: float | None = None,
    rtol: float | None = None,
    eps: float | None = None,
) -> None:
    """AssertionError unless the derivatives of `f(*args)` up to `order` are
    differences of its values.

    Each is compared along a random direction, by forward mode, reverse mode, and all their
    mixtures. Arguments and results are pytrees. `eps` is the step of the differences, which are of
    fourth order; tolerances are by the narrowest dtype that occurs: 1e-5 for float64, 1e-2 for
    float32, 0.2 for half types.

    >>> import numpy as np
    >>> check_grads(lambda x: np.sin(x) * x, (np.linspace(0.0, 1.0, 4),), order=2)
    """
    wanted = (modes,) if isinstance(modes, str) else tuple(modes)
    if not wanted or not MODES.issuperset(wanted):
        raise ArgumentError(
            f"check_grads has no modes {modes!r}", where=here(), fix='("fwd", "rev")'
        )
    if order < 1:
        raise ArgumentError(
            f"check_grads was given order={order}", where=here(), fix="order=1, or more"
        )
    if not isinstance(args, tuple | list):
        what = f"check_grads takes a tuple of arguments; got a {type(args).__name__}"
        raise ArgumentError(what, where=here(), fix="(x,)")
    if not any(is_array(x) and type_of(x).dtype in INEXACT for x in flatten(args)[0]):
        what = "check_grads was given no argument that a derivative is by"
        raise ArgumentError(what, where=here(), fix="x.astype(np.float64)")
    rng = np.random.default_rng(0)
    check(f, tuple(args), order, wanted, (atol, rtol, eps), rng, ())


def check(
    f: Function,
    args: tuple[Any, ...],
    order: int,
    modes: Sequence[str],
    settings: tuple[float | None, float | None, float | None],
    rng: np.random.Generator,
    so_far: tuple[str, ...],
) -> None:
    """`so_far`: the derivatives that `f` is made of."""
    direction = random_like(rng, args)
    want = numerical(f, args, direction, settings[2])
    for mode in modes:
        names = (*so_far, mode)
        if mode == "fwd":
            ys, ts = jvp(f, args, direction)
            compare(ts, want, names, settings, (args, ys))
            derivative = along(f, direction)
        else:
            ys, pull = vjp(f, *args)
            ct = random_like(rng, ys)
            grads = pull(ct)
            got, given = (paired(bare(a), bare(b)) for a, b in ((grads, direction), (ct, want)))
            compare(np.float64(got), np.float64(given), names, settings, (args, ys))
            derivative = against(f, ct)
        if order > 1:
            check(derivative, args, order - 1, modes, settings, rng, names)


def along(f: Function, direction: Any) -> Function:
    return lambda *args: jvp(f, args, direction)[1]


def against(f: Function, ct: Any) -> Function:
    return lambda *args: vjp(f, *args)[1](ct)


def numerical(f: Function, args: tuple[Any, ...], direction: Any, eps: float | None) -> Any:
    """The differences of the results of f along a direction."""
    step = eps or {True: 1e-3, False: 1e-2}[narrowest(args) == FLOAT64]
    total: list[Any] | None = None
    structure: Any = None
    for steps, weight in STENCIL:
        leaves, structure = flatten(f(*moved(args, direction, steps * step)))
        terms = [difference_term(y, weight / step) for y in leaves]
        total = terms if total is None else [added(a, b) for a, b in zip(total, terms, strict=True)]
    return unflatten(structure, total or [])


def difference_term(y: Any, weight: float) -> Any:
    if is_float0(y):
        return y
    dtype = type_of(y).dtype
    if dtype not in INEXACT:
        return empty(np.shape(y))
    return np.asarray(host(y)).astype(np.complex128 if dtype in COMPLEX else np.float64) * weight


def added(a: Any, b: Any) -> Any:
    return a if is_float0(a) else a + b


def moved(args: tuple[Any, ...], direction: Any, by: float) -> tuple[Any, ...]:
    leaves, structure = flatten(args)
    steps = flatten(direction)[0]
    found: tuple[Any, ...] = unflatten(
        structure, [step(x, v, by) for x, v in zip(leaves, steps, strict=True)]
    )
    return found


def step(x: Any, v: Any, by: float) -> Any:
    if is_float0(v) or type(x) in (float, complex):
        return x if is_float0(v) else x + by * v
    return beside((host(x) + by * host(v)).astype(x.dtype), x)


def random_like(rng: np.random.Generator, tree: Any) -> Any:
    """A direction in the place of a tree; float0 for what has none."""
    leaves, structure = flatten(tree)
    return unflatten(structure, [random_leaf(rng, x) for x in leaves])


def random_leaf(rng: np.random.Generator, x: Any) -> Any:
    if is_float0(x) or not is_array(x) or type_of(x).dtype not in INEXACT:
        return empty(np.shape(x) if is_array(x) or is_float0(x) else ())
    t = type_of(x)
    v = rng.standard_normal(t.shape)
    v = v + 1j * rng.standard_normal(t.shape) if t.dtype in COMPLEX else v
    return type(x)(v) if t.weak else beside(np.asarray(v).astype(t.dtype), x)


def bare(tree: Any) -> list[Any]:
    return [host(x) for x in flatten(tree)[0] if not is_float0(x)]


def narrowest(*trees: Any) -> np.dtype:
    """The real dtype with the fewest digits among the leaves."""
    found = [real_part(type_of(x).dtype) for x in flatten(trees)[0] if is_array(x)]
    widths = [d for d in found if d in INEXACT]
    return min(widths, key=lambda d: d.itemsize, default=FLOAT64)


def compare(
    got: Any,
    want: Any,
    names: tuple[str, ...],
    settings: tuple[float | None, float | None, float | None],
    trees: Any,
) -> None:
    dtype = narrowest(trees)
    usual = 0.2 if dtype in HALF else 1e-5 if dtype == FLOAT64 else 1e-2
    atol, rtol = (usual if s is None else s for s in settings[:2])
    for y, w in zip(bare(got), bare(want), strict=True):
        y, w = np.asarray(y), np.asarray(w)
        y = y.astype(w.dtype)
        if y.shape != w.shape or not np.allclose(y, w, rtol=rtol, atol=atol, equal_nan=True):
            error = np.max(np.abs(y - w)) if y.shape == w.shape else "another shape"
            which = " of ".join(reversed(names))
            raise AssertionError(
                f"{which}: the derivative is {y}, differences give {w}; off by {error}"
            )


# -------------------------------------------------------------------------------------- operations
# `check_op`: an operation of your own is held to the laws of ours.


Arrays = tuple[Any, ...]


def check_op(op: Any, samples: Iterable[Any], *, seed: int = 0) -> None:
    """AssertionError, with operands and both results, unless the laws hold for
    an operation of your own.

    `op` is the operation or a function of `ge2.extend.elementwise`; each sample a tuple of operands
    (or an array, if there is one). With every sample: the type rule is the type of the reference,
    which takes any layout; the text reads back; a batch along any axis is a loop; every executor
    gives what the reference gives (C among them, unless `config.executor` is another); so does CUDA
    that is the operation's own, on a GPU if there is one, else on the CPU in its place, and NVRTC,
    if it is there, compiles it. With those in float64 or complex128, if there is a `vjp`: vjp and
    jvp are the differences of the reference, and the second derivative those of the first, so the
    samples should keep away from where it jumps; in other floats the derivative is that of float64,
    rounded.

    >>> import numpy as np, ge2
    >>> half = ge2.extend.elementwise("half", lambda x: x / 2, "{0} / 2", lambda y, x: 0.5)
    >>> check_op(half, [np.linspace(0.0, 1.0, 5)])
    >>> wrong = ge2.extend.elementwise("wrong", lambda x: x / 2, "{0} / 2", lambda y, x: 0.4)
    >>> check_op(wrong, [np.linspace(0.0, 1.0, 5)])
    Traceback (most recent call last):
    AssertionError: wrong of f64[5]: vjp gives ..., differences of the reference ...
    """
    made = getattr(op, "op", op)
    if not isinstance(made, Op):
        what = f"check_op takes an operation; got a {type(op).__name__}"
        raise ArgumentError(
            what, where=here(), fix="an instance, Smooth(0.5), of a class under ge2.extend.op"
        )
    rng, count = np.random.default_rng(seed), 0
    for sample in samples:
        arrays = sample if isinstance(sample, tuple) else (sample,)
        with telling(made, arrays):
            check_sample(made, arrays, rng)
        count += 1
    if not count:
        raise ArgumentError("check_op was given no samples", where=here(), fix="[(x,), ...]")


@contextmanager
def telling(op: Op, arrays: Arrays) -> Iterator[None]:
    """An error of a rule also says of which sample it is."""
    try:
        yield
    except AssertionError:
        raise
    except Exception as error:
        error.add_note(
            f"while check_op was given {', '.join(map(str, laws.types_of(arrays)))} for {op.name}"
        )
        raise


def check_sample(op: Op, arrays: Arrays, rng: np.random.Generator) -> None:
    for law in (laws.type_rule, laws.any_layout, laws.text):
        law(op, arrays)
    if arrays:
        laws.batches(op, list(variants(arrays)))
        laws.empty_batch(op, arrays)
    check_executors(op, arrays)
    check_cuda(op, arrays)
    if not has_derivative(op):
        return
    wanted = laws.wanted_of(op, arrays)
    if wanted is None:
        laws.rounded(op, arrays, rng)
        return
    zero = is_constant(op)
    laws.reverse(op, arrays, wanted, rng, zero)
    laws.forward(op, arrays, wanted, rng, zero)
    laws.one_at_a_time(op, arrays, wanted, rng)
    laws.second_order(op, arrays, wanted, rng)
    check_compiled_derivative(op, arrays, wanted, rng)


def check_executors(op: Op, arrays: Arrays) -> None:
    graph, want = laws.graph_of(op, laws.types_of(arrays)), laws.evaluate(op, arrays)
    for executor in laws.EXECUTORS if config.executor == "c" else laws.EXECUTORS[1:]:
        laws.executed(executor, op, graph, arrays, want)


def check_cuda(op: Op, arrays: Arrays) -> None:
    """CUDA that the user wrote computes what the reference does, where there is
    what compiles and runs it.
    """
    if not has_cuda(op):
        return
    graph, want = laws.graph_of(op, laws.types_of(arrays)), laws.evaluate(op, arrays)
    for device in devices():
        if isinstance(device, OfflineDevice):
            compile_graph(graph, device=device).build()
        elif all(kept_as(device, t.dtype) == t.dtype for t in laws.types_of((*arrays, *want))):
            laws.launched(device, op, graph, arrays, want)


def has_cuda(op: Op) -> bool:
    """True if a text of the user's is there for CUDA alone."""
    return bool(
        op.cuda if isinstance(op, Own) else isinstance(op, Elementwise) and op.lowering.cuda
    )


def devices() -> tuple[Device, ...]:
    """The GPU; without one what takes its place on the CPU, and a GPU that is
    not at hand to compile for.
    """
    try:
        return (gpu.current_gpu(),)
    except DeviceError:
        pass
    found: list[Device] = [] if toolchain() is None else [ShimDevice()]
    try:
        loaded_nvrtc()
    except CompilerTrouble:
        return tuple(found)
    return (*found, OfflineDevice(H200))


def check_compiled_derivative(
    op: Op, arrays: Arrays, wanted: Flags, rng: np.random.Generator
) -> None:
    joint = laws.pulled(laws.graph_of(op, laws.types_of(arrays)), wanted)
    cts = [laws.like(rng, y) for y in laws.inexact(laws.evaluate(op, arrays))]
    laws.executed(config.executor, op, joint, (*arrays, *cts), joint(*arrays, *cts))


def has_derivative(op: Op) -> bool:
    return type(op).vjp is not Op.vjp


def is_constant(op: Op) -> bool:
    """True if it says of itself that its derivative is zero."""
    return isinstance(op, Elementwise) and not any(op.partials) and op.pull is None


def variants(arrays: Sequence[Any]) -> Iterator[Arrays]:
    """Three lists of operands: the values of the sample, in other places."""
    for turn in (0, 1, 2):
        yield tuple(np.roll(np.asarray(x), turn) for x in arrays)


publish(globals())
