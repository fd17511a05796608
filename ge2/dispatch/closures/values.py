"""Values that a function closes over: what is an array, and the key of what is none."""

from __future__ import annotations

import functools
from collections.abc import Mapping, MutableSequence, Set, ValuesView
from contextvars import ContextVar
from typing import Any, Final

import numpy as np

from ge2.base.dtypes import NUMBERS, known
from ge2.base.errors import PytreeError
from ge2.base.gpu import gpu_of, is_masked, loaded, on_gpu
from ge2.base.pytrees.pytree import flatten
from ge2.base.pytrees.treedef import kind_of
from ge2.dispatch.closures.objects import (
    MISSING,
    attributes_of,
    held_by,
    holds_names,
    is_plain,
)
from ge2.dispatch.signature import Same, Static
from ge2.trace import is_traced

VALUES = (*NUMBERS, str, bytes, np.generic, np.dtype)
CONTAINERS: Final = (Set, MutableSequence, Mapping, ValuesView, np.ndarray, ContextVar)


def is_array(value: Any) -> bool:
    """True if it becomes a hidden input: an array that ge2 computes with, or a traced value."""
    if is_traced(value) or on_gpu(value):
        return True
    return (
        isinstance(value, np.ndarray)
        and known(value.dtype)
        and not isinstance(value, np.matrix)
        and not is_masked(value)
    )


def is_live(value: Any) -> bool:
    if type(value) is tuple:
        return any(map(is_live, value))
    if kind_of(type(value)) is not None or is_live(held_by(value) or ()):
        return True
    return (
        is_array(value) or is_plain(value) or holds_elements(value.__class__) or holds_names(value)
    )


@functools.lru_cache(maxsize=1024)
def holds_elements(cls: type) -> bool:
    """True for what is compared by its contents: containers that are no pytrees, such as a set, a
    deque or a Counter, arrays that are not computed with, and NumPy's polynomials.
    """
    held = issubclass(cls, CONTAINERS) or holds_bytes(cls) or is_polynomial(cls)
    return kind_of(cls) is None and held


def is_polynomial(cls: type) -> bool:
    return issubclass(cls, (np.poly1d, *loaded("numpy.polynomial._polybase", "ABCPolyBase")))


def holds_bytes(cls: type) -> bool:
    """True for views of memory: those of Python and of ctypes."""
    return cls is memoryview or any(base.__module__ == "_ctypes" for base in cls.__mro__)


def contents(value: Any) -> Any:
    """The key of such a value: what it holds now.

    Arrays in it are constants, so their elements count.
    """
    if isinstance(value, Set):
        return type(value), frozenset(map(contents, value))
    if isinstance(value, Mapping):
        return type(value), tuple((contents(k), contents(v)) for k, v in value.items())
    if isinstance(value, MutableSequence | ValuesView):
        return type(value), tuple(map(contents, value))
    if isinstance(value, np.ndarray):
        elements = contents(value.tolist()) if value.dtype.hasobject else value.tobytes()
        return value.shape, value.dtype, elements
    if isinstance(value, ContextVar):
        return contents(value.get(MISSING))
    if holds_bytes(type(value)):
        return type(value), bytes(value)
    if is_polynomial(type(value)):
        return type(value), contents(vars(value))
    if isinstance(value, VALUES):
        return Static(value)
    leaves, structure = leaves_of(value)
    if structure is None or (len(leaves) == 1 and leaves[0] is value):
        return Same(value)
    return structure, structure.order, tuple(map(contents, leaves))


def still_key(value: Any) -> Any:
    """The key of a value that cannot change while it is the same object."""
    if is_live(value):
        return None
    if type(value) is tuple:
        return tuple(map(still_key, value))
    return Static(value) if isinstance(value, VALUES) else Same(value)


def leaves_of(value: Any) -> tuple[list[Any], Any]:
    held = held_by(value)
    value = value if held is None else held
    try:
        return flatten(value)
    except PytreeError:  # it contains itself
        return [Same(value)], None


def look_into(
    value: Any,
    keys: list[Any],
    arrays: list[Any],
    attributes: frozenset[str] | None,
    around: tuple[int, ...] = (),
) -> None:
    """Adds the key and the arrays of a value that may have changed."""
    if type(value) is np.ndarray and known(value.dtype):
        keys.append((value.shape, value.dtype))
        arrays.append(value)
        return
    if type(value) is dict and not value:  # the keywords of most partials
        keys.append(dict)
        return
    leaves, structure = leaves_of(value)
    keys.append((structure, structure and structure.order))
    for leaf in leaves:
        if is_array(leaf):
            more = gpu_of(leaf) if on_gpu(leaf) else is_traced(leaf) and leaf.type.weak
            keys.append((leaf.shape, leaf.dtype, on_gpu(leaf), more))
            arrays.append(leaf)
        elif is_plain(leaf) and id(leaf) not in around:
            keys.append(Same(leaf))
            for name, inner in attributes_of(leaf, attributes):
                keys.append(name)
                look_into(inner, keys, arrays, attributes, (*around, id(leaf)))
        elif leaf is not value and id(leaf) not in around and held_by(leaf) is not None:
            look_into(leaf, keys, arrays, attributes, (*around, id(leaf)))
        # its attributes cannot be replaced for a trace: their contents count
        elif holds_names(leaf):
            keys.append(Same(leaf))
            keys += [(name, contents(inner)) for name, inner in attributes_of(leaf, attributes)]
        else:
            keys.append(other_key(leaf))


def other_key(leaf: Any) -> Any:
    if type(leaf) is Same:
        return leaf
    if isinstance(leaf, VALUES):
        return Static(leaf)
    return contents(leaf) if holds_elements(leaf.__class__) else Same(leaf)
