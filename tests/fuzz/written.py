"""Random loops and branches in each other that write parts of their carries: elements, rows, windows, columns."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from ge2 import lax

Arrays = dict[str, Any]
Write = Callable[[Arrays, str, str, int, Any, Any], None]


def element(env: Arrays, a: str, b: str, c: int, i: Any, j: Any) -> None:
    env[a][i, c] = env[b][j, c + 1] * 0.5 + 1


def window(env: Arrays, a: str, b: str, c: int, i: Any, j: Any) -> None:
    env[a][i, 1:-1] = env[b][j, 1:-1] * 0.5


def column(env: Arrays, a: str, b: str, c: int, i: Any, j: Any) -> None:
    env[a][:, i] += env[b][:, c] * 0.25


def row(env: Arrays, a: str, b: str, c: int, i: Any, j: Any) -> None:
    env[a][i] = env[a][i] * 0.5 + env[b][j]


def after_a_copy(env: Arrays, a: str, b: str, c: int, i: Any, j: Any) -> None:
    """The old contents are read after the write."""
    old = env[b].copy()
    env[a][i, c] = 1.5
    env[b] = old * 0.5 + 1


def block(env: Arrays, a: str, b: str, c: int, i: Any, j: Any) -> None:
    env[a] = lax.dynamic_update_slice(env[a], env[b][0:2, 0:c] * 0.5, (i, c))


def added(env: Arrays, a: str, b: str, c: int, i: Any, j: Any) -> None:
    env[a] = env[a].at[i].add(env[b][c] * 0.25)


def largest(env: Arrays, a: str, b: str, c: int, i: Any, j: Any) -> None:
    env[a][i, c] = env[b].max() * 0.5


def many(env: Arrays, a: str, b: str, c: int, i: Any, j: Any) -> None:
    env[a][np.array([1, 3, 1]), i] = env[b][0, :3]


def exchanged(env: Arrays, a: str, b: str, c: int, i: Any, j: Any) -> None:
    env[a], env[b] = env[b], env[a]


def anew(env: Arrays, a: str, b: str, c: int, i: Any, j: Any) -> None:
    env[a] = env[a] * 0.5 + env[b] * 0.25


def twice(env: Arrays, a: str, b: str, c: int, i: Any, j: Any) -> None:
    env[a][0] = env[b][c]
    env[a][1:3, i] = env[a][0, c]


WRITES: tuple[Write, ...] = (
    *(element, window, column, row, after_a_copy, block),
    *(added, largest, many, exchanged, anew, twice),
)


class Program:
    """A function of arrays of one shape, made from a seed: a `for` loop with others in it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = ["a", "b", "c"][: self.random.randint(1, 3)]
        self.tree = self.level(0)

    def level(self, depth: int) -> Any:
        kinds = ("for", "for", "while", "scan", "cond")
        again = depth == 0 or (depth < 3 and self.random.random() < 0.75)
        kind = "for" if depth == 0 else self.random.choice(kinds) if again else None
        before, after = self.steps(), self.steps() if self.random.random() < 0.6 else []
        inner = self.level(depth + 1) if again else None
        return kind, before, inner, after, self.random.randint(1, 4)

    def steps(self) -> list[Any]:
        draw = self.random
        return [
            (
                draw.choice(WRITES),
                draw.choice(self.names),
                draw.choice(self.names),
                draw.randrange(1, 4),
            )
            for _ in range(draw.randint(1, 3))
        ]

    def __call__(self, *arrays: Any) -> tuple[Any, ...]:
        env = {name: x.copy() for name, x in zip(self.names, arrays, strict=True)}
        self.run(self.tree, env, [np.int64(1)])
        return tuple(env.values())

    def run(self, node: Any, env: Arrays, indices: list[Any]) -> None:
        kind, before, inner, after, length = node
        self.write(before, env, indices)
        if kind:
            carry = self.loop(kind, inner, length, tuple(env.values()), indices)
            env.update(zip(self.names, carry, strict=True))
        self.write(after, env, indices)

    def write(self, steps: list[Any], env: Arrays, indices: list[Any]) -> None:
        rows = next(iter(env.values())).shape[0]
        for step, a, b, c in steps:
            step(env, a, b, c, indices[-1] % rows, indices[0] % rows)

    def loop(self, kind: str, inner: Any, length: int, carry: Any, indices: list[Any]) -> Any:
        def body(i: Any, carry: Any) -> Any:
            env = dict(zip(self.names, carry, strict=True))
            self.run(inner, env, [*indices, i])
            return tuple(env.values())

        def taken(*carry: Any) -> Any:
            return body(length, tuple(x.copy() for x in carry))

        def following(pair: Any) -> Any:
            return pair[0] + 1, body(*pair)

        if kind == "for":
            return lax.fori_loop(0, length, body, carry)
        if kind == "while":
            start = indices[-1] * 0
            return lax.while_loop(lambda pair: pair[0] < length, following, (start, carry))[1]
        if kind == "scan":
            found = lax.scan(lambda c, i: (body(i, c), c[0][0, 0]), carry, np.arange(length))
            return (found[0][0] + found[1].sum() * 0.125, *found[0][1:])
        return lax.cond((indices[-1] + length) % 2 == 0, taken, lambda *carry: carry, *carry)
