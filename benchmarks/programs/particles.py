"""Bodies, molecules and graphs."""

from __future__ import annotations

import numpy as np

from benchmarks.programs.program import program


@program(lambda d: (d.normal(1500, 3), d.normal(1500, 3), d.uniform(1500)))
def gravity_steps(x, v, mass):
    """Three leapfrog steps of softened gravity, by all pairs, and the energy."""
    dt, soft = 0.01, 0.05

    def acceleration(x):
        r = x[None, :, :] - x[:, None, :]
        d2 = (r**2).sum(-1) + soft**2
        return (mass[None, :, None] * r / d2[..., None] ** 1.5).sum(1)

    for _ in range(3):
        v = v + 0.5 * dt * acceleration(x)
        x = x + dt * v
        v = v + 0.5 * dt * acceleration(x)
    return x, v, 0.5 * (mass * (v**2).sum(1)).sum()


@gravity_steps.in_jax
def _(jnp, lax, x, v, mass):
    def acceleration(x):
        r = x[None, :, :] - x[:, None, :]
        d2 = (r**2).sum(-1) + 0.05**2
        return (mass[None, :, None] * r / d2[..., None] ** 1.5).sum(1)

    def step(_, state):
        x, v = state
        v = v + 0.005 * acceleration(x)
        x = x + 0.01 * v
        return x, v + 0.005 * acceleration(x)

    x, v = lax.fori_loop(0, 3, step, (x, v))
    return x, v, 0.5 * (mass * (v**2).sum(1)).sum()


@program(lambda d: (d.uniform(1000, 3, high=10.0),), tolerance=1e-8)
def lennard_jones(x):
    """Energy and virial of a periodic box with a cut-off."""
    box = 10.0
    r = x[:, None, :] - x[None, :, :]
    r = r - box * np.round(r / box)
    d2 = (r**2).sum(-1) + np.eye(len(x))
    near = (d2 < 9.0) & ~np.eye(len(x), dtype=bool)
    i6 = np.where(near, 1.0 / (d2 + 0.3) ** 3, 0.0)
    return 2 * (i6 * i6 - i6).sum(), 12 * (2 * i6 * i6 - i6).sum(1)


@program(lambda d: (d.below(20_000, 200_000), d.below(20_000, 200_000), d.uniform(20_000)))
def page_rank(source, target, start):
    """Ten rounds along the edges of a graph."""
    n = len(start)
    source, target = source % n, target % n
    degree = np.bincount(source, minlength=n)
    rank = start / start.sum()
    for _ in range(10):
        share = np.where(degree > 0, rank / np.maximum(degree, 1), 0.0)
        inflow = np.bincount(target, weights=share[source], minlength=n)
        rank = 0.15 / n + 0.85 * inflow
    return rank


@page_rank.in_jax
def _(jnp, lax, source, target, start):
    n = len(start)
    source, target = source % n, target % n
    degree = jnp.bincount(source, length=n)

    def step(_, rank):
        share = jnp.where(degree > 0, rank / jnp.maximum(degree, 1), 0.0)
        return 0.15 / n + 0.85 * jnp.zeros(n).at[target].add(share[source])

    return lax.fori_loop(0, 10, step, start / start.sum())


@program(lambda d: (d.normal(20_000, 3), d.below(20_000, 60_000, 2)))
def spring_network(x, edges):
    """Forces of springs on the nodes of a mesh, added where they act."""
    edges = edges % len(x)
    a, b = edges[:, 0], edges[:, 1]
    d = x[b] - x[a]
    length = np.sqrt((d**2).sum(1) + 1e-12)
    force = ((length - 1.0) / length)[:, None] * d
    total = np.zeros_like(x)
    np.add.at(total, a, force)
    np.add.at(total, b, -force)
    return total, (0.5 * (length - 1.0) ** 2).sum()


@spring_network.in_jax
def _(jnp, lax, x, edges):
    edges = edges % len(x)
    a, b = edges[:, 0], edges[:, 1]
    d = x[b] - x[a]
    length = jnp.sqrt((d**2).sum(1) + 1e-12)
    force = ((length - 1.0) / length)[:, None] * d
    total = jnp.zeros_like(x).at[a].add(force).at[b].add(-force)
    return total, (0.5 * (length - 1.0) ** 2).sum()


@program(lambda d: (d.normal(20_000, 16), d.below(20_000, 20_000, 8), d.normal(16, 16)))
def message_passing(h, neighbours, w):
    """A layer of a graph network: mean and largest of the neighbours, then a product."""
    gathered = h[neighbours % len(h)]
    mean, top = gathered.mean(axis=1), gathered.max(axis=1)
    out = np.maximum((h + mean - 0.1 * top) @ w, 0)
    return out / np.sqrt((out**2).sum(1, keepdims=True) + 1e-6)


