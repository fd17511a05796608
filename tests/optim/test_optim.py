"""Optimisers against the published recurrences, written here once more in float64 over 200 steps."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import dataclass
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2 import nn, optim
from ge2.base.config import config
from ge2.base.errors import ArgumentError
from tests.fake_cupy import stand_in

BF16 = np.dtype(ml_dtypes.bfloat16)
STEPS = 200
START = {
    "w": np.random.default_rng(0).normal(size=(4, 3)),
    "b": np.random.default_rng(1).normal(size=3),
}


def gradient(params, t):
    """Of a bowl that is steeper in some directions, and shakes."""
    return {
        name: (1 + np.arange(p.size).reshape(p.shape)) * 0.3 * (p - 1) + math.sin(t) * 0.5
        for name, p in params.items()
    }


# ------------------------------------------------------------------------------------- recurrences
# Each is a generator's body as a class: called with g, p and the step, it gives the next p.


class Sgd:
    def __init__(self, momentum=0.0, nesterov=False, decay=0.0):
        self.b, self.nesterov, self.decay, self.buffer = momentum, nesterov, decay, None

    def __call__(self, g, p, t, rate):
        g = g + self.decay * p
        if self.b:
            self.buffer = g if self.buffer is None else self.b * self.buffer + g
            g = g + self.b * self.buffer if self.nesterov else self.buffer
        return p - rate * g


class Adam:
    def __init__(self, b1=0.9, b2=0.999, eps=1e-8, coupled=0.0, decay=0.0, trust=False):
        self.b1, self.b2, self.eps, self.coupled, self.decay = b1, b2, eps, coupled, decay
        self.trust, self.m, self.v = trust, 0.0, 0.0

    def __call__(self, g, p, t, rate):
        g = g + self.coupled * p
        self.m = self.b1 * self.m + (1 - self.b1) * g
        self.v = self.b2 * self.v + (1 - self.b2) * g**2
        by = (self.m / (1 - self.b1**t)) / (np.sqrt(self.v / (1 - self.b2**t)) + self.eps)
        if self.trust:
            by = by + self.decay * p
            return p - rate * np.linalg.norm(p) / np.linalg.norm(by) * by
        return p * (1 - rate * self.decay) - rate * by


class Adagrad:
    sum = 0.0

    def __call__(self, g, p, t, rate):
        self.sum = self.sum + g**2
        return p - rate * g / (np.sqrt(self.sum) + 1e-10)


class RmsProp:
    def __init__(self, momentum, centered):
        self.b, self.centered, self.square, self.mean, self.buffer = (
            momentum,
            centered,
            0.0,
            0.0,
            0.0,
        )

    def __call__(self, g, p, t, rate):
        self.square = 0.99 * self.square + 0.01 * g * g
        self.mean = 0.99 * self.mean + 0.01 * g
        spread = self.square - self.mean**2 if self.centered else self.square
        self.buffer = self.b * self.buffer + g / (np.sqrt(spread) + 1e-8)
        return p - rate * self.buffer


class Lion:
    m = 0.0

    def __call__(self, g, p, t, rate):
        by = np.sign(0.9 * self.m + 0.1 * g)
        self.m = 0.99 * self.m + 0.01 * g
        return p * (1 - rate * 0.02) - rate * by


class Adafactor:
    rows = columns = v = 0.0

    def __call__(self, g, p, t, rate):
        new = t**-0.8
        alpha = max(1e-3, np.sqrt((p**2).mean())) * min(rate, 1 / math.sqrt(t))
        eps = np.finfo(np.float64).eps
        if p.ndim == 2:
            self.rows = self.rows + new * ((g**2).mean(1) - self.rows)
            self.columns = self.columns + new * ((g**2).mean(0) - self.columns)
            v = np.outer(self.rows, self.columns) / max(self.rows.mean(), eps)
        else:
            v = self.v = self.v + new * (g**2 - self.v)
        by = g / np.sqrt(np.maximum(v, eps**2))
        return p - alpha * by / max(1, np.sqrt((by**2).mean()))


class Muon:
    m = 0.0

    def __init__(self):
        self.other = Adam(decay=0.01)

    def __call__(self, g, p, t, rate):
        if p.ndim < 2:
            return self.other(g, p, t, rate)
        self.m = self.m + 0.05 * (g - self.m)
        x = (g + 0.95 * (self.m - g)).T  # more rows than columns
        x = x / np.linalg.norm(x)
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        return p * (1 - rate * 0.1) - rate * math.sqrt(max(1, p.shape[0] / p.shape[1])) * x.T


CASES = {
    "sgd": (optim.sgd(0.05), Sgd, 0.05),
    "momentum": (optim.sgd(0.02, 0.9, decay=0.1), lambda: Sgd(0.9, decay=0.1), 0.02),
    "nesterov": (optim.sgd(0.02, 0.9, nesterov=True), lambda: Sgd(0.9, True), 0.02),
    "adam": (optim.adam(0.01), Adam, 0.01),
    "adam_coupled": (optim.adam(0.01, 0.8, 0.9, decay=0.1), lambda: Adam(0.8, 0.9, coupled=0.1), 0.01),
    "adamw": (optim.adamw(0.01, decay=0.1), lambda: Adam(decay=0.1), 0.01),
    "lamb": (optim.lamb(0.01, decay=0.1), lambda: Adam(eps=1e-6, decay=0.1, trust=True), 0.01),
    "adagrad": (optim.adagrad(0.1), Adagrad, 0.1),
    "rmsprop": (optim.rmsprop(0.01), lambda: RmsProp(0.0, False), 0.01),
    "centered": (optim.rmsprop(0.01, momentum=0.9, centered=True), lambda: RmsProp(0.9, True), 0.01),
    "lion": (optim.lion(0.01, decay=0.02), Lion, 0.01),
    "adafactor": (optim.adafactor(0.05), Adafactor, 0.05),
    "muon": (optim.muon(0.02), Muon, 0.02),
}  # fmt: skip


def trained(optimizer, params, steps=STEPS, step=None):
    state = optimizer.init(params)
    for t in range(steps):
        grads = {n: g.astype(params[n].dtype) for n, g in gradient(params, t).items()}
        params, state = (step or optimizer.update)(grads, state, params)
    return params, state


@pytest.mark.parametrize("name", CASES)
def test_an_optimiser_is_its_recurrence(name):
    optimizer, recurrence, rate = CASES[name]
    rules = {n: recurrence() for n in START}
    wanted = dict(START)
    for t in range(STEPS):
        grads = gradient(wanted, t)
        wanted = {n: rules[n](grads[n], p, t + 1, rate) for n, p in wanted.items()}
    found, state = trained(optimizer, dict(START))
    for n in START:
        np.testing.assert_allclose(found[n], wanted[n], rtol=1e-9, atol=1e-9)
    assert state.get("first", state)["step"] == STEPS


@pytest.mark.parametrize("name", CASES)
def test_compiled_in_float32_and_bfloat16_it_stays_near(name):
    """States are float32 for both, and are donated."""
    optimizer = CASES[name][0]
    narrow = lambda b: {"w": START["w"].astype("f4"), "b": START["b"].astype(b)}  # noqa: E731
    wanted, _ = trained(optimizer, dict(START), 20)
    with config.using(executor="blocked"):
        step = ge2.jit(lambda g, s, p: optimizer.update(g, s, p), donate_argnums=(1, 2))
        found, state = trained(optimizer, narrow("f4"), 20, step)
        again, _ = trained(optimizer, narrow(BF16), 20, step)
    assert again["b"].dtype == BF16
    assert all(x.dtype == np.float32 for x in ge2.tree.leaves(state) if hasattr(x, "dtype"))
    for n in START:
        bound = 2e-2 if name == "muon" else 2e-4
        np.testing.assert_allclose(found[n], wanted[n], rtol=bound, atol=bound)
    np.testing.assert_allclose(again["b"].astype("f4"), wanted["b"], rtol=0.1, atol=0.1)


def test_states_of_half_types_if_asked_for_and_one_trace_for_all_steps():
    optimizer = optim.adamw(optim.cosine(0.1, 3, 20), dtype=BF16)
    step = ge2.jit(lambda g, s, p: optimizer.update(g, s, p))
    with config.using(executor="blocked"):
        _, state = trained(optimizer, {n: p.astype("f4") for n, p in START.items()}, 4, step)
    assert state["m"]["w"].dtype == BF16
    assert "1 signature" in str(step.cache_report())
    assert type(state["step"]) is int  # known by the host, no array


def test_masks_split_and_errors():
    grads = {n: np.zeros_like(p) for n, p in START.items()}
    for mask in (optim.matrices, {"w": True, "b": False}):
        optimizer = optim.adamw(0.1, decay=0.5, mask=mask)
        found, _ = optimizer.update(grads, optimizer.init(START), START)
        np.testing.assert_allclose(found["w"], START["w"] * 0.95)
        np.testing.assert_array_equal(found["b"], START["b"])
    both = optim.split(optim.matrices, optim.sgd(1.0), optim.sgd(0.0))
    ones = {n: np.ones_like(p) for n, p in START.items()}
    found, state = both.update(ones, both.init(START), START)
    np.testing.assert_allclose(found["w"], START["w"] - 1)
    np.testing.assert_array_equal(found["b"], START["b"])
    assert state == {"first": {"step": 1}, "second": {"step": 1}}
    with pytest.raises(
        ge2.errors.PytreeError, match="params and grads differ at .*key 'b' is only in params"
    ):
        both.update({"w": START["w"]}, both.init(START), START)
    with pytest.raises(
        ge2.errors.InputError, match=r"takes arrays of floats; got int64[^$]*at   test_optim"
    ):
        optim.adam().init({"n": np.arange(3)})


def test_a_model_of_bools_is_a_mask_though_models_can_be_called():
    model = nn.MLP.init(ge2.random.key(0), (3, 4, 2))
    first, last = model.layers
    frozen = ge2.tree.map(lambda _: False, first)
    mask = model.replace(layers=(frozen, ge2.tree.map(lambda _: True, last)))
    ones = ge2.tree.map(np.ones_like, model)
    for optimizer, away in (
        (optim.split(mask, optim.sgd(1.0), optim.sgd(0.0)), 1.0),
        (optim.sgd(1.0, decay=0.5, mask=mask), 1.0 + 0.5 * last.weight),
    ):
        found, _ = optimizer.update(ones, optimizer.init(model), model)
        np.testing.assert_allclose(found.layers[1].weight, last.weight - away, rtol=1e-6)
    weights = ge2.tree.map(lambda p: p.ndim > 1, model)
    optimizer = optim.muon(0.1, mask=weights, others=optim.sgd(1.0))
    found, _ = optimizer.update(ones, optimizer.init(model), model)
    np.testing.assert_array_equal(found.layers[0].bias, first.bias - 1)
    with pytest.raises(
        ge2.errors.InputError, match=r"shape \(2,\)[^$]*try  mask=ge2.optim.matrices"
    ):
        optim.muon(mask=mask).update(ones, optim.muon(mask=mask).init(model), model)


# ---------------------------------------------------------------------------- schedules, gradients


def test_schedules_at_their_corners_traced_and_not():
    for schedule, wanted in (
        (optim.constant(0.3), {0: 0.3, 9: 0.3}),
        (optim.linear(1.0, 0.5, 10), {0: 1.0, 5: 0.75, 10: 0.5, 99: 0.5}),
        (optim.cosine(2.0, 4, 12, end=0.2), {0: 0.0, 2: 1.0, 4: 2.0, 8: 1.1, 12: 0.2, 99: 0.2}),
        (optim.cosine(2.0, 0, 8), {0: 2.0, 4: 1.0, 8: 0.0}),
        (optim.exponential(1.0, 0.5, 10), {0: 1.0, 5: 0.5**0.5, 10: 0.5, 30: 0.125}),
        (optim.step_decay(1.0, 0.1, 3), {0: 1.0, 2: 1.0, 3: 0.1, 8: 0.01}),
    ):
        with config.using(executor="blocked"):
            traced = ge2.jit(lambda t, f=schedule: f(t) * np.ones(2, np.float32))
            for step, value in wanted.items():
                assert schedule(step) == pytest.approx(value, abs=1e-6)
                found = traced(step)
                assert found.dtype == np.float32
                np.testing.assert_allclose(found, value, atol=1e-6)


def test_clipping_by_value_and_by_the_length_of_all():
    grads = {"a": np.array([3.0, 0.0], np.float32), "b": np.array([[-4.0]], BF16)}
    assert optim.global_norm(grads) == 5
    clipped = optim.clip_by_global_norm(grads, 1.0)
    assert clipped["b"].dtype == BF16
    np.testing.assert_allclose(clipped["a"], [0.6, 0])
    same = optim.clip_by_global_norm(grads, 6.0)
    np.testing.assert_array_equal(same["a"], grads["a"])
    zeros = optim.clip_by_global_norm({"a": np.zeros(2)}, 1.0)
    np.testing.assert_array_equal(zeros["a"], 0)
    np.testing.assert_array_equal(optim.clip_by_value(grads, 1.0)["b"].astype("f4"), [[-1.0]])


@pytest.mark.parametrize("compiled", [False, True])
def test_gathered_gradients_are_those_of_the_whole_batch(compiled):
    one, many = optim.sgd(0.1, 0.9), optim.accumulate(optim.sgd(0.1, 0.9), 3)
    step = ge2.jit(many.update) if compiled else many.update
    rng, p = np.random.default_rng(0), {"w": np.ones(2, np.float32)}
    q, state, wanted = p, many.init(p), one.init(p)
    with config.using(executor="blocked"):
        for _ in range(3):
            grads = [{"w": rng.normal(size=2).astype("f4")} for _ in range(3)]
            before = q["w"]
            for i, g in enumerate(grads):
                q, state = step(g, state, q)
                assert (i == 2) != np.array_equal(q["w"], before)
            mean = {"w": sum(g["w"] for g in grads) / 3}
            p, wanted = one.update(mean, wanted, p)
            np.testing.assert_allclose(q["w"], p["w"], rtol=1e-5)


def test_parts_of_a_batch_give_what_the_batch_gives():
    rng = np.random.default_rng(0)
    w, x, y = rng.normal(size=3), rng.normal(size=(8, 3)), rng.normal(size=8)
    f = ge2.value_and_grad(lambda w, x, y: np.mean((x @ w - y) ** 2))
    wanted = f(w, x, y)
    with config.using(executor="blocked"):
        for g in (optim.microbatches(f, 4), ge2.jit(optim.microbatches(f, 2))):
            for a, b in zip(g(w, x, y), wanted, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-12)
    with pytest.raises(ge2.errors.ShapeError, match="3 steps do not divide a batch"):
        optim.microbatches(f, 3)(w, x, y)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_scale_falls_and_leaves_out_what_is_not_finite_and_grows_after_a_while(compiled):
    optimizer = optim.loss_scale(optim.adam(0.1), 8.0, interval=2)
    step = ge2.jit(optimizer.update) if compiled else optimizer.update
    p = {"w": np.ones(2, np.float16)}
    state, scales = optimizer.init(p), []
    with config.using(executor="blocked"):
        for g in (1.0, np.inf, 1.0, 1.0, np.nan, 1.0):
            q, state = step({"w": np.full(2, g * state["scale"], np.float16)}, state, p)
            assert np.isfinite(g) != np.array_equal(q["w"], p["w"])
            assert np.all(np.isfinite(state["inner"]["m"]["w"]))
            p = q
            scales.append(float(state["scale"]))
    assert scales == [8, 4, 4, 8, 4, 4]
    assert p["w"].dtype == np.float16


@pytest.mark.parametrize("bad", [(), (0,), (1,), (1, 2), (2, 3)], ids=str)
def test_a_scale_around_gathered_gradients_drops_those_that_overflow(bad):
    optimizer = optim.loss_scale(optim.accumulate(optim.sgd(1.0), 2), 1.0)
    update = ge2.jit(optimizer.update)
    w = np.zeros(1, np.float32)
    state, finite = optimizer.init(w), 0
    for step in range(6):
        slope = np.full(1, np.inf if step in bad else finite + 1.0, np.float32)
        finite += step not in bad
        w, state = update(slope * state["scale"], state, w)
        assert w == -sum(i + 1.5 for i in range(0, finite - finite % 2, 2))  # means of pairs


def test_optimisers_of_no_parameters():
    for optimizer in (optim.loss_scale(optim.adam(0.1)), optim.accumulate(optim.adam(0.1), 2)):
        params, _ = optimizer.update({}, optimizer.init({}), {})
        assert params == {}


def test_a_scale_counts_steps_alike_compiled_and_not_and_is_one_program():
    """An infinite gradient is left out, and Adam's number of steps goes on in Python."""
    optimizer = optim.loss_scale(optim.adam(0.1))
    found = []
    for update in (optimizer.update, ge2.jit(optimizer.update)):
        p, state = np.ones(2, np.float32), optimizer.init(np.ones(2, np.float32))
        for g in (1.0, np.inf, 1.0):
            p, state = update(np.full(2, g, np.float32), state, p)
        assert type(state["inner"]["step"]) is int
        found.append(p)
    np.testing.assert_allclose(*found, rtol=1e-6)
    assert str(update.cache_report()).startswith("update: 1 signature, 3 calls")


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (lambda: optim.adam("1e-3"), "a rate is a number"),
        (lambda: optim.adam().update(START, START, START), "is a dict of 'step', 'm', 'v'; got"),
        (lambda: optim.adam().update(START, {"step": 0}, START), "got a dict of 'step'"),
        (lambda: optim.sgd(1.0).update({"w": np.ones(3)}, {"step": 0}, {"w": np.ones(1)}), "shape"),
        (lambda: optim.accumulate(optim.sgd(1.0), 0), "steps are counted, 1 or more; got 0"),
        (lambda: optim.microbatches(max, 2.5), "steps are counted, 1 or more; got 2.5"),
        (lambda: optim.microbatches(max, 2)(START, np.ones(4), 2.0), r"got 2.0 \(float\) at \[1\]"),
        (lambda: optim.ema().init({"w": START, "n": 3}), r"ema takes arrays; got 3 \(int\) at \['n'\]"),
        (lambda: optim.global_norm({"n": "a"}), "global_norm takes arrays; got 'a'"),
        (lambda: optim.clip_by_value([1.0], 1.0), "clip_by_value takes arrays; got 1.0"),
        (lambda: optim.matrices([None, 1.0]), "matrices takes arrays; got 1.0"),
    ],
)  # fmt: skip
def test_mistakes_name_what_where_and_a_way_out(f, message):
    with pytest.raises(ge2.errors.Ge2Error, match=message) as found:
        f()
    assert "  at   test_optim.py" in str(found.value)
    assert "  try  " in str(found.value)


