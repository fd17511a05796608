"""Which equations become one region."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.compile.catalog import interpret
from ge2.compile.pipeline import rewritten
from ge2.ir import Eqn, Graph, Var, parse, verify, write
from ge2.ir.types import ArrayType
from ge2.ops.elementwise import BY_NAME
from ge2.passes import TABLE, TIDY, Region
from ge2.passes.context import Context, Fusion, Tuning, run
from ge2.passes.fuse import fuse, gathered
from ge2.passes.fusion_group import leader
from ge2.targets.cuda.emulator import limits_of
from tests.compared import all_close, all_equal
from tests.passes.graphs import graph, same


def fused(text: str) -> list[Region | str]:
    """The regions of a graph, and the names of other equations, in order."""
    found = verify(fuse(graph(text)))
    assert verify(parse(write(found), TABLE)) == found
    return [eqn.op if isinstance(eqn.op, Region) else eqn.op.name for eqn in found.eqns]


@pytest.mark.parametrize(("row", "kinds"), [(8, ["rowwise"]), (200, ["reduce", "pointwise"])])
def test_a_gpu_reads_single_elements_where_their_indices_are_made(row: int, kinds: list[str]):
    """Unless long rows of them would be read again for each fold."""

    def f(t, x):
        y = t[np.floor(x).astype(np.int32)]
        return y - y.mean(-1, keepdims=True)

    t, x = np.arange(50.0), np.random.default_rng(0).uniform(0, 50, (3, row))
    closed = ge2.make_jaxpr(f)(t, x)
    before = run(TIDY, closed.graph)
    after = verify(fuse(before, Context(limits_of("sm_90a"), tails=True)))
    named = [e.op.kind if isinstance(e.op, Region) else e.op.name for e in after.eqns]
    assert [n for n in named if n != "broadcast_in_dim"] == kinds
    np.testing.assert_allclose(*interpret(after, [t, x]), f(t, x))


SOFTMAX = """
    m:f32[8,5] = exp x
    t:f32[8] = reduce_sum[axes=(1,)] m
    s:f32[8,5] = broadcast_in_dim[shape=(8, 5) dims=(0,)] t
    p:f32[8,5] = div m s"""


def test_softmax_is_one_rowwise_region():
    (region,) = fused(f"{{ lambda ; x:f32[8,5]. let {SOFTMAX} in (p,) }}")
    assert isinstance(region, Region)
    assert (region.kind, region.space, len(region.graph.eqns)) == ("rowwise", (8, 5), 4)


def test_elementwise_work_with_several_results():
    (region,) = fused("""{ lambda ; x:f32[8] y:f32[8]. let
        a:f32[8] = mul x y b:f32[8] = tanh a c:f32[8] = sub a y in (b, c) }""")
    assert isinstance(region, Region)
    assert (region.kind, len(region.graph.outputs)) == ("pointwise", 2)


def test_sibling_reductions_of_one_array_share_a_pass():
    (region,) = fused("""{ lambda ; x:f32[8,5]. let
        a:f32[5] = reduce_sum[axes=(0,)] x
        b:f32[8] = reduce_max[axes=(1,)] x
        c:f32[8,5] = square x
        d:f32[] = reduce_sum[axes=(0, 1)] c
      in (a, b, d) }""")
    assert isinstance(region, Region)
    assert region.kind == "reduce"


@pytest.mark.parametrize(
    ("x", "y", "regions"),
    [((600, 512), (600, 512), 1), ((600, 512), (512, 600), 2), ((30, 20), (20, 30), 1)],
)
def test_large_arrays_are_not_read_across_their_lines_for_the_sake_of_one_loop(
    x: tuple[int, int], y: tuple[int, int], regions: int
) -> None:
    """A step of an optimiser for weights of two layers has no more in common than a number."""

    def step(v, x, y):
        s = np.sqrt((v * v).sum())
        return v * s, x * s, y * s, (x * s).T + 1.0

    draw = np.random.default_rng(0).random
    given = [np.asarray(draw(shape)) for shape in (x[1:], x, y)]
    found = verify(fuse(run(TIDY, ge2.make_jaxpr(step)(*given).graph)))
    assert sum(isinstance(e.op, Region) for e in found.eqns) == regions
    all_equal(interpret(found, given), step(*given))


def test_a_product_between_two_regions():
    kinds = fused("""{ lambda ; x:f32[8,8] w:f32[8,8] b:f32[8]. let
        a:f32[8,8] = tanh x
        h:f32[8,8] = dot_general[contract=((1,), (0,))] a w
        c:f32[8,8] = broadcast_in_dim[shape=(8, 8) dims=(1,)] b
        d:f32[8,8] = add h c
        e:f32[8,8] = add d a
      in (e,) }""")
    assert [k if isinstance(k, str) else k.kind for k in kinds] == [
        "pointwise",
        "dot_general",
        "pointwise",
    ]


@pytest.mark.parametrize("operand", ["y", "w"])
def test_work_on_an_array_is_done_with_what_reads_it_after_a_product(operand):
    """As the decay of weights, which another kernel rounds: it would be written, and read again."""
    found = fused(f"""{{ lambda ; x:f32[8,8] w:f32[8,8]. let
        a:bf16[8,8] = convert_element_type[dtype=bf16 weak=False] w
        b:f32[8,8] = mul w 0.99:f32[]
        c:bf16[8,8] = dot_general[contract=((1,), (0,)) beside=((), ()) precision=None out=None] a a
        y:f32[8,8] = convert_element_type[dtype=f32 weak=False] c
        z:f32[8,8] = sub b {operand}
      in (z, y) }}""")
    regions = [op for op in found if isinstance(op, Region)]
    counts = [[len(op.graph.eqns), len(op.graph.outputs)] for op in regions]
    # by what comes before the product, if what reads it does not wait for that
    assert counts == {"y": [[1, 1], [3, 2]], "w": [[3, 2], [1, 1]]}[operand]


def test_no_circle_through_a_product():
    """x -> a -> product -> c, and a -> c: a and c must not be one region."""
    kinds = fused("""{ lambda ; x:f32[8,8]. let
        a:f32[8,8] = tanh x
        b:f32[8,8] = dot_general[contract=((1,), (0,))] a a
        c:f32[8,8] = mul a b
        d:f32[8,8] = sin a
        e:f32[8,8] = add c d
      in (e,) }""")
    assert [k if isinstance(k, str) else len(k.graph.eqns) for k in kinds] in (
        [1, "dot_general", 3],
        [2, "dot_general", 2],
    )


def test_both_orientations_of_a_made_value_are_two_regions_of_an_input_one():
    of_input = fused("""{ lambda ; x:f32[8,8]. let
        t:f32[8,8] = transpose[order=(1, 0)] x a:f32[8,8] = add x t in (a,) }""")
    assert len(of_input) == 1
    of_made = fused("""{ lambda ; x:f32[8,8]. let y:f32[8,8] = exp x
        t:f32[8,8] = transpose[order=(1, 0)] y a:f32[8,8] = add y t in (a,) }""")
    assert len(of_made) == 2


def test_a_whole_sum_that_is_read_again_ends_a_large_region():
    n = 1 << 20
    kinds = fused(f"""{{ lambda ; x:f32[{n}]. let
        t:f32[] = reduce_sum[axes=(0,)] x
        s:f32[{n}] = div x t
      in (s,) }}""")
    assert [k.kind for k in kinds if isinstance(k, Region)] == ["reduce", "pointwise"]


def test_the_axis_along_which_columns_are_normalised_is_whole():
    (region,) = fused("""{ lambda ; x:f32[8,5]. let
        t:f32[5] = reduce_sum[axes=(0,)] x
        s:f32[8,5] = broadcast_in_dim[shape=(8, 5) dims=(1,)] t
        p:f32[8,5] = div x s
      in (p,) }""")
    assert isinstance(region, Region)
    assert region.kind == "rowwise"


def test_python_numbers_and_effects_stay_outside():
    kinds = fused("""{ lambda ; x:f64[8] s:~f64[]. let
        t:~f64[] = mul s 2.0:~f64[]
        a:f64[8] = mul x t
      in (a,) }""")
    assert kinds[0] == "mul"
    assert isinstance(kinds[1], Region)


@pytest.mark.parametrize("name", ["nextafter"])
def test_what_depends_on_the_half_type_itself_stays_outside(name):
    text = f"{{ lambda ; x:f16[8] y:f16[8]. let a:f16[8] = {name} x y in (a,) }}"
    assert fused(text) == [name]
    assert len(fused(text.replace("f16", "f32"))) == 1


def test_the_region_computes_what_its_equations_did():
    before = graph(f"{{ lambda ; x:f32[8,5]. let {SOFTMAX} in (p, t) }}")
    same(before, fuse(before), np.random.default_rng(0).standard_normal((8, 5), np.float32))


def chain(length: int) -> Graph:
    """Groups of ten elementwise equations, a reduction every tenth, a product after that."""
    matrix = ArrayType((4, 4), np.dtype(np.float32))
    x = y = Var(matrix)
    eqns = []
    for i in range(length):
        op = (
            TABLE["dot_general"](contract=((1,), (0,)))
            if i % 10 == 9
            else BY_NAME[("tanh", "exp", "sin")[i % 3]]
        )
        out = Var(matrix)
        eqns.append(Eqn(op, (y, x) if i % 10 == 9 else (y,), (out,)))
        y = out
    return Graph((x,), tuple(eqns), (y,))


def test_the_work_grows_with_the_length() -> None:
    def calls(graph: Graph) -> int:
        """How many functions fusing calls: its work, whatever else the machine does."""
        count = 0

        def seen(frame: object, event: str, arg: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(seen)
        try:
            fuse(graph)
        finally:
            sys.setprofile(None)
        return count

    assert calls(chain(4_000)) < 10.5 * calls(chain(400))


RATES = """
    u:f32[] = add t 1.0:f32[]
    r:f32[] = pow 0.5:f32[] u"""


def test_costly_scalars_of_arguments_are_apart_where_several_regions_read_them():
    """Else the second region, and all others, would wait for the whole of the first."""
    regions = fused(f"""{{ lambda ; x:f32[8] y:f32[9] t:f32[]. let {RATES}
        p:f32[8] = broadcast_in_dim[shape=(8,) dims=()] r
        a:f32[8] = mul x p
        q:f32[9] = broadcast_in_dim[shape=(9,) dims=()] r
        b:f32[9] = mul y q
      in (a, b, u) }}""")
    assert [r.space for r in regions if isinstance(r, Region)] == [(), (8,), (9,)]
    assert [len(r.graph.outputs) for r in regions if isinstance(r, Region)] == [2, 1, 1]


def test_scalars_that_one_region_reads_are_part_of_it():
    (region,) = fused(f"""{{ lambda ; x:f32[8] t:f32[]. let {RATES}
        p:f32[8] = broadcast_in_dim[shape=(8,) dims=()] r
        a:f32[8] = mul x p
        b:f32[8] = add a p
      in (b, r) }}""")
    assert isinstance(region, Region)
    assert (region.space, len(region.graph.outputs)) == ((8,), 2)


def test_early_scalars_keep_no_region_from_another():
    """In the order of the equations the rate comes after the product;
    sum and update are one region.
    """
    kinds = fused(f"""{{ lambda ; x:f32[8,8] w:f32[8,8] b:f32[8] t:f32[] y:f32[9]. let
        h:f32[8,8] = dot_general[contract=((1,), (0,))] x w
        s:f32[8] = reduce_sum[axes=(0,)] h
        g:f32[8,8] = dot_general[contract=((1,), (0,))] h w
        {RATES}
        p:f32[8] = broadcast_in_dim[shape=(8,) dims=()] r
        d:f32[8] = mul s p
        a:f32[8] = sub b d
        q:f32[9] = broadcast_in_dim[shape=(9,) dims=()] r
        z:f32[9] = mul y q
      in (a, g, z) }}""")
    regions = {r.space: len(r.graph.eqns) for r in kinds if isinstance(r, Region)}
    assert regions == {(): 2, (8, 8): 4, (9,): 2}


def test_numbers_of_python_keep_no_region_from_another():
    """A chain of them is done before all else, however long: so the update is
    part of the sum's region.
    """
    kinds = fused("""{ lambda ; x:f32[8,8] b:f32[8] t:~f64[]. let
        s:f32[8] = reduce_sum[axes=(0,)] x
        h:f32[8] = dot_general[contract=((0,), (0,))] s x
        u:~f64[] = add t 1.0:~f64[]
        v:~f64[] = pow 0.9:~f64[] u
        w:~f64[] = sub 1.0:~f64[] v
        r:f32[] = convert_element_type[dtype=f32 weak=False] w
        p:f32[8] = broadcast_in_dim[shape=(8,) dims=()] r
        d:f32[8] = mul s p
        a:f32[8] = sub b d
      in (a, h) }""")
    assert [k.kind for k in kinds if isinstance(k, Region)] == ["rowwise"]


def test_scalars_that_arrays_make_are_not_early():
    kinds = fused("""{ lambda ; x:f32[8] y:f32[9]. let
        s:f32[] = reduce_sum[axes=(0,)] x
        r:f32[] = pow s 3.0:f32[]
        q:f32[9] = broadcast_in_dim[shape=(9,) dims=()] r
        z:f32[9] = mul y q
      in (z, r) }""")
    assert [k.space for k in kinds if isinstance(k, Region)] == [(8,), (9,)]


def wide(x, stages, width):
    """Stages of elementwise work: many values within each, one between them."""
    for _ in range(stages):
        values = [x * (k + 1.5) for k in range(width)]
        values = [np.tanh(a) * b for a, b in zip(values, [*values[1:], x], strict=True)]
        x = sum(a * b for a, b in zip(values, values[::-1], strict=True))
    return x


def test_a_long_chain_is_one_region():
    found = fuse(ge2.make_jaxpr(lambda x: wide(x, 6, 10))(np.ones((4, 26))).graph)
    assert [len(e.op.graph.eqns) for e in found.eqns] == [6 * 50]


@pytest.mark.parametrize("dtype", ["f2", "f8"])
@pytest.mark.parametrize("summed", [False, True])
def test_a_kernel_moves_a_bounded_number_of_arrays(dtype, summed):
    """Compilers need time in proportion to the square of the code of one loop, and memory has few pages
    open at once: 150 results at once take nearly twice the time of three times 50.
    """
    xs = [np.full((4, 5), i % 2, dtype) for i in range(150)]
    found = verify(
        fuse(ge2.make_jaxpr(lambda *xs: sum(xs).sum() if summed else sum(xs))(*xs).graph)
    )
    low, high = (30, 40) if dtype == "f2" else (60, 75)
    most = max(len(e.inputs) for e in found.eqns)
    assert low <= most <= high
    np.testing.assert_array_equal(interpret(found, xs)[0], sum(xs).sum() if summed else sum(xs))
    outs = [lambda x, i=i: x * x * np.asarray(i + 0.5, dtype) for i in range(150)]
    found = fuse(ge2.make_jaxpr(lambda x: [f(x) for f in outs])(xs[0]).graph)
    most = max(len(e.outs) for e in found.eqns)
    assert low <= most <= high


@pytest.mark.parametrize("seed", range(8))
def test_no_group_is_longer_than_its_bound(seed: int) -> None:
    """Groups of which the bound is no more than a region may have are not looked at one by one."""
    rng = np.random.default_rng(seed)

    def f(i: Any, a: Any, s: Any, *xs: Any) -> Any:
        made = [*xs, np.exp(a) + np.log1p(s)]
        for kind in rng.integers(0, 7, 40):
            x, y = (made[rng.integers(0, len(made))] for _ in range(2))
            x, y = (v.astype("f4") if rng.random() < 0.7 else v for v in (x, y))
            made.append(
                x * y if kind < 3 else
                x + y.sum(-1, keepdims=True) if kind == 3 else
                np.take_along_axis(x + np.zeros((6, 5), "f4"), i + 1 - 1, 1) if kind == 4 else
                (x * a).astype("f2") if kind == 5 else
                np.swapaxes(np.swapaxes(x + np.zeros((6, 5), "f4"), 0, 1) * 2, 0, 1)
            )  # fmt: skip
        return made[-12:]

    xs = [np.ones((6, 5), dtype) for dtype in ("f4", "f2", "f4", "f2")]
    given = np.ones((6, 5), np.int64), np.float32(1), np.float32(2), *xs
    traced = ge2.make_jaxpr(f)(*given).graph
    for context in (Context(), Context(caps=limits_of("sm_90a"))):
        fusion = gathered(traced, context)
        groups = dict.fromkeys(leader(fusion.leaders, g) for g in fusion.group_of.values())
        assert groups
        for group in groups:
            lengths = fusion.lengths(group, sorted(group.entries), fusion.reading({*group.made}))
            assert sum(lengths) <= group.longest


def test_slices_of_one_array_stay_one_kernel():
    """A filter of 31 taps reads its signal and its taps once."""
    taps, x = np.ones(31), np.ones(200)
    found = fuse(ge2.make_jaxpr(lambda x, t: np.convolve(x, t, "valid"))(x, taps).graph)
    assert sum(isinstance(e.op, Region) for e in found.eqns) == 1


def test_a_chain_that_is_too_long_is_cut_where_fewest_bytes_cross():
    context = Context(tuning=Tuning(Fusion(members=70)))
    traced = ge2.make_jaxpr(lambda x: wide(x, 5, 10))(np.ones((4, 26)))
    found = verify(fuse(traced.graph, context))
    assert [len(e.op.graph.eqns) for e in found.eqns] == [50] * 5
    # of ten values that are alive anywhere else
    assert [len(e.outs) for e in found.eqns] == [1] * 5
    x = np.linspace(0, 1, 104).reshape(4, 26)
    np.testing.assert_allclose(interpret(found, [x])[0], wide(x, 5, 10), rtol=1e-12)


def test_regions_that_fold_stay_shorter():
    def f(x):
        for _ in range(60):
            x = x - x.sum(1, keepdims=True) * 0.5
        return x

    sizes = [len(e.op.graph.eqns) for e in fuse(ge2.make_jaxpr(f)(np.ones((4, 5))).graph).eqns]
    assert len(sizes) > 1


def test_a_region_that_is_cut_has_what_it_needs_beside_it() -> None:
    """Work of each step before the loop would else be an array a step, of a region of its own."""

    def returns(rewards: Any, alive: Any) -> Any:
        scaled = [2.0 * r + 1.0 for r in rewards[:64]]
        found = [np.zeros(256, np.float32)]
        for r, a in zip(scaled, alive[:64], strict=True):
            found.append(r + 0.9 * a * found[-1])
        return np.stack(found)

    x = np.ones((64, 256), np.float32)
    graph = fuse(run(TIDY, ge2.make_jaxpr(returns)(x, x).graph))
    assert 1 < sum(isinstance(e.op, Region) for e in graph.eqns) < 6


def test_a_mask_is_made_anew_for_who_reads_it_across_its_lines():
    """The derivative of a diagonal, beside sums of rows and of columns: no region adds them up."""

    def cross(x):
        top = x.max(1, keepdims=True)
        return (np.log(np.exp(x - top).sum(1)) + top[:, 0] - np.diagonal(x)).mean()

    def loss(a, b):
        x = a @ b.T / 0.1
        return cross(x) + cross(x.T)

    a, b = np.random.default_rng(0).normal(size=(2, 80, 30))
    step = ge2.grad(loss, argnums=(0, 1))
    graph = rewritten(ge2.make_jaxpr(step)(a, b).graph, "c")
    assert [e.op.kind for e in graph.eqns if isinstance(e.op, Region)] == ["rowwise"]
    rows, columns = (np.exp(x - x.max(1, keepdims=True)) for x in (a @ b.T / 0.1, b @ a.T / 0.1))
    both = rows / rows.sum(1, keepdims=True) + (columns / columns.sum(1, keepdims=True)).T
    by_x = (both - 2 * np.eye(80)) / 8
    all_close(ge2.jit(step)(a, b), (by_x @ b, by_x.T @ a), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("also", "stored"), [("", False), (", p", True)])
def test_an_outer_product_is_made_by_the_sum_that_alone_reads_it(also: str, stored: bool):
    """As of the gradient of narrow weights: the region of the factors goes on with a loss, so it has no
    sums over other axes, and the products are larger than both factors.
    """
    before = graph(f"""{{ lambda ; x:f32[16384,8] y:f32[16384,8]. let
        a:f32[16384,8] = tanh x
        s:f32[] = reduce_sum[axes=(0, 1)] a
        t:f32[] = div s 9.0:f32[]
        b:f32[16384,8,8] = broadcast_in_dim[dims=(0, 1) shape=(16384, 8, 8)] a
        c:f32[16384,8,8] = broadcast_in_dim[dims=(0, 2) shape=(16384, 8, 8)] y
        p:f32[16384,8,8] = mul b c
        d:f32[8,8] = reduce_sum[axes=(0,)] p
      in (t, a, d{also}) }}""")
    after = verify(fuse(before, Context(limits_of("sm_90a"), tails=True)))
    assert ((16384, 8, 8) in [v.type.shape for e in after.eqns for v in e.outs]) == stored
    same(after, before, *np.random.default_rng(0).normal(size=(2, 16384, 8)).astype(np.float32))


@pytest.mark.parametrize(("also", "stored"), [(", b", 1), ("", 1), (", b, c", 2)])
def test_what_one_region_reads_is_made_there_of_what_is_stored_anyway(also: str, stored: int):
    """A matrix that is updated, and a multiple of it that the second of two products reads. If the first
    is a result the second is made of it; else one of them is stored.
    """
    before = graph(f"""{{ lambda ; x:f32[2100,2000] u:f32[2100] w:f32[2000]. let
        a:f32[2100,2000] = broadcast_in_dim[dims=(0,) shape=(2100, 2000)] u
        b:f32[2100,2000] = add x a
        s:f32[2000] = reduce_sum[axes=(0,)] b
        t:f32[2000] = add s w
        c:f32[2100,2000] = mul b 1.5:f32[]
        d:f32[2100,2000] = broadcast_in_dim[dims=(1,) shape=(2100, 2000)] t
        e:f32[2100,2000] = mul c d
        f:f32[2100] = reduce_sum[axes=(1,)] e
      in (f, s{also}) }}""")
    after = verify(fuse(before, Context(limits_of("sm_90a"), tails=True)))
    large = [v for e in after.eqns for v in e.outs if v.type.shape == (2100, 2000)]
    assert len(large) == stored and sum(isinstance(e.op, Region) for e in after.eqns) == 2
    rng = np.random.default_rng(0)
    same(
        after, before, *(rng.normal(size=n).astype(np.float32) for n in ((2100, 2000), 2100, 2000))
    )


@pytest.mark.parametrize(("last", "regions"), [("", 2), (" transposed", 1)])
def test_a_fold_of_all_but_a_middle_axis_is_no_region_of_it(last: str, regions: int):
    """Threads would lie along that axis, and what has them all be done across memory; a leading one is
    an axis of rows.
    """
    shape, dims = ((8, 3000, 16), (1, 2)) if last else ((3000, 8, 16), (0, 2))
    before = graph(f"""{{ lambda ; x:f32[3000,16] y:f32{list(shape)}. let
        a:f32[3000,16] = mul x x
        s:f32[] = reduce_sum[axes=(0, 1)] a
        b:f32{list(shape)} = broadcast_in_dim[dims={dims} shape={shape}] x
        c:f32{list(shape)} = mul b y
      in (s, c) }}""")
    after = verify(fuse(before, Context(limits_of("sm_90a"), tails=True)))
    assert sum(isinstance(e.op, Region) for e in after.eqns) == regions
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3000, 16)), rng.normal(size=shape)
    same(after, before, x.astype(np.float32), y.astype(np.float32))
