"""Pytrees: containers of arrays, flattened and rebuilt, and classes registered as their nodes."""

from __future__ import annotations

import functools
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, final

from ge2.base.errors import PytreeError
from ge2.base.record import DictKey as DictKey
from ge2.base.record import FlattenedIndexKey as FlattenedIndexKey
from ge2.base.record import GetAttrKey as GetAttrKey
from ge2.base.record import KeyPath as KeyPath
from ge2.base.record import SequenceKey as SequenceKey
from ge2.base.record import keystr as keystr
from ge2.base.record import record
from ge2.base.treedef import (
    KINDS,
    LEAVES,
    OPAQUE,
    REGISTERED,
    Kind,
    data_and_static,
    exact,
    fields_kind,
    flat_node,
    keys_of,
    kind_of,
    named,
    node,
    root_text,
    same_data,
)
from ge2.base.treedef import LEAF as LEAF
from ge2.base.treedef import Structure as Structure
from ge2.base.treedef import why_leaf as why_leaf

# -------- Making classes into nodes of trees, or into leaves.


C = TypeVar("C", bound=type)
T = TypeVar("T")


@final
@record
class Keyed:
    """Static data together with the keys of the children."""

    data: Any
    keys: tuple[Any, ...]


def _register(kind: Kind) -> None:
    cls = kind.type
    if cls in REGISTERED:
        raise PytreeError(f"{cls.__name__} is already a pytree node")
    REGISTERED.add(cls)
    KINDS[cls] = kind
    LEAVES.discard(cls)


def _a_class(cls: Any, function: str) -> Any:
    if not isinstance(cls, type):
        raise PytreeError(f"{function} takes a class; got {cls!r}")
    return cls


def _two(result: Any, cls: type, wanted: str) -> tuple[Any, Any]:
    if not isinstance(result, tuple) or len(result) != 2:
        raise PytreeError(
            f"the flatten function of {cls.__name__} must return {wanted}; got {result!r:.100}"
        )
    return result


def register_pytree_node(
    nodetype: type[T],
    flatten_func: Callable[[T], tuple[Iterable[Any], Any]],
    unflatten_func: Callable[[Any, tuple[Any, ...]], T],
) -> None:
    """Makes instances of exactly this class nodes.

    `flatten_func(x)` returns (children, static data), the data hashable, and `unflatten_func(data,
    children)` undoes it. PytreeError if the class is one already.

    >>> from ge2.base.pytree import leaves
    >>> class Pair:
    ...     def __init__(self, a, b): self.a, self.b = a, b
    >>> register_pytree_node(Pair, lambda p: ((p.a, p.b), None), lambda _, xs: Pair(*xs))
    >>> leaves([Pair(1, 2), 3])
    [1, 2, 3]
    """

    def split(tree: T) -> tuple[tuple[Any, ...], Any]:
        children, aux = _two(flatten_func(tree), nodetype, "(children, static data)")
        return tuple(children), aux

    _register(
        Kind(
            _a_class(nodetype, "register_pytree_node"),
            split=split,
            build=lambda aux, xs: unflatten_func(aux, tuple(xs)),
            keys=lambda aux, count: [FlattenedIndexKey(i) for i in range(count)],
            show=lambda aux, texts: f"{nodetype.__name__}{_data_text(aux)}({', '.join(texts)})",
            token=exact,
            shared=False,
        )
    )


def register_pytree_with_keys(
    nodetype: type[T],
    flatten_with_keys: Callable[[T], tuple[Iterable[tuple[Any, Any]], Any]],
    unflatten_func: Callable[[Any, tuple[Any, ...]], T],
) -> None:
    """As `register_pytree_node`, but `flatten_with_keys(x)` returns ((key,
    child) pairs, static data).

    A key is one of `DictKey`, `SequenceKey`, `GetAttrKey`, or anything whose
    `str` reads well in a path.
    """

    def split(tree: T) -> tuple[tuple[Any, ...], Keyed]:
        pairs, aux = _two(
            flatten_with_keys(tree), nodetype, "(pairs of key and child, static data)"
        )
        both = [_two(pair, nodetype, "pairs of key and child") for pair in pairs]
        return tuple(child for _, child in both), Keyed(aux, tuple(key for key, _ in both))

    _register(
        Kind(
            _a_class(nodetype, "register_pytree_with_keys"),
            split=split,
            build=lambda aux, xs: unflatten_func(aux.data, tuple(xs)),
            keys=lambda aux, count: aux.keys,
            show=lambda aux, texts: (
                f"{nodetype.__name__}{_data_text(aux.data)}({_keyed_text(aux, texts)})"
            ),
            token=lambda aux: exact(aux.data),
            shared=False,
        )
    )


