"""The penalty of a ridge regression, found by the gradient of the error on data that was held out.

The weights solve (X'X + penalty I) w = X'y, by conjugate gradients.
`custom_linear_solve` differentiates the solution and not the steps of the solver, and
needs the product with the matrix only, never the matrix.

python examples/ridge.py
"""

from __future__ import annotations

import numpy as np

import ge2
from ge2.lax import custom_linear_solve

STEPS = 12


def conjugate_gradients(matvec, b):
    x, r = np.zeros_like(b), b
    p, rr = r, r @ r
    for _ in range(STEPS):
        ap = matvec(p)
        alpha = rr / (p @ ap)
        x, r = x + alpha * p, r - alpha * ap
        rr, before = r @ r, rr
        p = r + (rr / before) * p
    return x


def weights(penalty, x, y):
    matvec = lambda w: x.T @ (x @ w) + penalty * w  # noqa: E731
    return custom_linear_solve(matvec, x.T @ y, conjugate_gradients, symmetric=True)


@ge2.jit
def error(log_penalty, train, held):
    w = weights(np.exp(log_penalty), *train)
    return np.mean((held[0] @ w - held[1]) ** 2)


def main() -> None:
    rng = np.random.default_rng(1)
    truth = rng.normal(size=12) * 0.3
    x = rng.normal(size=(60, 12))
    y = x @ truth + rng.normal(size=60)
    train, held = (x[:30], y[:30]), (x[30:], y[30:])
    step = ge2.jit(ge2.value_and_grad(error))
    at, (first, slope) = 0.0, step(0.0, train, held)
    nearby = (error(1e-4, train, held) - error(-1e-4, train, held)) / 2e-4
    assert np.isclose(slope, nearby, rtol=1e-5)
    for i in range(40):
        value, slope = step(at, train, held)
        at -= 4.0 * float(slope)
        if i % 10 == 9:
            print(
                f"step {i + 1:3}   penalty {np.exp(at):7.3f}   error on held-out data {float(value):.4f}"
            )
    assert value < first


if __name__ == "__main__":
    main()
