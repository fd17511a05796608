"""Parts of kernels as templates print them: of threads along what is kept, of groups with a row, and
of scans.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, final

import numpy as np

from ge2.base.arrays import BOOL, COMPLEX, HALF, INEXACT
from ge2.base.record import record
from ge2.choice import Problem, described
from ge2.codegen.axes import Work
from ge2.codegen.text import Argument, Operand, Text
from ge2.ir import Dims
from ge2.ops.graphs.associative import Prefixes
from ge2.ops.reduce import CumMax, CumMin, CumProd, CumSum, Running, state_of
from ge2.ops.reduce import Scan as Lowered
from ge2.targets.cuda.emit import CudaKernel, Fixed, words
from ge2.targets.cuda.emit.region import Plain, mentions
from ge2.targets.cuda.emit.special_reductions import Kernels
from ge2.targets.cuda.emit.words import HELD, STORED, SUFFIX, WIDEST, expression, number
from ge2.targets.cuda.emit.words import Stage as Reduction
from ge2.targets.cuda.limits import Chip

# -------- Parts of kernels whose threads lie along what is kept, as their templates print them.


@final
@record
class Pack:
    """The work on a thread's neighbours: reads, statements for each of them, writes."""

    at: int
    reads: tuple[Text, ...]
    elements: tuple[Text, ...]
    writes: tuple[Text, ...]
    kind: ClassVar = "pack"


def striding(at: str, first: str, end: str, step: str, works: Iterable[Work]) -> str:
    """The head of a loop, but for the type: one whose steps depend on the grid counts its turns down,
    unless branches of functions keep reads of several apart anyway.

    >>> striding("k", "t", "n", "gridDim.y * 8", ())
    'k = t, turns = ge2_turns(k, n, gridDim.y * 8); turns > 0; turns--, k += gridDim.y * 8'
    """
    if "gridDim" not in step or any(w.is_function for w in works):
        return f"{at} = {first}; {at} < {end}; {at} += {step}"
    turns = f"ge2_turns({at}, {end}, {step})"
    return f"{at} = {first}, turns = {turns}; turns > 0; turns--, {at} += {step}"


@final
@record
class RowLoop:
    """A loop over rows; in narrow blocks a thread reads some of them at once. `turns`: rows that it goes
    through without a look at the end, if any number of them.
    """

    at: int
    states: tuple[words.Stage, ...]
    row: str
    count: str
    split: tuple[Text, ...]
    narrow: bool
    start: str = ""
    step: str = ""
    head: str = ""
    unroll: int = 0
    braces: bool = True
    turns: int = 0
    rooms: tuple[Text, ...] = ()
    reads: tuple[Text, ...] = ()
    kind: ClassVar = "rows"


@final
@record
class End:
    """The end of a loop over rows, which is one of loops over `turns` of them, or has braces."""

    at: int
    after: tuple[words.Stage, ...]
    turns: bool
    braces: bool
    kind: ClassVar = "end"


Stage = Plain | Pack | RowLoop | End


@final
@record
class Lying:
    """The layout of threads: its form, the place along other axes, how many packs there are, and
    the axis of neighbours.
    """

    form: str
    places: tuple[Text, ...] = ()
    count: str = ""
    row: str = ""
    extent: str = ""
    line: str = ""  # the row, of several
    last: str = ""  # the last pack of a row, which threads beyond it have too


@final
@record
class LanesView:
    """The view that `templates/cuda/pointwise.cu.jinja` and `columnwise.cu.jinja` print."""

    index: str
    packed: bool
    lying: Lying
    block: int
    stages: tuple[Stage, ...]


def single(stages: Sequence[Stage]) -> bool:
    """True if it is one statement."""
    lines = [line for s in stages if isinstance(s, Plain) for line in s.lines]
    alone = len(lines) == 1 and all(isinstance(s, Plain) for s in stages)
    return alone and not lines[0].body and not lines[0].pragma


# -------- Parts of kernels whose teams of threads have a row each, as `cuda/rowwise.cu.jinja`
# prints them.


@final
@record
class Load:
    """The part of a row that a thread has: its places, in registers or in shared memory, and the
    reading of pack k.
    """

    at: int
    rooms: tuple[Text, ...]
    reads: tuple[Text, ...]
    shared: bool = False
    kind: ClassVar = "load"


@final
@record
class Fetch:
    """The prefetch of a row (`copies`), and its use (`takes`)."""

    rooms: tuple[Text, ...]
    split: tuple[Text, ...]
    copies: tuple[Text, ...]
    rows: tuple[Text, ...]
    takes: tuple[Text, ...]


