"""Tables that are filled in order, an element or a row at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.element_loops.program import Draw, Library, Program


def edit_distance(a: Any, b: Any) -> Any:
    n, m = len(a), len(b)
    d = np.zeros_like(a, shape=(n + 1, m + 1))
    d[:, 0] = np.arange(n + 1)
    d[0] = np.arange(m + 1)
    for i in range(n):
        for j in range(m):
            change = d[i, j] + (a[i] != b[j])
            d[i + 1, j + 1] = np.minimum(np.minimum(d[i, j + 1], d[i + 1, j]) + 1, change)
    return d[n, m]


def edit_distance_looped(lib: Library, a: Any, b: Any) -> Any:
    n, m, xp = len(a), len(b), lib.np

    def row(i: Any, d: Any) -> Any:
        def element(j: Any, d: Any) -> Any:
            change = d[i, j] + (a[i] != b[j])
            least = xp.minimum(xp.minimum(d[i, j + 1], d[i + 1, j]) + 1, change)
            return lib.put(d, (i + 1, j + 1), least)

        return lib.fori_loop(0, m, element, d)

    d = lib.put(xp.zeros_like(a, shape=(n + 1, m + 1)), (slice(None), 0), xp.arange(n + 1))
    return lib.fori_loop(0, n, row, lib.put(d, 0, xp.arange(m + 1)))[n, m]


def common_subsequence(a: Any, b: Any) -> Any:
    n, m = len(a), len(b)
    d = np.zeros_like(a, shape=(n + 1, m + 1))
    for i in range(n):
        for j in range(m):
            longest = np.maximum(d[i, j + 1], d[i + 1, j])
            d[i + 1, j + 1] = np.where(a[i] == b[j], d[i, j] + 1, longest)
    return d[n, m]


def common_subsequence_looped(lib: Library, a: Any, b: Any) -> Any:
    n, m, xp = len(a), len(b), lib.np

    def row(i: Any, d: Any) -> Any:
        def element(j: Any, d: Any) -> Any:
            longest = xp.maximum(d[i, j + 1], d[i + 1, j])
            return lib.put(d, (i + 1, j + 1), xp.where(a[i] == b[j], d[i, j] + 1, longest))

        return lib.fori_loop(0, m, element, d)

    return lib.fori_loop(0, n, row, xp.zeros_like(a, shape=(n + 1, m + 1)))[n, m]


def prefix_sums(x: Any) -> Any:
    n, m = x.shape
    p = np.zeros_like(x, shape=(n + 1, m + 1))
    for i in range(n):
        for j in range(m):
            p[i + 1, j + 1] = x[i, j] + p[i, j + 1] + p[i + 1, j] - p[i, j]
    return p


def prefix_sums_looped(lib: Library, x: Any) -> Any:
    n, m = x.shape

    def row(i: Any, p: Any) -> Any:
        def element(j: Any, p: Any) -> Any:
            return lib.put(p, (i + 1, j + 1), x[i, j] + p[i, j + 1] + p[i + 1, j] - p[i, j])

        return lib.fori_loop(0, m, element, p)

    return lib.fori_loop(0, n, row, lib.np.zeros_like(x, shape=(n + 1, m + 1)))


def cellular_automaton(first: Any, rule: Any) -> Any:
    steps = len(first)
    cells = np.zeros_like(first, shape=(steps, steps))
    cells[0] = first
    for t in range(1, steps):
        row = cells[t - 1]
        cells[t] = rule[4 * np.roll(row, 1) + 2 * row + np.roll(row, -1)]
    return cells


def cellular_automaton_looped(lib: Library, first: Any, rule: Any) -> Any:
    steps, xp = len(first), lib.np

    def generation(t: Any, cells: Any) -> Any:
        row = cells[t - 1]
        return lib.put(cells, t, rule[4 * xp.roll(row, 1) + 2 * row + xp.roll(row, -1)])

    cells = lib.put(xp.zeros_like(first, shape=(steps, steps)), 0, first)
    return lib.fori_loop(1, steps, generation, cells)


def sieve(flags: Any) -> Any:
    flags = flags.copy()
    n = len(flags)
    for p in range(2, int(n**0.5) + 1):
        for k in range((n - 1) // p - p + 1):
            flags[(p + k) * p] = False
    return flags


def sieve_looped(lib: Library, flags: Any) -> Any:
    n = len(flags)

    def number(p: Any, flags: Any) -> Any:
        def multiple(k: Any, flags: Any) -> Any:
            return lib.put(flags, (p + k) * p, False)

        return lib.fori_loop(0, (n - 1) // p - p + 1, multiple, flags)

    return lib.fori_loop(2, int(n**0.5) + 1, number, flags.copy())


def knapsack(weights: Any, values: Any) -> Any:
    items, capacity = len(weights), 4 * len(weights)
    best = np.zeros_like(values, shape=(items + 1, capacity + 1))
    at = np.arange(capacity + 1)
    for i in range(items):
        row = best[i]
        taken = row[np.maximum(at - weights[i], 0)] + values[i]
        best[i + 1] = np.where(at >= weights[i], np.maximum(row, taken), row)
    return best


def knapsack_looped(lib: Library, weights: Any, values: Any) -> Any:
    items, capacity, xp = len(weights), 4 * len(weights), lib.np
    at = xp.arange(capacity + 1)

    def item(i: Any, best: Any) -> Any:
        row = best[i]
        taken = row[xp.maximum(at - weights[i], 0)] + values[i]
        return lib.put(best, i + 1, xp.where(at >= weights[i], xp.maximum(row, taken), row))

    none = xp.zeros_like(values, shape=(items + 1, capacity + 1))
    return lib.fori_loop(0, items, item, none)


def shortest_paths(d: Any) -> Any:
    d = d.copy()
    n = len(d)
    for k in range(n):
        for i in range(n):
            d[i] = np.minimum(d[i], d[i, k] + d[k])
    return d


def shortest_paths_looped(lib: Library, d: Any) -> Any:
    n = len(d)

    def through(k: Any, d: Any) -> Any:
        def row(i: Any, d: Any) -> Any:
            return lib.put(d, i, lib.np.minimum(d[i], d[i, k] + d[k]))

        return lib.fori_loop(0, n, row, d)

    return lib.fori_loop(0, n, through, d.copy())


def words(rng: Draw, n: int) -> tuple[Any, ...]:
    return rng.integers(0, 4, n), rng.integers(0, 4, n)


def automaton(rng: Draw, n: int) -> tuple[Any, ...]:
    return rng.integers(0, 2, n), np.array([0, 1, 1, 1, 0, 1, 1, 0])


def things(rng: Draw, n: int) -> tuple[Any, ...]:
    return rng.integers(1, 12, n), rng.integers(1, 100, n)


def distances(rng: Draw, n: int) -> tuple[Any, ...]:
    return (np.where(np.eye(n) > 0, 0.0, rng.uniform(1, 10, (n, n))),)


PROGRAMS = (
    Program("edit-distance", edit_distance, edit_distance_looped, words, 150),
    Program("common-subsequence", common_subsequence, common_subsequence_looped, words, 150),
    Program(
        "prefix-sums", prefix_sums, prefix_sums_looped, lambda rng, n: (rng.random((n, n)),), 150
    ),
    Program("cellular-automaton", cellular_automaton, cellular_automaton_looped, automaton, 300),
    Program("sieve", sieve, sieve_looped, lambda rng, n: (np.arange(n) > 1,), 5_000),
    Program("knapsack", knapsack, knapsack_looped, things, 200),
    Program("shortest-paths", shortest_paths, shortest_paths_looped, distances, 100),
)
