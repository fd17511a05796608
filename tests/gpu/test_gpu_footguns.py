"""What a jit must never do, with arrays of a GPU:
tests/surface/test_footguns.py has the reasons.
"""

from __future__ import annotations

import gc
import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.base.errors import DeviceError
from ge2.base.source import Ge2Warning
from ge2.dispatch import jitted

X = np.array([1.0, 2.0, 3.0])


def same(y: Any, w: Any) -> None:
    np.testing.assert_array_equal(y.get(), w)


def apart(x: Any, y: Any) -> bool:
    """Whether no byte is in both."""
    (a, n), (b, m) = ((z.data.ptr, z.nbytes) for z in (x, y))
    return bool(a + n <= b or b + m <= a)


@pytest.mark.parametrize("donated", [None, 0])
def test_a_returned_input_is_a_copy_of_its_own(cp: Any, donated: Any) -> None:
    f = ge2.jit(lambda x: x, donate_argnums=donated)
    y, z = f(cp.asarray(X)), f(cp.asarray(X))
    same(y, X)
    y[...] = 0
    same(z, X)
    x = cp.asarray(X)
    made = ge2.jit(lambda x: (x, x, x[1:], x.reshape(3, 1)))(x)
    for a, b in itertools.combinations((*made, x), 2):
        assert apart(a, b)


def test_the_same_array_passed_twice_and_donated(cp: Any) -> None:
    f = ge2.jit(lambda x, y: (x * 2, x + y), donate_argnums=(0, 1))
    x = cp.asarray(X)
    with pytest.warns(Ge2Warning, match="was not donated: it overlaps another argument"):
        a, b = f(x, x)
    same(a, 2 * X)
    same(b, 2 * X)
    same(x, X)
    both = cp.asarray(np.concatenate([X, X]))
    with pytest.warns(Ge2Warning, match="was not donated: it is a view"):
        a, b = f(both[:3], both[3:])
    same(b, 2 * X)
    same(both, np.concatenate([X, X]))


def test_no_argument_is_written(cp: Any) -> None:
    def f(x: Any, y: Any) -> Any:
        z = x.copy()
        z[0] = 9
        w = y + 0
        w += x
        return z, w, np.sort(y)[::-1], np.cumsum(x)

    x, y = cp.asarray(X), cp.asarray(X[::-1].copy())
    for found, wanted in zip(ge2.jit(f)(x, y), f(X, X[::-1].copy()), strict=True):
        same(found, wanted)
    same(x, X)
    same(y, X[::-1])


@pytest.mark.parametrize("size", [8, 1 << 18])
def test_results_stay_what_they_were(cp: Any, size: int) -> None:
    """Also those of which only a view is held, and however a program is launched by then."""
    f = ge2.jit(lambda x: (x + 1, np.cumsum(x), np.sort(x), x.sum()))
    first = f(cp.zeros(size))[0]
    view = f(cp.full(size, 1.0))[0][::2]
    for k in range(8):
        f(cp.full(size, 10.0 + k))
    assert (float(first[0]), float(view[0])) == (1.0, 2.0)
    assert (float(first[-1]), float(view[-1])) == (1.0, 2.0)


def test_a_donation_inside_a_jitted_function_takes_nothing(cp: Any) -> None:
    inner = ge2.jit(lambda x: x * 2, donate_argnums=0)
    x = cp.asarray(X)
    same(ge2.jit(lambda x: inner(x) + x)(x), 3 * X)
    same(x, X)


def test_a_nested_jitted_function_sees_what_changes(cp: Any) -> None:
    weights, scale = cp.ones(3), 2.0
    inner = ge2.jit(lambda x: x * weights * scale)
    outer = ge2.jit(lambda x: inner(x) + inner(x + 1))
    x = cp.asarray(X)
    same(outer(x), 4 * X + 2)
    weights[...] = 3.0
    same(outer(x), 3 * (4 * X + 2))
    scale = 1.0
    same(outer(x), 3 * (2 * X + 1))
    same(inner(x), 3 * X)


def test_weights_that_are_replaced_are_no_stale_ones(cp: Any) -> None:
    model = {"w": cp.ones(3)}
    f = ge2.jit(lambda x: (x * model["w"]).sum())
    x = cp.asarray(X)
    assert float(f(x)) == 6.0
    model["w"] = cp.full(3, 2.0)
    assert float(f(x)) == 12.0
    model["w"][...] = 3.0
    assert float(f(x)) == 18.0


def test_a_changed_number_is_no_new_trace(cp: Any) -> None:
    f, x = ge2.jit(lambda x, k: x * k), cp.asarray(X)
    for k in range(20):
        same(f(x, float(k)), X * k)
    assert len(f.cache_report().entries) == 1


def test_a_failed_call_leaves_the_next_one_right(cp: Any) -> None:
    f = ge2.jit(lambda x: x * 2 + 1)
    same(f(cp.asarray(X)), 2 * X + 1)
    for wrong in ("text", object()):
        with pytest.raises((ge2.errors.InputError, TypeError)):
            f(wrong)
    same(f(cp.asarray(X)), 2 * X + 1)


def test_shapes_are_remembered_up_to_a_limit(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """New sizes compile nothing, and old signatures go."""
    monkeypatch.setattr(jitted, "TRACES", 64)
    with config.using(check=False):
        f = ge2.jit(lambda x: x + 1)
        for n in range(10, 100):
            assert float(f(cp.zeros(n))[-1]) == 1.0
        assert len(f.cache_report().entries) == 64
    del f
    gc.collect()


def test_what_splits_a_program_is_told(cp: Any) -> None:
    def f(x: Any) -> Any:
        y = ge2.pure_callback(lambda a: a + 1, ge2.ShapeDtypeStruct(x.shape, x.dtype), x * 2)
        return (y * 3).sum()

    g = ge2.jit(f)
    assert g(cp.ones(100)).get() == 900
    before, between, after = g.report().launches
    assert before.startswith("launches_0: ") and after.startswith("launches_1: ")
    assert between.startswith("pure_callback, which the host computes, at ")
    assert "test_gpu_footguns.py:" in between


def test_why_the_host_launches_rounds_is_told(cp: Any) -> None:
    def sorted_rows(x: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            return carry + row, np.sort(row.astype(np.complex64))

        return ge2.lax.scan(step, x[0], x)

    g = ge2.jit(sorted_rows)
    g(cp.ones((3, 4), np.float32))
    (told,) = [words for words in g.report().launches if words.startswith("scan")]
    assert told.startswith("scan, whose iterations the host launches (sort, which ")
    assert "test_gpu_footguns.py:" in told and told.endswith(" in sorted_rows")


def test_a_result_of_fp8_is_refused(cp: Any) -> None:
    def small(x: Any) -> Any:
        return x, x.astype(ml_dtypes.float8_e4m3fn)

    with pytest.raises(
        DeviceError, match=r"result 1 of small is f8_e4m3fn\[3\].*\n.*test_gpu_foot.*\n.*float16"
    ):
        ge2.jit(small)(cp.ones(3, np.float32))
    found = ge2.jit(lambda x: small(x)[1].astype(np.float32))(cp.full(3, 1.03, np.float32))
    assert found.get().tolist() == [1.0] * 3
