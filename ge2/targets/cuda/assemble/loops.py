"""Loops and branches on a device: recorded, unrolled, iterated by the host, or conditional nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, final

import numpy as np

from ge2.base.arrays import BOOL, FP8
from ge2.base.record import record
from ge2.codegen.layout import plain
from ge2.codegen.text import Operand
from ge2.ir import ArrayType, Atom, Graph, Literal, Var
from ge2.ops.graphs.control import Cond
from ge2.ops.graphs.loops import RepeatLoop, ScanLoop
from ge2.ops.graphs.while_loop import WhileLoop
from ge2.program import Step, carry_of
from ge2.program.records import place as place_text
from ge2.targets.cuda.assemble.steps import CudaStep, StepAssembler
from ge2.targets.cuda.device import Device, address, empty, put
from ge2.targets.cuda.emit import CudaKernel, Source
from ge2.targets.cuda.kernels import copying
from ge2.targets.cuda.launch import Address, Branch, Item, Launch, While, count
from ge2.targets.cuda.launch.template import launch_of, rebound
from ge2.targets.cuda.limits import Chip

# -------- Iterations of a loop as launches of the program around it, at places that are known
# beforehand.
# The iterations are run once with arrays that only know where they lie (`loops.py` says what an
# iteration is); what they would have launched is recorded.


@final
class Placed:
    """An array that only knows where it lies, in C order. Elements are told to copy by `copy`."""

    __slots__ = ("at", "copy", "type")

    def __init__(
        self, at: Address, type_: ArrayType, copy: Callable[[Placed, Placed], None]
    ) -> None:
        self.at, self.type, self.copy = at, type_, copy

    @property
    def dtype(self) -> np.dtype:
        return self.type.dtype

    def __getitem__(self, key: tuple[int, Any]) -> Placed:
        """An element of a stack."""
        found = ArrayType(self.type.shape[1:], self.dtype)
        step = math.prod(found.shape) * self.dtype.itemsize
        return Placed(self.at + key[0] * step, found, self.copy)

    def __setitem__(self, _: Any, x: Placed) -> None:
        self.copy(x, self)

    def view(self, dtype: Any) -> Placed:
        """It as bytes, which it is one of already."""
        assert self.dtype in FP8
        return Placed(self.at, ArrayType(self.type.shape, np.dtype(dtype)), self.copy)


@final
class RecordedBody:
    """A program of nothing but launches, to be written down for arrays
    that are known by their places.

    `parameters` are its names for what it is run with, places of results first; `results` says for
    each what it is: one of those names, or a place with a type.
    """

    __slots__ = ("constants", "launches", "offsets", "parameters", "results", "sources")

    def __init__(
        self,
        parameters: Sequence[str],
        launches: Sequence[Item],
        sources: Sequence[Source],
        offsets: dict[str, int],
        results: Sequence[str | tuple[Address, ArrayType]],
        constants: dict[str, Any],
    ) -> None:
        self.parameters, self.launches, self.sources = parameters, launches, sources
        self.offsets, self.results, self.constants = offsets, results, constants

    @property
    def count(self) -> int:
        """Returns how many launches it is."""
        return count(self.launches)

    def run(
        self, launch: Callable[[Item], None], define: Callable[[CudaKernel], tuple[int, str]],
        constant: Callable[[Any], Address], memory: Placed, *given: Placed,
    ) -> list[Placed]:  # fmt: skip
        """Hands each launch to `launch`, kernels to `define`, constant arrays to
        `constant`; the results.
        """
        names = dict(zip(self.parameters, given, strict=True))

        def settled(a: Any) -> Any:
            if not isinstance(a, Address):
                return a
            if a.in_arena:
                return memory.at + self.offsets[a.array] + a.offset
            if a.array in names:
                return names[a.array].at + a.offset
            return constant(self.constants[a.array]) + a.offset

        def defined(each: Launch) -> Launch:
            if each.of_library:
                return each
            number, name = define(self.sources[each.function].kernel)
            return replace(each, function=number, name=name)

        for each in self.launches:
            launch(rebound(each, settled, defined))
        return [
            names[y] if isinstance(y, str) else Placed(settled(y[0]), y[1], memory.copy)
            for y in self.results
        ]


# -------- Loops and branches on a device: an iteration is a few launches, in memory that exists
# before.
# Elements of stacks are views, results are written where they are to stay, and a carry has two
# places that change roles. The host waits for the device where a predicate decides, and nowhere
# else.


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
    """The carry of a loop: where it is, and where it is written next."""

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


# -------- Records launches of a step, at places that are known beforehand, into the list that is
# open.


@final
class Recorder(CudaStep):
    """Iterations that run with its `body`s, and places that it gives, become launches of a step."""

    def __init__(self, assembler: StepAssembler, step: Step) -> None:
        super().__init__(assembler, step)
        self.results = step.eqn.outs
        self._open: list[list[Item]] = [self.launches]

    @contextmanager
    def apart(self) -> Iterator[list[Item]]:
        """A list of its own for what is recorded inside the `with`."""
        found: list[Item] = []
        self._open.append(found)
        try:
            yield found
        finally:
            self._open.pop()

    def launch(self, item: Item) -> None:
        self._open[-1].append(item)

    def copy(self, x: Placed, to: Placed) -> None:
        """Launches a copy."""
        strides, n = plain(x.type.shape).strides, math.prod(x.type.shape)
        source, target = Operand("in", 0, strides, loose=n), Operand("out", 0, strides, loose=n)
        limits, ends = self.assembler.device.limits, {"array": x.at, "result": to.at}
        for kernel in copying(x.type, to.type, source, target, Chip.of(limits)).kernels:
            number, first = self.assembler.kernels.number(kernel)
            given = tuple(
                ends[a.kind] if a.kind in ends else self.argument(a) for a in kernel.given
            )
            name, early = f"{first.name}_{number}", kernel.fits(limits.threads) and first.waits
            self.launch(launch_of(kernel, number, given, name, place_text(self.step.eqn), early))

    def recorded(self, body: LoopBody) -> LoopBody:
        """An iteration that is recorded when it runs."""
        assert body.recorded is not None
        known = dict[int, tuple[int, str]]()

        def once(kernel: CudaKernel) -> tuple[int, str]:  # named once, not in each iteration
            if id(kernel) not in known:
                known[id(kernel)] = self.assembler.kernels.name(kernel)
            return known[id(kernel)]

        return replace(body, run=partial(body.recorded.run, self.launch, once, self.constant))

    def constant(self, value: Any) -> Address:
        """The address of an array that is there from the start."""
        names = self.assembler.names.items()
        known = next((name for name, found in names if found is value), None)
        return Address(known or self.assembler.bind(value, "k"))

    def own_place(self, type_: ArrayType) -> Placed:
        """A place in the arena."""
        return Placed(self.own(type_.nbytes), type_, self.copy)

    def placed(self, a: Atom) -> Placed:
        offset = 0 if isinstance(a, Literal) else self.assembler.program.layout(a).offset
        return Placed(self.assembler.at(a, offset * a.type.dtype.itemsize), a.type, self.copy)


# -------- While loops and branches as items of the launches around them: numbers on the device
# decide, not the host.
# The iterations of a loop go to and fro between two places of what it carries, the results and
# second ones, so that nothing is copied from iteration to iteration: an iteration of the item is
# two of the loop, with a branch between them.


Places = Sequence[Placed]


def conditional(assembler: StepAssembler, step: Step, bodies: Sequence[LoopBody]) -> Recorder:
    """A while loop or a branch as one item of this program."""
    eqn, op = step.eqn, step.eqn.op
    writer = Recorder(assembler, step)
    memory = writer.own_place(ArrayType((max(t.nbytes for t in bodies),), np.dtype(np.uint8)))
    results = [*map(writer.placed, eqn.outs)]
    spares = second_places(op, bodies, results, writer.own_place)
    inputs, symbolic = [*map(writer.placed, eqn.inputs)], [*map(writer.recorded, bodies)]
    if isinstance(op, WhileLoop):
        loop(writer, op, symbolic, memory, results, spares, inputs)
    else:
        conditional_branch(writer, symbolic, memory, results, inputs)
    return writer


def conditional_branch(
    writer: Recorder, bodies: Sequence[LoopBody], memory: Placed, results: Places, inputs: Places
) -> None:
    index, *xs = inputs
    xs = [*written_over(bodies, results, xs)]
    lists = []
    for body in bodies:
        with writer.apart() as found:
            body.write_all(memory, results, *xs)
        lists.append(tuple(found))
    eqn = writer.step.eqn
    writer.launch(Branch(tuple(lists), index.at, index.dtype, eqn.op.name, place_text(eqn)))


def loop(
    writer: Recorder,
    op: WhileLoop,
    bodies: Sequence[LoopBody],
    memory: Placed,
    results: Places,
    more: Places,
    xs: Places,
) -> None:
    """The carry begins in the results, and is there again after each iteration of an item."""
    (test, body), (*seconds, decided), where = bodies, more, place_text(writer.step.eqn)
    by_cond, by_body, start = op.parts(xs)
    Carry(start, (), ()).settle(results)
    carry = Carry(results, seconds, results)

    def tested() -> Placed:
        found: Placed = test.into(memory, [decided], *by_cond, *carry.now)[0]
        return found

    def went() -> None:
        homes = carry.homes
        carry.take(body.into(memory, homes, *by_body, *carry.now), homes)

    with writer.apart() as first:
        going = tested()
    with writer.apart() as both:
        went()
        between = tested()
        with writer.apart() as last:
            carry.settle(results)
        with writer.apart() as second:
            went()
            tested()
        writer.launch(
            Branch(
                (tuple(last), tuple(second)),
                between.at,
                BOOL,
                f"{op.name}'s second iteration",
                where,
            )
        )
    writer.launch(While(tuple(first), tuple(both), going.at, op.name, where))
