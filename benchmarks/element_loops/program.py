"""A program in both of its forms, and what it is written in: NumPy and ge2, or JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, final

import numpy as np

import ge2
from benchmarks.peers import peer

SMALL = 60  # the size at which the plain Python loops are compiled
Draw = np.random.Generator


@final
@dataclass(frozen=True, slots=True)
class Library:
    """The functions that a looped program is written with."""

    np: ModuleType
    fori_loop: Callable[..., Any]
    put: Callable[[Any, Any, Any], Any]  # the array with a value at an index
    jit: Callable[..., Any]


@final
@dataclass(frozen=True, slots=True)
class Program:
    """One program.

    `draw` makes its arguments of a size; `size` is the one at which loops are timed.
    """

    name: str
    plain: Callable[..., Any]
    looped: Callable[..., Any]  # of a Library, then the arguments
    draw: Callable[[Draw, int], tuple[Any, ...]]
    size: int

    def arguments(self, size: int | None = None) -> tuple[Any, ...]:
        """Its arguments, the same for every call."""
        return self.draw(np.random.default_rng(0), size or self.size)

    def compiled(self, library: Library) -> Callable[..., Any]:
        """The looped form as one compiled function of the arguments, which names
        nothing that may change.
        """
        return partial(library.jit(self.looped, static_argnums=0), library)


def written(x: Any, index: Any, value: Any) -> Any:
    x[index] = value
    return x


def libraries() -> dict[str, Library]:
    """ge2, and JAX where it is installed, which is to be called `in_float64`."""
    found = {"ge2": Library(np, ge2.lax.fori_loop, written, ge2.jit)}
    jax = peer("jax")
    if jax is not None:
        found["jax"] = Library(
            jax.numpy, jax.lax.fori_loop, lambda x, index, value: x.at[index].set(value), jax.jit
        )
    return found


@contextmanager
def in_float64() -> Iterator[None]:
    """JAX computes in float64 inside, as NumPy does."""
    jax = peer("jax")
    if jax is None:
        yield
        return
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)
