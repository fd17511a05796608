"""The operands that statements of a persistent kernel read, ahead of time or not; reductions; and the
parameters of the kernel: arrays and their strides, sizes, and numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, final

import numpy as np

from ge2.base.arrays import BOOL, COMPLEX, FLOATS, accumulator
from ge2.base.arrays import accumulator as widened
from ge2.base.record import record
from ge2.codegen.axes import strides_of
from ge2.codegen.text import Argument, Operand, Text, guard
from ge2.codegen.text import whole as whole_operand
from ge2.ir import Atom, Dims, Eqn, Graph, Literal, Names, Var
from ge2.ops.dot import DotGeneral
from ge2.ops.reduce import ArgReduce, kept
from ge2.targets.cuda.emit.words import (
    HELD,
    STORED,
    SUFFIX,
    Gather,
    Merge,
    State,
    baked,
    expression,
    label,
    number,
    start_of,
)
from ge2.targets.cuda.emit.words import Stage as Reduction
from ge2.targets.cuda.persistent.matrices import place
from ge2.targets.cuda.persistent.nodes import (
    E,
    Parts,
    Rounds,
    Statement,
    Unwritten,
    dense,
    stacks,
)
from ge2.targets.cuda.persistent.rows import Along, Split
from ge2.targets.cuda.persistent.values import (
    POINTS,
    Array,
    Index,
    Made,
    Number,
    Picked,
    Read,
    Reader,
    Step,
    Steps,
    Value,
    declared,
    held,
    times,
    whole,
)


class Loops(Protocol):
    """The writer of a kernel, as reads of elements ask it: the loop that is written, and the one in
    iterations around it.
    """

    plan: Any
    grid: Any
    threads: int
    loop: Any
    round: Rounds | None
    apart: bool
    early: dict[str, Early]
    wrote: set[str]

    def touch(self, x: Array) -> Array: ...


# -------- What the statements of a persistent kernel read, and where.


@final
class Readers:
    """The readers of each value of a graph, and how often each reads it."""

    def __init__(self, graph: Graph) -> None:
        self.found: dict[Var, list[Eqn]] = {}
        for eqn in graph.eqns:
            for a in eqn.inputs:
                if isinstance(a, Var):
                    self.found.setdefault(a, []).append(eqn)

    def count(self, v: Var) -> int:
        return len(self.found.get(v, ()))

    def of(self, v: Var) -> Eqn:
        """The only one."""
        return self.found[v][0]


def readers(graph: Graph) -> Readers:
    return Readers(graph)


def placed(pair: Array, side: str) -> Array:
    """One of the two places of a carry."""
    n = pair.type.size
    return whole(pair.name, pair.type, side if n == 1 else f"{side} * {n}", shared=True)


def part(x: Value, number: str) -> Value:
    """An element of a stack."""
    if isinstance(x, Array) and not x.mine:
        return x.part(number)
    return x if isinstance(x, Number) else Picked(x, number, x.type.with_shape(x.type.shape[1:]))


def folded_axes(eqn: Eqn) -> tuple[int, ...]:
    op: Any = eqn.op
    return (op.axis,) if isinstance(op, ArgReduce) else op.axes


def taken(eqn: Eqn, e: str, k: str) -> Index:
    """The place in what is folded, of element `k` of those that become element `e`."""
    (x,), axes = eqn.inputs, folded_axes(eqn)
    shape = x.type.shape
    left = kept(axes, len(shape))
    count = math.prod(shape[a] for a in axes)
    if axes == tuple(range(len(left), len(shape))):
        flat = k if not left or math.prod(shape[a] for a in left) == 1 else f"{e} * {count} + {k}"
        return Index(shape, flat)
    inner = Index(tuple(shape[a] for a in axes), k).each()
    outer = Index(tuple(shape[a] for a in left), e).each()
    along = [""] * len(shape)
    for a, text in (*zip(axes, inner, strict=True), *zip(left, outer, strict=True)):
        along[a] = text
    return Index(shape, "", tuple(along))


def multiplied(eqn: Eqn, e: str, k: str) -> tuple[Index, Index]:
    """The places in both operands of a product."""
    op, (a, b), (y,) = eqn.op, (x.type for x in eqn.inputs), eqn.outs
    assert isinstance(op, DotGeneral)
    free_a, free_b = op.free(a, b)
    each = Index(y.type.shape, e).each()
    beside, rest = each[: len(op.beside[0])], each[len(op.beside[0]) :]
    sums = Index(tuple(a.shape[i] for i in op.contract[0]), k).each()
    found = []
    for n, (t, free) in enumerate(((a, free_a), (b, free_b))):
        own = rest[: len(free_a)] if n == 0 else rest[len(free_a) :]
        pairs = (*zip(op.beside[n], beside, strict=True), *zip(op.contract[n], sums, strict=True))
        at: Mapping[int, str] = dict((*pairs, *zip(free, own, strict=True)))
        found.append(Index(t.shape, "", tuple(at[i] for i in range(t.ndim))))
    return found[0], found[1]


def reads(s: Statement) -> list[Read]:
    """The results of statements, and the arrays, that a statement reads, and
    whether at its own place.
    """
    found: list[Read] = []

    def made(x: Made, at: Index) -> str:
        found.append((x, at.flat == E))
        return "0"

    def array(x: Array, at: Index) -> str:
        found.append((x, at.flat == E))
        return "0"

    reader = Reader(made, array)
    if s.parts is not None and s.key is not None and s.key.stage == "finish":
        return [(s.xs[0], False)]  # type: ignore[list-item]
    if s.into is not None and s.eqn is not None:
        reader.target(s.eqn, s.xs, Index(s.y.type.shape, E))
        reader.element(s.xs[1], Index(s.y.type.shape, E))
    elif s.eqn is None:
        reader.element(s.xs[0], Index(s.y.type.shape, E))
    elif isinstance(s.eqn.op, POINTS):
        reader.computed(s.eqn, s.xs, Index(s.y.type.shape, E))
    else:
        own = E if s.key is not None and s.key.stage == "whole" else "k"
        for x in s.xs:
            reader.element(x, Index(x.type.shape, own))
    return found


def read_by_all(x: Value) -> list[Made | Array]:
    """Returns what all threads read who look at a number."""
    found: list[Made | Array] = []

    def note(x: Made | Array, _: Index) -> str:
        found.append(x)
        return "0"

    Reader(note, note).element(x, Index(x.type.shape, "0"))
    return found


# -------- Elements of stacks that a thread reads a round before they are needed.


@final
@record
class Early:
    """An element that a thread has before the round in which it is
    needed: read first, and then again.
    """

    name: str
    first: Text
    next: Text


def element(writer: Loops, x: Array, at: Index) -> str:
    """An element; that of a stack, at the place of a thread, was read while
    the last round went on.
    """
    own, node = spot(writer), writer.round
    writer.touch(x)
    there = node is not None and x.stack is not None and x.stack[1] == node.label
    changes = x.name in writer.wrote or (writer.grid is not None and not x.given)
    if node is None or not there or not own or at.flat != E or changes:
        return x.element(at, writer.apart)
    name = f"{id(writer.loop)} {x.element(at)}"  # another loop reads it when this one has the next
    if name not in writer.early:
        writer.early[name] = earlier(writer, x, node, at.shape, own)
    return writer.early[name].name


def spot(writer: Loops) -> str:
    """The place of a thread's only element in the current loop; "" if it has more, or shares it."""
    key = None if writer.loop is None else writer.loop.key
    if key is None:
        return ""
    if key.wide:
        tile = (
            writer.grid.tiles.get(key.size)
            if writer.grid and key.spread and not key.stage
            else None
        )
        return f"{tile.name}_own" if tile and tile.size <= writer.threads else ""
    if key.product is not None:
        k = writer.loop.statements[0].kept
        return place(k, "") if k.rows == 1 else ""
    return "thread" if key.team == 1 and key.size <= writer.threads else ""


