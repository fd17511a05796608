"""Derivatives that eager calls repeat: of functions whose surroundings can be
seen, by argument types.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import wraps
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, final
from weakref import WeakSet

import numpy as np

from ge2.base.arrays import PYTHON
from ge2.base.config import config
from ge2.base.errors import Ge2Error
from ge2.base.pytree import flatten
from ge2.base.record import mutable
from ge2.base.tracebacks import hides
from ge2.ir import Graph
from ge2.trace import run, tidy
from ge2.transforms.arguments import Arguments, Results, at_top, owned
from ge2.transforms.pullback import Part, gradients

if TYPE_CHECKING:
    from ge2.transforms.surroundings import Surroundings

SIGNATURES: Final = 32  # that one function remembers; the oldest is forgotten first
CAPTURED: Final = 1 << 20  # bytes of constants beyond which a trace is not kept
LONGEST: Final = 4096  # equations that are written as Python
FUNCTIONS: Final = 32  # that are transformed again and again, as by `grad(f)(x)` in a loop
TIRES: Final = 4  # changes of its surroundings after which a function is traced at each call


_once: WeakSet[FunctionType] = WeakSet()  # functions that were transformed before
_never: WeakSet[FunctionType] = WeakSet()  # whose surroundings change, or are not seen
_often: dict[FunctionType, dict[Hashable, Memory]] = {}  # the last used is the last


def memory_of(fun: Any, kind: str, options: tuple[Any, ...]) -> Memory:
    """The memory of a transformed function: one for all its equal transforms, from the second on.

    A function that is transformed but once is not held here, nor one whose surroundings are not
    seen, which may hold much.
    """
    if type(fun) is not FunctionType or fun in _never:
        return Memory()
    if fun not in _once:
        _once.add(fun)
        return Memory()
    try:
        key = kind, *(tuple(each) if isinstance(each, list) else each for each in options)
        found = _often.pop(fun, None) or {}
        memory = found.setdefault(key, Memory())
    except TypeError:  # options that have no hash are an error of the call
        return Memory()
    if memory.changes < TIRES:
        _often[fun] = found
    else:
        _never.add(fun)
    while len(_often) > FUNCTIONS:
        _often.pop(next(iter(_often), fun), None)
    return memory


@final
@mutable
class Derivative:
    """A joint graph, the arrays it captured, and what its results become.

    The value is built of the first `count` results by `returned`, or not at all; then the gradient,
    a tuple if by `several` arguments.
    """

    graph: Graph
    captured: Sequence[Any]
    returned: Results | None
    count: int
    parts: Sequence[Part]
    several: bool
    run: Callable[..., Sequence[Any]] | None = None

    def results(self, leaves: Sequence[Any]) -> list[Any]:
        """The results of the graph for the arrays among the arguments."""
        values = (*self.captured, *leaves)
        return owned(run(self.graph, values) if self.run is None else self.run(*values), values)

    def build(self, found: Sequence[Any]) -> tuple[Any, Any]:
        """The value and the gradient."""
        value = self.returned.build(found[: self.count]) if self.returned is not None else None
        found = gradients(self.parts, found)
        return value, found if self.several else found[0]

    def small(self) -> bool:
        return sum(getattr(x, "nbytes", 0) for x in self.captured) <= CAPTURED


@final
class Memory:
    """Memory of one transformed function: for each signature a derivative,
    from its second call on.
    """

    __slots__ = ("changes", "known")
    decides_nothing = True  # of what a function that holds it computes

    def __init__(self) -> None:
        self.known: dict[Hashable, tuple[Derivative, Surroundings, Any] | None] = {}
        self.changes = 0

    def __reduce__(self) -> tuple[type[Memory], tuple[()]]:
        """A copy, in this process or another, begins anew."""
        return Memory, ()

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable | None:
        """The signature of an eager call; None for one that is traced each time."""
        if kwargs or self.changes >= TIRES or not at_top():
            return None
        if config.check or config.check_leaks or config.debug_nans or config.debug_infs:
            return None
        leaves, structure = flatten(args)
        types: list[Any] = []
        for x in leaves:
            kind = type(x)
            if kind is np.ndarray:
                types.append((x.shape, x.dtype))
            elif kind in PYTHON or isinstance(x, np.generic):
                types.append(kind)
            else:
                return None
        return structure, structure.order, *types

    def find(self, key: Hashable) -> Derivative | None:
        """The derivative known for a signature, if nothing around the
        function has changed since.
        """
        found = self.known.get(key)
        if found is None:
            return None
        derivative, around, settings = found
        if settings is config.key and around.unchanged():
            return derivative
        self.known.pop(key, None)
        self.changes += 1
        return None

    def around(self, key: Hashable, fun: Any, args: tuple[Any, ...]) -> Surroundings | None:
        """The values the function reads, before it is traced for a signature
        that came once before.
        """
        if key not in self.known:
            self.known[key] = None
            if len(self.known) > SIGNATURES:
                self.known.pop(next(iter(self.known)), None)
            return None
        # not needed for a first call
        from ge2.transforms.surroundings import Surroundings, is_built_in

        try:
            return Surroundings(fun) if is_built_in(args) else None
        except LookupError:
            self.changes = TIRES
            return None

    def keep(self, key: Hashable, around: Surroundings, derivative: Derivative) -> None:
        """Remembers a trace that neither had an effect nor changed what it reads."""
        if derivative.graph.effect or not derivative.small() or not around.unchanged():
            self.changes += 1
            return
        if len(derivative.graph.eqns) <= LONGEST:
            from ge2.transforms.surroundings import straight  # as above

            derivative.run = straight(derivative.graph)
        self.known[key] = derivative, around, config.key


# --------------------------------------------------------------------------------------- whole calls
# Transforms that trace several times, or make several graphs, in a call: the call itself is traced.


def remembering(
    fun: Any, kind: str, options: tuple[Any, ...], work: Callable[..., Any]
) -> Callable[..., Any]:
    """The transform `work` of a function, whose eager calls are remembered by their signatures."""
    memory = memory_of(fun, kind, options)

    @wraps(fun)
    @hides
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return repeated(memory, fun, work, args, kwargs)

    return wrapped


def repeated(
    memory: Memory,
    fun: Any,
    work: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """The result of `work`, a transform of `fun`, by its graph if that is known."""
    key = memory.key(args, kwargs)
    known = None if key is None else memory.find(key)
    if known is not None:
        return known.build(known.results(flatten(args)[0]))[0]
    around = None if key is None else memory.around(key, fun, args)
    if key is None or around is None:
        return work(*args, **kwargs)
    call, returned = Arguments.of(work, args, {}), Results()
    try:
        closed, writes = call.stage_writing(
            call.inputs(), returned, "an eager call", [False] * len(call.arrays)
        )
    except (
        Ge2Error
    ):  # it may do what a trace around it may not, or is wrong, and then says so again
        memory.changes = TIRES
        return work(*args, **kwargs)
    graph, count = tidy(closed.graph), len(closed.graph.outputs)
    derivative = Derivative(graph, closed.captured, returned, count, (), True)
    if not (closed.looked or writes):
        memory.keep(key, around, derivative)
    results = derivative.results(call.values())
    call.carry(writes, results)
    return derivative.build(results)[0]