def test_the_mean_of_parameters():
    average = optim.ema(0.9)
    p = {"w": np.ones(2, BF16)}
    mean = average.init(p)
    assert mean["w"].dtype == np.float32
    for _ in range(3):
        mean = average.update({"w": np.zeros(2, BF16)}, mean)
    np.testing.assert_allclose(mean["w"], 0.9**3, rtol=1e-6)


@pytest.mark.parametrize("make", [optim.adamw, optim.sgd, optim.lion])
def test_decay_leaves_out_what_no_gradient_moves(make):
    """The running mean and variance of a norm, wherever it is in a container."""
    norm = nn.BatchNorm.init(3).replace(mean=np.full(3, 2.0, np.float32))
    params = {"layers": [nn.Linear.init(ge2.random.key(0), 3, 3), (norm,)]}
    optimizer = make(0.1, decay=0.5)
    zeros = ge2.tree.map(np.zeros_like, params)
    moved, _ = ge2.jit(optimizer.update)(zeros, optimizer.init(params), params)
    after = moved["layers"][1][0]
    np.testing.assert_array_equal(after.mean, norm.mean)
    np.testing.assert_array_equal(after.var, norm.var)
    assert (after.weight < norm.weight).all()
    assert not np.array_equal(moved["layers"][0].weight, params["layers"][0].weight)