def earlier(writer: Loops, x: Array, node: Rounds, shape: Any, spot: str) -> Early:
    assert x.stack is not None and writer.loop is not None
    stack, t = x.stack
    name = writer.plan.label(f"{x.name}_ahead")
    first, after = (f"{node.count} - 1", f"{t} - 1") if node.reverse else ("0", f"{t} + 1")
    size = writer.loop.key.size
    inside = f"{spot} < {size} ? " if spot == "thread" and size < writer.threads else ""
    begin = f"{inside}{stack.part(first).element(Index(shape, spot))}{' : 0' if inside else ''}"
    more = f"{t} > 0" if node.reverse else f"{t} + 1 < {node.count}"
    later = stack.part(after).element(Index(shape, E))
    kind = STORED[x.type.dtype]
    if inside and x.type.dtype in COMPLEX:
        begin = begin.replace(" : 0", f" : {kind}{{0, 0}}")
    return Early(
        name,
        Text(f"{kind} {name} = {begin};", "read a round ahead"),
        guard(more, f"{name} = {later};"),
    )


def after(writer: Loops, known: set[str]) -> list[Text]:
    """The lines that read elements of the next round, of those that the current loop reads."""
    return [each.next for name, each in writer.early.items() if name not in known]


# -------- Folds and products as text: what a thread gathers, and what the threads of a team merge.


