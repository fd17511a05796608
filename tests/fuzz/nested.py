"""Random functions: loops and branches in each other, around folds, products,
views and elements at indices.

A seed gives the same function at each trace. Integers alone decide which way it goes, so that what
is rounded otherwise elsewhere goes the same way; floats are kept near 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

import ge2
from ge2 import lax

FLOATS = (np.float32, np.float32, np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
INTEGERS = (np.int32, np.int32, np.int8, np.int64, np.uint8)
SIZES = (1, 2, 3, 5, 8, 33)
LARGEST = 2000  # elements of a value
Shape = tuple[int, ...]


def floating(x: Any) -> bool:
    return x.dtype.kind in "fV"  # bfloat16 is of NumPy's kind V


class Drawn:
    """Values in the making: those given, and what steps made of them.

    `depth`: of loops and branches.
    """

    def __init__(self, seed: Sequence[int], values: Sequence[Any], depth: int) -> None:
        self.seed, self.rng, self.depth = tuple(seed), np.random.default_rng(seed), depth
        self.values = list(values)
        self.inner = 0

    # -- choices

    def pick(self, *wanted: Callable[[Any], bool]) -> Any:
        """A value, mostly a late one; None if there is none like it."""
        found = [x for x in self.values if all(want(x) for want in wanted)]
        return found[min(int(self.rng.beta(3, 1) * len(found)), len(found) - 1)] if found else None

    def some(
        self, least: int, most: int, wanted: Callable[[Any], bool] = lambda x: True
    ) -> list[Any]:
        found = [x for x in self.values if wanted(x)]
        count = int(self.rng.integers(least, most + 1)) if found else 0
        return [found[int(i)] for i in self.rng.integers(len(found), size=count)] if count else []

    def integer(self) -> Any:
        return self.pick(lambda x: not floating(x))

    def number(self, below: int) -> Any:
        return self.fitted(self.integer(), (), np.int32) % below

    def add(self, *found: Any) -> None:
        self.values += [x for x in found if x.size <= LARGEST]

    def fitted(self, x: Any, shape: Shape, dtype: Any) -> Any:
        """A value made one of that type; nothing that is rounded becomes an integer."""
        dtype = np.dtype(dtype)
        if floating(x) and dtype.kind in "iu":
            x = self.integer()
        if dtype.kind not in "iu" and not floating(x):
            x = x % 7
        x = x.astype(dtype)
        if x.shape == shape:
            return x
        if x.ndim <= len(shape) and all(
            n in (1, m) for n, m in zip(x.shape[::-1], shape[::-1], strict=False)
        ):
            return np.broadcast_to(x, shape)
        if not x.size:
            return np.broadcast_to(ge2.numpy.zeros((), dtype), shape)
        flat, count = x.reshape(-1), math.prod(shape)
        if x.size >= count and self.rng.random() < 0.5:
            return flat[:count].reshape(shape)
        return np.take(flat, np.arange(count) % x.size).reshape(shape)

    def like(self, x: Any) -> Any:
        return self.fitted(self.pick(), x.shape, x.dtype)

    # -- steps

    def step(self) -> None:
        names = (*PLAIN, *(CONTROL if self.depth else ()))
        x = self.pick(lambda x: x.ndim > 0 and x.size > 0)
        if x is None:
            x = self.fitted(self.pick(), (3,), np.float32)
        getattr(self, names[int(self.rng.integers(len(names)))])(x)

    def pointwise(self, x: Any) -> None:
        y = self.like(x)
        if not floating(x):
            self.add((x + y, x * y, np.minimum(x, y), x ^ y, -x)[int(self.rng.integers(5))])
            return
        half = x.dtype.type(0.5)
        made = (
            np.tanh(x * y), x * half + y * half, np.maximum(x, y), np.sin(x), np.exp(-np.abs(x)),
        )  # fmt: skip
        self.add(made[int(self.rng.integers(len(made)))])

    def chosen(self, x: Any) -> None:
        self.add(np.where(self.fitted(self.integer(), x.shape, np.int32) > 1, x, self.like(x)))

    def integers(self, _: Any) -> None:
        x = self.integer()
        some = (x % 5, x + x.dtype.type(1), x // 3, x.astype(INTEGERS[int(self.rng.integers(5))]))
        self.add(some[int(self.rng.integers(4))], (x % 7).astype(FLOATS[int(self.rng.integers(6))]))

    def folded(self, x: Any) -> None:
        axes = tuple(i for i in range(x.ndim) if self.rng.random() < 0.5) or None
        if not floating(x):
            self.add(
                x.sum(axes, dtype=x.dtype), x.max(axes), x.argmax(int(self.rng.integers(x.ndim)))
            )
            return
        a = int(self.rng.integers(x.ndim))
        self.add(x.mean(axes), x - x.max(a, keepdims=True), np.cumsum(x * x.dtype.type(0.2), a))

    def viewed(self, x: Any) -> None:
        rng, choice = self.rng, int(self.rng.integers(5))
        steps = [(int(rng.integers(n)), int(rng.integers(1, 3))) for n in x.shape]
        made: tuple[Callable[[], Any], ...] = (
            lambda: x.transpose([int(i) for i in rng.permutation(x.ndim)]),
            lambda: x[
                tuple(slice(None, None, -1) if rng.random() < 0.5 else slice(None) for _ in x.shape)
            ],
            lambda: x[tuple(slice(at, None, step) for at, step in steps)],
            lambda: np.pad(x, [(int(rng.integers(2)), int(rng.integers(2))) for _ in x.shape]),
            lambda: np.broadcast_to(x.reshape(-1), (2, x.size)),
        )
        self.add(made[choice]())

    def joined(self, x: Any) -> None:
        axis, shift = int(self.rng.integers(x.ndim)), int(self.rng.integers(-3, 4))
        self.add(np.roll(x, shift, axis), np.concatenate([x, self.like(x)], axis), np.sort(x, axis))

    def multiplied(self, x: Any) -> None:
        if floating(x):
            y = self.fitted(self.pick(), (x.shape[-1], int(self.rng.integers(1, 6))), x.dtype)
            self.add(np.tanh(x @ y * x.dtype.type(0.3)))

    def taken(self, x: Any) -> None:
        a = int(self.rng.integers(x.ndim))
        at = self.fitted(self.integer(), ((), (3,), (2, 2))[int(self.rng.integers(3))], np.int32)
        self.add(np.take(x, at % x.shape[a], axis=a), x[self.number(x.shape[0])])

    def written(self, x: Any) -> None:
        y, z = x.copy(), self.fitted(self.pick(), x.shape[1:], x.dtype)
        at = (int(self.rng.integers(x.shape[0])), self.number(x.shape[0]), slice(None, None, 2))
        y[at[int(self.rng.integers(3))]] = z
        y[-1:] += z
        self.add(y)

    # -- loops and branches

    def body(self, carry: Sequence[Any], more: int = 0, steps: int = 5) -> Callable[..., Any]:
        """A function of values that gives one like each of the carry, and others."""
        self.inner += 1
        seed, depth = (*self.seed, self.inner), self.depth - 1

        def run(*values: Any) -> tuple[list[Any], list[Any]]:
            drawn = Drawn(seed, values, depth)
            for _ in range(int(drawn.rng.integers(1, steps + 1))):
                drawn.step()
            found = [drawn.like(x) for x in carry]
            return [np.tanh(x) if floating(x) else x for x in found], [
                drawn.pick() for _ in range(more)
            ]

        return run

    def scan(self, x: Any) -> None:
        rng, carry, consts = self.rng, self.some(0, 3), self.some(0, 2)
        xs = [x, *self.some(0, 1, lambda y: y.shape[:1] == x.shape[:1])][int(rng.integers(2)) :]
        length = x.shape[0] if xs else int(rng.integers(0, 4))
        run, number = self.body(carry, int(rng.integers(3))), self.integer()

        def step(c: Any, e: Any) -> Any:
            return run(number, *consts, *c, *(e or ()))

        carry, ys = lax.scan(
            step, carry, xs or None, length=length, reverse=bool(rng.random() < 0.3)
        )
        self.add(*carry, *ys)

    def loop(self, _: Any) -> None:
        carry, consts, end = self.some(0, 3), self.some(0, 2), self.number(4)
        run = self.body(carry)
        n, carry = lax.while_loop(
            lambda c: c[0] < end,
            lambda c: (c[0] + 1, run(c[0], *consts, *c[1])[0]),
            (np.int32(0), carry),
        )
        self.add(n, *carry)

    def counted(self, _: Any) -> None:
        carry, number = self.some(1, 2), self.integer()
        end = int(self.rng.integers(4)) if self.rng.random() < 0.6 else self.number(4)
        run = self.body(carry)
        self.add(
            *lax.fori_loop(0, end, lambda i, c: run(ge2.numpy.asarray(i), number, *c)[0], carry)
        )

    def branched(self, _: Any) -> None:
        given, results, number = self.some(1, 3), self.some(0, 2), self.integer()
        runs = [self.body(results) for _ in range(int(self.rng.integers(2, 4)))]
        branches = [lambda *xs, run=run: run(*xs)[0] for run in runs]
        if len(runs) == 2:
            found = lax.cond(self.number(2) > 0, *branches, number, *given, *results)
        else:
            found = lax.switch(self.number(5) - 1, branches, number, *given, *results)
        self.add(*found)

    def mapped(self, x: Any) -> None:
        run, consts, number = self.body([], 2), self.some(0, 2), self.integer()
        each = lax.map if self.rng.random() < 0.5 else lambda f, x: ge2.vmap(f)(x)
        self.add(*each(lambda row: run(number, *consts, row)[1], x))

    def python(self, x: Any) -> None:
        carry, number = self.some(1, 2), self.integer()
        run = self.body(carry, steps=3)
        for t in range(int(self.rng.integers(2, 6))):
            carry = run(number, x[t % x.shape[0]], *carry)[0]
        self.add(*carry)


PLAIN = (
    "pointwise", "pointwise", "chosen", "integers", "folded", "folded", "viewed", "viewed", "joined",
    "multiplied", "taken", "written",
)  # fmt: skip
CONTROL = ("scan", "scan", "loop", "loop", "counted", "branched", "branched", "mapped", "python")


def function(seed: int) -> tuple[Callable[..., list[Any]], list[Any]]:
    """A function of two to six steps, loops and branches up to three deep in
    each other; and arguments.
    """
    rng = np.random.default_rng(seed)
    xs = [np.asarray(rng.integers(0, 9), np.int32), rng.standard_normal((3, 4)).astype(np.float32)]
    for _ in range(int(rng.integers(1, 4))):
        shape = tuple(int(SIZES[i]) for i in rng.integers(len(SIZES), size=int(rng.integers(0, 3))))
        if rng.random() < 0.6:
            xs.append(rng.standard_normal(shape).astype(FLOATS[int(rng.integers(len(FLOATS)))]))
        else:
            xs.append(rng.integers(0, 9, shape).astype(INTEGERS[int(rng.integers(len(INTEGERS)))]))
    steps, depth = int(rng.integers(2, 7)), int(rng.integers(1, 4))

    def run(*values: Any) -> list[Any]:
        drawn = Drawn((seed, 1), values, depth)
        for _ in range(steps):
            drawn.step()
        return (drawn.values[len(values) :] or drawn.values)[-4:]

    return run, xs
