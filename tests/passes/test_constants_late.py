"""Arrays of constants are made where they are read first."""

from __future__ import annotations

from ge2.compile.steps import constants_late
from tests.passes.graphs import after, lines

BEFORE = """
{ lambda ; a:f64[3]. let
    z:f64[3] = broadcast_in_dim[dims=() shape=(3,)] 0.0:f64[]
    i:i64[3] = iota[axis=0 dtype=i64 shape=(3,)]
    o:f64[3] = broadcast_in_dim[dims=() shape=(3,)] 1.0:f64[]
    b:f64[3] = sin a
    c:f64[3] = add b z
    d:f64[3] = mul c z
    e:f64[3] = convert_element_type[dtype=f64 weak=False] i
  in (d, e, o) }
"""


def test_each_is_made_before_what_reads_it_first_and_results_come_last() -> None:
    assert after(constants_late, BEFORE) == lines("""
        b:f64[3] = sin a
        c:f64[3] = broadcast_in_dim[dims=() shape=(3,)] 0.0:f64[]
        d:f64[3] = add b c
        e:f64[3] = mul d c
        f:i64[3] = iota[axis=0 dtype=i64 shape=(3,)]
        g:f64[3] = convert_element_type[dtype=f64 weak=False] f
        h:f64[3] = broadcast_in_dim[dims=() shape=(3,)] 1.0:f64[]
        in (e, g, h) }
    """)
