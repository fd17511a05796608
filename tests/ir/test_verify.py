"""Every kind of malformed graph is caught, with the equation and the line it came from."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import ge2
from ge2.base.errors import VerifyError
from ge2.base.source import here
from ge2.ir import ArrayType, Eqn, Graph, Literal, Var, verify
from ge2.ops import BY_NAME, Call, ReduceSum

F3 = ArrayType((3,), np.dtype(np.float32))
F = ArrayType((), np.dtype(np.float32))
D3 = ArrayType((3,), np.dtype(np.float64))
SIN, COS, ADD = BY_NAME["sin"], BY_NAME["cos"], BY_NAME["add"]
ONE = Literal.of(np.float32(1))


def v(t: ArrayType = F3) -> Var:
    return Var(t)


def undefined() -> Graph:
    a, b = v(), v()
    return Graph((a,), (Eqn(ADD, (a, v()), (b,)),), (b,))


def used_before_its_equation() -> Graph:
    a, b, c = v(), v(), v()
    return Graph((a,), (Eqn(SIN, (b,), (c,)), Eqn(SIN, (a,), (b,))), (c,))


def output_undefined() -> Graph:
    return Graph((v(),), (), (v(),))


def defined_twice() -> Graph:
    a, b = v(), v()
    return Graph((a,), (Eqn(SIN, (a,), (b,)), Eqn(SIN, (a,), (b,))), (b,))


def input_twice() -> Graph:
    a = v()
    return Graph((a, a), (), (a,))


def input_defined_again() -> Graph:
    a = v()
    return Graph((a,), (Eqn(SIN, (a,), (a,)),), (a,))


def wrong_shape() -> Graph:
    a, b = v(), v(F3)
    return Graph((a,), (Eqn(ReduceSum((0,)), (a,), (b,)),), (b,))


def wrong_dtype() -> Graph:
    a, b = v(), v(D3)
    return Graph((a,), (Eqn(SIN, (a,), (b,)),), (b,))


def wrong_weakness() -> Graph:
    a, b = v(F), v(ArrayType((), np.dtype(np.float32), weak=True))
    return Graph((a,), (Eqn(SIN, (a,), (b,)),), (b,))


def too_many_results() -> Graph:
    a, b, c = v(), v(), v()
    return Graph((a,), (Eqn(SIN, (a,), (b, c)),), (b,))


def no_results() -> Graph:
    a = v()
    return Graph((a,), (Eqn(SIN, (a,), ()),), (a,))


def refused_operands() -> Graph:
    a, b, c = v(), v(D3), v()
    return Graph((a, b), (Eqn(ADD, (a, b), (c,)),), (c,))


def too_many_operands() -> Graph:
    a, b = v(), v()
    return Graph((a,), (Eqn(SIN, (a, a), (b,)),), (b,))


def no_atom() -> Graph:
    a, b = v(), v()
    return Graph((a,), (Eqn(ADD, (a, 1.0), (b,)),), (b,))  # type: ignore[arg-type]


def literal_of_another_type() -> Graph:
    a, b = v(), v()
    return Graph((a,), (Eqn(ADD, (a, Literal(np.float64(1), F)), (b,)),), (b,))


def literal_with_a_shape() -> Graph:
    return Graph((), (), (Literal(np.float32(1), F3),))


def more_captured_than_there_are() -> Graph:
    a = v()
    return Graph((a,), (), (a,), 2)


def weak_array() -> Graph:
    a = v(ArrayType((3,), np.dtype(np.float64), weak=True))
    return Graph((a,), (), (a,))


def unknown_dtype() -> Graph:
    a = v(ArrayType((3,), np.dtype("M8[s]")))
    return Graph((a,), (), (a,))


def nested() -> Graph:
    a, b = v(), v()
    return Graph((a,), (Eqn(Call(undefined()), (a,), (b,)),), (b,))


def nested_reads_from_outside() -> Graph:
    a, b, c = v(), v(), v()
    inner = Graph((b,), (), (a,))
    return Graph((a,), (Eqn(Call(inner), (a,), (c,)),), (c,))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            undefined,
            "equation 0, add of f32[3], f32[3]: input 1 reads a value that is not defined yet",
        ),
        (
            used_before_its_equation,
            "equation 0, sin of f32[3]: input 0 reads a value that is not defined yet",
        ),
        (output_undefined, "output 0 reads a value that is not defined yet"),
        (defined_twice, "equation 1, sin of f32[3]: its results define a value twice"),
        (input_twice, "the inputs define a value twice"),
        (input_defined_again, "its results define a value twice"),
        (wrong_shape, "reduce_sum[axes=(0,)] of f32[3]: it yields f32[], but is typed f32[3]"),
        (wrong_dtype, "it yields f32[3], but is typed f64[3]"),
        (wrong_weakness, "it yields f32[], but is typed ~f32[]"),
        (too_many_results, "it yields f32[3], but is typed f32[3], f32[3]"),
        (no_results, "it yields f32[3], but is typed nothing"),
        (refused_operands, "its type rule refuses it: add takes arrays of one dtype"),
        (too_many_operands, "its type rule refuses it: sin takes 1 array"),
        (no_atom, "input 1 is a float, neither a value nor a literal"),
        (literal_of_another_type, "input 1, the literal np.float64(1.0), is typed f32[]"),
        (literal_with_a_shape, "output 0, the literal np.float32(1.0), is typed f32[3]"),
        (more_captured_than_there_are, "2 of 1 inputs are said to be captured"),
        (weak_array, "the inputs hold a weak ~f64[3], which no Python number has"),
        (unknown_dtype, "the inputs hold a value of dtype datetime64[s]"),
        (nested, "input 1 reads a value that is not defined yet"),
        (nested_reads_from_outside, "output 0 reads a value that is not defined yet"),
    ],
)
def test_a_malformed_graph_is_caught(make: object, says: str) -> None:
    with pytest.raises(VerifyError) as caught:
        verify(make())  # type: ignore[operator]
    assert says in str(caught.value)


def test_the_error_names_the_line_the_equation_came_from() -> None:
    a, b = v(), v(D3)
    graph = Graph((a,), (Eqn(SIN, (a,), (b,), here()),), (b,))
    with pytest.raises(VerifyError, match=r"\n  at   test_verify.py:\d+ in test_the_error_names"):
        verify(graph)


def test_a_well_formed_graph_is_returned() -> None:
    graph = ge2.make_jaxpr(lambda x: ge2.lax.cond(x[0] > 0, np.sin, np.cos, x))(np.ones(2)).graph
    assert verify(graph) is graph
    assert verify(Graph((), (), ())).eqns == ()


def test_equations_of_a_graph_that_was_verified_are_not_looked_at_again() -> None:
    """Their order is, and so is what is new; both by the only graph that shows it."""
    before = ge2.make_jaxpr(lambda x: np.sin(np.cos(x)))(np.ones(2)).graph
    first, second = before.eqns
    wrong = Eqn(first.op, first.inputs, (v(D3),))  # a cosine of two numbers has no three
    assert verify(Graph(before.inputs, (first, second), before.outputs), before).eqns == before.eqns
    with pytest.raises(VerifyError, match="it yields"):
        verify(Graph(before.inputs, (first, second, wrong), before.outputs), before)
    with pytest.raises(VerifyError, match="not defined yet"):
        verify(Graph(before.inputs, (second, first), before.outputs), before)
    known = Graph(before.inputs, (wrong,), ())
    assert verify(known, known) is known


def test_the_text_of_equations_that_look_like_others_is_not_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage, read = sys.modules["ge2.trace.stage"], list[Graph]()
    monkeypatch.setattr(stage, "_read_back", set())
    monkeypatch.setattr(stage, "check_text", read.append)
    f32, f64 = np.dtype(np.float32), np.dtype(np.float64)
    for count, op, shape, dtype in (
        (1, SIN, (3,), f32), (1, SIN, (5,), f32), (2, SIN, (5,), f64), (3, COS, (5,), f64),
        (4, COS, (5, 1), f64), (4, SIN, (3,), f64),
    ):  # fmt: skip
        x, y = Var(ArrayType(shape, dtype)), Var(ArrayType(shape, dtype))
        stage.check(Graph((x,), (Eqn(op, (x,), (y,)),), (y,)))
        assert len(read) == count
    known, new = Eqn(SIN, (x,), (y,)), Eqn(BY_NAME["exp"], (y,), (Var(y.type),))
    stage.check(Graph((x,), (known, new), new.outs))
    assert read[-1].eqns == (new,) and read[-1].inputs == (y,) and read[-1].outputs == new.outs
    verify(read[-1])
