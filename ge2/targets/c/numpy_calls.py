"""Steps and elementwise operations as NumPy calls, and the buffers that hold their values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, final

import numpy as np

from ge2.base.arrays import BOOL, COMPLEX, HALF, accumulator
from ge2.base.errors import BY_VALUES, locate
from ge2.base.record import mutable
from ge2.base.source import pattern
from ge2.codegen.kernel_values import Held, Step, Values, form
from ge2.ir import Atom, Dims, Eqn, Literal, Op, Var
from ge2.ir.text import op_text
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import ConvertElementType, IntegerPow, Where
from ge2.ops.pointlike import Elementwise, Pointlike, Pointwise
from ge2.ops.shape import BroadcastInDim, Identity, Reshape, Rev, Slice, Transpose
from ge2.ops.sort import BitcastConvertType
from ge2.program import volume
from ge2.targets.c.libraries import by_lapack

# -------- Steps of a program as NumPy spells them: views, products as those of matrices, and
# references.


def note(eqn: Eqn) -> str:
    """Returns what an equation does, for people."""
    return op_text(eqn.op) if not eqn.op.graphs() else eqn.op.name


def reference_of(eqn: Eqn) -> Any:
    """The reference, or LAPACK, given arrays in place of Python numbers; its errors say the line."""
    reference, types = by_lapack(eqn) or eqn.op.reference, [a.type for a in eqn.inputs]
    weak = any(t.weak for t in types)

    def converted(*xs: Any) -> Any:
        return reference(
            *(np.asarray(x, t.dtype) if t.weak else x for x, t in zip(xs, types, strict=True))
        )

    return located(converted if weak else reference, eqn.source)


def located(work: Callable[..., Any], source: object) -> Callable[..., Any]:
    """The same work, whose errors say the user's line."""

    def call(*xs: Any) -> Any:
        try:
            return work(*xs)
        except BY_VALUES as error:
            locate(error, source)
            raise

    return call


def blocked(kernel: Callable[..., Any], region: Op) -> Callable[..., Any]:
    """A kernel in blocked NumPy, whose errors say the line of what may raise: powers of integers."""
    powers = [eqn for graph in region.graphs() for eqn in graph.eqns if eqn.op.name == "pow"]
    raising = [eqn for eqn in powers if eqn.outs[0].type.dtype.kind in "iu"]
    return located(kernel, raising[0].source) if raising else kernel


def view_text(eqn: Eqn, x: str) -> str:
    """The view as NumPy spells it."""
    op = eqn.op
    if isinstance(op, Transpose):
        return f"{x}.transpose({op.order})"
    if isinstance(op, Reshape):
        return f"{x}.reshape({op.shape})"
    if isinstance(op, Slice):
        parts = [
            f"{a}:{b}" + (f":{s}" if s != 1 else "")
            for a, b, s in zip(op.start, op.stop, op.step, strict=True)
        ]
        return f"{x}[{', '.join(parts)}]" if parts else x
    if isinstance(op, Rev):
        rank = eqn.inputs[0].type.ndim
        return (
            f"{x}[{', '.join('::-1' if a in op.axes else ':' for a in range(rank))}]" if rank else x
        )
    if isinstance(op, BroadcastInDim):
        spread = tuple(n if d in op.dims else 1 for d, n in enumerate(op.shape))
        return f"broadcast_to({x}.reshape({spread}), {op.shape})"
    assert isinstance(op, Identity)
    return x


Turn = tuple[Dims | None, Dims | None]  # an order of the axes, then a shape


def product(eqn: Eqn) -> tuple[Turn, Turn, Dims | None]:
    """Returns how the operands of a product become matrices, and the shape of their product as one."""
    op, (a, b), (out,) = eqn.op, (x.type for x in eqn.inputs), eqn.outs
    assert isinstance(op, DotGeneral)
    free_a, free_b = op.free(a, b)
    batch = (volume(a.shape, op.beside[0]),) if op.beside[0] else ()
    m, n, k = volume(a.shape, free_a), volume(b.shape, free_b), volume(a.shape, op.contract[0])
    left = turn(a.shape, (*op.beside[0], *free_a, *op.contract[0]), (*batch, m, k))
    right = turn(b.shape, (*op.beside[1], *op.contract[1], *free_b), (*batch, k, n))
    whole = (*batch, m, n)
    return left, right, None if out.type.shape == whole else whole


