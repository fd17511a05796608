"""Hamiltonian Monte Carlo (Neal, 2011): samples of a posterior, by its gradient.

A chain is a `scan` over steps, and many chains are its `vmap`. The posterior is that of a linear
regression with known noise: a normal distribution, so that the truth is known.

python examples/hmc.py              # prints moments beside the exact ones
python examples/hmc.py picture.png  # and draws the samples
"""

from __future__ import annotations

import sys

import numpy as np

import ge2
from ge2 import random

NOISE, CHAINS, WARMUP = 0.5, 64, 50


def energy(w, x, y):
    """Minus the logarithm of the posterior: a standard normal prior, normal noise."""
    return 0.5 * (w @ w) + 0.5 * np.sum(((x @ w - y) / NOISE) ** 2)


def chain(key, start, steps, force, height, rate=0.08, leaps=8):
    """The positions after each of `steps` flights, and the part of them that was accepted."""

    def flight(w, key):
        keys = random.split(key)
        momentum = random.normal(keys[0], w.shape)

        def leap(_, state):
            w, p = state
            w = w + rate * p
            return w, p - rate * force(w)

        first = momentum - 0.5 * rate * force(w)
        new, p = ge2.lax.fori_loop(0, leaps, leap, (w, first))
        p = p + 0.5 * rate * force(new)  # the last half step was a whole one
        gained = height(w) + 0.5 * (momentum @ momentum) - height(new) - 0.5 * (p @ p)
        accepted = np.log(random.uniform(keys[1])) < gained
        w = np.where(accepted, new, w)
        return w, (w, accepted)

    _, (found, accepted) = ge2.lax.scan(flight, start, random.split(key, steps))
    return found, accepted.mean()


@ge2.jit(static_argnames="steps")
def sample(key, x, y, steps):
    """Samples [chains, steps, parameters] after the warm-up, and how many flights were accepted."""
    one = lambda key: chain(  # noqa: E731
        key,
        np.zeros(x.shape[1]),
        WARMUP + steps,
        force=lambda w: ge2.grad(energy)(w, x, y),
        height=lambda w: energy(w, x, y),
    )
    found, accepted = ge2.vmap(one)(random.split(key, CHAINS))
    return found[:, WARMUP:], accepted.mean()


def exact(x, y):
    """The posterior's mean and covariance."""
    covariance = np.linalg.inv(np.eye(x.shape[1]) + x.T @ x / NOISE**2)
    return covariance @ x.T @ y / NOISE**2, covariance


def main(steps: int = 400, picture: str | None = None) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 2)) @ np.array([[1.0, 0.8], [0.0, 0.6]])
    y = x @ np.array([1.0, -0.5]) + NOISE * rng.normal(size=20)
    found, accepted = sample(random.key(0), x, y, steps)
    mean, covariance = exact(x, y)
    draws = found.reshape(-1, 2)
    errors = np.abs(draws.mean(axis=0) - mean) / np.sqrt(np.diag(covariance))
    spread = np.cov(draws.T) / covariance
    print(f"{len(draws):,} samples, {accepted:.0%} of the flights accepted")
    print("mean       ", draws.mean(axis=0).round(4), "  exactly", mean.round(4))
    print(
        "covariance ", np.cov(draws.T).round(4).tolist(), "  exactly", covariance.round(4).tolist()
    )
    assert errors.max() < 0.05 and np.abs(spread - 1).max() < 0.1
    if picture:
        draw(picture, found, mean, covariance)


def draw(path, found, mean, covariance):
    import matplotlib.pyplot as plt

    turn = np.linspace(0, 2 * np.pi, 100)
    circle = np.linalg.cholesky(covariance) @ [np.cos(turn), np.sin(turn)]
    plt.figure(figsize=(4, 3))
    plt.plot(*found[:, ::20].reshape(-1, 2).T, ".", ms=1.5, alpha=0.5)
    for radius in (1, 2, 3):
        plt.plot(*(mean[:, None] + radius * circle), "k", lw=0.8)
    plt.title("samples, and 1, 2, 3 deviations of the exact posterior", fontsize=8)
    plt.savefig(path, dpi=100, bbox_inches="tight")


if __name__ == "__main__":
    main(picture=next(iter(sys.argv[1:]), None))
