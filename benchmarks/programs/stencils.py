"""Stencils and partial differential equations."""

from __future__ import annotations

import numpy as np

from benchmarks.programs.program import program


@program(lambda d: (d.uniform(512, 512), d.uniform(512, 512, low=0.5, high=1.0)))
def variable_diffusion(u, k):
    """Ten explicit steps of du/dt = div(k grad u), by fluxes on faces."""
    dt = 0.1
    u = u.copy()
    for _ in range(10):
        fx = 0.5 * (k[1:, :] + k[:-1, :]) * (u[1:, :] - u[:-1, :])
        fy = 0.5 * (k[:, 1:] + k[:, :-1]) * (u[:, 1:] - u[:, :-1])
        u[1:-1, 1:-1] += dt * (fx[1:, 1:-1] - fx[:-1, 1:-1] + fy[1:-1, 1:] - fy[1:-1, :-1])
    return u


@variable_diffusion.in_jax
def _(jnp, lax, u, k):
    kx, ky = 0.5 * (k[1:, :] + k[:-1, :]), 0.5 * (k[:, 1:] + k[:, :-1])

    def step(_, u):
        fx, fy = kx * jnp.diff(u, axis=0), ky * jnp.diff(u, axis=1)
        div = fx[1:, 1:-1] - fx[:-1, 1:-1] + fy[1:-1, 1:] - fy[1:-1, :-1]
        return u.at[1:-1, 1:-1].add(0.1 * div)

    return lax.fori_loop(0, 10, step, u)


@program(lambda d: (d.uniform(100_000, low=-1.0),))
def godunov_burgers(u):
    """Twenty steps of Burgers' equation with Godunov's flux on a ring."""
    for _ in range(20):
        right = np.roll(u, -1)
        low, high = np.minimum(u, right), np.maximum(u, right)
        flux_rarefaction = np.where(low > 0, low**2 / 2, np.where(high < 0, high**2 / 2, 0.0))
        flux_shock = np.maximum(u**2, right**2) / 2
        flux = np.where(u <= right, flux_rarefaction, flux_shock)
        u = u - 0.4 * (flux - np.roll(flux, 1))
    return u


@godunov_burgers.in_jax
def _(jnp, lax, u):
    def step(_, u):
        right = jnp.roll(u, -1)
        low, high = jnp.minimum(u, right), jnp.maximum(u, right)
        rarefaction = jnp.where(low > 0, low**2 / 2, jnp.where(high < 0, high**2 / 2, 0.0))
        flux = jnp.where(u <= right, rarefaction, jnp.maximum(u**2, right**2) / 2)
        return u - 0.4 * (flux - jnp.roll(flux, 1))

    return lax.fori_loop(0, 20, step, u)


@program(lambda d: (d.below(2, 1000, 1000, dtype=np.uint8),))
def game_of_life(board):
    """Eight generations on a torus."""
    for _ in range(8):
        neighbours = sum(
            np.roll(np.roll(board, i, axis=0), j, axis=1)
            for i in (-1, 0, 1)
            for j in (-1, 0, 1)
            if (i, j) != (0, 0)
        )
        board = ((neighbours == 3) | ((board == 1) & (neighbours == 2))).astype(np.uint8)
    return board


@game_of_life.in_jax
def _(jnp, lax, board):
    def step(_, board):
        padded = jnp.pad(board, 1, mode="wrap")
        n, m = board.shape
        shifts = [(i, j) for i in range(3) for j in range(3) if (i, j) != (1, 1)]
        neighbours = sum(padded[i : i + n, j : j + m] for i, j in shifts)
        return ((neighbours == 3) | ((board == 1) & (neighbours == 2))).astype(jnp.uint8)

    return lax.fori_loop(0, 8, step, board)


@program(lambda d: (d.uniform(600, 800, high=255.0),))
def anisotropic_smoothing(image):
    """Perona and Malik's smoothing, six steps."""
    kappa = 20.0
    for _ in range(6):
        padded = np.pad(image, 1, mode="edge")
        north, south = padded[:-2, 1:-1] - image, padded[2:, 1:-1] - image
        west, east = padded[1:-1, :-2] - image, padded[1:-1, 2:] - image
        image = image + 0.2 * sum(
            d * np.exp(-((d / kappa) ** 2)) for d in (north, south, west, east)
        )
    return image


