"""The conductivity of a plate, from temperatures measured on it: a gradient through a simulation.

A plate that nothing heats or cools is warm at one side, at another, or in a corner. Heat flows by a
stencil, step after step; the difference between computed and measured temperatures is made small by
its gradient through all steps.

python examples/inverse_heat.py [picture.png]
"""

from __future__ import annotations

import sys

import numpy as np

import ge2
from ge2 import nn, optim

STEP = 0.1  # below 1 / (4 conductivity), where the stencil is stable


def flow(t, k):
    """One step: what flows over each edge, by the harmonic mean of the two conductivities there."""
    kx = 2 * k[1:] * k[:-1] / (k[1:] + k[:-1])
    ky = 2 * k[:, 1:] * k[:, :-1] / (k[:, 1:] + k[:, :-1])
    down, right = kx * (t[1:] - t[:-1]), ky * (t[:, 1:] - t[:, :-1])
    new = t.copy()
    new[:-1] += STEP * down
    new[1:] -= STEP * down
    new[:, :-1] += STEP * right
    new[:, 1:] -= STEP * right
    return new


def temperatures(k, times, between):
    """The plate at so many times, `between` steps apart: [starts, times, n, n]."""

    def until(t, _):
        t = ge2.lax.fori_loop(0, between, lambda _, t: flow(t, k), t)
        return t, t

    y, x = np.mgrid[: k.shape[0], : k.shape[1]] / len(k)
    warm = np.stack([x, y, x * y])
    return ge2.vmap(lambda start: ge2.lax.scan(until, start, length=times)[1])(warm)


def conductivity(z):
    """Numbers of any size as conductivities between 0.2 and 2.4."""
    return 0.2 + 2.2 * nn.sigmoid(z)


def loss(z, measured, times, between):
    return 1e3 * np.mean((temperatures(conductivity(z), times, between) - measured) ** 2)


def main(
    n: int = 24, times: int = 5, between: int = 30, steps: int = 300, picture: str | None = None
) -> None:
    y, x = np.mgrid[:n, :n] / n
    truth = np.where((x - 0.35) ** 2 + (y - 0.4) ** 2 < 0.04, 0.4, 1.0)
    truth = np.where((abs(x - 0.65) < 0.12) & (abs(y - 0.7) < 0.12), 2.0, truth)
    measured = temperatures(truth, times, between)
    z = np.zeros((n, n))
    at = lambda z: loss(z, measured, times, between)  # noqa: E731
    along, by_hand = np.sum(ge2.grad(at)(z) * x), (at(z + 1e-5 * x) - at(z - 1e-5 * x)) / 2e-5
    print(f"derivative {along:.8f}, by differences {by_hand:.8f}")
    optimizer = optim.adam(optim.cosine(0.2, 10, steps))
    state = optimizer.init(z)

    @ge2.jit
    def step(z, state):
        value, slope = ge2.value_and_grad(loss)(z, measured, times, between)
        return *optimizer.update(slope, state, z), value

    for i in range(steps):
        z, state, value = step(z, state)
        if (i + 1) % (steps // 5) == 0:
            off = np.sqrt(np.mean((conductivity(z) - truth) ** 2))
            print(f"step {i + 1:4}   loss {value:.2e}   error of the conductivity {off:.4f}")
    assert np.isclose(along, by_hand, rtol=1e-5)
    assert off < 0.3 * np.std(truth)
    if picture:
        draw(picture, truth, conductivity(z), measured)


def draw(path, truth, found, measured):
    import matplotlib.pyplot as plt

    shown = (
        (truth, "true conductivity"),
        (found, "found"),
        (measured[0, -1], "temperature, at the end"),
    )
    for i, (x, title) in enumerate(shown):
        plt.subplot(1, 3, i + 1)
        plt.imshow(x, vmin=0, vmax=2 if i < 2 else 1)
        plt.title(title, fontsize=8)
        plt.axis("off")
    plt.gcf().set_size_inches(6, 2.2)
    plt.savefig(path, dpi=100, bbox_inches="tight")


if __name__ == "__main__":
    main(picture=next(iter(sys.argv[1:]), None))
