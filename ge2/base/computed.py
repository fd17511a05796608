"""A property that is computed once, without a lock: a fork beside another
thread may leave one locked.

`functools.cached_property` has a lock for all objects of a class before Python 3.12.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, final, overload

T = TypeVar("T")


@final
class computed(Generic[T]):
    """A property that is computed when it is first read; each of two threads
    may do so, and one value stays.

    >>> class Square:
    ...     @computed
    ...     def area(self) -> int:
    ...         print("once")
    ...         return 4
    >>> square = Square()
    >>> square.area + square.area
    once
    8
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute, self.name, self.__doc__ = compute, compute.__name__, compute.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...

    @overload
    def __get__(self, owner: object, kind: type) -> T: ...

    def __get__(self, owner: object | None, kind: type) -> T | Self:
        if owner is None:
            return self
        found: T = owner.__dict__.setdefault(self.name, self.compute(owner))
        return found
