"""A Kalman filter and smoother (Rauch, Tung and Striebel, 1965), and the gradient of its likelihood.

A body moves by random pushes, and its position is measured with noise. The filter is a `scan` over
time, the smoother one that runs backwards; how large pushes and noise are is found by the gradient
of the likelihood through the filter. All of it is one large normal distribution, which says what
is right.

python examples/kalman.py [picture.png]
"""

from __future__ import annotations

import sys

import numpy as np

import ge2
from ge2 import optim
from ge2.lax import scan

MOVE = np.array([[1.0, 1.0], [0.0, 1.0]])  # position and speed, one step on
PUSHED = np.array([[0.25, 0.5], [0.5, 1.0]])  # covariance of what a push of variance 1 does
FIRST = 10.0 * np.eye(2)


def filtered(log_scales, ys):
    """Means and covariances after each measurement and before it, and the log likelihood."""
    push, noise = np.exp(2 * log_scales)

    def step(state, y):
        mean, cov = state
        error, variance = y - mean[0], cov[0, 0] + noise
        gain = cov[:, 0] / variance
        seen = mean + gain * error, cov - gain[:, None] * cov[0]
        likelihood = -0.5 * (error**2 / variance + np.log(2 * np.pi * variance))
        then = MOVE @ seen[0], MOVE @ seen[1] @ MOVE.T + push * PUSHED
        return then, (seen, then, likelihood)

    _, (seen, then, likelihoods) = scan(step, (np.zeros(2), FIRST), ys)
    return seen, then, likelihoods.sum()


@ge2.jit
def smoothed(log_scales, ys):
    """Means and covariances of the states by all measurements."""
    seen, then, _ = filtered(log_scales, ys)

    def step(later, parts):
        (mean, cov), (mean_then, cov_then) = parts
        gain = cov @ MOVE.T @ np.linalg.inv(cov_then)
        mean = mean + gain @ (later[0] - mean_then)
        cov = cov + gain @ (later[1] - cov_then) @ gain.T
        return (mean, cov), (mean, cov)

    last = then[0][-1], then[1][-1]
    return scan(step, last, (seen, then), reverse=True)[1]


def loss(log_scales, ys):
    return -filtered(log_scales, ys)[2]


def dense(log_scales, ys):
    """The same by the joint normal distribution of all states: log likelihood, means, variances."""
    push, noise = np.exp(2 * log_scales)
    n = len(ys)
    cov = np.zeros((n, 2, n, 2))
    cov[0, :, 0] = FIRST
    for i in range(1, n):
        cov[i, :, :i] = np.einsum("ab,bjc->ajc", MOVE, cov[i - 1, :, :i])
        cov[:i, :, i] = cov[i, :, :i].transpose(1, 2, 0)
        cov[i, :, i] = MOVE @ cov[i - 1, :, i - 1] @ MOVE.T + push * PUSHED
    seen = cov[:, 0, :, 0] + noise * np.eye(n)
    gain = np.linalg.solve(seen, cov[:, 0].reshape(n, -1)).T
    means = (gain @ ys).reshape(n, 2)
    variances = np.diag(cov.reshape(2 * n, -1) - gain @ cov[:, 0].reshape(n, -1)).reshape(n, 2)
    likelihood = -0.5 * (ys @ np.linalg.solve(seen, ys) + np.linalg.slogdet(2 * np.pi * seen)[1])
    return likelihood, means, variances


def simulated(rng, n, push, noise):
    states = np.zeros((n, 2))
    for i in range(1, n):
        states[i] = MOVE @ states[i - 1] + push * rng.normal() * np.array([0.5, 1.0])
    return states, states[:, 0] + noise * rng.normal(size=n)


def main(n: int = 200, steps: int = 100, picture: str | None = None) -> None:
    states, ys = simulated(np.random.default_rng(0), n, push=0.1, noise=2.0)
    optimizer, log_scales = optim.adam(0.05), np.zeros(2)
    state = optimizer.init(log_scales)

    @ge2.jit
    def step(log_scales, state):
        value, slope = ge2.value_and_grad(loss)(log_scales, ys)
        return *optimizer.update(slope, state, log_scales), value

    for i in range(steps):
        log_scales, state, value = step(log_scales, state)
        if (i + 1) % (steps // 4) == 0:
            print(
                f"step {i + 1:4}   push, noise {np.exp(log_scales).round(3)}   -log p {value:.4f}"
            )
    means, covs = smoothed(log_scales, ys)
    likelihood, right, variances = dense(log_scales, ys)
    off = abs(-loss(log_scales, ys) - likelihood), np.abs(means - right).max()
    print(f"beside the joint distribution: log p {off[0]:.1e}, means {off[1]:.1e}")
    rms = lambda x: np.sqrt(np.mean((x - states[:, 0]) ** 2))  # noqa: E731
    print(f"error of a measurement {rms(ys):.3f}, of the smoother {rms(means[:, 0]):.3f}")
    assert max(off) < 1e-8 and np.allclose(np.diagonal(covs, 0, 1, 2), variances)
    assert rms(means[:, 0]) < 0.5 * rms(ys)
    if picture:
        draw(picture, states, ys, means, covs)


def draw(path, states, ys, means, covs):
    import matplotlib.pyplot as plt

    plt.figure(figsize=(5, 3))
    time, deviation = np.arange(len(ys)), np.sqrt(covs[:, 0, 0])
    plt.plot(time, ys - states[:, 0], ".", ms=2, label="measured")
    plt.fill_between(
        time,
        *(means[:, 0] + s * 2 * deviation - states[:, 0] for s in (-1, 1)),
        alpha=0.4,
        label="smoothed, 2 deviations",
    )
    plt.axhline(0, color="k", lw=0.5)
    plt.legend(fontsize=7)
    plt.title("away from the true position", fontsize=8)
    plt.savefig(path, dpi=100, bbox_inches="tight")


if __name__ == "__main__":
    main(picture=next(iter(sys.argv[1:]), None))
