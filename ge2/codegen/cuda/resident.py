"""Loops, branches and what is around them as one kernel, whose values stay in the shared memory of a block.

`resident_plan.py` says which loops over elements there are and where a barrier is; this is their text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, Final, final

import numpy as np

from ge2.base.dtypes import BOOL, COMPLEX, FLOATS, accumulator
from ge2.base.memory import Lifetime, lowest
from ge2.base.record import record
from ge2.codegen.c.text import Argument, Operand, Text
from ge2.codegen.c.text import whole as whole_operand
from ge2.codegen.cuda.chip import Chip
from ge2.codegen.cuda.file import codes
from ge2.codegen.cuda.kernel import CudaKernel, Fixed
from ge2.codegen.cuda.partial import Kernels
from ge2.codegen.cuda.places import label
from ge2.codegen.cuda.resident_grid import THREADS as OF_GRID
from ge2.codegen.cuda.resident_grid import TOGETHER, UNROLLED, Grid, Homes, blocks_for, widest
from ge2.codegen.cuda.resident_index import Index, Step, Steps, held, times
from ge2.codegen.cuda.resident_kept import OWN, THREADS, Kept, keeping, loading, place, product, writer
from ge2.codegen.cuda.resident_nodes import (
    Choice,
    E,
    Level,
    Loop,
    Node,
    Parts,
    Rounds,
    Statement,
    Unwritten,
)
from ge2.codegen.cuda.resident_plan import Plan
from ge2.codegen.cuda.resident_reads import multiplied, taken
from ge2.codegen.cuda.resident_rows import Along, Split, fewest, split
from ge2.codegen.cuda.resident_size import dense, stacks, threads
from ge2.codegen.cuda.resident_values import POINTS, Array, Made, Number, Reader, Value, declared, stored
from ge2.codegen.cuda.resident_waits import wait
from ge2.codegen.cuda.typed import HELD, STORED, SUFFIX, baked, expression, number
from ge2.codegen.values import held as widened
from ge2.ir import Atom, Dims, Eqn, Graph, Literal, Names, Var, write
from ge2.ir.text import atom_text, op_text
from ge2.ops.dot import DotGeneral
from ge2.ops.reduce import ArgReduce

TAKEN: Final = (
    "room", "thread", "THREADS", E, "k", "lane", "here", "n", "i", "sum", "column", "row", "rows",
    "mine", "begin", "spot", "chunk", "BLOCKS", "GRID",
)  # fmt: skip
BARRIER: Final = Text("__syncthreads();")
H200_BLOCKS: Final = 132  # where no GPU is at hand
MEETING: Final = Text("ge2_grid_wait();")
ROOM: Final = Text("extern __shared__ __align__(16) unsigned char room[];")


def resident_kernel(
    graph: Graph, rows: int, ins: Sequence[Operand], outs: Sequence[Operand], chip: Chip, grid: bool = False
) -> Kernels:
    """The kernel of a graph, given where its arrays are; blocks share its rows, if it has any, or all of them
    do the graph together, as a `grid`.

    Unwritten if there is an operation that no such kernel does.
    """
    if grid:
        return on_grid(graph, ins, outs, Grid(blocks_for(widest(graph), OF_GRID, chip.together), OF_GRID))
    parts = split(graph, rows, fewest(rows, chip.multiprocessors)) if rows else None
    graph = parts.graph if parts else graph
    spare = chip.most - shared_bytes(graph)
    return Writer(graph, ins, outs, spare, parts, rows).kernels()


def shared_bytes(graph: Graph) -> int:
    """Bytes of shared memory that the values of a graph take."""
    return tried(graph, None).kernels[0].shared


def fits_grid(graph: Graph, shared: int, live: int) -> bool:
    """Whether the values of a graph take so many bytes, of shared memory in each block and of the L2 cache.

    Unwritten if no grid does it.
    """
    found = tried(graph, Grid(blocks_for(widest(graph), OF_GRID, H200_BLOCKS), OF_GRID))
    return found.kernels[0].shared <= shared and sum(found.temps) <= live


def tried(graph: Graph, grid: Grid | None) -> Kernels:
    """The kernel of a graph whose arrays lie in C order."""
    ins = [whole_operand("in", i, v.type.shape) for i, v in enumerate(graph.inputs)]
    ins = [replace(each, value=v.type.weak) for each, v in zip(ins, graph.inputs, strict=True)]
    outs = [whole_operand("out", i, a.type.shape) for i, a in enumerate(graph.outputs)]
    return Writer(graph, ins, outs).kernels() if grid is None else on_grid(graph, ins, outs, grid)


def on_grid(graph: Graph, ins: Sequence[Operand], outs: Sequence[Operand], grid: Grid) -> Kernels:
    """The kernel of all blocks together: planned until it is known whose elements other threads read."""
    foreign = set[str]()
    while True:
        writer = Writer(graph, ins, outs, grid=grid, foreign=foreign)
        found = writer.kernels_of_grid()
        if found is not None:
            return found


@final
@record
class Early:
    """An element that a thread has before the round in which it is needed: read first, and then again."""

    name: str
    first: Text
    next: Text


@final
class Writer:
    """`spare`: bytes of shared memory for matrices. `parts` says which axes of arrays have `rows`."""

    def __init__(
        self, graph: Graph, ins: Sequence[Operand], outs: Sequence[Operand], spare: int = 0,
        parts: Split | None = None, rows: int = 0, grid: Grid | None = None, foreign: set[str] | None = None,
    ) -> None:  # fmt: skip
        self.graph, self.ins, self.outs = graph, ins, outs
        self.parts, self.rows, self.blocks = parts, rows, rows // parts.each if parts else 1
        self.grid = grid
        self.names = Names()
        self.text = write(graph, names=self.names)
        self.arguments: dict[str, Argument] = {}
        self.threads = grid.threads if grid else threads(graph)
        self.homes = Homes(grid, set() if foreign is None else foreign) if grid else None
        self.plan = Plan(
            self.threads, self.literal, lambda v: label(self.names[v]), self.keeps, parts is None,
            grid=grid, homes=self.homes,
        )  # fmt: skip
        self.constants: dict[object, Number] = {}
        self.reader = Reader(self.read, self.ahead)
        self.loop: Loop | None = None
        self.apart = False  # whether that is a loop over rows, whose places in stacks are those of the round
        self.round: Rounds | None = None  # the loop whose rounds are at hand, if they all come by
        self.early: dict[str, Early] = {}  # elements that are read a round before they are needed
        self.wrote: set[str] = set()  # arrays that the round at hand has written to so far
        self.kept: list[Kept] = []
        self.level = 0  # that is written
        self.spans: dict[str, tuple[int, int]] = {}  # in which levels each array is first and last needed
        self.looking = False
        self.looked: set[str] = set()  # arrays that some threads may still look at, to decide
        self.registers, self.spare = OWN if spare else 0, spare
        self.stacks = stacks(graph)
        for taken_ in TAKEN:
            self.plan.label(taken_)

    def kernels(self) -> Kernels:
        """The kernel."""
        return self.kernels_of(self.planned())

    def kernels_of_grid(self) -> Kernels | None:
        """The kernel of a grid; None if more arrays are read by other threads than was known."""
        nodes = self.planned()
        assert self.homes is not None
        if self.homes.late:
            return None
        wait(nodes, self.home)
        return self.kernels_of(nodes)

    def planned(self) -> list[Node]:
        axes = (self.parts.inputs, self.parts.outputs) if self.parts else ((), ())
        given = [self.given(v, o, a) for v, o, a in zip_longest(self.graph.inputs, self.ins, axes[0])]
        results = [self.result(y, o, a) for y, o, a in zip_longest(self.graph.outputs, self.outs, axes[1])]
        ends = [*zip(self.graph.outputs, results, strict=True)]
        return self.plan.graph(self.graph, given, ends).nodes

    def kernels_of(self, nodes: Sequence[Node]) -> Kernels:
        temps = self.temps()
        matrices = [line for k in self.kept for line in loading(k, self.reader)]
        body = self.nodes(nodes)
        while body and body[-1] == BARRIER:
            body.pop()
        rooms, nbytes = self.rooms()
        head = [*rooms, Text("const int thread = threadIdx.x;"), *self.own(), *matrices]
        kind, blocks = ("grid kernel", self.grid.blocks) if self.grid else ("resident kernel", self.blocks)
        kernel = CudaKernel(
            kind, self.text, tuple(self.arguments.values()), (*head, *body), self.threads,
            (blocks,), self.fixed(), nbytes, 1, tuple(self.reader.helpers), together=self.grid is not None,
        )  # fmt: skip
        return Kernels((kernel,), temps)

    def fixed(self) -> tuple[Fixed, ...]:
        of_block = Fixed("THREADS", self.threads, "of the block, which does all of the rounds")
        if self.grid is None:
            return (of_block,)
        return (
            Fixed("THREADS", self.threads, "of a block"),
            Fixed("BLOCKS", self.grid.blocks, "all on the GPU at once"),
            Fixed("GRID", self.grid.size, "threads in all"),
        )

    def temps(self) -> tuple[int, ...]:
        """Arguments for the arrays that the kernel has for itself; the bytes of each."""
        found = list[int]()
        for temp in self.plan.temps:
            operand, declaration = whole_operand("temp", len(found), temp.type.shape), declared(temp, False)
            self.argue(temp.name, Argument(declaration, "result", (operand, temp.type.dtype)))
            found.append(temp.type.nbytes * self.blocks)
        for parts in self.plan.parts:
            operand = whole_operand("temp", len(found), (parts.nbytes,))
            declaration = f"{parts.state} *__restrict__ {parts.name}"
            self.argue(parts.name, Argument(declaration, "result", (operand, np.dtype(np.uint8))))
            found.append(parts.nbytes)
        return tuple(found)

    def own(self) -> list[Text]:
        """What a thread of a grid has of its own."""
        if self.grid is None or self.homes is None:
            return []
        lines = [Text("const int mine = (int)blockIdx.x * THREADS + thread;", "of all threads")]
        for x in self.homes.own.values():
            kind, each = HELD[widened(x.type.dtype)], self.grid.each(x.type.size)
            lines.append(Text(f"{kind} {x.name}[{each}];", "element mine + i * GRID"))
        return [*lines, *(Text(f"int {parts.turn} = 0;") for parts in self.plan.parts)]

    def keeps(self, eqn: Eqn, xs: Sequence[Value]) -> Kept | None:
        """How the matrix of a product is kept, if there is room for it."""
        if self.threads != THREADS or not self.registers:
            return None
        found = keeping(self.plan.label("kept"), eqn, xs, self.registers, self.spare)
        if found is not None:
            self.registers -= found.own
            self.spare -= found.nbytes
            self.kept.append(found)
        return found

    # -- parameters

    def argue(self, name: str, argument: Argument) -> None:
        assert name not in self.arguments, f"two arguments {name}"
        self.arguments[name] = argument

    def given(self, v: Var, operand: Operand, axis: Along) -> Value:
        name, dtype = self.plan.label(label(self.names[v])), v.type.dtype
        if operand.value:
            self.argue(name, Argument(f"{HELD[dtype]} {name}", "value", (operand, dtype)))
            return Number(name, v.type)
        steps = self.steps(name, v, operand, axis)
        found = Array(name, v.type, steps, self.first(steps, axis), given=True)
        self.argue(name, Argument(declared(found, True), "array", (operand, dtype)))
        return found

    def result(self, a: Any, operand: Operand, axis: Along) -> Array:
        name = self.names[a] if isinstance(a, Var) else "result"
        alone = self.parts is not None and axis is None
        name = self.plan.label(f"{label(name)}_out")
        steps = self.steps(name, a, operand, axis)
        found = Array(name, a.type, steps, self.first(steps, axis), alone)
        self.argue(found.name, Argument(declared(found, False), "result", (operand, a.type.dtype)))
        return found

    def steps(self, name: str, a: Atom, operand: Operand, axis: Along) -> Steps:
        """The strides of an array; what follows from numbers of rows or rounds is no number in the text."""
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
            self.argue("rows", Argument("int rows", "size", self.rows))
        return times("rows", inner)

    def sized(self, name: str, value: int) -> str:
        """A size that the kernel is handed."""
        name = self.plan.label(name)
        self.argue(name, Argument(f"int {name}", "size", value))
        return name

    def first(self, steps: Steps, axis: Along) -> str:
        """Where the rows of a block begin in an array."""
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
            name = self.plan.label("constant")
            self.argue(name, Argument(f"{HELD[dtype]} {name}", "constant", (value, dtype)))
            self.constants[literal.key] = Number(name, literal.type)
        return self.constants[literal.key]

    def rooms(self) -> tuple[list[Text], int]:
        """Where each array lies in shared memory, and how many bytes they have in all."""
        lines, arrays = [], [(a, n) for a, n in self.plan.shared if a.name in self.spans]
        lives = [Lifetime(n * a.type.dtype.itemsize, *self.spans[a.name]) for a, n in arrays]
        found = lowest(lives, range(len(lives)), lambda i, j: lives[i].meets(lives[j]), 16)
        at = found.nbytes
        for (array, count), first in zip(arrays, found.offsets, strict=True):
            kind, name = STORED[array.type.dtype], array.name
            lines.append(Text(f"{kind} *const {name} = ({kind} *)(room + {first});", f"{count}"))
        for k in self.kept:
            if k.rest:
                lines.append(
                    Text(f"ge2_four *const {k.name}_rest = (ge2_four *)(room + {at});", f"{k.rest} a thread")
                )
                at += k.nbytes
        return [ROOM, *lines] if lines else [], at

    # -- nodes

    def node(self, node: Node) -> list[Text]:
        if isinstance(node, Level):
            self.level += 1
            self.keep_looked()
            meeting = [MEETING] if node.wait else []
            return [*meeting, *(line for loop in node.loops for line in self.looped(loop)), BARRIER]
        if isinstance(node, Rounds):
            return self.rounds(node)
        return self.choice(node)

    def nodes(self, nodes: Sequence[Node]) -> list[Text]:
        found = list[Text]()
        for node in nodes:
            lines = self.node(node)
            if found[-1:] == [BARRIER] and lines[0] == MEETING:
                found.pop()
            found += lines
        return found

    def rounds(self, node: Rounds) -> list[Text]:
        start = [Text(f"int {node.side} = 0;", "which of two places the carry has")]
        turns = [*moved(node, self.grid), Text(f"{node.side} ^= 1;")]
        if node.decided is None:
            self.argue(node.count, Argument(f"int {node.count}", "size", node.length))
        around, self.round = self.round, node if node.decided is None else None
        before, self.early = self.early, {}
        wrote, self.wrote = self.wrote, set()
        begin = self.level
        test = self.nodes(node.test)
        if node.decided is not None:
            test.append(Text(f"if (!({self.look(node.decided)})) break;"))
        body = (*self.nodes(node.body), *turns)
        if self.grid and not any(re.search(rf"\b{node.side}\b", code) for code in codes((*test, *body[:-1]))):
            start, body = [], body[:-1]
        first = [each.first for each in self.early.values()]
        self.round, self.early, self.wrote = around, before, self.wrote | wrote
        for name, (there, last) in self.spans.items():
            if there <= begin < last:  # it is needed in each round
                self.spans[name] = there, self.level + 1
        if node.decided is None:
            t, n = node.label, node.count
            head = f"{t} = {n} - 1; {t} >= 0; {t}--" if node.reverse else f"{t} = 0; {t} < {n}; {t}++"
            loop = Text(f"for (int {head})", body=body, pragma="#pragma unroll 1")
            return [*start, *first, loop]
        # a barrier: whoever still looks at what decided is not overtaken
        self.looked = set()
        return [*start, Text("for (;;)", body=(*test, *body)), BARRIER]

    def look(self, x: Value) -> str:
        """A number that all threads look at to decide: while some do, others are in the next level."""
        self.level += 1
        self.looking = True
        text = self.reader.element(x, Index((), "0"))
        self.looking = False
        self.level -= 1
        return text

    def keep_looked(self) -> None:
        """What decided has its place in the level at hand, the first of a branch or of a round."""
        for name in self.looked:
            first, last = self.spans[name]
            self.spans[name] = first, max(last, self.level)
        self.looked = set()

    def touch(self, x: Array) -> Array:
        """Notes that an array is needed in the level at hand."""
        if x.shared:
            first, last = self.spans.get(x.name, (self.level, self.level))
            self.spans[x.name] = min(first, self.level), max(last, self.level)
            if self.looking:
                self.looked.add(x.name)
        return x

    def choice(self, node: Choice) -> list[Text]:
        dtype = node.index.type.dtype
        text = self.look(node.index)
        last = len(node.branches) - 1
        high = f"{held(text)} > {last} ? {last} : (int){held(text)}"
        low = f"{held(text)} < 0 ? 0 : " if dtype.kind == "i" else ""
        chosen = text if dtype == BOOL else f"{low}{high}"
        lines = [Text(f"const int {node.label} = {chosen};")]
        around, self.round = self.round, None
        looked = self.looked
        for n, branch in enumerate(node.branches):
            test = f"if ({node.label} == {n})" if n < last else ""
            self.looked = looked  # whichever branch is taken begins beside those who still look
            body = self.nodes(branch)
            if self.looked or not body:
                body.append(BARRIER)
            lines.append(Text(f"{'else ' if n else ''}{test}".strip(), body=tuple(body)))
        self.looked, self.round = set(), around
        return chain(lines)

    # -- loops over elements

    def looped(self, loop: Loop) -> list[Text]:
        self.loop = loop
        size, team = loop.key.size, loop.key.team
        known = set(self.early)
        if loop.key.wide:
            return self.shared_out(loop)
        if loop.key.product is not None:
            return self.by_columns(loop)
        if team == 1:
            body = [line for s in loop.statements for line in (*self.statement(s), *self.writes(s))]
            return [self.over(size, [*body, *self.next(known)])]
        lines = [line for s in loop.statements for line in self.statement(s)]
        writes = [line for s in loop.statements for line in self.writes(s)]
        return self.by_teams(size, team, lines, writes)

    def by_columns(self, loop: Loop) -> list[Text]:
        """A loop over rows, in which teams have columns of a matrix that they keep."""
        first, *rest = loop.statements
        k, known = first.kept, set(self.early)
        row = f" + row * {k.sums}" if k.rows > 1 else ""
        operand = f"{self.address(k.other)}{row}"
        self.apart = k.rows > 1
        lines = [Text(f"const int {E} = {place(k, 'row')};"), *product(k, first.y.name, operand)]
        lines.append(
            Text(f"const float {first.y.name} = ge2_kept_sum<{k.slices}>({first.y.name}_sums);",
                 self.note(k.eqn))
        )  # fmt: skip
        lines += [line for s in rest for line in self.statement(s)]
        writes = [line for s in loop.statements for line in self.writes(s)]
        if writes:
            lines.append(Text(f"if ({writer(k)})", body=tuple(writes)))
        self.apart = False
        body = (*lines, *self.next(known))
        head = f"for (int row = 0; row < {k.rows}; row++)" if k.rows > 1 else ""
        return [Text(head, body=body)]

    def address(self, x: Array | Made) -> str:
        """Where an array in shared memory begins."""
        home = next(h for h in x.homes if h.shared) if isinstance(x, Made) else x
        self.touch(home)
        return f"{home.name} + {home.start}" if home.start else home.name

    # -- elements that are read a round before they are needed

    def ahead(self, x: Array, at: Index) -> str:
        """An element; that of a stack, at the place of a thread, was read while the last round went on."""
        spot, node = self.spot(), self.round
        self.touch(x)
        there = node is not None and x.stack is not None and x.stack[1] == node.label
        changes = x.name in self.wrote or (self.grid is not None and not x.given)
        if node is None or not there or not spot or at.flat != E or changes:
            return x.element(at, self.apart)
        name = f"{id(self.loop)} {x.element(at)}"  # another loop reads it when this one has the next
        if name not in self.early:
            self.early[name] = self.earlier(x, node, at.shape, spot)
        return self.early[name].name

    def spot(self) -> str:
        """The place of a thread's only element in the loop at hand; "" if it has more, or shares it."""
        key = None if self.loop is None else self.loop.key
        if key is None or key.wide:
            return ""
        if key.product is not None:
            k = self.loop.statements[0].kept  # type: ignore[union-attr]
            return place(k, "") if k.rows == 1 else ""
        return "thread" if key.team == 1 and key.size <= self.threads else ""

    def earlier(self, x: Array, node: Rounds, shape: Any, spot: str) -> Early:
        assert x.stack is not None and self.loop is not None
        stack, t = x.stack
        name = self.plan.label(f"{x.name}_ahead")
        first, after = (f"{node.count} - 1", f"{t} - 1") if node.reverse else ("0", f"{t} + 1")
        size = self.loop.key.size
        inside = f"{spot} < {size} ? " if spot == "thread" and size < self.threads else ""
        begin = f"{inside}{stack.part(first).element(Index(shape, spot))}{' : 0' if inside else ''}"
        more = f"{t} > 0" if node.reverse else f"{t} + 1 < {node.count}"
        later = stack.part(after).element(Index(shape, E))
        kind = STORED[x.type.dtype]
        if inside and x.type.dtype in COMPLEX:
            begin = begin.replace(" : 0", f" : {kind}{{0, 0}}")
        return Early(
            name,
            Text(f"{kind} {name} = {begin};", "read a round ahead"),
            Text(f"if ({more}) {name} = {later};"),
        )

    def next(self, known: set[str]) -> list[Text]:
        """The lines that read elements of the next round, of those that the loop at hand reads."""
        return [each.next for name, each in self.early.items() if name not in known]

    def over(self, size: int, body: Sequence[Text]) -> Text:
        """A loop in which each thread has elements of its own."""
        if size <= self.threads:
            place = Text(f"const int {E} = thread;")
            guard = f"if (thread < {size})" if size < self.threads else ""
            return Text(guard, body=(place, *body))
        return Text(f"for (int {E} = thread; {E} < {size}; {E} += THREADS)", body=tuple(body))

    def by_teams(self, size: int, team: int, lines: list[Text], writes: list[Text]) -> list[Text]:
        """A loop in which threads side by side have an element together; the first of them writes it."""
        assert self.loop is not None
        wide = self.grid is not None and self.loop.key.wide
        at_once = (self.grid.size if self.grid and wide else self.threads) // team
        thread = "mine" if wide else "thread"
        lane, place = f"const int lane = thread % {team};", f"{thread} / {team}" if team > 1 else thread
        if size > at_once:
            place = f"begin + {place}"
        exact = size % at_once == 0
        inside = [] if exact else [f"{place} < {size}"]
        clamped = place if exact else f"{place} < {size} ? {place} : {size - 1}"
        guard = " && ".join([*(["lane == 0"] if team > 1 else []), *inside])
        write = [Text(f"if ({guard})" if guard else "", body=tuple(writes))] if writes else []
        lanes = [Text(lane)] if team > 1 else []
        body = (*lanes, Text(f"const int {E} = {clamped};"), *lines, *write)
        if size <= at_once:
            return [Text("", body=body)]
        return [Text(f"for (int begin = 0; begin < {size}; begin += {at_once})", body=body)]

    # -- loops of a grid

    def shared_out(self, loop: Loop) -> list[Text]:
        """A loop of which each thread of the grid has a part."""
        key = loop.key
        if key.stage == "whole":
            return [Text("", body=tuple(self.whole(s))) for s in loop.statements]
        if key.spread:
            return [Text("", body=tuple(self.spread(loop)))]
        if key.stage == "chunk":
            return [line for s in loop.statements for line in self.chunk(s)]
        lines = [line for s in loop.statements for line in self.statement(s)]
        writes = [line for s in loop.statements for line in self.writes(s)]
        return self.by_teams(key.size, key.team, lines, writes)

    def chunk(self, s: Statement) -> list[Text]:
        """The parts of a fold into several results."""
        p, key = s.parts, s.key
        assert p is not None and key is not None
        write = Text(f"{p.name}[{p.start} + {E}] = {state_name(p)};")
        loop = self.by_teams(key.size, key.team, self.statement(s), [write])
        return [Text(f"{p.turn} ^= 1;"), *loop]

    def spread(self, loop: Loop) -> list[Text]:
        """A loop over a thread's own elements. What goes to memory is written when all was read."""
        for s in loop.statements:
            s.y.name = s.y.name or self.plan.label("copied")
        lines, late, kept = list[Text](), list[Text](), list[Text]()
        count = self.at_once(loop.key.size)
        for s in loop.statements:
            lines += [*self.statement(s), *self.writes(s, lambda home: home.mine)]
            if any(not home.mine for home in s.y.homes):
                name = self.plan.label(f"{s.y.name}_late")
                kept.append(Text(f"{HELD[widened(s.y.type.dtype)]} {name}[{count}];"))
                lines.append(Text(f"{name}[i] = {s.y.name};"))
                late += self.writes(s, lambda home: not home.mine, f"{name}[i]")
        return [*kept, *self.each(loop.key.size, lines, late)]

    def at_once(self, size: int) -> int:
        """Of how many elements a thread's reads are under way together."""
        assert self.grid is not None
        each = self.grid.each(size)
        return each if each <= UNROLLED else TOGETHER

    def each(self, size: int, *bodies: list[Text]) -> list[Text]:
        """Loops over the elements of a thread of the grid, all of one body, then all of the next."""
        assert self.grid is not None
        count, each = self.at_once(size), self.grid.each(size)
        first, full = ("mine", size // self.grid.size) if each <= UNROLLED else ("begin", 0)
        found = []
        for body in bodies:
            place = Text(f"const int {E} = {first}{' + i * GRID' if count > 1 else ''};")
            guard = f"i < {full} || {E} < {size}" if full else f"{E} < {size}"
            inside = (place, *([Text(f"if ({guard})", body=tuple(body))] if full < each else body))
            if body:
                found.append(Text(f"for (int i = 0; i < {count}; i++)", body=inside, pragma="#pragma unroll"))
        if each <= UNROLLED:
            return found
        head = f"for (int begin = mine; begin < {size}; begin += {count} * GRID)"
        return [Text(head, body=tuple(found), pragma="#pragma unroll 1")]

    def whole(self, s: Statement) -> list[Text]:
        """A fold of all elements of a value into one: the part of a block, of those that its threads have."""
        assert s.eqn is not None and s.parts is not None
        op: Any = s.eqn.op
        dtype, name = widened(s.xs[0].type.dtype), state_name(s.parts)
        merge = self.merging(op, dtype)
        value = self.lifted(s.eqn, s.xs[0], Index(s.xs[0].type.shape, E), E)
        taken_in = Text(f"{name} = {merge(name, value)};", self.note(s.eqn))
        p, held_as = s.parts, s.parts.state
        of_two = f"[]({held_as} mine, {held_as} other) {{ return {merge('mine', 'other')}; }}"
        return [
            Text(f"{held_as} {name} = {start_of(op, dtype)};"),
            *self.each(s.xs[0].type.size, [taken_in]),
            Text(f"{p.turn} ^= 1;"),
            Text(f"{name} = ge2_team_fold<THREADS, THREADS>({name}, {of_two});"),
            Text(f"if (thread == 0) {p.name}[{p.start} + blockIdx.x] = {name};"),
        ]

    def home(self, x: Made, own: bool, loop: Loop) -> Array:
        """Where a result is read by another loop than its own."""
        if not x.wide:
            return next(h for h in x.homes if h.shared)
        own = own and loop.key.spread
        mine = [h for h in x.homes if h.mine] if own else []
        return next(h for h in (*mine, *x.homes) if own or not h.mine)

    def statement(self, s: Statement) -> list[Text]:
        at = Index(s.y.type.shape, E)
        if s.eqn is None:
            value = self.reader.element(s.xs[0], at) if s.y.name else ""
            return [Text(f"const {HELD[widened(s.y.type.dtype)]} {s.y.name} = {value};")] if value else []
        comment = self.note(s.eqn)
        t = HELD[widened(s.y.type.dtype)]
        if isinstance(s.eqn.op, POINTS):
            code = self.reader.computed(s.eqn, s.xs, at)
            return [Text(f"const {t} {s.y.name} = {code};", comment)]
        if isinstance(s.eqn.op, DotGeneral):
            return self.product(s, s.eqn, t, comment)
        return self.fold(s, s.eqn, t, comment)

    def writes(
        self, s: Statement, which: Callable[[Array], bool] = lambda _: True, value: str = ""
    ) -> list[Text]:
        found = []
        at, of_all = Index(s.y.type.shape, E), self.grid is not None and not self.widely()
        for home in map(self.touch, filter(which, s.y.homes)):
            self.wrote.add(home.name)
            text = value or s.y.name or self.reader.element(s.xs[0], at)
            guard = "if (blockIdx.x == 0) " if home.alone or (of_all and not home.shared) else ""
            text = text if home.mine else stored(text, s.y.type.dtype)
            found.append(Text(f"{guard}{home.element(at, self.apart)} = {text};"))
        return found

    def widely(self) -> bool:
        """Whether the loop at hand is shared out among the threads of a grid."""
        return self.loop is not None and self.loop.key.wide

    def read(self, x: Made, at: Index) -> str:
        if x.loop is self.loop and at.flat == E:
            return x.name
        if self.grid is not None and self.loop is not None:
            return self.reader.element(self.home(x, at.flat == E, self.loop), at)
        home = next(h for h in x.homes if not h.alone)
        return self.reader.element(home, at)

    # -- folds and products

    def fold(self, s: Statement, eqn: Eqn, t: str, comment: str) -> list[Text]:
        op: Any = eqn.op
        dtype, name = widened(eqn.inputs[0].type.dtype), f"{s.y.name}_state"
        indexed = isinstance(op, ArgReduce)
        held_as = f"ge2_indexed_{SUFFIX[dtype]}" if indexed else HELD[dtype]
        merge, p, chunk = self.merging(op, dtype), s.parts, s.key is not None and s.key.stage == "chunk"
        count = eqn.inputs[0].type.size // eqn.outs[0].type.size
        before = list[Text]()
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
        state = self.gathered(name, held_as, start_of(op, dtype), end, added, comment, begin)
        found = self.merged(name, held_as, merge)
        if chunk:
            merged = [] if found == name else [Text(f"{name} = {found};")]
            return [*before, *state, *merged]
        result = (
            f"{found}.index" if indexed else found if dtype == widened(s.y.type.dtype) else f"({t}){found}"
        )
        return [*state, Text(f"const {t} {s.y.name} = {result};")]

    def lifted(self, eqn: Eqn, x: Value, at: Index, place: str) -> str:
        """An element as a fold takes it in; `place` is its number among those that become one."""
        op: Any = eqn.op
        value, dtype = self.reader.element(x, at), widened(x.type.dtype)
        if isinstance(eqn.op, ArgReduce):
            return expression(op.lowering.lift, [value, place], dtype, dtype)
        return value

    def merging(self, op: Any, dtype: np.dtype) -> Callable[[str, str], str]:
        return lambda mine, other: expression(op.lowering.merge, [mine, other], dtype, dtype)

    def product(self, s: Statement, eqn: Eqn, t: str, comment: str) -> list[Text]:
        a, b = s.xs
        op: Any = eqn.op
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
        state = self.gathered(name, HELD[wide], zero, count, added, comment)

        def merge(mine: str, other: str) -> str:
            return f"{mine} || {other}" if wide == BOOL else f"ge2_add_{short}({mine}, {other})"

        found = self.merged(name, HELD[wide], merge)
        out = widened(s.y.type.dtype)
        return [*state, Text(f"const {t} {s.y.name} = {found if out == wide else f'({t}){found}'};")]

    def gathered(
        self, name: str, held_as: str, start: str, count: int | str, added: str, comment: str, begin: str = ""
    ) -> list[Text]:
        """What a thread gathers of `count` elements k, or those from `begin` on."""
        assert self.loop is not None
        team = self.loop.key.team
        first, step = ("lane", f"k += {team}") if team > 1 else ("0", "k++")
        first = begin if begin and first == "0" else f"{begin} + {first}" if begin else first
        loop = Text(f"for (int k = {first}; k < {count}; {step})", body=(Text(added, comment),))
        return [Text(f"{held_as} {name} = {start};"), loop]

    def merged(self, name: str, held_as: str, merge: Callable[[str, str], str]) -> str:
        """What the threads of a team gathered, as one state."""
        assert self.loop is not None
        team = self.loop.key.team
        if team == 1:
            return name
        of_two = f"[]({held_as} mine, {held_as} other) {{ return {merge('mine', 'other')}; }}"
        return f"ge2_team_fold<{team}, THREADS>({name}, {of_two})"

    def note(self, eqn: Eqn) -> str:
        """The equation, as the graph above the kernel has it."""
        inputs = "".join(" " + atom_text(a, self.names) for a in eqn.inputs)
        return f"{self.names[eqn.outs[0]]} = {op_text(eqn.op)}{inputs}"


def start_of(op: Any, dtype: np.dtype) -> str:
    """The state of a reduction of nothing at all."""
    text = op.lowering.start
    if "(" in text:
        return expression(text, [], dtype, dtype)
    return {"false": "false", "true": "true"}.get(text) or number(int(text), dtype)


def state_name(p: Parts) -> str:
    return f"{p.name}_state"


def chunked(p: Parts) -> list[Text]:
    """Which result a part is of, and which part of it."""
    if p.size == 1:
        return [Text(f"const int spot = 0, chunk = {E};")]
    return [Text(f"const int spot = {E} % {p.size}, chunk = {E} / {p.size};")]


def bounds(p: Parts, count: int) -> tuple[str, str]:
    """Where a part begins and ends."""
    each = -(-count // p.count)
    end = f"(chunk + 1) * {each}"
    exact = count % p.count == 0
    return f"chunk * {each}", end if exact else f"({end} < {count} ? {end} : {count})"


def moved(node: Rounds, grid: Grid | None) -> list[Text]:
    """What of a carry is in registers goes to its other place."""
    found = []
    for _, now, then in node.pairs:
        if now.mine and grid is not None:
            move = Text(f"{now.name}[i] = {then.name}[i];")
            head = f"for (int i = 0; i < {grid.each(now.type.size)}; i++)"
            found.append(Text(head, body=(move,), pragma="#pragma unroll"))
    return found


def chain(lines: Sequence[Text]) -> list[Text]:
    """The lines in braces: what they declare is theirs."""
    return [Text("", body=tuple(lines))] if len(lines) > 1 else list(lines)


__all__ = ["Unwritten", "resident_kernel", "shared_bytes"]
