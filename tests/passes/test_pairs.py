"""Folds over all pairs: one of two that mirror each other, and columns written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ge2
from ge2.compile import compile_graph
from ge2.compile.catalog import interpret
from ge2.ir import Graph, Literal, Var, verify
from ge2.passes.context import Context, ShortSums, Tuning
from ge2.passes.folds import Mirrors, Parts, is_power, mirrored, short_sums
from ge2.passes.simplify import simplify
from ge2.targets.cuda.emulator import OfflineDevice
from ge2.targets.cuda.limits import H200
from tests.exhaustive import examples

SMALL: Final = Context(tuning=Tuning(short_sums=ShortSums(elements=1, times=1)))


def energy(p: Any) -> Any:
    d = p[:, None] - p
    return (1 / np.sqrt((d * d).sum(-1) + 1e-2)).sum()


def gaussian(p: Any) -> Any:
    d = p[:, None] - p[None]
    return np.exp(-(d**2).sum(2)).sum()


def lines(p: Any) -> Any:
    """Along the last axis, of each coordinate."""
    d = p.T[:, :, None] - p.T[:, None]
    return np.sqrt(d * d + 0.5).sum()


def not_itself(p: Any) -> Any:
    d = p[:, None] - p
    r = (d * d).sum(-1)
    near = r == 0
    return np.where(near, 0.0, 1 / np.sqrt(np.where(near, 1.0, r))).sum()


def below(p: Any) -> Any:
    """Of the pairs of which the first is further along the first axis alone."""
    d = p[:, None] - p
    return np.where(d[..., 0] > 0, (d * d).sum(-1), 0.0).sum()


def slope(p: Any) -> Any:
    """The sign of an infinite quotient is another at the turned place."""
    d = p[:, None] - p
    return (1 / d).sum(0) + (1 / d).sum(1)


def shifted(p: Any) -> Any:
    d = p[:, None] - 2 * p
    return np.exp(-(d * d).sum(-1)).sum()


def folds(graph: Graph) -> int:
    """How many folds there are of what has an element for each pair of 12."""
    return sum(
        e.op.name.startswith("reduce") and e.inputs[0].type.shape.count(12) > 1 for e in graph.eqns
    )


def gradient(f: Callable[..., Any]) -> Graph:
    return simplify(ge2.make_jaxpr(ge2.grad(f))(np.ones((12, 3))).graph)


def check(graph: Graph, changed: Graph, x: np.ndarray) -> None:
    for y, wanted in zip(interpret(verify(changed), [x]), interpret(graph, [x]), strict=True):
        np.testing.assert_allclose(y, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("f", [energy, gaussian, lines, not_itself])
def test_forces_between_pairs_are_added_up_once(f: Any, rng: np.random.Generator) -> None:
    graph = gradient(f)
    found = mirrored(graph, SMALL)
    assert folds(graph) - folds(found) >= 1
    check(graph, found, rng.normal(size=(12, 3)))


@pytest.mark.parametrize("f", [below, shifted])
def test_what_is_no_mirror_is_folded_both_ways(f: Any, rng: np.random.Generator) -> None:
    graph = gradient(f)
    assert folds(mirrored(graph, SMALL)) == folds(graph)
    check(graph, mirrored(graph, SMALL), rng.normal(size=(12, 3)))


def test_a_value_and_its_gradient_go_through_pairs_along_one_axis(rng: np.random.Generator) -> None:
    graph = simplify(ge2.make_jaxpr(ge2.value_and_grad(energy))(np.ones((12, 3))).graph)
    found = mirrored(
        graph, Context(tuning=Tuning(short_sums=ShortSums(elements=1, times=1, lines=4, terms=4)))
    )
    over = [e.op.axes for e in found.eqns if e.op.name == "reduce_sum"]  # type: ignore[attr-defined]
    assert over == [(2,), (0,), (0,), (0,)]
    check(graph, found, rng.normal(size=(12, 3)))


def test_signs_of_infinite_quotients_stay() -> None:
    graph = simplify(ge2.make_jaxpr(slope)(np.ones((12, 3))).graph)
    assert folds(mirrored(graph, SMALL)) == folds(graph) == 2


def test_factors_are_after_the_sum() -> None:
    """If it overflows no sooner then."""
    for factor, shape in ((-4.0, (12,)), (3.0, (12, 12)), (0.25, (12, 12))):
        graph = ge2.make_jaxpr(lambda p, by=factor: ((p[:, None] - p) * by).sum(0))(
            np.ones(12)
        ).graph
        found = mirrored(simplify(graph), SMALL)
        assert [e.outs[0].type.shape for e in found.eqns if e.op.name == "mul"] == [shape]
        check(graph, found, np.arange(12.0))


def test_sums_of_arrays_stay_what_they_are() -> None:
    graph = ge2.make_jaxpr(lambda x: (-x).sum(0))(np.ones((12, 12))).graph
    small = Context(tuning=Tuning(short_sums=ShortSums(elements=1)))
    assert [e.op.name for e in mirrored(graph, small).eqns] == [e.op.name for e in graph.eqns]


def test_columns_are_folded_one_by_one(rng: np.random.Generator) -> None:
    graph = mirrored(gradient(energy), SMALL)
    found = simplify(short_sums(graph, SMALL))
    shapes = [e.inputs[0].type.shape for e in found.eqns if e.op.name == "reduce_sum"]
    assert shapes == [(12, 12)] * 3
    assert sum(e.op.name == "multiply_add" for e in found.eqns) == 2
    check(graph, found, rng.normal(size=(12, 3)))


def test_powers_of_two() -> None:
    assert [x for x in (1.0, -4.0, 0.5, 0.0, 3.0, np.inf, np.nan) if is_power(x)] == [
        1.0,
        -4.0,
        0.5,
    ]


# ------------------------------------------------------------------------------- values of any graph

ONE: Final[dict[str, Callable[[Any], Any]]] = {
    "neg": lambda x: -x,
    "abs": np.abs,
    "square": np.square,
    "root": lambda x: np.sqrt(np.abs(x)),
    "exp": lambda x: np.exp(-np.abs(x)),
    "floor": np.floor,
    "inverse": lambda x: 1 / x,
}
TWO: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "max": np.maximum,
    "where": lambda x, y: np.where(x < y, x, y),
    "equal": lambda x, y: np.where(x == y, 1.0, x),
}


@st.composite
def programs(draw: st.DrawFn) -> Callable[[Any], Any]:
    steps = [
        (draw(st.sampled_from([*ONE, *TWO])), draw(st.integers(0, 50)), draw(st.integers(0, 50)))
        for _ in range(draw(st.integers(1, 7)))
    ]

    def program(p: Any) -> Any:
        values = [p[:, None] - p, p[:, None] + 0 * p, p + 0 * p[:, None], p[None] - p[:, None]]
        for name, i, j in steps:
            x, y = values[i % len(values)], values[j % len(values)]
            values.append(ONE[name](x) if name in ONE else TWO[name](x, y))
        return tuple(values)

    return program


def values_of(graph: Graph, x: np.ndarray) -> dict[Any, np.ndarray]:
    """Every value of a graph, as NumPy computes it."""
    found: dict[Any, Any] = {graph.inputs[0]: x}
    with np.errstate(all="ignore"):
        for e in graph.eqns:
            xs = [a.value if isinstance(a, Literal) else found[a] for a in e.inputs]
            found[e.outs[0]] = np.asarray(e.op.reference(*xs))
    return found


@settings(max_examples=examples(120))
@given(programs(), st.integers(0, 99))
def test_mirrors_are_what_is_at_turned_places(program: Any, seed: int) -> None:
    x = np.random.default_rng(seed).integers(-2, 3, 7).astype("f8") / 2
    graph = simplify(ge2.make_jaxpr(program)(x).graph)
    found, mirrors = values_of(graph, x), Mirrors(graph)
    for e in graph.eqns:
        (y,) = e.outs
        mirror = mirrors.of(y, 0, 1) if y.type.shape == (7, 7) else None
        if mirror is None:
            continue
        value = found[mirror.value] if isinstance(mirror.value, Var) else mirror.value.value
        value = np.negative(value) if mirror.negative else value
        np.testing.assert_array_equal(found[y].T, value)
        if mirror.exact and y.type.dtype.kind == "f":
            ordinary = ~np.isnan(value)
            assert (np.signbit(found[y].T) == np.signbit(value))[ordinary].all()


def test_a_loop_written_out_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum of each of its steps had all equations before it looked at again."""
    calls = []
    short = Parts.short

    def counted(self: Parts, v: Any) -> Any:
        calls.append(v)
        return short(self, v)

    def scan(x: Any, h: Any) -> Any:
        found = []
        for t in range(40):
            h = np.exp(x[t, :, None]) * h + x[t, :, None]
            found.append(h.sum(-1))
        return np.stack(found)

    graph = ge2.make_jaxpr(scan)(*(np.ones(n, np.float32) for n in ((40, 512), (512, 512)))).graph
    monkeypatch.setattr(Parts, "short", counted)
    assert len(mirrored(graph, Context(caps=H200)).eqns) == len(graph.eqns)
    assert 40 < len(calls) <= 2 * len(graph.eqns)


