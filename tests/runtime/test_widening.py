"""float64 that came unasked for: the line is named, and `widest` makes it an error."""

from __future__ import annotations

import numpy as np
import pytest

import ge2
from ge2.errors import WideningError

X = np.ones((2, 3), np.float32)
W = np.ones(3)


def gelu(x):
    c = np.sqrt(2 / np.pi)  # a float64, as NumPy 2 has it
    return 0.5 * x * (1 + np.tanh(c * (x + 0.044715 * x**3)))


def inside_a_loop(x):
    return ge2.lax.scan(lambda c, _: (c, c.sum() * np.float64(2)), x, None, 3)[1]


WIDE = {
    "a constant": (
        gelu,
        (X,),
        r"becomes f64 to go with the constant 0\.79.* in mul\n.*in gelu\n.*float\(",
    ),
    "closed over": (lambda x: x @ W, (X,), r"W is f64\[3\]\n.*\n  try  W\.astype\(np\.float32\)"),
    "an argument": (
        lambda x, y: x + y,
        (X, W),
        r"y is f64\[3\]\n.*\n  try  y\.astype\(np\.float32\)",
    ),
    "made inside": (lambda x: x + np.arange(3.0), (X,), r"an array made .* is f64\[3\]"),
    "asked for": (lambda x: x.mean(dtype=np.float64), (X,), r"f32\[2,3\] becomes f64 by convert"),
    "of integers": (lambda n: n / 3, (np.arange(3),), r"f64\[3\] is made by"),
    "complex": (lambda x: x * np.complex128(1j), (X,), r"becomes c128"),
    "inside a loop": (inside_a_loop, (X,), r"f32\[\] becomes f64 .*\n.*test_widening.py:\d+ in "),
    "half": (lambda x: x.astype(np.float16) + np.float64(1), (X,), r"f16\[2,3\] becomes f64"),
}
NARROW = {
    "Python numbers": (lambda x, y: (x + y) * 2.5 + 1j, (X, 2.0)),
    "statistics": (lambda x: (x - x.mean()) / x.std() + np.where(x > 0, x, np.nan), (X,)),
    "loops": (lambda x: ge2.lax.fori_loop(0, 3, lambda i, c: np.tanh(c * 2.0), x), (X,)),
    "integers": (lambda n: n * 2 + np.arange(3), (np.arange(3),)),
}


@pytest.mark.parametrize("name", WIDE)
def test_widest_refuses_what_is_wider_by_its_line(name):
    f, args, text = WIDE[name]
    with pytest.raises(WideningError, match=text) as caught:
        ge2.jit(f, widest="float32").trace(*args)
    assert "is to hold nothing wider than float32" in str(caught.value)
    ge2.jit(f).trace(*args)


@pytest.mark.parametrize("name", NARROW)
def test_widest_lets_pass_what_stays_narrow(name):
    f, args = NARROW[name]
    traced = ge2.jit(f, widest=np.float32).trace(*args)
    assert traced.widened == ()


def test_the_cause_is_named_and_its_consequences_are_not():
    (line,) = ge2.jit(gelu).trace(X).widened
    assert line.startswith("f32[2,3] becomes f64 to go with the constant 0.797")
    assert line.endswith("in gelu")
    f = ge2.jit(gelu)
    f(X)
    assert f.report().widened == (line,)
    assert line in str(f.report())


def test_two_causes_are_two_lines():
    def f(x, y):
        z = x + np.float64(1)
        return z, y @ W

    assert len(ge2.jit(f).trace(X, X).widened) == 2


@pytest.mark.parametrize("widest", ["int32", "nonsense", 3, bool])
def test_widest_is_a_floating_dtype(widest):
    with pytest.raises(ge2.errors.ArgumentError, match="is no floating dtype"):
        ge2.jit(gelu, widest=widest)


def test_half_is_a_limit_too():
    with pytest.raises(WideningError, match="x is f32"):
        ge2.jit(gelu, widest="bfloat16").trace(X)


def test_a_report_of_float64_alone_names_no_widening():
    def written(x):
        x[2:5:2] = 0.0
        return np.where(x > 0, x, np.float64(1))

    f = ge2.jit(written)
    f(np.ones(8))
    assert f.report().widened == ()


def test_a_report_has_a_line_for_all_kernels_of_one_text():
    def written(x):
        for i in range(9):
            x[i * i % 10] = i
        return x

    f = ge2.jit(written)
    f(np.ones(10))
    assert len(f.report().kernels) > len(str(f.report()).splitlines())
    assert "times" in str(f.report())
