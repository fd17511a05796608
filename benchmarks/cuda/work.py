"""One line of the GPU's table as data, and its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import ml_dtypes
import numpy as np

from benchmarks.record import AtMost, Target

BF16 = ml_dtypes.bfloat16
# numbers that are drawn; larger arrays repeat them, or drawing would outlast what is timed
BLOCK = 1 << 22
LARGE, SMALL, SHORT = 1 << 22, 256, 4096


@final
class Draw:
    """Draws arguments, on the host.

    A quick run cuts sizes, so that those which are equal stay equal.
    """

    def __init__(self, quick: bool) -> None:
        self.rng, self.quick = np.random.default_rng(0), quick

    def size(self, size: int) -> int:
        return min(size, SHORT if size >= LARGE else SMALL) if self.quick else size

    def normal(self, *shape: int, dtype: Any = np.float32) -> Any:
        return self.repeated(shape, lambda n: self.rng.standard_normal(n, np.float32).astype(dtype))

    def below(self, size: int, *shape: int, dtype: Any = np.int64) -> Any:
        return self.repeated(shape, lambda n: self.rng.integers(0, self.size(size), n, dtype))

    def distinct(self, size: int, dtype: Any) -> Any:
        """0, 1, ..., in random order."""
        return self.rng.permutation(self.size(size)).astype(dtype)

    def key(self) -> Any:
        """Of a generator, as ge2 and JAX have it."""
        return np.array([0, 7], np.uint32)

    def repeated(self, shape: tuple[int, ...], draw: Callable[[int], Any]) -> Any:
        cut = tuple(map(self.size, shape))
        count = int(np.prod(cut))
        return np.resize(draw(min(count, BLOCK)), cut)


@final
@dataclass(frozen=True, slots=True)
class Work:
    """`function` takes a library, its array module, then the arguments.

    Whole numbers come first among them.

    A note tells the bytes of arguments and results a second. Of a product, where `summed` is the
    axis of its first operand that is summed over, it tells operations a second.
    """

    title: str
    function: Callable[..., Any]
    arguments: Callable[[Draw], tuple[Any, ...]]
    torch: Callable[..., Any] | None  # of torch and tensors; none: torch has no such function
    # of arrays; none: `function`, which is NumPy as it stands
    numpy: Callable[..., Any] | None = None
    targets: tuple[Target, ...] = ()
    tolerance: float = 1e-4  # of the largest number of a result
    summed: int | None = None
    # of torch, `torch` compiled, and tensors: differentiates it
    derived: Callable[..., Any] | None = None
    # torch is not compiled: it has one kernel for this, or one of its library's
    eager: bool = False
    tf32: bool = False  # torch may round float32 for a product
    random: bool = False  # every library has its own numbers: only their mean and spread agree
    notes: Mapping[str, str] = field(default_factory=dict)


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays and their module, for a library."""
    return lambda lib, xp, *xs: function(xp, *xs)


def at_most(ms: float) -> tuple[Target, ...]:
    return (AtMost(ms * 1e-3),)


def parted(arguments: tuple[Any, ...]) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """The whole numbers, which are constants, and the arrays."""
    numbers = tuple(x for x in arguments if isinstance(x, int))
    return numbers, arguments[len(numbers) :]
