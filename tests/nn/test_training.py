"""A training step of modules, mixed precision and an optimiser, on arrays of NumPy's and CuPy's."""

from __future__ import annotations

import numpy as np

import ge2
from ge2 import nn, optim
from ge2.base.config import config
from tests.fake_cupy import stand_in

X = np.random.default_rng(0).normal(size=(16, 6)).astype("f4")
LABELS = np.arange(16) % 3
OPTIMIZER = optim.adamw(optim.cosine(0.1, 2, 30), mask=optim.matrices)


def make():
    return nn.MLP.init(ge2.random.key(0), (6, 8, 3))


def step(model, state, x, labels):
    loss = ge2.autocast(lambda model: nn.cross_entropy(model(x), labels))
    value, grads = ge2.value_and_grad(loss)(model)
    model, state = OPTIMIZER.update(optim.clip_by_global_norm(grads, 1.0), state, model)
    return model, state, value


def losses(f, model, steps, *batch):
    state, found = OPTIMIZER.init(model), []
    for _ in range(steps):
        model, state, value = f(model, state, *batch)
        found.append(float(value))
    return found


def test_a_model_learns_the_same_compiled_and_as_plain_numpy():
    wanted = losses(step, make(), 4, X, LABELS)
    with config.using(executor="blocked"):
        found = losses(ge2.jit(step, donate_argnums=(0, 1)), make(), 30, X, LABELS)
    np.testing.assert_allclose(found[:4], wanted, rtol=0.01)
    assert found[-1] < 0.5 * found[0]


def test_it_trains_where_its_arrays_are(monkeypatch):
    wanted = losses(step, make(), 3, X, LABELS)
    with stand_in(monkeypatch) as cupy:
        model, x, labels = ge2.tree.map(cupy.asarray, (make(), X, LABELS))
        found = losses(ge2.jit(step, donate_argnums=(0, 1)), model, 3, x, labels)
    np.testing.assert_allclose(found, wanted, rtol=1e-3)
