"""One index a row: which comparisons it becomes, and where its index is counted from the start."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.choice import Problem
from ge2.cli.show import OfflineDevice
from ge2.compile import how_to_make
from ge2.compile.catalog import interpret
from ge2.ir import ArrayType, Graph
from ge2.ops.graphs.region import Region
from ge2.ops.index import RowSums
from ge2.passes.context import TUNING, Context
from ge2.passes.indices import Wrap, indexed, masked_reads
from ge2.passes.simplify import simplify
from ge2.passes.take_to_mask import match
from ge2.targets.cuda.device import Caps
from ge2.targets.cuda.kernels.gather import CudaRowSums
from ge2.targets.cuda.limits import H200
from tests.passes.graphs import after, alike, graph, lines, same
from tests.passes.graphs import names as operations
from tests.passes.test_counted import cross_entropy
from tests.passes.test_small_passes import PICK, PUT
from tests.together import needs_compiler

LONG = str(TUNING.columns + 1)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("text", [PICK, PUT])
def test_half_types_are_compared_too(text: str, dtype: str) -> None:
    before = graph(text.replace("f32", dtype))
    found = match(before)
    assert not {"gather", "scatter_add"} & {e.op.name for e in found.eqns}
    kind = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}[dtype]
    rows = np.array([[-0.0, np.nan, np.inf, -np.inf, 3]] * 4).astype(kind)
    given = (rows if text is PICK else rows[0][:4], np.array([0, -3, 3, -1]))
    one, two = (interpret(g, given)[0].astype(np.float32) for g in (before, found))
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(np.signbit(one), np.signbit(two))


def test_of_long_rows_only_those_that_are_gone_through_anyway() -> None:
    """An element of an array that is there is read; of a row that is
    folded, or never stored, compared.
    """
    text = PICK.replace("4,5]", f"4,{LONG}]")
    assert match(graph(text)) == graph(text)
    made = text.replace("let\n", f"let\n    m:f32[4,{LONG}] = exp z\n").replace(
        "gather[axes=(0, 1)] z", "gather[axes=(0, 1)] m"
    )
    folded = text.replace("let\n", "let\n    s:f32[4] = reduce_max[axes=(1,)] z\n").replace(
        "in (p,)", "in (p, s)"
    )
    for seen in (made, folded, PUT.replace("4,5]", f"4,{LONG}]").replace("4, 5", f"4, {LONG}")):
        assert not {"gather", "scatter_add"} & {e.op.name for e in match(graph(seen)).eqns}


def test_where_regions_read_at_indices_no_row_is_compared_for_an_element_alone() -> None:
    beside_gathers = Context(gathers=True)
    for text in (PICK, PICK.replace("4,5]", "4,300]")):
        assert match(graph(text), beside_gathers) == graph(text) != match(graph(text))
    folded = PICK.replace("let\n", "let\n    s:f32[4] = reduce_max[axes=(1,)] z\n")
    assert match(graph(folded.replace("in (p,)", "in (p, s)")), beside_gathers) != graph(folded)


REGION = """{ lambda ; z:f32[4,5] y:i64[4]. let
    i:i32[4] = index[axis=1 size=5] y
    p:f32[4,5] = region[axes=((0,), (0, 1), (0, 1), (0, 1), (0, 1)) graph={ lambda ; a:f32[4,5] b:i32[4]. let
        c:i32[4] = reshape[shape=(4,)] b
        d:i32[4,5] = broadcast_in_dim[dims=(0,) shape=(4, 5)] c
        e:i32[4,5] = iota[axis=1 dtype=i32 shape=(4, 5)]
        f:bool[4,5] = eq d e
        g:f32[4,5] = where f a 0.0:f32[]
      in (g,) } kind=pointwise space=(4, 5)] z i
  in (p,) }"""


def test_a_region_wraps_the_index_that_it_reads() -> None:
    found = after(indexed, REGION)
    assert "index[" not in found
    assert (
        lines("""
        c:i32[4] = wrap[size=5] b
        d:i32[4] = reshape[shape=(4,)] c""")
        in found
    )
    z = np.arange(20, dtype=np.float32).reshape(4, 5)
    same(graph(REGION), indexed(graph(REGION)), z, np.array([0, -5, 4, 2]))


def test_an_index_that_is_read_elsewhere_stays() -> None:
    text = REGION.replace("in (p,) }", "in (p, i) }")
    names = [e.op.name for e in indexed(graph(text)).eqns]
    assert names == ["index", "region"]
    assert indexed(graph(PICK)) == graph(PICK)


def test_wrapped() -> None:
    np.testing.assert_array_equal(
        Wrap(5).reference(np.array([-6, -5, -1, 0, 4, 5, 12])), [4, 0, 4, 0, 4, 0, 2]
    )


@pytest.mark.exhaustive("dtype")
@needs_compiler
@pytest.mark.parametrize("columns", [33, 2000, 40_000])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=str)
def test_cross_entropy_and_its_gradient_read_rows_once(
    columns: int, dtype: Any, rng: np.random.Generator
) -> None:
    """On CUDA they are one kernel of rows, and the mean of the rows' losses; labels wrap around."""
    z, y = rng.normal(size=(3, columns)).astype(dtype), np.array([0, -1, columns + 7])

    def loss(z: Any, y: Any) -> Any:
        return cross_entropy(z.astype(np.float32), y)

    with config.using(executor="shim"):
        f = ge2.jit(ge2.value_and_grad(loss))
        value, gradient = f(z, y)
        kernels = [k.kind for k in f.lower(z, y).executable.kernels]
    assert not {"gather", "scatter_add", "index"} & set(kernels)
    assert columns < 40_000 or kernels.count("rowwise") == 1
    wide, inside = z.astype(np.float64), (np.arange(3), y % columns)
    e = np.exp(wide - wide.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    np.testing.assert_allclose(value, -np.log(p[inside]).mean(), rtol=1e-5)
    p[inside] -= 1
    near = 1e-6 if dtype == np.float32 else 4e-3
    np.testing.assert_allclose(gradient.astype(np.float64), p / 3, rtol=near, atol=1e-7)


def of_elements(shape: tuple[int, ...], axis: int, names: int, dtype: str = "f4") -> Any:
    """An array, and updates and indices along an axis, `names` of each line, as for `take_along_axis`."""
    rng = np.random.default_rng(names)
    many = tuple(names if a == axis else n for a, n in enumerate(shape))
    x, u = (rng.standard_normal(s).astype(dtype) for s in (shape, many))
    return x, u, rng.integers(-shape[axis], shape[axis], many)


def gradient(axis: int) -> Any:
    return lambda x, u, i: ge2.vjp(lambda x: np.take_along_axis(x, i, axis), x)[1](u)[0]


def steps(f: Any, *arrays: Any) -> Graph:
    """The graph after the passes of an H200."""
    found = ge2.make_jaxpr(f)(*arrays).graph
    return [*how_to_make("f", OfflineDevice(H200)).stages(found)][-1][1]


@pytest.mark.exhaustive("axis")
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("names", [1, 5, 40])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_several_updates_of_a_line_are_added_line_by_line(
    names: int, axis: int, dtype: str
) -> None:
    x, u, i = of_elements((3, 4, 5), axis, names, dtype)
    with config.using(executor="emulator"):
        found = ge2.jit(gradient(axis))(x, u, i)
        turned = ge2.jit(gradient(axis))(x, np.asfortranarray(u), np.asfortranarray(i))
    wanted, others = np.zeros(x.shape), list(np.ogrid[tuple(map(slice, u.shape))])
    others[axis] = i
    np.add.at(wanted, tuple(others), u.astype(np.float64))
    np.testing.assert_allclose(
        found, wanted, rtol=4 * np.finfo(dtype).eps, atol=20 * np.finfo(dtype).eps
    )
    np.testing.assert_array_equal(found, turned)
    assert ("row_sums" in names_of(steps(gradient(axis), x, u, i))) is (names > 1 or axis < 2)


def test_updates_by_several_axes_of_indices_are_added_row_by_row() -> None:
    """As the derivative of a function of examples, each with indices of two axes."""
    rng = np.random.default_rng(0)
    x, u = rng.standard_normal((6, 5)), rng.standard_normal((6, 2, 3))
    i = rng.integers(-5, 5, (6, 2, 3))

    def of_examples(x: Any, u: Any, i: Any) -> Any:
        return ge2.vmap(lambda x, u, i: ge2.vjp(lambda x: x[i], x)[1](u)[0])(x, u, i)

    assert "row_sums" in names_of(steps(of_examples, x, u, i))
    with config.using(executor="emulator"):
        found = ge2.jit(of_examples)(x, u, i)
    wanted = np.zeros(x.shape)
    np.add.at(wanted, (np.arange(6)[:, None, None], i), u)
    np.testing.assert_allclose(found, wanted, rtol=1e-14, atol=1e-14)


def test_which_lines_are_added_so() -> None:
    room, rows, few = TUNING.row_sums
    longest, beside = room // 8, room // (4 * 32)
    for shape, axis, names, so in (
        ((4, longest), 1, few, True), ((4, longest + 1), 1, few, False), ((4, 9), 1, few + 1, False),
        ((rows, 9), 1, few + 1, True), ((beside, 4), 0, few, True), ((beside + 1, 4), 0, few, False),
    ):  # fmt: skip
        many = tuple(names if a == axis else n for a, n in enumerate(shape))
        given = [ge2.ShapeDtypeStruct(s, t) for s, t in ((shape, "f4"), (many, "f4"), (many, "i8"))]
        assert ("row_sums" in names_of(steps(gradient(axis), *given))) is so, shape

    def counts(i: Any) -> Any:
        found = np.zeros((len(i), 4), np.int64)
        np.add.at(found, (np.arange(len(i))[:, None], i), 1)
        return found

    # whole numbers are added by atomics, in any order
    assert "scatter_add" in names_of(steps(counts, np.zeros((5, 7), int)))


def test_a_line_that_no_block_has_room_for_is_refused() -> None:
    x = ge2.ShapeDtypeStruct((1 << 16, 2), "f8")
    types = [ArrayType((3, 2), np.dtype(t)) for t in (np.float64, np.int64)]
    problem = Problem(RowSums(x.shape, 0), tuple(types), RowSums(x.shape, 0).infer(*types))
    assert "no room" in CudaRowSums().refuses(problem, Caps.before(H200))


def test_an_index_of_fewer_axes_than_the_others_is_compared_with_none() -> None:
    def f(x: Any) -> Any:
        return ge2.vjp(lambda x: x[np.arange(4), 2], x)[1](np.ones(4))[0]

    found = ge2.jit(f)(np.zeros((4, 5)))
    np.testing.assert_array_equal(found[:, 2], np.ones(4))
    assert found.sum() == 4


def test_a_gpu_writes_no_counts_to_read_at_them() -> None:
    x, _, i = of_elements((3, 4, 5), 1, 6)
    found = steps(lambda x, i: np.take_along_axis(x, i, 1), x, i)
    assert [e.op.name for e in found.eqns] == ["region"]
    with config.using(executor="emulator"):
        read = ge2.jit(lambda x, i: np.take_along_axis(x, i, 1))(x, i)
    np.testing.assert_array_equal(read, np.take_along_axis(x, i, 1))


def names_of(graph: Graph) -> set[str]:
    """Of all operations, those in regions, too."""
    inner = [names_of(e.op.graph) for e in graph.eqns if isinstance(e.op, Region)]
    return {e.op.name for e in graph.eqns}.union(*inner)


X, M = np.linspace(-2, 2, 12).reshape(3, 4), np.arange(12).reshape(3, 4) % 3 > 0


def escaped(z: Any, c: Any) -> Any:
    z, n = z.copy(), np.zeros(z.shape)
    for i in range(3):
        still = abs(z) < 2.0
        n[still] = i
        z[still] = z[still] ** 2 + c[still]
    return z, n


def logarithms(x: Any, m: Any) -> Any:
    x = x.copy()
    x[m] = np.exp(-x[m]) * (x[m] - 1)
    return x


def rows(x: Any, m: Any) -> Any:
    x = x.copy()
    x[m[:, 1]] = np.sin(x[m[:, 1]]) + x[m[:, 1]] * 2
    return x


@pytest.mark.parametrize("f", [escaped, logarithms, rows])
def test_what_a_mask_leaves_out_is_computed_of_the_array_itself(f: Any) -> None:
    """A choice of the first chosen element is for derivatives, and a search, a read and a choice for each array."""
    found = operations(
        alike(lambda g: masked_reads(simplify(g)), f, X, M if f is not escaped else X / 3)
    )
    assert not {"argmax", "gather"} & {*found}
    assert found.count("where") == {escaped: 6, logarithms: 1, rows: 1}[f]


@pytest.mark.parametrize(
    ("name", "f"),
    [
        ("a derivative reads them", ge2.grad(lambda x, m: np.sum(logarithms(x, m)))),
        ("another mask chooses", lambda x, m: np.where(~m, np.where(m, x, x[0, 1]), 0.0)),
        ("the value is a result", lambda x, m: (lambda y: (y, np.where(m, y, 1.0)))(np.where(m, x, x[0, 1]))),
        ("it is summed first", lambda x, m: np.where(m, np.where(m, x, x[0, 1]).sum(0) + x, x)),
        ("it is left out", lambda x, m: np.where(m, x, np.exp(np.where(m, x, x[0, 1])))),
    ],
)  # fmt: skip
def test_what_is_read_where_a_mask_does_not_hold_stays(name: str, f: Any) -> None:
    before = operations(alike(simplify, f, X, M))
    assert operations(alike(lambda g: masked_reads(simplify(g)), f, X, M)) == before, name


def test_nothing_that_is_left_out_is_said_to_be_nan() -> None:
    x = np.array([1.0, -1.0, 0.0, 2.0])

    def f(x: Any) -> Any:
        x = x.copy()
        x[x > 0] = np.log(x[x > 0])
        return x

    with ge2.debug_nans(), ge2.debug_infs():
        np.testing.assert_allclose(ge2.jit(f)(x), [0.0, -1.0, 0.0, np.log(2.0)])
        np.testing.assert_allclose(ge2.grad(lambda x: f(x).sum())(x), [1.0, 1.0, 1.0, 0.5])


def test_equations_without_results_read_all_elements() -> None:
    def f(x: Any, m: Any) -> Any:
        y = np.where(m, x, x[0, 1])
        ge2.debug.callback(lambda y: None, y)
        return np.where(m, y, 0.0)

    closed = ge2.make_jaxpr(f)(X, M)
    assert operations(masked_reads(simplify(closed.graph))).count("where") == 2
