"""Reductions by several blocks of threads, and those that need not read each element."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import final

import numpy as np

from ge2.base.arrays import BFLOAT16, FLOAT16, FLOAT32, HALF
from ge2.base.record import record
from ge2.codegen.axes import Loop, Work
from ge2.codegen.kernel_values import Held, Param
from ge2.codegen.layout import Home
from ge2.codegen.text import Argument, Operand, Text
from ge2.ir import Literal, Op
from ge2.ops.random import Draw
from ge2.ops.reduce import Reduce
from ge2.ops.shape import Iota
from ge2.targets.cuda.emit import CudaKernel, Fixed, content_of, is_rounding, words
from ge2.targets.cuda.emit.region import Problem, Statements
from ge2.targets.cuda.emit.words import SUFFIX, Places, power
from ge2.targets.cuda.launch.library_call import Callee
from ge2.targets.cuda.limits import WARP, Chip
from ge2.targets.cuda.load.nvrtc import FLAGS
from ge2.targets.cuda.tuning import Parts

# -------- Results that several blocks gather: each leaves its part, and a second kernel merges them
# in order.


@final
@record
class LibraryLaunch:
    """Functions of a library, and their operands, some of which they write; scratch comes last."""

    call: Callee
    operands: tuple[tuple[Operand, np.dtype], ...]
    written: frozenset[int]


@final
@record
class Kernels:
    """Launches in order, the bytes of arrays that they have for themselves, and a library's
    functions after them, if there are any.
    """

    kernels: tuple[CudaKernel, ...]
    temps: tuple[int, ...] = ()
    library: LibraryLaunch | None = None

    @property
    def scratch(self) -> int:
        """The bytes that they need beside arguments and results."""
        return sum(self.temps) + (0 if self.library is None else self.library.call.workspace)

    @property
    def content(self) -> tuple[str, ...]:
        """Returns what their texts consist of, with the headers that they need, but for numbers."""
        own = (part for k in self.kernels for part in content_of(k))
        called = () if self.library is None else (type(self.library.call).__name__,)
        return (*FLAGS, *own, *called)


@final
@record
class Part:
    """A reduction that another kernel may finish; `axes` are those of its result, in order. `stores`:
    of its result, or of what is made of it, by the works `tail`, for each element.
    """

    fold: Work
    stores: tuple[Work, ...]
    axes: tuple[int, ...]
    tail: tuple[Work, ...] = ()
    again: tuple[Work, ...] = ()  # what both kernels compute

    @property
    def finishing(self) -> tuple[Work, ...]:
        """The works that the other kernel alone does."""
        return self.tail + self.stores


@final
@record
class Gathered:
    """The merging of a result's parts, in CUDA."""

    state: str
    type: str
    start: str
    array: str
    place: str
    some: str
    merged: str
    merge: str


@final
@record
class Finish:
    """The view that `templates/cuda/finish.cu.jinja` prints."""

    index: str
    count: str
    block: int
    parts: tuple[Gathered, ...]
    places: tuple[Text, ...]
    stores: tuple[Text, ...]


def part(problem: Problem, w: Work, order: Sequence[int]) -> Part | None:
    """The reduction, if another kernel may finish it: what reads it does so for each element of the
    result, and reads beside it only others of that form, and what is there before.
    """
    assert w.y is not None
    axes, makers = frozenset(w.y.axes), {x.y: x for x in problem.works if x.y is not None}
    found, folds, again = list[Work](), [w], list[Work]()
    for each in folds:
        waiting = [each.y]
        for y in waiting:
            for r in (r for r in problem.works if y in r.xs and r not in found):
                if r.axes != axes or r.kind == "fold" or (r.kind == "store" and r.xs[1:]):
                    return None  # of another form, or written elsewhere
                found.append(r)
                waiting += [r.y] if r.kind == "compute" else []
        before = [makers[x] for r in found for x in r.xs if x in makers]
        for x in before:
            if x in found or x in folds or x in again:
                continue
            assert x.y is not None
            if not axes.issuperset(x.y.axes) or (x.kind == "fold" and frozenset(x.y.axes) != axes):
                return None
            (folds if x.kind == "fold" else again).append(x)
            before += [] if x.kind == "fold" else [makers[each] for each in x.xs if each in makers]
    stores = tuple(r for r in found if r.kind == "store")
    tail = tuple(r for r in problem.works if r in found and r.kind == "compute")
    if all(map(is_rounding, tail)):
        tail = ()  # a store rounds
    own = tuple(a for a in order if a in axes)
    return Part(w, stores, own, tail, tuple(again)) if stores else None


