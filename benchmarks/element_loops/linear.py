"""Linear algebra a row or an element at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.element_loops.program import Draw, Library, Program


def forward_substitution(lower: Any, b: Any) -> Any:
    x = np.zeros_like(b)
    for i in range(len(b)):
        x[i] = (b[i] - lower[i] @ x) / lower[i, i]
    return x


def forward_substitution_looped(lib: Library, lower: Any, b: Any) -> Any:
    def row(i: Any, x: Any) -> Any:
        return lib.put(x, i, (b[i] - lower[i] @ x) / lower[i, i])

    return lib.fori_loop(0, len(b), row, lib.np.zeros_like(b))


def thomas(low: Any, main: Any, up: Any, d: Any) -> Any:
    n = len(d)
    c, x = np.zeros_like(d), d.copy()
    c[0] = up[0] / main[0]
    x[0] = d[0] / main[0]
    for i in range(1, n):
        pivot = main[i] - low[i] * c[i - 1]
        c[i] = up[i] / pivot
        x[i] = (d[i] - low[i] * x[i - 1]) / pivot
    for i in range(n - 2, -1, -1):
        x[i] = x[i] - c[i] * x[i + 1]
    return x


def thomas_looped(lib: Library, low: Any, main: Any, up: Any, d: Any) -> Any:
    n = len(d)
    c, x = lib.np.zeros_like(d), d.copy()
    c = lib.put(c, 0, up[0] / main[0])
    x = lib.put(x, 0, d[0] / main[0])

    def down(i: Any, found: Any) -> Any:
        c, x = found
        pivot = main[i] - low[i] * c[i - 1]
        return lib.put(c, i, up[i] / pivot), lib.put(x, i, (d[i] - low[i] * x[i - 1]) / pivot)

    c, x = lib.fori_loop(1, n, down, (c, x))

    def back(k: Any, x: Any) -> Any:
        i = n - 2 - k
        return lib.put(x, i, x[i] - c[i] * x[i + 1])

    return lib.fori_loop(0, n - 1, back, x)


def cholesky(a: Any) -> Any:
    lower = np.zeros_like(a)
    for i in range(len(a)):
        for j in range(i):
            lower[i, j] = (a[i, j] - lower[i] @ lower[j]) / lower[j, j]
        lower[i, i] = np.sqrt(a[i, i] - lower[i] @ lower[i])
    return lower


def cholesky_looped(lib: Library, a: Any) -> Any:
    def row(i: Any, lower: Any) -> Any:
        def element(j: Any, lower: Any) -> Any:
            return lib.put(lower, (i, j), (a[i, j] - lower[i] @ lower[j]) / lower[j, j])

        lower = lib.fori_loop(0, i, element, lower)
        return lib.put(lower, (i, i), lib.np.sqrt(a[i, i] - lower[i] @ lower[i]))

    return lib.fori_loop(0, len(a), row, lib.np.zeros_like(a))


def lu(a: Any) -> Any:
    a = a.copy()
    n = len(a)
    for k in range(n):
        for i in range(k + 1, n):
            a[i, k] = a[i, k] / a[k, k]
            a[i] = np.where(np.arange(n) > k, a[i] - a[i, k] * a[k], a[i])
    return a


def lu_looped(lib: Library, a: Any) -> Any:
    n = len(a)
    columns = lib.np.arange(n)

    def pivot(k: Any, a: Any) -> Any:
        def row(i: Any, a: Any) -> Any:
            a = lib.put(a, (i, k), a[i, k] / a[k, k])
            return lib.put(a, i, lib.np.where(columns > k, a[i] - a[i, k] * a[k], a[i]))

        return lib.fori_loop(k + 1, n, row, a)

    return lib.fori_loop(0, n, pivot, a.copy())


def over_relaxation(a: Any, b: Any) -> Any:
    x = np.zeros_like(b)
    for _ in range(4):
        for i in range(len(b)):
            x[i] = x[i] + 1.2 * (b[i] - a[i] @ x) / a[i, i]
    return x


def over_relaxation_looped(lib: Library, a: Any, b: Any) -> Any:
    def row(i: Any, x: Any) -> Any:
        return lib.put(x, i, x[i] + 1.2 * (b[i] - a[i] @ x) / a[i, i])

    def sweep(_: Any, x: Any) -> Any:
        return lib.fori_loop(0, len(b), row, x)

    return lib.fori_loop(0, 4, sweep, lib.np.zeros_like(b))


def gauss_seidel(u: Any, f: Any) -> Any:
    u = u.copy()
    n, m = u.shape
    for i in range(1, n - 1):
        for j in range(1, m - 1):
            u[i, j] = 0.25 * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1] - f[i, j])
    return u


def gauss_seidel_looped(lib: Library, u: Any, f: Any) -> Any:
    n, m = u.shape

    def row(i: Any, u: Any) -> Any:
        def element(j: Any, u: Any) -> Any:
            around = u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1]
            return lib.put(u, (i, j), 0.25 * (around - f[i, j]))

        return lib.fori_loop(1, m - 1, element, u)

    return lib.fori_loop(1, n - 1, row, u.copy())


def levinson(r: Any, y: Any) -> Any:
    """The solution x of T @ x = y, where T[i, j] = r[|i - j|]."""
    n = len(y)
    # b is the last column of the inverse so far, times its scale
    b, x = np.zeros_like(y), np.zeros_like(y)
    b[0] = 1 / r[0]
    x[0] = y[0] / r[0]
    at = np.arange(n)
    for k in range(1, n):
        near = np.where(at < k, r[np.abs(k - at)], 0.0)
        error = near @ b[(k - 1 - at) % n]  # of the forward vector, which is b read backwards
        forward = np.where(at < k, b[(k - 1 - at) % n], 0.0)
        shifted = np.where((at > 0) & (at <= k), b[(at - 1) % n], 0.0)
        scale = 1 / (1 - error * error)
        b = scale * (shifted - error * forward)
        x = x + (y[k] - near @ x) * b
    return x


def levinson_looped(lib: Library, r: Any, y: Any) -> Any:
    n, xp = len(y), lib.np
    at = xp.arange(n)

    def order(k: Any, found: Any) -> Any:
        b, x = found
        near = xp.where(at < k, r[xp.abs(k - at)], 0.0)
        backwards = b[(k - 1 - at) % n]
        error = near @ backwards
        forward = xp.where(at < k, backwards, 0.0)
        shifted = xp.where((at > 0) & (at <= k), b[(at - 1) % n], 0.0)
        b = 1 / (1 - error * error) * (shifted - error * forward)
        return b, x + (y[k] - near @ x) * b

    b, x = xp.zeros_like(y), xp.zeros_like(y)
    first = lib.put(b, 0, 1 / r[0]), lib.put(x, 0, y[0] / r[0])
    return lib.fori_loop(1, n, order, first)[1]


def matrix(rng: Draw, n: int) -> Any:
    return rng.uniform(-1, 1, (n, n)) + 2 * n**0.5 * np.eye(n)


def triangle(rng: Draw, n: int) -> tuple[Any, ...]:
    return np.tril(matrix(rng, n)), rng.uniform(-1, 1, n)


def three_diagonals(rng: Draw, n: int) -> tuple[Any, ...]:
    return rng.uniform(-1, 1, n), rng.uniform(3, 4, n), rng.uniform(-1, 1, n), rng.uniform(-1, 1, n)


def positive_definite(rng: Draw, n: int) -> tuple[Any, ...]:
    a = rng.uniform(-1, 1, (n, n))
    return (a @ a.T + n * np.eye(n),)


def system(rng: Draw, n: int) -> tuple[Any, ...]:
    return matrix(rng, n) + n * np.eye(n), rng.uniform(-1, 1, n)


def toeplitz(rng: Draw, n: int) -> tuple[Any, ...]:
    return 0.5 ** np.arange(n) * np.where(np.arange(n) % 3, 1.0, 0.8), rng.uniform(-1, 1, n)


def grid(rng: Draw, n: int) -> tuple[Any, ...]:
    return rng.uniform(-1, 1, (n, n)), rng.uniform(-1, 1, (n, n))


PROGRAMS = (
    Program(
        "forward-substitution", forward_substitution, forward_substitution_looped, triangle, 500
    ),
    Program("thomas", thomas, thomas_looped, three_diagonals, 10_000),
    Program("cholesky", cholesky, cholesky_looped, positive_definite, 100),
    Program("lu", lu, lu_looped, lambda rng, n: (matrix(rng, n),), 100),
    Program("over-relaxation", over_relaxation, over_relaxation_looped, system, 200),
    Program("gauss-seidel", gauss_seidel, gauss_seidel_looped, grid, 150),
    Program("levinson", levinson, levinson_looped, toeplitz, 300),
)