def turn(shape: Dims, order: Dims, wanted: Dims) -> Turn:
    turned = tuple(shape[i] for i in order)
    return None if order == tuple(
        range(len(order))
    ) else order, None if turned == wanted else wanted


# -------- Each elementwise operation as NumPy calls that write to an array already there.


@final
@mutable
class Vocabulary:
    """The functions that a kernel takes from NumPy, and its constants, named as they are first
    used.
    """

    imports: dict[str, None] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)  # by their text
    extended: dict[str, None] = field(default_factory=dict)

    def use(self, name: str) -> str:
        self.imports[name] = None
        return name

    def constant(self, text: str) -> str:
        return self.constants.setdefault(text, f"c_{len(self.constants)}")

    def dtype(self, name: str) -> str:
        """A dtype as text; those that NumPy does not know come from ml_dtypes."""
        if hasattr(np, name):
            return repr(name)
        self.extended[name] = None
        return name

    def number(self, value: Any, dtype: np.dtype) -> str:
        """A number as an array of no axes, which ufuncs take faster than a Python number."""
        shown = repr(np.asarray(value, accumulator(dtype)).item())
        for word in ("inf", "nan"):
            if word in shown:
                self.use(word)
        return self.constant(f"{self.use('array')}({shown}, {dtype_text(accumulator(dtype))!r})")


def dtype_text(dtype: np.dtype) -> str:
    """
    >>> dtype_text(np.dtype("float32"))
    'float32'
    """
    return dtype.name


Render = Callable[[Eqn, str, Sequence[str], Vocabulary], list[str]]


def as_written(eqn: Eqn, y: str, xs: Sequence[str], words: Vocabulary) -> list[str]:
    """The statements of the operation's own lowering."""
    text: str = eqn.op.lowering.numpy  # type: ignore[union-attr]
    one = words.number(1, eqn.outs[0].type.dtype) if "{one}" in text else ""
    for name in CALLED.findall(text):
        words.use(name)
    return text.format(*xs, y=y, one=one).split("; ")


def cast(eqn: Eqn, y: str, xs: Sequence[str], words: Vocabulary) -> list[str]:
    drops = eqn.inputs[0].type.dtype in COMPLEX and eqn.outs[0].type.dtype not in COMPLEX | {BOOL}
    return [f"{words.use('copyto')}({y}, {xs[0]}{'.real' if drops else ''}, casting='unsafe')"]


def bitcast(eqn: Eqn, y: str, xs: Sequence[str], words: Vocabulary) -> list[str]:
    """A half type, held as float32, is rounded to its own bits first."""
    old, new = eqn.inputs[0].type.dtype, words.dtype(dtype_text(eqn.outs[0].type.dtype))
    x = f"{xs[0]}.astype({words.dtype(dtype_text(old))})" if old in HALF else xs[0]
    return [f"{words.use('copyto')}({y}, {x}.view({new}), casting='unsafe')"]


def integer_pow(eqn: Eqn, y: str, xs: Sequence[str], words: Vocabulary) -> list[str]:
    (x,), op = xs, eqn.op
    power: int = op.y  # type: ignore[attr-defined]
    if power in (2, 3, 4, -2):
        first = f"{words.use('square')}({x}, out={y})"
        again = {
            2: [],
            3: [f"{words.use('multiply')}({y}, {x}, out={y})"] if power == 3 else [],
            4: [f"square({y}, out={y})"],
            -2: [f"{words.use('reciprocal')}({y}, out={y})"] if power == -2 else [],
        }
        return [first, *again[power]]
    if power == -1:
        return [f"{words.use('reciprocal')}({x}, out={y})"]
    return [f"{words.use('power')}({x}, {words.number(power, eqn.outs[0].type.dtype)}, out={y})"]


def choose(eqn: Eqn, y: str, xs: Sequence[str], words: Vocabulary) -> list[str]:
    mask, a, b = xs
    copy = words.use("copyto")
    if zero_or_one(eqn):
        return [f"{copy}({y}, {mask})"]
    return [*([] if y == b else [f"{copy}({y}, {b})"]), f"{copy}({y}, {a}, where={mask})"]


def zero_or_one(eqn: Eqn) -> bool:
    """True if a `where` only makes numbers of a mask."""
    a, b = (a.value if isinstance(a, Literal) else None for a in eqn.inputs[1:])
    return a is not None and b is not None and a == 1 and b == 0 and not np.signbit(np.real(b))