Merging = Callable[[str, str], str]


@final
@record
class Folds:
    """`reader` says how elements are read."""

    reader: Reader

    def fold(self, s: Statement, eqn: Eqn, team: int, comment: str) -> list[Reduction]:
        """The lines of a fold, each element by a team of so many threads; or
        of one of its stages.
        """
        op: Any = eqn.op
        t = HELD[widened(s.y.type.dtype)]
        dtype, name = widened(eqn.inputs[0].type.dtype), f"{s.y.name}_state"
        indexed = isinstance(op, ArgReduce)
        held_as = f"ge2_indexed_{SUFFIX[dtype]}" if indexed else HELD[dtype]
        merge, p, chunk = merging(op, dtype), s.parts, s.key is not None and s.key.stage == "chunk"
        count = eqn.inputs[0].type.size // eqn.outs[0].type.size
        before = list[Reduction]()
        if p is None:
            value = self.lifted(eqn, s.xs[0], taken(eqn, E, "k"), "k")
        elif chunk:
            name, before = state_name(p), chunked(p)
            value = self.lifted(eqn, s.xs[0], taken(eqn, "spot", "k"), "k")
        else:
            place = "k" if p.size == 1 else f"k * {p.size} + {E}"
            value, count = f"{p.name}[{p.start} + {place}]", p.count
        added = f"{name} = {merge(name, value)};"
        begin, end = ("", str(count)) if not chunk or p is None else bounds(p, count)
        state = gathered(name, held_as, start_of(op, dtype), end, team, Text(added, comment), begin)
        if chunk:
            return [*before, *state, *together(name, held_as, merge, team)]
        found = merged(name, held_as, merge, team)
        out = f"({t}){found}" if dtype != widened(s.y.type.dtype) else found
        result = f"{found}.index" if indexed else out
        return [*state, Text(f"const {t} {s.y.name} = {result};")]

    def lifted(self, eqn: Eqn, x: Value, at: Index, place: str) -> str:
        """An element as a fold takes it in; `place` is its number among those that become one."""
        op: Any = eqn.op
        value, dtype = self.reader.element(x, at), widened(x.type.dtype)
        if isinstance(eqn.op, ArgReduce):
            return expression(op.lowering.lift, [value, place], dtype, dtype)
        return value

    def product(self, s: Statement, eqn: Eqn, team: int, comment: str) -> list[Reduction]:
        """The lines of a product, likewise."""
        a, b = s.xs
        op: Any = eqn.op
        t = HELD[widened(s.y.type.dtype)]
        wide = np.result_type(accumulator(a.type.dtype), accumulator(s.y.type.dtype))
        at_a, at_b = multiplied(eqn, E, "k")
        x, y = self.reader.element(a, at_a), self.reader.element(b, at_b)
        if widened(a.type.dtype) != wide:
            raise Unwritten("a product that is wider than its operands")
        short, name = SUFFIX[wide], f"{s.y.name}_state"
        count = math.prod(a.type.shape[i] for i in op.contract[0])
        if wide == BOOL:
            added = f"{name} = {name} || ({x} && {y});"
        elif wide in FLOATS:
            added = f"{name} = ge2_fma_{short}({x}, {y}, {name});"
        else:
            added = f"{name} = ge2_add_{short}({name}, ge2_mul_{short}({x}, {y}));"
        zero = number(0, wide)
        state = gathered(name, HELD[wide], zero, count, team, Text(added, comment))

        def merge(mine: str, other: str) -> str:
            return f"{mine} || {other}" if wide == BOOL else f"ge2_add_{short}({mine}, {other})"

        found = merged(name, HELD[wide], merge, team)
        out = widened(s.y.type.dtype)
        return [
            *state,
            Text(f"const {t} {s.y.name} = {found if out == wide else f'({t}){found}'};"),
        ]


