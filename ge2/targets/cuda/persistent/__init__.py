"""Persistent kernels: loops and branches whose values stay in registers and shared memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Final, final

from ge2.base.arrays import BOOL
from ge2.base.arrays import accumulator as widened
from ge2.base.record import record
from ge2.codegen.text import Argument, Operand, Text, guard
from ge2.codegen.text import whole as whole_operand
from ge2.ir import Eqn, Graph, Names, write
from ge2.ir.text import eqn_text
from ge2.ops.dot import DotGeneral
from ge2.ops.graphs.region import Resident
from ge2.program.timeline import Lifetime, lowest
from ge2.targets.cuda.emit import CudaKernel, Fixed
from ge2.targets.cuda.emit.special_reductions import Kernels
from ge2.targets.cuda.emit.words import HELD, STORED, label
from ge2.targets.cuda.emit.words import Stage as Reduction
from ge2.targets.cuda.limits import Chip
from ge2.targets.cuda.persistent import reads as ahead
from ge2.targets.cuda.persistent.grid import Grid, Homes, Sharing, by_teams, moved, wait
from ge2.targets.cuda.persistent.matrices import (
    Kept,
    Spread,
    keeping,
    loading,
    place,
    product,
    spread,
    writer,
)
from ge2.targets.cuda.persistent.nodes import (
    BARRIER,
    MEETING,
    Barrier,
    Barriers,
    Branch,
    Branches,
    Choice,
    Columns,
    E,
    Elements,
    Iterations,
    Level,
    Loop,
    Node,
    PersistentView,
    Rounds,
    Stage,
    Statement,
    barriers_of,
    named,
    threads,
)
from ge2.targets.cuda.persistent.plan import Plan
from ge2.targets.cuda.persistent.reads import Folds, Handed
from ge2.targets.cuda.persistent.rows import Split, fewest, split
from ge2.targets.cuda.persistent.values import (
    POINTS,
    Array,
    Index,
    Made,
    Reader,
    Value,
    held,
    stored,
)

Operands = tuple[Operand, ...]
TAKEN: Final = (
    "room", "thread", "THREADS", E, "k", "lane", "here", "n", "i", "sum", "column", "row", "rows",
    "mine", "begin", "spot", "chunk", "BLOCKS", "GRID",
)  # fmt: skip


@final
@record
class Trial:
    """A persistent kernel for arrays in C order, which tells how much memory it takes.

    `keeps`: threads of its block would keep a matrix, if they had room for it. `barriers`: those
    that it passes, where they are known.
    """

    kernels: Kernels
    keeps: bool = False
    barriers: Barriers | None = None

    @staticmethod
    def in_block(graph: Graph, chip: Chip) -> Trial:
        """That of one block. Unwritten if no block does the graph."""
        writer = Writer(graph, *in_order(graph), chip)
        return Trial(writer.kernels(), writer.asked, writer.barriers)

    @staticmethod
    def on_grid(graph: Graph, chip: Chip) -> Trial:
        """That of all blocks. Unwritten if no grid does the graph, or a library does it better."""
        writer, kernels = on_grid(graph, *in_order(graph), chip, Grid.of(graph, chip, True))
        return Trial(kernels, barriers=writer.barriers)

    @property
    def shared(self) -> int:
        """Bytes of shared memory that the values take in a block."""
        return self.kernels.kernels[0].shared


def resident_kernel(
    op: Resident, ins: Operands, outs: Operands, chip: Chip, trial: Trial | None = None
) -> Kernels:
    """The kernel of steps, given where its arrays are; `trial`: for others, if it is known.

    Unwritten if there is an operation that no such kernel does.
    """
    graph, parts = op.graph, None
    if op.rows:
        tries = chip.tuning.persistent.tries
        parts = split(graph, op.rows, fewest(op.rows, chip.multiprocessors), tries)
        graph, trial = parts.graph, None
    elif trial is not None and not trial.keeps and in_order(graph) == (ins, outs):
        return trial.kernels
    if op.grid:
        return on_grid(graph, ins, outs, chip, Grid.of(graph, chip))[1]
    spare = chip.most - (trial or Trial.in_block(graph, chip)).shared
    return Writer(graph, ins, outs, chip, spare, parts, op.rows).kernels()


def in_order(graph: Graph) -> tuple[Operands, Operands]:
    """Inputs and results of a graph as arrays in C order."""
    ins = [whole_operand("in", i, v.type.shape) for i, v in enumerate(graph.inputs)]
    ins = [replace(each, value=v.type.weak) for each, v in zip(ins, graph.inputs, strict=True)]
    outs = [whole_operand("out", i, a.type.shape) for i, a in enumerate(graph.outputs)]
    return tuple(ins), tuple(outs)


def on_grid(
    graph: Graph, ins: Operands, outs: Operands, chip: Chip, grid: Grid
) -> tuple[Writer, Kernels]:
    """The kernel of all blocks together, and who wrote it: planned until it is known whose elements other threads
    read, and how blocks share those of products.
    """
    foreign = set[str]()
    while True:
        writer = Writer(graph, ins, outs, chip, grid=grid, foreign=foreign)
        if (found := writer.kernels_of_grid()) is not None:
            return writer, found


@final
class Writer:
    """`spare`: bytes of shared memory for matrices.

    `parts` says which axes of arrays have `rows`.
    """

    def __init__(
        self, graph: Graph, ins: Operands, outs: Operands, chip: Chip,
        spare: int = 0, parts: Split | None = None, rows: int = 0, grid: Grid | None = None,
        foreign: set[str] | None = None,
    ) -> None:  # fmt: skip
        self.graph, self.ins, self.outs = graph, ins, outs
        self.parts, self.rows, self.blocks = parts, rows, rows // parts.each if parts else 1
        self.grid, self.tuning = grid, chip.tuning.persistent
        self.names = Names()
        self.text = write(graph, names=self.names)
        self.threads = grid.threads if grid else threads(graph, self.tuning)
        known = set[str]() if foreign is None else foreign
        self.homes = Homes(grid, known, grid.tuning.words) if grid else None
        self.handed = Handed(
            graph, self.names, lambda name: self.plan.label(name), parts, rows, grid is not None
        )
        self.plan = Plan(
            self.threads, self.tuning, self.handed.literal, lambda v: label(self.names[v]), self.keeps, parts is None,
            grid=grid, homes=self.homes,
        )  # fmt: skip
        self.reader = Reader(self.read, partial(ahead.element, self))
        self.folds = Folds(self.reader)
        self.sharing = Sharing(self, grid) if grid else None
        self.loop: Loop | None = None
        # whether that is a loop over rows, whose places in stacks are those of the round
        self.apart = False
        self.round: Rounds | None = None  # the loop that is written, if in rounds
        # elements that are read a round before they are needed
        self.early: dict[str, ahead.Early] = {}
        self.wrote: set[str] = set()  # arrays that the current round has written to so far
        self.kept: list[Kept] = []
        self.spread_out: list[Spread] = []  # kept by the blocks of a grid
        self.level = 0  # that is written
        # in which levels each array is first and last needed
        self.spans: dict[str, tuple[int, int]] = {}
        self.looking = False
        self.looked: set[str] = set()  # arrays that some threads may still look at, to decide
        self.registers, self.spare = self.tuning.pieces if spare else 0, spare
        self.asked = False  # whether a matrix could be kept, given room
        self.barriers: Barriers | None = None  # of threads, in all rounds
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
        given = [
            self.handed.given(v, o, a)
            for v, o, a in zip_longest(self.graph.inputs, self.ins, axes[0])
        ]
        results = [
            self.handed.result(y, o, a)
            for y, o, a in zip_longest(self.graph.outputs, self.outs, axes[1])
        ]
        ends = [*zip(self.graph.outputs, results, strict=True)]
        return self.plan.graph(self.graph, given, ends).nodes

    def kernels_of(self, nodes: Sequence[Node]) -> Kernels:
        temps = self.handed.temps(self.plan.temps, self.plan.parts, self.blocks)
        tiles = [*(self.grid.tiles.values() if self.grid else ())]
        matrices = list[Stage]()
        matrices += [line for t in tiles for line in (*t.head(), t.own(self.threads))]
        matrices += [line for k in self.kept for line in loading(k, self.reader)]
        matrices += [line for k in self.spread_out for line in k.loading(self.reader)]
        self.barriers = barriers_of(nodes)
        body = self.nodes(nodes)
        while body and body[-1] == BARRIER:
            body.pop()
        rooms, nbytes = self.rooms()
        own = self.own()
        mine = self.grid is not None and named("mine", (*own, *matrices, *body))
        view = PersistentView(tuple(rooms), mine, tuple(own), tuple(matrices), tuple(body))
        kind, blocks = (
            ("grid kernel", self.grid.blocks) if self.grid else ("resident kernel", self.blocks)
        )
        kernel = CudaKernel(
            kind, self.text, tuple(self.handed.arguments.values()), (), self.threads,
            (blocks,), self.fixed(), nbytes, 1, tuple(self.reader.helpers), together=self.grid is not None,
            template="cuda/persistent.cu.jinja", view=view,
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

    def own(self) -> list[Text]:
        """Returns what a thread of a grid has of its own."""
        if self.grid is None or self.homes is None:
            return []
        lines = list[Text]()
        for x in self.homes.own.values():
            kind, each = HELD[widened(x.type.dtype)], self.grid.each(x.type.size)
            lines.append(Text(f"{kind} {x.name}[{each}];", "element mine + i * GRID"))
        return [*lines, *(Text(f"int {parts.turn} = 0;") for parts in self.plan.parts)]

    def keeps(self, eqn: Eqn, xs: Sequence[Value]) -> Kept | Spread | None:
        """Returns how the matrix of a product is kept, if there is room for it."""
        if self.grid is not None:
            return self.keeps_on_grid(eqn, xs)
        if self.threads != self.tuning.widest:
            return None
        self.asked = True
        if not self.registers:
            return None
        name = self.plan.label("kept")
        found = keeping(name, eqn, xs, self.registers, self.spare, self.tuning)
        if found is not None:
            self.registers -= found.own
            self.spare -= found.nbytes
            self.kept.append(found)
        return found

    def keeps_on_grid(self, eqn: Eqn, xs: Sequence[Value]) -> Spread | None:
        """Returns how blocks keep a matrix; all loops over as many elements have its
        tiles, which may be late.
        """
        assert self.grid is not None and self.homes is not None
        (y,), grid = eqn.outs, self.grid
        left = grid.tuning.pieces - sum(k.pieces for k in self.spread_out)
        if not self.plan.wide(y.type) or not all(map(self.plan.widely, xs)):
            return None
        name, known = self.plan.label("kept"), grid.tiles.get(y.type.size)
        found = spread(name, eqn, xs, grid.blocks, grid.tuning, known)
        if found is None or found.pieces > left:
            return None
        self.spread_out.append(found)
        if known is None:
            grid.tiles[y.type.size] = found.tile
            self.homes.late = True
        return found

    def rooms(self) -> tuple[list[Text], int]:
        """Returns where each array lies in shared memory, and how many bytes they have in all."""
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
                    Text(
                        f"ge2_four *const {k.name}_rest = (ge2_four *)(room + {at});",
                        f"{k.rest} a thread",
                    )
                )
                at += k.nbytes
        if self.spread_out:
            lines.append(Text(f"float *const tile_room = (float *)(room + {at});"))
            at += max(k.nbytes for k in self.spread_out)
        return lines, at

    # -- nodes

    def node(self, node: Node) -> list[Stage]:
        if isinstance(node, Level):
            self.level += 1
            self.keep_looked()
            meeting = [MEETING] if node.wait else []
            return [*meeting, *self.loops(node.loops), BARRIER]
        if isinstance(node, Rounds):
            return self.rounds(node)
        return self.choice(node)

    def loops(self, loops: Sequence[Loop]) -> list[Stage]:
        """The loops of a level.

        Products of a grid share a room, where each waits for the one before.
        """
        found, taken = list[Stage](), False
        for loop in loops:
            product = loop.key.product is not None and loop.key.wide
            found += [BARRIER] if product and taken else []
            taken |= product
            found += self.looped(loop)
        return found

    def nodes(self, nodes: Sequence[Node]) -> list[Stage]:
        found = list[Stage]()
        for node in nodes:
            lines = self.node(node)
            if found[-1:] == [BARRIER] and lines[:1] == [MEETING]:
                found.pop()
            found += lines
        return found

    def rounds(self, node: Rounds) -> list[Stage]:
        start: list[Stage] = [Text(f"int {node.side} = 0;", "which of two places the carry has")]
        turns: list[Stage] = [*moved(node, self.grid)] if self.grid else []
        turns.append(Text(f"{node.side} ^= 1;"))
        if node.decided is None:
            self.handed.add_argument(node.count, Argument(f"int {node.count}", "size", node.length))
        around, self.round = self.round, node if node.decided is None else None
        before, self.early = self.early, {}
        wrote, self.wrote = self.wrote, set()
        begin = self.level
        test = self.nodes(node.test)
        until = self.look(node.decided) if node.decided is not None else ""
        body: tuple[Stage, ...] = (*self.nodes(node.body), *turns)
        if not named(node.side, (*test, Text(until), *body[:-1])):
            start, body = [], body[:-1]
        first = [each.first for each in self.early.values()]
        self.round, self.early, self.wrote = around, before, self.wrote | wrote
        for name, (there, last) in self.spans.items():
            if there <= begin < last:  # it is needed in each round
                self.spans[name] = there, self.level + 1
        if node.decided is None:
            t, n = node.label, node.count
            head = (
                f"{t} = {n} - 1; {t} >= 0; {t}--" if node.reverse else f"{t} = 0; {t} < {n}; {t}++"
            )
            loop = Iterations(head, (), "", body)
            return [*start, *first, *([loop] if body else [])]
        # a barrier: whoever still looks at what decided is not overtaken
        self.looked = set()
        return [*start, Iterations("", tuple(test), until, body), BARRIER]

    def look(self, x: Value) -> str:
        """A number that all threads look at to decide: while some do, others
        are in the next level.
        """
        self.level += 1
        self.looking = True
        text = self.reader.element(x, Index((), "0"))
        self.looking = False
        self.level -= 1
        return text

    def keep_looked(self) -> None:
        """The number that decided has its place in the current level, the first of a branch or an
        iteration.
        """
        for name in self.looked:
            first, last = self.spans[name]
            self.spans[name] = first, max(last, self.level)
        self.looked = set()

    def touch(self, x: Array) -> Array:
        """Notes that an array is needed in the current level."""
        if x.shared:
            first, last = self.spans.get(x.name, (self.level, self.level))
            self.spans[x.name] = min(first, self.level), max(last, self.level)
            if self.looking:
                self.looked.add(x.name)
        return x

    def choice(self, node: Choice) -> list[Stage]:
        dtype = node.index.type.dtype
        text = self.look(node.index)
        last = len(node.branches) - 1
        high = f"{held(text)} > {last} ? {last} : (int){held(text)}"
        low = f"{held(text)} < 0 ? 0 : " if dtype.kind == "i" else ""
        chosen = text if dtype == BOOL else f"{low}{high}"
        branches = list[Branch]()
        around, self.round = self.round, None
        looked = self.looked
        for branch in node.branches:
            self.looked = looked  # whichever branch is taken begins beside those who still look
            body = self.nodes(branch)
            if self.looked or not body:
                body.append(BARRIER)
            braces = len(body) > 1 or not isinstance(body[0], Text | Barrier)
            braces |= isinstance(body[0], Text) and bool(body[0].body or body[0].pragma)
            branches.append(Branch(tuple(body), braces))
        self.looked, self.round = set(), around
        return [Branches(node.label, chosen, tuple(branches))]

    # -- loops over elements

    def looped(self, loop: Loop) -> list[Stage]:
        self.loop = loop
        size, team = loop.key.size, loop.key.team
        known = set(self.early)
        if loop.key.wide:
            assert self.sharing is not None
            return self.sharing.lines(loop)
        if loop.key.product is not None:
            return [self.by_columns(loop)]
        if team == 1:
            body = [line for s in loop.statements for line in (*self.statement(s), *self.writes(s))]
            return [self.over(size, [*body, *ahead.after(self, known)])]
        lines = [line for s in loop.statements for line in self.statement(s)]
        writes = [line for s in loop.statements for line in self.writes(s)]
        return [by_teams(loop.key, self.threads, lines, writes)]

    def by_columns(self, loop: Loop) -> Columns:
        """A loop over rows, in which teams have columns of a matrix that they keep."""
        first, *rest = loop.statements
        k, known = first.kept, set(self.early)
        row = f" + row * {k.sums}" if k.rows > 1 else ""
        operand = f"{self.address(k.other)}{row}"
        self.apart = k.rows > 1
        lines: list[Reduction] = [Text(f"const int {E} = {place(k, 'row')};")]
        lines += product(k, first.y.name, operand)
        lines.append(
            Text(f"const float {first.y.name} = ge2_kept_sum<{k.slices}>({first.y.name}_sums);",
                 self.note(k.eqn))
        )  # fmt: skip
        lines += [line for s in rest for line in self.statement(s)]
        writes = [line for s in loop.statements for line in self.writes(s)]
        self.apart = False
        after = tuple(ahead.after(self, known))
        return Columns(k.rows, tuple(lines), writer(k), tuple(writes), after)

    def address(self, x: Array | Made) -> str:
        """Returns where an array in shared memory begins."""
        home = next(h for h in x.homes if h.shared) if isinstance(x, Made) else x
        self.touch(home)
        return f"{home.name} + {home.start}" if home.start else home.name

    def over(self, size: int, body: Sequence[Reduction]) -> Elements:
        """A loop in which each thread has elements of its own."""
        return Elements(size, self.threads, tuple(body))

    def home(self, x: Made, own: bool, loop: Loop) -> Array:
        """Returns where a result is read by another loop than its own."""
        if not x.wide:
            return next(h for h in x.homes if h.shared)
        own = own and loop.key.spread
        mine = [h for h in x.homes if h.mine] if own else []
        return next(h for h in (*mine, *x.homes) if own or not h.mine)

    def statement(self, s: Statement) -> list[Reduction]:
        at = Index(s.y.type.shape, E)
        if s.eqn is None:
            value = self.reader.element(s.xs[0], at) if s.y.name else ""
            return (
                [Text(f"const {HELD[widened(s.y.type.dtype)]} {s.y.name} = {value};")]
                if value
                else []
            )
        comment = self.note(s.eqn)
        if s.into is not None:
            self.touch(s.into)
            code = self.reader.update(s.eqn, s.xs, at, s.into)
            return [Text(f"const {HELD[widened(s.y.type.dtype)]} {s.y.name} = {code};", comment)]
        t = HELD[widened(s.y.type.dtype)]
        if isinstance(s.eqn.op, POINTS):
            code = self.reader.computed(s.eqn, s.xs, at)
            return [Text(f"const {t} {s.y.name} = {code};", comment)]
        if isinstance(s.eqn.op, DotGeneral):
            if isinstance(s.kept, Spread):
                return [Text(f"const {t} {s.y.name} = {s.kept.result()};", comment)]
            return self.folds.product(s, s.eqn, self.team, comment)
        return self.folds.fold(s, s.eqn, self.team, comment)

    def writes(
        self, s: Statement, which: Callable[[Array], bool] = lambda _: True, value: str = ""
    ) -> list[Text]:
        found = []
        at, of_all = Index(s.y.type.shape, E), self.grid is not None and not self.widely()
        into = [s.into] if s.into is not None else []
        for home in map(self.touch, filter(which, [*s.y.homes, *into])):
            self.wrote.add(home.name)
            if home is s.into and s.eqn is not None:
                at = self.reader.target(s.eqn, s.xs, at)
            text = value or s.y.name or self.reader.element(s.xs[0], at)
            once = home.alone or (of_all and not home.shared)
            text = text if home.mine else stored(text, s.y.type.dtype)
            store = f"{home.element(at, self.apart)} = {text};"
            found.append(guard("blockIdx.x == 0", store) if once else Text(store))
        return found

    @property
    def team(self) -> int:
        """Threads that have an element of the current loop together."""
        return 1 if self.loop is None else self.loop.key.team

    def widely(self) -> bool:
        """True if the current loop is shared out among the threads of a grid."""
        return self.loop is not None and self.loop.key.wide

    def read(self, x: Made, at: Index) -> str:
        if x.loop is self.loop and at.flat == E:
            return x.name
        if self.grid is not None and self.loop is not None:
            return self.reader.element(self.home(x, at.flat == E, self.loop), at)
        home = next(h for h in x.homes if not h.alone)
        return self.reader.element(home, at)

    def note(self, eqn: Eqn) -> str:
        """The equation, as the graph above the kernel has it."""
        return eqn_text(eqn, self.names)
