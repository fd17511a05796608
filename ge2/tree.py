"""Functions of containers of arrays, under the names of `jax.tree`.

What a container is, and what counts as a leaf, is said in `ge2.tree_util`, where
classes are registered too.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np

from ge2.base.errors import PytreeError
from ge2.base.pytree import IsLeaf, KeyPath, Structure, flatten_rest, flatten_up_to, map_structure
from ge2.base.pytree import flatten as flatten
from ge2.base.pytree import flatten_with_path as flatten_with_path
from ge2.base.pytree import leaves as leaves
from ge2.base.pytree import structure as structure
from ge2.base.pytree import unflatten as unflatten
from ge2.base.source import here
from ge2.base.tracebacks import publish

__all__ = [
    "all",
    "flatten",
    "flatten_with_path",
    "leaves",
    "leaves_with_path",
    "map",
    "map_with_path",
    "ravel",
    "reduce",
    "structure",
    "transpose",
    "unflatten",
]

_NOTHING = object()
map = map_structure


def all(tree: Any, *, is_leaf: IsLeaf | None = None) -> bool:
    """True if every leaf is true.

    >>> all({"a": True, "b": [1, 0]})
    False
    """
    return builtins.all(leaves(tree, is_leaf))


def reduce(
    function: Callable[[Any, Any], Any],
    tree: Any,
    initializer: Any = _NOTHING,
    is_leaf: IsLeaf | None = None,
) -> Any:
    """The leaves taken together by `function`, two at a time, from the left.

    TypeError for nothing at all.

    >>> reduce(lambda x, y: x + y, {"a": 1, "b": [2, 3]})
    6
    """
    found = leaves(tree, is_leaf)
    start = () if initializer is _NOTHING else (initializer,)
    return functools.reduce(function, found, *start)


def leaves_with_path(tree: Any, is_leaf: IsLeaf | None = None) -> list[tuple[KeyPath, Any]]:
    """Each leaf with its key path before it."""
    return flatten_with_path(tree, is_leaf)[0]


def map_with_path(
    f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf | None = None
) -> Any:
    """As `map`, with the key path of the leaf as the first argument of `f`.

    >>> from ge2.tree_util import keystr
    >>> map_with_path(lambda path, x: f"{keystr(path)} = {x}", {"a": [1, 2]})
    {'a': ["['a'][0] = 1", "['a'][1] = 2"]}
    """
    found, shape = flatten_with_path(tree, is_leaf)
    columns = flatten_rest(shape, rest)
    return unflatten(
        shape, [f(path, x, *ys) for (path, x), *ys in zip(found, *columns, strict=True)]
    )


def ravel(tree: Any) -> tuple[Any, Callable[[Any], Any]]:
    """All leaves as one vector, and the function from such a vector back to a tree.

    The vector has the dtype to which those of the leaves promote, and `unravel` gives each leaf its
    shape and dtype again. It works on traced values, and on CuPy's arrays; a tree without leaves is
    a vector of none. Optimisers that want one vector take it: `ge2.grad(lambda v:
    loss(unravel(v)))(vector)`.

    Raises PytreeError if `unravel` is given a vector of another length.

    >>> vector, unravel = ravel({"w": np.ones((2, 2), np.float32), "b": np.zeros(1, np.float32)})
    >>> vector
    array([0., 1., 1., 1., 1.], dtype=float32)
    >>> unravel(vector * 3)["w"].shape
    (2, 2)
    """
    found, shape = flatten(tree)
    xs = [x if hasattr(x, "dtype") else np.asarray(x) for x in found]
    parts = [(x.shape, x.dtype, x.size) for x in xs]
    ends = list(accumulate(size for *_, size in parts))
    total = ends[-1] if ends else 0

    def unravel(vector: Any) -> Any:
        if vector.shape != (total,):
            what = (
                f"unravel takes a vector of {total} elements; got an array of shape {vector.shape}"
            )
            raise PytreeError(what, where=here(), fix="the vector that ravel gave, or one like it")
        pieces = [
            vector[end - size : end].reshape(dims).astype(dtype)
            for (dims, dtype, size), end in zip(parts, ends, strict=True)
        ]
        return unflatten(shape, pieces)

    return (np.concatenate([x.reshape(-1) for x in xs]) if xs else np.zeros(0)), unravel


def transpose(outer: Structure, inner: Structure | None, tree: Any) -> Any:
    """An `outer` of `inner`s as an `inner` of `outer`s.

    For `inner` None it is that of the first part.

    >>> transpose(structure([0, 0]), None, [{"a": 1, "b": 2}, {"a": 3, "b": 4}])
    {'a': [1, 3], 'b': [2, 4]}
    """
    parts = flatten_up_to(outer, tree, ("outer", "the tree"))
    if inner is None:
        if not parts:
            raise PytreeError(
                "transpose: the outer structure has no leaves", fix="naming the inner structure"
            )
        inner = structure(parts[0])
    rows = [
        flatten_up_to(inner, part, ("inner", f"part {i} of the tree"))
        for i, part in enumerate(parts)
    ]
    return unflatten(
        inner, [unflatten(outer, [row[i] for row in rows]) for i in range(inner.num_leaves)]
    )


publish(globals(), advise=True)