@anisotropic_smoothing.in_jax
def _(jnp, lax, image):
    def step(_, image):
        padded = jnp.pad(image, 1, mode="edge")
        north, south = padded[:-2, 1:-1] - image, padded[2:, 1:-1] - image
        west, east = padded[1:-1, :-2] - image, padded[1:-1, 2:] - image
        d = jnp.stack([north, south, west, east])
        return image + 0.2 * (d * jnp.exp(-((d / 20.0) ** 2))).sum(0)

    return lax.fori_loop(0, 6, step, image)


@program(lambda d: (d.normal(96, 96, 96), d.normal(96, 96, 96)))
def wave_in_three_dimensions(u, before):
    """Five leapfrog steps with a seven-point Laplacian and walls that hold still."""
    c2 = 0.2
    for _ in range(5):
        lap = np.zeros_like(u)
        lap[1:-1, 1:-1, 1:-1] = (
            u[2:, 1:-1, 1:-1]
            + u[:-2, 1:-1, 1:-1]
            + u[1:-1, 2:, 1:-1]
            + u[1:-1, :-2, 1:-1]
            + u[1:-1, 1:-1, 2:]
            + u[1:-1, 1:-1, :-2]
            - 6 * u[1:-1, 1:-1, 1:-1]
        )
        u, before = 2 * u - before + c2 * lap, u
    return u


@wave_in_three_dimensions.in_jax
def _(jnp, lax, u, before):
    def step(_, pair):
        u, before = pair
        inner = (slice(1, -1),) * 3
        lap = -6 * u[inner]
        for axis in range(3):
            for part in (slice(2, None), slice(None, -2)):
                at = list(inner)
                at[axis] = part
                lap = lap + u[tuple(at)]
        return 2 * u - before + 0.2 * jnp.pad(lap, 1), u

    return lax.fori_loop(0, 5, step, (u, before))[0]


@program(lambda d: (d.normal(512, 512),))
def red_black_relaxation(f):
    """Ten sweeps for a Poisson equation, red points and then black ones, by masks."""
    u = np.zeros_like(f)
    i, j = np.indices(f.shape)
    red = (i + j) % 2 == 0
    for _ in range(10):
        for mask in (red, ~red):
            p = np.pad(u, 1)
            mean = 0.25 * (p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - f)
            u = np.where(mask, mean, u)
    return u


@red_black_relaxation.in_jax
def _(jnp, lax, f):
    i, j = jnp.indices(f.shape)
    red = (i + j) % 2 == 0

    def sweep(_, u):
        for mask in (red, ~red):
            p = jnp.pad(u, 1)
            mean = 0.25 * (p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - f)
            u = jnp.where(mask, mean, u)
        return u

    return lax.fori_loop(0, 10, sweep, jnp.zeros_like(f))


@program(lambda d: (d.uniform(512, 512, low=1.0, high=1.2), d.normal(512, 512), d.normal(512, 512)))
def shallow_water_energy(h, u, v):
    """Energy, potential vorticity and divergence of a flow, by centred differences on a torus."""
    g, f = 9.81, 1e-4

    def ddx(a):
        return (np.roll(a, -1, 1) - np.roll(a, 1, 1)) / 2

    def ddy(a):
        return (np.roll(a, -1, 0) - np.roll(a, 1, 0)) / 2

    vorticity = ddx(v) - ddy(u)
    potential = (vorticity + f) / h
    energy = (0.5 * h * (u**2 + v**2) + 0.5 * g * h**2).sum()
    return potential, ddx(u * h) + ddy(v * h), energy


@program(lambda d: (d.uniform(1025, 1025),))
def multigrid_transfer(fine):
    """Full weighting to a coarse grid, and bilinear interpolation back."""
    n = (fine.shape[0] - 1) // 2 * 2 + 1
    fine = fine[:n, :n]
    coarse = fine[::2, ::2].copy()
    coarse[1:-1, 1:-1] = (
        4 * fine[2:-2:2, 2:-2:2]
        + 2 * (fine[1:-3:2, 2:-2:2] + fine[3:-1:2, 2:-2:2])
        + 2 * (fine[2:-2:2, 1:-3:2] + fine[2:-2:2, 3:-1:2])
        + (fine[1:-3:2, 1:-3:2] + fine[3:-1:2, 1:-3:2])
        + (fine[1:-3:2, 3:-1:2] + fine[3:-1:2, 3:-1:2])
    ) / 16
    back = np.zeros_like(fine)
    back[::2, ::2] = coarse
    back[1::2, ::2] = (coarse[1:] + coarse[:-1]) / 2
    back[:, 1::2] = (back[:, :-2:2] + back[:, 2::2]) / 2
    return coarse, back


