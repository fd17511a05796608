"""Products whose halves gate each other become two, for a GPU that has a kernel for both; no others."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.compile.rewrites.products import gated_products
from ge2.passes.context import NOTHING, Context
from ge2.targets.cuda.limits import H200
from tests.passes.graphs import alike, names

BF16 = np.dtype(ml_dtypes.bfloat16)
rng = np.random.default_rng(0)
X, W, B = (rng.integers(-3, 4, s).astype(BF16) for s in ((256, 128), (128, 512), (512,)))
ON_H200 = Context(caps=H200)


def products(f, *args, context=ON_H200):
    """The products after the pass, which leaves every bit as it was."""
    found = alike(lambda graph: gated_products(graph, context), f, *args)
    return names(found).count("dot_general")


def gated(h):
    a, b = np.split(h, 2, axis=-1)
    return np.maximum(a, 0) * b


@pytest.mark.parametrize(
    "f",
    [
        lambda x, w, b: gated(x @ w),
        lambda x, w, b: gated(x @ w + b),
        lambda x, w, b: gated(np.maximum((x @ w) * 2 + b, b)),
        lambda x, w, b: (x @ w)[:, 256:] * np.tanh((x @ w)[:, :256]),
        lambda x, w, b: gated(x @ w.T[::-1].T),
        lambda x, w, b: gated((x.reshape(2, 128, 128) @ w) + b),
    ],
)
def test_halves_that_meet(f):
    assert products(lambda *args: (f(*args),), X, W, B) == 2


def test_halves_that_are_results_too():
    def f(x, w):
        a, b = np.split(x @ w, 2, axis=-1)
        return a, a * b

    assert products(f, X, W) == 2


@pytest.mark.parametrize(
    "f",
    [
        lambda x, w: np.split(x @ w, 2, axis=-1),  # which do not meet
        lambda x, w: (lambda h: (gated(h), h))(x @ w),  # the whole is a result,
        lambda x, w: (lambda h: (gated(h), h.sum(-1)))(x @ w),  # or is read
        lambda x, w: (gated(np.concatenate([x @ w, x @ w], -1)),),
        lambda x, w: ((x @ w)[:, :200] * (x @ w)[:, 200:400],),
        lambda x, w: ((x @ w)[:, ::2] * (x @ w)[:, 1::2],),
        lambda x, w: ((x @ w)[:128] * (x @ w)[128:],),
        lambda x, w: ((x @ w)[:, :256] * (x @ w)[:, 256:] * (x @ w)[:, 128:384],),
        lambda x, w: (gated(x.astype("f4") @ w.astype("f4")),),  # no kernel has two of float32
        lambda x, w: (gated(x[:1] @ w),),
    ],
)
def test_what_stays_one_product(f):
    graph = ge2.make_jaxpr(f)(X, W).graph
    assert products(f, X, W) == sum(e.op.name == "dot_general" for e in graph.eqns)


def test_no_gpu_and_no_kernels_for_two():
    def f(x, w):
        return (gated(x @ w),)

    assert products(f, X, W, context=NOTHING) == 1
    with config.using(prefer=("wgmma product and region",)):
        assert products(f, X, W) == 1
