"""Elements where a mask holds, for functions that are computed of all of them."""

from __future__ import annotations

from typing import Any

from ge2.ir import type_of
from ge2.numpy.composite import choose_by
from ge2.numpy.indexing import fitting
from ge2.numpy.promotion import reshape
from ge2.ops.index import Gather
from ge2.ops.reduce import ArgMax


def harmless(x: Any, mask: Any) -> Any:
    """The array, everywhere else the first element that the mask chooses.

    A function of it makes no NaN, nor has an infinite derivative, but where the mask holds.
    """
    t, own = type_of(x), type_of(mask)
    if not own.size or not t.size:
        return x
    left = t.shape[own.ndim :]
    first = Gather((0,))(reshape(x, (own.size, *left)), ArgMax(0)(reshape(mask, (own.size,))))
    whole = reshape(mask, (*own.shape, *(1,) * len(left)))
    return choose_by(whole, x, fitting(first, t.shape, t))
