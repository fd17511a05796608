"""Containers that a function changes: it is given copies, so its caller does not see that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, final

from ge2.base.pytrees.pytree import KeyPath
from ge2.base.pytrees.treedef import kind_of

__all__ = ["Given"]


@final
class Given:
    """The containers among the arguments of a call, with the parts that each has at first."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found = containers((args, kwargs), ())
        self.found = [(x, path, parts(x)) for x, path in found if len(path) > 1]

    def lost(self, result: Any) -> list[KeyPath]:
        """The paths of those that have other parts now and are not returned."""
        changed = [(x, path) for x, path, before in self.found if not same(before, parts(x))]
        returned = {id(x) for x, _ in containers(result, ())} if changed else ()
        return [path for x, path in changed if id(x) not in returned]


def containers(tree: Any, path: KeyPath) -> Iterator[tuple[Any, KeyPath]]:
    """The nodes of a tree and their paths, each before those inside it."""
    kind = kind_of(type(tree))
    if kind is not None:
        yield tree, path
        children, aux = kind.split(tree)
        for key, child in zip(kind.keys(aux, len(children)), children, strict=True):
            yield from containers(child, (*path, key))


def parts(container: Any) -> Sequence[Any]:
    if isinstance(container, dict):
        return [*chain.from_iterable(container.items())]
    kind = kind_of(type(container))
    return [*kind.split(container)[0]] if kind is not None else []


def same(before: Sequence[Any], after: Sequence[Any]) -> bool:
    return len(before) == len(after) and all(a is b for a, b in zip(before, after, strict=True))
