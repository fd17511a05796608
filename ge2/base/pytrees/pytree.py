"""Containers of arrays, taken apart into leaves and a structure, and built again."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ge2.base.errors import PytreeError
from ge2.base.pytrees.paths import DictKey as DictKey
from ge2.base.pytrees.paths import FlattenedIndexKey as FlattenedIndexKey
from ge2.base.pytrees.paths import GetAttrKey as GetAttrKey
from ge2.base.pytrees.paths import KeyPath as KeyPath
from ge2.base.pytrees.paths import SequenceKey as SequenceKey
from ge2.base.pytrees.paths import keystr as keystr
from ge2.base.pytrees.register import Partial as Partial
from ge2.base.pytrees.register import register_dataclass as register_dataclass
from ge2.base.pytrees.register import register_leaf as register_leaf
from ge2.base.pytrees.register import register_pytree_node as register_pytree_node
from ge2.base.pytrees.register import register_pytree_node_class as register_pytree_node_class
from ge2.base.pytrees.register import register_pytree_with_keys as register_pytree_with_keys
from ge2.base.pytrees.treedef import LEAF as LEAF
from ge2.base.pytrees.treedef import (
    LEAVES,
    flat_node,
    keys_of,
    kind_of,
    named,
    node,
    root_text,
    same_data,
)
from ge2.base.pytrees.treedef import Structure as Structure
from ge2.base.pytrees.treedef import why_leaf as why_leaf

IsLeaf = Callable[[Any], bool]
PathsAndLeaves = list[tuple[KeyPath, Any]]
Names = tuple[str, str]  # what the two trees that are compared are called
register_leaf(Structure)


# --- apart and together
# -------------------------------------------------------------------------------------


def flatten(tree: Any, is_leaf: IsLeaf | None = None) -> tuple[list[Any], Structure]:
    """The leaves from left to right (dicts in the order of their sorted keys) and the structure
    around them, which keeps the order in which keys were inserted and compares without it.

    `is_leaf(x)` may stop the descent at any node. PytreeError for a tree that contains itself.

    >>> flatten({"b": [1, 2], "a": 3})
    ([3, 1, 2], PyTreeDef({'a': *, 'b': [*, *]}))
    """
    found: list[Any] = []
    try:
        return found, _walk(tree, found) if is_leaf is None else _walk_until(tree, found, is_leaf)
    except RecursionError:
        raise _bottomless(tree) from None


def _walk(tree: Any, found: list[Any]) -> Structure:
    kind = kind_of(type(tree))
    if kind is None:
        found.append(tree)
        return LEAF
    children, aux = kind.split(tree)
    if LEAVES.issuperset(map(type, children)):
        found += children
        return flat_node(kind, aux, len(children))
    return node(kind, aux, tuple([_walk(child, found) for child in children]))


def _walk_until(tree: Any, found: list[Any], is_leaf: IsLeaf) -> Structure:
    kind = None if is_leaf(tree) else kind_of(type(tree))
    if kind is None:
        found.append(tree)
        return LEAF
    children, aux = kind.split(tree)
    return node(kind, aux, tuple([_walk_until(child, found, is_leaf) for child in children]))


def unflatten(structure: Structure, leaves: Iterable[Any]) -> Any:
    """The tree of this structure with these leaves; PytreeError if their number is wrong.

    >>> unflatten(structure({"a": 0, "b": (0, None)}), [1, 2])
    {'a': 1, 'b': (2, None)}
    """
    return structure.unflatten(leaves)


def leaves(tree: Any, is_leaf: IsLeaf | None = None) -> list[Any]:
    """The leaves from left to right."""
    return flatten(tree, is_leaf)[0]


def structure(tree: Any, is_leaf: IsLeaf | None = None) -> Structure:
    """The tree without its leaves."""
    return flatten(tree, is_leaf)[1]


def map_structure(
    f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf | None = None
) -> Any:
    """The tree of `f(x, *ys)`, x each leaf of `tree` and ys what the rest have in its place.

    The rest must have the structure of `tree`, or go on below its leaves; else
    PytreeError with the key path.
    """
    first, shape = flatten(tree, is_leaf)
    return shape.unflatten([f(*xs) for xs in zip(first, *flatten_rest(shape, rest), strict=True)])


def flatten_rest(structure: Structure, rest: Sequence[Any]) -> list[list[Any]]:
    """The further trees of a map, each flattened up to the structure of the first."""
    return [
        flatten_up_to(structure, tree, ("the first tree", f"tree {i}"))
        for i, tree in enumerate(rest, 2)
    ]


def _bottomless(tree: Any) -> PytreeError:
    cycle = _cycle(tree)
    if cycle is None:
        limit = sys.getrecursionlimit()
        return PytreeError(
            f"the tree is nested deeper than Python's recursion limit of {limit} allows"
        )
    inner, outer, what = cycle
    return PytreeError(f"the tree contains itself: the {what} {_at(inner)} is the one {_at(outer)}")


def _cycle(tree: Any) -> tuple[KeyPath, KeyPath, str] | None:
    """The two paths at which a node is found inside itself, by a descent that keeps its own stack."""
    trail = [(None, tree, _children(tree))]
    depth = {id(tree): 0}
    done: set[int] = set()
    while trail and len(trail) <= sys.getrecursionlimit():
        key, child = next(trail[-1][2], (None, trail))
        if child is trail:
            _, over, _ = trail.pop()
            done.add(id(over))
            del depth[id(over)]
        elif id(child) in depth:
            path = (*(key for key, _, _ in trail[1:]), key)
            return path, path[: depth[id(child)]], type(child).__name__
        elif id(child) not in done:
            depth[id(child)] = len(trail)
            trail.append((key, child, _children(child)))
    return None


def _children(tree: Any) -> Iterator[tuple[Any, Any]]:
    kind = kind_of(type(tree))
    if kind is None:
        return iter(())
    children, aux = kind.split(tree)
    return zip(kind.keys(aux, len(children)), children, strict=True)


# --- key paths
# ----------------------------------------------------------------------------------------------


def flatten_with_path(tree: Any, is_leaf: IsLeaf | None = None) -> tuple[PathsAndLeaves, Structure]:
    """As `flatten`, with the key path of each leaf before it."""
    found, shape = flatten(tree, is_leaf)
    return list(zip(key_paths(shape), found, strict=True)), shape


def key_paths(structure: Structure) -> list[KeyPath]:
    """The key path of each leaf, worked out from the structure alone.

    >>> [keystr(path) for path in key_paths(structure({"w": [0, 0], "b": 0}))]
    ["['b']", "['w'][0]", "['w'][1]"]
    """
    return list(_paths(structure, ()))


def _paths(structure: Structure, path: KeyPath) -> Iterator[KeyPath]:
    if structure is LEAF:
        yield path
        return
    for key, child in zip(structure.key_entries(), structure.children, strict=True):
        yield from _paths(child, (*path, key))


def _at(path: KeyPath) -> str:
    return f"at {keystr(path)}" if path else "at the top"


# --- one tree against another
# -------------------------------------------------------------------------------


class _Differs(Exception):
    """Two trees differ; the path grows while the descent unwinds."""

    def __init__(self, why: str) -> None:
        self.why = why
        self.path: KeyPath = ()


def flatten_up_to(
    structure: Structure, tree: Any, names: Names = ("the structure", "the tree")
) -> list[Any]:
    """The parts of `tree` in the place of each leaf of `structure`; PytreeError where it has none.

    >>> flatten_up_to(structure([0, 0]), [1, {"a": 2}])
    [1, {'a': 2}]
    """
    found, shape = flatten(tree)
    if shape == structure:
        return found
    found = []
    try:
        _descend(structure, tree, found, names)
    except _Differs as differs:
        what = f"{names[0]} and {names[1]} differ {_at(differs.path)}: {differs.why}"
        raise PytreeError(
            what, fix="trees of one structure, which ge2.tree.structure(tree) shows"
        ) from None
    return found


def _descend(structure: Structure, tree: Any, found: list[Any], names: Names) -> None:
    if structure is LEAF:
        found.append(tree)
        return
    children = _children_like(structure, tree, names)
    for i, (inner, child) in enumerate(zip(structure.children, children, strict=True)):
        try:
            _descend(inner, child, found, names)
        except _Differs as differs:
            differs.path = (structure.key_entries()[i], *differs.path)
            raise


def _children_like(structure: Structure, tree: Any, names: Names) -> Sequence[Any]:
    """The children of a tree whose root must be that of the structure."""
    kind = kind_of(type(tree))
    if kind is None:
        raise _Differs(f"{named(structure)} against a leaf ({type(tree).__name__})")
    children, aux = kind.split(tree)
    root = flat_node(kind, aux, len(children))
    keys = keys_of(structure) if kind is structure.kind and kind.type is not OrderedDict else None
    if keys is not None and not _lacking(structure, root):
        # the keys may be of other types that are equal, as "a" and numpy.str_("a")
        return keys.pick(tree)
    if why := _clash(structure, root, names):
        raise _Differs(why)
    return children


def mismatch(
    a: Structure, b: Structure, name_a: str = "the first tree", name_b: str = "the second tree"
) -> str:
    """The first place where two structures differ, and how, as a sentence; empty if they are equal.

    >>> mismatch(structure({"w": [0, 0]}), structure({"w": (0, 0)}), "params", "grads")
    "params and grads differ at ['w']: a list of 2 against a tuple of 2"
    """
    found = _difference(a, b, (name_a, name_b), ())
    return f"{name_a} and {name_b} differ {_at(found[0])}: {found[1]}" if found else ""


def _difference(
    a: Structure, b: Structure, names: Names, path: KeyPath
) -> tuple[KeyPath, str] | None:
    if a == b:
        return None
    if why := _clash(a, b, names):
        return path, why
    inner = zip(a.key_entries(), a.children, b.children, strict=True)
    return next(filter(None, (_difference(x, y, names, (*path, key)) for key, x, y in inner)), None)


def _clash(a: Structure, b: Structure, names: Names) -> str:
    """The difference between the roots of two structures, or ""."""
    if a.kind is b.kind and (lacking := _lacking(a, b)):
        return " and ".join(f"key {key!r} is only in {names[side]}" for side, key in lacking)
    if a.kind is not b.kind or len(a.children) != len(b.children):
        return f"{named(a)} against {named(b)}"
    return "" if same_data(a, b) else f"{root_text(a)} against {root_text(b)}"


def _lacking(a: Structure, b: Structure) -> list[tuple[int, Any]]:
    """The first key that only one of two dicts has, for each of them."""
    mine, theirs = keys_of(a), keys_of(b)
    if mine is None or theirs is None:
        return []
    sides = enumerate([(mine.names, set(theirs.names)), (theirs.names, set(mine.names))])
    return [
        (side, next(k for k in keys if k not in other))
        for side, (keys, other) in sides
        if set(keys) - other
    ]


def broadcast_prefix(prefix_tree: Any, full_tree: Any, is_leaf: IsLeaf | None = None) -> list[Any]:
    """The leaf of `prefix_tree` that stands above each leaf of `full_tree`.

    None is a leaf in the prefix.

    >>> broadcast_prefix((0, None), ([1, 2], {"a": 3, "b": 4}))
    [0, 0, None, None]
    """
    above, shape = flatten(prefix_tree, lambda x: x is None or (is_leaf is not None and is_leaf(x)))
    parts = flatten_up_to(shape, full_tree, ("the prefix", "the tree"))
    return [x for x, part in zip(above, parts, strict=True) for _ in leaves(part)]
