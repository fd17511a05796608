"""What holds for every operation: its type rule, text, derivatives and batches agree with its reference."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from ge2 import ops
from ge2.base.dtypes import COMPLEX, COMPLEX128, FLOAT64, HALF, INEXACT, real_part
from ge2.base.errors import NoRuleError
from ge2.ir import ArrayType, Eqn, Graph, Op, Var, parse, type_of, verify, write
from ge2.transforms.derive import DERIVE
from ge2.transforms.jvp import jvp_graph
from ge2.transforms.vjp import vjp_graph
from ge2.transforms.vmap import vmap_graph
from tests.laws.samples import SAMPLES, Sample

NAMES = [op.name for op in ops.ALL]
every_op = pytest.mark.parametrize("name", NAMES)
STEP = 1e-3
STENCIL = ((-2, 1 / 12), (-1, -2 / 3), (1, 2 / 3), (2, -1 / 12))  # of order 4
DIFFERENTIABLE = (FLOAT64, COMPLEX128)


def test_every_op_is_listed_once_and_found_by_its_name() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert set(NAMES) == set(ops.TABLE)


# ------------------------------------------------------------------------------------------------- running


def graph_of(op: Op, types: Sequence[ArrayType]) -> Graph:
    """The graph of one equation."""
    inputs, outs = tuple(map(Var, types)), tuple(map(Var, op.infer(*types)))
    return verify(Graph(inputs, (Eqn(op, inputs, outs),), outs))


def types_of(arrays: Sequence[Any]) -> list[ArrayType]:
    return [ArrayType(t.shape, t.dtype) for t in map(type_of, arrays)]


def evaluate(op: Op, arrays: Sequence[Any]) -> tuple[Any, ...]:
    with np.errstate(all="ignore"):
        ys = op.reference(*arrays)
    return tuple(ys) if op.several else (ys,)


def evaluated(op: Op, *arrays: Any) -> tuple[Any, ...]:
    return evaluate(op, arrays)


def last(graph: Graph, n: int, *arrays: Any) -> list[Any]:
    """The results from number `n` on."""
    return graph(*arrays)[n:]


def drawn(
    name: str, rng: np.random.Generator, dtypes: Any = None
) -> Iterator[tuple[Sample, tuple[Any, ...]]]:
    """The samples of an operation, with operands of each dtype (or of those in `dtypes`)."""
    for sample in SAMPLES[name]:
        for dtype in sample.dtypes:
            if dtypes is None or dtype in dtypes:
                yield sample, sample.draw(rng, dtype)


def smooth(name: str, rng: np.random.Generator) -> Iterator[tuple[Sample, tuple[Any, ...], tuple[bool, ...]]]:
    """Samples with a derivative, and by which operands."""
    for sample, arrays in drawn(name, rng, DIFFERENTIABLE):
        wanted = tuple(type_of(x).dtype in INEXACT for x in arrays)
        results = {t.dtype for t in sample.op.infer(*types_of(arrays))} & INEXACT
        if any(wanted) and results and results <= set(DIFFERENTIABLE):
            yield sample, arrays, wanted


def like(rng: np.random.Generator, x: Any) -> Any:
    """A random direction at x."""
    v = rng.standard_normal(np.shape(x))
    if np.asarray(x).dtype in COMPLEX:
        v = v + 1j * rng.standard_normal(np.shape(x))
    return np.asarray(v).astype(np.asarray(x).dtype)


def paired(a: Sequence[Any], b: Sequence[Any]) -> float:
    """The sum of Re(a * b): how a cotangent acts on a tangent."""
    return float(sum(np.sum(np.real(np.asarray(x) * np.asarray(y))) for x, y in zip(a, b, strict=True)))


def moved(arrays: Sequence[Any], wanted: Sequence[bool], directions: Sequence[Any], by: float) -> list[Any]:
    given = iter(directions)
    return [x + by * next(given) if w else x for x, w in zip(arrays, wanted, strict=True)]


def inexact(ys: Sequence[Any]) -> list[Any]:
    return [y for y in ys if np.asarray(y).dtype in INEXACT]


def differences(
    f: Any, arrays: Sequence[Any], wanted: Sequence[bool], directions: Sequence[Any]
) -> list[Any]:
    """The derivative along the directions of the inexact results of f."""
    total: list[Any] | None = None
    for steps, weight in STENCIL:
        ys = [
            np.asarray(y) * weight / STEP
            for y in inexact(f(*moved(arrays, wanted, directions, steps * STEP)))
        ]
        total = ys if total is None else [a + b for a, b in zip(total, ys, strict=True)]
    assert total is not None
    return total


def pulled(graph: Graph, wanted: tuple[bool, ...]) -> Graph:
    return verify(vjp_graph(graph, wanted, DERIVE))


def close(a: Any, b: Any, scale: float) -> bool:
    return bool(np.allclose(a, b, rtol=1e-7, atol=1e-7 * scale))


# --------------------------------------------------------------------------------------- types and meaning


@every_op
def test_the_type_rule_is_the_type_of_the_reference(name: str, rng: np.random.Generator) -> None:
    for sample, arrays in drawn(name, rng):
        want = sample.op.infer(*types_of(arrays))
        got = [ArrayType(np.shape(y), np.asarray(y).dtype) for y in evaluate(sample.op, arrays)]
        assert got == [ArrayType(t.shape, t.dtype) for t in want], f"{sample} of {types_of(arrays)}"


@every_op
def test_references_take_any_layout_and_write_to_no_operand(name: str, rng: np.random.Generator) -> None:
    for sample, arrays in drawn(name, rng):
        want = evaluate(sample.op, arrays)
        odd = [strided(x) for x in arrays]
        for y, z in zip(want, evaluate(sample.op, odd), strict=True):
            y, z = (
                widened(y),
                widened(z),
            )  # NumPy rounds the last bit differently where memory is not contiguous
            tolerance = 16 * max(
                (eps(t.dtype) for t in map(type_of, arrays) if t.dtype in INEXACT), default=0
            )
            assert np.allclose(y, z, rtol=tolerance, atol=tolerance, equal_nan=True), (
                f"{sample} of {types_of(arrays)}"
            )
        for x, before in zip(odd, arrays, strict=True):
            assert np.asarray(x).tobytes() == np.asarray(before).tobytes()


def strided(x: Any) -> Any:
    """The same values, read-only, spread out in memory and in another order of axes."""
    x = np.asarray(x)
    room = np.zeros(tuple(2 * n + 1 for n in reversed(x.shape)), x.dtype)
    view = np.transpose(room[tuple(slice(1, None, 2) for _ in x.shape)])[..., ::-1] if x.ndim else room
    view[...] = x
    view.flags.writeable = False
    return view


@every_op
def test_the_text_reads_back(name: str, rng: np.random.Generator) -> None:
    for sample, arrays in drawn(name, rng):
        graph = graph_of(sample.op, types_of(arrays))
        again = parse(write(graph), ops.TABLE)
        assert again == graph
        assert write(again) == write(graph)


@every_op
def test_equal_operations_are_interchangeable(name: str, rng: np.random.Generator) -> None:
    first, second = SAMPLES[name][0].op, ops.TABLE[name](**SAMPLES[name][0].op.params())
    assert first == second
    assert hash(first) == hash(second)


# --------------------------------------------------------------------------------------------- derivatives


@every_op
def test_vjp_is_the_transpose_of_the_differences(name: str, rng: np.random.Generator) -> None:
    for sample, arrays, wanted in smooth(name, rng):
        if not sample.reverse:
            with pytest.raises(NoRuleError):
                pulled(graph_of(sample.op, types_of(arrays)), wanted)
            continue
        joint = pulled(graph_of(sample.op, types_of(arrays)), wanted)
        ys = inexact(evaluate(sample.op, arrays))
        cts = [like(rng, y) for y in ys]
        grads = joint(*arrays, *cts)[-sum(wanted) :]
        vs = [like(rng, x) for x, w in zip(arrays, wanted, strict=True) if w]
        if sample.constant:
            assert all(not np.any(g) for g in grads)
            continue
        want = paired(cts, differences(partial(evaluated, sample.op), arrays, wanted, vs))
        assert close(paired(grads, vs), want, 1 + sum(np.size(y) for y in ys)), (
            f"{sample} of {types_of(arrays)}"
        )


@every_op
def test_jvp_is_the_differences_and_agrees_with_vjp(name: str, rng: np.random.Generator) -> None:
    for sample, arrays, wanted in smooth(name, rng):
        graph = graph_of(sample.op, types_of(arrays))
        if not sample.forward:
            with pytest.raises(NoRuleError):
                jvp_graph(graph, wanted, DERIVE)
            continue
        vs = [like(rng, x) for x, w in zip(arrays, wanted, strict=True) if w]
        ts = verify(jvp_graph(graph, wanted, DERIVE))(*arrays, *vs)[len(graph.outputs) :]
        if sample.constant:
            assert all(not np.any(t) for t in ts)
            continue
        want = differences(partial(evaluated, sample.op), arrays, wanted, vs)
        for t, w in zip(ts, want, strict=True):
            assert close(t, w, 1 + np.max(np.abs(w), initial=0)), f"{sample} of {types_of(arrays)}"
        if not sample.reverse:
            continue
        cts = [like(rng, t) for t in ts]
        grads = pulled(graph, wanted)(*arrays, *cts)[-sum(wanted) :]
        assert np.isclose(paired(cts, ts), paired(grads, vs), rtol=1e-10, atol=1e-10), (
            f"{sample} of {types_of(arrays)}"
        )


@every_op
def test_one_operand_at_a_time_has_the_same_derivative(name: str, rng: np.random.Generator) -> None:
    for sample, arrays, wanted in smooth(name, rng):
        if sum(wanted) < 2 or not sample.reverse:
            continue
        graph = graph_of(sample.op, types_of(arrays))
        cts = [like(rng, y) for y in inexact(evaluate(sample.op, arrays))]
        together = iter(pulled(graph, wanted)(*arrays, *cts)[-sum(wanted) :])
        for i, w in enumerate(wanted):
            if w:
                only = tuple(j == i for j in range(len(wanted)))
                assert np.array_equal(pulled(graph, only)(*arrays, *cts)[-1], next(together))


@every_op
def test_the_second_derivative_is_the_differences_of_the_first(name: str, rng: np.random.Generator) -> None:
    for sample, arrays, wanted in smooth(name, rng):
        if sample.constant or not sample.reverse:
            continue
        joint = pulled(graph_of(sample.op, types_of(arrays)), wanted)
        ys = inexact(evaluate(sample.op, arrays))
        cts = [like(rng, y) for y in ys]
        n, grads = len(joint.outputs) - sum(wanted), sum(wanted)
        given = tuple(i >= n for i in range(len(joint.outputs)))
        twice = verify(vjp_graph(joint, (*wanted, *(True for _ in cts)), DERIVE, given))
        at = (*arrays, *cts)
        both = (*wanted, *(True for _ in cts))
        ws = [like(rng, g) for g in joint(*at)[n:]]
        vs = [like(rng, x) for x, w in zip(at, both, strict=True) if w]
        found = twice(*at, *ws)[-(grads + len(cts)) :]
        want = paired(ws, differences(partial(last, joint, n), at, both, vs))
        assert close(paired(found, vs), want, 10 + abs(want)), f"{sample} of {types_of(arrays)}"


@every_op
def test_derivatives_in_every_dtype_are_those_of_float64_rounded(name: str, rng: np.random.Generator) -> None:
    for sample, arrays in drawn(name, rng, INEXACT - set(DIFFERENTIABLE)):
        wanted = tuple(type_of(x).dtype in INEXACT for x in arrays)
        types = types_of(arrays)
        outs = sample.op.infer(*types)
        if not any(wanted) or not any(t.dtype in INEXACT for t in outs):
            continue
        wide = [widened(x) for x in arrays]
        try:
            sample.op.infer(*types_of(wide))
        except TypeError:
            continue
        ys = inexact(evaluate(sample.op, arrays))
        cts = [like(rng, y) for y in ys]
        got = pulled(graph_of(sample.op, types), wanted)(*arrays, *cts)[-sum(wanted) :]
        graph = pulled(graph_of(sample.op, types_of(wide)), wanted)
        want = graph(
            *wide,
            *(
                np.asarray(c).astype(v.type.dtype)
                for c, v in zip(cts, graph.inputs[len(wide) :], strict=True)
            ),
        )
        worst = max(eps(t.dtype) for t in (*types, *outs) if t.dtype in INEXACT)
        for g, w, x in zip(
            got, want[-sum(wanted) :], (x for x, q in zip(arrays, wanted, strict=True) if q), strict=True
        ):
            assert np.asarray(g).dtype == np.asarray(x).dtype
            error = np.abs(widened(g) - w).max(initial=0)
            assert error <= 32 * worst * (1 + np.abs(w).max(initial=0)), f"{sample} of {types}"


def widened(x: Any) -> Any:
    """In float64 or complex128."""
    x = np.asarray(x)
    return x.astype(COMPLEX128 if x.dtype in COMPLEX else FLOAT64) if x.dtype in INEXACT else x


def eps(dtype: np.dtype) -> float:
    dtype = real_part(dtype)
    return (
        float(np.finfo(dtype).eps)
        if dtype not in HALF
        else 2.0**-7
        if dtype.itemsize == 2 and dtype.kind == "V"
        else 2.0**-10
    )


# ------------------------------------------------------------------------------------------------- batches


@every_op
def test_a_batch_is_the_loop(name: str, rng: np.random.Generator) -> None:
    for sample in SAMPLES[name]:
        dtypes = [d for d in (FLOAT64, np.dtype("i4"), np.dtype(bool)) if d in sample.dtypes] or list(
            sample.dtypes[:1]
        )
        for dtype in dtypes[:1]:
            if sample.draw(rng, dtype):
                check_batches(sample, dtype, rng)


def check_batches(sample: Sample, dtype: np.dtype, rng: np.random.Generator) -> None:
    draws = [tuple(np.asarray(x) for x in sample.draw(rng, dtype)) for _ in range(3)]
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
                evaluate(sample.op, [draws[k if f else 0][i] for i, f in enumerate(flags)])
                for k in range(size)
            ]
            check_batch(sample.op, operands, axes, draws[0], loop)


def where(place: str, i: int, ndim: int) -> int:
    return {"first": 0, "last": ndim, "mixed": ndim // 2 if i % 2 else ndim}[place]


def check_batch(
    op: Op,
    operands: Sequence[Any],
    axes: Sequence[int | None],
    one: Sequence[Any],
    loop: Sequence[Any],
) -> None:
    graph = graph_of(op, types_of(one))
    batched, has = vmap_graph(graph, axes, len(loop), DERIVE)
    ys = verify(batched)(*operands)
    for i, (y, h) in enumerate(zip(ys, has, strict=True)):
        for k, single in enumerate(loop):
            got = y[k] if h else y
            dtype = np.asarray(single[i]).dtype
            assert got.dtype == dtype
            rtol = 64 * eps(dtype) if dtype in INEXACT else 0  # sums may be taken in another order
            assert np.allclose(got, single[i], rtol=rtol, atol=rtol, equal_nan=True), f"{op} along {axes}"


def test_an_empty_batch(rng: np.random.Generator) -> None:
    for name in NAMES:
        sample = SAMPLES[name][0]
        arrays = [
            np.asarray(x) for x in sample.draw(rng, FLOAT64 if FLOAT64 in sample.dtypes else sample.dtypes[0])
        ]
        if arrays:
            graph, has = vmap_graph(graph_of(sample.op, types_of(arrays)), [0] * len(arrays), 0, DERIVE)
            ys = verify(graph)(*(np.zeros((0, *x.shape), x.dtype) for x in arrays))
            want = sample.op.infer(*types_of(arrays))
            assert [y.shape for y in ys] == [
                ((0,) if h else ()) + t.shape for t, h in zip(want, has, strict=True)
            ]
