"""Making classes into nodes of trees, or into leaves."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, final

from ge2.base.errors import PytreeError
from ge2.base.pytrees.paths import FlattenedIndexKey, GetAttrKey
from ge2.base.pytrees.treedef import (
    KINDS,
    LEAVES,
    OPAQUE,
    REGISTERED,
    Kind,
    data_and_static,
    exact,
    fields_kind,
)
from ge2.base.record import record

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

    >>> from ge2.base.pytrees.pytree import leaves
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
    data, meta = _told_fields(cls, data_fields, meta_fields)
    known = {f.name for f in fields(cls) if f.init} if is_dataclass(cls) else {*data, *meta}
    if twice := set(data) & set(meta):
        raise PytreeError(f"{cls.__name__}: {_names(twice)} is both data and static")
    if wrong := {*data, *meta} - known:
        raise PytreeError(f"{cls.__name__} has no field {_names(wrong)} that its constructor takes")
    if missing := known - {*data, *meta}:
        raise PytreeError(f"{cls.__name__}: the field {_names(missing)} is neither data nor static")
    _register(fields_kind(cls, data, meta))
    return nodetype


Told = Sequence[str] | None


def _told_fields(cls: Any, data: Told, meta: Told) -> tuple[list[str], list[str]]:
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

    >>> from ge2.base.pytrees.pytree import leaves
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
