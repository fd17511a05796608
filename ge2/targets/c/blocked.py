"""Blocked NumPy: the executor of the C target where there is no compiler."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, ClassVar, final

import numpy as np

from ge2.base.arrays import BOOL, COMPLEX, COMPLEX64, COMPLEX128, FLOAT32, FLOAT64, HALF, INT64
from ge2.base.record import record
from ge2.choice import Family, Problem, Variant
from ge2.codegen.environment import render
from ge2.codegen.kernel_values import (
    Blocks,
    Held,
    Param,
    Step,
    Tiling,
    Values,
    aligned,
    form,
    safe,
    tiling,
    whole_axes,
    widest,
)
from ge2.codegen.layout import KernelView, Line, Scratch
from ge2.ir import Dims, Eqn, Literal, Names, Var, write
from ge2.ir.text import eqn_text
from ge2.ops.graphs.region import LOOPS, Region
from ge2.ops.pointlike import Pointlike
from ge2.ops.reduce import ArgReduce, Reduce
from ge2.ops.shape import Iota
from ge2.targets.c.numpy_calls import Cell, Cells, Vocabulary, dtype_text, has_text, statements
from ge2.targets.c.tuning import Caps, Tuning

# -------- A region as a kernel of NumPy calls on blocks.


Shared = frozenset[tuple[int, int]]
TEMPLATE = "numpy/region.py.jinja"


def tile(region: Region, tuning: Blocks) -> Tiling:
    """The blocks of a region: smaller where numbers are wider or more arrays are at work."""
    size = math.prod(region.space)
    full = sum(v.type.size == size for v in (*region.graph.inputs, *region.graph.outputs))
    return tiling(region.space, whole_axes(region), widest(region), full + 1, tuning)


def kernel_view(
    region: Region, name: str, tuning: Tuning, shared: Shared = frozenset()
) -> KernelView:
    """The kernel of a region. `shared`: pairs (result, input) that are the same memory."""
    return Kernel(region, tuning, shared).view(name)


def source(view: KernelView) -> str:
    return render(TEMPLATE, view)


class Kernel:
    """Writes a kernel line by line, once it is known where each value lies."""

    def __init__(self, region: Region, tuning: Tuning, shared: Shared) -> None:
        self.region, self.tiling = region, tile(region, tuning.blocks)
        self.tuning = tuning.regions
        self.names = Names()
        self.text = write(region.graph, names=self.names)
        self.values = Values(region, self.tiling, self.names).run()
        self.words = Vocabulary()
        self.parts: dict[str, Line] = {}  # what of each array is in the block
        self.lines: dict[bool, list[Line]] = {True: [], False: []}  # by whether blocks change them
        self.begin: list[Line] = []
        self.after: list[Line] = []
        self.partials: list[Scratch] = []
        self.halves = False
        self.results: dict[Var, Param] = {}
        self.cells = Cells(self.values, self.own(shared), self.tuning.masked).run()

    def own(self, shared: Shared) -> dict[Var, Cell]:
        """The arrays of the results, and from when to when other values may lie in them."""
        region, steps = self.region, self.values.steps
        made = {step.y.var: n for n, step in enumerate(steps)}
        read = {
            p.var: max((n for n, s in enumerate(steps) for x in s.xs if x.leaf is p), default=-1)
            for p in self.values.params.values()
        }
        until = {region.graph.outputs[i]: read.get(region.graph.inputs[j], -1) for i, j in shared}
        found = {}
        for var in region.graph.outputs:
            assert isinstance(var, Var)
            param = self.results[var] = aligned(
                safe(self.names[var]), var, self.values.where[var], region.space
            )
            found[var] = Cell(param.name, param.axes, var.type.dtype, made[var], until.get(var, -1))
            if self.is_partial(steps[made[var]]):
                del found[var]
        return found

    def is_partial(self, step: Step) -> bool:
        """True if a reduction runs over an axis that is cut."""
        return bool(set(step.over) & set(self.tiling.cut))

    def view(self, name: str) -> KernelView:
        for step in self.values.steps:
            self.step(step)
        for y in self.cells.late:
            self.store(y)
        looped = self.tiling.blocks > 1
        scratch = tuple(
            Scratch(c.name, self.block_shape(c.axes), c.dtype) for c in self.cells.scratch
        )
        before, body = self.lines[False], self.lines[True]
        return KernelView(
            name=name, kind=self.region.kind, graph=self.text, tiling=self.tiling,
            imports=tuple(sorted(self.words.imports)), extended=tuple(self.words.extended),
            constants=tuple(Line(f"{c} = {text}") for text, c in self.words.constants.items()),
            inputs=tuple(self.values.params.values()), outputs=tuple(self.results.values()),
            scratch=scratch, partials=tuple(self.partials),
            before=tuple(before) if looped else (), begin=tuple(self.begin),
            blocks=tuple(self.places()), body=tuple(body if looped else before + body),
            after=tuple(self.after), halves=self.halves,
        )  # fmt: skip

    # -- equations

    def step(self, step: Step) -> None:
        y, eqn = step.y, step.eqn
        if self.is_partial(step):
            self.fold_blocks(step)
            return
        into = self.cell_text(self.cells.of[y])
        if eqn is None:
            self.add(
                y.axes,
                f"{self.words.use('copyto')}({into}, {self.operand(step.xs[0])}, casting='unsafe')",
            )
        elif isinstance(eqn.op, Reduce | ArgReduce):
            self.add(y.axes, self.folded(step, into), self.note(eqn))
        elif eqn.op.name == "convert_element_type" and eqn.outs[0].type.dtype in HALF:
            self.rounded(step, into)
        else:
            xs = [self.operand(x) for x in step.xs]
            *first, final = statements(
                eqn, into, xs, self.words, self.dense(self.cells.of[y]), self.temp(step)
            )
            for text in first:
                self.add(y.axes, text)
            self.add(y.axes, final, self.note(eqn))
        if y.var in self.results and y not in self.cells.late:
            self.store(y)

    def add(self, axes: Dims, code: str, comment: str = "") -> None:
        self.lines[self.varies(axes)].append(Line(code, comment))

    def varies(self, axes: Dims) -> bool:
        return bool(set(axes) & set(self.tiling.cut))

    def temp(self, step: Step) -> str:
        cell = self.cells.temps.get(step)
        return "" if cell is None else self.cell_text(cell)

    def dense(self, cell: Cell) -> bool:
        """True if what of an array is in the block has no gaps between its elements."""
        cut = [a for a in cell.axes if a in self.tiling.cut]
        turned = any(p.name == cell.name and p.order is not None for p in self.results.values())
        return not turned and cell.axes[: len(cut)] == tuple(cut)

    def note(self, eqn: Eqn) -> str:
        """The equation, as the graph above the kernel has it."""
        return eqn_text(eqn, self.names)

    def rounded(self, step: Step, into: str) -> None:
        """Through the half type and back."""
        assert step.eqn is not None
        dtype = dtype_text(step.eqn.outs[0].type.dtype)
        real = ".real" if step.eqn.inputs[0].type.dtype in COMPLEX else ""
        narrow = f"{self.operand(step.xs[0])}{real}.astype({self.words.dtype(dtype)})"
        self.add(
            step.y.axes,
            f"{self.words.use('copyto')}({into}, {narrow}, casting='unsafe')",
            self.note(step.eqn),
        )

    def store(self, y: Held) -> None:
        """Copies a result that was made elsewhere to its array."""
        assert y.var is not None
        param, cell = self.results[y.var], self.cells.of[y]
        if cell.name == param.name:
            return
        target = self.part(param.name, param.axes)
        casting = ", casting='unsafe'" if y.dtype != y.var.type.dtype else ""
        self.add(
            param.axes, f"{self.words.use('copyto')}({target}, {self.cell_text(cell)}{casting})"
        )

    # -- operands

    def operand(self, x: Held) -> str:
        if isinstance(x.leaf, Param):
            return self.part(x.name, x.axes)
        if isinstance(x.leaf, Literal):
            return self.words.number(x.leaf.value, x.dtype)
        if isinstance(x.leaf, Iota):
            return self.part(self.count(x.leaf, x.axes), x.axes)
        return self.cell_text(self.cells.of[x])

    def count(self, op: Iota, axes: Dims) -> str:
        dtype = dtype_text(op.dtype if op.dtype not in HALF else FLOAT32)
        numbers = f"{self.words.use('arange')}({op.shape[op.axis]}).astype('{dtype}')"
        shape = form(axes, self.region.space)
        return self.words.constant(
            numbers
            if len(shape) == 1
            else f"{numbers}.reshape({list(shape or [()])})".replace("[()]", "()")
        )

    def cell_text(self, cell: Cell) -> str:
        return self.part(cell.name, cell.axes)

    def part(self, name: str, axes: Dims) -> str:
        """The text of what of an array is in the block."""
        scratch = any(c.name == name for c in self.cells.scratch)
        if not self.varies(axes) or (
            scratch and not (self.tiling.ragged and self.tiling.axis in axes)
        ):
            return name
        index = self.index(axes, scratch)
        self.parts.setdefault(name, Line(f"{name}_ = {name}[{index}]"))
        return f"{name}_"

    def index(self, axes: Dims, scratch: bool = False) -> str:
        """The index of a block within an array that has these axes."""
        parts = [":"] * (len(self.region.space) - min(axes))
        for a in axes:
            if a == self.tiling.axis:
                parts[a - min(axes)] = ": stop - start" if scratch else "start:stop"
            elif a in self.tiling.single and not scratch:
                parts[a - min(axes)] = f"at_{a} : at_{a} + 1"
        while parts[-1] == ":":
            parts.pop()
        return ", ".join(parts)

    def places(self) -> list[Line]:
        """Returns where a block begins and ends, and its part of each array."""
        tiling, space = self.tiling, self.region.space
        if tiling.blocks == 1:
            return []
        along = -(-space[tiling.axis] // tiling.step)
        lines = []
        if tiling.single:
            lines.append(Line(f"rest, at_{tiling.axis} = divmod(block, {along})"))
            inner = reversed(tiling.single[1:])
            lines += [Line(f"rest, at_{a} = divmod(rest, {space[a]})") for a in inner]
            lines.append(Line(f"at_{tiling.single[0]} = rest"))
        start = f"at_{tiling.axis}" if tiling.single else "block"
        lines.append(Line(f"start = {start} * {tiling.step}"))
        stop = f"start + {tiling.step}"
        lines.append(
            Line(f"stop = min({stop}, {space[tiling.axis]})" if tiling.ragged else f"stop = {stop}")
        )
        return [*lines, *self.parts.values()]

    def block_shape(self, axes: Dims) -> Dims:
        extents = [self.tiling.extent(a) for a in range(len(self.region.space))]
        return form(axes, extents)

    # -- reductions

    def folded(self, step: Step, into: str | None, dtype: np.dtype | None = None) -> str:
        """The call that reduces the axes `over` of a block."""
        assert step.eqn is not None
        (x,), op, text = step.xs, step.eqn.op, self.operand(step.xs[0])
        if not step.over:
            return self.folded_nothing(op, into, text, x.dtype)
        axes = tuple(sorted({*x.axes, *step.repeated}))
        if step.repeated:
            text = f"{self.words.use('broadcast_to')}({text}, {self.repeated_shape(axes)})"
        first, target = min(axes), min(step.y.axes, default=len(self.region.space))
        keep = bool(step.y.axes) and any(a > target for a in step.over)
        if isinstance(op, ArgReduce):  # it folds one axis, and leaves those of size 1
            keep = target - first != 1 or keep
        over = step.over if keep else range(first, target)  # axes of size 1 among them
        places = tuple(a - first for a in over)
        dropped = ", ".join(["None"] * (target - first)) if keep else ""
        out = "" if into is None else f", out={into}[{dropped}]" if dropped else f", out={into}"
        typed = "" if dtype is None else f", dtype={dtype_text(dtype)!r}"
        more = f"{typed}{out}{', keepdims=True' if keep else ''}"
        if isinstance(op, ArgReduce):
            return f"{text}.{op.name}({places[0]}{more})"
        place = (
            "None"
            if len(places) == len(self.region.space) - first
            else str(places[0])
            if len(places) == 1
            else str(places)
        )
        drop = f"[{', '.join(['0'] * (target - first))}]" if dropped and into is None else ""
        assert isinstance(op, Reduce)
        return f"{self.words.use(op.ufunc.__name__)}.reduce({text}, {place}{more}){drop}"

    def folded_nothing(self, op: Any, into: str | None, text: str, dtype: np.dtype) -> str:
        """A reduction of single elements; a sum adds zero, as NumPy's does."""
        if op.name == "reduce_sum" and dtype != BOOL:
            return f"{self.words.use('add')}({text}, {self.words.number(0, dtype)}, out={into})"
        value = self.words.number(0, INT64) if isinstance(op, ArgReduce) else text
        return f"{self.words.use('copyto')}({into}, {value})"

    def repeated_shape(self, axes: Dims) -> str:
        ragged = self.tiling.axis if self.tiling.blocks > 1 else -1
        sizes = [
            "stop - start"
            if a == ragged and a in axes
            else str(self.tiling.extent(a))
            if a in axes
            else "1"
            for a in range(min(axes), len(self.region.space))
        ]
        return f"({', '.join(sizes)},)"

    def halved(self, step: Step) -> str:
        """The sum of a large block that nothing reads again: its halves are added in
        place, and again theirs.

        Elements are added in pairs, so nothing is lost to NumPy's own pairwise
        sum, at twice its speed.
        """
        (x,), eqn = step.xs, step.eqn
        cell = self.cells.of.get(x)
        if eqn is None or eqn.op.name != "reduce_sum" or x.dtype not in (FLOAT32, FLOAT64):
            return ""
        if step.y.axes or step.repeated or set(step.over) != set(x.axes):
            return ""
        dying = cell in self.cells.scratch and x.last == self.values.steps.index(step)
        if cell is None or not dying or math.prod(self.block_shape(x.axes)) < self.tuning.halved:
            return ""
        self.words.use("add")
        self.halves = True
        return f"halved({self.cell_text(cell)}.reshape(-1))"

    def fold_blocks(self, step: Step) -> None:
        """A reduction that no block completes: each run of blocks folds its
        own, `finish` folds those.
        """
        eqn, y = step.eqn, step.y
        assert eqn is not None and isinstance(eqn.op, Reduce) and y.var is not None
        wide = partial_dtype(eqn.op, y.dtype)
        axes = tuple(sorted({*y.axes, *set(self.values.where[y.var]) & set(self.tiling.cut)}))
        shape = form(axes, self.region.space)
        name = f"p_{len(self.partials)}"
        self.partials.append(Scratch(name, (self.tiling.parts, *shape), wide))
        self.begin.append(
            Line(f"{name}_ = {name}[part : part + 1]", f"its own {self.names[y.var]}")
        )
        self.begin.append(
            Line(f"{name}_[...] = {self.words.number(eqn.op.neutral_of(wide), wide)}")
        )
        index = self.index(axes) if self.varies(axes) else ""
        place = f"{name}_[0, {index}]" if index else f"{name}_[0]" if shape else f"{name}_"
        ufunc = self.words.use(eqn.op.ufunc.__name__)
        value = self.halved(step) or self.folded(step, None, y.dtype)
        self.lines[True].append(Line(f"{ufunc}({place}, {value}, out={place})", self.note(eqn)))
        param = self.results[y.var]
        total = f"{ufunc}.reduce({name}, 0)"
        self.after.append(
            Line(f"{self.words.use('copyto')}({param.name}, {total}, casting='unsafe')")
        )


