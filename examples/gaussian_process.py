"""Gaussian process regression, its scales by the gradient of the marginal likelihood.

The gradient goes through a Cholesky factor and two solves; textbooks have it in closed form, which
says what is right (Rasmussen and Williams, 2006, equations 2.30 and 5.9).

python examples/gaussian_process.py [picture.png]
"""

from __future__ import annotations

import sys

import numpy as np

import ge2
from ge2 import optim


def kernel(logs, a, b):
    """Covariances of a function's values at a[n] and b[m], by the logs of height, length, noise."""
    height, length, _ = np.exp(logs)
    return height**2 * np.exp(-0.5 * ((a[:, None] - b) / length) ** 2)


def loss(logs, x, y):
    """Minus the logarithm of the marginal likelihood of y."""
    n = len(x)
    factor = np.linalg.cholesky(kernel(logs, x, x) + np.exp(2 * logs[2]) * np.eye(n))
    z = np.linalg.solve(factor, y)
    return 0.5 * (z @ z) + np.log(np.diagonal(factor)).sum() + 0.5 * n * np.log(2 * np.pi)


@ge2.jit
def predicted(logs, x, y, at):
    """The mean and the deviation of the function at new places."""
    cov = kernel(logs, x, x) + np.exp(2 * logs[2]) * np.eye(len(x))
    across = kernel(logs, at, x)
    mean = across @ np.linalg.solve(cov, y)
    var = np.exp(2 * logs[0]) - np.sum(across * np.linalg.solve(cov, across.T).T, axis=1)
    return mean, np.sqrt(var)


def slope_by_the_book(logs, x, y):
    """0.5 tr((K^-1 - a a^T) dK) for each of the three, with a = K^-1 y."""
    k = kernel(logs, x, x)
    noise = np.exp(2 * logs[2]) * np.eye(len(x))
    far = ((x[:, None] - x) / np.exp(logs[1])) ** 2
    inverse = np.linalg.inv(k + noise)
    a = inverse @ y
    return np.array(
        [0.5 * np.sum((inverse - np.outer(a, a)) * d) for d in (2 * k, far * k, 2 * noise)]
    )


def main(steps: int = 120, picture: str | None = None) -> None:
    rng = np.random.default_rng(1)
    x = np.sort(rng.uniform(0, 10, 60))
    at = np.linspace(0, 10, 200)
    truth = lambda x: np.sin(x) + 0.3 * np.sin(3 * x)  # noqa: E731
    y = truth(x) + 0.2 * rng.normal(size=60)
    optimizer, logs = optim.adam(0.1), np.zeros(3)
    state = optimizer.init(logs)

    @ge2.jit
    def step(logs, state):
        value, slope = ge2.value_and_grad(loss)(logs, x, y)
        return *optimizer.update(slope, state, logs), value

    off = np.abs(ge2.grad(loss)(logs, x, y) - slope_by_the_book(logs, x, y)).max()
    for i in range(steps):
        logs, state, value = step(logs, state)
        if (i + 1) % (steps // 4) == 0:
            found = np.exp(logs).round(3)
            print(f"step {i + 1:4}   height, length, noise {found}   -log p {value:.4f}")
    mean, deviation = predicted(logs, x, y, at)
    inside = np.mean(np.abs(mean - truth(at)) < 2 * deviation)
    print(f"gradient beside the book's {off:.1e}; noise {np.exp(logs[2]):.3f}, which was 0.2")
    print(f"the true function is within 2 deviations at {inside:.0%} of the places")
    assert off < 1e-9 and abs(np.exp(logs[2]) - 0.2) < 0.05 and inside > 0.85
    if picture:
        draw(picture, x, y, at, truth(at), mean, deviation)


def draw(path, x, y, at, truth, mean, deviation):
    import matplotlib.pyplot as plt

    plt.figure(figsize=(5, 3))
    plt.fill_between(at, mean - 2 * deviation, mean + 2 * deviation, alpha=0.3)
    plt.plot(at, mean, label="mean, 2 deviations")
    plt.plot(at, truth, "k--", lw=0.8, label="truth")
    plt.plot(x, y, ".", ms=4, label="measured")
    plt.legend(fontsize=7)
    plt.savefig(path, dpi=100, bbox_inches="tight")


if __name__ == "__main__":
    main(picture=next(iter(sys.argv[1:]), None))