def test_a_state_is_made_without_further_copies_of_the_parameters():
    params = {"w": np.ones((256, 256), np.float32), "b": np.ones(512, np.float32)}
    tracemalloc.start()
    try:
        state = optim.adamw().init(params)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert not np.shares_memory(state["m"]["w"], state["v"]["w"])
    of_one = sum(x.nbytes for x in params.values())
    assert 2 * of_one <= most < 2.2 * of_one


@pytest.mark.parametrize(
    ("free", "asked"), [(0, [11 * 512 * 2]), (512, [11 * 512 * 2 - 512]), (1 << 20, [])]
)
def test_the_state_of_a_model_on_a_gpu_is_asked_for_at_once(monkeypatch, free, asked):
    """Of what the pool has no memory for."""
    found = []
    with stand_in(monkeypatch) as cupy:
        monkeypatch.setattr(
            cupy, "get_default_memory_pool", lambda: SimpleNamespace(free_bytes=lambda: free)
        )
        monkeypatch.setattr(cupy, "empty", lambda n, dtype: found.append(n))
        params = {"w": cupy.ones((32, 40), np.float32), "b": cupy.ones(3, np.float32)}
        state = optim.adamw().init(params)
    assert found == asked
    assert state["v"]["w"].shape == (32, 40)
    optim.adamw().init({"w": np.ones(3, np.float32)})
    assert found == asked


