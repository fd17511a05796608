"""checkpoint: the same numbers, computed again behind a barrier that is tied to the cotangents."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import ge2
from ge2.base.errors import InputError
from ge2.ops.graphs.control import Checkpoint
from ge2.passes.simplify import inline, simplify
from ge2.trace import tidy
from ge2.transforms import (
    checkpoint,
    cond,
    grad,
    hessian,
    jacrev,
    jvp,
    make_jaxpr,
    remat,
    value_and_grad,
    vjp,
    vmap,
)
from ge2.transforms.graphs import DERIVE
from tests.transforms.functions import FORWARD, close, points


def names(closed) -> list[str]:
    """The operations that run, calls inlined, equal equations merged."""
    return [e.op.name for e in tidy(simplify(inline(closed.graph))).eqns]


def block(x):
    return np.sin(np.exp(np.tanh(x)))


def chain(x, f=block):
    return np.sum(f(f(f(x))))


# -------------------------------------------------------------------------------------- recomputing


def test_values_are_computed_again_and_not_merged():
    x = np.ones(3)
    plain = names(make_jaxpr(value_and_grad(chain))(x))
    again = names(make_jaxpr(value_and_grad(partial(chain, f=checkpoint(block))))(x))
    count = lambda found: [found.count(name) for name in ("tanh", "exp", "sin", "cos", "barrier")]  # noqa: E731
    assert count(plain) == [3, 3, 3, 3, 0]
    assert count(again) == [6, 6, 3, 3, 3]  # the backward pass reads no sine


def test_the_barrier_is_tied_to_the_cotangent():
    """What is computed again needs the cotangent to have begun: nothing of it
    can be scheduled before.
    """
    graph = make_jaxpr(lambda x, ct: vjp(checkpoint(block), x)[1](ct))(np.ones(3), np.ones(3)).graph
    made = {v: e for e in graph.eqns for v in e.outs}
    (barrier,) = (e for e in graph.eqns if e.op.name == "barrier")
    assert set(barrier.inputs) == set(graph.inputs)
    (again,) = (e for e in graph.eqns if e.op.name == "jit")
    assert all(made[a] is barrier for a in again.inputs)


def test_only_the_inputs_are_kept_between_forward_and_backward():
    layer = lambda x, w: np.tanh(np.tanh(x @ w) @ w)  # noqa: E731
    for f, kept in ((layer, 3), (checkpoint(layer), 2)):
        graph = make_jaxpr(f)(np.ones(3), np.eye(3)).graph
        forward, _, residuals = DERIVE.vjp(graph, (True, False))
        assert residuals == kept, forward


# --------------------------------------------------------------------------------- as the plain one


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FORWARD)
def test_it_is_as_the_plain_function(name, rng):
    f, x, t = FORWARD[name], points(rng), points(rng)
    g = checkpoint(f)
    close(g(x), f(x), 1e-12)
    loss = lambda f: lambda x: np.sum(np.sin(f(x)))  # noqa: E731
    close(grad(loss(g))(x), grad(loss(f))(x))
    close(jvp(g, (x,), (t,))[1], jvp(f, (x,), (t,))[1])
    close(vmap(grad(loss(g)))(np.stack([x, t])), vmap(grad(loss(f)))(np.stack([x, t])))
    close(hessian(loss(g))(x), hessian(loss(f))(x))


def test_nested_and_around_other_transforms(rng):
    x = points(rng)
    inner = checkpoint(lambda x: np.sin(checkpoint(block)(x)))
    plain = lambda x: np.sin(block(x))  # noqa: E731
    close(jacrev(inner)(x), jacrev(plain)(x))
    close(
        grad(lambda x: np.sum(checkpoint(grad(lambda x: np.sum(inner(x))))(x)))(x),
        grad(lambda x: np.sum(grad(lambda x: np.sum(plain(x)))(x)))(x),
    )
    close(
        grad(lambda x: np.sum(cond(x[0] > 0, inner, plain, x)))(x),
        grad(lambda x: np.sum(plain(x)))(x),
    )
    close(
        grad(lambda x: np.sum(vmap(checkpoint(block))(np.stack([x, x]))))(x),
        2 * grad(lambda x: np.sum(block(x)))(x),
    )


def test_structures_integers_weak_numbers_and_closures():
    w = np.array([1.0, 2.0])
    f = checkpoint(lambda t, n: {"y": np.sum(t["x"] * w) * n, "i": n + 1})
    assert grad(lambda t: f(t, 3)["y"])({"x": 2.0}) == {"x": 9.0}
    assert type(grad(checkpoint(lambda x: x * x))(3.0)) is float
    # by what it closes over, too
    assert grad(lambda w: checkpoint(lambda x: x * w * w)(2.0))(3.0) == 12.0


def test_static_and_keyword_arguments():
    f = checkpoint(
        lambda mode, x, scale=1.0: np.sin(x) * scale if mode == "sin" else x, static_argnums=(0,)
    )
    assert grad(lambda x: f("sin", x, scale=2.0))(0.0) == 2.0
    assert grad(lambda x: f("id", x))(0.0) == 1.0
    assert remat is checkpoint
    with pytest.raises(InputError, match="argument 3"):
        grad(checkpoint(lambda x: x, static_argnums=3))(1.0)


def test_the_derivative_of_equal_layers_is_worked_out_once(monkeypatch):
    seen = []
    saving = Checkpoint.saving

    def counted(self, wanted, derive):
        seen.append(self)
        return saving(self, wanted, derive)

    monkeypatch.setattr(Checkpoint, "saving", counted)

    def loss(ws, x):
        for w in ws:
            x = ge2.checkpoint(lambda x, w: np.tanh(x @ w))(x, w)
        return x.sum()

    rng = np.random.default_rng(0)
    ws, x = [rng.normal(size=(3, 3)) for _ in range(4)], rng.normal(size=(2, 3))
    found = ge2.jit(ge2.grad(loss))(ws, x)
    assert len(seen) == 2  # of the first layer, whose x is a constant, and of all others
    plain = ge2.grad(
        lambda ws, x: np.tanh(np.tanh(np.tanh(np.tanh(x @ ws[0]) @ ws[1]) @ ws[2]) @ ws[3]).sum()
    )
    for a, b in zip(found, plain(ws, x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
