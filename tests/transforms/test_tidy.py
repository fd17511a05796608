"""What every transform ends with: fewer equations, the same bits."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge2.ir import verify
from ge2.trace import tidy
from ge2.transforms import make_jaxpr

SPECIAL = np.array([0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 5e-324, 1e308])


def tidied(f, *args):
    closed = make_jaxpr(f)(*args)
    after = verify(tidy(closed.graph))
    for a, b in zip(closed(*args), after(*closed.captured, *args), strict=True):
        assert type(a) is type(b)
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype and a.tobytes() == b.tobytes()
    return [e.op.name for e in after.eqns]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_products_with_one_are_no_products(dtype):
    with np.errstate(all="ignore"):
        x = SPECIAL.astype(dtype)
    assert tidied(lambda x: (1.0 * x, x * 1.0, x / 1.0, np.negative(-x)), x) == []
    assert tidied(lambda x: x * np.ones_like(x), x) == []


def test_what_is_not_exact_stays():
    assert tidied(lambda x: (x + 0.0, x * 0.0, x - x), SPECIAL) == ["add", "mul", "sub"]
    z = np.array([complex(np.inf, 0.0), 1j])
    assert tidied(lambda z: z * (1.0 + 0j), z) == ["mul"]
    assert tidied(lambda n, x: n * 1.0, np.arange(3), SPECIAL) == ["convert_element_type"]


def test_numbers_spread_over_a_shape_are_read_as_numbers():
    assert tidied(lambda x: np.full_like(x, 3.0) * x + np.zeros_like(x), SPECIAL) == ["mul", "add"]
    assert tidied(lambda x: np.ones_like(x) * 2.0 + x, SPECIAL) == [
        "broadcast_in_dim",
        "mul",
        "add",
    ]


def test_numbers_are_folded():
    assert tidied(lambda x: x * (-np.float64(3.0) * np.float64(0.1)), SPECIAL) == ["mul"]


def test_equal_equations_in_either_order_are_one():
    assert tidied(lambda x, y: (x * y + y * x, (x + y) - (y + x)), SPECIAL, SPECIAL[::-1]) == [
        "mul",
        "add",
        "add",
        "sub",
    ]
    assert tidied(lambda x, y: (x - y) * (y - x), SPECIAL, SPECIAL[::-1]) == ["sub", "sub", "mul"]
    assert tidied(lambda x, y: x * x + x * y, SPECIAL, SPECIAL[::-1]) == ["mul", "mul", "add"]


@given(st.lists(st.sampled_from(["neg", "one", "sin", "twice", "number", "same"]), max_size=12))
def test_any_program_computes_the_same_bits(steps):
    def f(x):
        y = x
        for step in steps:
            y = {
                "neg": lambda y: -y,
                "one": lambda y: y * 1.0 / np.ones_like(x),
                "sin": np.sin,
                "twice": lambda y: y * x + x * y,
                "number": lambda y: y + np.full_like(x, -0.0) * 3.0,
                "same": lambda y: np.sin(y) - np.sin(y) * y,
            }[step](y)
        return (y,)

    with np.errstate(all="ignore"):
        tidied(f, SPECIAL)
