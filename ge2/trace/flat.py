"""`x.flat`: the elements of a traced array in a row, to read, write and go through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import numpy as np

from ge2 import numpy as gnp
from ge2.base.tracebacks import hides_methods
from ge2.ir import type_of
from ge2.numpy.promotion import array, cast


@final
@hides_methods
class Flat:
    """The elements of `base`, as `numpy.flatiter`:

    `x.flat[i]` is a copy, `x.flat[i] = v` writes to `x`.
    """

    __slots__ = ("at", "base")

    def __init__(self, base: Any) -> None:
        self.base, self.at = base, 0

    def line(self) -> Any:
        return gnp.reshape(self.base, (self.base.type.size,)).__copy__()

    def __getitem__(self, key: Any) -> Any:
        y = gnp.getitem(self.line(), key)
        return y.__copy__() if hasattr(y, "cell") else y

    def __setitem__(self, key: Any, value: Any) -> None:
        line = self.line()
        n = (
            gnp.getitem(np.empty(line.type.shape, np.int8), key).size
            if known(key)
            else type_of(array(key)).size
        )
        new = gnp.setitem(line, key, repeated(cast(array(value), line.type.dtype), n))
        self.base[...] = gnp.reshape(new, self.base.type.shape)

    def __len__(self) -> int:
        return int(self.base.type.size)

    def __iter__(self) -> Iterator[Any]:
        self.at = 0
        return self

    def __next__(self) -> Any:
        if self.at >= len(self):
            raise StopIteration
        self.at += 1
        return self[self.at - 1]

    def copy(self) -> Any:
        return self.line()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self.line(), dtype)

    def __repr__(self) -> str:
        return f"<{self.base.label()}.flat>"


def known(key: Any) -> bool:
    return not hasattr(key, "type")


def repeated(value: Any, n: int) -> Any:
    """The elements of a value, over again until there are `n`."""
    line = gnp.reshape(value, (type_of(value).size,))
    size = type_of(line).size
    if size == 1 or not n:
        return gnp.getitem(line, slice(0, 1)) if size else line
    return gnp.getitem(line, np.arange(n) % size)
