"""Recursions over time: each value from the one before."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.element_loops.program import Draw, Library, Program


def smoothing(x: Any) -> Any:
    y = x.copy()
    for t in range(1, len(x)):
        y[t] = 0.3 * x[t] + 0.7 * y[t - 1]
    return y


def smoothing_looped(lib: Library, x: Any) -> Any:
    def step(t: Any, y: Any) -> Any:
        return lib.put(y, t, 0.3 * x[t] + 0.7 * y[t - 1])

    return lib.fori_loop(1, len(x), step, x.copy())


def lindley(service: Any, between: Any) -> Any:
    """The waiting times in a queue with one server."""
    w = np.zeros_like(service)
    for t in range(1, len(service)):
        w[t] = np.maximum(w[t - 1] + service[t - 1] - between[t], 0.0)
    return w


def lindley_looped(lib: Library, service: Any, between: Any) -> Any:
    def step(t: Any, w: Any) -> Any:
        return lib.put(w, t, lib.np.maximum(w[t - 1] + service[t - 1] - between[t], 0.0))

    return lib.fori_loop(1, len(service), step, lib.np.zeros_like(service))


def kalman(y: Any) -> Any:
    """The filtered level of a random walk that is seen through noise."""
    level = np.zeros_like(y)
    m, p = y[0], 1.0 + 0.0 * y[0]
    for t in range(len(y)):
        p = p + 0.1
        gain = p / (p + 0.5)
        m = m + gain * (y[t] - m)
        p = (1 - gain) * p
        level[t] = m
    return level


def kalman_looped(lib: Library, y: Any) -> Any:
    def step(t: Any, state: Any) -> Any:
        level, m, p = state
        p = p + 0.1
        gain = p / (p + 0.5)
        m = m + gain * (y[t] - m)
        return lib.put(level, t, m), m, (1 - gain) * p

    first = lib.np.zeros_like(y), y[0], 1.0 + 0.0 * y[0]
    return lib.fori_loop(0, len(y), step, first)[0]


def horner(coefficients: Any, x: Any) -> Any:
    total = np.zeros_like(x)
    for i in range(len(coefficients)):
        total = total * x + coefficients[i]
    return total


def horner_looped(lib: Library, coefficients: Any, x: Any) -> Any:
    def step(i: Any, total: Any) -> Any:
        return total * x + coefficients[i]

    return lib.fori_loop(0, len(coefficients), step, lib.np.zeros_like(x))


def products_with_resets(x: Any, reset: Any) -> Any:
    y = x.copy()
    for t in range(1, len(x)):
        y[t] = np.where(reset[t], x[t], y[t - 1] * x[t])
    return y


def products_with_resets_looped(lib: Library, x: Any, reset: Any) -> Any:
    def step(t: Any, y: Any) -> Any:
        return lib.put(y, t, lib.np.where(reset[t], x[t], y[t - 1] * x[t]))

    return lib.fori_loop(1, len(x), step, x.copy())


def viterbi(emission: Any, transition: Any) -> Any:
    """The likeliest path; both arguments are logarithms of probabilities, (T, S) and (S, S)."""
    steps = len(emission)
    score = emission[0]
    back = np.zeros_like(emission, dtype=np.int64)
    for t in range(1, steps):
        by_state = score[:, None] + transition
        back[t] = np.argmax(by_state, axis=0)
        score = np.max(by_state, axis=0) + emission[t]
    path = np.zeros_like(back[:, 0])
    path[steps - 1] = np.argmax(score)
    for t in range(steps - 2, -1, -1):
        path[t] = back[t + 1, path[t + 1]]
    return path


def viterbi_looped(lib: Library, emission: Any, transition: Any) -> Any:
    steps, xp = len(emission), lib.np

    def forward(t: Any, found: Any) -> Any:
        score, back = found
        by_state = score[:, None] + transition
        back = lib.put(back, t, xp.argmax(by_state, axis=0))
        return xp.max(by_state, axis=0) + emission[t], back

    none = xp.zeros_like(emission, dtype=np.int64)
    score, back = lib.fori_loop(1, steps, forward, (emission[0], none))

    def backward(k: Any, path: Any) -> Any:
        t = steps - 2 - k
        return lib.put(path, t, back[t + 1, path[t + 1]])

    last = lib.put(xp.zeros_like(back[:, 0]), steps - 1, xp.argmax(score))
    return lib.fori_loop(0, steps - 1, backward, last)


def series(rng: Draw, n: int) -> tuple[Any, ...]:
    return (rng.standard_normal(n).cumsum(),)


def queue(rng: Draw, n: int) -> tuple[Any, ...]:
    return rng.exponential(0.9, n), rng.exponential(1.0, n)


def polynomial(rng: Draw, n: int) -> tuple[Any, ...]:
    return rng.standard_normal(n), rng.uniform(-1, 1, 64)


def with_resets(rng: Draw, n: int) -> tuple[Any, ...]:
    return rng.uniform(0.9, 1.1, n), rng.random(n) < 0.05


def chain(rng: Draw, n: int) -> tuple[Any, ...]:
    return np.log(rng.dirichlet(np.ones(16), n)), np.log(rng.dirichlet(np.ones(16), 16))


PROGRAMS = (
    Program("smoothing", smoothing, smoothing_looped, series, 20_000),
    Program("lindley", lindley, lindley_looped, queue, 20_000),
    Program("kalman", kalman, kalman_looped, series, 20_000),
    Program("horner", horner, horner_looped, polynomial, 2_000),
    Program(
        "products-with-resets",
        products_with_resets,
        products_with_resets_looped,
        with_resets,
        20_000,
    ),
    Program("viterbi", viterbi, viterbi_looped, chain, 500),
)
