"""`check_op`: an operation of your own is held to the laws of ours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ge2.base.config import config
from ge2.base.errors import ArgumentError, CompilerTrouble, DeviceError
from ge2.base.source import here
from ge2.base.toolchain.detect import toolchain
from ge2.compile.compile import compile_graph
from ge2.ir import Flags, Op
from ge2.ops.elementwise import Elementwise
from ge2.ops.user_ops import Own
from ge2.targets.cuda.device import Device, kept_as
from ge2.targets.cuda.emulator.device import ShimDevice
from ge2.targets.cuda.limits import H200
from ge2.targets.cuda.load import gpu
from ge2.targets.cuda.load.offline import OfflineDevice
from ge2.targets.cuda.load.toolkit import nvrtc
from ge2.test_util import laws

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
    """Whether a text of the user's is there for CUDA alone."""
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
        nvrtc()
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
    """Whether it says of itself that its derivative is zero."""
    return isinstance(op, Elementwise) and not any(op.partials) and op.pull is None


def variants(arrays: Sequence[Any]) -> Iterator[Arrays]:
    """Three lists of operands: the values of the sample, in other places."""
    for turn in (0, 1, 2):
        yield tuple(np.roll(np.asarray(x), turn) for x in arrays)
