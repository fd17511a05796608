"""Arguments of a call: containers, which generated code takes apart, and arrays that are donated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ge2.base.arrays import INEXACT, look, on_gpu
from ge2.base.pytree import Structure, key_paths
from ge2.base.record import record
from ge2.base.source import warn
from ge2.base.treedef import LEAF, Kind, keys_of
from ge2.dispatch.signature import title
from ge2.ir import ShapeDtypeStruct

if TYPE_CHECKING:
    from ge2.dispatch.signature import Key


# -------- The arguments that give their memory away: those that were offered and that nobody else
# can see.


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


# -------- Structures of built-in containers as Python code of their own, which needs no walk.
# What a jitted function is called with hardly ever changes its structure. So the structure of an
# earlier call, with the types of its leaves, becomes a function that answers whether a new call is
# the same, and its leaves; and the structure of the results one that puts them together. Both only
# know dicts with string keys, lists, tuples, named tuples and None; for anything else there is
# none, and the walk of `pytree` serves.


MOST = 1000  # the most leaves that are worth a function
NONE = type(None)
TEXT = """def match(t):
    try:
        {}
    except (KeyError, ValueError):
        return None
"""
Match = Callable[[Any], Sequence[Any] | None]
Build = Callable[[Sequence[Any]], Any]


def matcher(structure: Structure, leaves: Sequence[Any]) -> Match | None:
    """The leaves of a tree, if it has this structure and leaves of these types, else None.

    `leaves` has for each leaf (shape, dtype) of an array, or the type of a Python number.

    >>> f = matcher(*[(s := __import__("ge2").tree.structure({"a": 0, "b": [0]})), [float, float]])
    >>> f({"a": 1.5, "b": [2.5]}), f({"a": 1.5, "b": [2]}), f({"a": 1.5, "b": [2.5, 3.5]})
    ([1.5, 2.5], None, None)
    """
    if not known(structure) or structure.num_leaves > MOST:
        return None
    flat = (
        structure is not LEAF
        and structure.kind.type is tuple
        and all(c is LEAF for c in structure.children)
    )
    if flat and leaves and all(map(is_gpu_key, leaves)):
        keys = tuple(leaves)
        return lambda t: t if look.same(t, keys) else None
    return Taking(structure, leaves).function()


def is_gpu_key(key: Any) -> bool:
    return isinstance(key, tuple) and len(key) == 3


def builder(structure: Structure) -> Build | None:
    """The tree of this structure, given its leaves.

    >>> builder(__import__("ge2").tree.structure({"a": 0, "b": (0, None)}))([1, 2])
    {'a': 1, 'b': (2, None)}
    """
    if not known(structure) or structure is LEAF or structure.num_leaves > MOST:
        return None
    names: dict[str, Any] = {}
    count = iter(range(structure.num_leaves))
    text = f"lambda r: {put_together(structure, count, names)}"
    made: Build = eval(text, names)
    return made


def known(structure: Structure) -> bool:
    """True if all nodes are of the kinds that are spelt out."""
    if structure is LEAF:
        return True
    kind = structure.kind.type
    keys = keys_of(structure) if kind is dict else None
    if kind is dict and (keys is None or any(type(name) is not str for name in keys.names)):
        return False
    if kind not in (dict, list, tuple, NONE) and not is_named(structure.kind):
        return False
    return all(map(known, structure.children))


def is_named(kind: Kind) -> bool:
    """True if instances are named tuples that come apart as tuples do."""
    return (
        issubclass(kind.type, tuple)
        and hasattr(kind.type, "_fields")
        and kind.type.__len__ is tuple.__len__
    )


def put_together(structure: Structure, count: Any, names: dict[str, Any]) -> str:
    if structure is LEAF:
        return f"r[{next(count)}]"
    kind = structure.kind.type
    parts = [put_together(child, count, names) for child in structure.children]
    if kind is dict:
        keys = keys_of(structure)
        assert keys is not None
        spelt = dict(zip(keys.names, parts, strict=True))
        return f"{{{', '.join(f'{k!r}: {spelt[k]}' for k in keys.inserted or keys.names)}}}"
    if kind is list:
        return f"[{', '.join(parts)}]"
    if kind is NONE:
        return "None"
    text = f"({', '.join(parts)}{',' * (len(parts) == 1)})"
    if kind is tuple:
        return text
    name = f"T{len(names)}"
    names[name] = kind._make  # type: ignore[attr-defined]
    return f"{name}({text})"


@final
class Taking:
    """Writes the function that takes a tree apart."""

    def __init__(self, structure: Structure, leaves: Sequence[Any]) -> None:
        self.structure, self.expected = structure, iter(leaves)
        self.names: dict[str, Any] = {"ndarray": np.ndarray, "look": look}
        self.on_gpu: dict[str, Any] = {}  # the keys of leaves there, which are looked at together
        self.lines: list[str] = []
        self.found: list[str] = []
        self.count = 0

    def function(self) -> Match:
        self.take("t", self.structure)
        if self.on_gpu:
            keys = self.constant(tuple(self.on_gpu.values()))
            self.unless(f"look.same(({', '.join(self.on_gpu)},), {keys})")
        body = "\n        ".join([*self.lines, f"return [{', '.join(self.found)}]"])
        exec(compile(TEXT.format(body), "<ge2 matcher>", "exec"), self.names)
        made: Match = self.names["match"]
        return made

    def constant(self, value: Any) -> str:
        name = f"K{len(self.names)}"
        self.names[name] = value
        return name

    def take(self, name: str, structure: Structure) -> None:
        if structure is LEAF:
            self.leaf(name)
            return
        kind, children = structure.kind.type, structure.children
        if kind is NONE:
            self.unless(f"{name} is None")
            return
        self.unless(f"type({name}) is {self.constant(kind)} and len({name}) == {len(children)}")
        parts = []
        for _ in children:
            self.count += 1
            parts.append(f"x{self.count}")
        keys = keys_of(structure) if kind is dict else None
        if keys is not None and parts:
            inserted = keys.inserted or keys.names
            self.unless(f"tuple({name}) == {self.constant(inserted)}")
            by_key = dict(zip(keys.names, parts, strict=True))
            self.lines.append(f"{', '.join(by_key[k] for k in inserted)}, = {name}.values()")
        elif parts:
            self.lines.append(f"{', '.join(parts)}, = {name}")
        for part, child in zip(parts, children, strict=True):
            self.take(part, child)

    def leaf(self, name: str) -> None:
        wanted = next(self.expected)
        if isinstance(wanted, type):
            self.unless(f"type({name}) is {self.constant(wanted)}")
        elif is_gpu_key(wanted):
            self.on_gpu[name] = wanted
        else:
            shape, dtype = map(self.constant, wanted)
            self.unless(
                f"type({name}) is ndarray and {name}.dtype is {dtype} and {name}.shape == {shape}"
            )
        self.found.append(name)

    def unless(self, condition: str) -> None:
        self.lines.append(f"if not ({condition}): return None")
