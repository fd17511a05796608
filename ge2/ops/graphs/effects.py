"""Calls of Python functions from a graph: to print, to look, and to compute what only Python can.

What prints or looks has an effect: it stays where it is in the order of effects. A
batch of such a call is a loop over it, outermost axis first, so that a function sees
the arrays that it was written for.
"""

from __future__ import annotations

import re
import sys
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NoReturn, final
from weakref import WeakValueDictionary

import numpy as np

from ge2.base.arrays import PYTHON
from ge2.base.errors import NoRuleError, TypeRuleError
from ge2.base.pytree import Structure, flatten, key_paths, keystr, unflatten
from ge2.base.record import record
from ge2.base.source import of_function
from ge2.ir import (
    ArrayType,
    Axes,
    Axis,
    Batched,
    Cotangents,
    Dims,
    Flags,
    Op,
    Value,
    Values,
    type_of,
)

# for each batch, outermost first: its size, and which inputs have it
Loops = tuple[tuple[int, Flags], ...]
HOLE: Final = object()  # in place of an array among the leaves that a function is called with
METHODS: Final = (
    "sequential",
    "sequential_unrolled",
    "expand_dims",
    "broadcast_all",
    "legacy_vectorized",
)


# ---------------------------------------------------------------------------------------- functions


@final
class Host:
    """A Python function with the containers that its arrays come in.

    Made by `host`, which makes equals one.

    `results` is the structure of what it returns, if that matters. Of a function of elements
    `slopes` may have its derivatives: for each argument None, or a function of the result and all.
    """

    __slots__ = ("__weakref__", "function", "leaves", "name", "results", "slopes", "structure")

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        leaves: tuple[Any, ...],
        structure: Structure,
        results: Structure | None,
    ) -> None:
        self.name, self.function, self.leaves = name, function, leaves
        self.structure, self.results = structure, results
        self.slopes: tuple[Callable[..., Value] | None, ...] = ()

    def __call__(self, arrays: Sequence[Any]) -> Any:
        """The function's result for copies of these arrays, which it may keep."""
        given = iter(arrays)
        leaves = [np.array(next(given)) if leaf is HOLE else leaf for leaf in self.leaves]
        args, kwargs = unflatten(self.structure, leaves)
        return self.function(*args, **kwargs)

    @property
    def title(self) -> str:
        """The name of the function in errors."""
        name, place = getattr(self.function, "__name__", self.name), of_function(self.function)
        return f"{name} ({place.file.rpartition('/')[2]}:{place.line})" if place else name

    def __repr__(self) -> str:
        return f"<host {self.name}>"


_by_name: WeakValueDictionary[str, Host] = WeakValueDictionary()
_by_parts: WeakValueDictionary[Hashable, Host] = WeakValueDictionary()


def host(
    function: Callable[..., Any],
    leaves: Sequence[Any],
    structure: Structure,
    results: Structure | None = None,
) -> Host:
    """The host of these parts, the one there is or a new one; its name is that of no other."""
    parts = (token(function), *map(token, leaves), structure, results)
    found = _by_parts.get(parts)
    if found is None:
        found = Host(unused_name(function), function, tuple(leaves), structure, results)
        _by_parts[parts] = _by_name[found.name] = found
    return found


def token(x: Any) -> Hashable:
    """A token that tells a part from others; the host keeps it alive."""
    try:
        hash(x)
    except TypeError:
        return ("id", id(x))
    return (type(x), x)


def unused_name(function: Any) -> str:
    plain = getattr(function, "__name__", type(function).__name__)
    name = re.sub(r"\W", "_", "a_lambda" if plain == "<lambda>" else plain)
    if name not in _by_name:
        return name
    number = 2
    while f"{name}_{number}" in _by_name:
        number += 1
    return f"{name}_{number}"


def named_host(name: str) -> Host:
    """The host that a text names: one of this process, as long as something uses it."""
    found = _by_name.get(name)
    if found is None:
        raise TypeError(f"{name} is a Python function, which a text cannot hold")
    return found


# -------------------------------------------------------------------------------------------- loops


def each(loops: Loops, arrays: Sequence[Any]) -> Iterator[list[Any]]:
    """The arrays of each single call."""
    if not loops:
        yield list(arrays)
        return
    (size, flags), *inner = loops
    for i in range(size):
        yield from each(
            tuple(inner), [x[i] if f else x for x, f in zip(arrays, flags, strict=True)]
        )


def sizes(loops: Loops) -> Dims:
    return tuple(size for size, _ in loops)


