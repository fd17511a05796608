"""Which kernels plain NumPy code becomes in C, and that they compute what it says."""

from __future__ import annotations

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from tests.kernels.made_cases import softmax

RNG = np.random.default_rng(0)


def array(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


X, W, B, T = array(37, 100), array(100), array(100), array(37, 100)
CUBE = array(6, 50, 20)


def log_softmax(x):
    s = x - x.max(-1, keepdims=True)
    return s - np.log(np.exp(s).sum(-1, keepdims=True))


def layer_norm(x, w, b):
    m = x.mean(-1, keepdims=True)
    v = ((x - m) ** 2).mean(-1, keepdims=True)
    return (x - m) / np.sqrt(v + 1e-5) * w + b


def rms_norm(x, w):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w


def cross_entropy(x, t):
    return -(log_softmax(x) * t).sum(-1).mean()


def siblings(x):
    return x.sum(), x.max(), (x * x).sum(), np.abs(x).min()


def squares(f):
    return lambda *args: (f(*args) ** 2).sum()


# what, arguments, the kinds of the kernels it may become
KINDS = {
    "softmax": (softmax, (X,), ["rowwise"]),
    "log-softmax": (log_softmax, (X,), ["rowwise"]),
    "layer norm": (layer_norm, (X, W, B), ["rowwise"]),
    "rms norm": (rms_norm, (X, W), ["rowwise"]),
    "cross-entropy": (cross_entropy, (X, T), ["rowwise"]),
    "gradient of softmax": (ge2.grad(squares(softmax)), (X,), ["rowwise"]),
    "gradient of log-softmax": (ge2.grad(squares(log_softmax)), (X,), ["rowwise"]),
    "gradient of layer norm": (ge2.grad(squares(layer_norm), (0, 1, 2)), (X, W, B), ["rowwise"]),
    "gradient of rms norm": (ge2.grad(squares(rms_norm), (0, 1)), (X, W), ["rowwise"]),
    "cross-entropy with its gradient": (ge2.value_and_grad(cross_entropy), (X, T), ["rowwise"]),
    "whole": (lambda x: np.tanh(x).sum(), (X,), ["reduce"]),
    "leading": (lambda x: (x * 2).sum(0), (X,), ["reduce"]),
    "trailing": (lambda x: np.exp(x).max(1), (X,), ["reduce"]),
    "middle": (lambda x: np.abs(x).sum(1), (CUBE,), ["reduce"]),
    "outer and inner": (lambda x: (x + 1).sum((0, 2)), (CUBE,), ["reduce"]),
    "with its consumer": (
        lambda x: x / np.sqrt((x * x).sum(1, keepdims=True)),
        (CUBE,),
        ["rowwise"],
    ),
    "siblings": (siblings, (X,), ["reduce"]),
    "several outputs": (lambda x: (np.sin(x), np.cos(x), x + 1), (X,), ["pointwise"]),
    "transpose": (lambda x: x.T * 2 + 1, (X,), ["pointwise"]),
    "views": (lambda x: x[1:, ::2] + x[:-1, 1::2][:, ::-1], (X,), ["pointwise"]),
    "standardised columns": (lambda x: (x - x.mean(0)) / x.std(0), (X,), ["rowwise"]),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", KINDS)
def test_plain_code_becomes_these_kernels(name: str) -> None:
    f, args, kinds = KINDS[name]
    g = ge2.jit(f)
    with config.using(executor="c"):
        low = g.lower(*args)
        got = g(*args)
    assert [k.kind for k in low.kernels] == kinds
    assert low.executable.op_by_op == 0
    with config.using(executor="reference"):
        want = ge2.jit(f)(*args)
    for y, w in zip(flat(got), flat(want), strict=True):
        assert y.dtype == w.dtype
        np.testing.assert_allclose(y, w, rtol=2e-5, atol=2e-5 * max(np.abs(w).max(), 1e-3))


def flat(y):
    return list(ge2.tree.leaves(y))


def test_an_array_that_is_read_across_is_walked_in_tiles() -> None:
    (kernel,) = ge2.jit(lambda x: x.T + 1).lower(array(64, 80)).kernels
    assert "_width" in str(kernel)
