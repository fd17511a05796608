"""The training step through ge2 and the step by hand are the same computation."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import ge2
from ge2.cli import demo as digits
from ge2.cli.demo import BATCH, State

STEPS = 15


@pytest.fixture(scope="module")
def data():
    return digits.load()


def test_the_data_are_whole_scaled_and_stratified(data):
    assert (len(data.train_x), len(data.test_x)) == (1437, 360)
    assert data.train_x.dtype == data.test_x.dtype == np.float32
    assert (data.train_x.min(), data.train_x.max()) == (0, 1)
    assert len(data.train_x) % BATCH  # so the last batch is smaller
    shares = [np.bincount(y, minlength=10) / len(y) for y in (data.train_y, data.test_y)]
    np.testing.assert_allclose(*shares, atol=0.005)


def test_every_epoch_sees_each_image_once_in_a_new_order(data):
    rng = np.random.default_rng(0)
    first, second = [list(digits.batches(data.train_x, data.train_y, rng)) for _ in range(2)]
    assert [len(x) for x, _ in first] == [BATCH] * 11 + [29]
    for epoch in (first, second):
        seen = np.concatenate([x for x, _ in epoch])
        np.testing.assert_array_equal(np.sort(seen.sum(axis=1)), np.sort(data.train_x.sum(axis=1)))
    assert not np.array_equal(first[0][0], second[0][0])


def steps_of(step, data, dtype=np.float32) -> tuple[State, list[float]]:
    state = digits.start()
    state = State(
        *[ge2.tree.map(lambda p: p.astype(dtype), part) for part in state[:3]], state.steps
    )
    losses = []
    for i, (x, y) in enumerate(
        digits.batches(data.train_x, data.train_y, np.random.default_rng(0))
    ):
        if i == STEPS:
            break
        state, loss = step(state, x.astype(dtype), y)
        losses.append(float(loss))
    return state, losses


def off(state: State, exact: State) -> float:
    pairs = zip(ge2.tree.leaves(state.params), ge2.tree.leaves(exact.params), strict=True)
    return max(float(np.abs(p - q).max()) for p, q in pairs)


def test_in_float64_both_give_the_same_parameters(data):
    state, losses = steps_of(ge2.jit(digits.train_step), data, np.float64)
    by_hand, losses_by_hand = steps_of(digits.step_by_hand, data, np.float64)
    np.testing.assert_allclose(losses, losses_by_hand, rtol=1e-11)
    assert off(state, by_hand) < 1e-10


def test_in_float32_both_are_as_near_to_the_exact_parameters(data):
    """Adam divides by the size of a gradient, so the rounding of tiny ones
    shows, by hand as in ge2.
    """
    exact, _ = steps_of(digits.step_by_hand, data, np.float64)
    state, losses = steps_of(ge2.jit(digits.train_step), data)
    by_hand, losses_by_hand = steps_of(digits.step_by_hand, data)
    np.testing.assert_allclose(losses, losses_by_hand, rtol=1e-5)
    assert off(state, exact) < 2 * off(by_hand, exact)


def test_a_step_keeps_float32_and_counts(data):
    x, y = data.train_x[:BATCH], data.train_y[:BATCH]
    state, loss = ge2.jit(digits.train_step)(digits.start(), x, y)
    assert {leaf.dtype for leaf in ge2.tree.leaves(state[:3])} == {np.dtype(np.float32)}
    assert loss.dtype == np.float32
    assert state.steps == 1
    assert type(state.steps) is int


def test_a_step_leaves_its_arguments_alone(data):
    state = digits.start()
    before = copy.deepcopy(state)
    ge2.jit(digits.train_step)(state, data.train_x[:BATCH], data.train_y[:BATCH])
    for p, q in zip(ge2.tree.leaves(state), ge2.tree.leaves(before), strict=True):
        np.testing.assert_array_equal(p, q)


def test_the_derivative_by_hand_is_right(data):
    """Against differences, so that the yardstick does not lean on what it measures."""
    params = ge2.tree.map(lambda p: p.astype(np.float64), digits.start().params)
    x, y = data.train_x[:8].astype(np.float64), data.train_y[:8]
    _, grads = digits.loss_and_grads_by_hand(params, x, y)
    rng = np.random.default_rng(0)
    direction = ge2.tree.map(lambda p: rng.standard_normal(p.shape), params)
    along = sum(ge2.tree.leaves(ge2.tree.map(lambda g, d: (g * d).sum(), grads, direction)))
    ahead, behind = [
        digits.cross_entropy(ge2.tree.map(lambda p, d, s=s: p + s * d, params, direction), x, y)
        for s in (1e-6, -1e-6)
    ]
    np.testing.assert_allclose((ahead - behind) / 2e-6, along, rtol=1e-5)
