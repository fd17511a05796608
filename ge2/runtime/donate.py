"""Which arguments give their memory away: those that were offered and that nobody else can see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from ge2.base.dtypes import INEXACT
from ge2.base.log import warn
from ge2.base.pytree import Structure, key_paths
from ge2.base.record import record
from ge2.ir import ShapeDtypeStruct
from ge2.runtime.signature import title


@final
@record
class Donation:
    """The arguments that were offered, by position and by name."""

    function: Callable[..., Any]
    numbers: frozenset[int]
    names: frozenset[str]

    def offered(self, structure: Structure) -> list[int]:
        """Which leaves belong to them."""
        return [i for i, path in enumerate(key_paths(structure)) if self.chosen(path)]

    def chosen(self, path: Any) -> bool:
        return path[1].key in self.names if path[0].idx else path[1].idx in self.numbers

    def accepted(
        self, leaves: Sequence[Any], offered: Sequence[int], others: Sequence[Any]
    ) -> frozenset[int]:
        """Those that are whole arrays of their own; one warning for the rest."""
        owners = Counter(id(owner(x)) for x in (*leaves, *others) if isinstance(x, np.ndarray))
        refused = {
            i: why
            for i in offered
            if isinstance(leaves[i], np.ndarray) and (why := refusal(leaves[i], owners))
        }
        for why in refused.values():
            what = f"an argument of {title(self.function)} was not donated: {why}"
            warn(what, "a writable array of its own, such as x.copy()", once=("donate", self.function, why))
        fit = (np.ndarray, ShapeDtypeStruct)
        return frozenset(i for i in offered if i not in refused and isinstance(leaves[i], fit))


def owner(x: Any) -> Any:
    """The array whose memory a view shows."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x


def refusal(x: np.ndarray, owners: Counter[int]) -> str:
    if x.base is not None or not x.flags.owndata:
        return "it is a view"
    if not x.flags.writeable:
        return "it is read-only"
    return "it overlaps another argument" if owners[id(x)] > 1 else ""


def spoil(donated: Sequence[np.ndarray], results: Sequence[Any]) -> None:
    """Fills donated arrays that hold no result, so that a program that still reads them is found out."""
    for x in donated:
        if not any(isinstance(y, np.ndarray) and np.may_share_memory(x, y) for y in results):
            x.fill(
                np.nan
                if x.dtype in INEXACT
                else x.dtype.type(1)
                if x.dtype == bool
                else np.iinfo(x.dtype).max
            )
