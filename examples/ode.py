"""A neural differential equation (Chen and others, 2018): a network learns the flow from one curve.

The curve is that of a damped oscillation, of which the solution is known. The integrator is a
`scan` of Runge and Kutta's steps, and the gradient goes through it.

python examples/ode.py [picture.png]
"""

from __future__ import annotations

import sys

import numpy as np

import ge2
from ge2 import nn, optim

STEP, DAMPING = 0.1, 0.1


def truth(start, t):
    """The solution of x' = v, v' = -(1 + d^2) x - 2 d v, which turns once in 2 pi."""
    x, v = start
    turned = x * np.cos(t) + (v + DAMPING * x) * np.sin(t)
    slope = (v + DAMPING * x) * np.cos(t) - x * np.sin(t) - DAMPING * turned
    return np.exp(-DAMPING * t)[:, None] * np.stack([turned, slope], axis=1)


def solved(flow, start, count):
    """The places after each of `count` steps of the order 4."""

    def step(y, _):
        a = flow(y)
        b = flow(y + 0.5 * STEP * a)
        c = flow(y + 0.5 * STEP * b)
        d = flow(y + STEP * c)
        y = y + STEP / 6 * (a + 2 * b + 2 * c + d)
        return y, y

    return ge2.lax.scan(step, start, length=count)[1]


def main(
    steps: int = 1500, count: int = 60, near: float = 0.05, picture: str | None = None
) -> None:
    """Trained on pieces of the curve of one second each; then it runs on alone from the start."""
    t = STEP * np.arange(4 * count)
    curve = truth((2.0, 0.0), t)
    exactly = lambda y: np.stack([y[1], -(1 + DAMPING**2) * y[0] - 2 * DAMPING * y[1]])  # noqa: E731
    of_order_4 = np.abs(solved(exactly, curve[0], 4 * count - 1) - curve[1:]).max()
    pieces = np.stack([curve[i : i + 11] for i in range(2 * count - 10)])
    model = nn.MLP.init(ge2.random.key(0), (2, 24, 2), activation=np.tanh, dtype=np.float64)

    def loss(model):
        ends = ge2.vmap(lambda start: solved(model, start, 10))(pieces[:, 0])
        return np.mean((ends - pieces[:, 1:]) ** 2)

    optimizer = optim.adam(optim.cosine(0.1, 20, steps))
    state = optimizer.init(model)

    @ge2.jit(donate_argnums=(0, 1))
    def step(model, state):
        value, slope = ge2.value_and_grad(loss)(model)
        return *optimizer.update(slope, state, model), value

    for i in range(steps):
        model, state, value = step(model, state)
        if (i + 1) % (steps // 5) == 0:
            print(f"step {i + 1:4}   loss {value:.2e}")
    found = solved(model, curve[0], 4 * count - 1)
    off = np.abs(found - curve[1:]).max(axis=1)
    print(f"Runge and Kutta's steps of the true flow are off by {of_order_4:.1e}")
    print(
        f"the network's flow by {off[: 2 * count].max():.3f} where it was trained, {off.max():.3f} after"
    )
    assert of_order_4 < 1e-4 and off[: 2 * count].max() < near
    if picture:
        draw(picture, t, curve, found)


def draw(path, t, curve, found):
    import matplotlib.pyplot as plt

    plt.figure(figsize=(5, 2.6))
    plt.plot(t, curve[:, 0], "k", lw=0.8, label="the solution")
    plt.plot(t[1:], found[:, 0], "--", label="by the network's flow")
    plt.axvspan(0, t[len(t) // 2], alpha=0.1, label="trained on this")
    plt.legend(fontsize=7)
    plt.savefig(path, dpi=100, bbox_inches="tight")


if __name__ == "__main__":
    main(picture=next(iter(sys.argv[1:]), None))