def test_states_made_inside_jit_are_apart():
    optimizer, params = optim.adam(), np.ones((3, 2), np.float32)
    state = ge2.jit(optimizer.init)(params)
    assert not np.shares_memory(state["m"], state["v"])
    step = ge2.jit(optimizer.update, donate_argnums=(1,))
    wanted = optimizer.update(params, optimizer.init(params), params)
    np.testing.assert_allclose(step(params, state, params)[0], wanted[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: optim.sgd(-0.1), "rate is 0 or more; got -0.1"),
        (lambda: optim.sgd(math.nan), "rate is 0 or more; got nan"),
        (lambda: optim.sgd(0.1, momentum=-1), "momentum is 0 or more"),
        (lambda: optim.adagrad(0.1, decay=-1), "decay is 0 or more"),
        (lambda: optim.adam(0.1, 1.0), r"b1 is in \[0, 1\); got 1.0"),
        (lambda: optim.adamw(0.1, b2=-0.5), r"b2 is in \[0, 1\)"),
        (lambda: optim.lamb(0.1, b2=2), r"b2 is in \[0, 1\)"),
        (lambda: optim.lion(0.1, 0.9, 1.5), r"b2 is in \[0, 1\)"),
        (lambda: optim.adam(0.1, eps=-1e-8), "eps is 0 or more"),
        (lambda: optim.rmsprop(0.1, smoothing=1.0), r"smoothing is in \[0, 1\)"),
        (lambda: optim.muon(0.1, momentum=1.0), r"momentum is in \[0, 1\)"),
        (lambda: optim.ema(1.0), r"decay is in \[0, 1\)"),
        (lambda: optim.clip_by_global_norm({"w": np.ones(2)}, -1.0), "limit is 0 or more"),
        (lambda: optim.clip_by_value({"w": np.ones(2)}, -1.0), "limit is 0 or more"),
        (lambda: optim.step_decay(1.0, 0.1, 0), "steps are counted"),
        (lambda: optim.exponential(1.0, 0.1, 0), "steps are counted"),
    ],
)
def test_numbers_that_can_serve_nobody_are_refused(make, message):
    with pytest.raises(ArgumentError, match=message) as error:
        make()
    assert "test_optim.py" in str(error.value)


@pytest.mark.parametrize("name", ["adam", "adamw", "lamb", "adafactor"])
def test_what_is_made_of_the_step_is_made_once_for_all_arrays(name: str) -> None:
    raised = []

    @dataclass
    class Steps:
        count: int

        def __add__(self, other: int) -> Steps:
            return Steps(self.count + other)

        def __rpow__(self, base: float) -> float:
            raised.append(base)
            return float(base**self.count)

        def __pow__(self, power: float) -> float:
            raised.append(power)
            return float(self.count**power)

    optimizer = getattr(optim, name)(0.1)
    params = [np.ones((3, 3)) for _ in range(4)]
    state = optimizer.init(params)
    want, _ = optimizer.update(params, state, params)
    found, _ = optimizer.update(params, {**state, "step": Steps(0)}, params)
    np.testing.assert_array_equal(found, want)
    assert len(raised) == 2
