"""Private training in a few lines: each example's gradient is clipped before
averaging (arXiv:1607.00133).

`vmap(value_and_grad(...))` gives one gradient per example, of a function written for a single one.

python examples/clipped.py
"""

from __future__ import annotations

import numpy as np

import ge2

LIMIT, RATE, STEPS = 0.5, 0.3, 150


def loss(params, x, y):
    """The squared error of a small network on one example."""
    hidden = np.tanh(params["in"] @ x)
    return (params["out"] @ hidden - y) ** 2


def clip(gradient):
    norm = np.sqrt(sum((g**2).sum() for g in ge2.tree.leaves(gradient)))
    return ge2.tree.map(lambda g: g * np.minimum(1, LIMIT / norm), gradient)


@ge2.jit
def step(params, x, y):
    values, gradients = ge2.vmap(ge2.value_and_grad(loss), in_axes=(None, 0, 0))(params, x, y)
    bounded = ge2.vmap(clip)(gradients)
    return ge2.tree.map(lambda p, g: p - RATE * g.mean(axis=0), params, bounded), values.mean()


def main() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(256, 4))
    y = np.sin(x[:, 0]) + 0.5 * x[:, 1]
    params = {"in": rng.normal(size=(16, 4)) * 0.5, "out": np.zeros(16)}
    first = None
    for i in range(STEPS):
        params, value = step(params, x, y)
        first = value if first is None else first
        if i % 30 == 29:
            print(f"step {i + 1:4}   loss {float(value):.4f}")
    assert value < 0.2 * first


if __name__ == "__main__":
    main()