def merging(op: Any, dtype: np.dtype) -> Merging:
    """Returns how two states of a reduction become one."""
    return lambda mine, other: expression(op.lowering.merge, [mine, other], dtype, dtype)


def gathered(
    name: str, held_as: str, start: str, count: int | str, team: int, added: Text, begin: str = ""
) -> list[Reduction]:
    """Returns what a thread gathers of `count` elements k, or those from `begin` on."""
    first = " + ".join(filter(None, [begin, "lane" if team > 1 else ""])) or "0"
    return [State(held_as, name, start), Gather(first, str(count), team, (added,))]


def together(name: str, held_as: str, merge: Merging, team: int) -> list[Reduction]:
    """Returns the lines by which what the threads of a team gathered becomes one state."""
    function = f"ge2_team_fold<{team}, THREADS>"
    return [Merge(name, function, held_as, merge("mine", "other"))] if team > 1 else []


def merged(name: str, held_as: str, merge: Merging, team: int) -> str:
    """Returns what the threads of a team gathered, as one state."""
    if team == 1:
        return name
    of_two = f"[]({held_as} mine, {held_as} other) {{ return {merge('mine', 'other')}; }}"
    return f"ge2_team_fold<{team}, THREADS>({name}, {of_two})"


def state_name(p: Parts) -> str:
    return f"{p.name}_state"


def chunked(p: Parts) -> list[Reduction]:
    """Returns which result a part is of, and which part of it."""
    if p.size == 1:
        return [Text(f"const int spot = 0, chunk = {E};")]
    return [Text(f"const int spot = {E} % {p.size}, chunk = {E} / {p.size};")]