@multigrid_transfer.in_jax
def _(jnp, lax, fine):
    n = (fine.shape[0] - 1) // 2 * 2 + 1
    fine = fine[:n, :n]
    weights = jnp.array([0.25, 0.5, 0.25])
    lines = sum(w * fine[i : n - 4 + i + 1 : 2] for i, w in zip((1, 2, 3), weights, strict=True))
    inner = sum(
        w * lines[:, i : n - 4 + i + 1 : 2] for i, w in zip((1, 2, 3), weights, strict=True)
    )
    coarse = fine[::2, ::2].at[1:-1, 1:-1].set(inner)
    back = jnp.zeros(fine.shape).at[::2, ::2].set(coarse)
    back = back.at[1::2, ::2].set((coarse[1:] + coarse[:-1]) / 2)
    return coarse, back.at[:, 1::2].set((back[:, :-2:2] + back[:, 2::2]) / 2)


@program(lambda d: (d.uniform(200_000, low=0.9, high=1.1), d.normal(200_000)))
def weno_derivative(u, speed):
    """The fifth-order upwind-biased derivative with smoothness indicators."""
    a, b, c, d, e = (np.roll(u, k) for k in (2, 1, 0, -1, -2))
    q0, q1, q2 = (2 * a - 7 * b + 11 * c) / 6, (-b + 5 * c + 2 * d) / 6, (2 * c + 5 * d - e) / 6
    s0 = 13 / 12 * (a - 2 * b + c) ** 2 + 0.25 * (a - 4 * b + 3 * c) ** 2
    s1 = 13 / 12 * (b - 2 * c + d) ** 2 + 0.25 * (b - d) ** 2
    s2 = 13 / 12 * (c - 2 * d + e) ** 2 + 0.25 * (3 * c - 4 * d + e) ** 2
    w0, w1, w2 = (g / (1e-6 + s) ** 2 for g, s in ((0.1, s0), (0.6, s1), (0.3, s2)))
    face = (w0 * q0 + w1 * q1 + w2 * q2) / (w0 + w1 + w2)
    return speed * (face - np.roll(face, 1))


@program(lambda d: (d.uniform(256, 256), d.uniform(256, 256)))
def predator_prey(u, v):
    """Fifteen steps of a reaction with diffusion; the boundary is reflected."""

    def laplacian(a):
        p = np.pad(a, 1, mode="reflect")
        return p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * a

    for _ in range(15):
        eaten = u * v / (0.3 + u)
        u, v = (
            u + 0.05 * (0.1 * laplacian(u) + u * (1 - u) - eaten),
            v + 0.05 * (0.2 * laplacian(v) + 0.8 * eaten - 0.4 * v),
        )
    return u, v


@predator_prey.in_jax
def _(jnp, lax, u, v):
    def laplacian(a):
        p = jnp.pad(a, 1, mode="reflect")
        return p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * a

    def step(_, pair):
        u, v = pair
        eaten = u * v / (0.3 + u)
        return (
            u + 0.05 * (0.1 * laplacian(u) + u * (1 - u) - eaten),
            v + 0.05 * (0.2 * laplacian(v) + 0.8 * eaten - 0.4 * v),
        )

    return lax.fori_loop(0, 15, step, (u, v))


@program(lambda d: (d.normal(400, 400),), tolerance=1e-8)
def curvature_flow(phi):
    """Four steps of a level set that moves with its curvature."""
    for _ in range(4):
        gy, gx = np.gradient(phi)
        norm = np.sqrt(gx**2 + gy**2 + 1e-3)
        ny, nx = gy / norm, gx / norm
        curvature = np.gradient(ny, axis=0) + np.gradient(nx, axis=1)
        phi = phi + 0.1 * curvature * norm
    return phi
