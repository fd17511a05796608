"""Loops and branches on a device: an iteration is a few launches, in memory that exists before.

Elements of stacks are views, results are written where they are to stay, and a carry has two places
that change roles. The host waits for the device where a predicate decides, and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, final

from ge2.base.record import record
from ge2.ir import ArrayType, Graph, Var
from ge2.ops.graphs.control import Cond
from ge2.ops.graphs.loops import RepeatLoop, ScanLoop
from ge2.ops.graphs.while_loop import WhileLoop
from ge2.program.program import carry_of
from ge2.targets.cuda.device import Device, address, empty, put
from ge2.targets.cuda.launch.arguments import Address
from ge2.targets.cuda.loops.unroll import Placed, RecordedBody

Arrays = Sequence[Any]


@final
@record
class LoopBody:
    """A program that another one runs: `run(memory, *places, *arrays)`, with
    `nbytes` of memory for itself.

    The results `placed`, of such types, are written into the places; the others are returned
    wherever they lie, which may be in an argument or in the memory. `over` has those that are made
    by writes into an argument, where it lies, each with the number of that. `again` pairs a result
    that has a place with a later one that is the same. `why` it is not `recorded` is said in words.
    """

    nbytes: int
    placed: tuple[int, ...]
    types: tuple[ArrayType, ...]
    again: tuple[tuple[int, int], ...]
    over: Mapping[int, int]
    run: Callable[..., list[Any]]
    recorded: RecordedBody | None = None  # it as launches alone, if it is nothing else
    why: str = ""

    def into(self, memory: Any, places: Arrays, *arrays: Any) -> list[Any]:
        """The results, those that have a place written there."""
        return self.run(memory, *[places[i] for i in self.placed], *arrays)

    def write_all(self, memory: Any, places: Arrays, *arrays: Any) -> None:
        """Writes every result into its place."""
        for i, found in enumerate(self.into(memory, places, *arrays)):
            settle(places[i], found)

    def in_new_arrays(self, device: Device, *arrays: Any) -> list[Any]:
        """The results in arrays of their own."""
        places = [empty(device, t.shape, t.dtype) for t in self.types]
        written = self.over.values()
        arrays = tuple(fresh(device, x) if k in written else x for k, x in enumerate(arrays))
        found = self.run(device.xp.empty(self.nbytes, "uint8"), *places, *arrays)
        return [x if i in self.placed else fresh(device, x) for i, x in enumerate(found)]


class Texts(Protocol):
    """A program written out, by language."""

    texts: dict[str, str]


class Body(Protocol):
    """The body of a loop, or a branch: a program of its own."""

    def __call__(self, *arrays: Any) -> list[Any]: ...

    def loop_body(self, run: bool) -> LoopBody:
        """It as one iteration; if it is not to `run`, to be written about alone."""

    def written(self, run: bool = True) -> Texts:
        """Its texts; nothing is compiled if it is not to `run`."""


def settle(end: Any, x: Any) -> None:
    """Copies an array to where it is to stay, unless it lies there."""
    if x is not end and where(x) != where(end):
        put(end, x)


def where(x: Any) -> Address | int:
    return x.at if isinstance(x, Placed) else address(x)


def fresh(device: Device, x: Any) -> Any:
    return device.xp.array(x, order="C") if isinstance(x, device.xp.ndarray) else x


def spare(op: Any) -> list[ArrayType]:
    """Returns what has a second place: the carry; and what a predicate decides."""
    if isinstance(op, Cond):
        return []
    outputs = [a.type for a in op.body.outputs]
    return [*outputs, op.cond.outputs[0].type] if isinstance(op, WhileLoop) else outputs[: op.carry]


def in_place(op: Any, body: LoopBody) -> list[int]:
    """The parts of the carry that iterations make by writes into it, where it lies."""
    if isinstance(op, Cond):
        return []
    _, first, count = carry_of(op)
    return [i for i in range(count) if body.over.get(i) == first + i]


def second_places(
    op: Any, bodies: Sequence[LoopBody], results: Arrays, make: Callable[[ArrayType], Any]
) -> list[Any]:
    """The second places of the carry: those of the results where it stays in one."""
    stays = in_place(op, bodies[-1])
    return [results[i] if i in stays else make(t) for i, t in enumerate(spare(op))]


def loose(op: Any, graph: Graph) -> dict[Var, int]:
    """Of what lies among the elements of a stack, how many elements lie between two of its places.

    `graph` is that of an iteration. A carry that is stacked as well is made
    in the stack, and read there.
    """
    if not isinstance(op, ScanLoop):
        return {}
    stacked = {a for a in graph.outputs[op.carry :] if isinstance(a, Var)}
    found = stacked | set(graph.inputs[op.consts + op.carry :])
    carry = zip(graph.outputs[: op.carry], graph.inputs[op.consts :], strict=False)
    found |= {v for a, v in carry if a in stacked}
    return {v: math.prod(v.type.shape) for v in found}


def iterated(op: Any, bodies: Sequence[LoopBody]) -> Callable[..., None]:
    """The operation as a function of memory, places for results, second places
    of the carry, and arrays.
    """
    if isinstance(op, ScanLoop):
        return partial(scan, op, bodies[0])
    if isinstance(op, RepeatLoop):
        return partial(repeat, op, bodies[0])
    if isinstance(op, WhileLoop):
        return partial(while_loop, op, bodies[0], bodies[1])
    return partial(branch, bodies)


class Carry:
    """What goes from iteration to iteration: where it is, and where it is written next."""

    __slots__ = ("homes", "now", "spares")

    def __init__(self, now: Arrays, homes: Arrays, spares: Arrays) -> None:
        self.now, self.homes, self.spares = list(now), homes, spares

    def stay(self, ends: Arrays, in_place: Iterable[int]) -> Carry:
        """It with those parts that iterations write in place where they are to end."""
        for i in in_place:
            settle(ends[i], self.now[i])
            self.now[i] = ends[i]
        return self

    def take(self, found: Arrays, places: Arrays) -> None:
        """An iteration's results become the carry. What it does not change stays where it is."""
        for i, place in enumerate(places):
            if found[i] is not place and found[i] is not self.now[i]:
                put(place, found[i])
            elif found[i] is self.now[i]:
                continue
            self.now[i] = place
        self.homes, self.spares = self.spares, self.homes

    def settle(self, ends: Arrays) -> None:
        for end, x in zip(ends, self.now, strict=True):
            settle(end, x)


