"""From a graph of regions to a Program: how each equation runs, and where its results are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ge2.base.compile_times import spent
from ge2.base.record import collector_paused
from ge2.choice import Problem, prefs
from ge2.choice.choose import choose
from ge2.codegen.kernel_values import safe
from ge2.codegen.layout import Layout, viewed
from ge2.codegen.layout import plain as layout_of
from ge2.compile.pipeline import TUNING, Tuning, rewritten
from ge2.compile.steps import (
    NATIVE,
    Served,
    before,
    crowded,
    has_rows,
    in_place,
    is_anywhere,
    is_mappable,
    is_small,
    kind_of,
    multiplies_into,
    places_in,
    write_over,
)
from ge2.compile.writes import (
    Box,
    begun,
    join_update,
    made_at_checked,
    reads_elsewhere,
    saved_views,
)
from ge2.ir import Atom, Eqn, Graph, Names, Var, makers_of
from ge2.ops.attention.ops import FusedAttention, FusedBackward, with_features
from ge2.ops.dot import DotGeneral
from ge2.ops.graphs.contraction import is_contraction
from ge2.ops.graphs.region import Region
from ge2.ops.index import Gather, UpdateSlice
from ge2.ops.shape import Barrier, Reshape, Transpose
from ge2.passes.context import Context
from ge2.program import CONTROL, END, WRITES, Buffer, Program, Step, may_fail, origin, overwritten
from ge2.targets import Library
from ge2.targets.c.loops import CLoop, carried, held

Inner = Callable[[Eqn, int], Program]  # graph `i` of a loop or a branch as a program
Origin = Callable[[dict[Var, Eqn], Atom], Atom]
Made = Sequence[
    tuple[Var, Layout]
]  # values that are one, the one that a step makes last, and where


def on_assumed_gpu(eqn: Eqn, i: int) -> Program:
    """Graph `i` of a loop or a branch as launches of the chip that is assumed where none is known."""
    return scheduled_round(eqn.op, i, "cuda")


@collector_paused
def schedule(
    graph: Graph,
    donated: tuple[bool, ...] = (),
    target: str = "cpu",
    written: tuple[int, ...] = (),
    inner: Inner = on_assumed_gpu,
    tuning: Tuning = TUNING,
) -> Program:
    """The program of a graph for a target: "cpu" is blocked NumPy, "c" compiled C, "cuda" launches.

    `written`: the inputs that the first outputs are the last contents of. `inner` makes the
    programs of loops that are launched. The graph is what the pipeline of the target makes of one.
    """
    with spent("schedule"):
        return Scheduler(graph, donated, target, written, inner, tuning).run()


def scheduled_round(op: Any, i: int, target: str, tuning: Tuning = TUNING) -> Program:
    """The program of graph `i` of a loop, which may write a carry over the one that it reads."""
    context = Context(body=target == "c", tuning=tuning.passes, gathers=target == "c")
    graph = rewritten(held(op)[i], target, context)
    return planned_round(op, i, graph, target, tuning=tuning)


def planned_round(
    op: Any,
    i: int,
    graph: Graph,
    target: str,
    inner: Inner = on_assumed_gpu,
    tuning: Tuning = TUNING,
) -> Program:
    """The planned program of the graph after all passes."""
    scheduler = Scheduler(graph, (), target, inner=inner, tuning=tuning)
    homes = carried(op, i, graph, tuning.c.loops.carry)
    scheduler.homes = homes if target == "c" else written_parts(graph, homes)
    scheduler.donated = [*scheduler.homes.values()]
    return scheduler.run()


def written_parts(graph: Graph, homes: dict[Var, Var]) -> dict[Var, Var]:
    """The results that are the input they replace, with parts of it written: any other launch makes
    all of its result, and does so in a second place, which costs no copy before the loop.
    """
    inputs = {v: i for i, v in enumerate(graph.inputs)}
    return {
        a: v
        for a, v in homes.items()
        if graph.outputs.count(a) == 1 and origin(graph, a) == inputs[v]
    }


class Scheduler:
    def __init__(
        self,
        graph: Graph,
        donated: tuple[bool, ...],
        target: str,
        written: tuple[int, ...] = (),
        inner: Inner = on_assumed_gpu,
        tuning: Tuning = TUNING,
    ) -> None:
        self.graph, self.target, self.programs, self.tuning = graph, target, inner, tuning
        self.written = last_contents(graph, written)
        self.saved = saved_views(graph, self.written)
        self.checked = made_at_checked(graph) if written else set[Var]()
        self.layouts: dict[Var, Layout] = {}
        self.names = Names()
        self.buffers: dict[Var, Buffer] = {}
        self.returned = {a for a in graph.outputs if isinstance(a, Var)}
        self.read = {a for e in graph.eqns for a in e.inputs} | self.returned
        self.reads = Counter([a for e in graph.eqns for a in e.inputs] + list(graph.outputs))
        self.inner: dict[int, tuple[Program, ...]] = {}
        self.choices: dict[int, object] = {}
        # results of steps, and the operands they may write over
        self.over: dict[int, dict[int, int]] = {}
        self.makers = makers_of(graph)
        self.numbers: dict[Atom, int] = {v: n for n, e in enumerate(graph.eqns) for v in e.outs}
        # inputs of steps that are part of the result already
        self.there: dict[int, set[tuple[int, int]]] = {}
        self.boxes: dict[int, Box] = {}  # what updates of slices write
        self.firsts: dict[Atom, Atom] = {}  # what such updates, one after another, began with
        self.parts = set[Var]()  # those that are in the memory of what joins them
        # of an iteration: what alone may be written over what
        self.homes: dict[Var, Var] | None = None
        self.served: Served = {}  # equal steps, as layers have, are of one kind
        self.kinds = [self.kind(n, eqn) for n, eqn in enumerate(graph.eqns)]
        self.solid = {
            a
            for kind, e in zip(self.kinds, graph.eqns, strict=True)
            if kind in ("loop", "hosted")
            for a in e.inputs
        } | crowded(graph)
        self.featured = {
            e.inputs[i]
            for e in graph.eqns
            if isinstance(e.op, FusedAttention | FusedBackward)
            for i in with_features(e.op)
        }
        for var in graph.inputs:
            self.add(var, "host" if var.type.weak else "input", -1)
        self.donated = [
            v for v, given in zip(graph.inputs, donated, strict=False) if given and not v.type.weak
        ]
        self.mates = mates(graph, self.donated)

    def add(self, var: Var, storage: str, first: int, base: Buffer | None = None) -> Buffer:
        buffer = self.buffers[var] = Buffer(
            safe(self.names[var]), var.type, storage, first, first, base
        )
        return buffer

    def kind(self, n: int, eqn: Eqn) -> str:
        programs, kind = self.in_c(n, eqn), "loop"
        if not programs:
            kind = kind_of(eqn, self.target, self.served)
            if kind == "kernel" and isinstance(eqn.op, WRITES):
                self.over[n] = {0: 0}
            if kind != "hosted":
                return kind
            programs = tuple(self.programs(eqn, i) for i in range(len(held(eqn.op))))
        self.inner[n] = programs
        self.over[n] = overwritten(eqn.op, programs)
        return kind

    def in_c(self, n: int, eqn: Eqn) -> tuple[Program, ...]:
        """The programs of a loop or a branch whose iterations C runs, if it is chosen for that."""
        if self.target != "c" or not isinstance(eqn.op, CONTROL):
            return ()
        program = partial(scheduled_round, eqn.op, target="c", tuning=self.tuning)
        catalog = CLoop(eqn, program), Library()
        choice = self.choices[n] = choose(Problem.of(eqn, "c"), self.tuning, prefs(), catalog)
        return choice.kernels() if isinstance(choice.family, CLoop) else ()

    def run(self) -> Program:
        for n, (kind, eqn) in enumerate(zip(self.kinds, self.graph.eqns, strict=True)):
            for i, var in enumerate(eqn.outs):
                self.place(n, kind, eqn, i, var)
        self.lifetimes()
        if self.target == "cuda" or (self.target == "c" and "library" not in self.kinds):
            self.lend()
            self.update_inputs()
            self.join()
            write_over(self)
        for n, (kind, eqn) in enumerate(zip(self.kinds, self.graph.eqns, strict=True)):
            if kind in ("kernel", "copy", "loop", "hosted", "matmul"):
                self.reuse(n, eqn)
        steps = tuple(
            self.step(n, kind, eqn)
            for n, (kind, eqn) in enumerate(zip(self.kinds, self.graph.eqns, strict=True))
        )
        return Program(
            self.graph,
            steps,
            self.buffers,
            self.layouts,
            self.target,
            self.inner,
            choices=self.choices,
        )

    def place(self, n: int, kind: str, eqn: Eqn, i: int, var: Var) -> None:
        """Settles the layout of result `i` of an equation."""
        if kind == "host":
            self.add(var, "host", n)
        elif kind == "view" and not any(isinstance(a, Var) for a in eqn.inputs):
            self.add(var, "view", n)
        elif kind == "view" and self.target in NATIVE:
            self.place_view(n, eqn, i, var)
        elif kind == "view":
            source = self.buffers[eqn.inputs[i]]  # type: ignore[index]
            if isinstance(eqn.op, Reshape) and not self.plain(source):
                self.kinds[n] = "copy"
                self.add(var, "output" if var in self.returned else "arena", n)
            else:
                self.add(var, "view", n, source.base or source)
        elif kind in ("kernel", "matmul", "loop", "hosted"):
            self.add(var, "output" if var in self.returned else "arena", n)
        elif var.type.weak:
            self.add(var, "host", n)
        else:
            self.add(var, "library", n)

    def place_view(self, n: int, eqn: Eqn, i: int, var: Var) -> None:
        """A view is a layout, unless it is returned or has none: then it is a copy."""
        x = eqn.inputs[i]
        assert isinstance(x, Var)
        layout = viewed(eqn, self.layouts.get(x) or layout_of(x.type.shape))
        solid = (
            var in self.solid
            and layout is not None
            and layout.strides != layout_of(var.type.shape).strides
        )
        if (
            layout is None
            or solid
            or (var in self.featured and not has_rows(layout, var))
            or var in self.saved
            or (var in self.returned and not isinstance(eqn.op, Barrier))
        ):
            if self.made_there(n, eqn, x, var):
                return
            self.kinds[n] = "copy"
            self.add(var, "output" if var in self.returned else "arena", n)
            return
        source = self.buffers[x]
        self.layouts[var] = layout
        self.add(var, "view", n, source.base or source)

    def made_there(self, n: int, eqn: Eqn, x: Var, var: Var) -> bool:
        """Has what is only returned in another form made right where the result is."""
        source, op = self.buffers[x], eqn.op
        # what may write in any order
        strided = (Region, Gather) if self.target == "cuda" else (Region,)
        maker = self.graph.eqns[source.first] if source.first >= 0 else None
        if maker is None or var not in self.returned or x in self.layouts:
            return False
        strides = layout_of(x.type.shape).strides
        if isinstance(op, Transpose):
            given = layout_of(var.type.shape).strides
            strides = tuple(given[op.order.index(i)] for i in range(len(op.order)))
        joint = self.target == "cuda" and is_contraction(maker.op)
        regional = isinstance(maker.op, strided) and not joint
        turns = regional or (
            self.target == "cuda" and multiplies_into(maker, self.layouts, strides)
        )
        if not isinstance(op, Reshape) and not (isinstance(op, Transpose) and turns):
            return False
        if self.reads[x] > 1 and not (regional and isinstance(op, Reshape)):
            return False
        if any(b.base is source for b in self.buffers.values()):
            return False  # a view that was made before
        if source.storage != "arena" or self.kinds[source.first] not in ("kernel", "matmul"):
            return False
        place = self.add(var, "output", source.first)
        self.layouts[x] = Layout(0, strides)
        self.parts.add(x)
        source.storage, source.base = "view", place
        self.layouts[var] = layout_of(var.type.shape)
        return True

    def plain(self, source: Buffer) -> bool:
        """True if a reshape of an array is a view, or else is made anew at each call."""
        base = source.base or source
        return base is source or base.storage in ("input", "library", "output")

    def lifetimes(self) -> None:
        for n, (kind, eqn) in enumerate(zip(self.kinds, self.graph.eqns, strict=True)):
            for a in eqn.inputs:
                if isinstance(a, Var):
                    self.touch(a, n)
            if kind == "library" and eqn.op.may_alias:
                whole = self.joined(eqn)
                for v in eqn.outs:
                    self.buffers[v].base = whole
        for var in self.returned:
            self.touch(var, END)

    def joined(self, eqn: Eqn) -> Buffer | None:
        """One buffer that stands for all inputs: they live as long as the results do."""
        sources = [
            b.base or b
            for a in eqn.inputs
            if isinstance(a, Var) and (b := self.buffers[a]).storage in ("arena", "view")
        ]
        arena = [b for b in sources if b.storage == "arena"]
        for b in arena:
            b.last = END
        return None

    def touch(self, var: Var, n: int) -> None:
        buffer = self.buffers[var]
        for each in (buffer, buffer.base):
            if each is not None:
                each.last = max(each.last, n)

    def lend(self) -> None:
        """Puts what an update or a loop writes over into the result's memory,
        if nobody reads it later. Last equations first: of a chain of updates each array then goes
        to its last place at once, instead of with all before it at each update.
        """
        views: dict[int, list[Buffer]] = {}
        for buffer in self.buffers.values():
            if buffer.base is not None:
                views.setdefault(id(buffer.base), []).append(buffer)
        for n in sorted(self.over, reverse=True):
            eqn = self.graph.eqns[n]
            for i, k in self.over[n].items():
                x = eqn.inputs[k]
                old = self.buffers[x] if isinstance(x, Var) else None
                if (
                    old is None
                    or old.storage != "arena"
                    or old.last != n
                    or not self.over_alone(eqn, x)
                ):
                    continue
                made = self.buffers[eqn.outs[i]]
                new = made.base or made
                new.first = min(new.first, old.first)
                moved = [*views.pop(id(old), ()), old]
                for buffer in moved:
                    buffer.base = new
                views.setdefault(id(new), []).extend(moved)
                old.storage = "view"
                self.there.setdefault(n, set()).add((i, k))

    def update_inputs(self) -> None:
        """Gives the last of updates, one after another, the memory of the argument or carry that they
        begin with: what is written can then be made there.
        """
        for n in self.over:
            if isinstance(self.graph.eqns[n].op, WRITES):
                self.reuse(n, self.graph.eqns[n], begun)

    def join(self) -> None:
        """Parts that a step computes for a concatenation, or a padding, alone are made where they
        go.
        """
        for n, eqn in reversed(list(enumerate(self.graph.eqns))):  # the outer of two first
            if self.kinds[n] != "kernel" or not eqn.outs:
                continue
            if isinstance(eqn.op, UpdateSlice):
                join_update(self, n, eqn)
                continue
            whole = self.buffers[eqn.outs[0]]
            around = self.layouts.get(eqn.outs[0])
            if whole.base is not None:  # what writes into it later, or holds it, has its memory
                if around is not None and eqn.outs[0] not in self.parts:
                    continue
                whole = whole.base
            found = {
                i: made
                for i, place in places_in(eqn, around).items()
                if (made := self.made_for(eqn.inputs[i], place))
            }
            if self.target == "cuda" and is_small(eqn, found):
                continue
            for i, made in found.items():
                self.put(made, whole)
                self.parts.add(made[-1][0])
                self.there.setdefault(n, set()).add((0, i))

    def put(self, made: Made, whole: Buffer) -> None:
        """Has a part be made where it goes in `whole`, and what it is called before that be a view."""
        for v, layout in made:
            n = self.number(v)
            self.kinds[n] = "view" if v is not made[-1][0] else self.kinds[n]
            self.buffers[v].storage, self.buffers[v].base = "view", whole
            self.layouts[v] = layout
        whole.first = min(whole.first, self.buffers[made[-1][0]].first)

    def made_for(self, a: Atom, place: Layout) -> Made:
        """The result of a step that is `a`, perhaps reshaped or transposed, read by nothing else: the
        values on the way to it, it last, and where each goes; none if it is not made there.
        """
        found = list[tuple[Var, Layout]]()
        while isinstance(a, Var) and self.reads[a] == 1:
            found.append((a, place))
            maker = self.makers.get(a)
            if maker is None or not isinstance(maker.op, Reshape | Transpose):
                break
            lies = before(maker, place)
            if lies is None:
                break
            a, place = maker.inputs[0], lies
        for n in reversed(range(len(found))):  # the first of them that is a step
            way = [self.makers[v].op for v, _ in found[:n]]
            if self.makes(*found[n], any(isinstance(op, Transpose) for op in way)):
                return found[: n + 1]
        return ()

    def makes(self, a: Var, place: Layout, transposed: bool) -> bool:
        """True if the step that makes a value can do so at a place in another array."""
        maker, source = self.makers.get(a), self.buffers[a]
        if maker is None or source.storage != "arena" or a in self.layouts:
            return False
        over = (maker.inputs[k] for _, k in self.there.get(self.number(a), ()))
        if any(isinstance(x, Var) and self.buffers[x].base is source for x in over):
            return False  # what it writes over is made in its memory, and not in that place
        op, kind = maker.op, self.kinds[self.number(a)]
        if isinstance(op, FusedBackward):
            return self.target == "cuda" and maker.outs.index(a) <= 2 and is_mappable(place, a)
        if self.target == "cuda" and (is_contraction(op) or isinstance(op, DotGeneral)):
            return kind in ("kernel", "matmul") and not transposed and is_mappable(place, a)
        ordered = not isinstance(op, (Region, Gather) if self.target == "cuda" else (Region,))
        if isinstance(op, Reshape) and before(maker, place) is None:
            return False
        fits = kind in ("kernel", "copy") and not (transposed and ordered)
        return fits and is_anywhere(op, self.target)

    def over_alone(self, eqn: Eqn, x: Atom) -> bool:
        """True if an equation may write over an array: what else it reads of
        it are other elements.
        """
        return self.alone(eqn, x) or (
            isinstance(eqn.op, UpdateSlice) and reads_elsewhere(self.makers, eqn)
        )

    def number(self, a: Atom) -> int:
        """The step that makes a value; -1 for an argument."""
        return self.numbers.get(a, -1)

    def is_elementwise(self, eqn: Eqn, i: int, x: Var) -> bool:
        """True if a region reads an element of an input only where it writes that of a result."""
        return self.alone(eqn, x) and in_place(eqn, i, x, self.target, self.tuning.c.blocks)

    def alone(self, eqn: Eqn, x: Atom) -> bool:
        """True if an equation reads an array once, and no other view of it."""
        mine = self.buffers[x]  # type: ignore[index]
        others = [self.buffers[a] for a in eqn.inputs if isinstance(a, Var) and a is not x]
        shared = any((b.base or b) is (mine.base or mine) for b in others)
        return eqn.inputs.count(x) == 1 and not shared

    def step(self, n: int, kind: str, eqn: Eqn) -> Step:
        shared = frozenset(self.there.get(n, ()))
        name = eqn.op.kind if isinstance(eqn.op, Region) else eqn.op.name
        return Step(kind, name, eqn, n, shared)

    def reuse(self, n: int, eqn: Eqn, start: Origin | None = None) -> None:
        """Gives results the memory of inputs that are donated, or written,
        and end here or earlier; of the one alone that they begin with, by `start`.
        """
        for out in eqn.outs:
            buffer = self.buffers[out]
            if buffer.storage != "output" or buffer.donor:
                continue
            first = start(self.makers, out) if start is not None else None
            for x in self.donors(out):
                fits = x.type == out.type and (start is None or x is first)
                if fits and self.may_take(buffer, x):
                    buffer.donor, buffer.written = self.buffers[x].name, out in self.written
                    if not buffer.written:
                        self.donated.remove(x)
                    break

    def may_take(self, buffer: Buffer, x: Var) -> bool:
        """True if a result may be in the memory of an input: it is first
        written when that was read last.
        """
        last, first = self.buffers[x].last, buffer.first
        if x in self.written.values() and any(
            self.fails(m, first) for m in range(first, len(self.kinds))
        ):
            return False
        if last < first:
            return True
        eqn = self.graph.eqns[first]
        homes = [self.buffers[v].base or self.buffers[v] for v in eqn.outs]
        made = [i for i, home in enumerate(homes) if home is buffer]
        if last > first or len(made) != 1:
            return False
        (i,) = made
        plain = eqn.outs[i].type == x.type and eqn.outs[i] not in self.layouts
        if not plain or not self.in_place(first, i, x):
            return False
        self.there.setdefault(first, set()).add((i, eqn.inputs.index(x)))
        return True

    def fails(self, m: int, first: int) -> bool:
        """True if step `m` may fail when step `first` has written; one at
        indices looks at them before.
        """
        eqn = self.graph.eqns[m]
        if self.target == "cpu" or self.kinds[m] == "library":
            return True  # Python runs it, and may be interrupted; on a GPU for want of memory
        if not self.checked.isdisjoint(eqn.outs):
            return False
        return may_fail(eqn, self.target, self.tuning.c.loops.long) and not (
            m == first and isinstance(eqn.op, WRITES)
        )

    def donors(self, out: Var) -> list[Var]:
        """The donated inputs whose memory a result may take, the best first.

        A captured graph lasts for as long as its pointers do. So on a GPU state stays
        where it is: what is given back in the place of an argument, counted among those
        of its type, takes the memory of that one or, if it is small, none; were it that
        of another, all of them would move on from call to call.
        """
        if out in self.written:
            return [self.written[out]]
        if self.homes is not None:
            return own(self.homes, out, self.donated)
        if self.target != "cuda":
            return self.donated
        mate = own(self.mates, out, self.donated)
        if out.type.nbytes < self.tuning.placement.patched:
            return mate  # others would be of its type, and as small
        return [*mate, *(x for x in self.donated if x not in mate)]

    def in_place(self, n: int, i: int, x: Var) -> bool:
        """True if result `i` of step `n`, which is first written there,
        may be written over an input.
        """
        eqn = self.graph.eqns[n]
        if x not in eqn.inputs or not self.alone(eqn, x):
            return False
        if self.kinds[n] in ("loop", "hosted"):
            return self.over[n].get(i) == eqn.inputs.index(x)
        return in_place(eqn, i, x, self.target, self.tuning.c.blocks)


def last_contents(graph: Graph, written: Sequence[int]) -> dict[Var, Var]:
    """The inputs that are written, by the outputs that may be made in their memory."""
    found: dict[Var, Var] = {}
    for out, i in zip(graph.outputs, written, strict=False):
        if (
            isinstance(out, Var)
            and out not in graph.inputs
            and graph.outputs.index(out) < len(written)
        ):
            found.setdefault(out, graph.inputs[i])
    return found


def mates(graph: Graph, donated: Sequence[Var]) -> dict[Var, Var]:
    """Results and donated inputs in pairs: the first of a type with the first
    of that type, and so on.
    """
    left: dict[Any, list[Var]] = {}
    for x in donated:
        left.setdefault(x.type, []).append(x)
    found = {}
    for out in dict.fromkeys(
        a for a in graph.outputs if isinstance(a, Var) and a not in graph.inputs
    ):
        if left.get(out.type):
            found[out] = left[out.type].pop(0)
    return found


def own(homes: dict[Var, Var], out: Var, donated: list[Var]) -> list[Var]:
    return [homes[out]] if out in homes and homes[out] in donated else []
