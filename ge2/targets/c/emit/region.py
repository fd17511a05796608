"""A region as a C function: loops over its space, one statement an equation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from ge2.base.arrays import FLOAT32
from ge2.codegen.axes import Loop, Work
from ge2.codegen.kernel_values import Held, Ranges, Tiling, Values
from ge2.codegen.layout import Home, homes, is_small_copy, nest
from ge2.codegen.text import (
    ALONE,
    Argument,
    CKernel,
    Operand,
    Sharing,
    Text,
    axes_of,
    guard,
    works_of,
)
from ge2.ir import Names, Var, write
from ge2.ops.graphs.region import Region
from ge2.targets.c.emit import (
    HELD,
    REAL,
    SUFFIX,
    apart,
    by_parts,
    bytes_of,
    clause,
    compensated,
    converting,
    few_lanes,
    gathers_index,
    has_byte_floats,
    in_runs,
    is_complex_sum,
    is_long,
    larger,
    merged,
    number,
    op_of,
    parts_of,
    run_length,
    start,
    state_dtype,
    state_type,
    statements,
    taken_in,
    taken_with_nan,
    takes_computed,
    vectorises,
    wrapped,
)
from ge2.targets.c.emit.file import Braces, Cut, For, Partial, Stage, Tasks, length, with_reads
from ge2.targets.c.emit.statements import (
    ORDER,
    Places,
    Statements,
    extreme_of_run,
    label,
    met,
    screens,
    search,
)
from ge2.targets.c.tuning import Caps

# kinds of arguments whose value is an operand and its dtype
OPERANDS = ("array", "result", "value")


def c_kernel(region: Region, operands: Mapping[Var, Operand], caps: Caps) -> CKernel:
    """The kernel of a region, given where its inputs and outputs are."""
    arrays = [operands[v] for v in arrays_of(region)]
    numbered = tuple(replace(operand, offset=i) for i, operand in enumerate(arrays))
    return at_offsets(written(region, numbered, caps), arrays)


def arrays_of(region: Region) -> list[Var]:
    return [v for v in (*region.graph.inputs, *region.graph.outputs) if isinstance(v, Var)]


@lru_cache(256)
def written(region: Region, numbered: tuple[Operand, ...], caps: Caps) -> CKernel:
    """The kernel of a region, whose text has no offsets: each operand has its number instead."""
    return Writer(region, dict(zip(arrays_of(region), numbered, strict=True)), caps).run()


def at_offsets(kernel: CKernel, arrays: Sequence[Operand]) -> CKernel:
    """The kernel, its operands by their numbers where they really lie."""
    arguments = [
        replace(a, value=(arrays[a.value[0].offset], a.value[1])) if a.kind in OPERANDS else a
        for a in kernel.arguments
    ]
    return replace(kernel, arguments=tuple(arguments))


class Writer(Statements):
    def __init__(self, region: Region, operands: Mapping[Var, Operand], caps: Caps) -> None:
        self.region, self.operands, self.threads = region, operands, caps.threads
        self.tuning = caps.tuning.regions
        self.names = Names()
        self.text = write(region.graph, names=self.names)
        self.values = Values(region, Tiling(region.space), self.names).run()
        works, outs = converting(*works_of(self.values, region, self.names, label))
        self.axes = axes_of(self.values, region, works, outs, operands)
        nests = caps.tuning.nests
        if is_small_copy(region, self.tuning.copied):  # of any size one text
            nests = replace(nests, short=0)
        self.axes.order(works, outs, nests)
        self.places = Places(self.axes, operands, Ranges(region.graph), nests.near)
        self.root = nest(works, self.axes.specs, self.axes.again)
        self.homes: dict[Held, Home] = homes(self.root)
        self.makers = {w.y: w for w in self.root.everything() if w.y is not None}
        self.scratch = 0  # bytes a thread
        self.shared = 0  # loops that threads share
        self.helpers: dict[str, None] = {}  # of users' expressions
        self.powers, self.choosing = {}, False  # if vectors take extremes
        self.declared: dict[Loop, list[Text]] = {}  # arrays, where their loop begins
        self.kept: set[Held] = set()
        self.local: dict[Work, str] = {}  # states that an innermost loop has for itself
        # the extreme whose place is sought, or none while vectors take those of a run; if any is
        self.sought: tuple[Work | None, bool] = None, False
        self.nans: dict[Work, str] = {}
        self.by_parts: set[Work] = set()  # sums of complex numbers that are two of real ones
        self.looks: dict[Work, list[Text]] = {}  # in innermost loops: at the indices of a gather

    def run(self) -> CKernel:
        total, unit, alone = "", 0, self.alone()
        if alone is None or self.threads == ALONE:
            body = self.inside(self.root)
        else:
            before = [
                each for w in self.root.children if isinstance(w, Work) for each in self.line(w)
            ]
            body, cut = [*before, *self.share(alone)], self.cut(alone, False)
            total, unit = cut.total, self.places.unit(alone.spec)
            for name, value in (("chunk", cut.chunk), ("grain", cut.grain)):
                self.places.size(name, value)
            self.places.add_argument("threads", "int threads", "threads")
        body = [*self.places.scalars.values(), *self.declared.pop(self.root, []), *body]
        arguments = list(self.places.arguments.values())
        if self.scratch:
            arguments = [
                replace(a, value=self.scratch) if a.declaration == "int64_t per_thread" else a
                for a in arguments
            ]
            arguments.append(
                Argument("char *scratch", "scratch", self.scratch * max(self.threads, 1))
            )
        arguments.sort(key=lambda a: ORDER.index(a.kind))
        return CKernel(
            self.region.kind, self.text, tuple(arguments), (), len(self.region.graph.eqns), total,
            tuple(self.helpers), template="c/region.c.jinja", view=with_reads(body, arguments),
            unit=unit, choosing=self.choosing and takes_computed(self.makers),
        )  # fmt: skip

    # -- loops

    def inside(self, loop: Loop) -> list[Stage]:
        """Returns what a loop does in each round, the arrays that it needs first."""
        lines: list[Stage] = []
        for child in loop.children:
            lines += self.line(child) if isinstance(child, Work) else self.looped(child)
        return [*self.declared.pop(loop, []), *lines]

    def looped(self, loop: Loop) -> list[Stage]:
        spec = loop.spec
        assert spec is not None
        folds = [w for w in loop.everything() if w.y is not None and self.homes[w.y].first is loop]
        if spec.role in ("task", "panel"):
            return self.tasks(loop, folds)
        before = [line for w in folds for line in self.begin(w, loop)]
        a = spec.axes[0]
        letter, extent = self.places.letters[a], self.places.extent(a)
        if spec.role == "block":
            body, block = (self.width(a), *self.inside(loop)), str(self.axes.blocks[a])
            return [*before, For(f"{letter}0", "0", extent, body, step=block)]
        return [
            *before,
            *self.walk(loop, letter, "0", self.places.width(a) if spec.role == "inner" else extent),
        ]

    def width(self, a: int) -> Text:
        """Returns how many elements there are in a block."""
        rest = f"{self.places.extent(a)} - {self.places.letters[a]}0"
        return Text(
            f"const int64_t {self.places.width(a)} = ge2_least({self.axes.blocks[a]}, {rest});"
        )

    def walk(self, loop: Loop, letter: str, begin: str, end: str) -> list[Stage]:
        """A loop from `begin` to `end`."""
        spec = loop.spec
        assert spec is not None
        a = spec.axes[0]
        local = [w for w in loop.works if w.kind == "fold" and not w.over.isdisjoint(spec.axes)]
        within, brief = any(map(self.written_out, loop.path[:-1])), self.is_brief(loop)
        unroll = f"#pragma GCC unroll {self.axes.sizes[a]}" if brief else ""
        if not (loop.innermost or self.written_out(loop)):
            return self.in_rows(loop, For(letter, begin, end, (), unroll))
        few = a in self.axes.constant and spec.role == "whole"
        runs = frozenset() if few else frozenset(w for w in local if in_runs(w))
        short = self.axes.sizes[a] < self.tuning.few or within
        simd = vectorises(loop.works) and not (few and short)
        far = loop.innermost and self.places.scattered(loop, a, self.tuning.scattered)
        simd = simd and (bool(local) or not far)
        flags, checks = self.nan_flags(local) if simd else ([], [])
        # of two gcc sees by itself which comes first; no vectors go along a loop that reads at places
        reads = any(map(statements.is_place, self.root.everything())) and not brief
        if loop.innermost and not (simd or reads) and 2 < self.axes.sizes[a] <= self.tuning.placed:
            flags, checks = self.nan_places(local, loop)
            unroll = f"#pragma GCC unroll {self.axes.sizes[a]}" if checks else unroll
        limits = statements.limits(loop.works, self.places)
        long = loop.innermost and self.axes.sizes[a] >= self.tuning.screened
        seeks = long and not limits and screens(loop.works, local)
        self.choosing |= seeks or (simd and any(map(apart, local)))
        if seeks:
            return self.seeking(loop, (letter, begin, end), local)
        still = [limit for limit in limits if self.places.still(limit.index, a)]
        limits = [limit for limit in limits if limit not in still]
        for limit in limits:
            index = self.operand(limit.index)
            self.looks.setdefault(limit.work, []).extend(statements.taken(limit, index))
        before, pragma, after = self.gathered(loop, local, runs, simd, limits)
        first = [statements.looked_at(x, self.operand(x.index), self.places) for x in still]
        before = [*first, *before]
        if not runs:
            whole = For(letter, begin, end, tuple(self.inside(loop)), pragma or unroll)
            return [*flags, *before, whole, *after, *checks]
        run = run_length(runs, self.tuning)
        stop = Text(f"const int64_t end = ge2_least(at + {run}, {end});")
        inner = For(letter, "at", "end", tuple(self.inside(loop)), pragma or unroll)
        outer = For("at", begin, end, (stop, *before, inner, *after), step=str(run))
        rests, sums = self.rests(runs)
        return [*flags, *rests, outer, *sums, *checks]

    def seeking(
        self, loop: Loop, bounds: tuple[str, str, str], local: Sequence[Work]
    ) -> list[Stage]:
        """An innermost loop that finds where extremes are."""
        states = {w: (self.state(w), self.state_at(w)) for w in local}

        def body(sought: Work | None) -> tuple[Stage, ...]:
            self.sought = sought, True
            found = tuple(self.inside(loop))
            self.sought = None, False
            return found

        return search(states, body, bounds, self.tuning.sought)

    def written_out(self, loop: Loop) -> bool:
        """True if vectors go along a loop around others, which the compiler writes out."""
        if loop.spec is None or loop.spec.axes != (self.axes.lane,):
            return False
        inner = [w for w in loop.everything() if w.home is not loop]
        folds = any(w.kind == "fold" and self.axes.lane in w.over for w in inner)
        places = any(map(statements.is_place, loop.everything()))
        if loop.innermost or folds or places or not vectorises(loop.works):
            return False
        return self.axes.writes_out(loop)

    def is_brief(self, loop: Loop) -> bool:
        """True of a loop of very few rounds within one that has vectors."""
        size = self.axes.sizes[loop.spec.axes[0]] if loop.spec else 0
        folds = any(w.kind == "fold" for w in loop.everything())
        most = self.tuning.brief if folds else self.tuning.moved
        return 0 < size <= most and any(map(self.written_out, loop.path[:-1]))

    # -- reductions

    def begin(self, w: Work, loop: Loop) -> list[Stage]:
        """The state of a reduction, before the first loop that it folds."""
        assert w.y is not None
        home, name = self.homes[w.y], self.state(w)
        if not home.dims:
            return [Text(f"{state_type(w)} {name} = {start(w)};")]
        self.keep(w.y, home, state_type(w), name)
        return self.each(home, f"{name}{self.places.at(home)} = {start(w)};", loop)

    def gathered(
        self,
        loop: Loop,
        local: Sequence[Work],
        runs: frozenset[Work],
        simd: bool,
        limits: Sequence[statements.Limit],
    ) -> tuple[list[Text], str, list[Text]]:
        """States of an innermost loop: their declarations, its pragma, what is done with them after."""
        before = [statements.begun(limit) for limit in limits]
        after = [statements.ended(limit, self.places) for limit in limits]
        clauses = dict[str, list[str]]()
        for limit in limits:
            for name, c in zip(limit.ends, ("min", "max"), strict=True):
                clauses.setdefault(c, []).append(name)
        for w in local:
            if simd and is_complex_sum(w):
                self.by_parts.add(w)
            part = w in runs or w in self.by_parts or (w in self.nans and self.carried(w, loop))
            name = self.local[w] = self.one_gathered(w, part, w in runs, before, after)
            c, names = ("+", f"{name}_re, {name}_im") if w in self.by_parts else (clause(w), name)
            clauses.setdefault(c, []).append(names)
        text = "".join(f" reduction({c}:{', '.join(names)})" for c, names in clauses.items() if c)
        byte_floats = has_byte_floats(self.region.graph)
        few = self.tuning.bytes_at_once if byte_floats else few_lanes(loop.works, self.tuning)
        if not text and few:
            text = f" simdlen({few})"
        elif not text and is_long(loop, self.root, self.axes.sizes, self.tuning):
            text = " GE2_LONG_LOOP"
        return before, f"#pragma omp simd{text}" if simd else "", after

    def nan_flags(self, local: Sequence[Work]) -> tuple[list[Text], list[Text]]:
        """Extremes of floats that are taken as if there were no NaN, which is looked for beside them."""
        before: list[Text] = []
        after: list[Text] = []
        for w in filter(apart, local):
            assert w.y is not None
            name = self.nans[w] = f"{label(w.y.name)}_nan"
            before.append(Text(f"int {name} = 0;"))
            after.append(guard(name, f"{self.state_at(w)} = {number(math.nan, w.xs[0].dtype)};"))
        return before, after

    def nan_places(self, local: Sequence[Work], loop: Loop) -> tuple[list[Text], list[Text]]:
        """The first place of a NaN beside that of an extreme, in a brief loop."""
        before, after = list[Text](), list[Text]()
        for w in local:
            assert w.y is not None and loop.spec is not None
            floats = gathers_index(w) and w.xs[0].dtype in REAL
            if floats and not (self.homes[w.y].dims or self.carried(w, loop)):
                name, index = f"{label(w.y.name)}_nan", f"{self.state(w)}.index"
                self.nans[w] = name
                before.append(Text(f"int64_t {name} = INT64_MAX;"))
                after.append(Text(f"{index} = {name} < INT64_MAX ? {name} : {index};"))
        return before, after

    def one_gathered(
        self, w: Work, own: bool, run: bool, before: list[Text], after: list[Text]
    ) -> str:
        """The name of the state within the loop: the reduction's, or one that
        is merged into that after.

        `own`: it has to be one that begins here. An extreme that is NaN already would be lost where
        OpenMP merges the lanes by `a > b ? a : b`.
        """
        assert w.y is not None
        home, name = self.homes[w.y], self.state(w)
        if not home.dims and not own:
            return name
        part = f"{label(w.y.name)}_part"
        dtype = w.xs[0].dtype if run else state_dtype(w)
        ctype = HELD[dtype] if run else state_type(w)
        if w in self.by_parts:
            for lines, line in zip((before, after), parts_of(part), strict=True):
                lines.append(line)
        else:
            before.append(Text(f"{ctype} {part} = {start(w, dtype)};"))
        whole = name + (self.places.at(home) if home.dims else "")
        exact = f"ge2_compensate_{SUFFIX[dtype]}(&{whole}, &{label(w.y.name)}_rest, {part});"
        after.append(Text(exact if run and compensated(w) else merged(w, whole, part)))
        return part

    def rests(self, runs: frozenset[Work]) -> tuple[list[Text], list[Text]]:
        """Returns what the sums of runs round away: its declarations, and its
        addition after the last run.
        """
        before: list[Text] = []
        after: list[Text] = []
        for w in sorted(filter(compensated, runs), key=lambda w: w.order):
            assert w.y is not None
            whole, rest = self.state_at(w), f"{label(w.y.name)}_rest"
            before.append(Text(f"{state_type(w)} {rest} = {start(w)};"))
            both = f"ge2_compensated_{SUFFIX[state_dtype(w)]}({whole}, {rest})"
            after.append(Text(f"{whole} = {both};"))
        return before, after

    def keep(self, x: Held, home: Home, ctype: str, name: str) -> None:
        """Declares the array of a value: on the stack if it is small, else in
        the scratch of the thread.
        """
        if x not in self.kept:
            self.kept.add(x)
            self.declared.setdefault(home.scope, []).append(self.array(home, ctype, name))

    def array(self, home: Home, ctype: str, name: str) -> Text:
        """The declaration of an array over the loops of `home`."""
        total, fixed, _ = self.places.span(home)
        if fixed and total <= self.tuning.stack:
            return Text(f"{ctype} {name}[{total}];")
        offset = f" + {self.places.size(f'{name}_offset', self.scratch)}" if self.scratch else ""
        self.scratch += max(-(-total * bytes_of(ctype) // 64), 1) * 64
        own = self.places.size("per_thread", 0)  # known when all is written
        return Text(f"{ctype} *{name} = ({ctype} *)(scratch + GE2_THREAD * {own}{offset});")

    def in_rows(self, loop: Loop, rows: For) -> list[Stage]:
        """A loop around others. float32 sums of which these have one for each element are taken in
        that type for some rows, and those in the wider one: it is converted and loaded once for all.
        """
        sums = [w for w in loop.everything() if self.by_columns(w, loop)]
        before, after, declared = list[Stage](), list[Stage](), list[Stage]()
        for w in sums:
            assert w.y is not None
            home, dtype, name = self.homes[w.y], w.xs[0].dtype, f"{label(w.y.name)}_part"
            declared.append(self.array(home, HELD[dtype], name))
            part = self.local[w] = name + self.places.at(home)
            before += self.each(home, f"{part} = {start(w, dtype)};", loop)
            after += self.each(home, merged(w, self.state_at(w), part), loop)
        rows = replace(rows, body=tuple(self.inside(loop)))
        if not sums:
            return [rows]
        run, at, stop = self.tuning.run_of_rows, f"{rows.index}_from", f"{rows.index}_to"
        until = Text(f"const int64_t {stop} = ge2_least({at} + {run}, {rows.end});")
        body = (until, *before, replace(rows, begin=at, end=stop), *after)
        return [*declared, For(at, rows.begin, rows.end, body, step=str(run))]

    def by_columns(self, w: Work, loop: Loop) -> bool:
        """True of a float32 sum over the rows of a loop, with a state for each element within it."""
        if w.kind != "fold" or w.xs[0].dtype != FLOAT32 or op_of(w).name != "reduce_sum":
            return False
        assert w.y is not None and w.home is not None and loop.spec is not None
        home, (a,) = self.homes[w.y], loop.spec.axes[:1]
        within = w.home.path[len(loop.path) :]
        alone = all(x.spec is not None and w.over.isdisjoint(x.spec.axes) for x in within)
        below = bool(home.dims) and all(dim in within for dim in home.dims)
        below = below and self.places.span(home)[0] <= self.tuning.columns
        # the text does not know how many rows a batch has
        some = a == min(self.axes.sizes) or self.axes.sizes[a] >= self.tuning.run_of_rows
        return a in w.over and some and alone and below

    # -- tasks

    def tasks(self, loop: Loop, folds: Sequence[Work]) -> list[Stage]:
        """The loop that threads share, in tasks that the sizes alone decide."""
        cut = self.cut(loop, bool(folds))
        if self.threads == ALONE:
            before = [line for w in folds for line in self.begin(w, loop)]
            bounds = Text(f"const int64_t from = 0, to = {cut.total};")
            return [*before, Braces((bounds, *self.share(loop)))]
        self.shared += 1
        total, step = wrapped(cut.total), self.places.size(f"chunk{self.own}", cut.chunk)
        grain = self.places.size(f"grain{self.own}", cut.grain)
        rounds = f"({total} + {step} - 1) / {step}"
        if folds:  # one at least, to say what nothing folds to
            rounds = f"{total} > 0 ? {rounds} : 1"
        tasks, team = f"tasks{self.own}", f"team{self.own}"
        partial = self.partial(folds, loop, max(-(-cut.count // cut.chunk), 1), tasks)
        self.places.add_argument("threads", "int threads", "threads")
        body = (
            Text(
                f"const int64_t from = task * {step}, to = ge2_least(from + {step}, {cut.total});"
            ),
            *partial.first,
            *self.share(loop),
            *partial.last,
        )
        long = 1 + sum(map(length, body)) > self.tuning.lines
        sharing = Sharing(f"{team} > 1", "for schedule(dynamic)", long, count=team)
        return [Tasks(tasks, rounds, team, total, grain, body, sharing, partial.after)]

    @property
    def own(self) -> str:
        """Returns what tells the names of several such loops apart."""
        return "" if self.shared == 1 else str(self.shared)

    def cut(self, loop: Loop, partial: bool) -> Cut:
        """Returns how a loop is cut into tasks. `partial`: their results have to be merged."""
        spec, places = loop.spec, self.places
        assert spec is not None
        block = self.axes.blocks[spec.axes[0]] if spec.role == "panel" else 0
        sizes = [self.axes.sizes[a] for a in spec.axes]
        count = -(-sizes[0] // block) if block else math.prod(sizes)
        each = sum(w.cost * self.volume(w) for w in loop.everything()) // max(count, 1) + 1
        chunk = max(self.tuning.task // each, 1)
        if partial:
            chunk = max(chunk, -(-count // self.tuning.tasks))
        extent = " * ".join(places.extent(a) for a in spec.axes)
        total = f"({extent} + {block - 1}) / {block}" if block else extent
        return Cut(total, count, chunk, max(self.tuning.grain // each, 1))

    def alone(self) -> Loop | None:
        """The loop that threads share, if the kernel is nothing else but scalars before it: then it
        is a function of its own, which computes these for each task.
        """
        *before, child = self.root.children
        if (
            not all(map(statements.is_scalar, before))
            or isinstance(child, Work)
            or child.spec is None
            or child.spec.role not in ("task", "panel")
        ):
            return None
        folds = any(self.homes[w.y].first is child for w in child.everything() if w.y is not None)
        return None if folds else child

    def share(self, loop: Loop) -> list[Stage]:
        """Returns what one task does: its part of an axis, of blocks of it, or of two axes taken as
        one.
        """
        assert loop.spec is not None
        block = self.axes.blocks[loop.spec.axes[0]] if loop.spec.role == "panel" else 0
        first, *rest = loop.spec.axes
        letter = self.places.letters[first]
        if block:
            head = (Text(f"const int64_t {letter}0 = {letter}s * {block};"), self.width(first))
            return [For(f"{letter}s", "from", "to", (*head, *self.inside(loop)))]
        if not rest:
            return self.walk(loop, letter, "from", "to")
        other, n = self.places.letters[rest[0]], self.places.extent(rest[0])
        # one division for all lines: for each it takes as long as ten elements
        begin = Text(f"int64_t {letter} = to ? from / {n} : 0, {other} = to ? from % {n} : 0;")
        on = Text(f"if (++{other} == {n}) {other} = 0, {letter}++;")
        return [begin, For(f"{letter}s", "from", "to", (*self.inside(loop), on))]

    def volume(self, w: Work) -> int:
        return math.prod(self.axes.sizes[a] for a in w.axes)

    def partial(self, folds: Sequence[Work], loop: Loop, tasks: int, count: str) -> Partial:
        """Each of `tasks` tasks (`count` in C) has states of its own,
        which are merged in their order.
        """
        first, last, after = list[Stage](), list[Stage](), list[Stage]()
        for w in folds:
            assert w.y is not None
            home, name, ctype = self.homes[w.y], self.state(w), state_type(w)
            total, _, size = self.places.span(home)
            parts, place = f"{name}s", self.places.at(home)
            self.places.add_argument(
                parts, f"{ctype} *{parts}", "partial", total * tasks * bytes_of(ctype)
            )
            if home.dims:
                first.append(Text(f"{ctype} *{name} = {parts} + task * {wrapped(size)};"))
                first += self.each(home, f"{name}{place} = {start(w)};", loop)
                after.append(Text(f"{ctype} *{name} = {parts};"))
                other = f"{parts}[task * {wrapped(size)} + {place[1:-1]}]"
                merging = self.each(home, merged(w, f"{name}{place}", other), loop)
            else:
                first.append(Text(f"{ctype} {name} = {start(w)};"))
                last.append(Text(f"{parts}[task] = {name};"))
                after.append(Text(f"{ctype} {name} = {parts}[0];"))
                merging = [Text(merged(w, name, f"{parts}[task]"))]
            after.append(For("task", "1", count, tuple(merging)))
        return Partial(tuple(first), tuple(last), tuple(after))

    # -- statements

    def line(self, w: Work) -> list[Text]:
        if w.kind == "store":
            return [self.stored(w)]
        assert w.step is not None and w.y is not None
        comment = self.note(w.step.eqn)
        if w.kind == "fold":
            return self.fold_line(w, comment)
        if statements.is_place(w):
            return self.place(w)
        home, code, name = self.homes[w.y], self.computed(w), label(w.y.name)
        if not home.dims:
            return [Text(f"const {HELD[w.y.dtype]} {name} = {code};", comment)]
        self.keep(w.y, home, HELD[w.y.dtype], name)
        return [Text(f"{name}{self.places.at(home)} = {code};", comment)]

    def place(self, w: Work) -> list[Text]:
        """Returns where an element is that indices name, once they were looked at or will be."""
        assert w.y is not None and w.home is not None
        home, name = self.homes[w.y], label(w.y.name)
        found = [(each, self.operand(each.index)) for each in statements.limits_of(w, self.places)]
        looks = self.looks.get(w, [])
        if not (w.home.innermost and w.home.spec is not None):
            asked = [(each, index) for each, index in found if not each.inside]
            looks = [statements.looked_at(each, index, self.places) for each, index in asked]
        code = " + ".join(statements.term(each, index, self.places) for each, index in found)
        if not home.dims:
            return [*looks, Text(f"const int64_t {name} = {code};")]
        self.keep(w.y, home, "int64_t", name)
        return [*looks, Text(f"{name}{self.places.at(home)} = {code};")]

    def fold_line(self, w: Work, comment: str) -> list[Text]:
        assert w.y is not None
        value = self.operand(w.xs[0])
        name = self.local.get(w)
        if self.sought == (None, True):
            return extreme_of_run(w, self.state(w), value)
        if w in self.by_parts:
            return by_parts(str(name), value, comment)
        if w in self.nans and gathers_index(w):
            index = self.places.index(next(iter(w.over)))
            return [*taken_with_nan(w, self.state(w), self.nans[w], value, index, comment)]
        if w in self.nans:
            assert name is not None
            nan = Text(f"{self.nans[w]} |= {value} != {value};")
            return [nan, Text(larger(w, name, value), comment)]
        if name is None:
            name = self.state_at(w)
        index = self.places.index(next(iter(w.over))) if gathers_index(w) else ""
        if self.sought[1]:
            own = w is self.sought[0]
            return met(w, self.state(w), name, value, index) if own else []
        steady = bool(self.homes[w.y].dims) or (w.home is not None and self.is_brief(w.home))
        return [Text(taken_in(w, name, value, index, steady), comment)]