@final
@record
class GroupLoop:
    """The rows that a thread group has: one, those that it walks to, or all."""

    at: int
    form: str
    row: str
    count: str
    states: tuple[Reduction, ...] = ()
    fetch: Fetch | None = None
    kind: ClassVar = "rows"


@final
@record
class GroupEnd:
    """The end of a loop over rows."""

    at: int
    after: tuple[Reduction, ...]
    kind: ClassVar = "end"


@final
@record
class PassLoop:
    """A loop over what a thread has of a row: `elements` are those of a pack, `apart` those of one
    that has no element which is looked for (`test`).
    """

    reads: tuple[Text, ...]
    elements: tuple[Text, ...]
    apart: tuple[Text, ...]
    test: str
    writes: tuple[Text, ...]
    head: str = ""
    unroll: str = ""
    places: tuple[Text, ...] = ()
    braces: bool = True


@final
@record
class Pass:
    """A stage that goes through a row."""

    at: int
    states: tuple[Reduction, ...]
    picks: tuple[Text, ...]
    waits: bool
    prepared: tuple[Reduction, ...]
    loops: tuple[PassLoop, ...]
    near: str
    folds: tuple[Reduction, ...]
    kind: ClassVar = "pass"


RowStage = Plain | Load | GroupLoop | GroupEnd | Pass


@final
@record
class RowsView:
    """The view that `templates/cuda/rowwise.cu.jinja` prints."""

    index: str
    teams: int
    packed: bool
    stages: tuple[RowStage, ...]


# -------- Parts that kernels of scans share: functions of one element, parameters, the view of their
# templates.
#
# A family's kernel is handed its lines as places in x and y; `templates/cuda/scan` has the
# kernels, templates/cuda/include/ge2/scan.cuh what they call.


FAR = (1 << 31) - (1 << 20)  # elements from which on a place needs 64 bits
FIRST = 2  # the word with which states begin, after the counter: a multiple of 16 bytes
PLACE = re.compile(r"(?:const|constexpr) int(?:64_t)? (\w+) = [^,]*;")
LETTERS = "jlmqrtuvwz"
NAMES = {CumSum: "Sum", CumProd: "Product", CumMax: "Largest", CumMin: "Smallest"}


@final
@record
class Functions:
    """The bodies of the functions on one element: the type of a state, and what each returns."""

    state: str
    start: str
    none: str
    lifted: str
    merge: str
    written: str


@final
@record
class Access:
    """An array as it is read or written.

    `wide`: elements of one access, 0 where they lie `step` apart; `apart`: from line to line.
    """

    wide: int
    step: str
    apart: str = "1"


@final
@record
class ScanView:
    """The view that the templates of scans print (`templates/cuda/scan`); those of one kind are
    last.
    """

    how: str
    functions: Functions
    stored: str
    index: str  # the type of places along the axis
    reverse: str
    x: Access
    y: Access
    places: tuple[Text, ...]  # statements
    numbered: bool  # whether the number of the line, or strip, is needed
    several: bool  # tiles of a line, or lines that share blocks
    height: int = 1  # lines of a block
    kept: bool = False  # in shared memory
    of: str = ""  # what blocks share: line or strip
    tile: str = ""  # its number
    left: str = ""  # how many words come before those of a line
    lined: bool = False  # whether the line of a strip is needed
    block: int = 0  # threads


