"""What is timed is right: the baselines by hand equal the reference, and a
candidate that errs is found.
"""

from __future__ import annotations

import numpy as np
import pytest

import ge2
from benchmarks import digits, fused, rowwise, several, watched
from benchmarks.fresh import fresh
from benchmarks.options import Options
from benchmarks.ran import executor_of, remarks
from benchmarks.regions import REGIONS, arguments, chain
from benchmarks.work import Draw, Work, agree, candidates, derived, layout_of, leaves

WORKS = {**rowwise.works(), **several.WORKS, **watched.WORKS, **fused.WORKS}


def wide(a):
    return a.astype(np.float64) if a.dtype == np.float32 else a


@pytest.mark.parametrize("name", [name for name, work in WORKS.items() if work.by_hand])
def test_by_hand_is_the_reference(name):
    """In float64, so that a wrong term shows."""
    work = WORKS[name]
    given = [wide(a) for a in work.arguments(Draw(quick=True))]
    before = [a.copy() for a in given]
    by_hand = leaves(work.by_hand(*given))
    with ge2.config.using(executor="reference"):
        reference = leaves(ge2.jit(derived(ge2, work, np))(*given))
    for hand, y in zip(by_hand, reference, strict=True):
        assert (hand.shape, hand.dtype) == (y.shape, y.dtype)
        np.testing.assert_allclose(hand, y, rtol=1e-10, atol=1e-12)
    for a, b in zip(given, before, strict=True):
        np.testing.assert_array_equal(a, b)  # what is given is not overwritten


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", WORKS)
def test_ours_is_numpy(name, monkeypatch):
    monkeypatch.setattr("benchmarks.peers.find_spec", lambda name: None)
    work = WORKS[name]
    compiled = ge2.jit(derived(ge2, work, np))
    agree(work, candidates(work, compiled, work.arguments(Draw(quick=True)), {}))


def test_a_candidate_that_errs_is_found():
    work = Work("twice", lambda x: 2 * x, lambda draw: (draw.normal(8),), lambda torch, x: 2 * x)
    with pytest.raises(AssertionError, match="twice: ge2"):
        agree(work, {"numpy": lambda: np.ones(4), "ge2": lambda: np.full(4, 1.001)})
    with pytest.raises(AssertionError, match="twice: jax"):
        agree(work, {"numpy": lambda: np.ones(4), "jax": lambda: np.ones(4, np.float32)})


def test_a_quick_draw_keeps_equal_sizes_equal():
    draw = Draw(quick=True)
    assert draw.normal(4096, 1024).shape == draw.normal(64, 2000).shape
    assert draw.below(50_000, 1000).max() < 64
    assert Draw(quick=False).normal(3, 70).shape == (3, 70)


def test_a_layout_in_words():
    x = np.zeros((4, 3), np.float32)
    assert layout_of((x, np.zeros(2, np.int32), x[0])) == "float32 and int32, C order"
    assert layout_of((x.T,)) == "float32, strided"


def test_the_chain_has_as_many_regions_as_it_says():
    assert ge2.jit(chain).lower(*arguments()).regions >= REGIONS == 25


@pytest.mark.parametrize("executor", ["blocked", "reference"])
def test_what_ran_is_told(executor):
    with ge2.config.using(executor=executor):
        ran = executor_of(ge2.jit(np.tanh), np.ones(3))
        assert ran == executor
        assert remarks(ran) == {}
    with ge2.config.using(executor="c"):
        assert remarks("blocked") == {"ge2": "ran as blocked, not as c"}


def test_options():
    assert Options().wants("call", "x")
    only = Options(only=frozenset({"softmax"}))
    assert only.wants("rowwise", "softmax")
    assert not only.wants("rowwise", "logsumexp")
    assert [
        Options().rounds_or(9),
        Options(quick=True).rounds_or(9),
        Options(rounds=4).rounds_or(9),
    ] == [9, 3, 4]


def test_a_fresh_process_has_its_variables():
    done = fresh("import os; print(os.environ['GE2_TEST_WORD'])", GE2_TEST_WORD="here")
    assert done.said == "here\n"
    assert done.seconds > 0


def test_the_demos_step_moves_its_state():
    step = digits.stepper(lambda state, x, y: (state + x, state), 0, 2, None)
    assert [step(), step(), step()] == [0, 2, 4]
