"""A physics-informed network (Raissi and others, 2019): the heat equation solved by a small network.

u_t = u_xx / pi^2 with u(x, 0) = sin(pi x) and 0 at both ends has the solution exp(-t) sin(pi x). Its
residuals hold second derivatives of the network, and their squares are made small by the method of
Levenberg and Marquardt, with their Jacobian by all parameters: derivatives of derivatives.

python examples/pinn.py [picture.png]
"""

from __future__ import annotations

import sys

import numpy as np

import ge2
from ge2 import nn


def u(model, x, t):
    """The solution at one place and time; the form of it has the right values at the boundary."""
    inside = x * (1 - x) * t * model(np.stack([x, t]))[0]
    return np.sin(np.pi * x) + inside


def residuals(model, xs, ts):
    """u_t - u_xx / pi^2 at each of the places."""

    def residual(x, t):
        u_t = ge2.grad(u, 2)(model, x, t)
        u_xx = ge2.grad(ge2.grad(u, 1), 1)(model, x, t)
        return u_t - u_xx / np.pi**2

    return ge2.vmap(residual)(xs, ts)


def main(steps: int = 30, width: int = 12, picture: str | None = None) -> None:
    xs, ts = (grid.ravel() for grid in np.meshgrid(np.linspace(0, 1, 12), np.linspace(0, 1, 12)))
    model = nn.MLP.init(
        ge2.random.key(0), (2, width, width, 1), activation=np.tanh, dtype=np.float64
    )
    vector, unravel = ge2.tree.ravel(model)

    @ge2.jit
    def step(vector, damping):
        of = lambda vector: residuals(unravel(vector), xs, ts)  # noqa: E731
        errors, jacobian = of(vector), ge2.jacfwd(of)(vector)
        curvature = jacobian.T @ jacobian + damping * np.eye(len(vector))
        new = vector - np.linalg.solve(curvature, jacobian.T @ errors)
        return new, np.mean(errors**2), np.mean(of(new) ** 2)

    damping = 1.0
    for i in range(steps):
        new, before, after = step(vector, damping)
        if after < before:
            vector, damping = new, damping / 4
        else:
            damping *= 8
        if (i + 1) % (steps // 5) == 0:
            print(f"step {i + 1:3}   mean square of the residual {min(before, after):.2e}")
    fine = np.linspace(0, 1, 41)
    over = lambda f: ge2.vmap(ge2.vmap(f, (None, 0)), (0, None))(fine, fine)  # noqa: E731
    found = over(lambda t, x: u(unravel(vector), x, t))
    off = np.abs(found - np.exp(-fine[:, None]) * np.sin(np.pi * fine))
    print(f"largest error beside exp(-t) sin(pi x): {off.max():.1e}")
    assert off.max() < 2e-3
    if picture:
        draw(picture, found, off)


def draw(path, found, off):
    import matplotlib.pyplot as plt

    for i, (x, title) in enumerate(((found, "u(x, t) of the network"), (off, "its error"))):
        plt.subplot(1, 2, i + 1)
        plt.imshow(x, origin="lower", extent=(0, 1, 0, 1))
        plt.title(title, fontsize=8)
        plt.colorbar(shrink=0.5)
    plt.gcf().set_size_inches(6, 2.6)
    plt.savefig(path, dpi=100, bbox_inches="tight")


if __name__ == "__main__":
    main(picture=next(iter(sys.argv[1:]), None))
