"""Derivatives by every element: `jacfwd`, `jacrev` and `hessian`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ge2.base.dtypes import COMPLEX, INEXACT, PYTHON
from ge2.base.errors import GradientError
from ge2.base.gpu import beside
from ge2.base.pytrees.pytree import flatten, unflatten
from ge2.base.source import here
from ge2.base.tracebacks import hides
from ge2.ir import Dims, type_of
from ge2.trace import title_of
from ge2.transforms.api import Argnums, Function, pulled, pushed
from ge2.transforms.arguments import (
    Arguments,
    is_array,
    named_after,
    numbered,
    owned,
    parameters_at,
    placed,
)
from ge2.transforms.batching import vmap
from ge2.transforms.graphs.rules import is_float0
from ge2.transforms.remembered import remembering


def jacfwd(
    fun: Function, argnums: Argnums = 0, has_aux: bool = False, holomorphic: bool = False
) -> Function:
    """The Jacobian by forward mode: for each leaf of the result and of the
    argument an array of both shapes.

    >>> jacfwd(lambda x: x * x)(np.array([1.0, 2.0]))
    array([[2., 0.],
           [0., 4.]])
    """

    def work(*args: Any, **kwargs: Any) -> Any:
        chosen, call = split_arguments(fun, argnums, args, kwargs)
        check_jacobian("jacfwd takes {0} arguments; one is", chosen, holomorphic)
        found = pushed(call, leaves_of(call, chosen), range(len(chosen)), has_aux)
        columns = vmap(lambda ts: found[1](*ts))(basis(chosen))
        jacobian = by_argument(columns, chosen, single=not isinstance(argnums, Sequence))
        return (jacobian, found[2]) if has_aux else jacobian

    return remembering(fun, "jacfwd", (argnums, has_aux, holomorphic), work)


def jacrev(
    fun: Function,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Function:
    """The Jacobian by reverse mode: as `jacfwd`, better where results have fewer
    elements than arguments.

    With `allow_int` the derivative by an integer is of dtype float0, of both
    shapes, instead of an error.

    >>> jacrev(lambda x: x * x)(np.array([1.0, 2.0]))
    array([[2., 0.],
           [0., 4.]])
    """

    def work(*args: Any, **kwargs: Any) -> Any:
        chosen, call = split_arguments(fun, argnums, args, kwargs)
        check_jacobian("jacrev takes {0} arguments; one is", chosen, holomorphic or None, allow_int)
        y, pull, *aux = pulled(call, leaves_of(call, chosen), range(len(chosen)), has_aux)
        check_jacobian("jacrev takes a function with {0} results; one is", y, holomorphic)
        rows = vmap(lambda ct: pull(ct))(basis(y))
        jacobian = by_result(rows, y, single=not isinstance(argnums, Sequence))
        return (jacobian, aux[0]) if has_aux else jacobian

    return remembering(fun, "jacrev", (argnums, has_aux, holomorphic, allow_int), work)


jacobian = jacrev


def hessian(
    fun: Function, argnums: Argnums = 0, has_aux: bool = False, holomorphic: bool = False
) -> Function:
    """The second derivative, as `jacfwd(jacrev(fun))`.

    >>> hessian(lambda x: np.sum(x**3))(np.array([1.0, 2.0]))
    array([[ 6.,  0.],
           [ 0., 12.]])
    """
    work = jacfwd(jacrev(fun, argnums, has_aux, holomorphic), argnums, has_aux, holomorphic)
    return remembering(fun, "hessian", (argnums, has_aux, holomorphic), work)


def split_arguments(
    fun: Function, argnums: Argnums, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], Arguments]:
    """The chosen arguments, and a call of the function of them, then of the other
    arrays, which it may write.

    Whatever else the function is given is passed on as it is.
    """
    numbers = [placed(n, len(args), title_of(fun)) for n in numbered(argnums)]
    arrays = [n for n, x in enumerate(args) if n not in numbers and holds_arrays(x)]
    named = {key: x for key, x in kwargs.items() if holds_arrays(x)}
    fixed = {key: x for key, x in kwargs.items() if key not in named}
    places = [*numbers, *arrays]

    @named_after(fun, parameters_at(fun, places))
    @hides
    def partial(*given: Any, **keywords: Any) -> Any:
        full = list(args)
        for n, x in zip(places, given, strict=True):
            full[n] = x
        return fun(*full, **keywords, **fixed)

    call = Arguments.of(partial, tuple([args[n] for n in places]), named)
    return tuple([args[n] for n in numbers]), call


def holds_arrays(x: Any) -> bool:
    """True for an array, and for a container of arrays alone."""
    leaves = flatten(x)[0]
    return bool(leaves) and all(is_array(leaf) and type(leaf) not in PYTHON for leaf in leaves)


def leaves_of(call: Arguments, chosen: tuple[Any, ...]) -> list[int]:
    """The leaves of the chosen arguments, which come first, that have a derivative."""
    count = len(flatten(chosen)[0])
    return [i for i in call.inexact() if i < count]


def check_jacobian(what: str, tree: Any, holomorphic: bool | None, allow_int: bool = False) -> None:
    """Checks that all leaves are complex (holomorphic), real (not), or either (None)."""
    wanted = "floating" if holomorphic is None else "complex" if holomorphic else "real floating"
    for leaf in flatten(tree)[0]:
        t = type_of(leaf) if is_array(leaf) else None
        if allow_int and t is not None and t.dtype not in INEXACT:
            continue
        if t is None or t.dtype not in INEXACT:
            raise GradientError(
                f"{what.format(wanted)} {t or leaf.__class__.__name__}",
                where=here(),
                fix="x.astype(np.float64)",
            )
        if holomorphic is not None and (t.dtype in COMPLEX) != holomorphic:
            fix = "complex values, or holomorphic=False" if holomorphic else "holomorphic=True"
            raise GradientError(f"{what.format(wanted)} {t}", where=here(), fix=fix)


def basis(tree: Any) -> Any:
    """Every unit vector of a tree's elements, along a new leading axis of each leaf."""
    leaves, structure = flatten(tree)
    types = [type_of(x) for x in leaves]
    total, at, found = sum(t.size for t in types), 0, []
    for x, t in zip(leaves, types, strict=True):
        part = np.zeros((total, t.size), t.dtype)
        part[np.arange(at, at + t.size), np.arange(t.size)] = 1
        found.append(beside(part.reshape((total, *t.shape)), x))
        at += t.size
    return unflatten(structure, found)


