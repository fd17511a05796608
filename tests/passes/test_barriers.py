"""Numbers need no barrier, arrays do."""

from __future__ import annotations

from ge2.ir import parse
from ge2.ops import TABLE
from ge2.passes.simplify import simplify


def test_numbers_pass():
    text = """{ lambda ; a:f64[2] n:~f64[]. let
        b:f64[2] c:f64[] m:~f64[] = barrier a 1.0:f64[] n
        d:f64[2] = add b c
        e:f64[2] = mul d m
      in (e,) }"""
    found = simplify(parse(text, TABLE))
    assert found.eqns[0].inputs == found.inputs[:1] and len(found.eqns[0].outs) == 1
    assert found.eqns[2].inputs[1] is found.inputs[1]


def test_nothing_is_left_of_a_barrier_before_numbers_alone():
    text = "{ lambda ; a:f64[2]. let c:f64[] = barrier 1.0:f64[]  b:f64[2] = add a c in (b,) }"
    assert [e.op.name for e in simplify(parse(text, TABLE)).eqns] == ["add"]
