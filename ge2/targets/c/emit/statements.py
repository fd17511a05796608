"""Statements in C: what they read and compute, what things are called, reads at computed indices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, final

import numpy as np

from ge2.base.arrays import BOOL, COMPLEX, HALF, INEXACT, INT64, INTEGERS
from ge2.base.record import record
from ge2.codegen.axes import Axes, Loop, Spec, Work
from ge2.codegen.kernel_values import Held, Param, Ranges
from ge2.codegen.layout import Home
from ge2.codegen.text import AxesParameters, Operand, Text, guard
from ge2.ir import Eqn, Literal, Names, Var
from ge2.ir.text import eqn_text
from ge2.ops.elementwise import FLOOR_DIV, REM, Where
from ge2.ops.index import Gather
from ge2.ops.reduce import ArgReduce, Reduce
from ge2.ops.shape import Iota
from ge2.targets.c.emit import (
    GATHERED,
    HELD,
    REAL,
    STORED,
    SUFFIX,
    baked,
    expression,
    gathers_index,
    helpers_of,
    number,
    retyped,
    state_dtype,
    word,
)
from ge2.targets.c.emit.file import For, Stage

# -------- What things are called in a kernel: loops, sizes, elements of arrays, constants; and so
# its parameters.


LETTERS = "ijklmuvw"
BLOCKED = ("block", "panel")  # roles of loops that go from block to block
# fmt: off
ORDER = (  # of the parameters, by kind
    "services", "equation", "array", "result", "value", "constant", "size", "partial", "scratch", "threads",
)
RESERVED = frozenset((
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum",
    "extern", "float", "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return",
    "short", "signed", "sizeof", "static", "struct", "switch", "typedef", "union", "unsigned", "void",
    "volatile", "while", "asm", "typeof", "main", "unix", "linux", "I", "abs", "exp", "log", "sin",
    "cos", "tan", "pow", "sqrt", "floor", "ceil", "chunk", "task", "tasks", "team", "threads", "from",
    "to", "at", "end", "home", "low", "high", "run", "width", "part", "scratch", "n", "k", "p",
    "lib", "arena", "error", "grain", "equation",
))
# fmt: on


def label(name: str) -> str:
    """A name that C, and the loops, have no other use for."""
    return f"{name}_" if name in RESERVED or name in LETTERS else name


@final
class Places(AxesParameters):
    def __init__(
        self, axes: Axes, operands: Mapping[Var, Operand], ranges: Ranges, near: int
    ) -> None:
        super().__init__(axes, operands, [a for spec in axes.specs for a in spec.axes], LETTERS)
        self.ranges, self.near = ranges, near
        self.gathered: dict[tuple[Var, int], str] = {}  # axes that indices are of, by their names
        self.scalars: dict[str, Text] = {}
        self.alike: dict[frozenset[tuple[int, int]], str] = {}  # strides by axis: the first array's
        self.variable = frozenset(n for a, n in axes.sizes.items() if a not in axes.constant)
        self.fractions: dict[tuple[float, np.dtype], Literal] = {}  # equal ones are one parameter

    # -- parameters

    def size(self, name: str, value: int) -> str:
        return self.add_argument(name, f"int64_t {name}", "size", value)

    def constant(self, literal: Literal, dtype: np.dtype) -> str:
        value: Any = literal.value
        if baked(value, dtype, self.variable):
            return number(value, dtype)
        if dtype.kind == "f" and not float(value).is_integer():  # whole, it may be a size
            literal = self.fractions.setdefault((float(value), dtype), literal)
        return self.passed(literal, dtype, HELD[dtype])

    # -- loops

    def extent(self, a: int) -> str:
        """The size of an axis."""
        n = self.axes.sizes[a]
        if a in self.axes.constant:
            return str(n)
        return self.size(f"n_{self.letters[a]}", n)

    def index(self, a: int) -> str:
        """The place along an axis."""
        letter = self.letters[a]
        return f"({letter}0 + {letter})" if a in self.axes.blocks else letter

    def width(self, a: int) -> str:
        """The size of a block, of which the last may be smaller."""
        return f"{self.letters[a]}_width"

    def over(self, loop: Loop, body: Stage, blocks: bool = False) -> For:
        """A loop over one axis, whole or within its block; with `blocks`,
        over all blocks as one.
        """
        assert loop.spec is not None
        a = loop.spec.axes[0]
        letter = self.letters[a]
        end = self.width(a) if loop.spec.role == "inner" and not blocks else self.extent(a)
        return For(letter, "0", end, (body,), of_block=f"{letter}0" if blocks else "")

    def unit(self, spec: Spec | None) -> int:
        """The elements of the space that an iteration of a loop of tasks has, if all iterations go
        through them in C order; else 0.
        """
        axes, sizes = sorted(self.axes.sizes), self.axes.sizes
        if spec is None or spec.role != "task" or [*spec.axes] != axes[: len(spec.axes)]:
            return 0
        return math.prod(sizes[a] for a in axes[len(spec.axes) :])

    def scattered(self, loop: Loop, a: int, operations: int) -> bool:
        """True if a loop does little with elements that are apart: to collect a vector of them costs
        more than it saves, and the compiler a hundred lines each.
        """
        found = {x.leaf for w in loop.works for x in w.xs}
        found.update(w.param for w in loop.works)
        reads = (p for p in found if isinstance(p, Param))
        apart = sum(self.apart(p, a) for p in reads)
        return sum(w.cost for w in loop.works) < operations * apart

    # -- elements of arrays

    def element(self, p: Param) -> str:
        """The index of an element."""
        strides = self.axes.strides[p]
        terms = []
        for a in sorted(strides, key=self.order.index):
            step = self.step(p, a)
            terms.append(self.index(a) if step == "1" else f"{self.index(a)} * {step}")
        return " + ".join(terms) or "0"

    def step(self, p: Param, a: int) -> str:
        """A stride as it is best said: a number where vectors are made of elements near to each other,
        the sizes of the axes within, or a parameter of its own.
        """
        strides = self.axes.strides[p]
        near = a == self.axes.lane and not self.apart(p, a) and not self.axes.gathers
        if near or strides[a] in (0, 1):
            return str(strides[a])
        within = [b for b in strides if strides[b] < strides[a]]
        # arrays alike, such as neighbours in a stencil, share an index: the compiler sees that
        name = self.alike.setdefault(frozenset(strides.items()), label(p.name))
        return self.stride_by(p, a, within, name)

    def apart(self, p: Param, a: int) -> bool:
        """True if neighbours along an axis are not near to each other in memory."""
        return abs(self.axes.strides[p].get(a, 0)) * p.var.type.dtype.itemsize > self.near

    def still(self, x: Held, a: int) -> bool:
        """True if a value is the same all along an axis, and there before."""
        return isinstance(x.leaf, Param) and not self.axes.strides[x.leaf].get(a, 0)

    def load(self, p: Param) -> str:
        """An element of an input, or a number that was handed over."""
        name = label(p.name)
        operand, dtype = self.operands[p.var], p.var.type.dtype
        if operand.value:
            return self.add_argument(name, f"{HELD[dtype]} {name}", "value", (operand, dtype))
        if not self.axes.strides[p]:  # read once, before the loops
            self.add_argument(
                f"{name}_in", f"const {STORED[dtype]} *{name}_in", "array", (operand, dtype)
            )
            self.scalars[name] = Text(f"const {STORED[dtype]} {name} = {name}_in[0];")
            return name
        self.add_argument(name, f"const {STORED[dtype]} *{name}", "array", (operand, dtype))
        return f"{name}[{self.element(p)}]"

    def read(self, p: Param, place: str) -> str:
        """An element of an input of which indices name some axes, which begins at a place."""
        name, dtype = label(p.name), p.var.type.dtype
        self.add_argument(
            name, f"const {STORED[dtype]} *{name}", "array", (self.operands[p.var], dtype)
        )
        within = self.element(p)
        return f"{name}[{place if within == '0' else f'{place} + {within}'}]"

    def result(self, p: Param) -> str:
        """An element of a result."""
        dtype = p.var.type.dtype
        self.add_argument(
            p.name, f"{STORED[dtype]} *{p.name}", "result", (self.operands[p.var], dtype)
        )
        return f"{p.name}[{self.element(p)}]"

    def count(self, op: Iota, x: Held) -> str:
        index = self.index(x.axes[0]) if x.axes else "0"
        if op.dtype in HALF:
            short = SUFFIX[op.dtype]
            return f"ge2_cast_{short}_f32(ge2_cast_f32_{short}((float){index}))"
        return f"({HELD[op.dtype]}){index}"

    # -- arrays that outlive a loop

    def kept(self, home: Home) -> list[tuple[int, bool]]:
        """The axes of such an array, and whether it is made anew for each block of the axis."""
        specs = [loop.spec for loop in home.dims if loop.spec is not None]
        outlived = {a for spec in specs if spec.role in BLOCKED for a in spec.axes}
        return [
            (a, spec.role == "inner" and a not in outlived)
            for spec in specs
            if spec.role not in BLOCKED
            for a in spec.axes
        ]

    def at(self, home: Home) -> str:
        """The index of a value in the array that keeps it."""
        text = ""
        for a, block in self.kept(home):
            letter = self.letters[a] if block else self.index(a)
            size = str(self.axes.blocks[a]) if block else self.extent(a)
            outer = f"({text})" if " " in text else text
            text = f"{outer} * {size} + {letter}" if text else letter
        return f"[{text}]"

    def span(self, home: Home) -> tuple[int, bool, str]:
        """The elements of such an array; whether they are always so many; and that in C."""
        total, fixed, texts = 1, True, []
        for a, block in self.kept(home):
            total *= self.axes.blocks[a] if block else self.axes.sizes[a]
            fixed = fixed and (block or a in self.axes.constant)
            texts.append(str(self.axes.blocks[a]) if block else self.extent(a))
        return total, fixed, " * ".join(texts) or "1"


# -------- The values of a region in C: what a statement reads, and what it computes.


class Statements:
    """The part of a writer of loops that spells values: it knows the home and the maker of each,
    arrays and numbers, and the names of the graph.
    """

    homes: dict[Held, Home]
    makers: dict[Held, Work]
    places: Places
    names: Names
    helpers: dict[str, None]
    powers: dict[tuple[bool, int, np.dtype], Literal]  # what whole numbers are divided by

    def each(self, home: Home, code: str, within: Loop) -> list[Stage]:
        """A statement for each element of a state, but for the loops that are
        open around `within`.
        """
        around = [] if within.parent is None else within.parent.path
        line: Stage = Text(code)
        closed = [loop for loop in home.dims if loop not in around and loop.spec is not None]
        blocks = {a for x in closed if x.spec and x.spec.role in BLOCKED for a in x.spec.axes}
        for loop in reversed(closed):
            if loop.spec and loop.spec.role not in BLOCKED:
                line = self.places.over(loop, line, not blocks.isdisjoint(loop.spec.axes))
        return [line]

    def state_at(self, w: Work) -> str:
        assert w.y is not None
        home = self.homes[w.y]
        return self.state(w) + (self.places.at(home) if home.dims else "")

    def carried(self, w: Work, loop: Loop) -> bool:
        """True if the state enters the loop with what earlier ones of an outer loop left in it."""
        assert w.y is not None
        return self.homes[w.y].first is not loop

    def stored(self, w: Work) -> Text:
        assert w.param is not None
        dtype = w.param.var.type.dtype
        value = self.operand(w.xs[0])
        if dtype in HALF:
            value = f"ge2_cast_f32_{SUFFIX[dtype]}({value})"
        return Text(f"{self.places.result(w.param)} = {value};")

    def computed(self, w: Work) -> str:
        assert w.y is not None and w.step is not None
        if w.step.eqn is not None and isinstance(w.step.eqn.op, Gather):
            table, place = w.xs
            return self.places.read(table.leaf, self.operand(place))
        chosen = w.step.eqn is not None and isinstance(w.step.eqn.op, Where)
        eqn, operands, dtype = (
            w.step.eqn,
            [self.chosen(x) if chosen else self.operand(x) for x in w.xs],
            w.xs[0].dtype if w.xs else None,
        )
        if eqn is None:  # a half type is widened
            leaf = w.xs[0].leaf
            if isinstance(leaf, Param) and self.places.operands[leaf.var].value:
                return operands[0]  # a number is handed over as float32
            return f"ge2_cast_{SUFFIX[w.step.xs[0].dtype]}_f32({operands[0]})"
        op: Any = eqn.op
        assert dtype is not None
        if isinstance(op, ArgReduce):
            return "0"
        if isinstance(op, Reduce):
            return (
                expression("ge2_add({0}, 0)", operands, dtype, dtype)
                if op.name == "reduce_sum"
                else operands[0]
            )
        if op.retypes:
            return retyped(operands[0], eqn)
        if op.name == "pow" and dtype.kind == "i":
            return self.power(operands, dtype)
        if op in (REM, FLOOR_DIV) and (text := self.by_power(op, operands[0], w.xs[1])):
            return text
        if op.edition:
            self.helpers.update(dict.fromkeys(helpers_of(op.lowering.helpers, dtype)))
        if isinstance(op, Where) and w.y.dtype in COMPLEX:
            return f"ge2_where_{SUFFIX[w.y.dtype]}({', '.join(operands)})"
        return expression(op.lowering.expression, operands, dtype, w.y.dtype)

    def by_power(self, op: Any, value: str, by: Held) -> str:
        """A remainder or quotient of whole numbers by a power of two, rounded down: bits alone."""
        if not isinstance(by.leaf, Literal) or by.dtype.kind not in "iu":
            return ""
        n: Any = int(by.leaf.value)  # type: ignore[arg-type]
        if n < 2 or n & (n - 1):
            return ""
        bits = n - 1 if op == REM else n.bit_length() - 1
        known = self.powers.setdefault((op == REM, n, by.dtype), Literal.of(by.dtype.type(bits)))
        what, as_text = "&" if op == REM else ">>", baked(n, by.dtype, self.places.variable)
        passed = (
            self.places.constant if as_text else partial(self.places.passed, held=HELD[by.dtype])
        )
        return f"({HELD[by.dtype]})({value} {what} {passed(known, by.dtype)})"

    def power(self, operands: list[str], dtype: np.dtype) -> str:
        """A power of integers, which a negative exponent makes the error of
        the call, as in NumPy.
        """
        services = self.places.add_argument("lib", "const ge2_services *lib", "services")
        equation = self.places.add_argument("equation", "int64_t equation", "equation")
        return expression(
            f"ge2_power({{0}}, {{1}}, {equation}, {services})", operands, dtype, dtype
        )

    def chosen(self, x: Held) -> str:
        """A value that is written as it is: a number that is no help to a compiler is no part of the
        text, as that of an iteration in `n[mask] = i`, where each would be a kernel of its own.
        """
        value: Any = x.leaf.value if isinstance(x.leaf, Literal) else 0
        if isinstance(x.leaf, Literal) and x.dtype.kind in "iu" and abs(int(value)) > 3:
            return self.places.passed(x.leaf, x.dtype, HELD[x.dtype])
        return self.operand(x)

    def operand(self, x: Held) -> str:
        """A value, wherever it is."""
        leaf = x.leaf
        if isinstance(leaf, Param):
            return self.places.load(leaf)
        if isinstance(leaf, Literal):
            return self.places.constant(leaf, x.dtype)
        if isinstance(leaf, Iota):
            return self.places.count(leaf, x)
        home, w = self.homes[x], self.makers[x]
        place = self.places.at(home) if home.dims else ""
        if w.kind != "fold":
            return label(x.name) + place
        text = self.state(w) + place
        if gathers_index(w):
            return f"{text}.index"
        return text if state_dtype(w) == x.dtype else f"({HELD[x.dtype]}){text}"

    def note(self, eqn: Eqn | None) -> str:
        """The equation, as the graph above the kernel has it."""
        return eqn_text(eqn, self.names) if eqn is not None else ""

    def state(self, w: Work) -> str:
        assert w.y is not None
        return f"{label(w.y.name)}_{word(w)}"


# -------- Reading arrays at indices that a region computes: where an element is, and whether all
# indices are inside.
# In an innermost loop, which may run along vectors, the least and the greatest of its indices are
# taken and looked at when it ends; until then one that is outside reads the first element.
# Elsewhere each index is looked at as it is. One that cannot be outside, as `x & 255` of a table of
# 256, is not looked at.


@final
@record
class Limit:
    """An index, of axis `axis` of what the work finds a place in; `name` begins names of its own.
    `inside`: it follows from how it is computed that it counts from the start and is inside. `of`:
    the first that is of the same axis of the same array, whose size and step have its name.
    """

    work: Work
    index: Held
    axis: int
    size: int
    step: int
    name: str
    inside: bool
    of: str

    @property
    def ends(self) -> tuple[str, str]:
        """The least and the greatest index of a loop."""
        return f"{self.name}_low", f"{self.name}_high"

    def fails(self, low: str, high: str, places: Places) -> str:
        """The statement that makes it the error of the call."""
        lib = places.add_argument("lib", "const ge2_services *lib", "services")
        equation = places.add_argument("equation", "int64_t equation", "equation")
        axis = places.size(f"{self.name}_axis", self.axis)
        return f"ge2_index_fails({lib}, {low}, {high}, {axis}, {self.extent(places)}, {equation});"

    def extent(self, places: Places) -> str:
        return places.size(f"{self.of}_size", self.size)


def is_scalar(child: Work | Loop) -> bool:
    """True of a number that is computed from numbers, and looks for no error."""
    if not isinstance(child, Work) or child.kind != "compute" or child.axes:
        return False
    return not is_place(child)


def is_place(w: Work) -> bool:
    """True of the work that finds where the elements of a gather are."""
    eqn = None if w.step is None else w.step.eqn
    return eqn is not None and isinstance(eqn.op, Gather) and w.y is not None and w.y.var is None


def limits_of(w: Work, places: Places) -> list[Limit]:
    """The indices of a place."""
    assert w.step is not None and w.step.eqn is not None and w.y is not None
    op, x = w.step.eqn.op, w.step.eqn.inputs[0]
    assert isinstance(op, Gather) and isinstance(x, Var)
    strides, found = places.operands[x].strides, list[Limit]()
    for k, (index, axis) in enumerate(zip(w.xs, op.axes, strict=True)):
        low, high = places.ranges.of(w.step.eqn.inputs[1 + k])
        name = f"{label(w.y.name)}{k}"
        of = places.gathered.setdefault((x, axis), name)
        inside, size = low >= 0 and high < x.type.shape[axis], x.type.shape[axis]
        found.append(Limit(w, index, axis, size, strides[axis], name, inside, of))
    return found


def limits(works: Iterable[Work], places: Places) -> list[Limit]:
    """The indices of all places that may be outside, each once for axes of one size."""
    found: dict[tuple[int, int], Limit] = {}
    for limit in (limit for w in filter(is_place, works) for limit in limits_of(w, places)):
        if not limit.inside:
            found.setdefault((id(limit.index), limit.size), limit)
    return list(found.values())


def begun(limit: Limit) -> Text:
    low, high = limit.ends
    return Text(f"int64_t {low} = 0, {high} = 0;")


def taken(limit: Limit, index: str) -> list[Text]:
    """The least and the greatest index, with one more."""
    each = index if limit.index.dtype == INT64 else f"(int64_t){index}"
    low, high = limit.ends
    return [Text(f"{y} = {each} {c} {y} ? {each} : {y};") for y, c in ((low, "<"), (high, ">"))]


def ended(limit: Limit, places: Places) -> Text:
    low, high = limit.ends
    size = limit.extent(places)
    return guard(f"{low} < -{size} || {high} >= {size}", limit.fails(low, high, places))


def looked_at(limit: Limit, index: str, places: Places) -> Text:
    """An index as it is."""
    outside = f"ge2_index_is_outside_{SUFFIX[limit.index.dtype]}({index}, {limit.extent(places)})"
    at = f"(int64_t){index}"
    return guard(outside, limit.fails(at, at, places))


def term(limit: Limit, index: str, places: Places) -> str:
    """Returns how far from the first element an index is."""
    at = f"(int64_t){index}"
    if not limit.inside:
        at = f"ge2_index_{SUFFIX[limit.index.dtype]}({index}, {limit.extent(places)})"
    return at if limit.step == 1 else f"{at} * {places.size(f'{limit.of}_step', limit.step)}"


# -------- Places of extremes in C: vectors take the extreme of each run of elements, and of the
# runs the first that has the extreme of all is gone through, once, until it is met.


States = Mapping[Work, tuple[str, str]]  # of extremes: the name of each state, and its place


def screens(works: Iterable[Work], local: Iterable[Work]) -> bool:
    """True if a loop only finds where extremes of real numbers are: a run may be gone through twice."""
    found = [w for w in works if w.kind != "compute"]
    return (
        bool(found)
        and all(
            w in local
            and w.kind == "fold"
            and gathers_index(w)
            and w.xs[0].dtype in (*REAL, *INTEGERS, BOOL)
            for w in found
        )
        and not any(x.dtype in COMPLEX for w in works for x in w.xs)
    )


def least_of(w: Work) -> str:
    """Returns the value with which the extreme of a run begins, before its first element."""
    end = "lowest" if word(w) == "argmax" else "highest"
    return expression(f"ge2_{end}()", [], w.xs[0].dtype, w.xs[0].dtype)


def order(w: Work) -> str:
    return ">" if word(w) == "argmax" else "<"


def extreme_of_run(w: Work, name: str, value: str) -> list[Text]:
    """The extreme of a run, whose place is sought later, and whether there was a NaN."""
    part = f"{name}_part"
    nan = Text(f"{name}_nan |= {value} != {value};")
    return [nan, Text(f"{part} = {value} {order(w)} {part} ? {value} : {part};")]


def beyond(w: Work, name: str, state: str) -> Text:
    """A run whose extreme is beyond what was found, in which no NaN was, is the one to be gone through:
    until then the state has its extreme, and where it begins.
    """
    dtype = w.xs[0].dtype
    further = f"{name}_nan || {name}_part {order(w)} {state}.value"
    test = f"{state}.index == INT64_MAX || ({state}.value == {state}.value && ({further}))"
    nan = f"{name}_nan ? {number(math.nan, dtype)} : " if dtype in INEXACT else ""
    taken = expression("ge2_at({0}, at)", [f"{nan}{name}_part"], dtype, dtype)
    return guard(test, (Text(f"{state} = {taken};"), Text(f"{name}_run = at;")))


def met(w: Work, name: str, state: str, value: str, index: str) -> list[Text]:
    """The first element of its run that is the extreme, or NaN."""
    same = f"{value} == {state}.value"
    if w.xs[0].dtype in INEXACT:
        same += f" || ({state}.value != {state}.value && {value} != {value})"
    at = f"{name}_at"
    return [Text(f"{at} = ({same}) && {index} < {at} ? {index} : {at};")]


def search(
    states: States,
    body: Callable[[Work | None], tuple[Stage, ...]],
    bounds: tuple[str, str, str],
    nbytes: int,
) -> list[Stage]:
    """The loop over runs, and after it one over the run of each extreme. `body`: the statements of the
    loop within, which take extremes of a run (None), or seek one of them; `bounds`: its index, begin
    and end; `nbytes`: those of a run.
    """
    letter, begin, end = bounds
    run = nbytes // max(w.xs[0].dtype.itemsize for w in states)
    head = [Text(f"const int64_t end = ge2_least(at + {run}, {end});")]
    clauses = ""
    first, found, seeking = list[Stage](), list[Stage](), list[Stage]()
    for w, (name, state) in states.items():
        dtype = w.xs[0].dtype
        first.append(Text(f"int64_t {name}_run = {end}, {name}_at = INT64_MAX;"))
        head.append(Text(f"{GATHERED[dtype]} {name}_part = {least_of(w)};"))
        head.append(Text(f"int{8 * dtype.itemsize}_t {name}_nan = 0;"))
        kind = word(w).removeprefix("arg")
        clauses += f" reduction({kind}:{name}_part)"
        found.append(beyond(w, name, state))
        last, simd = (
            f"ge2_least({name}_run + {run}, {end})",
            f"#pragma omp simd reduction(min:{name}_at)",
        )
        seeking.append(For(letter, f"{name}_run", last, body(w), simd))
        seeking.append(guard(f"{name}_at < INT64_MAX", f"{state}.index = {name}_at;"))
    taking = For(letter, "at", "end", body(None), f"#pragma omp simd{clauses}")
    return [*first, For("at", begin, end, (*head, taking, *found), step=str(run)), *seeking]
