"""The property tests of every operation: all of its rules agree with its reference.

Each law takes an operation and operands, and raises AssertionError with both if it does not hold.
Ours are held to them in `tests/laws`, a user's by `check_op`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ge2.base.arrays import COMPLEX, COMPLEX128, FLOAT64, INEXACT
from ge2.base.config import config
from ge2.base.errors import ParseError
from ge2.choice.bench import difference as difference
from ge2.choice.bench import eps as eps
from ge2.choice.bench import tolerance as tolerance
from ge2.choice.bench import widened as widened
from ge2.compile import compile_graph
from ge2.ir import ArrayType, Eqn, Flags, Graph, Op, Var, parse, type_of, verify, write
from ge2.ir.text import op_text
from ge2.ops import KNOWN, REPLACED, Pointwise
from ge2.ops.pointlike import check_calls
from ge2.targets.cuda.device import Device, download, upload
from ge2.transforms.graphs import DERIVE, jvp_graph, vjp_graph, vmap_graph

Rng = np.random.Generator
Arrays = Sequence[Any]
STEP = 1e-3
STENCIL = ((-2, 1 / 12), (-1, -2 / 3), (1, 2 / 3), (2, -1 / 12))  # of order 4
DIFFERENTIABLE = (FLOAT64, COMPLEX128)
EXECUTORS = ("c", "blocked", "reference")


def claim(holds: Any, op: Op, arrays: Arrays, what: str, *values: Any) -> None:
    """`values`: what the text has braces for; printing an array takes longer than a comparison."""
    if not holds:
        said = what.format(*values) if values else what
        raise AssertionError(f"{shown(op)} of {', '.join(map(str, types_of(arrays)))}: {said}")


def shown(op: Op) -> str:
    """The operation as the text has it, or its name if it holds Python."""
    try:
        return op_text(op)
    except ParseError:
        return op.name


# ------------------------------------------------------------------------------------------ running


def graph_of(op: Op, types: Sequence[ArrayType]) -> Graph:
    """The graph of one equation."""
    inputs, outs = tuple(map(Var, types)), tuple(map(Var, op.infer(*types)))
    return verify(Graph(inputs, (Eqn(op, inputs, outs),), outs))


def types_of(arrays: Arrays) -> list[ArrayType]:
    return [ArrayType(t.shape, t.dtype) for t in map(type_of, arrays)]


def evaluate(op: Op, arrays: Arrays) -> tuple[Any, ...]:
    with np.errstate(all="ignore"):
        ys = op.reference(*arrays)
    return tuple(ys) if op.several else (ys,)


def evaluated(op: Op, *arrays: Any) -> tuple[Any, ...]:
    return evaluate(op, arrays)


def last(graph: Graph, n: int, *arrays: Any) -> list[Any]:
    """The results from number `n` on."""
    return graph(*arrays)[n:]


def wanted_of(op: Op, arrays: Arrays) -> Flags | None:
    """By which operands it has a derivative that can be compared with
    differences; None for none.
    """
    wanted = tuple(type_of(x).dtype in DIFFERENTIABLE for x in arrays)
    inexact_too = any(type_of(x).dtype in INEXACT - set(DIFFERENTIABLE) for x in arrays)
    results = {t.dtype for t in op.infer(*types_of(arrays))} & INEXACT
    fits = any(wanted) and not inexact_too and results and results <= set(DIFFERENTIABLE)
    return wanted if fits else None


def like(rng: Rng, x: Any) -> Any:
    """A random direction at x."""
    v = rng.standard_normal(np.shape(x))
    if np.asarray(x).dtype in COMPLEX:
        v = v + 1j * rng.standard_normal(np.shape(x))
    return np.asarray(v).astype(np.asarray(x).dtype)


def paired(a: Arrays, b: Arrays) -> float:
    """The sum of Re(a * b): how a cotangent acts on a tangent."""
    return float(
        sum(np.sum(np.real(np.asarray(x) * np.asarray(y))) for x, y in zip(a, b, strict=True))
    )


def moved(arrays: Arrays, wanted: Sequence[bool], directions: Arrays, by: float) -> list[Any]:
    given = iter(directions)
    return [x + by * next(given) if w else x for x, w in zip(arrays, wanted, strict=True)]


def inexact(ys: Arrays) -> list[Any]:
    return [y for y in ys if np.asarray(y).dtype in INEXACT]


def differences(
    f: Callable[..., Any],
    arrays: Arrays,
    wanted: Sequence[bool],
    directions: Arrays,
    step: float = STEP,
) -> list[Any]:
    """The derivative along the directions of the inexact results of f."""
    total: list[Any] | None = None
    for steps, weight in STENCIL:
        ys = [
            np.asarray(y) * weight / step
            for y in inexact(f(*moved(arrays, wanted, directions, steps * step)))
        ]
        total = ys if total is None else [a + b for a, b in zip(total, ys, strict=True)]
    assert total is not None
    return total


def pulled(graph: Graph, wanted: Flags) -> Graph:
    return verify(vjp_graph(graph, wanted, DERIVE))


def close(a: Any, b: Any, scale: float) -> bool:
    return bool(np.allclose(a, b, rtol=1e-7, atol=1e-7 * scale))


# -------------------------------------------------------------------------------- types and meaning


def type_rule(op: Op, arrays: Arrays) -> None:
    """The type rule is the type of the reference; headers define what the expression calls."""
    want = [ArrayType(t.shape, t.dtype) for t in op.infer(*types_of(arrays))]
    got = [ArrayType(np.shape(y), np.asarray(y).dtype) for y in evaluate(op, arrays)]
    says = ", ".join(map(str, want))
    claim(
        got == want,
        op,
        arrays,
        f"the reference gives {', '.join(map(str, got))}, the type rule {says}",
    )
    if isinstance(op.lowering, Pointwise):
        check_calls(op.name, op.lowering, types_of(arrays)[0].dtype, want[0].dtype)


def any_layout(op: Op, arrays: Arrays) -> None:
    """The reference takes any layout, and writes to no operand."""
    want = evaluate(op, arrays)
    odd = [strided(x) for x in arrays]
    for y, z in zip(want, evaluate(op, odd), strict=True):
        # NumPy rounds the last bit differently where memory is not contiguous
        y, z = widened(y), widened(z)
        tolerance = 16 * max(
            (eps(t.dtype) for t in map(type_of, arrays) if t.dtype in INEXACT), default=0
        )
        same = np.allclose(y, z, rtol=tolerance, atol=tolerance, equal_nan=True)
        claim(
            same,
            op,
            arrays,
            "of the same values in another layout the reference gives {}, not {}",
            z,
            y,
        )
    for x, before in zip(odd, arrays, strict=True):
        same = np.asarray(x).tobytes() == np.asarray(before).tobytes()
        claim(same, op, arrays, "the reference writes to an operand")


def strided(x: Any) -> Any:
    """The same values, read-only, spread out in memory and in another order of axes."""
    x = np.asarray(x)
    room = np.zeros(tuple(2 * n + 1 for n in reversed(x.shape)), x.dtype)
    view = (
        np.transpose(room[tuple(slice(1, None, 2) for _ in x.shape)])[..., ::-1] if x.ndim else room
    )
    view[...] = x
    view.flags.writeable = False
    return view


def text(op: Op, arrays: Arrays) -> None:
    """The text reads back as the same graph."""
    graph = graph_of(op, types_of(arrays))
    again = parse(write(graph), KNOWN)
    same = (again == graph or op.name in REPLACED) and write(again) == write(graph)
    claim(same, op, arrays, "{} reads back as another", graph)


# -------------------------------------------------------------------------------------- derivatives


def reverse(op: Op, arrays: Arrays, wanted: Flags, rng: Rng, constant: bool = False) -> None:
    """vjp is the transpose of the differences; `constant`: the derivative is zero by definition."""
    joint = pulled(graph_of(op, types_of(arrays)), wanted)
    ys = inexact(evaluate(op, arrays))
    cts = [like(rng, y) for y in ys]
    grads = joint(*arrays, *cts)[-sum(wanted) :]
    vs = [like(rng, x) for x, w in zip(arrays, wanted, strict=True) if w]
    if constant:
        claim(all(not np.any(g) for g in grads), op, arrays, "its derivative is not zero")
        return
    want, got = (
        paired(cts, differences(partial(evaluated, op), arrays, wanted, vs)),
        paired(grads, vs),
    )
    fits = close(got, want, 1 + sum(np.size(y) for y in ys))
    what = "vjp gives {} along a direction, differences of the reference {}"
    claim(fits, op, arrays, what, got, want)


def forward(
    op: Op, arrays: Arrays, wanted: Flags, rng: Rng, constant: bool = False, reverse: bool = True
) -> None:
    """jvp is the differences, and agrees with vjp, if there is one."""
    graph = graph_of(op, types_of(arrays))
    vs = [like(rng, x) for x, w in zip(arrays, wanted, strict=True) if w]
    ts = verify(jvp_graph(graph, wanted, DERIVE))(*arrays, *vs)[len(graph.outputs) :]
    if constant:
        claim(all(not np.any(t) for t in ts), op, arrays, "its derivative is not zero")
        return
    for t, w in zip(ts, differences(partial(evaluated, op), arrays, wanted, vs), strict=True):
        fits: Any = close(t, w, 1 + np.max(np.abs(w), initial=0))
        claim(fits, op, arrays, "jvp gives {}, differences of the reference {}", t, w)
    if not reverse:
        return
    cts = [like(rng, t) for t in ts]
    grads = pulled(graph, wanted)(*arrays, *cts)[-sum(wanted) :]
    fits = np.isclose(paired(cts, ts), paired(grads, vs), rtol=1e-10, atol=1e-10)
    claim(fits, op, arrays, "jvp is not the transpose of vjp")


def one_at_a_time(op: Op, arrays: Arrays, wanted: Flags, rng: Rng) -> None:
    """The derivative by one operand alone is the same."""
    if sum(wanted) < 2:
        return
    graph = graph_of(op, types_of(arrays))
    cts = [like(rng, y) for y in inexact(evaluate(op, arrays))]
    together = iter(pulled(graph, wanted)(*arrays, *cts)[-sum(wanted) :])
    for i, w in enumerate(wanted):
        if w:
            only = tuple(j == i for j in range(len(wanted)))
            same = np.array_equal(pulled(graph, only)(*arrays, *cts)[-1], next(together))
            claim(
                same,
                op,
                arrays,
                f"the derivative by operand {i} alone is another than with the others",
            )


def second_order(op: Op, arrays: Arrays, wanted: Flags, rng: Rng) -> None:
    """The second derivative is the differences of the first."""
    joint = pulled(graph_of(op, types_of(arrays)), wanted)
    cts = [like(rng, y) for y in inexact(evaluate(op, arrays))]
    n, grads = len(joint.outputs) - sum(wanted), sum(wanted)
    given = tuple(i >= n for i in range(len(joint.outputs)))
    both = (*wanted, *(True for _ in cts))
    twice = verify(vjp_graph(joint, both, DERIVE, given))
    at = (*arrays, *cts)
    ws = [like(rng, g) for g in joint(*at)[n:]]
    vs = [like(rng, x) for x, w in zip(at, both, strict=True) if w]
    got = paired(twice(*at, *ws)[-(grads + len(cts)) :], vs)
    want = paired(ws, differences(partial(last, joint, n), at, both, vs))
    fits = close(got, want, 10 + abs(want))
    what = "the second derivative gives {}, differences of the first {}"
    claim(fits, op, arrays, what, got, want)


def rounded(op: Op, arrays: Arrays, rng: Rng) -> None:
    """The derivative in a narrow dtype is that of float64, rounded."""
    wanted = tuple(type_of(x).dtype in INEXACT for x in arrays)
    types = types_of(arrays)
    outs = op.infer(*types)
    wide = [widened(x) for x in arrays]
    if not any(wanted) or not any(t.dtype in INEXACT for t in outs) or not accepts(op, wide):
        return
    cts = [like(rng, y) for y in inexact(evaluate(op, arrays))]
    got = pulled(graph_of(op, types), wanted)(*arrays, *cts)[-sum(wanted) :]
    graph = pulled(graph_of(op, types_of(wide)), wanted)
    seeds = zip(cts, graph.inputs[len(wide) :], strict=True)
    want = graph(*wide, *(np.asarray(c).astype(v.type.dtype) for c, v in seeds))[-sum(wanted) :]
    worst = max(eps(t.dtype) for t in (*types, *outs) if t.dtype in INEXACT)
    for g, w, x in zip(
        got, want, (x for x, q in zip(arrays, wanted, strict=True) if q), strict=True
    ):
        claim(
            np.asarray(g).dtype == np.asarray(x).dtype, op, arrays, "a cotangent has another dtype"
        )
        error = np.abs(widened(g) - w).max(initial=0)
        fits = error <= 32 * worst * (1 + np.abs(w).max(initial=0))
        claim(fits, op, arrays, "the derivative is {}, in float64 {}", g, w)


def accepts(op: Op, arrays: Arrays) -> bool:
    try:
        op.infer(*types_of(arrays))
    except TypeError:
        return False
    return True


# ------------------------------------------------------------------------------------------ batches


def batches(op: Op, draws: Sequence[Arrays]) -> None:
    """A batch is the loop; `draws` are three lists of operands of the same types."""
    draws = [tuple(np.asarray(x) for x in draw) for draw in draws]
    count = len(draws[0])
    for size, flags in itertools.product((3, 1), itertools.product((False, True), repeat=count)):
        if not any(flags) or (size == 1 and not all(flags)):
            continue
        for place in ("first", "last", "mixed"):
            axes = [
                where(place, i, x.ndim) if f else None
                for i, (x, f) in enumerate(zip(draws[0], flags, strict=True))
            ]
            operands = [
                draws[0][i] if a is None else np.stack([draws[k][i] for k in range(size)], a)
                for i, a in enumerate(axes)
            ]
            loop = [
                evaluate(op, [draws[k if f else 0][i] for i, f in enumerate(flags)])
                for k in range(size)
            ]
            batch(op, operands, axes, draws[0], loop)


def where(place: str, i: int, ndim: int) -> int:
    return {"first": 0, "last": ndim, "mixed": ndim // 2 if i % 2 else ndim}[place]


def batch(
    op: Op, operands: Arrays, axes: Sequence[int | None], one: Arrays, loop: Sequence[Arrays]
) -> None:
    """The operation along the axes of the operands gives what the loop gave."""
    batched, has = vmap_graph(graph_of(op, types_of(one)), axes, len(loop), DERIVE)
    ys = verify(batched)(*operands)
    for i, (y, h) in enumerate(zip(ys, has, strict=True)):
        along = not h or np.shape(y)[:1] == (len(loop),)
        claim(along, op, operands, f"its batch along {axes} has the shape {np.shape(y)}")
        for k, single in enumerate(loop):
            got = y[k] if h else y
            dtype = np.asarray(single[i]).dtype
            claim(
                got.dtype == dtype,
                op,
                operands,
                f"its batch along {axes} is {got.dtype}, not {dtype}",
            )
            rtol = 64 * eps(dtype) if dtype in INEXACT else 0  # sums may be taken in another order
            same = np.shape(got) == np.shape(single[i]) and np.allclose(
                got, single[i], rtol=rtol, atol=rtol, equal_nan=True
            )
            what = "along {} place {} of the batch is {}, alone it is {}"
            claim(same, op, operands, what, axes, k, got, single[i])


def empty_batch(op: Op, arrays: Arrays) -> None:
    """A batch of none has the shapes of any batch."""
    arrays = [np.asarray(x) for x in arrays]
    if not arrays:
        return
    types = types_of(arrays)
    graph, has = vmap_graph(graph_of(op, types), [0] * len(arrays), 0, DERIVE)
    ys = verify(graph)(*(np.zeros((0, *x.shape), x.dtype) for x in arrays))
    want = [((0,) if h else ()) + t.shape for t, h in zip(op.infer(*types), has, strict=True)]
    claim(
        [y.shape for y in ys] == want,
        op,
        arrays,
        f"an empty batch has the shapes {[y.shape for y in ys]}",
    )


# ---------------------------------------------------------------------------------------- executors


def executed(executor: str, op: Op, graph: Graph, arrays: Arrays, want: Arrays) -> None:
    """Compares what an executor makes of a graph with what the references make of it."""
    with config.using(executor=executor, threads=2):
        executable = compile_graph(graph)
        for _ in range(2):  # again in the arena of the first call
            got = executable(*map(np.asarray, arrays))
    for y, w, a in zip(got, want, graph.outputs, strict=True):
        why = difference(y, w, a.type)
        claim(not why, op, arrays, f"executed by {executor!r}: {why}")


def launched(device: Device, op: Op, graph: Graph, arrays: Arrays, want: Arrays) -> None:
    """Compares what the kernels of a graph make of it on a device with what the references make of
    it.
    """
    executable = compile_graph(graph, device=device)
    given = [
        x if v.type.weak else upload(device, np.asarray(x))
        for x, v in zip(arrays, graph.inputs, strict=True)
    ]
    for _ in range(2):
        got = executable(*given)
    for y, w, a in zip(got, want, graph.outputs, strict=True):
        why = difference(download(y), w, a.type)
        claim(not why, op, arrays, f"executed in CUDA: {why}")
