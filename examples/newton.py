"""Logistic regression by Newton's method: the Hessian is two derivatives, a
step one compiled function.

python examples/newton.py
"""

from __future__ import annotations

import numpy as np

import ge2

RIDGE = 1e-2


def loss(w, x, y):
    """The mean of log(1 + exp(-y x.w)) for labels of -1 and 1, with a little ridge."""
    margins = y * (x @ w)
    return np.logaddexp(0, -margins).mean() + RIDGE * (w**2).sum()


@ge2.jit
def slope_and_curvature(w, x, y):
    return ge2.grad(loss)(w, x, y), ge2.hessian(loss)(w, x, y)


def main() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 5))
    y = np.where(x @ rng.normal(size=5) + 0.5 * rng.normal(size=500) > 0, 1.0, -1.0)
    w = np.zeros(5)
    for step in range(8):
        slope, curvature = slope_and_curvature(w, x, y)
        print(f"step {step}   loss {loss(w, x, y):.6f}   |slope| {np.abs(slope).max():.2e}")
        w = w - np.linalg.solve(curvature, slope)
    slope, _ = slope_and_curvature(w, x, y)
    assert np.abs(slope).max() < 1e-12
    print("weights", w.round(3))


if __name__ == "__main__":
    main()