def choose_bits(eqn: Eqn, y: str, xs: Sequence[str], words: Vocabulary, temp: str) -> list[str]:
    """A `where` by integer arithmetic, several times as fast as a
    masked copy: b ^ ((a ^ b) & -mask).
    """
    mask, a, b = xs
    integer = words.use(f"int{8 * eqn.outs[0].type.dtype.itemsize}")
    bits_y, bits_a, bits_b = (f"{x}.view({integer})" for x in (y, a, b))
    whole, minus, both = words.use("copyto"), words.use("subtract"), words.use("bitwise_and")
    at_mask = [
        f"{whole}({temp}, {mask})",
        f"{minus}({words.number(0, np.dtype(integer))}, {temp}, out={temp})",
    ]
    off_mask = [at_mask[0], f"{minus}({temp}, {words.number(1, np.dtype(integer))}, out={temp})"]
    if all_zero(eqn.inputs[2]):
        return [*at_mask, f"{both}({bits_a}, {temp}, out={bits_y})"]
    if all_zero(eqn.inputs[1]):
        return [*off_mask, f"{both}({bits_b}, {temp}, out={bits_y})"]
    differ = words.use("bitwise_xor")
    select, other = (off_mask, bits_a) if y == b else (at_mask, bits_b)
    return [
        *select,
        f"{differ}({bits_a}, {bits_b}, out={bits_y})",
        f"{both}({bits_y}, {temp}, out={bits_y})",
        f"{differ}({bits_y}, {other}, out={bits_y})",
    ]


def all_zero(atom: Atom) -> bool:
    """True if a value is a literal without any bit set."""
    return isinstance(atom, Literal) and not any(np.asarray(atom.value, atom.type.dtype).tobytes())


def wants_temp(eqn: Eqn, elements: int, masked: int) -> np.dtype | None:
    """The integer type in which a `where` of so many elements is better done: of `masked` or
    more.
    """
    dtype = eqn.outs[0].type.dtype
    plain = (
        dtype.kind in "iuf"
        and dtype.itemsize in (4, 8)
        and not any(a.type.weak for a in eqn.inputs)
    )
    if not isinstance(eqn.op, Where) or not plain or elements < masked or zero_or_one(eqn):
        return None
    return np.dtype(f"int{8 * dtype.itemsize}")


WRITERS: dict[type[Op], Render] = {
    Where: choose,
    IntegerPow: integer_pow,
    ConvertElementType: cast,
    BitcastConvertType: bitcast,
}
CALLED = pattern(r"(\w+)\(")
ELSEWHERE = ("copyto", "{y}.")  # beginnings of texts whose results lie apart from their operands


def may_overwrite(op: Op, operand: int) -> bool:
    """True if the result may be written over that operand."""
    if isinstance(op, Where):
        return operand == 2  # the first two are read after the result is begun
    if isinstance(op, IntegerPow):
        return op.y != 3
    return isinstance(op, Pointlike) and not op.retypes and not own_text(op).startswith(ELSEWHERE)


def own_text(op: Pointlike) -> str:
    """Returns what the operation's line says of writing it with NumPy."""
    return op.lowering.numpy if isinstance(op.lowering, Pointwise) else ""


def has_text(op: Op) -> bool:
    """True if the operation can be written as NumPy calls."""
    if type(op) in WRITERS or (isinstance(op, Pointlike) and own_text(op)):
        return True
    return isinstance(op, Elementwise) and known_ufunc(op)


def known_ufunc(op: Elementwise) -> bool:
    name = getattr(op.ufunc, "__name__", "")
    return isinstance(op.ufunc, np.ufunc) and getattr(np, name, None) is op.ufunc


def statements(
    eqn: Eqn, y: str, xs: Sequence[str], words: Vocabulary, dense: bool = True, temp: str = ""
) -> list[str]:
    """The equation, its result written to `y`; `dense`: that has no gaps between its elements."""
    if temp:
        return choose_bits(eqn, y, xs, words, temp)
    op = eqn.op
    writer = WRITERS.get(type(op))
    if writer is None and isinstance(op, Pointlike) and own_text(op):
        writer = as_written
    if writer is not None:
        return writer(eqn, y, xs, words)
    assert isinstance(op, Elementwise)
    ufunc = op.ufunc.__name__
    if op.dense and not dense:
        return [f"{words.use('copyto')}({y}, {words.use(ufunc)}({', '.join(xs)}))"]
    return [f"{words.use(ufunc)}({', '.join(xs)}, out={y})"]


# -------- Where each value of a kernel lies: in the array of its result, over a finished operand,
# or in scratch.


FOREVER = 1 << 60


