"""`vmap`: a function over an axis of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any, ParamSpec, TypeVar

import numpy as np

from ge2.base.errors import InPlaceError, InputError, PytreeError
from ge2.base.pytrees.pytree import broadcast_prefix, unflatten
from ge2.base.source import here
from ge2.ir import ArrayType, type_of
from ge2.trace import Input, run
from ge2.trace.writes import Writes
from ge2.transforms.arguments import Arguments, Results, owned
from ge2.transforms.graphs.derive import DERIVE
from ge2.transforms.graphs.rules import vmap_graph
from ge2.transforms.remembered import remembering

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
