"""Linear algebra and solvers."""

from __future__ import annotations

import numpy as np

from benchmarks.programs.program import program


def spd(d, n):
    a = d.normal(n, n)
    return a @ a.T / len(a) + np.eye(len(a))


@program(lambda d: (spd(d, 500), d.normal(500)), tolerance=1e-7)
def conjugate_gradients(a, b):
    """Thirty steps from zero; the residual's norm beside the solution."""
    x = np.zeros_like(b)
    r = b - a @ x
    p, rs = r, r @ r
    for _ in range(30):
        ap = a @ p
        alpha = rs / (p @ ap)
        x, r = x + alpha * p, r - alpha * ap
        new = r @ r
        p, rs = r + new / rs * p, new
    return x, np.sqrt(rs)


@conjugate_gradients.in_jax
def _(jnp, lax, a, b):
    def step(_, state):
        x, r, p, rs = state
        ap = a @ p
        alpha = rs / (p @ ap)
        x, r = x + alpha * p, r - alpha * ap
        new = r @ r
        return x, r, r + new / rs * p, new

    x, _, _, rs = lax.fori_loop(0, 30, step, (jnp.zeros_like(b), b, b, b @ b))
    return x, jnp.sqrt(rs)


@program(lambda d: (spd(d, 600), d.normal(600)), tolerance=1e-8)
def power_iteration(a, x):
    """The largest eigenvalue and its vector after forty products."""
    for _ in range(40):
        y = a @ x
        x = y / np.linalg.norm(y)
    return x @ (a @ x), np.abs(x)


@power_iteration.in_jax
def _(jnp, lax, a, x):
    def step(_, x):
        y = a @ x
        return y / jnp.linalg.norm(y)

    x = lax.fori_loop(0, 40, step, x)
    return x @ (a @ x), jnp.abs(x)


@program(lambda d: (d.normal(300, 40), d.normal(300)), tolerance=1e-7)
def gram_schmidt(a, b):
    """Orthonormal columns one by one, and the least-squares fit of b by them."""
    columns = []
    for k in range(a.shape[1]):
        v = a[:, k]
        for q in columns:
            v = v - (q @ v) * q
        columns.append(v / np.sqrt(v @ v))
    q = np.stack(columns, axis=1)
    return q, q @ (q.T @ b)


@gram_schmidt.in_jax
def _(jnp, lax, a, b):
    def step(k, q):
        def remove(j, v):
            return jnp.where(j < k, v - (q[:, j] @ v) * q[:, j], v)

        v = lax.fori_loop(0, a.shape[1], remove, a[:, k])
        return q.at[:, k].set(v / jnp.sqrt(v @ v))

    q = lax.fori_loop(0, a.shape[1], step, jnp.zeros_like(a))
    return q, q @ (q.T @ b)


@program(lambda d: (d.normal(200_000, 3, 3), d.normal(200_000, 3)))
def small_solves(a, b):
    """Many 3 x 3 systems by Cramer's rule."""
    n = min(a.shape[1], 3)
    a, b = a[:, :n, :n] + 3 * np.eye(n), b[:, :n]
    r0, r1, r2 = a[:, 0], a[:, 1], a[:, 2]
    c01, c12, c20 = np.cross(r0, r1), np.cross(r1, r2), np.cross(r2, r0)
    det = (r0 * c12).sum(1)
    return (b[:, :1] * c12 + b[:, 1:2] * c20 + b[:, 2:] * c01) / det[:, None]


@program(lambda d: (spd(d, 400), d.normal(400, 8)), tolerance=1e-7, bound_by="linalg")
def gaussian_process(k, y):
    """The log likelihood of several targets under a covariance."""
    n = k.shape[0]
    factor = np.linalg.cholesky(k)
    alpha = np.linalg.solve(factor, y)
    fit = -0.5 * (alpha**2).sum(0)
    return fit - np.log(np.diagonal(factor)).sum() - 0.5 * n * np.log(2 * np.pi)


@program(lambda d: (d.normal(1000, 1000), d.normal(1000), d.normal(1000)))
def rank_one_updates(a, u, v):
    """Sherman and Morrison's update of an inverse, and what it does to a trace."""
    au, va = a @ u, v @ a
    new = a - np.outer(au, va) / (1 + v @ au)
    return new, np.trace(new) - np.trace(a)


@program(lambda d: (d.normal(300, 300),), tolerance=1e-7)
def newton_schulz(a):
    """A matrix's orthogonal factor by eight products that square the error."""
    x = a / np.sqrt((a * a).sum())
    for _ in range(8):
        x = 1.5 * x - 0.5 * x @ x.T @ x
    return x


@newton_schulz.in_jax
def _(jnp, lax, a):
    x = a / jnp.linalg.norm(a)
    return lax.fori_loop(0, 8, lambda _, x: 1.5 * x - 0.5 * x @ x.T @ x, x)


@program(lambda d: (d.normal(400, 400, dtype=np.float32),), tolerance=1e-4)
def matrix_exponential(a):
    """Taylor's series of a scaled matrix, squared back."""
    a = a / 64.0
    n = a.shape[0]
    term = np.eye(n, dtype=a.dtype)
    total = term
    for k in range(1, 9):
        term = term @ a / k
        total = total + term
    for _ in range(4):
        total = total @ total
    return total


@program(lambda d: (d.normal(20_000, 4, 4), d.normal(20_000, 4, 4), d.normal(20_000, 4)))
def chains_of_transforms(a, b, x):
    """Homogeneous transforms of many points, composed and inverted on their rigid part."""
    n = min(4, a.shape[1])
    both = np.einsum("nij,njk->nik", a[:, :n, :n], b[:, :n, :n])
    moved = np.einsum("nij,nj->ni", both, x[:, :n])
    return moved[:, :3] / (np.abs(moved[:, 3:4]) + 1.0)


@program(lambda d: (d.uniform(1500, 1500) + 0.01, d.uniform(1500), d.uniform(1500)), tolerance=1e-8)
def sinkhorn(cost, a, b):
    """Entropic optimal transport: twenty scalings of rows and columns."""
    a, b = a / a.sum(), b / b.sum()
    kernel = np.exp(-cost / 0.2)
    u = np.ones_like(a)
    for _ in range(20):
        v = b / (kernel.T @ u)
        u = a / (kernel @ v)
    return (u[:, None] * kernel * v[None, :] * cost).sum()


@sinkhorn.in_jax
def _(jnp, lax, cost, a, b):
    a, b = a / a.sum(), b / b.sum()
    kernel = jnp.exp(-cost / 0.2)

    def step(_, pair):
        v = b / (kernel.T @ pair[0])
        return a / (kernel @ v), v

    u, v = lax.fori_loop(0, 20, step, (jnp.ones_like(a), b))
    return (u[:, None] * kernel * v[None, :] * cost).sum()


@program(lambda d: (d.normal(2000, 200), d.normal(2000), d.normal(200)), tolerance=1e-8)
def lasso_by_thresholds(a, b, w):
    """Fifteen steps of iterative soft thresholding with momentum."""
    step = 1 / (np.abs(a).sum(0).max() * np.abs(a).sum(1).max())
    z, t = w, 1.0
    for _ in range(15):
        g = z - step * (a.T @ (a @ z - b))
        new = np.sign(g) * np.maximum(np.abs(g) - 0.1 * step, 0)
        t_new = (1 + np.sqrt(1 + 4 * t * t)) / 2
        z, w, t = new + (t - 1) / t_new * (new - w), new, t_new
    return w
