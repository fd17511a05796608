"""Policies of checkpoints inside of loops and branches: what they save of each
round is stacked, no more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.ir import Graph
from ge2.transforms import checkpoint, checkpoint_name, grad, make_jaxpr, vmap
from ge2.transforms.graphs import DERIVE
from tests.transforms.functions import close

policies = ge2.checkpoint_policies
RNG = np.random.default_rng(0)
W, X, H = RNG.normal(size=(5, 5)) / 2, RNG.normal(size=(6, 4, 5)), RNG.normal(size=(4, 5))
STACK, STATE = (6, 4, 5), (4, 5)


def recurrent(w, h, xs):
    """Two products a round, of which the derivative reads one, `z`, and the carry."""

    def body(h, x):
        g = checkpoint_name(np.sin(checkpoint_name(h @ w, "z") + x), "g")
        h = np.tanh(np.exp(-g * g) @ w)
        return h, np.sum(h, axis=1)

    h, ys = ge2.lax.scan(body, h, xs)
    return np.sum(h * h) + np.sum(np.sin(ys))


def branched(w, h, xs):
    yes = lambda h: np.tanh(np.sin(checkpoint_name(h @ w, "z")) @ w)  # noqa: E731
    no = lambda h: np.exp(checkpoint_name(np.cos(h), "z") @ w * 0.1)  # noqa: E731
    return np.sum(ge2.lax.cond(xs[0, 0, 0] > 0, yes, no, np.sin(h)) ** 2)


def nested(w, h, xs):
    """A branch and a loop in each round of a loop."""

    def body(h, x):
        yes = lambda h: np.sin(checkpoint_name(h @ w, "z")) @ w  # noqa: E731
        k = ge2.lax.cond(np.sum(x) > 0, yes, lambda h: np.cos(h) @ w, h)
        inner = lambda k, t: (np.tanh(checkpoint_name(k @ w, "g") + t), None)  # noqa: E731
        k = ge2.lax.scan(inner, k, x[:2])[0]
        return k, k

    h, ys = ge2.lax.scan(body, h, xs)
    return np.sum(h * h) + np.sum(np.sin(ys))


def halves(f: Any, policy: Any, *args: Any) -> tuple[Graph, Graph, int]:
    """Those of a checkpoint of the function, as its derivative makes them."""
    (eqn,) = make_jaxpr(checkpoint(f, policy=policy))(*(args or (W, H, X))).graph.eqns
    saving: Any = eqn.op.saving((True,) * len(eqn.inputs), DERIVE)
    return saving.jaxpr, saving.backward, saving.residuals


def kept(found: tuple[Graph, Graph, int]) -> list[tuple[int, ...]]:
    """The shapes of what is saved, but for arguments."""
    forward, _, count = found
    saved = forward.outputs[len(forward.outputs) - count :]
    return sorted(a.type.shape for a in saved if a not in forward.inputs)


def count(graph: Graph, name: str) -> int:
    inner = sum(
        count(g, name) for e in graph.eqns if hasattr(e.op, "graphs") for g in e.op.graphs()
    )
    return inner + sum(e.op.name == name for e in graph.eqns)


NAMES = policies.save_only_these_names
# A policy; what is saved; how many products the backward half has: two for each
# that is no repetition. fmt: off
CASES = {
    "nothing": (recurrent, None, [], 4 + 2),
    "products": (recurrent, policies.dots_saveable, [STACK, STACK], 4),
    "a label": (recurrent, NAMES("z"), [STACK], 4 + 1),
    "another": (recurrent, NAMES("g"), [STACK], 4 + 2),
    "no such label": (recurrent, NAMES("q"), [], 4 + 2),
    "branch": (branched, None, [], 6 + 3),
    "branch products": (branched, policies.dots_saveable, [STATE, STATE], 6),
    "branch label": (branched, NAMES("z"), [STATE], 6 + 2),
    "nested": (nested, None, [], 8 + 4),
    "nested branch": (nested, NAMES("z"), [STACK], 8 + 3),
    "nested loop": (nested, NAMES("g"), [(6, 2, 4, 5)], 8 + 3),
    "nested products": (nested, policies.dots_saveable, [(6, 2, 4, 5), STACK, STACK], 8),
    "both": (nested, NAMES("z", "g"), [(6, 2, 4, 5), STACK], 8 + 2),
}
# fmt: on


@pytest.mark.parametrize("name", CASES)
def test_what_is_saved_and_which_products_are_repeated(name: str):
    f, policy, saved, products = CASES[name]
    found = halves(f, policy)
    assert kept(found) == sorted(saved)
    assert count(found[1], "dot_general") == products
    assert count(found[0], "dot_general") == count(make_jaxpr(f)(W, H, X).graph, "dot_general")


EVERY = {
    **{name: (case[0], case[1]) for name, case in CASES.items()},
    "everything": (recurrent, policies.everything_saveable),
    "everything nested": (nested, policies.everything_saveable),
    "all but": (recurrent, policies.save_anything_except_these_names("z")),
    "any but": (nested, policies.save_any_names_but_these("z")),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", EVERY)
def test_the_derivatives_are_those_of_the_plain_function(name: str):
    f, policy = EVERY[name]
    ours = checkpoint(f, policy=policy)
    by_all = lambda f: grad(f, argnums=(0, 1, 2))  # noqa: E731
    with config.using(check=True):
        for transform in (lambda f: f, ge2.jit):
            for a, b in zip(transform(by_all(ours))(W, H, X), by_all(f)(W, H, X), strict=True):
                close(a, b)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name", ["products", "a label", "branch label", "nested loop", "everything"]
)
def test_second_derivatives_are_those_of_the_plain_function(name: str):
    f, policy = EVERY[name]
    second = lambda f: grad(lambda w: np.sum(grad(f)(w, H, X) ** 2))(W)  # noqa: E731
    close(second(checkpoint(f, policy=policy)), second(f))


def test_batches_of_such_derivatives():
    ours = checkpoint(recurrent, policy=NAMES("z"))
    batch = np.stack([H, H / 2])
    of = lambda f: vmap(grad(f, argnums=1), in_axes=(None, 0, None))(W, batch, X)  # noqa: E731
    close(of(ours), of(recurrent))


def test_what_a_policy_forbids_is_not_stacked():
    def f(h, w):
        body = lambda h, _: (checkpoint_name(h @ w, "z") * np.sin(h), None)  # noqa: E731
        return ge2.lax.scan(body, h, None, length=3)[0]

    free = halves(f, policies.everything_saveable, H, W)
    found = halves(f, policies.save_anything_except_these_names("z"), H, W)
    assert count(free[1], "dot_general") == 2
    assert count(found[1], "dot_general") == 2 + 1


def test_the_results_of_a_loop_have_labels_of_their_own():
    def f(w, h, xs):
        h, ys = ge2.lax.scan(lambda h, x: (np.sin(h @ w + x), np.sum(h)), h, xs)
        return np.sum(np.sin(checkpoint_name(ys, "ys"))) + np.sum(h)

    assert kept(halves(f, NAMES("ys"))) == [(6,)]
    assert kept(halves(f, NAMES("h"))) == []
    close(grad(checkpoint(f, policy=NAMES("ys")))(W, H, X), grad(f)(W, H, X))


def test_where_a_maximum_lies_is_asked_of_values_of_one_run():
    def f(w, h, xs):
        def body(h, x):
            y = np.exp(np.sin(h @ w) + x)
            return y / np.max(y, axis=1, keepdims=True), None

        return np.sum(ge2.lax.scan(body, h, xs)[0] ** 2)

    maxima = lambda op, *types, **params: op.name == "reduce_max"  # noqa: E731
    for policy in (None, policies.dots_saveable, maxima):
        close(ge2.jit(grad(checkpoint(f, policy=policy)))(W, H, X), grad(f)(W, H, X))


def test_a_policy_of_the_users_sees_inside_of_loops():
    products = lambda op, *types, **params: op.name == "dot_general"  # noqa: E731
    assert kept(halves(recurrent, products)) == [STACK, STACK]
    assert kept(halves(nested, products)) == kept(halves(nested, policies.dots_saveable))


def test_labels_in_jitted_functions_that_a_round_calls():
    inner = ge2.jit(lambda h, w: checkpoint_name(h @ w, "z") * np.sin(h))

    def f(w, h, xs):
        return np.sum(ge2.lax.scan(lambda h, x: (inner(h, w) + x, None), h, xs)[0])

    assert kept(halves(f, NAMES("z"))) == [STACK]
    close(grad(checkpoint(f, policy=NAMES("z")))(W, H, X), grad(f)(W, H, X))


def test_what_is_saved_need_not_be_carried_again():
    """The derivative of each round reads the labelled value alone, within a branch."""

    def f(w, h, xs):
        w = ge2.stop_gradient(w)

        def body(h, x):
            yes, no = (lambda h, f=f: f(checkpoint_name(h @ w, "z")) @ w for f in (np.sin, np.cos))
            return ge2.lax.cond(x[0, 0] > 0, yes, no, h), None

        return np.sum(ge2.lax.scan(body, h, xs)[0])

    def carried(policy: Any) -> list[int]:
        return [e.op.carry for e in halves(f, policy)[1].eqns if e.op.name == "scan"]

    assert carried(None) == [1, 1]  # the second run, and the derivative
    assert carried(NAMES("z")) in ([0, 1], [1])
    close(grad(checkpoint(f, policy=NAMES("z")), argnums=1)(W, H, X), grad(f, argnums=1)(W, H, X))