@final
@mutable
class Cell:
    """An array that holds one value after another.

    That of a result may hold others until step `due`, which makes the result, but none before step
    `since`, while an input still lies there.
    """

    name: str
    axes: Dims
    dtype: np.dtype
    due: int = FOREVER
    since: int = -1
    last: int = -1  # the last step that reads the value in it


@final
@mutable
class Cells:
    values: Values
    own: dict[Var, Cell]  # of results
    masked: int  # elements from which on a `where` has a mask of integers
    of: dict[Held, Cell] = field(default_factory=dict)
    scratch: list[Cell] = field(default_factory=list)
    temps: dict[Step, Cell] = field(default_factory=dict)
    # stored at the end, since an input lies in their place
    late: list[Held] = field(default_factory=list)

    def run(self) -> Cells:
        for n, step in enumerate(self.values.steps):
            self.place(n, step)
        return self

    def place(self, n: int, step: Step) -> None:
        y = step.y
        if set(step.over) & set(self.values.tiling.cut):
            return  # partial results have a place of their own
        own = None if y.var is None or self.kept(y) else self.own.get(y.var)
        if (
            own is not None
            and fits(own, y)
            and (own.since < n or (own.since == n and self.over_inputs(step)))
        ):
            own.last = FOREVER
            self.of[y] = own
            self.lend(n, step)
            return
        late = own is not None and own.since >= n
        if late:
            self.late.append(y)
        last = FOREVER if late or self.kept(y) else y.last
        cell = next(
            (
                c
                for c in self.candidates(n, step)
                if c.due == FOREVER
                or last < c.due
                or (last == c.due and self.replaceable(c.due, y))
            ),
            None,
        )
        if cell is None:
            cell = Cell(f"s_{len(self.scratch)}", y.axes, y.dtype)
            self.scratch.append(cell)
        cell.last = last
        self.of[y] = cell
        self.lend(n, step)

    def lend(self, n: int, step: Step) -> None:
        """An array for the use of one step alone."""
        tiling, (x, *_) = self.values.tiling, step.xs
        size = math.prod(form(step.y.axes, [tiling.extent(a) for a in range(self.values.rank)]))
        dtype = None if step.eqn is None else wants_temp(step.eqn, size, self.masked)
        if dtype is None:
            return
        # a result that nobody reads may lie on one
        used = [self.of.get(v) for v in (step.y, *step.xs)]
        free = (
            c
            for c in self.scratch
            if c.last < n and (c.axes, c.dtype) == (x.axes, dtype) and c not in used
        )
        cell = next(free, None) or Cell(f"s_{len(self.scratch)}", x.axes, dtype)
        if cell not in self.scratch:
            self.scratch.append(cell)
        cell.last = FOREVER if self.kept(step.y) else n
        self.temps[step] = cell

    def candidates(self, n: int, step: Step) -> Sequence[Cell]:
        """Cells of the right form that are free once the operands are read,
        those of operands first.
        """
        mine = [
            self.of[x]
            for x in step.xs
            if x in self.of and self.of[x].last == n and may_replace(step, self.of, self.of[x])
        ]
        shared = (
            [] if self.kept(step.y) else self.own.values()
        )  # before the loop, each thread works by itself
        others = [c for c in (*shared, *self.scratch) if c.last < n and c.since < n < c.due]
        return [c for c in (*mine, *others) if fits(c, step.y)]

    def kept(self, y: Held) -> bool:
        """True if a value is made before the loop and read in every block."""
        tiling = self.values.tiling
        return tiling.blocks > 1 and not set(y.axes) & set(tiling.cut)

    def over_inputs(self, step: Step) -> bool:
        return step.eqn is not None and all(
            may_overwrite(step.eqn.op, i) for i in range(len(step.xs))
        )

    def replaceable(self, n: int, y: Held) -> bool:
        """True if step `n` may write its result over `y`, which it reads."""
        step = self.values.steps[n]
        return step.eqn is not None and all(
            may_overwrite(step.eqn.op, i) for i, x in enumerate(step.xs) if x is y
        )


def fits(cell: Cell, y: Held) -> bool:
    return cell.axes == y.axes and cell.dtype == y.dtype


def may_replace(step: Step, of: dict[Held, Cell], cell: Cell) -> bool:
    """True if the result may be written to a cell that holds an operand."""
    if step.eqn is None:
        return False
    return all(may_overwrite(step.eqn.op, i) for i, x in enumerate(step.xs) if of.get(x) is cell)
