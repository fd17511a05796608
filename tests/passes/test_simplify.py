"""Algebra: what is exact is simplified, what is not stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ge2.passes.simplify import simplify
from tests.passes.graphs import after, alike, graph, lines, names, same

X = "{ lambda ; x:f32[3]. let"


def through(dtype: str) -> str:
    """To another dtype and back."""
    there = f"a:{dtype}[3] = convert_element_type[dtype={dtype} weak=False] x"
    return f"{there}\n y:f32[3] = convert_element_type[dtype=f32 weak=False] a"


SPECIAL = np.array([-0.0, np.nan, -np.inf], np.float32)


@pytest.mark.parametrize(
    "equation",
    [
        "y:f32[3] = mul x 1.0:f32[]",
        "y:f32[3] = mul 1.0:f32[] x",
        "y:f32[3] = div x 1.0:f32[]",
        "y:f32[3] = sub x 0.0:f32[]",
        "y:f32[3] = add x -0.0:f32[]",
        "a:f32[3] = neg x\n y:f32[3] = neg a",
        "y:f32[3] = integer_pow[y=1] x",
        "y:f32[3] = stop_gradient x",
        "y:f32[3] = transpose[order=(0,)] x",
        "a:f32[1,3] = reshape[shape=(1, 3)] x\n y:f32[3] = reshape[shape=(3,)] a",
        "y:f32[3] = convert_element_type[dtype=f32 weak=False] x",
        through("f64"),
        "y:f32[3] = broadcast_in_dim[shape=(3,) dims=(0,)] x",
        "y:f32[3] = reduce_max[axes=()] x",
        "y:f32[3] = rev[axes=()] x",
        "y:f32[3] = slice[start=(0,) stop=(3,) step=(1,)] x",
        "m:bool[3] = lt x x\n y:f32[3] = where m x x",
        "y:f32[3] = where True:bool[] x 2.0:f32[]",
    ],
)
def test_the_value_itself(equation):
    text = f"{X} {equation} in (y,) }}"
    assert after(simplify, text) == "in (a,) }"
    same(graph(text), simplify(graph(text)), SPECIAL)


@pytest.mark.parametrize(
    "equation",
    [
        "y:f32[3] = add x 0.0:f32[]",  # -0.0 + 0.0 is 0.0
        "y:f32[3] = sub x -0.0:f32[]",
        "y:f32[3] = mul x 0.0:f32[]",
        "y:f32[3] = reduce_sum[axes=()] x",  # NumPy adds 0.0
        "y:f32[3] = sub x x",
        "y:f32[3] = div x x",
        through("bf16"),
        through("i32"),
    ],
)
def test_what_is_not_exact_stays(equation):
    text = f"{X} {equation} in (y,) }}"
    assert simplify(graph(text)) == graph(text)


def test_complex_products_by_one_stay():
    text = "{ lambda ; x:c64[3]. let y:c64[3] = mul x (1.0, 0.0):c64[] in (y,) }"
    assert simplify(graph(text)) == graph(text)


JOINED = """{ lambda ; x:f64[3] y:f64[3]. let
    a:f64[1,3] = reshape[shape=(1, 3)] x
    b:f64[1,3] = reshape[shape=(1, 3)] y
    c:f64[2,3] = concatenate[axis=0] a b
    d:f64[3] = FOLD[axes=(0,)] c
  in (d,) }"""


@pytest.mark.parametrize(
    ("fold", "wanted"),
    [
        ("reduce_max", "c:f64[3] = max a b\nin (c,) }"),
        ("reduce_prod", "c:f64[3] = mul a b\nin (c,) }"),
        ("reduce_sum", "c:f64[3] = add 0.0:f64[] a\nd:f64[3] = add c b\nin (d,) }"),  # of -0.0 0.0
    ],
)
def test_a_fold_of_joined_arrays_is_of_the_arrays(fold, wanted):
    text = JOINED.replace("FOLD", fold)
    assert after(simplify, text) == wanted
    xs = SPECIAL.astype(float), np.array([-0.0, 1.0, np.inf])
    same(graph(text), simplify(graph(text)), *xs)


def test_folds_of_joined_arrays_that_stay():
    narrow = JOINED.replace("FOLD", "reduce_sum").replace("f64", "f32")  # held in float64
    along = JOINED.replace("FOLD[axes=(0,)] c", "reduce_max[axes=(1,)] c")
    for text in (narrow, along.replace("d:f64[3]", "d:f64[2]")):
        assert "concatenate" in after(simplify, text)


def test_minus_moves_into_the_sum():
    text = f"{X} a:f32[3] = neg x b:f32[3] = add x a c:f32[3] = sub x a in (b, c) }}"
    assert after(simplify, text) == lines("""
        b:f32[3] = sub a a
        c:f32[3] = add a a
        in (b, c) }""")


def test_what_is_computed_is_rounded_before_it_is_seen_in_another_shape():
    text = """{ lambda ; x:f32[4,6]. let a:f32[4,6] = exp x
        b:f32[24] = reshape[shape=(24,)] a
        y:bf16[24] = convert_element_type[dtype=bf16 weak=False] b in (y,) }"""
    assert [e.op.name for e in simplify(graph(text)).eqns] == [
        "exp",
        "convert_element_type",
        "reshape",
    ]
    same(graph(text), simplify(graph(text)), np.ones((4, 6), np.float32))


def test_views_of_views_are_one_view():
    text = """{ lambda ; x:f32[3]. let
        a:f32[3,4] = broadcast_in_dim[shape=(3, 4) dims=(0,)] x
        b:f32[2,3,4] = broadcast_in_dim[shape=(2, 3, 4) dims=(1, 2)] a
        c:f32[4,2,3] = transpose[order=(2, 0, 1)] b
        d:f32[3,4,2] = transpose[order=(2, 0, 1)] c
      in (b, d) }"""
    assert after(simplify, text) == lines("""
        b:f32[2,3,4] = broadcast_in_dim[dims=(1,) shape=(2, 3, 4)] a
        c:f32[3,4,2] = transpose[order=(1, 2, 0)] b
        in (b, c) }""")


def test_equal_equations_are_one_but_literals_tell_zero_from_minus_zero():
    text = f"""{X} a:f32[3] = tanh x b:f32[3] = tanh x c:f32[3] = add a b
        d:f32[3] = max x 0.0:f32[] e:f32[3] = max x -0.0:f32[] in (c, d, e) }}"""
    assert after(simplify, text).count("tanh") == 1
    assert after(simplify, text).count("max") == 2


def test_dead_code_goes_and_barriers_stay():
    text = f"""{X} a:f32[3] = tanh x b:f32[3] = barrier x c:f32[3] = barrier x
        d:f32[3] = add b c in (d,) }}"""
    assert after(simplify, text) == lines("""
        b:f32[3] = barrier a
        c:f32[3] = barrier a
        d:f32[3] = add b c
        in (d,) }""")


def test_a_simpler_graph_is_left_alone():
    text = f"{X} a:f32[3] = tanh x b:f32[3] = mul a 2.0:f32[] in (b, x, 1.0:f32[]) }}"
    assert simplify(graph(text)) == graph(text)


@pytest.mark.parametrize(
    ("a", "b", "dtype"), [(8, 0, "u1"), (-1, 1, "f4"), (2.5, 0.1, "f2"), (1, 300, "i1")]
)
def test_a_choice_between_numbers_is_made_of_converted_ones(a: Any, b: Any, dtype: str) -> None:
    x = np.array([-1.0, 2.0, np.nan])
    found = alike(simplify, lambda x: np.where(x < 0, a, b).astype(dtype), x)
    assert names(found) == ["lt", "where"]


def test_a_choice_between_floats_is_converted_to_integers_where_it_is_made() -> None:
    """What becomes of those out of range is the processor's matter."""
    found = alike(simplify, lambda x: np.where(x < 0, 1.5, 0.5).astype("i4"), np.array([-1.0, 2.0]))
    assert names(found) == ["lt", "where", "convert_element_type"]