class HostOp(Op):
    """A call of a Python function, or many of them in loops over leading axes of its inputs."""

    __slots__ = ()
    several = True
    loops: Loops

    @abstractmethod
    def call(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """One call, of the arrays that the function was written for."""

    def looped(self, xs: Values, axes: Axes, size: int) -> Any:
        """The same calls for each place of one more axis."""
        loops = ((size, tuple(a is not None for a in axes)), *self.loops)
        over: Op = replace(self, loops=loops)  # type: ignore[type-var]
        return over(*(x if a is None else x.move_axis(a, 0) for x, a in zip(xs, axes, strict=True)))


class Look(HostOp):
    """A call for its effect, without results; derivatives pass by it."""

    __slots__ = ()
    effect = "debug"

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        return ()

    def reference(self, *arrays: Any) -> Any:
        for xs in each(self.loops, arrays):
            self.call(xs)
        return ()

    def batch(self, xs: Values, axes: Axes, size: int) -> Batched:
        return self.looped(xs, axes, size), ()


@final
@record
class DebugPrint(Look):
    """Prints `fmt.format(...)` of its inputs, the last of which are named by `keywords`."""

    fmt: str
    keywords: tuple[str, ...] = ()
    loops: Loops = ()
    name = "debug_print"

    def call(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        first = len(arrays) - len(self.keywords)
        text = self.fmt.format(
            *arrays[:first], **dict(zip(self.keywords, arrays[first:], strict=True))
        )
        sys.stdout.write(f"{text}\n")
        return ()


@final
@record
class DebugCallback(Look):
    """Calls a Python function with its inputs."""

    function: Host
    loops: Loops = ()
    name = "debug_callback"

    def __post_init__(self) -> None:
        read_name(self)

    def params(self) -> dict[str, Any]:
        return {"function": self.function.name, "loops": self.loops}

    def call(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        self.function(arrays)
        return ()


def read_name(op: DebugCallback | PureCallback) -> None:
    """The function that a text names, in place of its name."""
    given: Any = op.function
    if isinstance(given, str):
        object.__setattr__(op, "function", named_host(given))


@final
@record
class PureCallback(HostOp):
    """The results of a Python function, which depend on its inputs alone: it may be called never,
    or twice.

    `method` says how a batch of it is computed.
    """

    function: Host
    types: tuple[ArrayType, ...]
    method: str | None = None
    loops: Loops = ()
    name = "pure_callback"
    may_alias = False

    def __post_init__(self) -> None:
        read_name(self)

    def params(self) -> dict[str, Any]:
        return {
            "function": self.function.name, "types": self.types, "method": self.method, "loops": self.loops
        }  # fmt: skip

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        lead = sizes(self.loops)
        return tuple(t.with_shape((*lead, *t.shape)) for t in self.types)

    def reference(self, *arrays: Any) -> Any:
        if not self.loops:
            return self.call(arrays)
        calls = [self.call(xs) for xs in each(self.loops, arrays)]
        lead = sizes(self.loops)
        return tuple(
            np.array([ys[i] for ys in calls], t.dtype).reshape((*lead, *t.shape))
            for i, t in enumerate(self.types)
        )

    def call(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        leaves, structure = flatten(self.function(arrays))
        if structure != self.function.results:
            what = f"the callback {self.function.title} returned {structure}"
            raise TypeRuleError(f"{what}, but result_shape_dtypes is {self.function.results}")
        paths = key_paths(structure)
        return tuple(
            self.checked(y, t, keystr(path))
            for y, t, path in zip(leaves, self.types, paths, strict=True)
        )

    def checked(self, y: Any, wanted: ArrayType, path: str) -> Any:
        """A result as the array that was promised, which nobody else holds."""
        weak = PYTHON.get(type(y))
        found = type_of(y) if weak is not None or hasattr(y, "dtype") else type_of(np.asarray(y))
        fits = found.dtype == wanted.dtype or (
            weak is not None and np.can_cast(weak, wanted.dtype, "same_kind")
        )
        if not fits or found.shape != wanted.shape:
            what = f"the callback {self.function.title} returned {found} as its result{path}"
            fix = f"np.asarray(y, np.{wanted.dtype}) in the callback, of shape {wanted.shape}"
            raise TypeRuleError(f"{what}, but result_shape_dtypes says {wanted}", fix=fix)
        return np.array(y, wanted.dtype, order="C")

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        return [
            (cts[0] * self.slope(i, ys, xs)).cast(x.dtype) if asked else None
            for i, (x, asked) in enumerate(zip(xs, wanted, strict=True))
        ]

    def jvp(self, ts: Cotangents, ys: Values, xs: Values) -> Cotangents:
        parts = [
            t.cast(ys[0].dtype) * self.slope(i, ys, xs) for i, t in enumerate(ts) if t is not None
        ]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return [total]

    def slope(self, i: int, ys: Values, xs: Values) -> Value:
        """The derivative of each element by the argument of that number."""
        slope = self.function.slopes[i] if self.function.slopes else None
        if slope is None:
            self.refuse(f" by argument {i}" if self.function.slopes else "")
        return slope(ys[0], *xs).cast(ys[0].dtype)

    def refuse(self, of: str = "") -> NoReturn:
        title = self.function.title
        what = f"pure_callback of {title} has no derivative{of}: ge2 does not see into it"
        raise NoRuleError(
            what,
            fix="ge2.custom_vjp or ge2.custom_jvp around it, or ge2.stop_gradient of its arguments",
        )

    def batch(self, xs: Values, axes: Axes, size: int) -> Batched:
        if self.method is None:
            what = f"pure_callback of {self.function.title} does not say how it is to be batched"
            fix = 'vmap_method="sequential": a call an element; "expand_dims": one, with one more first axis'
            raise NoRuleError(what, fix=fix)
        first = [0] * len(self.types)
        if self.method.startswith("sequential"):
            return self.looped(xs, axes, size), first
        grown: PureCallback = replace(
            self, types=tuple(t.with_shape((size, *t.shape)) for t in self.types)
        )
        return grown(*(self.widened(x, a, size) for x, a in zip(xs, axes, strict=True))), first

    def widened(self, x: Value, axis: Axis, size: int) -> Value:
        """An input with the axis of the batch first; one that is shared as the method says."""
        if axis is not None:
            return x.move_axis(axis, 0)
        if self.method == "expand_dims":
            return x.reshaped((1, *x.shape))
        if self.method == "broadcast_all":
            return x.spread((size, *x.shape), tuple(range(1, x.ndim + 1)))
        return x


EFFECTS: tuple[type[HostOp], ...] = (DebugPrint, DebugCallback, PureCallback)
