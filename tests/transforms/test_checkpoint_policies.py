"""Policies of checkpoints: what they save is saved, what they do not save is computed again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.base.errors import Ge2Error, InputError
from ge2.ir import Graph, parse
from ge2.ops import TABLE, Checkpoint
from ge2.passes.simplify import inline, simplify
from ge2.trace import tidy
from ge2.transforms import (
    checkpoint,
    checkpoint_name,
    grad,
    jvp,
    make_jaxpr,
    value_and_grad,
    vjp,
    vmap,
)
from ge2.transforms.graphs import DERIVE
from tests.transforms.functions import close

policies = ge2.checkpoint_policies
W = np.random.default_rng(3).normal(size=(5, 5)) / 2
X = np.random.default_rng(4).normal(size=(4, 5))


def block(x, w):
    a = checkpoint_name(np.sin(x @ w), "sines")
    b = checkpoint_name(np.exp(a @ w), "powers")
    return np.tanh(b * b)


def halves(policy: Any, f: Any = block, *args: Any) -> tuple[Graph, Graph, int]:
    """Those of a checkpoint of the function, as its derivative makes them."""
    (eqn,) = make_jaxpr(checkpoint(f, policy=policy))(*(args or (X, W))).graph.eqns
    saving: Any = eqn.op.saving((True,) * len(eqn.inputs), DERIVE)
    return saving.jaxpr, saving.backward, saving.residuals


def again(found: tuple[Graph, Graph, int]) -> list[str]:
    """The operations of the forward half that the backward half repeats."""
    forward, backward, _ = found
    before = {v for e in forward.eqns for v in e.outs}
    return sorted(e.op.name for e in backward.eqns if not before.isdisjoint(e.outs))


def kept(found: tuple[Graph, Graph, int]) -> list[str]:
    """The operations whose results are saved."""
    forward, _, count = found
    made = {v: e.op.name for e in forward.eqns for v in e.outs}
    return sorted(made[a] for a in forward.outputs[len(forward.outputs) - count :] if a in made)


DOTS = ["dot_general", "dot_general"]
# fmt: off
CASES = {
    "nothing": (policies.nothing_saveable, [], [*DOTS, "exp", "mul", "sin", "tanh"]),
    "none": (None, [], [*DOTS, "exp", "mul", "sin", "tanh"]),
    "dots": (policies.dots_saveable, ["dot_general", "dot_general"], ["exp", "mul", "sin", "tanh"]),
    "dots without batch": (
        policies.dots_with_no_batch_dims_saveable, DOTS, ["exp", "mul", "sin", "tanh"],
    ),
    "powers": (policies.save_only_these_names("powers"), ["exp"], ["dot_general", "mul", "sin", "tanh"]),
    "sines": (policies.save_only_these_names("sines"), ["sin"], [*DOTS, "exp", "mul", "tanh"]),
    "both names": (
        policies.save_only_these_names("powers", "sines"), ["exp", "sin"], ["dot_general", "mul", "tanh"],
    ),
    "any but sines": (
        policies.save_any_names_but_these("sines"), ["exp"], ["dot_general", "mul", "sin", "tanh"],
    ),
    "anything except": (policies.save_anything_except_these_names("powers", "sines"), None, ["exp", "sin"]),
    "both policies": (
        policies.save_from_both_policies(policies.dots_saveable, policies.save_only_these_names("powers")),
        ["dot_general", "exp"], ["mul", "sin", "tanh"],
    ),
}
# fmt: on


@pytest.mark.parametrize("name", CASES)
def test_what_is_saved_and_what_is_repeated(name: str):
    policy, saved, repeated = CASES[name]
    found = halves(policy)
    assert saved is None or kept(found) == saved
    repeats = again(found)
    for op in set(repeated) | set(repeats):
        assert repeats.count(op) <= repeated.count(op), (repeats, repeated)
    assert set(repeats) == set(repeated)


def test_everything_saveable_repeats_nothing():
    assert again(halves(policies.everything_saveable)) == []
    assert {"cos", "exp"} <= set(kept(halves(policies.everything_saveable)))


def test_a_batched_product_is_no_product_without_batch():
    f = lambda x, y: np.sin(x @ y)  # noqa: E731
    args = (np.ones((3, 4, 5)), np.ones((3, 5, 6)))
    assert kept(halves(policies.dots_with_no_batch_dims_saveable, f, *args)) == []
    assert kept(halves(policies.dots_saveable, f, *args)) == ["dot_general"]


def test_a_function_of_the_users_is_a_policy():
    sines = lambda op, *types, **params: op.name == "sin" and types[0].shape == (4, 5)  # noqa: E731
    assert kept(halves(sines)) == ["sin"]
    by_axes = lambda op, *_, contract=None, **params: contract == ((1,), (0,))  # noqa: E731
    assert kept(halves(by_axes)) == ["dot_general", "dot_general"]
    either = policies.save_from_both_policies(sines, policies.save_only_these_names("powers"))
    assert kept(halves(either)) == ["exp", "sin"]


def test_labels_inside_jitted_functions_count():
    inner = ge2.jit(lambda x: checkpoint_name(np.sin(x), "kept") * 2.0)
    policy = policies.save_only_these_names("kept")
    # the derivative reads no sine
    assert kept(halves(policy, lambda x: inner(np.tanh(x)), X)) == []
    found = halves(policy, lambda x: np.exp(np.exp(inner(np.tanh(x)))), X)
    assert kept(found) == ["sin"] and again(found) == ["exp", "exp", "mul", "tanh"]


# -------------------------------------------------------------------------------------- derivatives


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_the_derivatives_are_those_of_the_plain_function(name: str):
    f = checkpoint(block, policy=CASES[name][0])
    loss = lambda f: lambda w: np.sum(f(X, w) * np.cos(X))  # noqa: E731
    plain, ours = loss(block), loss(f)
    close(ours(W), plain(W))
    close(grad(ours)(W), grad(plain)(W))
    close(ge2.jit(grad(ours))(W), grad(plain)(W))
    close(vjp(ours, W)[1](1.0)[0], grad(plain)(W))
    close(jvp(ours, (W,), (W,))[1], jvp(plain, (W,), (W,))[1])
    second = lambda f: grad(lambda w: np.sum(grad(f)(w) ** 2))  # noqa: E731
    close(second(ours)(W), second(plain)(W))
    batch = np.stack([W, W / 2])
    close(vmap(grad(ours))(batch), vmap(grad(plain))(batch))


def operations(closed: Any) -> list[str]:
    """Those that run: calls inlined, equal equations merged."""
    return [e.op.name for e in tidy(simplify(inline(closed.graph))).eqns]


def test_recomputation_survives_merging_unless_that_is_allowed():
    def run(**options: Any) -> list[str]:
        f = checkpoint(block, **options)
        return operations(make_jaxpr(value_and_grad(lambda w: np.sum(f(X, w))))(W))

    plain = operations(make_jaxpr(value_and_grad(lambda w: np.sum(block(X, w))))(W))
    assert plain.count("dot_general") == 5
    assert run().count("dot_general") == 7
    assert run(policy=policies.dots_saveable).count("dot_general") == 5
    assert run(policy=policies.dots_saveable).count("exp") == 2
    merged = run(prevent_cse=False)
    assert merged.count("dot_general") == 5 and "barrier" not in merged
    assert "name" not in plain


def test_nested_policies():
    inner = checkpoint(block, policy=policies.save_only_these_names("powers"))
    outer = checkpoint(lambda x, w: np.sin(inner(x, w)), policy=policies.dots_saveable)
    plain = lambda x, w: np.sin(block(x, w))  # noqa: E731
    close(ge2.jit(grad(lambda w: np.sum(outer(X, w))))(W), grad(lambda w: np.sum(plain(X, w)))(W))


def test_jax_names():
    assert policies.checkpoint_dots is policies.dots_saveable
    assert policies.checkpoint_dots_with_no_batch_dims is policies.dots_with_no_batch_dims_saveable
    both = policies.save_from_both_policies(
        policies.dots_saveable, policies.save_only_these_names("a")
    )
    assert repr(both) == (
        "ge2.checkpoint_policies.save_from_both_policies(ge2.checkpoint_policies.dots_saveable, "
        "ge2.checkpoint_policies.save_only_these_names('a'))"
    )
    assert ge2.remat is ge2.checkpoint


def test_the_text_holds_the_policy_and_reads_back():
    f = checkpoint(
        block,
        policy=policies.save_from_both_policies(*[policies.save_only_these_names("in a")] * 2),
    )
    with config.using(check=True):
        graph = make_jaxpr(grad(lambda w: np.sum(f(X, w))))(W).graph
        graph = make_jaxpr(lambda w: f(X, w))(W).graph
    assert "save_only_these_names, 'in a'" in str(graph)
    assert parse(str(graph), TABLE) == graph


def test_labels_pass_through_structures_and_transforms():
    assert checkpoint_name({"a": 1.0, "b": [X]}, "t")["a"] == 1.0
    f = lambda t: np.sum(checkpoint_name(t, "t")["a"] ** 2)  # noqa: E731
    close(grad(f)({"a": X})["a"], 2 * X)
    close(vmap(f)({"a": X}), np.sum(X**2, axis=1))
    close(jvp(f, ({"a": X},), ({"a": X},))[1], 2 * np.sum(X**2))
    close(ge2.jit(f)({"a": X}), np.sum(X**2))
    with config.using(passes_off=("simplify",)):
        close(ge2.jit(lambda x: checkpoint_name(np.sin(x), "s") + 1.0)(X), np.sin(X) + 1.0)


def test_what_is_no_policy_is_refused():
    with pytest.raises(InputError, match="policy of checkpoint is a function; got 'dots_saveable'"):
        checkpoint(block, policy="dots_saveable")
    with pytest.raises(InputError, match="is no policy"):
        policies.save_from_both_policies(policies.dots_saveable, "x")
    with pytest.raises(InputError, match="given names; got 3"):
        policies.save_only_these_names("a", 3)
    with pytest.raises(InputError, match="a label is a string"):
        checkpoint_name(X, 3)
    with pytest.raises(Ge2Error, match="no rule"):
        Checkpoint(Graph((), (), ()), ("some",))
