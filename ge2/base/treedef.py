"""Tree structures: what pytrees are without their leaves, and the table of node types.

A *node* is a dict, OrderedDict, defaultdict, list, tuple, namedtuple, None (with no leaf), a
dataclass instance, or an instance of a registered class. Everything else is a *leaf*. The type
decides, exactly: a subclass of list, dict or tuple that is no namedtuple is a leaf until it is
registered, and so is a dataclass whose constructor does not take its fields by name (`why_leaf`
says which). Classes are leaves, only their instances are nodes.

Structures of built-in containers are shared: two trees of one shape give the same `Structure`
object, so that comparing them on the path of a call is comparing addresses.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, fields, is_dataclass
from operator import attrgetter, itemgetter
from typing import Any, TypeVar, final

from ge2.base.errors import PytreeError
from ge2.base.record import DictKey, GetAttrKey, SequenceKey, single

T = TypeVar("T")
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
SHARED = 4096  # entries a table of shared structures may hold before it is emptied


# --- structures -----------------------------------------------------------------------------------


@final
@single
class Kind:
    """The functions that take instances of one type apart and build them; `aux` is all that is no
    child.
    """

    type: type
    split: Callable[[Any], tuple[Sequence[Any], Any]]
    build: Callable[[Any, Sequence[Any]], Any]
    keys: Callable[[Any, int], Sequence[Any]]
    show: Callable[[Any, Sequence[str]], str]
    token: Callable[[Any], Any] = lambda aux: None  # what of aux is compared and hashed
    shared: bool = (
        True  # aux holds nothing of the user's, or says so by an attribute `shared`: it may be kept
    )


@final
@single
class Structure:
    """The shape of a tree without its leaves: equal for trees that differ in
    leaves only; hashable.
    """

    kind: Kind
    aux: Any
    children: tuple[Structure, ...]
    num_leaves: int
    flat: bool
    shared: bool
    # how the keys of dicts were inserted, which equality ignores: () where all are sorted
    order: tuple[Any, ...] = ()
    _hash: int | None = field(default=None, init=False)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Structure):
            return NotImplemented
        return (
            self.kind is other.kind
            and self.num_leaves == other.num_leaves
            and same_data(self, other)
            and self.children == other.children
        )

    def __hash__(self) -> int:
        if self._hash is None:
            object.__setattr__(self, "_hash", hash((self.kind, _hash_of_data(self), self.children)))
        return self._hash  # type: ignore[return-value]

    def __str__(self) -> str:
        return f"PyTreeDef({_show(self)})"

    __repr__ = __str__

    def __copy__(self) -> Structure:
        return self

    def __deepcopy__(self, memo: Any) -> Structure:
        return self

    def __reduce__(self) -> Any:
        """Pickles by the type of each node, which the reading process must have registered too."""
        if self is LEAF:
            return "LEAF"  # a name of this module
        return restored, (self.kind.type, self.aux, self.children)

    def key_entries(self) -> Sequence[Any]:
        """The key of each child, in order."""
        return self.kind.keys(self.aux, len(self.children))

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """The tree of this structure with these leaves; PytreeError if their
        number is not `num_leaves`.
        """
        values = leaves if isinstance(leaves, list) else list(leaves)
        if len(values) != self.num_leaves:
            raise PytreeError(f"{self} has {self.num_leaves} leaves, but {len(values)} were given")
        if self.flat and self is not LEAF:
            return self.kind.build(self.aux, values)
        return _build(self, iter(values))


def _build(structure: Structure, leaves: Iterator[Any]) -> Any:
    if structure is LEAF:
        return next(leaves)
    children = [
        next(leaves) if child is LEAF else _build(child, leaves) for child in structure.children
    ]
    return structure.kind.build(structure.aux, children)


def node(kind: Kind, aux: Any, children: tuple[Structure, ...]) -> Structure:
    """The structure of a node; of built-in containers always the same object for the same parts."""
    # ids stay valid while the entry lives, for it holds the children
    key = (kind, aux, *map(id, children))
    found = _SHARED.get(key) if kind.shared else None
    if found is None:
        found = _new_node(kind, aux, children)
        return _keep(_SHARED, key, found) if found.shared else found
    return found


def restored(cls: type, aux: Any, children: tuple[Structure, ...]) -> Structure:
    """The node that was pickled. PytreeError if `cls` is not a container in this process."""
    kind = kind_of(cls)
    if kind is None:
        raise PytreeError(
            f"the structure that is read has a node of {cls.__qualname__}, which is not registered here",
            fix=f"importing the module that registers {cls.__qualname__}, before reading it",
        )
    return node(kind, aux, children)


def flat_node(kind: Kind, aux: Any, count: int) -> Structure:
    """The structure of a node whose children are all leaves."""
    if not kind.shared:
        return _new_node(kind, aux, (LEAF,) * count)
    found = _FLAT.get((kind, aux, count))
    if found is None:
        found = node(kind, aux, (LEAF,) * count)
        return _keep(_FLAT, (kind, aux, count), found) if found.shared else found
    return found


def _new_node(kind: Kind, aux: Any, children: tuple[Structure, ...]) -> Structure:
    count = sum(child.num_leaves for child in children)
    flat = all(child is LEAF for child in children)
    shared = (
        kind.shared and getattr(aux, "shared", True) and all(child.shared for child in children)
    )
    return Structure(kind, aux, children, count, flat, shared, _order(kind, aux, children))


def _order(kind: Kind, aux: Any, children: tuple[Structure, ...]) -> tuple[Any, ...]:
    keys = aux[1] if kind is _DEFAULT else aux
    inserted = keys.inserted if isinstance(keys, Keys) else None
    inner = tuple([child.order for child in children])
    return (inserted, *inner) if inserted or any(inner) else ()


def _keep(table: dict[Any, T], key: Any, value: T) -> T:
    if len(table) >= SHARED:
        table.clear()
    return table.setdefault(key, value)


def _hash_of_data(structure: Structure) -> int:
    try:
        return hash(structure.kind.token(structure.aux))
    except TypeError as error:
        raise PytreeError(
            f"the static data of {named(structure)} cannot be hashed ({error}): {root_text(structure)}",
            fix="hashable static data: numbers, strings, tuples, frozen dataclasses",
        ) from None


def root_text(structure: Structure) -> str:
    """The root as text, with a star for each child."""
    return structure.kind.show(structure.aux, ["*"] * len(structure.children))


def same_data(a: Structure, b: Structure) -> bool:
    """True if two nodes of one kind hold the same static data."""
    if a.aux is b.aux:
        return True
    try:
        return bool(a.kind.token(a.aux) == b.kind.token(b.aux))
    except ValueError as error:
        raise PytreeError(
            f"the static data of {named(a)} cannot be compared ({error})",
            fix="array fields as children, not as static data",
        ) from None


def _show(structure: Structure) -> str:
    return structure.kind.show(structure.aux, [_show(child) for child in structure.children])


def named(structure: Structure) -> str:
    """The node in words: "a list of 3", "a Point", "a leaf"."""
    if structure is LEAF:
        return "a leaf"
    if structure.kind is _NONE:
        return "None"
    name = structure.kind.type.__name__
    count = f" of {len(structure.children)}" if structure.kind.type in SIZED else ""
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}{count}"


# `==` between two of one type tells all
PLAINLY_EQUAL = frozenset({str, int, bool, bytes, type(None)})


def exact(value: Any) -> Any:
    """A stand-in that tells 1, 1.0 and True apart, and -0.0 from 0.0, which `==` does not.

    At any depth of tuples, namedtuples, frozensets and dataclasses. Dates with time zones and
    decimals count as they are written; objects of other classes are compared as these classes say.
    """
    kind = type(value)
    if kind is tuple:
        return (tuple, *map(exact, value))
    if kind in PLAINLY_EQUAL:
        return kind, value
    if kind in (float, complex):
        return kind, repr(value)
    return kind, _exact_parts(kind, value)


def _exact_parts(kind: type, value: Any) -> Any:
    if hasattr(kind, "tobytes") and hasattr(kind, "newbyteorder"):  # a scalar of NumPy's
        return value.dtype, value.tobytes()
    if issubclass(kind, float | complex):
        return (float if issubclass(kind, float) else complex).__repr__(value)
    if kind.__module__ in ("datetime", "decimal", "_decimal"):
        return value, repr(value)
    if issubclass(kind, tuple):
        return value, tuple(map(exact, value))
    if issubclass(kind, frozenset):
        return value, frozenset(map(exact, value))
    if kind is range:
        return value.start, value.stop, value.step
    if kind.__module__.startswith("ge2."):  # whose own equality is exact
        return value
    if is_dataclass(kind) and getattr(kind, "__eq__", None) is not object.__eq__:
        return value, tuple(exact(getattr(value, f.name, None)) for f in fields(kind) if f.compare)
    return value


# --- dicts ----------------------------------------------------------------------------------------


KEYS = attrgetter("token")


@final
class Keys:
    """The keys of a dict in the order of its leaves, and as they were inserted if that is another
    order; shared ones are one object, hashed by its address.
    """

    __slots__ = ("inserted", "names", "pick", "shared", "token")

    def __init__(self, names: tuple[Any, ...], inserted: tuple[Any, ...], shared: bool) -> None:
        self.names = names
        self.inserted = None if inserted == names else inserted
        self.shared = shared
        self.token = tuple(map(exact, names))
        self.pick = _picker(names)

    def __reduce__(self) -> Any:
        return _keys, (self.names, self.inserted)


def _picker(names: tuple[Any, ...]) -> Callable[[Any], tuple[Any, ...]]:
    match names:
        case ():
            return lambda tree: ()
        case (name,):
            return lambda tree: (tree[name],)
    return itemgetter(*names)


STR = frozenset({str})
# keys that belong to no one, so they may be kept
PLAIN = frozenset({str, int, bool, bytes, type(None)})
_SHARED: dict[tuple[Any, ...], Structure] = {}  # kind, aux, ids of children
_FLAT: dict[tuple[Kind, Any, int], Structure] = {}  # kind, aux, number of leaves
# the keys of a dict as they stand -> Keys, for keys that are strings
_SEEN: dict[tuple[Any, ...], Keys] = {}
# the types and keys in the order of the leaves, the keys as inserted -> Keys
_KEYS: dict[tuple[Any, ...], Keys] = {}


def _dict_keys(tree: dict[Any, Any]) -> Keys:
    seen = tuple(tree)
    if not STR.issuperset(map(type, seen)):
        return _keys(_ordered(seen), seen)
    found = _SEEN.get(seen)
    if found is None:
        found = _keep(_SEEN, seen, _keys(_ordered(seen), seen))
    return found


def _keys(names: tuple[Any, ...], inserted: tuple[Any, ...] | None = None) -> Keys:
    inserted = names if inserted is None else inserted
    types = tuple(map(type, names))
    if not PLAIN.issuperset(types):
        return Keys(names, inserted, shared=False)
    key = types, names, inserted
    found = _KEYS.get(key)
    return _keep(_KEYS, key, Keys(names, inserted, shared=True)) if found is None else found


def _ordered(tree: Iterable[Any]) -> tuple[Any, ...]:
    try:
        return tuple(sorted(tree))
    except TypeError:
        pass
    # keys of several types: each type by itself, so that the order of insertion still does not
    # matter
    try:
        return tuple(sorted(tree, key=lambda key: (type(key).__qualname__, key)))
    except TypeError:
        return tuple(tree)


def _split_dict(tree: dict[Any, Any]) -> tuple[Sequence[Any], Keys]:
    keys = _dict_keys(tree)
    return keys.pick(tree), keys


def _split_ordered(tree: OrderedDict[Any, Any]) -> tuple[Sequence[Any], Keys]:
    return tuple(tree.values()), _keys(tuple(tree))


def _split_default(tree: defaultdict[Any, Any]) -> tuple[Sequence[Any], tuple[Any, Keys]]:
    keys = _dict_keys(tree)
    return keys.pick(tree), (tree.default_factory, keys)


def _build_dict(keys: Keys, values: Sequence[Any]) -> dict[Any, Any]:
    built = dict(zip(keys.names, values, strict=True))
    return built if keys.inserted is None else {key: built[key] for key in keys.inserted}


def _build_ordered(keys: Keys, values: Sequence[Any]) -> OrderedDict[Any, Any]:
    return OrderedDict(zip(keys.names, values, strict=True))


def _build_default(aux: Any, values: Sequence[Any]) -> defaultdict[Any, Any]:
    return defaultdict(aux[0], _build_dict(aux[1], values))


def _dict_text(keys: Keys, texts: Sequence[str]) -> str:
    return (
        "{"
        + ", ".join(f"{key!r}: {text}" for key, text in zip(keys.names, texts, strict=False))
        + "}"
    )


def _default_text(aux: Any, texts: Sequence[str]) -> str:
    return f"defaultdict({getattr(aux[0], '__name__', aux[0])}, {_dict_text(aux[1], texts)})"


def _key_entries(keys: Keys, count: int) -> Sequence[Any]:
    return [DictKey(key) for key in keys.names]


def keys_of(structure: Structure) -> Keys | None:
    """The keys of a structure that is a dict of some sort."""
    aux = structure.aux[1] if structure.kind is _DEFAULT else structure.aux
    return aux if isinstance(aux, Keys) else None


# --- the table of kinds ---------------------------------------------------------------------------


def _indices(aux: Any, count: int) -> Sequence[Any]:
    return [SequenceKey(i) for i in range(count)]


def _tuple_text(aux: Any, texts: Sequence[str]) -> str:
    return f"({', '.join(texts)}{',' * (len(texts) == 1)})"


def _list_text(aux: Any, texts: Sequence[str]) -> str:
    return f"[{', '.join(texts)}]"


def _ordered_text(keys: Keys, texts: Sequence[str]) -> str:
    return f"OrderedDict({_dict_text(keys, texts)})"


def _leaf_only(*args: Any) -> Any:
    raise AssertionError("a leaf has no parts")


def _nothing(tree: Any) -> tuple[Sequence[Any], Any]:
    return (), None


def _itself(tree: Any) -> tuple[Sequence[Any], Any]:
    return tree, None


def _default_keys(aux: Any, count: int) -> Sequence[Any]:
    return _key_entries(aux[1], count)


# fmt: off
_LEAF    = Kind(object,      _leaf_only,     _leaf_only,                _indices,      lambda aux, xs: "*")
_NONE    = Kind(type(None),  _nothing,       lambda aux, xs: None,      _indices,      lambda aux, xs: "None")
_TUPLE   = Kind(tuple,       _itself,        lambda aux, xs: tuple(xs), _indices,      _tuple_text)
_LIST    = Kind(list,        _itself,        lambda aux, xs: list(xs),  _indices,      _list_text)
_DICT    = Kind(dict,        _split_dict,    _build_dict,               _key_entries,  _dict_text,    KEYS)
_ORDERED = Kind(OrderedDict, _split_ordered, _build_ordered,            _key_entries,  _ordered_text, KEYS)
_DEFAULT = Kind(defaultdict, _split_default, _build_default,            _default_keys, _default_text,
                lambda aux: (aux[0], aux[1].token), shared=False)
# fmt: on

LEAF = Structure(_LEAF, None, (), 1, flat=True, shared=True)
SIZED = frozenset({dict, OrderedDict, defaultdict, list, tuple})
KINDS: dict[type, Kind] = {
    kind.type: kind for kind in (_NONE, _TUPLE, _LIST, _DICT, _ORDERED, _DEFAULT)
}
REGISTERED: set[type] = set(KINDS)
LEAVES: set[type] = {int, float, complex, bool, str}  # types known to be leaves
OPAQUE: set[type] = set()  # classes whose instances, and those of subclasses, are leaves


def kind_of(cls: type) -> Kind | None:
    """The kind of the instances of `cls`; None for a leaf. The result is remembered."""
    kind = KINDS.get(cls)
    if kind is not None or cls in LEAVES:
        return kind
    kind = _classify(cls)
    if kind is not None:
        return KINDS.setdefault(cls, kind)
    if len(LEAVES) >= SHARED:
        LEAVES.clear()
    LEAVES.add(cls)
    return None


def _classify(cls: type) -> Kind | None:
    if not OPAQUE.isdisjoint(cls.__mro__):
        return None
    if issubclass(cls, tuple):
        return _namedtuple_kind(cls) if hasattr(cls, "_fields") else None
    if is_dataclass(cls) and not _unlike_fields(cls):
        return fields_kind(cls, *data_and_static(cls))
    return None


def data_and_static(cls: Any) -> tuple[list[str], list[str]]:
    told = [(f.name, bool(f.metadata.get("static"))) for f in fields(cls) if f.init]
    return [name for name, static in told if not static], [name for name, static in told if static]


def _unlike_fields(cls: type) -> str:
    """The reason why the constructor cannot be called with the fields alone, or ""."""
    wanted = {f.name for f in fields(cls) if f.init}
    try:
        taken = list(inspect.signature(cls).parameters.values())
    except (ValueError, TypeError):
        return f"the constructor of {cls.__name__} has no signature"
    if not wanted <= {p.name for p in taken if p.kind is not p.POSITIONAL_ONLY}:
        return f"the constructor of {cls.__name__} does not take all of its fields by name"
    more = [
        p.name
        for p in taken
        if p.name not in wanted and p.default is p.empty and p.kind not in VARIADIC
    ]
    if more:
        return f"the constructor of {cls.__name__} needs {', '.join(more)} besides its fields"
    return ""


def why_leaf(value: Any) -> str:
    """The reason why a container-like value is a leaf, for errors; "" where that is plain.

    >>> class Stack(list): ...
    >>> why_leaf(Stack())
    'Stack is a subclass of list that is not registered'
    """
    cls = type(value)
    if kind_of(cls) is not None or not OPAQUE.isdisjoint(cls.__mro__):
        return ""
    if is_dataclass(cls):
        return _unlike_fields(cls)
    base = next((base for base in (list, dict, tuple) if issubclass(cls, base)), None)
    return f"{cls.__name__} is a subclass of {base.__name__} that is not registered" if base else ""


def _namedtuple_kind(cls: Any) -> Kind:
    names: tuple[str, ...] = cls._fields
    return Kind(
        cls,
        split=lambda tree: (tree, None),
        build=lambda aux, xs: cls._make(xs),
        keys=lambda aux, count: [GetAttrKey(name) for name in names],
        show=lambda aux, texts: f"{cls.__name__}({_assigned(names, texts)})",
    )


def fields_kind(cls: Any, data: Sequence[str], meta: Sequence[str]) -> Kind:
    get, get_static = _getter(data), _getter(meta)
    return Kind(
        cls,
        split=lambda tree: (get(tree), get_static(tree)),
        build=lambda aux, xs: cls(
            **dict(zip(data, xs, strict=True)), **dict(zip(meta, aux, strict=True))
        ),
        keys=lambda aux, count: [GetAttrKey(name) for name in data],
        show=lambda aux, texts: (
            f"{cls.__name__}({_assigned((*data, *meta), (*texts, *map(repr, aux)))})"
        ),
        token=exact,
        shared=not meta,
    )


def _getter(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    match names:
        case []:
            return lambda tree: ()
        case [name]:
            return lambda tree: (getattr(tree, name),)
    return attrgetter(*names)


def _assigned(names: Sequence[str], texts: Sequence[str]) -> str:
    return ", ".join(f"{name}={text}" for name, text in zip(names, texts, strict=False))