def _data_text(data: Any) -> str:
    return "" if data is None or data == () else f"[{data!r}]"


def _keyed_text(aux: Keyed, texts: Sequence[str]) -> str:
    return ", ".join(f"{key}: {text}" for key, text in zip(aux.keys, texts, strict=False))


def register_pytree_node_class(cls: C) -> C:
    """Class decorator: `x.tree_flatten()` gives (children, static data), and the class method
    `tree_unflatten(data, children)` undoes it."""
    known: Any = _a_class(cls, "register_pytree_node_class")
    for name in ("tree_flatten", "tree_unflatten"):
        if not callable(getattr(known, name, None)):
            raise PytreeError(
                f"{known.__name__} has no {name}",
                fix="tree_flatten(self) -> (children, data), classmethod tree_unflatten(cls, data, children)",
            )
    register_pytree_node(known, known.tree_flatten, known.tree_unflatten)
    return cls


def register_dataclass(
    nodetype: C, data_fields: Sequence[str] | None = None, meta_fields: Sequence[str] | None = None
) -> C:
    """Makes a class a node whose children are `data_fields`; `meta_fields` are static.

    Returns the class.

    Without the two lists, a dataclass's fields with `init=True` are children, less those made with
    `field(metadata={"static": True})`: what a dataclass is without being registered. It is built
    again by calling the class with all of these by name.
    """
    cls = _a_class(nodetype, "register_dataclass")
    data, meta = _explicit_fields(cls, data_fields, meta_fields)
    known = {f.name for f in fields(cls) if f.init} if is_dataclass(cls) else {*data, *meta}
    if twice := set(data) & set(meta):
        raise PytreeError(f"{cls.__name__}: {_names(twice)} is both data and static")
    if wrong := {*data, *meta} - known:
        raise PytreeError(f"{cls.__name__} has no field {_names(wrong)} that its constructor takes")
    if missing := known - {*data, *meta}:
        raise PytreeError(f"{cls.__name__}: the field {_names(missing)} is neither data nor static")
    _register(fields_kind(cls, data, meta))
    return nodetype


FieldNames = Sequence[str] | None


def _explicit_fields(cls: Any, data: FieldNames, meta: FieldNames) -> tuple[list[str], list[str]]:
    if data is not None and meta is not None:
        return list(data), list(meta)
    if data is not None or meta is not None or not is_dataclass(cls):
        raise PytreeError(
            f"register_dataclass({cls.__name__}) needs data_fields and meta_fields, or else a dataclass"
        )
    return data_and_static(cls)


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(map(repr, names)))


def register_leaf(cls: C) -> C:
    """Class decorator: instances of this class and its subclasses are leaves,
    dataclasses or not.
    """
    OPAQUE.add(_a_class(cls, "register_leaf"))
    for known in [known for known in KINDS if issubclass(known, cls)]:
        if known not in REGISTERED:
            del KINDS[known]
    return cls


@final
class Partial(functools.partial[Any]):
    """A `functools.partial` that is a node: the arguments bound so far are
    children, the function is static.

    >>> from ge2.base.pytree import leaves
    >>> f = Partial(lambda x, y: x - y, 5)
    >>> f(3), leaves(f)
    (2, [5])
    """


_register(
    Kind(
        Partial,
        split=lambda tree: ((tree.args, tree.keywords), tree.func),
        build=lambda aux, xs: Partial(aux, *xs[0], **xs[1]),
        keys=lambda aux, count: (GetAttrKey("args"), GetAttrKey("keywords")),
        show=lambda aux, texts: f"Partial({getattr(aux, '__qualname__', aux)}, {', '.join(texts)})",
        token=exact,
        shared=False,
    )
)


# -------- Containers of arrays, taken apart into leaves and a structure, and built again.


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