def by_argument(columns: Any, chosen: tuple[Any, ...], single: bool) -> Any:
    """From leaves (elements of the arguments, *result) a tree of (*result,
    *argument) for each result.
    """
    leaves, structure = flatten(columns)
    types, inner = [type_of(x) for x in flatten(chosen)[0]], flatten(chosen)[1]
    ends = np.cumsum([t.size for t in types])[:-1].tolist()

    def parts(y: Any) -> Any:
        pieces = np.split(y, ends)
        turned = [
            np.moveaxis(p, 0, -1).reshape((*y.shape[1:], *t.shape))
            for p, t in zip(pieces, types, strict=True)
        ]
        return opened(unflatten(inner, owned(turned)), single)

    return unflatten(structure, [parts(y) for y in leaves])


def by_result(rows: Any, y: Any, single: bool) -> Any:
    """From leaves (elements of the results, *argument) a tree of (*result,
    *argument) for each result.
    """
    results, structure = flatten(y)
    types = [type_of(x) for x in results]
    leaves, inner = flatten(rows)
    ends = np.cumsum([t.size for t in types])[:-1].tolist()
    pieces = [np.split(x, ends) for x in leaves]
    found = []
    for k, t in enumerate(types):
        shaped = [shaped_rows(piece[k], t.shape) for piece in pieces]
        found.append(opened(unflatten(inner, shaped), single))
    return unflatten(structure, found)


def shaped_rows(piece: Any, shape: Dims) -> Any:
    """The derivatives of the elements of one result, in its shape."""
    found = piece.reshape((*shape, *piece.shape[1:]))
    return found if is_float0(found) else owned([found])[0]


def opened(arguments: tuple[Any, ...], single: bool) -> Any:
    """With a single argnum there is no tuple around it."""
    return arguments[0] if single else arguments