def test_what_is_repeated_is_made_as_a_whole() -> None:
    """Columns of a small array of which distances are made would be eight kernels, one each."""

    def distances(x: Any, length: Any) -> Any:
        z = x / length
        return ((z[:, None] - z) ** 2).sum(-1)

    graph = ge2.make_jaxpr(distances)(np.ones((600, 8), np.float32), np.ones(8, np.float32)).graph
    program = compile_graph(graph, device=OfflineDevice(H200))
    assert [k.name.split("_")[0] for k in program.kernels] == ["pointwise", "pointwise"]


@pytest.mark.parametrize(
    ("columns", "kernel"), [(3, "rows along axis 1"), (6, "columns over axis 1")]
)
def test_narrow_sums_of_lines_are_folds_of_rows(columns: int, kernel: str) -> None:
    """A thread a column would read the weights across their lines, and make them for each column."""

    def rendered(density: Any, colour: Any) -> Any:
        return (np.exp(-density)[..., None] * colour).sum(1)

    shapes = (4096, 64), (4096, 64, columns)
    graph = ge2.make_jaxpr(rendered)(*(ge2.ShapeDtypeStruct(s, np.float32) for s in shapes)).graph
    program = compile_graph(graph, device=OfflineDevice(H200))
    assert kernel in str(program.kernels[0].choice)


