"""The sine and the cosine of one angle, which a kernel on CUDA makes together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from tests.together import needs_compiler

Both = Callable[..., Any]


def elements(x: Any, y: Any) -> Any:
    return np.sin(x) * y + np.cos(x), np.cos(x)


def folded(x: Any, y: Any) -> Any:
    """Of the sine a thread keeps several, which are read again after the sums: it is made by itself."""
    s = np.sin(x)
    return s / (1 + (np.cos(x) * y).sum(-1, keepdims=True))


def down(x: Any, y: Any) -> Any:
    return (np.cos(x) + np.sin(x) * y).sum(0)


def of_rows(x: Any, y: Any) -> Any:
    """An angle of each row."""
    z = x[:, :1]
    return np.sin(z) * y, np.cos(z) * x


def in_turns(x: Any, y: Any) -> Any:
    return np.cos(x) * np.sin(y) - np.sin(x) * np.cos(y)


def apart(x: Any, y: Any) -> Any:
    return np.sin(x) + np.cos(y)


@needs_compiler
@pytest.mark.exhaustive("f", "dtype", "shape", table="sines with their cosines")
@pytest.mark.parametrize("f", [elements, folded, down, of_rows, in_turns])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16], ids=str)
@pytest.mark.parametrize("shape", [(37, 64), (5, 7)], ids=str)
def test_they_are_made_together(f: Both, dtype: Any, shape: Any, rng: np.random.Generator) -> None:
    x, y = (rng.normal(scale=20.0, size=shape).astype(dtype) for _ in "xy")
    with config.using(executor="shim"):
        jitted = ge2.jit(f)
        found, text = jitted(x, y), jitted.lower(x, y).as_text("cuda")
    near = {np.float32: 1e-5, np.float64: 1e-13, np.float16: 1e-2}[dtype]
    with np.errstate(all="ignore"):
        wanted = f(x, y)
    for a, b in zip(*(v if isinstance(v, tuple) else (v,) for v in (found, wanted)), strict=True):
        np.testing.assert_allclose(np.float64(a), np.float64(b), rtol=near, atol=near * 8)
    assert ("ge2_sincos_f" in text) == (f is not folded)
    assert text.count("_sincos.sin") == text.count("_sincos.cos") == text.count("ge2_sincos_f")


@needs_compiler
def test_of_angles_that_differ_they_are_made_apart() -> None:
    with config.using(executor="shim"):
        text = ge2.jit(apart).lower(*np.ones((2, 3, 4), np.float32)).as_text("cuda")
    assert "ge2_sin_f32(" in text and "ge2_cos_f32(" in text and "ge2_sincos" not in text
