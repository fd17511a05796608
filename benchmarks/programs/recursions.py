"""Dynamic programming and loops."""

from __future__ import annotations

import numpy as np

from benchmarks.programs.program import program


@program(lambda d: (d.below(4, 2000), d.normal(4, 5), d.normal(5, 5), d.normal(5)))
def hidden_markov_forward(symbols, emit, move, start):
    """The log likelihood of a chain of observations, rescaled in each step."""
    symbols = symbols[:200]
    emit = np.exp(emit - emit.max(0)) / np.exp(emit - emit.max(0)).sum(0)
    move = np.exp(move) / np.exp(move).sum(1, keepdims=True)
    alpha = np.exp(start) / np.exp(start).sum()
    total = 0.0
    for t in range(len(symbols)):
        alpha = (alpha @ move) * emit[symbols[t]]
        scale = alpha.sum()
        alpha = alpha / scale
        total = total + np.log(scale)
    return total, alpha


@hidden_markov_forward.in_jax
def _(jnp, lax, symbols, emit, move, start):
    symbols = symbols[:200]
    emit = jnp.exp(emit - emit.max(0)) / jnp.exp(emit - emit.max(0)).sum(0)
    move = jnp.exp(move) / jnp.exp(move).sum(1, keepdims=True)

    def step(state, s):
        alpha, total = state
        alpha = (alpha @ move) * emit[s]
        scale = alpha.sum()
        return (alpha / scale, total + jnp.log(scale)), None

    first = jnp.exp(start) / jnp.exp(start).sum(), 0.0
    (alpha, total), _ = lax.scan(step, first, symbols)
    return total, alpha


@program(lambda d: (d.below(26, 200), d.below(26, 1000, 200)))
def edit_distances(word, dictionary):
    """Edit distances of a word to many others, a row of the table at a time."""
    word, dictionary = word[:24], dictionary[:, :24]
    n = dictionary.shape[1]
    columns = np.arange(n + 1)
    row = np.broadcast_to(columns, (len(dictionary), n + 1))
    for i in range(len(word)):
        cost = (dictionary != word[i]).astype(np.int64)
        best = np.minimum(row[:, 1:] + 1, row[:, :-1] + cost)
        first = np.full((len(dictionary), 1), i + 1)
        row = np.concatenate([first, best], axis=1)
        row = np.minimum.accumulate(row - columns, axis=1) + columns
    return row[:, -1]


@program(lambda d: (d.uniform(300, 400),))
def seam_energy(image):
    """The cheapest seam from the top to each pixel of the bottom row."""
    cost = image[0]
    for i in range(1, image.shape[0]):
        left = np.concatenate([[np.inf], cost[:-1]])
        right = np.concatenate([cost[1:], [np.inf]])
        cost = image[i] + np.minimum(np.minimum(left, cost), right)
    return cost.min(), cost.argmin(), cost


@seam_energy.in_jax
def _(jnp, lax, image):
    inf = jnp.array([jnp.inf])

    def step(cost, row):
        left, right = jnp.concatenate([inf, cost[:-1]]), jnp.concatenate([cost[1:], inf])
        return row + jnp.minimum(jnp.minimum(left, cost), right), None

    cost, _ = lax.scan(step, image[0], image[1:])
    return cost.min(), cost.argmin(), cost


@program(lambda d: (d.normal(400, 64), d.normal(64), d.uniform(64)))
def kalman_filters(observed, start, noise):
    """Many scalar filters side by side."""
    x, p = start, np.ones_like(start)
    out = np.zeros_like(observed)
    for t in range(observed.shape[0]):
        p = p + 0.01
        gain = p / (p + noise + 0.1)
        x = x + gain * (observed[t] - x)
        p = (1 - gain) * p
        out[t] = x
    return out, p


@kalman_filters.in_jax
def _(jnp, lax, observed, start, noise):
    def step(state, z):
        x, p = state
        p = p + 0.01
        gain = p / (p + noise + 0.1)
        x = x + gain * (z - x)
        return (x, (1 - gain) * p), x

    (_, p), out = lax.scan(step, (start, jnp.ones_like(start)), observed)
    return out, p


@program(lambda d: (d.normal(120, 500), d.normal(120, 500)))
def time_warping(a, b):
    """Dynamic time warping of many pairs of series, along the diagonals' rows."""
    a, b = a[:24], b[:24]
    n = len(a)
    far = np.full(a.shape[1], np.inf)
    row = [far] * (n + 1)
    row[0] = np.zeros(a.shape[1])
    for i in range(n):
        new = [far]
        for j in range(n):
            best = np.minimum(np.minimum(row[j], row[j + 1]), new[j])
            new.append(np.abs(a[i] - b[j]) + best)
        row = new
    return row[-1]


@time_warping.in_jax
def _(jnp, lax, a, b):
    a, b = a[:24], b[:24]
    far = jnp.full(a.shape[1], jnp.inf)

    def line(row, x):
        def cell(left, at):
            diagonal, up, y = at
            value = jnp.abs(x - y) + jnp.minimum(jnp.minimum(diagonal, up), left)
            return value, value

        _, new = lax.scan(cell, far, (row[:-1], row[1:], b))
        return jnp.concatenate([far[None], new]), None

    first = jnp.concatenate(
        [jnp.zeros((1, a.shape[1])), jnp.broadcast_to(far, (len(b), a.shape[1]))]
    )
    return lax.scan(line, first, a)[0][-1]


