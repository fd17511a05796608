"""inline, fold, match, and how the pipeline is steered."""

from __future__ import annotations

import numpy as np
import pytest

from ge2.base.config import config
from ge2.base.source import Ge2Warning
from ge2.compile import compile_graph
from ge2.compile.catalog import interpret
from ge2.compile.pipeline import LIMITED, PIPELINES, rewritten
from ge2.ir import write
from ge2.passes import TIDY
from ge2.passes.fold import fold
from ge2.passes.simplify import inline
from ge2.passes.take_to_mask import match
from tests.passes.graphs import after, graph, lines, same

INNER = "{ lambda ; p:f32[3]. let q:f32[3] = sin p in (q, p) }"


def test_calls_are_replaced_by_what_they_call():
    twice = f"""{{ lambda ; x:f32[3]. let
        a:f32[3] b:f32[3] = jit[jaxpr={INNER} title=f] x
        c:f32[3] _:f32[3] = jit[jaxpr={INNER} title=f] a
      in (c, b) }}"""
    assert after(inline, twice) == lines("""
        b:f32[3] = sin a
        c:f32[3] = sin b
        in (c, a) }""")


def test_calls_within_calls():
    outer = (
        f"{{ lambda ; r:f32[3]. let s:f32[3] t:f32[3] = jit[jaxpr={INNER} title=f] r in (s, t) }}"
    )
    text = f"""{{ lambda ; x:f32[3]. let
        a:f32[3] b:f32[3] = checkpoint[jaxpr={outer}] x
      in (a, b) }}"""
    assert after(inline, text) == "b:f32[3] = sin a\nin (b, a) }"


def test_conds_are_kept():
    text = f"""{{ lambda ; i:bool[] x:f32[3]. let
        a:f32[3] b:f32[3] = cond[branches=({INNER}, {INNER},)] i x
      in (a,) }}"""
    assert inline(graph(text)) == graph(text)


def test_scalars_known_beforehand():
    text = """{ lambda ; x:f32[3]. let
        a:f32[] = mul 2.0:f32[] 3.0:f32[]
        b:f32[3] = broadcast_in_dim[shape=(3,) dims=()] a
        c:f32[3] = broadcast_in_dim[shape=(3,) dims=()] 0.5:f32[]
        d:f32[3] = sub c b
        e:f32[3] = add d x
      in (e,) }"""
    assert after(fold, text) == "b:f32[3] = add -5.5:f32[] a\nin (b,) }"


def test_a_repeated_scalar_stays_a_scalar():
    text = """{ lambda ; x:f32[3] s:f32[]. let
        a:f32[3] = broadcast_in_dim[shape=(3,) dims=()] s
        b:f32[3] = mul a a
        c:f32[3] = div x a
      in (b, c) }"""
    assert after(fold, text) == lines("""
        c:f32[] = mul b b
        d:f32[3] = broadcast_in_dim[dims=() shape=(3,)] c
        e:f32[3] = div a b
        in (d, e) }""")


def test_python_numbers_fold_as_python_does():
    text = "{ lambda ;. let a:~i64[] = pow 2:~i64[] 3:~i64[] b:~f64[] = div 1.0:~f64[] 4.0:~f64[] in (a, b) }"
    assert after(fold, text) == "in (8:~i64[], 0.25:~f64[]) }"


def test_a_whole_division_by_zero_waits_until_it_runs():
    text = "{ lambda ;. let a:~i64[] = floor_div 2:~i64[] 0:~i64[] in (a,) }"
    assert fold(graph(text)) == graph(text)


PICK = """{ lambda ; z:f32[4,5] y:i64[4]. let
    r:i64[4,1] = iota[axis=0 dtype=i64 shape=(4, 1)]
    i:i64[4,1] = reshape[shape=(4, 1)] y
    p:f32[4,1] = gather[axes=(0, 1)] z r i
  in (p,) }"""

PUT = """{ lambda ; ct:f32[4] y:i64[4]. let
    o:f32[4,5] = broadcast_in_dim[shape=(4, 5) dims=()] 0.0:f32[]
    r:i64[4] = iota[axis=0 dtype=i64 shape=(4,)]
    g:f32[4,5] = scatter_add[axes=(0, 1)] o ct r y
  in (g,) }"""


@pytest.mark.parametrize("text", [PICK, PUT])
def test_one_index_a_row_is_a_comparison(text):
    before, found = graph(text), match(graph(text))
    assert "gather" not in write(found)
    assert "scatter_add" not in write(found)
    first = np.array([[-0.0, np.nan, np.inf, -np.inf, 3]] * 4, np.float32)
    index = np.array([0, -3, 3, -1])
    same(
        before,
        found,
        first[: None if "gather" in text else 4] if text is PICK else first[0][:4],
        index,
    )
    with pytest.raises(IndexError, match="index 5 is out of bounds for axis 1 with size 5"):
        interpret(found, [first if text is PICK else first[0][:4], np.array([0, 5, 0, 0])])


def test_other_indices_are_left_alone():
    text = PICK.replace(
        "iota[axis=0 dtype=i64 shape=(4, 1)]", "iota[axis=1 dtype=i64 shape=(4, 1)]"
    )
    assert match(graph(text)) == graph(text)
    adding = PUT.replace("0.0:f32[]", "1.0:f32[]")
    assert match(graph(adding)) == graph(adding)