def bounds(p: Parts, count: int) -> tuple[str, str]:
    """Returns where a part begins and ends."""
    each = -(-count // p.count)
    end = f"(chunk + 1) * {each}"
    exact = count % p.count == 0
    return f"chunk * {each}", end if exact else f"({end} < {count} ? {end} : {count})"


# -------- What the kernel is handed.


# elements of which the place of an array is a multiple, if it may be read in packs
PACK: Final = 16


@final
class Handed:
    """The arguments of a kernel.

    `free` gives names that nothing else has; `parts` says which axes of arrays have `rows`.

    What blocks of a `grid` write for each other is not promised to be restrict: a compiler may take
    what a thread has read of such memory for what is there still, whoever it waits for. Nor is what
    is read: of `c ? x[i] : y[i]` NVRTC makes one load, of memory that never changes if x is such,
    and moves it before the barrier that y waits for.
    """

    def __init__(
        self, graph: Graph, names: Names, free: Callable[[str], str], parts: Split | None, rows: int,
        grid: bool,
    ) -> None:  # fmt: skip
        self.names, self.label, self.parts, self.rows = names, free, parts, rows
        self.promise = "" if grid else "__restrict__ "
        self.arguments: dict[str, Argument] = {}
        self.constants: dict[object, Number] = {}
        self.stacks = stacks(graph)

    def declared(self, x: Array) -> str:
        """A parameter for memory that the kernel writes."""
        return declared(x, False, self.promise)

    def add_argument(self, name: str, argument: Argument) -> None:
        assert name not in self.arguments, f"two arguments {name}"
        self.arguments[name] = argument

    def given(self, v: Var, operand: Operand, axis: Along) -> Value:
        name, dtype = self.label(label(self.names[v])), v.type.dtype
        if operand.value:
            self.add_argument(name, Argument(f"{HELD[dtype]} {name}", "value", (operand, dtype)))
            return Number(name, v.type)
        steps = self.steps(name, v, operand, axis)
        found = Array(name, v.type, steps, self.first(steps, axis), given=True)
        self.add_argument(name, Argument(declared(found, True, ""), "array", (operand, dtype)))
        return found

    def result(self, a: Any, operand: Operand, axis: Along) -> Array:
        name = self.names[a] if isinstance(a, Var) else "result"
        alone = self.parts is not None and axis is None
        name = self.label(f"{label(name)}_out")
        steps = self.steps(name, a, operand, axis)
        begins = (operand.offset % PACK, operand.loose % PACK) == (0, 0)
        packed = begins and operand.strides == strides_of(a.type.shape)
        found = Array(name, a.type, steps, self.first(steps, axis), alone, packed=packed)
        self.add_argument(
            found.name, Argument(self.declared(found), "result", (operand, a.type.dtype))
        )
        return found

    def steps(self, name: str, a: Atom, operand: Operand, axis: Along) -> Steps:
        """The strides of an array; what follows from numbers of rows or rounds
        is no number in the text.
        """
        shape = tuple(self.rows if i == axis else n for i, n in enumerate(a.type.shape))
        order, rounds, found = dense(operand.strides, shape), self.stacks.get(a), list[Step]()
        if order is None and axis is None and rounds is None:
            return operand.strides
        for i, step in enumerate(operand.strides):
            faster = () if order is None else order[order.index(i) + 1 :]
            if order is None or rounds in faster:
                found.append(step if step in (0, 1) else self.sized(f"{name}_step_{i}", step))
            else:
                found.append(self.step(shape, faster, axis))
        return tuple(found)

    def step(self, shape: Dims, faster: Dims, axis: Along) -> Step:
        """The elements along some axes of a shape, of which `axis` is that of rows."""
        inner = math.prod(shape[i] for i in faster if i != axis)
        if axis not in faster:
            return inner
        if "rows" not in self.arguments:
            self.add_argument("rows", Argument("int rows", "size", self.rows))
        return times("rows", inner)

    def sized(self, name: str, value: int) -> str:
        """A size that the kernel is handed."""
        name = self.label(name)
        self.add_argument(name, Argument(f"int {name}", "size", value))
        return name

    def first(self, steps: Steps, axis: Along) -> str:
        """Returns where the rows of a block begin in an array."""
        if axis is None or self.parts is None:
            return ""
        step, each = steps[axis], self.parts.each
        step = step * each if isinstance(step, int) else held(times(step, each))
        return f"(int)blockIdx.x * {step}" if step != 1 else "(int)blockIdx.x"

    def literal(self, literal: Literal) -> Number:
        """A number in the text, or else an argument."""
        dtype = widened(literal.type.dtype)
        value: Any = literal.value
        if literal.type.dtype != dtype:  # a half type's own number
            value = dtype.type(literal.type.dtype.type(value))
        if baked(value, dtype, frozenset()):
            return Number(number(value, dtype), literal.type)
        if literal.key not in self.constants:
            name = self.label("constant")
            self.add_argument(name, Argument(f"{HELD[dtype]} {name}", "constant", (value, dtype)))
            self.constants[literal.key] = Number(name, literal.type)
        return self.constants[literal.key]

    def temps(self, arrays: Sequence[Array], parts: Sequence[Parts], times: int) -> tuple[int, ...]:
        """Arguments for the arrays that the kernel has for itself, `times` of
        some; the bytes of each.
        """
        found = list[int]()
        for temp in arrays:
            operand, declaration = (
                whole_operand("temp", len(found), temp.type.shape),
                self.declared(temp),
            )
            self.add_argument(
                temp.name, Argument(declaration, "result", (operand, temp.type.dtype))
            )
            found.append(temp.type.nbytes * times)
        for each in parts:
            operand = whole_operand("temp", len(found), (each.nbytes,))
            declaration = f"{each.state} *{self.promise}{each.name}"
            self.add_argument(
                each.name, Argument(declaration, "result", (operand, np.dtype(np.uint8)))
            )
            found.append(each.nbytes)
        return tuple(found)