@final
class Partials:
    """The scratch of some reductions, `count` parts of each, and the kernels that merge them.

    `most`: how many parts there would be of more rows, so that these have the same kernel. `first`:
    the number of the first scratch array.
    """

    def __init__(
        self,
        problem: Problem,
        places: Places,
        parts: Sequence[Part],
        count: int,
        tuning: Parts,
        most: int = 0,
        first: int = 0,
    ) -> None:
        self.problem, self.places, self.parts, self.count = problem, places, parts, count
        self.most, self.tuning, self.first = max(count, most), tuning, first
        self.aside = {w for p in parts for w in p.finishing}

    def total(self, p: Part) -> int:
        return math.prod(self.problem.axes.sizes[a] for a in p.axes)

    @property
    def temps(self) -> tuple[int, ...]:
        return tuple(self.count * self.total(p) * words.state_bytes(p.fold) for p in self.parts)

    def array(self, p: Part, const: bool) -> tuple[str, Argument]:
        name = f"{words.state_of(p.fold)}_parts"
        head = f"{'const ' if const else ''}{words.state_type(p.fold)} *__restrict__ {name}"
        operand = Operand("part", self.first + list(self.parts).index(p), (1,))
        return name, Argument(head, "array" if const else "result", (operand, np.dtype(np.uint8)))

    def part(self, w: Work) -> Part:
        """The parts of a fold."""
        return next(p for p in self.parts if p.fold is w)

    def leave(self, w: Work, number: str, place: str, value: str) -> Text:
        """The statement that leaves part `number` of a result; `place` is which element of it."""
        p = self.part(w)
        name, argument = self.array(p, const=False)
        self.places.add_argument(name, argument.declaration, argument.kind, argument.value)
        size = " * ".join([number, *map(self.places.extent, p.axes)])
        at = " + ".join(each for each in (size if p.axes else number, place) if each != "0")
        return Text(f"{name}[{at or '0'}] = {value};")

    def kernels(self) -> list[CudaKernel]:
        """One for all results that have the same axes."""
        alike: dict[tuple[int, ...], list[Part]] = {}
        for p in self.parts:
            alike.setdefault(p.axes, []).append(p)
        return [self.kernel(parts) for parts in alike.values()]

    def kernel(self, parts: Sequence[Part]) -> CudaKernel:
        """One column of parts an element, whose rows the threads of a block share."""
        axes, total = parts[0].axes, self.total(parts[0])
        places = Places(self.problem.axes, self.problem.operands, axes)
        columns, block, at_once = self.shape(total, parts)
        extent = " * ".join(map(places.extent, axes)) or "1"
        gathered = tuple(self.gathered(each, places, extent) for each in parts)
        split = tuple(map(Text, places.split("p", axes)))
        alone = [each for each in parts if not each.tail]
        stores = tuple(self.stored(each, store, places) for each in alone for store in each.stores)
        gone_on, helpers = self.gone_on([each for each in parts if each.tail], places)
        stores += gone_on
        view = Finish(places.whole, extent, block, gathered, split, stores)
        names = [self.problem.names[p.fold.y.var] for p in parts if p.fold.y and p.fold.y.var]
        what = f"merges the parts of {', '.join(names)}" if names else "merges parts"
        fixed = (
            Fixed("COLUMNS", columns, "elements side by side in a block"),
            Fixed(
                "ROWS", block // columns, "threads below each other, which share the parts of one"
            ),
            Fixed("AT_ONCE", at_once, "parts that a thread reads at once"),
        )
        arguments = tuple(places.arguments.values())
        return CudaKernel(
            "finish", what, arguments, (), block, (-(-total // columns), 1), fixed,
            helpers=helpers, template="cuda/finish.cu.jinja", view=view,
        )  # fmt: skip

    def gone_on(
        self, parts: Sequence[Part], places: Places
    ) -> tuple[tuple[Text, ...], tuple[str, ...]]:
        """The statements of what is made of results, and the helpers of users' expressions in them."""
        works = {w for p in parts for w in (*p.again, *p.finishing)}
        root = Loop(None, None)
        root.children += (replace(w, home=root) for w in self.problem.works if w in works)
        said = Statements(self.problem, places, root)
        for p in parts:
            assert p.fold.y is not None
            said.homes[p.fold.y], said.makers[p.fold.y] = Home(root), p.fold
        lines = tuple(said.line(w) for w in root.works)
        return lines, tuple(said.helpers)

    def shape(self, total: int, parts: Sequence[Part]) -> tuple[int, int, int]:
        """Elements side by side and threads of a block, and the parts that a thread reads at once.

        No more threads share an element's parts than give the chip enough of them, since they meet
        when each has its sum; and a thread has registers for so many parts of all results.
        """
        columns, block = self.columns(total), self.tuning.block
        sizes = [words.state_bytes(p.fold) for p in parts]
        at_once = self.tuning.at_once // max(sizes)
        if self.most * columns > at_once * block:
            block = self.tuning.largest
        enough = 1 << (-(-self.tuning.threads // max(total, 1)) - 1).bit_length()
        if enough * columns < block:
            block = self.tuning.block
            columns = max(columns, block // enough)
        each = -(-self.most * columns // block)  # of a thread
        fitting = min(at_once, self.tuning.held // sum(sizes), 1 << (each - 1).bit_length())
        return columns, block, max(fitting, 2)

    def columns(self, total: int) -> int:
        """Elements side by side in a block: few where blocks would be too few for the chip."""
        columns = min(32, 1 << (total - 1).bit_length()) if total else 1
        while columns > self.tuning.narrow and -(-total // columns) < self.tuning.blocks:
            columns //= 2
        return columns

    def gathered(self, p: Part, places: Places, extent: str) -> Gathered:
        """Returns how an element's parts become one."""
        name, argument = self.array(p, const=True)
        places.add_argument(name, argument.declaration, argument.kind, argument.value)
        places.size("parts", self.count)
        w, state, part = p.fold, words.state_of(p.fold), "part + u * ROWS"
        place = f"({part}) * {extent} + p" if extent != "1" else f"{part} + p"
        some = f"{state}_some"
        merged = words.merged_text(w, state, f"{some}[u]")
        return Gathered(
            state, words.state_type(w), words.start(w), name, place, some, merged, words.merge_of(w)
        )  # fmt: skip

    def stored(self, p: Part, store: Work, places: Places) -> Text:
        assert store.param is not None
        value, dtype = words.read(p.fold, words.state_of(p.fold)), store.param.var.type.dtype
        if dtype in HALF:
            value = f"ge2_cast_f32_{SUFFIX[dtype]}({value})"
        return Text(f"{places.result(store.param)}[{places.element(store.param)}] = {value};")


# -------- Folds over a row that need less than a look at each element: one that picks an element by
# its place, and extremes of half types, which are found two at a time.


PAIRED = {BFLOAT16: "bf16", FLOAT16: "f16"}
EXTREMES = {"reduce_max": "max", "reduce_min": "min"}


@final
@record
class Pick:
    """A fold of `where(place == at, x, neutral)`, which is x at the place `at`. `works` make x."""

    fold: Work
    at: Held
    x: Held
    works: tuple[Work, ...]


def pick(w: Work, said: Statements, works: Sequence[Work], lane: int) -> Pick | None:
    """The fold as a pick along the axis `lane`, if it is one and x is made of
    what lies in memory.
    """
    if w.kind != "fold" or w.over != {lane} or w.xs[0].dtype != FLOAT32:
        return None
    where = made(said, w.xs[0], "where")
    if where is None or not neutral(where.xs[2], words.op_of(w)):
        return None
    same = made(said, where.xs[0], "eq")
    if same is None:
        return None
    places = [x for x in same.xs if isinstance(x.leaf, Iota) and x.axes == (lane,)]
    others = [x for x in same.xs if x.leaf is None and lane not in x.axes]
    if len(places) != 1 or len(others) != 1:
        return None
    needed = chain(where.xs[1], said, works, lane)
    return None if needed is None else Pick(w, others[0], where.xs[1], tuple(needed))


def made(said: Statements, x: Held, name: str) -> Work | None:
    """The work that makes a value, if its operation has that name."""
    w = said.makers.get(x)
    named = w is not None and w.kind == "compute" and w.step is not None and w.step.eqn is not None
    return w if named and w is not None and w.step.eqn.op.name == name else None  # type: ignore[union-attr]


def neutral(x: Held, op: Op) -> bool:
    """True if x is the literal that changes no state of the reduction."""
    if not isinstance(x.leaf, Literal) or not isinstance(op, Reduce):
        return False
    return bool(x.leaf.value == op.neutral)


def chain(x: Held, said: Statements, works: Sequence[Work], lane: int) -> list[Work] | None:
    """The works that make x from arrays in memory, in order; None if it needs others."""
    if x.leaf is not None or lane not in x.axes:
        return []
    w = said.makers.get(x)
    if w is None or w not in works or w.kind != "compute" or w.step is None or said.homes[x].dims:
        return None
    if w.step.eqn is not None and isinstance(w.step.eqn.op, Draw):
        return None
    found: list[Work] = []
    for each in w.xs:
        before = chain(each, said, works, lane)
        if before is None:
            return None
        found += [b for b in before if b not in found]
    return [*found, w]


def paired(w: Work, said: Statements) -> Param | None:
    """The array of a half type whose largest or least element a fold finds."""
    if w.kind != "fold" or str(words.op_of(w).name) not in EXTREMES or w.xs[0].dtype != FLOAT32:
        return None
    x = w.xs[0]
    while x.leaf is None:
        maker = said.makers.get(x)
        if maker is None or maker.kind != "compute" or maker.step is None or said.homes[x].dims:
            return None
        eqn = maker.step.eqn
        if eqn is not None and eqn.op.name != "convert_element_type":
            return None
        if eqn is not None and eqn.outs[0].type.dtype != FLOAT32:
            return None
        x = maker.xs[0]
    return x.leaf if isinstance(x.leaf, Param) and x.leaf.var.type.dtype in PAIRED else None


def largest_of(w: Work, p: Param, pack: str) -> str:
    """The fold of a pack, in CUDA."""
    return f"ge2_pair_{EXTREMES[str(words.op_of(w).name)]}_{PAIRED[p.var.type.dtype]}({pack})"


def without(works: Sequence[Work], gone: set[Work], said: Statements) -> list[Work]:
    """The works that are left without those that are gone; what only these read goes too."""
    while True:
        unread = [
            w
            for w in works
            if w not in gone and w.kind == "compute" and w.y is not None
            if said.readers.get(w.y) and all(r in gone for r in said.readers[w.y])
        ]
        if not unread:
            return [w for w in works if w not in gone]
        gone |= set(unread)


# -------- Blocks a few columns wide: folds over rows where wide ones would leave most of a GPU
# idle.
# A block has one or a few sectors of memory of each row, and all rows, so that nothing is left to
# merge after it. Its threads read some rows at once each. What is small takes as long as its reads
# take to arrive once.


SECTOR = 32  # bytes that the cache hands over


@final
@record
class Narrow:
    """Threads side by side and of a block, and rows that a thread reads at once."""

    columns: int
    block: int
    at_once: int

    @property
    def fixed(self) -> list[Fixed]:
        return [
            Fixed(
                "ROWS", self.block // self.columns, "threads below each other, which share the rows"
            ),
            Fixed("AT_ONCE", self.at_once, "rows that a thread reads at once"),
        ]


def narrow(problem: Problem, over: frozenset[int], chip: Chip) -> Narrow | None:
    """The blocks of a region that folds the axes `over`, if narrow ones are better."""
    sizes, tuning = problem.axes.sizes, chip.tuning.narrow_columns
    kept = [a for a in sorted(sizes) if a not in over]
    rows, width = math.prod(sizes[a] for a in over), math.prod(sizes[a] for a in kept)
    # times as many blocks could run as there would be otherwise
    idle = 4 if rows * width > 4 * tuning.large else 2
    if (
        not over
        or not kept
        or rows < tuning.few
        or not 0 < idle * width <= tuning.wide * chip.multiprocessors
    ):
        return None
    read = [
        p
        for p in problem.axes.strides
        if p not in problem.outs and not problem.operands[p.var].value
    ]
    rowed = [p for p in read if any(problem.axes.strides[p].get(a) for a in over)]
    bytes_of = [p.var.type.dtype.itemsize for p in rowed or read] or [4]
    at_once = min(tuning.at_once, 1 << max((tuning.bytes // sum(bytes_of)).bit_length() - 1, 0))
    columns = min(WARP, max(SECTOR // max(bytes_of), power(width // (2 * chip.multiprocessors)), 2))
    parts = [part(problem, w, kept) for w in problem.folded]
    shared = all(p is not None for p in parts)
    if shared and (
        rows * columns > tuning.rounds * tuning.largest * tuning.at_once
        or rows * width > tuning.large
    ):
        return None
    below = tuning.below if rows <= tuning.short else tuning.largest
    return Narrow(columns, min(tuning.largest, max(tuning.block, below * columns)), at_once)


def crosses(problem: Problem, over: frozenset[int], chip: Chip) -> bool:
    """True if much is computed of each pair of a row and a column, and no array has an element for
    it: a thread has several columns, for which what it reads of a row is the same. Blocks that
    cannot share the rows of their columns are to be as many as keep the chip busy.
    """
    axes, tuning = problem.axes, chip.tuning.columns
    if (
        not over
        or over == frozenset(axes.sizes)
        or problem.placed  # read element by element
        or any(
            not over.isdisjoint(on := {a for a, s in strides.items() if s}) and on - over
            for strides in axes.strides.values()
        )
    ):
        return False
    kept = axes.sizes[problem.lane_of(a for a in axes.sizes if a not in over)]
    works = [w for w in problem.works if w.kind == "compute" and w.axes & over and w.axes - over]
    many = math.prod(axes.sizes.values()) >= tuning.pairs and kept >= WARP * tuning.crossed
    if not many or sum(w.cost for w in works) < tuning.each:
        return False
    beside = [a for a in sorted(axes.sizes) if a not in over]
    shared = all(part(problem, w, beside) for w in problem.folded)
    blocks = math.prod(axes.sizes[a] for a in beside) // (WARP * tuning.crossed)
    return shared or 2 * blocks >= chip.multiprocessors