def test_the_pipelines_are_lists_of_names():
    tidy = "strong counted inline trim simplify parts_as_values masked_reads forward_writes fold match join"
    assert {
        target: " ".join(step.__name__ for step in each) for target, each in PIPELINES.items()
    } == {
        "reference": f"roll_offsets {tidy} roll whole stack fuse",
        "c": f"user_kernels roll_offsets attention {tidy} associative_scans unpadded_updates written_windows"
        " sorted_reads"
        " order_statistics joined_products roll whole stack unread_writes products_outside repeated_operands"
        " thin_products factors real_transforms in_double"
        " little_first scans_of_slices"
        " updates_added repeated_updates split_edges fuse contractions constants_late writes grounded reads_first"
        " with_copies views_first checked_early",
        "cuda": f"user_kernels attention {tidy} associative_scans rows_last sorted_reads few_ranks"
        " order_statistics online_sums"
        " narrow_operands half_results fp8_products unpadded_updates written_windows computed_once same_axes recompute"
        " tiny_products mirrored short_sums joined_products shared_orders roll whole stack stack_all"
        " products_outside sums_after deinterleave scans_of_slices slices_first gated_products"
        " join_scatters sums_of_zeros repeated_updates distinct_writes narrow_integers made_where_summed"
        " products_to_sums split_sums parts_done fuse"
        " split_live_ranges"
        " contractions indexed"
        " drawn resident rolled_results moves_inside rows_inside small_turned turned_columns results_together"
        " constants_late reads_first read_where_written with_copies results_apart views_first",
    }


@pytest.mark.parametrize("target", PIPELINES)
def test_a_limit_on_memory_leaves_the_order_of_passes(target):
    """What is planned under a limit are passes of the pipeline in its order,
    after those that tidy.
    """
    later = iter(PIPELINES[target][len(TIDY) :])
    assert all(step in later for step in LIMITED[target])


def test_a_pass_can_be_switched_off():
    text = graph("{ lambda ; x:f32[3]. let a:f32[3] = mul x 1.0:f32[] b:f32[3] = tanh a in (b,) }")
    with config.using(passes_off=("fuse",)):
        assert "region" not in write(rewritten(text, "reference"))
    with config.using(passes_off=("simplify",)):
        assert "mul" in write(rewritten(text, "reference"))
    assert "mul" not in write(rewritten(text, "reference"))


def test_each_step_can_be_dumped(tmp_path):
    text = graph("{ lambda ; x:f32[3]. let a:f32[3] = mul x 1.0:f32[] b:f32[3] = tanh a in (b,) }")
    with config.using(dump=str(tmp_path / "out"), executor="blocked"):
        executable = compile_graph(text, name="g")
        executable(np.ones(3, np.float32))
    steps = [
        f"g-{n}-{name}.txt"
        for n, name in enumerate(("traced", *(p.__name__ for p in PIPELINES["reference"])))
    ]
    found = {path.name for path in (tmp_path / "out").iterdir()}
    code = {"g-program.py", "g-pointwise_0.py", "g-regions.txt", "g-plan.txt", "g-repro.py"}
    assert found == {*steps, *code}
    assert "mul" in (tmp_path / "out" / "g-0-traced.txt").read_text()
    assert "mul" not in (tmp_path / "out" / "g-6-simplify.txt").read_text()


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    text = graph("{ lambda ; x:f32[3]. let b:f32[3] = tanh x in (b,) }")
    with (
        config.using(dump=str(tmp_path / "file")),
        pytest.warns(Ge2Warning, match="nothing is dumped"),
    ):
        rewritten(text, "reference", name="f")


def test_the_transpose_of_a_product_is_the_product_the_other_way_round():
    text = """{ lambda ; x:f32[3,4] y:f32[3,5]. let
        p:f32[4,5] = dot_general[contract=((0,), (0,))] x y
        t:f32[5,4] = transpose[order=(1, 0)] p
      in (t,) }"""
    assert after(match, text) == lines("""
        c:f32[5,4] = dot_general[beside=((), ()) contract=((0,), (0,)) out=None precision=None] b a
        in (c,) }""")
    batched = """{ lambda ; x:f32[2,3,4] y:f32[2,4,5]. let
        p:f32[2,3,5] = dot_general[contract=((2,), (1,)) beside=((0,), (0,))] x y
        t:f32[2,5,3] = transpose[order=(0, 2, 1)] p
      in (t,) }"""
    found = match(graph(batched))
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 4, 5))
    x, y = x.astype(np.float32), y.astype(np.float32)
    np.testing.assert_allclose(interpret(found, [x, y])[0], np.swapaxes(x @ y, 1, 2), rtol=1e-5)
    assert "transpose" not in write(found)


def test_a_product_that_is_read_as_it_is_stays():
    text = """{ lambda ; x:f32[3,4] y:f32[3,5]. let
        p:f32[4,5] = dot_general[contract=((0,), (0,))] x y
        t:f32[5,4] = transpose[order=(1, 0)] p
      in (t, p) }"""
    assert match(graph(text)) == graph(text)
