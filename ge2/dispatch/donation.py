"""The arguments that give their memory away: those that were offered and that nobody else can see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ge2.base.arrays import INEXACT, look, on_gpu
from ge2.base.pytree import Structure, key_paths
from ge2.base.record import record
from ge2.base.source import warn
from ge2.dispatch.signature import title
from ge2.ir import ShapeDtypeStruct

if TYPE_CHECKING:
    from ge2.dispatch.signature import Key

# classes of CuPy's for memory that others may see
FOREIGN: Final = ("UnownedMemory", "DLPackMemory")


@final
@record
class Donation:
    """The arguments that were offered, by position and by name."""

    function: Callable[..., Any]
    numbers: frozenset[int]
    names: frozenset[str]

    def offered(self, structure: Structure) -> list[int]:
        """The leaves that belong to them."""
        return [i for i, path in enumerate(key_paths(structure)) if self.chosen(path)]

    def complete(self, key: Key, leaves: Sequence[Any]) -> bool:
        """True if all arrays that were offered are donated: else another call may be able to donate
        more.
        """
        return key.donated == {i for i in self.offered(key.structure) if is_memory(leaves[i])}

    def chosen(self, path: Any) -> bool:
        return path[1].key in self.names if path[0].idx else path[1].idx in self.numbers

    def accepted(
        self, leaves: Sequence[Any], offered: Sequence[int], others: Sequence[Any]
    ) -> frozenset[int]:
        """The offered leaves that are full arrays of their own; one warning for the rest."""
        owners = Counter(id(owner(x)) for x in (*leaves, *others) if is_memory(x))
        refused = {
            i: why for i in offered if is_memory(leaves[i]) and (why := refusal(leaves[i], owners))
        }
        for why in refused.values():
            what = f"an argument of {title(self.function)} was not donated: {why}"
            warn(
                what,
                "a writable array of its own, such as x.copy()",
                once=("donate", self.function, why),
            )
        fit = [
            i for i in offered if is_memory(leaves[i]) or isinstance(leaves[i], ShapeDtypeStruct)
        ]
        return frozenset(i for i in fit if i not in refused)


def stands(
    leaves: Sequence[Any], donated: frozenset[int], others: tuple[Any, ...], device: int | None
) -> bool:
    """True if arrays that were donated in a call before may be in this one: each whole, and no
    memory twice.

    It says no sooner than `accepted` does, which then says why. `device`: the
    GPU that they are on, if one.
    """
    if device is not None and look.stands is not None:
        return look.stands(leaves, donated, others)
    places = [id(owner(x)) for x in (*leaves, *others) if is_memory(x)]
    return len(set(places)) == len(places) and all(is_whole(leaves[i]) for i in donated)


def is_whole(x: Any) -> bool:
    """True if nobody else can see its memory."""
    if x.base is not None:
        return False
    if on_gpu(x):
        return type(x.data.mem).__name__ not in FOREIGN and is_ordered(x)
    return bool(x.flags.owndata and x.flags.writeable)


def is_ordered(x: Any) -> bool:
    """True if launches take an array of a GPU as it is: in C order, from where wide accesses may
    begin.
    """
    return bool(x.flags.c_contiguous and x.data.ptr % 16 == 0)


def is_memory(x: Any) -> bool:
    return isinstance(x, np.ndarray) or on_gpu(x)


def owner(x: Any) -> Any:
    """The array whose memory a view shows; on a GPU the memory."""
    if on_gpu(x):
        return x.data.mem
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x


def refusal(x: Any, owners: Counter[int]) -> str:
    if x.base is not None or not x.flags.owndata:
        return "it is a view"
    if on_gpu(x) and type(x.data.mem).__name__ in FOREIGN:
        return "its memory is another library's"
    if on_gpu(x) and not is_ordered(x):
        return "it is not in C order, or begins where wide accesses may not"
    if not getattr(x.flags, "writeable", True):
        return "it is read-only"
    return "it overlaps another argument" if owners[id(owner(x))] > 1 else ""


def shared(x: Any, y: Any) -> bool:
    """True if two arrays of a GPU have memory in common."""
    return on_gpu(y) and x.data.mem is y.data.mem


def spoiling(
    run: Callable[..., list[Any]],
    arrays: Sequence[Any],
    donated: Sequence[bool],
    written: Sequence[Any],
) -> list[Any]:
    """The results of copies; then what was donated, and not written, is filled with NaN.

    So whoever still reads a donated array, or a view that was taken of it, is found
    out. State on a GPU stays where it is, for launches that are captured know its
    address: there only what holds no result is filled.
    """
    kept = {id(x) for x in written}
    lost = [d and id(x) not in kept for x, d in zip(arrays, donated, strict=True)]
    results = run(
        *(x.copy() if gone and not on_gpu(x) else x for x, gone in zip(arrays, lost, strict=True))
    )
    for x, gone in zip(arrays, lost, strict=True):
        if gone and not (on_gpu(x) and any(shared(x, y) for y in (*results, *written))):
            x.fill(rubbish(x.dtype))
    return results


def rubbish(dtype: np.dtype) -> Any:
    """Values that no program means: NaN, true, or the largest integer."""
    return (
        np.nan if dtype in INEXACT else dtype.type(1) if dtype.kind == "b" else np.iinfo(dtype).max
    )
