"""Functions over an axis of their arguments, and derivatives by every element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any, ParamSpec, TypeVar

import numpy as np

from ge2.base.arrays import COMPLEX, INEXACT, PYTHON, beside
from ge2.base.errors import GradientError, InPlaceError, InputError, PytreeError
from ge2.base.pytree import broadcast_prefix, flatten, unflatten
from ge2.base.source import here
from ge2.base.tracebacks import hides
from ge2.ir import ArrayType, Dims, type_of
from ge2.trace import Input, run, title_of
from ge2.trace.writes import Writes
from ge2.transforms.api import Argnums, Function, pulled, pushed
from ge2.transforms.arguments import (
    Arguments,
    Results,
    is_array,
    named_after,
    numbered,
    owned,
    parameters_at,
    placed,
)
from ge2.transforms.graphs import DERIVE, is_float0, vmap_graph
from ge2.transforms.pullback import remembering

# -------- `vmap`: a function over an axis of its arguments.


P = ParamSpec("P")
R = TypeVar("R")


def vmap(
    fun: Callable[P, R],
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: str | None = None,
    axis_size: int | None = None,
) -> Callable[P, R]:
    """`fun` over one more axis of its arguments: `in_axes` says which, None for
    an argument shared by all.

    `in_axes` is an int, None, or a tuple with an entry (or a pytree of entries) for
    each positional argument; keyword arguments are mapped over axis 0. `out_axes`
    places the axis in the results likewise.

    >>> vmap(lambda x, y: np.dot(x, y), in_axes=(0, None))(np.eye(2), np.array([3.0, 4.0]))
    array([3., 4.])
    """
    if axis_name is not None:
        what = f"vmap(axis_name={axis_name!r}): ge2 has no collectives that could name the axis"
        raise InputError(what, where=here(), fix="np.sum over the axis of what vmap returns")

    def work(*args: Any, **kwargs: Any) -> Any:
        call = Arguments.of(fun, args, kwargs)
        axes = leaf_axes(call, args, kwargs, in_axes)
        size = common_size(call, axes, axis_size)
        types = [dropped(t, a) for t, a in zip(call.types(), axes, strict=True)]
        inputs = [hidden(given, a) for given, a in zip(call.inputs(types=types), axes, strict=True)]
        returned = Results()
        closed, writes = call.stage_writing(inputs, returned, "vmap", [a is None for a in axes])
        call.check(writes)
        out = out_axes_of(call, returned, out_axes)
        count = len(out)
        force = (*(a is not None for a in out), *(False,) * (len(closed.graph.outputs) - count))
        graph, has = vmap_graph(
            closed.graph, (*(None for _ in closed.captured), *axes), size, DERIVE, force
        )
        refuse_batched(writes, has[count:])
        values = (*closed.captured, *call.values())
        found = run(graph, values)
        results = owned(moved(found[:count], has[:count], out, call, returned), values)
        call.carry(writes, found)
        return returned.build(results, over=size)

    return remembering(fun, "vmap", (in_axes, out_axes, axis_size), work)


def leaf_axes(
    call: Arguments, args: tuple[Any, ...], kwargs: dict[str, Any], in_axes: Any
) -> list[int | None]:
    """The mapped axis of each array leaf, counted from the front."""
    if isinstance(in_axes, list):
        in_axes = tuple(in_axes)
    if isinstance(in_axes, tuple) and len(in_axes) != len(args):
        raise InputError(
            f"vmap: in_axes has {len(in_axes)} entries, but {call.title} was given {len(args)} arguments",
            where=here(),
            fix=f"in_axes=({', '.join(['0'] * len(args))}), None where an argument is shared by all",
        )
    spec = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(args)
    flat = spread_axes("in_axes", call, (spec, 0), (args, kwargs))
    return [normal_axis(call, i, flat[i]) for i in call.arrays]


def spread_axes(what: str, call: Arguments, prefix: Any, tree: Any) -> list[Any]:
    """One axis for each leaf of the tree."""
    try:
        return broadcast_prefix(prefix, tree, is_leaf=lambda x: x is None)
    except PytreeError as error:
        raise InputError(
            f"vmap: {what} of {call.title} does not fit: {error}",
            where=here(),
            fix="an int, None, or a tree of them",
        ) from None


def is_axis(axis: Any) -> bool:
    """True for an integer; True and False are no axes."""
    return hasattr(axis, "__index__") and not isinstance(axis, bool | np.bool_)


def normal_axis(call: Arguments, i: int, axis: Any) -> int | None:
    if axis is None:
        return None
    t = type_of(call.leaves[i])
    if not is_axis(axis) or not -t.ndim <= index(axis) < t.ndim:
        fix = "in_axes=None for an argument that all share"
        raise InputError(
            f"vmap: {call.name(i)}, {t}, has no axis {axis!r} to map over", where=here(), fix=fix
        )
    return index(axis) % t.ndim


def common_size(call: Arguments, axes: Sequence[int | None], given: int | None) -> int:
    """The size of the mapped axes, which all have the same."""
    sizes = {
        i: type_of(call.leaves[i]).shape[a]
        for i, a in zip(call.arrays, axes, strict=True)
        if a is not None
    }
    found = set(sizes.values()) | ({given} if given is not None else set())
    if len(found) > 1:
        listed = ", ".join(f"{call.name(i)} has {size}" for i, size in sizes.items())
        asked = "" if given is None else f", axis_size is {given}"
        raise InputError(
            f"vmap: the mapped axes differ in size: {listed}{asked}",
            where=here(),
            fix="in_axes=(0, None), None where all share it",
        )
    if not found:
        raise InputError(
            "vmap: no argument is mapped",
            where=here(),
            fix="axis_size=n, or an in_axes that is not None",
        )
    return found.pop()


def dropped(t: ArrayType, axis: int | None) -> ArrayType:
    return t if axis is None else t.with_shape((*t.shape[:axis], *t.shape[axis + 1 :]))


def hidden(given: Input, axis: int | None) -> Input:
    """A mapped argument has a value for each place of the axis, so none that could be looked at."""
    if axis is None:
        return given
    return Input(
        given.type,
        name=given.name,
        reason=f"{given.name} is mapped by vmap: it has a value for each place of the axis",
    )


def out_axes_of(call: Arguments, returned: Results, out_axes: Any) -> list[int | None]:
    tree = unflatten(returned.structure, [0] * returned.structure.num_leaves)
    return returned.arrays_of(spread_axes("out_axes", call, out_axes, tree))


def refuse_batched(writes: Writes | None, has: Sequence[bool]) -> None:
    """InPlaceError if what is written to an argument differs along the mapped
    axis, which it lacks.
    """
    for w, has_axis in zip(writes.each if writes else (), has, strict=True):
        if has_axis and writes is not None:
            name = writes.names[w.input]
            what = (
                f"vmap: {writes.title} would write into {name} what differs along the mapped axis"
            )
            raise InPlaceError(what, where=w.line, fix=f"y = {name}.copy(), and return y")


def moved(
    results: Sequence[Any],
    has: Sequence[bool],
    out: Sequence[Any],
    call: Arguments,
    returned: Results,
) -> list[Any]:
    """The results with their mapped axis where `out` says."""
    ys = []
    for y, has_axis, axis, path in zip(results, has, out, returned.paths(), strict=True):
        name = f"the result{path} of {call.title}"
        if axis is None and has_axis:
            raise InputError(
                f"vmap: out_axes=None, but {name} differs along the mapped axis",
                where=here(),
                fix="out_axes=0",
            )
        if axis is not None and (not is_axis(axis) or not -y.ndim <= index(axis) < y.ndim):
            raise InputError(
                f"vmap: out_axes={axis!r}, but {name} has {y.ndim} axes, the mapped one included",
                where=here(),
                fix=f"out_axes={y.ndim - 1}",
            )
        ys.append(np.moveaxis(y, 0, axis) if axis else y)
    return ys


# -------- Derivatives by every element: `jacfwd`, `jacrev` and `hessian`.


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
