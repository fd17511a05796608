"""One trace of a function: the arrays it closes over become inputs, its operations a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, Final

import numpy as np

from ge2.base.source import originals
from ge2.dispatch.cache import Entry
from ge2.dispatch.closures.capture import NO_NAMES, Closure, Plan, Seen, coded_classes
from ge2.dispatch.closures.objects import is_namespace, is_plain
from ge2.dispatch.closures.rebind import Rebound
from ge2.dispatch.closures.unseen import Purity, refuse_values, watched
from ge2.dispatch.signature import Function, Key, Static, arguments_of, is_static, leaf_type, title
from ge2.ir import Var
from ge2.trace import ABSTRACT, Closed, Input, is_traced, stage, tidy
from ge2.trace.stage import common_place
from ge2.trace.writes import Changing, is_scalar
from ge2.transforms.arguments import Arguments, Results
from ge2.transforms.graphs.rules import is_float0

CLOSURES: Final = 256


def trace(
    f: Function, key: Key, leaves: list[Any], seen: Seen, closure: Closure | None, limit: int | None
) -> Entry:
    """The entry of a signature: the graph of the function for arguments like
    these, and how it is run.
    """
    positions = [i for i, k in enumerate(key.leaves) if not (is_static(k) or is_float0(leaves[i]))]
    arguments = arguments_of(f, leaves, key.structure, positions)
    names = arguments.names()
    hidden = hidden_inputs(seen, closure)
    changing = Changing(len(hidden), positions, key.donated)
    inputs = [
        Input(t, ABSTRACT, names[i], carried_back=True, scalar=is_scalar(leaves[i]))
        for i, t in zip(positions, arguments.types(), strict=True)
    ]
    returned, frozen = Results(), set[int]()
    classes = coded_classes(key.structure)
    plans = plans_of([*leaves, *classes], closure)
    refuse_values(f, plans)
    results = (
        rebinding(f, arguments, returned, plans, hidden, frozen)
        if hidden
        else plain(arguments, returned)
    )

    def run(*xs: Any) -> list[Any]:
        return changing.outputs(xs, results(*xs))

    def work() -> Closed:
        with watched(f, plans):
            return stage(run, [*hidden, *inputs], arguments.title, "jit")

    generators = [g for p in plans for g in p.generators()]
    purity = Purity(generators, [s.function.__code__ for p in plans for s in p.scopes])
    closed = work()
    purity.check(work)
    entry = entry_of(closed, returned, positions if len(positions) < len(leaves) else None)
    entry.key, entry.names, entry.title, entry.limit = key, names, title(f), limit
    entry.input_names = [*(given.name for given in hidden), *(names[i] for i in positions)]
    entry.classes, entry.scalars = classes, changing.scalars
    captured = ["a constant array"] * len(closed.captured)
    entry.writes = changing.writes(entry.title, [*captured, *entry.input_names])
    given = [(names[i], leaves[i]) for i in positions]
    entry.device = common_place(title(f), [*given, *closed_over(seen, closure)])
    entry.looked = decisive(closed, seen, frozen | unread(closed, hidden))
    if key.donated:
        before = len(closed.captured) + len(hidden)
        entry.donated = (*(False,) * before, *(i in key.donated for i in positions))
    return entry


def plain(arguments: Arguments, returned: Results) -> Callable[..., list[Any]]:
    """The call of a function that closes over no arrays, on traced arguments."""

    def results(*xs: Any) -> list[Any]:
        return returned.flat(arguments.call(xs))

    return results


def rebinding(
    f: Function,
    arguments: Arguments,
    returned: Results,
    plans: Sequence[Plan],
    hidden: Sequence[Input],
    frozen: set[int],
) -> Callable[..., list[Any]]:
    """The call of a copy of the function that reads traced values, the first given, for
    the arrays it closes over. Adds the arrays that the copy could not be made to read
    to `frozen`, by identity.
    """

    def results(*xs: Any) -> list[Any]:
        rebound = Rebound(
            plans, {id(given.source): x for given, x in zip(hidden, xs, strict=False)}
        )
        copied = [rebound.value(x) for x in arguments.leaves]
        inner = replace(arguments, function=rebound.value(f), leaves=copied)
        with originals(rebound.original):
            found = returned.flat(inner.call(xs[len(hidden) :]))
        rebound.close()
        frozen.update(rebound.frozen | rebound.unreached())
        return found

    return results


def entry_of(closed: Closed, returned: Results, positions: list[int] | None) -> Entry:
    entry = Entry(tidy(closed.graph), closed.captured, returned.structure, positions)
    if returned.empty:
        entry.without_bytes(returned)
    return entry


def decisive(closed: Closed, seen: Seen, frozen: set[int]) -> list[np.ndarray | None]:
    """Copies of the closed-over arrays whose contents decided the
    trace, to be compared at each call.
    """
    if not (closed.looked or frozen):
        return []
    decided = [not is_traced(x) and (closed.looked or id(x) in frozen) for x in seen.arrays]
    return [x.copy() if d else None for x, d in zip(seen.arrays, decided, strict=True)]


def unread(closed: Closed, hidden: Sequence[Input]) -> set[int]:
    """The arrays that the function closes over but the graph does not read, by identity.

    Something made of them may stand in the graph as a constant, where code ran that could not be
    given the traced array: such arrays are compared at each call.
    """
    graph, first = closed.graph, len(closed.captured)
    read = {a for e in graph.eqns for a in e.inputs if type(a) is Var} | set(graph.outputs)
    places = list(zip(hidden, graph.inputs[first : first + len(hidden)], strict=True))
    found = {id(given.source) for given, var in places if var in read}  # by one of its names
    return {id(given.source) for given, _ in places} - found


def plans_of(leaves: Sequence[Any], closure: Closure | None) -> list[Plan]:
    own = [closure.plan] if closure else []
    return own + [closure_of(x, closure).plan for x in leaves if is_function(x)]


def closed_over(seen: Seen, closure: Closure | None) -> list[tuple[str, Any]]:
    """The values that the function closes over, in words."""
    names = closure.names() if closure and seen.arrays else {}
    return [(f"{names.get(id(x), 'an array')}, which it closes over,", x) for x in seen.arrays]


def hidden_inputs(seen: Seen, closure: Closure | None) -> list[Input]:
    if not seen.arrays:
        return []
    names = closure.names() if closure else {}
    return [
        Input(
            leaf_type(x),
            ABSTRACT if is_traced(x) else x,
            names.get(id(x), "an array closed over"),
            source=x,
        )
        for x in seen.arrays
    ]


def is_function(leaf: Any) -> bool:
    """True for an argument that may hold arrays: a function, a class, a module
    or, if static, an object.
    """
    value = leaf.value if type(leaf) is Static else leaf
    if is_traced(value):
        return False
    if isinstance(value, type | ModuleType):
        return is_namespace(value)
    return callable(value) or (type(leaf) is Static and is_plain(value))


# of arguments by their id, and what is read there
_closures: dict[tuple[int, Any], tuple[Any, Closure]] = {}


def closure_of(leaf: Any, reader: Closure | None) -> Closure:
    """The values an argument closes over or holds, as far as `reader` reads it;
    the latest are remembered.
    """
    value = leaf.value if type(leaf) is Static else leaf
    wanted = reader.plan.attributes if reader else NO_NAMES
    found = _closures.get((id(value), wanted))
    if found is None:
        if len(_closures) >= CLOSURES:
            _closures.clear()
        found = _closures[id(value), wanted] = (value, Closure(value, wanted))
    return found[1]


def forget_closures() -> None:
    _closures.clear()