@program(lambda d: (d.normal(3000, 5, 3),), tolerance=1e-8)
def torsion_angles(x):
    """Bond lengths, angles and dihedral angles along many short chains."""
    b = x[:, 1:] - x[:, :-1]
    length = np.linalg.norm(b, axis=-1)
    u = b / length[..., None]
    angle = np.arccos(np.clip(-(u[:, 1:] * u[:, :-1]).sum(-1), -1, 1))
    n = np.cross(b[:, :-1], b[:, 1:])
    m = np.cross(n[:, :-1], u[:, 1:-1])
    dihedral = np.arctan2((m * n[:, 1:]).sum(-1), (n[:, :-1] * n[:, 1:]).sum(-1))
    return length, angle, dihedral


@program(lambda d: (d.uniform(400, 2), d.normal(400, 2)), tolerance=1e-8)
def flocking(x, v):
    """Five steps of birds that align, approach and avoid their neighbours."""
    for _ in range(5):
        d = x[None] - x[:, None]
        r = np.sqrt((d**2).sum(-1) + 1e-9)
        near = (r < 0.2).astype(float) - np.eye(len(x))
        count = np.maximum(near.sum(1), 1)[:, None]
        align = near @ v / count - v
        cohere = (near[..., None] * d).sum(1) / count
        avoid = -((r < 0.05)[..., None] * d / (r[..., None] + 0.01)).sum(1)
        v = v + 0.05 * align + 0.02 * cohere + 0.05 * avoid
        v = v / np.maximum(np.sqrt((v**2).sum(1, keepdims=True)), 1e-3)
        x = np.mod(x + 0.01 * v, 1.0)
    return x, v


@program(lambda d: (d.uniform(400, 400) + 0.01,))
def all_shortest_paths(w):
    """Distances of all pairs by min-plus products, squared three times."""
    n = min(w.shape[0], 160)
    d = np.where(np.eye(n, dtype=bool), 0.0, w[:n, :n])
    for _ in range(3):
        d = (d[:, :, None] + d[None, :, :]).min(axis=1)
    return d


@program(lambda d: (d.uniform(200_000, 3, high=16.0), d.normal(200_000)))
def particle_mesh(x, charge):
    """Charges of particles spread over the eight nodes around them."""
    n = 16
    low = np.floor(x).astype(np.int64)
    f = x - low
    grid = np.zeros(n * n * n)
    for i in (0, 1):
        for j in (0, 1):
            for k in (0, 1):
                corner = (low + np.array([i, j, k])) % n
                w = np.abs(1 - i - f[:, 0]) * np.abs(1 - j - f[:, 1]) * np.abs(1 - k - f[:, 2])
                at = (corner[:, 0] * n + corner[:, 1]) * n + corner[:, 2]
                grid = grid + np.bincount(at, weights=w * charge, minlength=n**3)
    return grid.reshape(n, n, n)


@particle_mesh.in_jax
def _(jnp, lax, x, charge):
    n = 16
    low = jnp.floor(x).astype(int)
    f = x - low
    corners = jnp.stack(jnp.meshgrid(*[jnp.arange(2)] * 3, indexing="ij"), -1).reshape(8, 3)
    at = (low[:, None] + corners) % n
    w = jnp.abs(1 - corners - f[:, None]).prod(-1) * charge[:, None]
    return jnp.zeros((n, n, n)).at[at[..., 0], at[..., 1], at[..., 2]].add(w)


@program(lambda d: (d.below(2, 600, 600) * 1.0, d.uniform(600)), tolerance=1e-8)
def random_walk_on_a_graph(adjacency, start):
    """A graph's normalised Laplacian, diffusion by it, and the entropy of the walk."""
    degree = adjacency.sum(1) + 1e-6
    p = adjacency / degree[:, None]
    x = start / start.sum()
    for _ in range(12):
        x = 0.5 * x + 0.5 * x @ p
    root = 1 / np.sqrt(degree)
    laplacian = np.eye(len(x)) - root[:, None] * adjacency * root
    return x, -(x * np.log(x + 1e-12)).sum(), (laplacian**2).sum()


@program(lambda d: (d.normal(256, 3), d.normal(256, 3), d.uniform(256)), tolerance=1e-8)
def rigid_alignment(a, b, w):
    """Weighted centroids, covariance and the root mean square after a rotation by quaternions."""
    w = w / w.sum()
    ca, cb = w @ a, w @ b
    x, y = a - ca, b - cb
    s = np.einsum("n,ni,nj->ij", w, x, y)
    trace = np.trace(s)
    skew = np.array([0.0, 1.0, 0.0])
    shifted = x @ s / (np.abs(s).sum() + 1.0) + skew[: x.shape[1]]
    return trace, np.sqrt((w[:, None] * (shifted - y) ** 2).sum())
