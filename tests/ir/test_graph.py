"""Graphs are equal up to names and lines, hash alike, compute what they say,
and drop what nobody reads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ge2
from ge2.base.errors import VerifyError
from ge2.ir import ArrayType, Eqn, Graph, Literal, Var, parse, verify, without_dead_code, write
from ge2.ops import TABLE
from tests.ir.test_text import graphs


def renamed(graph: Graph) -> Graph:
    """The same graph of other values, without lines."""
    new: dict[Any, Any] = {v: Var(v.type) for v in graph.inputs}
    eqns = []
    for e in graph.eqns:
        inputs = tuple(new.get(a, a) for a in e.inputs)
        new.update({v: Var(v.type) for v in e.outs})
        eqns.append(Eqn(e.op, inputs, tuple(new[v] for v in e.outs)))
    outputs = tuple(new.get(a, a) for a in graph.outputs)
    return Graph(tuple(new[v] for v in graph.inputs), tuple(eqns), outputs, graph.consts)


@given(graphs())
def test_renamed_graphs_are_equal_and_hash_alike(graph: Graph) -> None:
    other = renamed(graph)
    assert other == graph
    assert hash(other) == hash(graph)
    assert write(other) == write(graph)


@given(graphs(), graphs())
def test_graphs_are_equal_exactly_if_their_texts_are(a: Graph, b: Graph) -> None:
    assert (a == b) is (write(a) == write(b))


def graph(text: str) -> Graph:
    return ge2.parse(text)


@pytest.mark.parametrize(
    "other",
    [
        "{ lambda ; a:f32[2] b:f32[2]. let c:f32[2] = sub b a in (c,) }",
        "{ lambda ; a:f32[2] b:f32[2]. let c:f32[2] = add a b in (c,) }",
        "{ lambda ; a:f32[3] b:f32[3]. let c:f32[3] = sub a b in (c,) }",
        "{ lambda a:f32[2] ; b:f32[2]. let c:f32[2] = sub a b in (c,) }",
        "{ lambda ; a:f32[2] b:f32[2]. let c:f32[2] = sub a b in (c, c) }",
        "{ lambda ; a:f32[2] b:f32[2]. let c:f32[2] = sub a b in (a,) }",
    ],
)
def test_graphs_that_differ_are_not_equal(other: str) -> None:
    assert graph(other) != graph("{ lambda ; a:f32[2] b:f32[2]. let c:f32[2] = sub a b in (c,) }")


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (np.float32(0.0), np.float32(-0.0), False),
        (0.0, -0.0, False),
        (np.float32(np.nan), np.float32(np.nan), True),
        (np.float64(np.nan), -np.float64(np.nan), True),
        (float("nan"), float("nan"), True),
        (1, 1.0, False),
        (1, True, False),
        (np.int32(1), np.int64(1), False),
        (1, np.int64(1), False),
        (complex(0, -0.0), complex(0, 0.0), False),
        (10**40, 10**40, True),
    ],
)
def test_literals_are_equal_if_they_have_the_same_bits(a: Any, b: Any, equal: bool) -> None:
    assert (Literal.of(a) == Literal.of(b)) is equal
    if equal:
        assert hash(Literal.of(a)) == hash(Literal.of(b))


def test_two_traces_of_one_function_are_equal() -> None:
    f = lambda x: np.sin(x) * np.sum(x)  # noqa: E731
    a, b = (ge2.make_jaxpr(f)(np.ones(3)).graph for _ in range(2))
    assert a == b
    assert len({a, b}) == 1
    assert ge2.make_jaxpr(f)(np.ones(4)).graph != a


def test_what_is_worked_out_of_a_graph_is_not_of_one_that_is_made_of_it() -> None:
    graph = ge2.make_jaxpr(lambda x: (np.sin(x), np.cos(x)))(np.ones(2)).graph
    verify(graph)
    assert graph == graph and graph.effect is None and hash(graph)
    less = replace(graph, outputs=graph.outputs[:1])
    assert less != graph and hash(less) != hash(graph)
    with pytest.raises(VerifyError, match="not defined yet"):
        verify(replace(graph, eqns=graph.eqns[:1]))


def test_a_graph_computes_what_it_says() -> None:
    g = graph(
        "{ lambda ; a:f64[2] b:f64[]. let c:f64[2] = mul a b d:f64[2] = add c 1.0:f64[] in (d, b, 2:~i64[]) }"
    )
    d, b, n = g(np.array([1.0, 2.0]), np.float64(3.0))
    np.testing.assert_array_equal(d, [4.0, 7.0])
    assert b == 3.0
    assert n == 2
    assert type(n) is int


def test_dead_equations_go_and_others_stay_in_order() -> None:
    g = graph(
        "{ lambda ; a:f64[]. let b:f64[] = sin a c:f64[] = cos a d:f64[] = tan b e:f64[] = exp c in (d, a) }"
    )
    assert [e.op.name for e in without_dead_code(g).eqns] == ["sin", "tan"]
    kept = without_dead_code(g)
    assert without_dead_code(kept) is kept


@given(st.integers(0, 40))
def test_nested_graphs_compare_by_what_they_hold(n: int) -> None:
    text = "{ lambda ; a:f64[]. let b:f64[] = mul a %s:f64[] in (b,) }"
    outer = "{ lambda ; a:f64[]. let b:f64[] = jit[jaxpr=%s title=f] a in (b,) }"
    a, b = (parse(outer % (text % float(k)), TABLE) for k in (n, 20))
    assert (a == b) is (n == 20)
    assert (hash(a) == hash(b)) is (n == 20)


def test_types_print_as_people_write_them() -> None:
    assert str(ArrayType((2, 3), np.dtype(np.float32))) == "f32[2,3]"
    assert str(ArrayType((), np.dtype(np.int64), weak=True)) == "~i64[]"
