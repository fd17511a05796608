"""A program of the suite: plain NumPy, its arguments, and how a user of JAX would write it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any, final

import numpy as np

import ge2

SMALL = 10  # elements along an axis, in tests and in quick runs
Arguments = Callable[["Draw"], tuple[Any, ...]]


@final
class Draw:
    """Draws arguments, the same in each run; a small one cuts every size that it is asked for."""

    def __init__(self, small: bool = False, seed: int = 0) -> None:
        self.small = small
        self.rng = np.random.default_rng(seed)

    def n(self, size: int, at_least: int = 1) -> int:
        return min(size, max(SMALL, at_least)) if self.small else size

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self.n(size) for size in shape)

    def normal(self, *shape: int, dtype: Any = np.float64) -> Any:
        return self.rng.standard_normal(self.shape(shape)).astype(dtype)

    def uniform(
        self, *shape: int, low: float = 0.0, high: float = 1.0, dtype: Any = np.float64
    ) -> Any:
        return self.rng.uniform(low, high, self.shape(shape)).astype(dtype)

    def below(self, most: int, *shape: int, dtype: Any = np.int64) -> Any:
        return self.rng.integers(0, most, self.shape(shape)).astype(dtype)


@final
class Program:
    """A function of arrays. Its JAX version is the same text over `jax.numpy`, or one of its own."""

    def __init__(
        self,
        function: FunctionType,
        arguments: Arguments,
        tolerance: float,
        bound_by: str,
        by: tuple[int, ...],
    ) -> None:
        self.function, self.arguments, self.tolerance = function, arguments, tolerance
        self.bound_by, self.by = bound_by, by
        self.name = function.__name__.replace("_", "-")
        self.group = function.__module__.rpartition(".")[2]
        self.jax_version: Callable[..., Any] | None = None
        self.__doc__ = function.__doc__

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def in_jax(self, version: Callable[..., Any]) -> Callable[..., Any]:
        """Decorates a function of `jax.numpy`, `jax.lax` and the arguments."""
        self.jax_version = version
        return version

    def for_ge2(self) -> Callable[..., Any]:
        """The program as a function of arrays, not yet compiled."""
        return ge2.grad(self.function, argnums=self.by) if self.by else self.function

    def for_jax(self, jax: ModuleType) -> Callable[..., Any]:
        """The program as a function of arrays of JAX, not yet compiled."""
        version = self.jax_version
        if version is not None:
            return lambda *args: version(jax.numpy, jax.lax, *args)
        function = over(self.function, jax.numpy)
        return jax.grad(function, argnums=self.by) if self.by else function  # type: ignore[no-any-return]


def program(
    arguments: Arguments, tolerance: float = 1e-9, bound_by: str = "", by: tuple[int, ...] = ()
) -> Callable[[FunctionType], Program]:
    """Makes a function a program of the suite.

    tolerance: how far results may lie apart, as a part of the largest number of a result.
    bound_by: "linalg" or "fft", where most of the time is spent in such a library.
    by: the arguments by which it is derived; the program is that derivative then.
    """
    return lambda function: Program(function, arguments, tolerance, bound_by, by)


def over(function: FunctionType, xp: ModuleType) -> Callable[..., Any]:
    """The function, and those of its module that it calls, with `np` being another module."""
    known: dict[str, Any] = {}
    for name, value in vars(sys.modules[function.__module__]).items():
        if isinstance(value, Program):
            value = value.function
        is_ours = isinstance(value, FunctionType) and value.__module__ == function.__module__
        known[name] = rebuilt(value, known) if is_ours else value
    known["np"] = xp
    return rebuilt(function, known)


def rebuilt(function: FunctionType, known: dict[str, Any]) -> FunctionType:
    made = FunctionType(
        function.__code__, known, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made