def scan(
    op: ScanLoop, body: LoopBody, memory: Any, results: Arrays, spares: Arrays, *xs: Any
) -> None:
    consts, start, elements = op.parts(xs)
    ends, stacks = results[: op.carry], results[op.carry :]
    carry = Carry(start, *((ends, spares) if op.length % 2 else (spares, ends)))
    carry.stay(ends, in_place(op, body))
    through = stacked_too(body, op.carry)
    for t in reversed(range(op.length)) if op.reverse else range(op.length):
        places = [*carry.homes, *[y[t, ...] for y in stacks]]
        for i, j in through:
            places[i] = places[j]
        found = body.into(memory, places, *consts, *carry.now, *[x[t, ...] for x in elements])
        stacked(places, found, op.carry)
        carry.take(found, places[: op.carry])
    carry.settle(ends)


def stacked_too(body: LoopBody, carry: int) -> list[tuple[int, int]]:
    """The carries that are results of each iteration as well, each with that
    result: they are made there.
    """
    return [(i, j) for i, j in body.again if i < carry <= j]


def stacked(places: Arrays, found: Arrays, first: int) -> None:
    """Copies what an iteration did not write into its stack."""
    for place, y in zip(places[first:], found[first:], strict=True):
        if y is not place:
            put(place, y)


def repeat(
    op: RepeatLoop, body: LoopBody, memory: Any, results: Arrays, spares: Arrays, *xs: Any
) -> None:
    at, n = op.consts + op.carry, op.length
    ends, rest, elements = results[: op.carry], results[op.carry :], xs[at:]
    carry = Carry(xs[op.consts : at], *((ends, spares) if n % 2 else (spares, ends)))
    carry.stay(ends, in_place(op, body))
    through = stacked_too(body, op.carry)
    for t in range(n):
        places = [*carry.homes, *rest[t::n]]
        for i, j in through:
            places[i] = places[j]
        found = body.into(memory, places, *xs[: op.consts], *carry.now, *elements[t::n])
        stacked(places, found, op.carry)
        carry.take(found, places[: op.carry])
    carry.settle(ends)


def while_loop(
    op: WhileLoop,
    test: LoopBody,
    body: LoopBody,
    memory: Any,
    results: Arrays,
    more: Arrays,
    *xs: Any,
) -> None:
    *spares, decided = more
    by_cond, by_body, start = op.parts(xs)
    carry = Carry(start, results, spares).stay(results, in_place(op, body))
    while test.into(memory, [decided], *by_cond, *carry.now)[0]:  # which waits for it
        homes = carry.homes
        carry.take(body.into(memory, homes, *by_body, *carry.now), homes)
    carry.settle(results)


def branch(
    bodies: Sequence[LoopBody], memory: Any, results: Arrays, _: Arrays, index: Any, *xs: Any
) -> None:
    xs = written_over(bodies, results, xs)
    bodies[min(max(int(index), 0), len(bodies) - 1)].write_all(memory, results, *xs)


def written_over(bodies: Sequence[LoopBody], results: Arrays, xs: Sequence[Any]) -> tuple[Any, ...]:
    """The operands of branches, those that one of them writes into where the result is to be."""
    found = list(xs)
    for i, k in {pair for body in bodies for pair in body.over.items()}:
        settle(results[i], xs[k])
        found[k] = results[i]
    return tuple(found)