def test_narrow_sums_of_rows_at_indices_read_those_by_the_indices() -> None:
    """Sums of each column would slice an array of the rows, which is none here."""

    def pull(x: Any, near: Any) -> Any:
        d = x[:, None] - x[near]
        return (d / np.sqrt((d * d).sum(-1, keepdims=True) + 1)).sum(1)

    x = ge2.ShapeDtypeStruct((65536, 3), np.float32)
    graph = ge2.make_jaxpr(pull)(x, ge2.ShapeDtypeStruct((65536, 32), np.int32)).graph
    program = compile_graph(graph, device=OfflineDevice(H200))
    assert not any(k.name.startswith("gather") for k in program.kernels)


def test_points_that_are_repeated_one_way_are_made_row_by_row() -> None:
    """No other kernel needs them; nor do folds over pairs of small arrays part from each other."""

    def nearest(start: Any, ray: Any, centre: Any) -> Any:
        p = start + 2 * ray
        return np.sqrt(((p[:, None] - centre) ** 2).sum(-1)).min(1)

    def chamfer(a: Any, b: Any) -> Any:
        d = ((a[:, None] - b) ** 2).sum(-1)
        return d.min(1).mean() + d.min(0).mean()

    a, b = (ge2.ShapeDtypeStruct((n, 3), np.float32) for n in (8192, 64))
    made = (nearest, (a, a, b)), (ge2.grad(chamfer, argnums=(0, 1)), (a, a))
    graphs = (ge2.make_jaxpr(f)(*arrays).graph for f, arrays in made)
    programs = [compile_graph(graph, device=OfflineDevice(H200)) for graph in graphs]
    assert [len(each.kernels) for each in programs] == [1, 4]
    assert len(programs[1].program.steps) < 16
