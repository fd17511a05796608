"""The keys by which a leaf is reached from the root of a tree, and how they are written."""

from __future__ import annotations

from typing import Any, final

from ge2.base.record import record

KeyPath = tuple[Any, ...]


@final
@record
class DictKey:
    key: Any

    def __str__(self) -> str:
        return f"[{self.key!r}]"


@final
@record
class SequenceKey:
    idx: int

    def __str__(self) -> str:
        return f"[{self.idx}]"


@final
@record
class GetAttrKey:
    name: str

    def __str__(self) -> str:
        return f".{self.name}"


@final
@record
class FlattenedIndexKey:
    key: int

    def __str__(self) -> str:
        return f"[<flat index {self.key}>]"


def keystr(path: KeyPath, *, simple: bool = False, separator: str = "") -> str:
    """The path as it is written after the name of the tree; `simple` gives the bare keys.

    >>> path = (DictKey("w"), SequenceKey(0), GetAttrKey("bias"))
    >>> keystr(path)
    "['w'][0].bias"
    >>> keystr(path, simple=True, separator="/")
    'w/0/bias'
    """
    return separator.join(_bare(key) if simple else str(key) for key in path)


def _bare(key: Any) -> str:
    match key:
        case DictKey(name) | SequenceKey(name) | GetAttrKey(name) | FlattenedIndexKey(name):
            return str(name)
    return str(key)
