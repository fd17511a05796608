"""CuPy's arrays in, CuPy's arrays out: the functions of the CPU, unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.backends.cuda.device import cupy
from ge2.base.errors import DeviceError


@pytest.fixture
def cp() -> Any:
    return cupy()


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def close(y: Any, w: Any) -> None:
    assert type(y).__module__.startswith("cupy")
    assert y.dtype == w.dtype and y.shape == w.shape
    np.testing.assert_allclose(y.get(), w, rtol=2e-6, atol=1e-6)


def test_a_jitted_function(cp: Any, rng: np.random.Generator) -> None:
    x = rng.standard_normal((33, 70), np.float32)
    close(ge2.jit(softmax)(cp.asarray(x)), softmax(x))


def test_a_derivative_of_three_arguments(cp: Any, rng: np.random.Generator) -> None:
    x, w, b = (rng.standard_normal(s, np.float32) for s in ((20, 30), (30, 10), (10,)))

    def loss(x: Any, w: Any, b: Any) -> Any:
        return (np.tanh(x @ w + b) ** 2).sum()

    for f in (ge2.grad(loss, (0, 1, 2)), ge2.jit(ge2.grad(loss, (0, 1, 2)))):
        for y, want in zip(f(*map(cp.asarray, (x, w, b))), ge2.grad(loss, (0, 1, 2))(x, w, b), strict=True):
            close(y, want)


def test_arrays_made_inside_and_closed_over(cp: Any) -> None:
    table = cp.arange(5, dtype=np.float32)
    f = ge2.jit(lambda x: x * table + np.arange(5, dtype=np.float32) + 1)
    y = f(cp.ones(5, np.float32))
    assert y.get().tolist() == [1.0, 3.0, 5.0, 7.0, 9.0]
    table[:] = 0
    assert f(cp.ones(5, np.float32)).get().tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_any_strides_and_offsets(cp: Any, rng: np.random.Generator) -> None:
    x = rng.standard_normal((20, 31), np.float32)
    y = cp.asarray(x)
    f = ge2.jit(lambda x: x * 2 + 1)
    for cut in (np.s_[:, ::-1], np.s_[1:, 1:], np.s_[::3, 2::5], np.s_[5]):
        close(f(y[cut]), x[cut] * 2 + 1)
    close(f(y.T), x.T * 2 + 1)


def test_numbers_and_scalars(cp: Any) -> None:
    f = ge2.jit(lambda x, lr: x - lr * x)
    close(f(cp.ones(3, np.float32), 0.5), np.full(3, 0.5, np.float32))
    close(f(cp.ones(3, np.float32), np.float32(0.25)), np.full(3, 0.75, np.float32))


def test_mixing_is_an_error_that_names_both(cp: Any) -> None:
    with pytest.raises(DeviceError, match=r"(?s)a on GPU 0 and b on the CPU.*cupy.asarray"):
        ge2.jit(lambda a, b: a + b)(cp.ones(3), np.ones(3))


def test_a_loop_and_a_branch(cp: Any, rng: np.random.Generator) -> None:
    x = rng.standard_normal((7, 5), np.float32)

    def run(x: Any) -> Any:
        total, rows = ge2.lax.scan(lambda h, v: (h * 0.5 + v, h), np.zeros(5, np.float32), x)
        return ge2.lax.cond(total.sum() > 0, lambda: rows * 2, lambda: rows)

    close(ge2.jit(run)(cp.asarray(x)), ge2.jit(run)(x))


def test_arrays_of_torch_and_jax(cp: Any) -> None:
    torch = pytest.importorskip("torch")
    y = ge2.jit(lambda x: x * 2)(torch.ones(3, device="cuda"))
    assert isinstance(y, cp.ndarray) and y.get().tolist() == [2.0, 2.0, 2.0]


def test_the_current_stream(cp: Any) -> None:
    f = ge2.jit(lambda x: x * 2 + 1)
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        y = f(cp.ones(1 << 20, np.float32))
    stream.synchronize()
    assert float(y.sum()) == 3 * (1 << 20)


def test_a_result_is_the_callers(cp: Any) -> None:
    f = ge2.jit(lambda x: (x, x * 1))
    x = cp.ones(4, np.float32)
    a, b = f(x)
    a[0] = 5
    assert float(x[0]) == 1 and float(b[0]) == 1


def test_large_arrays_have_wide_places(cp: Any) -> None:
    """More than 2^31 elements."""
    n = (1 << 31) + 5
    x = cp.zeros(n, np.int8)
    x[-1] = 3
    assert int(ge2.jit(lambda x: x + np.int8(1))(x)[-1]) == 4
    assert int(ge2.jit(lambda x: x.max())(x)) == 3