def partial_dtype(op: Reduce, dtype: np.dtype) -> np.dtype:
    """Sums and products of blocks are gathered in the next wider type, so that
    many of them lose nothing.
    """
    if op.name in ("reduce_sum", "reduce_prod"):
        return {FLOAT32: FLOAT64, COMPLEX64: COMPLEX128}.get(dtype, dtype)
    return dtype


# -------- Regions on the CPU: NumPy's own SIMD loops, over blocks that stay in cache.


@final
@record
class Launch:
    """A kernel in Python. It serves every region equal to `op`, whose values its view speaks of."""

    op: Region
    source: str
    view: KernelView


class Blocked(Family[Caps, Launch]):
    """One template for the three kinds of region."""

    target = "cpu"
    ops, kinds = (Region,), LOOPS
    kind: ClassVar[str]

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        assert isinstance(op, Region)
        if op.kind != self.kind:
            return f"the region is {op.kind}"
        lacking = [
            e.op.name for e in op.graph.eqns if isinstance(e.op, Pointlike) and not has_text(e.op)
        ]
        return f"{lacking[0]} cannot write to an array that is there already" if lacking else ""

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Launch:
        assert isinstance(problem.op, Region)
        return rendered(problem.op, problem.shared, caps.tuning)


@lru_cache(maxsize=256)
def rendered(op: Region, shared: frozenset[tuple[int, int]], tuning: Tuning) -> Launch:
    """The kernel of a region, written once for equal ones."""
    view = kernel_view(op, op.kind, tuning, shared)
    return Launch(op, source(view), view)


@final
class BlockedPointwise(Blocked):
    name = "blocked pointwise"
    kind = "pointwise"


@final
class BlockedRowwise(Blocked):
    name = "blocked rowwise"
    kind = "rowwise"


@final
class BlockedReduce(Blocked):
    name = "blocked reduce"
    kind = "reduce"