@program(lambda d: (d.uniform(5000, low=0.5, high=2.0),), tolerance=1e-8)
def continued_fractions(x):
    """Bessel's ratio by a continued fraction from below, and the arithmetic-geometric mean."""
    f = np.zeros_like(x)
    for k in range(30, 0, -1):
        f = 1 / (2 * k / x - f)
    a, g = x, np.ones_like(x)
    for _ in range(6):
        a, g = (a + g) / 2, np.sqrt(a * g)
    return f, np.pi / (2 * a)


@program(lambda d: (d.uniform(400, 300), d.uniform(300)))
def value_iteration(reward, discount):
    """Thirty backups of a decision process on a ring with three moves."""
    v = np.zeros(reward.shape[1])
    gamma = 0.9 + 0.09 * discount
    r = reward[:3]
    for _ in range(30):
        options = np.stack([np.roll(v, 1), v, np.roll(v, -1)])
        q = r[: len(options)] + gamma * options
        v = q.max(0)
    return v, q.argmax(0)


@value_iteration.in_jax
def _(jnp, lax, reward, discount):
    gamma, r = 0.9 + 0.09 * discount, reward[:3]

    def backup(v):
        return r + gamma * jnp.stack([jnp.roll(v, 1), v, jnp.roll(v, -1)])

    v = lax.fori_loop(0, 29, lambda _, v: backup(v).max(0), jnp.zeros(reward.shape[1]))
    q = backup(v)
    return q.max(0), q.argmax(0)


@program(lambda d: (d.normal(20_000), d.normal(20_000)), tolerance=1e-8)
def runge_kutta(x, v):
    """A driven pendulum of many phases by forty classical steps."""
    dt = 0.05

    def f(x, v, t):
        return v, -np.sin(x) - 0.2 * v + 0.7 * np.cos(0.66 * t)

    for i in range(40):
        t = i * dt
        a1, b1 = f(x, v, t)
        a2, b2 = f(x + dt / 2 * a1, v + dt / 2 * b1, t + dt / 2)
        a3, b3 = f(x + dt / 2 * a2, v + dt / 2 * b2, t + dt / 2)
        a4, b4 = f(x + dt * a3, v + dt * b3, t + dt)
        x = x + dt / 6 * (a1 + 2 * a2 + 2 * a3 + a4)
        v = v + dt / 6 * (b1 + 2 * b2 + 2 * b3 + b4)
    return x, v


@runge_kutta.in_jax
def _(jnp, lax, x, v):
    dt = 0.05

    def f(x, v, t):
        return v, -jnp.sin(x) - 0.2 * v + 0.7 * jnp.cos(0.66 * t)

    def step(i, state):
        x, v = state
        t = i * dt
        a1, b1 = f(x, v, t)
        a2, b2 = f(x + dt / 2 * a1, v + dt / 2 * b1, t + dt / 2)
        a3, b3 = f(x + dt / 2 * a2, v + dt / 2 * b2, t + dt / 2)
        a4, b4 = f(x + dt * a3, v + dt * b3, t + dt)
        return x + dt / 6 * (a1 + 2 * a2 + 2 * a3 + a4), v + dt / 6 * (b1 + 2 * b2 + 2 * b3 + b4)

    return lax.fori_loop(0, 40, step, (x, v))


@program(lambda d: (d.uniform(300, 300), d.uniform(300, 300)))
def escape_times(re, im):
    """Forty iterations of a quadratic map in two real numbers; when each point leaves."""
    cr, ci = 3 * re - 2, 2 * im - 1
    zr, zi = np.zeros_like(cr), np.zeros_like(ci)
    count = np.zeros(cr.shape, np.int32)
    for _ in range(40):
        inside = zr * zr + zi * zi < 4
        zr, zi = (
            np.where(inside, zr * zr - zi * zi + cr, zr),
            np.where(inside, 2 * zr * zi + ci, zi),
        )
        count = count + inside
    return count


@escape_times.in_jax
def _(jnp, lax, re, im):
    cr, ci = 3 * re - 2, 2 * im - 1

    def step(_, state):
        zr, zi, count = state
        inside = zr * zr + zi * zi < 4
        r, i = zr * zr - zi * zi + cr, 2 * zr * zi + ci
        return jnp.where(inside, r, zr), jnp.where(inside, i, zi), count + inside

    zero = jnp.zeros_like(cr)
    return lax.fori_loop(0, 40, step, (zero, zero, jnp.zeros(cr.shape, jnp.int32)))[2]


@program(lambda d: (d.below(50, 60), d.below(90, 60)))
def knapsack_table(weights, values):
    """The best values for every capacity, an item at a time."""
    capacity = 400
    best = np.zeros_like(values, shape=capacity + 1)
    at = np.arange(capacity + 1)
    for k in range(len(weights)):
        w = weights[k] + 1
        taken = np.where(at >= w, best[np.maximum(at - w, 0)] + values[k], 0)
        best = np.maximum(best, taken)
    return best


@knapsack_table.in_jax
def _(jnp, lax, weights, values):
    at = jnp.arange(401)

    def step(best, item):
        w, value = item[0] + 1, item[1]
        taken = jnp.where(at >= w, best[jnp.maximum(at - w, 0)] + value, 0)
        return jnp.maximum(best, taken), None

    return lax.scan(step, jnp.zeros(401, jnp.int64), (weights, values))[0]