@final
@record
class How:
    """The work of a scan on an element, as a struct of functions."""

    op: Running
    dtype: np.dtype

    @property
    def name(self) -> str:
        return NAMES[type(self.op)]

    @property
    def accumulator(self) -> np.dtype:
        """The dtype of the accumulator."""
        return state_of(self.op, self.dtype)

    @property
    def scaled(self) -> bool:
        """True if the power of two is apart."""
        return isinstance(self.op, CumProd) and self.dtype in INEXACT

    @property
    def state(self) -> str:
        return f"ge2_scaled_{SUFFIX[self.accumulator]}" if self.scaled else HELD[self.accumulator]

    @property
    def lowering(self) -> Lowered:
        found = self.op.lowering
        assert isinstance(found, Lowered)
        return found

    @property
    def first(self) -> Any:
        """The number that changes none that it is merged with."""
        if isinstance(self.op, CumSum):
            return (
                0
                if self.dtype not in INEXACT
                else -0.0
                if self.dtype not in COMPLEX
                else complex(-0.0, -0.0)
            )
        if isinstance(self.op, CumProd):
            return 1
        lowest = isinstance(self.op, CumMax)
        if self.dtype == BOOL:
            return not lowest
        if self.dtype.kind in "iu":
            info = np.iinfo(self.dtype)
            return info.min if lowest else info.max
        end = -np.inf if lowest else np.inf
        return complex(end, end) if self.dtype in COMPLEX else end

    @property
    def start(self) -> str:
        found = number(self.first, self.accumulator)
        return f"{{{found}, 0}}" if self.scaled else found

    @property
    def none(self) -> str:
        if self.dtype not in HALF:
            return str(int(self.first)) if self.dtype == BOOL else number(self.first, self.dtype)
        value = np.asarray(self.first, np.float32).astype(self.dtype)
        if value != value:  # no infinity: the end of what there is
            value = np.copysign(np.asarray(448, self.dtype).astype(np.float32), self.first).astype(
                self.dtype
            )
        return str(int(value.view(f"u{self.dtype.itemsize}")))

    def cast(self, text: str, dtype: np.dtype, to: np.dtype) -> str:
        return text if dtype == to else f"ge2_cast_{SUFFIX[dtype]}_{SUFFIX[to]}({text})"

    @property
    def lifted(self) -> str:
        if self.dtype == BOOL:
            return "x != 0"
        text = self.cast("x", self.dtype, self.accumulator)
        return f"ge2_scaled_of_{SUFFIX[self.accumulator]}({text})" if self.scaled else text

    @property
    def merge(self) -> str:
        if self.scaled:
            return f"ge2_scaled_mul_{SUFFIX[self.accumulator]}(a, b)"
        return expression(self.lowering.merge, ["a", "b"], self.accumulator, self.accumulator)

    @property
    def written(self) -> str:
        text = f"ge2_unscaled_{SUFFIX[self.accumulator]}(a)" if self.scaled else "a"
        return self.cast(text, self.accumulator, self.dtype)

    def functions(self) -> Functions:
        return Functions(self.state, self.start, self.none, self.lifted, self.merge, self.written)

    @property
    def words(self) -> int:
        """Of 32 bits, of a state."""
        size = self.accumulator.itemsize
        return -(-size // 4) if not self.scaled else {8: 4, 16: 8}[size]


# ----------------------------------------------------------------------------------- what all share


class Scanned(ABC):
    """Lines along an axis of x and y:

    `over` are the other axes, with their strides in each array.
    """

    pack: int  # elements of one access
    whole_lines: str  # why blocks do not share lines; "" if they do

    def __init__(self, problem: Problem, names: Sequence[str], chip: Chip) -> None:
        """`names`: of the arrays that are read, and then of the results."""
        op, self.chip, self.tuning = problem.op, chip, chip.tuning.scans
        assert isinstance(op, Running | Prefixes)
        types, count = (*problem.inputs, *problem.outs), len(problem.inputs)
        self.problem, self.op, self.n = problem, op, types[0].shape[op.axis]
        self.operands = dict(zip(names, problem.operands, strict=True))
        self.dtypes = {name: t.dtype for name, t in zip(names, types, strict=True)}
        self.arguments: dict[str, Argument] = {}
        self.fixed: list[Fixed] = []
        self.far = self.n > FAR
        for i, name in enumerate(names):
            self.array(name, "array" if i < count else "result")

    @property
    @abstractmethod
    def words(self) -> int:
        """Of 32 bits, of a state."""

    @property
    def itemsize(self) -> int:
        """The bytes of what is read of an element."""
        return sum(t.dtype.itemsize for t in self.problem.inputs)

    @abstractmethod
    def run(self, shared: bool) -> Kernels:
        """The kernels; `shared`: of blocks that have parts of a line."""

    @property
    def whole(self) -> str:
        """The type of places along the axis."""
        return "int64_t" if self.far else "int"

    @property
    def reverse(self) -> str:
        return "true" if self.op.reverse else "false"

    def wide(self, name: str, axis: int) -> int:
        """Returns how many elements side by side along an axis one access may move; 0
        where they are not.
        """
        operand = self.operands[name]
        if operand.strides[axis] != 1:
            return 0
        found = WIDEST // self.dtypes[name].itemsize
        others = [s for a, s in enumerate(operand.strides) if a != axis and self.shape[a] > 1]
        while any(each % found for each in (*others, operand.offset)):
            found //= 2
        return found

    def at_most(self, many: int, least: int) -> int:
        """Returns how many packs a thread has at a time, so that they and its states are in
        registers.
        """
        most = min(many, self.tuning.bytes // (self.pack * self.itemsize), 24 // self.pack)
        found = max(most, least)
        return found if self.words <= 2 else max(found // 4, 1)

    @property
    def shape(self) -> Dims:
        return self.problem.inputs[0].shape

    # -- the text

    def size(self, name: str, value: int, far: bool) -> str:
        self.arguments[name] = Argument(f"{'int64_t' if far else 'int'} {name}", "size", value)
        return name

    def array(self, name: str, kind: str) -> None:
        dtype = self.dtypes[name]
        declared = f"{'const ' if kind == 'array' else ''}{STORED[dtype]} *__restrict__ {name}"
        self.arguments[name] = Argument(declared, kind, (self.operands[name], dtype))

    def step(self, name: str) -> str:
        """Returns how far elements along the axis are apart."""
        return self.size(f"{name}_step", self.operands[name].strides[self.op.axis], True)

    def split(self, number: str, over: Dims) -> list[Text]:
        """The places along axes, from the number of a line among all."""
        lines, rest, letters = [], number, LETTERS[: len(over)]
        for letter, n in list(zip(letters, over, strict=True))[:0:-1]:
            extent = self.size(f"n_{letter}", n, True)
            lines.append(Text(f"const int64_t {letter} = {rest} % {extent};"))
            rest = f"{rest} / {extent}"
        return [*lines, *(Text(f"const int64_t {letter} = {rest};") for letter in letters[:1])]

    def pointers(self, strides: Sequence[Dims], more: Sequence[str] = ()) -> list[Text]:
        """Returns where the line of a thread begins in each array."""
        lines = []
        for i, (name, steps) in enumerate(zip(self.operands, strides, strict=True)):
            terms = [
                f" + {letter}"
                if step == 1
                else f" + {letter} * {self.size(f'{name}_{letter}', step, True)}"
                for letter, step in zip(LETTERS, steps, strict=False)
                if step
            ]
            const = "const " if i < len(self.problem.inputs) else ""
            kind, pointer = f"{const}{STORED[self.dtypes[name]]} *const", self.pointer(name)
            place = "".join((*terms, *more[i : i + 1]))
            lines.append(Text(f"{kind} {pointer} = {name}{place};"))
        return lines

    def pointer(self, name: str) -> str:
        """The name of where the line of a thread begins in an array."""
        return f"{name}_{'from' if self.arguments[name].kind == 'array' else 'to'}"

    def placed(self, *lines: Text) -> tuple[Text, ...]:
        """Returns where a line begins, without the places that no later line reads."""
        found = needed(lines)
        for name in [name for name in self.arguments if name.startswith("n_")]:
            if not mentions(found, name):
                del self.arguments[name]
        return tuple(found)

    def shared_view(self, view: Any, of: str, count: int, block: int) -> Any:
        """The view of a kernel whose blocks share so many lines, or strips."""
        left = f"{FIRST} + {of} * per_line" if count > 1 else str(FIRST)
        tile = "(int64_t)tile" if self.far else "tile"
        return replace(view, of=of, several=count > 1, tile=tile, left=left, block=block)

    def tickets(self, tiles: int, of: str, count: int) -> None:
        self.size("tiles", tiles, False)
        if count > 1:
            self.size(f"{of}s", count, False)

    def looking_back(
        self,
        count: int,
        words: int,
        template: str,
        view: Any,
        block: int,
        tiles: int,
        resident: int,
        shared: int = 0,
    ) -> Kernels:
        """The kernel, after one that clears `words` words for each of `count` lines."""
        total = FIRST + count * words
        declared = "uint64_t *__restrict__ words"
        states = Argument(declared, "result", (Operand("part", 0, (1,)), np.dtype(np.uint8)))
        self.arguments["words"] = states
        self.size("per_line", words, True) if count > 1 else None
        return Kernels(
            (
                cleared(states, total, self.tuning.cleared),
                self.kernel(template, view, block, count * tiles, resident, shared),
            ),
            (8 * total,),
        )

    def fix(self, name: str, value: int, why: str) -> None:
        self.fixed.append(Fixed(name, value, why))

    def kernel(
        self,
        template: str,
        view: Any,
        block: int,
        grid: int,
        resident: int = 0,
        shared: int = 0,
    ) -> CudaKernel:
        self.size("n", self.n, self.far)
        return CudaKernel(
            self.op.name, described(self.problem), tuple(self.arguments.values()), (), block, (grid, 1),
            tuple(self.fixed), shared, 1, resident=resident or self.tuning.resident,
            template=f"cuda/scan/{template}.cu.jinja", view=view,
        )  # fmt: skip


def needed(body: Sequence[Text]) -> list[Text]:
    found: list[Text] = []
    for line in reversed(body):
        name = PLACE.match(line.code)
        if name is None or mentions(found, name[1]):
            found.insert(0, line)
    return found


def cleared(states: Argument, count: int, block: int) -> CudaKernel:
    """Makes all words 0, which says that nothing was left there."""
    arguments = (states, Argument("int64_t n", "size", count))
    return CudaKernel(
        "clear", "words = 0", arguments, (), block, (-(-count // block), 1),
        template="cuda/clear.cu.jinja", view=block,
    )  # fmt: skip
