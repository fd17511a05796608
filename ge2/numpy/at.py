"""`x.at[i].add(v)`: a new array that differs at some places, as JAX writes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import numpy as np

from ge2.base.record import record
from ge2.base.tracebacks import hides_methods
from ge2.ir import type_of
from ge2.numpy.composite import choose_by
from ge2.numpy.indexing import as_mask
from ge2.numpy.meeting import combined
from ge2.numpy.moving_slices import getitem, setitem
from ge2.numpy.promotion import array, cast


@final
@hides_methods
@record
class At:
    """An array about to be indexed."""

    x: Any

    def __getitem__(self, key: Any) -> Place:
        return Place(self.x, key)


@final
@hides_methods
@record
class Place:
    """Some places of an array; each method gives a new array of its dtype, and writes nothing.

    Indices that meet are all counted by `add`, `subtract`, `multiply`, `divide`, `min`
    and `max`; of several for `set` the last stays. An index outside is an IndexError,
    of a traced one when it runs.
    """

    x: Any
    key: Any

    def get(self) -> Any:
        """The elements, `x[key]`."""
        return getitem(self.x, self.key)

    def set(self, values: Any) -> Any:
        """The array with those values there."""
        return setitem(self.x, self.key, values)

    def add(self, values: Any) -> Any:
        """The array with those values added there."""
        return combined(np.add, self.x, self.key, values)

    def subtract(self, values: Any) -> Any:
        """The array with those values subtracted there."""
        return combined(np.subtract, self.x, self.key, values)

    def multiply(self, values: Any) -> Any:
        """The array multiplied by those values there."""
        return combined(np.multiply, self.x, self.key, values)

    mul = multiply

    def divide(self, values: Any) -> Any:
        """The array divided by those values there."""
        return combined(np.divide, self.x, self.key, values)

    def power(self, values: Any) -> Any:
        """The array to those powers there; the indices are distinct, or known."""
        return combined(np.power, self.x, self.key, values)

    def min(self, values: Any) -> Any:
        """The smaller of the array and those values there."""
        return combined(np.minimum, self.x, self.key, values)

    def max(self, values: Any) -> Any:
        """The larger of the array and those values there."""
        return combined(np.maximum, self.x, self.key, values)

    def apply(self, function: Callable[[Any], Any]) -> Any:
        """The array with a function of the elements there, once where indices meet."""
        mask = as_mask(self.key)
        if mask is not None:
            x, own = array(self.x), type_of(mask)
            wide = mask.reshaped((*own.shape, *(1,) * (type_of(x).ndim - own.ndim)))
            return choose_by(wide, cast(array(function(x)), type_of(x).dtype), x)
        return setitem(self.x, self.key, function(getitem(self.x, self.key)))


def at(x: Any) -> At:
    """`at(x)[i].add(v)` is a new array that is `x` but for those places, of
    plain and of traced arrays.

    Traced arrays have it as `x.at[i]`, as JAX's do. The methods are `get`, `set`, `add`,
    `subtract`, `multiply`, `divide`, `power`, `min`, `max` and `apply`; see `Place`.

    >>> at(np.zeros(3))[[0, 0, 2]].add(1.0)
    array([2., 0., 1.])
    """
    return At(array(x))
