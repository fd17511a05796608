"""Kernels of a thread an element: moves, joins, pads, random bits; and of what a mask chooses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, final

import numpy as np

from ge2.base.arrays import BOOL, HALF
from ge2.base.record import record
from ge2.choice import Problem, Variant, described
from ge2.codegen.axes import strides_of
from ge2.codegen.layout import Moved, copied_around, inside, joined, merged, zeros_around
from ge2.codegen.text import Operand, Parameters, Text, whole
from ge2.ir import ArrayType, Dims
from ge2.ops.elementwise import MUL
from ge2.ops.index import UpdateSlice
from ge2.ops.random import RandomBits, RandomFold
from ge2.ops.shape import Concatenate, Pad
from ge2.ops.sort import ToFront
from ge2.targets.cuda.device import Caps
from ge2.targets.cuda.emit import CudaKernel, Fixed
from ge2.targets.cuda.emit.special_reductions import Kernels
from ge2.targets.cuda.emit.split_region import regional
from ge2.targets.cuda.emit.words import FAR, HELD, STORED, SUFFIX, WIDEST, expression, widened
from ge2.targets.cuda.kernels import Cuda, CudaWays, Operands, copying, filling
from ge2.targets.cuda.limits import Chip
from ge2.targets.cuda.tuning import Joins

# -------- Kernels of a thread an element: where it is along axes of any strides, and the parameters
# it needs.


FRONT = (
    1 << 12,
    8,
    256,
)  # elements of a block of order.cuh at a time, blocks a multiprocessor, threads
ROOM = 1 << 12  # elements beyond the last that a place may come to before it is found to be there
OVER, ALONG = "ijlmoq", "uzac"  # letters of axes of indices, and of those along a row


def lettered(letters: str, count: int) -> list[str]:
    """A name for each of so many axes.

    >>> lettered("ij", 3)
    ['i', 'j', 'i2']
    """
    return [letters[n] if n < len(letters) else f"{letters[0]}{n}" for n in range(count)]


def far(counts: Iterable[int], *arrays: tuple[Dims, Dims]) -> bool:
    """True if places need 64 bits: for so many elements, or arrays of such (shape, strides)."""
    spans = (
        1 + sum(abs(s) * (n - 1) for n, s in zip(shape, strides, strict=True))
        for shape, strides in arrays
        if 0 not in shape
    )
    return max(*counts, *spans, 0) + ROOM >= FAR


def packed(dtype: np.dtype, *multiples: int) -> int:
    """Neighbouring elements that one access moves, where those numbers of
    elements are multiples of theirs.

    >>> packed(np.dtype("f4"), 12, 0), packed(np.dtype("f2"), 12, 2), packed(np.dtype("f8"), 3)
    (4, 2, 1)
    """
    found = max(WIDEST // dtype.itemsize, 1)
    while found > 1 and any(each % found for each in multiples):
        found //= 2
    return found


@final
@record
class Spread:
    """The element that a thread has: its number among so many, and its place along each axis."""

    index: str
    block: int
    number: str = ""
    count: str = ""  # empty if there is but one element
    places: tuple[Text, ...] = ()


@final
@record
class Elements:
    """The view of a kernel that does some statements for each element."""

    spread: Spread
    statements: tuple[Text, ...]


@final
class Grid(Parameters):
    """The parameters of a kernel, each declared when it is first named.

    `far`: places have 64 bits; `block`: threads of a block.
    """

    def __init__(self, far: bool, block: int) -> None:
        super().__init__()
        self.whole, self.block = "int64_t" if far else "int", block
        self.fixed: list[Fixed] = []

    # -- parameters

    def add(self, name: str, declaration: str, kind: str, value: Any) -> str:
        return self.add_argument(name, f"{declaration}{name}", kind, value)

    def array(self, name: str, operand: Operand, dtype: np.dtype, stored: str = "") -> str:
        """An array that is read, or the number that stands in its place."""
        if operand.value:
            return self.add(name, f"{HELD[dtype]} ", "value", (operand, dtype))
        return self.add(
            name, f"const {stored or STORED[dtype]} *__restrict__ ", "array", (operand, dtype)
        )

    def result(self, name: str, operand: Operand, dtype: np.dtype, stored: str = "") -> str:
        return self.add(
            name, f"{stored or STORED[dtype]} *__restrict__ ", "result", (operand, dtype)
        )

    def size(self, name: str, value: int) -> str:
        return self.add(name, f"{self.whole} ", "size", value)

    # -- places

    def step(self, name: str, vector: Operand) -> str:
        """The distance of elements."""
        (step,) = vector.strides
        return "1" if step == 1 else self.size(f"{name}_step", step)

    def element(self, name: str, operand: Operand, dtype: np.dtype, place: str) -> str:
        """An element of an array as it is stored; a number, where that stands in its place."""
        self.array(name, operand, dtype)
        if not operand.value:
            return f"{name}[{place}]"
        return f"ge2_cast_f32_{SUFFIX[dtype]}({name})" if dtype in HALF else name

    def spread(self, letters: Sequence[str], sizes: Sequence[int], pack: int = 1) -> Spread:
        """A thread for each element along some axes, or each PACK along the last: where it is."""
        if not letters:
            return Spread(self.whole, self.block)
        extents, whole = self.sizes(letters, sizes), ""
        if pack > 1:
            self.fixed.append(Fixed("PACK", pack, "neighbours that a thread moves at once"))
            extents[-1] = f"({extents[-1]} / PACK)" if len(letters) > 1 else f"{extents[-1]} / PACK"
            whole = " * PACK"
        linear = letters[0] if len(letters) == 1 and not whole else "p"
        places = self.split("p", letters, extents, whole) if linear == "p" else ()
        return Spread(self.whole, self.block, linear, product(extents), tuple(places))

    def split(
        self, linear: str, letters: Sequence[str], extents: Sequence[str], whole: str = ""
    ) -> list[Text]:
        """The place along each axis, from that among all; `whole`: what the
        last is to be multiplied by.
        """
        found, rest, last = [], linear, len(letters) - 1
        for n, (letter, extent) in enumerate(reversed(list(zip(letters, extents, strict=True)))):
            place = rest if n == last else f"{rest} % {extent}"
            found.append(Text(f"const {self.whole} {letter} = {place}{'' if n else whole};"))
            rest = f"{rest} / {extent}" if " " not in rest else f"({rest}) / {extent}"
        return found

    def kernel(
        self, kind: str, graph: str, view: Any, threads: int, template: str = "elements"
    ) -> CudaKernel:
        """A kernel of so many threads: of a family's template, or of statements alone."""
        if isinstance(view, tuple):
            return replace(self.kernel(kind, graph, None, threads, "kernel"), body=view)
        arguments, fixed = tuple(self.arguments.values()), tuple(self.fixed)
        return CudaKernel(
            kind, graph, arguments, (), self.block, (-(-threads // self.block), 1), fixed,
            template=f"cuda/{template}.cu.jinja", view=view,
        )  # fmt: skip


def product(terms: Sequence[str]) -> str:
    return " * ".join(terms) or "1"


def added(*terms: str) -> str:
    """A sum without what is nothing.

    >>> added("at", "0", "i")
    'at + i'
    """
    return " + ".join(t for t in terms if t != "0") or "0"


@final
@record
class MadeRows:
    """Updates that are made where they are summed: number n is the row of an array that its index
    names, or row n of the array repeated, times its element of each of the factors.
    """

    rows: int  # of the array
    index: tuple[ArrayType, Operand] | None
    factors: tuple[tuple[ArrayType, Operand], ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"by{n}" for n in range(len(self.factors)))

    def read(self, grid: Grid, row: str) -> list[Text]:
        """Statements: which `row` update number order[k] is of, and its factors."""

        def element(name: str, dtype: np.dtype, operand: Operand) -> str:
            return f"{grid.array(name, operand, dtype)}[{grid.place(name, ['update'], operand.strides)}]"

        at = f"update % {grid.size('rows', self.rows)}"
        if self.index is not None:
            dtype, named = self.index[0].dtype, element("index", self.index[0].dtype, self.index[1])
            at = f"({grid.whole})ge2_index_{SUFFIX[dtype]}({named}, {grid.size('rows', self.rows)})"
        lines = [f"const {grid.whole} update = order[k];", f"const {grid.whole} {row} = {at};"]
        for name, (t, operand) in zip(self.names, self.factors, strict=True):
            factor = element(f"all_{name}", t.dtype, operand)
            lines.append(f"{name}[b] = {widened(t.dtype, factor) if t.dtype in HALF else factor};")
        return [Text(line) for line in lines]

    def times(self, update: str, held: np.dtype) -> str:
        """An update, from its row."""
        for name in self.names:
            update = expression(MUL.lowering.expression, [update, f"{name}[b]"], held, held)
        return update


# -------- Joining, padding and updating arrays in CUDA: every part is written where it belongs, and
# is copied once.
# Parts that were made there already (`problem.shared`) are not written again.


@final
class CudaConcatenate(CudaWays):
    name = "concatenate in CUDA"
    ops = (Concatenate,)
    anywhere = True

    def variants(self, problem: Problem, caps: Caps) -> tuple[Variant, ...]:
        (ins, outs), chip = problem.arrays, caps.chip
        op, why = problem.op, self.several(problem, chip.tuning.joins)
        assert isinstance(op, Concatenate)
        axis, to, there = op.axis, outs[0], [i for _, i in problem.shared]
        one = Variant(
            "in one kernel", lambda: Kernels((joining(problem, axis, ins, to, chip),)), why
        )
        copies = partial(joined, axis, problem.inputs, ins, to, there)
        return one, Variant("a copy of each part", lambda: moved(copies(), chip))

    def several(self, problem: Problem, most: Joins) -> str:
        """The reason why parts are copied one by one; "" if one kernel joins them."""
        (to,), parts = problem.outs, sum(x.size > 0 for x in problem.inputs)
        if problem.shared:
            return "some parts are where they belong"
        if not 1 < parts <= most.parts:
            return f"there are {parts} parts, not 2 to {most.parts}"
        return f"there are {to.size} elements" if to.size > most.elements else ""


def moved(moves: Iterable[Moved], chip: Chip) -> Kernels:
    """The kernels of each, one after another."""
    return Kernels(tuple(kernel for each in moves for kernel in regional(*each, chip).kernels))


@final
@record
class Part:
    """One of the arrays that are joined: its name, the place of an element, where the next begins."""

    name: str
    place: str
    end: str


@final
@record
class Joining:
    """The view that `templates/cuda/concatenate.cu.jinja` prints; `letter`: the place along the
    axis.
    """

    spread: Spread
    letter: str
    to: str
    parts: tuple[Part, ...]


def joining(problem: Problem, axis: int, ins: Operands, target: Operand, chip: Chip) -> CudaKernel:
    """Each element of the result is read from the part that it is of."""
    (to,) = problem.outs
    axes = [a for a in range(to.ndim) if to.shape[a] != 1 or a == axis]
    parts = [(x, source) for x, source in zip(problem.inputs, ins, strict=True) if x.size]
    arrays = ((x.shape, source.strides) for x, source in parts)
    places = far((to.size,), (to.shape, target.strides), *arrays)
    grid = Grid(places, chip.tuning.elements.block)
    letters = lettered(OVER, len(axes))
    spread, joined = grid.spread(letters, [to.shape[a] for a in axes]), list[Part]()
    result = grid.place("y", letters, [target.strides[a] for a in axes])
    end = 0
    for n, (x, source) in enumerate(parts):
        name, before, end = f"x{n}", end * source.strides[axis], end + x.shape[axis]
        place = grid.place(name, letters, [source.strides[a] for a in axes])
        back = f" - {grid.size(f'back{n}', before)}" if before else ""
        last = n + 1 == len(parts)
        joined.append(Part(name, f"{place}{back}", "" if last else grid.size(f"end{n}", end)))
        grid.array(name, source, x.dtype)
    grid.result("y", target, to.dtype)
    view = Joining(spread, letters[axes.index(axis)], result, tuple(joined))
    return grid.kernel("concatenate", described(problem), view, to.size, "concatenate")


@final
class CudaPad(Cuda):
    name = "pad in CUDA"
    ops = (Pad,)
    anywhere = True

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        (ins, outs), chip = problem.arrays, caps.chip
        op, (x,), (to,), (target,) = problem.op, problem.inputs, problem.outs, outs
        assert isinstance(op, Pad)
        if not to.ndim:
            return copying(x, to, ins[0], target, chip)
        start, step, first, shape = inside(op, x.shape, to.shape)
        if not math.prod(shape):
            return filling(to, None, target, chip) if to.size else Kernels(())
        if (0, 0) in problem.shared:
            return moved(zeros_around(to, target, start, shape), chip)
        source, frame = ins[0].part(first, (1,) * x.ndim), Frame(start, step, shape)
        return Kernels((padding(problem, frame, source, target, chip),))


@final
@record
class Frame:
    """The places of elements in a larger array: the first, how far apart,
    and how many, of each axis.
    """

    start: Dims
    step: Dims
    shape: Dims


@final
@record
class Side:
    """An axis of the result.

    `low`, `high`, `step`: where elements of `x` are; all along it if `bare`.
    """

    size: int
    x: int
    y: int
    low: int
    high: int
    step: int

    @property
    def bare(self) -> bool:
        return (self.low, self.high, self.step) == (0, self.size, 1)

    def joined(self, inner: Side) -> Side | None:
        """This axis and the one within it as one, if both arrays treat them so."""
        fits = (
            self.bare
            and inner.bare
            and self.x == inner.x * inner.size
            and self.y == inner.y * inner.size
        )
        if not fits:
            return None
        size = self.size * inner.size
        return Side(size, inner.x, inner.y, 0, size, 1)


def sides(to: ArrayType, frame: Frame, source: Operand, target: Operand) -> list[Side]:
    found: list[Side] = []
    each = zip(
        to.shape, source.strides, target.strides, frame.start, frame.step, frame.shape, strict=True
    )
    for n, x, y, low, step, count in each:
        side = Side(n, x, y, low, low + (count - 1) * step + 1, step if count > 1 else 1)
        if n == 1:
            continue
        whole = found[-1].joined(side) if found else None
        found = [*found[:-1], whole] if whole else [*found, side]
    return found


@final
@record
class Padding:
    """The view that `templates/cuda/pad.cu.jinja` prints."""

    spread: Spread
    inside: str
    to: str
    source: str
    stored: str
    packed: bool


def padding(
    problem: Problem, frame: Frame, source: Operand, target: Operand, chip: Chip
) -> CudaKernel:
    """Each element of the result is one of `x`, or zero."""
    (x,), (to,) = problem.inputs, problem.outs
    axes = sides(to, frame, source, target)
    places = far((to.size,), (x.shape, source.strides), (to.shape, target.strides))
    grid = Grid(places, chip.tuning.elements.block)
    letters = lettered(OVER, len(axes))
    pack = side_by_side(axes, x.dtype, source, target)
    spread = grid.spread(letters, [s.size for s in axes], pack)
    tests, terms = [], []
    for letter, side in zip(letters, axes, strict=True):
        at = letter if not side.low else f"({letter} - {grid.size(f'low_{letter}', side.low)})"
        if not side.bare:
            tests += [f"{letter} >= {at.split(' - ')[1][:-1]}"] if side.low else []
            tests += [f"{letter} < {grid.size(f'high_{letter}', side.high)}"]
        if side.step > 1:
            step = grid.size(f"step_{letter}", side.step)
            tests.append(f"{at} % {step} == 0")
            at = f"{at} / {step}"
        stride = "" if side.x == 1 else f" * {grid.size(f'x_{letter}', side.x)}"
        terms += [f"{at}{stride}"] if side.x else []
    grid.array("x", source, x.dtype)
    grid.result("y", target, x.dtype)
    place, stored = grid.place("y", letters, [s.y for s in axes]), STORED[x.dtype]
    inside = " && ".join(tests) or "true"
    view = Padding(spread, inside, place, added(*terms), stored, pack > 1)
    return grid.kernel("pad", described(problem), view, to.size // pack, "pad")


def side_by_side(axes: list[Side], dtype: np.dtype, source: Operand, target: Operand) -> int:
    """Returns how many neighbours are moved at once."""
    if not axes or not axes[-1].bare or axes[-1].x != 1 or axes[-1].y != 1:
        return 1
    strides = [s for side in axes[:-1] for s in (side.x, side.y)]
    return packed(dtype, axes[-1].size, *strides, source.offset, target.offset)


@final
class CudaUpdateSlice(Cuda):
    name = "update of a slice in CUDA"
    ops = (UpdateSlice,)
    anywhere = True

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        (ins, outs), chip = problem.arrays, caps.chip
        op, (x, u) = problem.op, problem.inputs
        assert isinstance(op, UpdateSlice)
        whole, there = (0, 0) in problem.shared, (0, 1) in problem.shared
        if there and not whole:
            around = copied_around(x, op.start, u.shape, op.step, ins[0], outs[0])
            return moved(around, chip)
        first = () if whole else copying(x, x, ins[0], outs[0], chip).kernels
        to = outs[0].part(op.start, op.step)
        then = copying(u, u, ins[1], to, chip).kernels if u.size and not there else ()
        return Kernels((*first, *then))


@final
class CudaToFront(Cuda):
    """The elements of a vector that a mask chooses: blocks count theirs, and then write them."""

    name = "elements moved to the front in CUDA"
    ops = (ToFront,)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        ((mask, x, rest), (y,)), t = problem.arrays, problem.inputs[1]
        least, blocks, block = FRONT
        tile = -(-t.size // (least * blocks * caps.chip.multiprocessors)) * least
        wide, blocks = far((t.size,), (t.shape, x.strides)), -(-t.size // tile) if tile else 0
        number, kernels = np.dtype(np.int64 if wide else np.int32), list[CudaKernel]()
        counts, title = whole("temp", 0, (blocks,)), described(problem)
        for first in (True, False) if blocks else ():
            grid = Grid(wide, block)
            grid.array("mask", mask, BOOL)
            (grid.result if first else grid.array)("counts", counts, number)
            of = [f"mask, {grid.step('mask', mask)}"]
            if not first:
                some = grid.element("rest", rest, t.dtype, "0")
                of.append(f"{grid.array('x', x, t.dtype)}, {grid.step('x', x)}, {some}")
            of += [grid.size("n", t.size), grid.size("tile", tile), "counts"]
            of += [] if first else [grid.result("y", y, t.dtype)]
            name = "counts" if first else f"moves<{STORED[t.dtype]}>"
            line = Text(f"ge2_front_{name}({', '.join(of)});")
            kind, what = (
                ("front count", f"{title}\nhow many of a block") if first else ("front move", title)
            )
            kernels.append(grid.kernel(kind, what, (line,), blocks * block))
        return Kernels(tuple(kernels), (blocks * number.itemsize,))


# -------- Random bits and new keys in CUDA: a thread makes a block of 16 bytes of a stream,
# wherever it lies.


BYTES = 16  # of a block of the generator


@final
@record
class Bits:
    """The view that `templates/cuda/random_bits.cu.jinja` prints."""

    spread: Spread
    stored: str
    key: str
    to: str
    wide: int
    left: str


@final
class CudaBits(Cuda):
    name = "random bits in CUDA"
    ops = (RandomBits,)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        ins, outs = problem.arrays
        op, (key,), (to,) = problem.op, problem.inputs, problem.outs
        assert isinstance(op, RandomBits)
        if not to.size:
            return Kernels(())
        n, lines = math.prod(op.shape), key.shape[:-1]
        per = BYTES // op.dtype.itemsize
        blocks, stored = -(-n // per), STORED[op.dtype]
        over, (x_over, y_over) = merged(
            lines, ins[0].strides[:-1], tuple(s * n for s in strides_of(lines))
        )
        letters = lettered(OVER, len(over))
        laid = (key.shape, ins[0].strides), (to.shape, strides_of(to.shape))
        grid = Grid(far((math.prod(lines) * blocks,), *laid), caps.chip.tuning.elements.block)
        spread = grid.spread([*letters, "b"], [*over, blocks])
        grid.fixed.append(Fixed("PER", per, "elements of a block of the generator"))
        first, second = words(grid, ins[0], letters, x_over)
        grid.array("key", ins[0], key.dtype)
        grid.result("y", outs[0], op.dtype)
        wide = packed(op.dtype, *y_over, outs[0].offset)
        left = "" if n % per == 0 else f", {grid.size('n', n)} - b * PER"
        to_block = added(grid.place("y", letters, y_over), "b * PER")
        view = Bits(spread, stored, f"{first}, {second}", to_block, wide, left)
        title, threads = described(problem), math.prod(lines) * blocks
        return Kernels((grid.kernel("random bits", title, view, threads, "random_bits"),))


@final
class CudaFold(Cuda):
    name = "random fold in CUDA"
    ops = (RandomFold,)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        ins, outs = problem.arrays
        op, (key, data), (to,) = problem.op, problem.inputs, problem.outs
        assert isinstance(op, RandomFold)
        if not data.size:
            return Kernels(())
        own = (*ins[0].strides[:-1], *(0,) * (data.ndim - key.ndim + 1))
        of_data = (0,) * data.ndim if ins[1].value else ins[1].strides
        over, (x_over, d_over, y_over) = merged(data.shape, own, of_data, outs[0].strides[:-1])
        letters = lettered(OVER, len(over))
        laid = (to.shape, outs[0].strides), (key.shape, ins[0].strides), (data.shape, of_data)
        grid = Grid(far((data.size,), *laid), caps.chip.tuning.elements.block)
        spread = grid.spread(letters, over)
        first, second = words(grid, ins[0], letters, x_over)
        grid.array("key", ins[0], key.dtype)
        number = grid.element("data", ins[1], data.dtype, grid.place("data", letters, d_over))
        purpose = grid.size("purpose", op.purpose)
        grid.result("y", outs[0], key.dtype)
        to_words = [added(grid.place("y", letters, y_over), t) for t in ("0", "1")]
        lines = (
            Text(
                f"const uint64_t made = ge2_random_fold({first}, {second}, {number}, (uint32_t){purpose});"
            ),
            Text(f"y[{to_words[0]}] = (uint32_t)made;"),
            Text(f"y[{to_words[1]}] = (uint32_t)(made >> 32);"),
        )
        view = Elements(spread, lines)
        return Kernels((grid.kernel("random fold", described(problem), view, data.size),))


def words(
    grid: Grid, key: Operand, letters: list[str], strides: tuple[int, ...]
) -> tuple[str, str]:
    """Both words of a key."""
    place, step = grid.place("key", letters, strides), key.strides[-1]
    after = "1" if step == 1 else grid.size("word", step)
    return f"key[{place}]", f"key[{added(place, after)}]"
