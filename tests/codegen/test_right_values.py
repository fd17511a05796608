"""Values at the edges of types: half types cast and tested, signs of zeros,
powers, indices that change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2.base.config import config
from tests.together import needs_compiler

EXECUTORS = ("c", "blocked", "shim")
HALVES = {
    np.float16: (2047.0, 300, -300, 1e-4, 65504, 1.1, 0.3333),
    ml_dtypes.bfloat16: (2047.0, 300, 1.1, 0.3333, 3e38, 1e-3, 7),
}
LEAVING: tuple[Callable[[Any, Any], Any], ...] = (  # of x and its type: each a cast, or a test
    lambda x, t: (x + t(0.25)).astype(np.float64),
    lambda x, t: (x + t(0.25)).astype(np.float32),
    lambda x, t: (x * t(1.1)).astype(np.int32),
    lambda x, t: (x * t(1.1)).astype(ml_dtypes.bfloat16 if t is np.float16 else np.float16),
    lambda x, t: (x * t(1e-4) * t(1e-4) * t(1e-4)).astype(bool),
    lambda x, t: np.isinf(x * x),
    lambda x, t: np.isfinite(x * x),
    lambda x, t: x + t(0.25) < x + t(0.26),
    lambda x, t: x + t(0.001) == x,
    lambda x, t: np.logical_and(x * t(1e-5), x),
    lambda x, t: np.argmax(x + t(1000)),
    lambda x, t: np.floor(x * t(3)),
    lambda x, t: np.rint(x * t(1.5)),
    lambda x, t: x * t(1.1) % t(1),
    lambda x, t: x * t(1.1) + np.arange(7, dtype=np.float32),
    lambda x, t: (x * t(1.1)).sum(dtype=np.float64),
)


@pytest.mark.exhaustive("executor")
@needs_compiler
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("dtype", HALVES, ids=lambda t: t.__name__)
def test_a_cast_or_a_test_of_a_half_type_is_a_store(dtype: Any, executor: str) -> None:
    x = np.array(HALVES[dtype], dtype)
    with np.errstate(all="ignore"):
        wanted = [f(x, dtype) for f in LEAVING]
    with config.using(executor=executor):
        found = ge2.jit(lambda x: [f(x, dtype) for f in LEAVING])(x)
    for i, (y, z) in enumerate(zip(found, wanted, strict=True)):
        np.testing.assert_array_equal(
            np.asarray(y, complex), np.asarray(z, complex), err_msg=f"case {i}"
        )


@needs_compiler
def test_no_cast_of_an_integer_is_minus_zero() -> None:
    types = [(i, f) for i in ("i1", "i4", "i8", "u4", "u8") for f in ("f2", "f4", "f8", "c8")]
    for dtype in ("f2", "f4", "f8"):
        f = ge2.jit(lambda x: [1 / x.astype(i).astype(f).real for i, f in types])
        for y in f(np.full(17, -0.5, dtype)):
            np.testing.assert_array_equal(y, np.inf)


@needs_compiler
@pytest.mark.parametrize("executor", ["c", "blocked"])
@pytest.mark.parametrize("many", [1, 100_000])
def test_a_negative_power_of_integers_is_an_error(executor: str, many: int) -> None:
    a, b = (np.tile(np.array(x, np.int32), many) for x in ([2, 3, -1], [2, 1, 3]))
    f = ge2.jit(lambda a, b: (a**b, (2**b).sum() + 1))
    with config.using(executor=executor):
        np.testing.assert_array_equal(f(a, b)[0], a**b)
        b[-1] = -1
        with pytest.raises(
            ValueError, match="Integers to negative integer powers are not allowed"
        ) as caught:
            f(a, b)
        text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
        assert text.endswith("in <lambda>\n  try  x.astype(float) ** n")
        b[-1] = 0
        assert f(a, b)[1] == (2**b).sum() + 1


def test_a_negative_power_of_integers_rounds_towards_zero_on_a_gpu() -> None:
    a, b = np.array([2, 1, -1, 0]), np.array([-1, -2, -3, -1])
    with config.using(executor="shim"):
        np.testing.assert_array_equal(ge2.jit(lambda a, b: a**b)(a, b), [0, 1, -1, 0])


@needs_compiler
def test_an_index_is_read_once_from_its_array() -> None:
    """Each kernel looks at all indices, then reads each by the function that
    reads once and stays inside.
    """
    x, at = np.arange(12.0).reshape(4, 3), np.array([[2], [-1]])

    def f(x: Any, at: Any) -> Any:
        y = x * 1
        y[at[:, 0]] = 7.0
        return x[at, at], np.take_along_axis(x, at, 0), y

    text = ge2.jit(f).lower(x, at).compile().as_text("c")
    body = text[text.rindex("#include") :]
    reads = body.replace("ge2_index_read_i64(index", "").replace("*index", "").replace("(index", "")
    assert "ge2_index_read_i64(index" in body and "index0[" not in reads and "index1[" not in reads


def first(x: Any, at: Any) -> Any:
    return np.log(x[at])


def second(x: Any, at: Any) -> Any:
    return np.log(x[at])


@needs_compiler
def test_errors_name_the_lines_of_the_caller_where_graphs_are_equal() -> None:
    """Code belongs to the graph, names and lines to who calls it."""
    x, at = np.arange(1.0, 5), np.array([1, 2])
    for f in (first, second):
        jitted = ge2.jit(f)
        jitted(x, at)
        with pytest.raises(IndexError, match=f"in {f.__name__}$"):
            jitted(x, at + 9)
        with (
            ge2.debug_nans(),
            pytest.raises(
                ge2.errors.NonFiniteError, match=f"(?s)in {f.__name__} .*in {f.__name__}"
            ),
        ):
            jitted(-x, at)
