"""A region as a C function: loops over its space, one statement an equation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np

from ge2.base.dtypes import BOOL, COMPLEX, COMPLEX64, COMPLEX128, FLOAT32, FLOAT64, HALF
from ge2.base.record import record
from ge2.codegen.blocks import Tiling
from ge2.codegen.c.axes import Axes, strides_of
from ge2.codegen.c.nest import Home, Loop, Work, homes, nest
from ge2.codegen.c.typed import HELD, STORED, SUFFIX, baked, expression, number
from ge2.codegen.values import Held, Param, Step, Values
from ge2.ir import Dims, Eqn, Literal, Names, Var, write
from ge2.ir.text import atom_text, op_text
from ge2.ops.reduce import ArgReduce, Reduce
from ge2.ops.region import Region
from ge2.ops.shape import Iota

LETTERS = "ijklmuvw"
RESERVED = frozenset(
    """auto break case char const continue default do double else enum extern float for goto if inline int long
    register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while
    asm typeof main chunk task tasks team threads from to at end part scratch n k p lib arena error I linux unix
    abs exp log sin cos tan pow sqrt floor ceil""".split()
)
GRAIN = 1 << 18  # simple operations that are worth waking other threads for
LEAST = 1 << 15  # simple operations that a task has at least
TASKS = 64  # the most tasks of a sum that has partial results
RUN = 1024  # the elements whose float32 sum is taken before it is added to a float64
STACK = 4096  # the most elements of an array on the stack


@final
@record
class Text:
    """A line of C."""

    code: str
    comment: str = ""
    body: tuple[Text, ...] = ()  # of a loop
    pragma: str = ""


@final
@record
class Argument:
    """A parameter of the kernel: an array of the graph, a size or a number."""

    declaration: str
    kind: str  # array, result, value, constant, size, partial, scratch, threads, services
    value: Any = None  # (Operand, dtype), (number, dtype), a size, bytes


@final
@record
class CKernel:
    """A C function, and what is handed to it."""

    kind: str
    graph: str
    arguments: tuple[Argument, ...]
    body: tuple[Text, ...]
    equations: int = 0

    @property
    def title(self) -> str:
        article = "An" if self.kind[0] in "aeiou" else "A"
        return f"{article} {self.kind} region." if self.kind in ("pointwise", "rowwise", "reduce") else f"{article} {self.kind}."

    @property
    def parameters(self) -> str:
        return ", ".join(a.declaration for a in self.arguments)


@final
@record
class Operand:
    """An array that a step reads (`in`), makes (`out`), or has for itself (`temp`), or a part of one.

    Strides and offset count elements. `value`: it is a number that is handed over as such.
    """

    role: str
    index: int
    strides: Dims
    offset: int = 0
    value: bool = False

    def part(self, start: Dims, step: Dims) -> Operand:
        """The elements `start, start + step, ...` of each axis."""
        offset = self.offset + sum(a * s for a, s in zip(start, self.strides, strict=True))
        return replace(self, offset=offset, strides=tuple(a * s for a, s in zip(step, self.strides, strict=True)))


def whole(role: str, index: int, shape: Sequence[int]) -> Operand:
    """All of an array in C order."""
    return Operand(role, index, strides_of(shape))


def c_kernel(region: Region, operands: Mapping[Var, Operand], threads: int) -> CKernel:
    """The kernel of a region, given where its inputs and outputs are."""
    return Writer(region, operands, threads).run()


def partial_of(work: Work) -> np.dtype:
    """The type in which a reduction is gathered: sums and products of floats in float64."""
    assert work.y is not None
    dtype = work.xs[0].dtype
    if work.step is not None and work.step.eqn is not None and work.step.eqn.op.name in ("reduce_sum", "reduce_prod"):
        return {FLOAT32: FLOAT64, COMPLEX64: COMPLEX128}.get(dtype, dtype)
    return dtype


class Writer:
    def __init__(self, region: Region, operands: Mapping[Var, Operand], threads: int) -> None:
        self.region, self.operands, self.threads = region, operands, threads
        self.names = Names()
        self.text = write(region.graph, names=self.names)
        self.values = Values(region, Tiling(region.space), self.names).run()
        self.outs: dict[Param, Held] = {}
        self.works = self.listed()
        self.axes = self.spaced()
        self.root = nest(self.works, self.axes.specs)
        self.homes: dict[Held, Home] = homes(self.root)
        self.makers = {w.y: w for w in self.root.everything() if w.y is not None}
        self.letters = self.lettered()
        self.arguments: dict[str, Argument] = {}
        self.constants: dict[object, str] = {}
        self.scratch = 0  # bytes a thread
        self.partials: dict[Held, int] = {}  # elements of one task
        self.declared: dict[Loop, list[Text]] = {}
        self.kept: set[Held] = set()
        self.local: dict[Work, str] = {}  # of reductions in an innermost loop

    # -- what is to be done

    def listed(self) -> list[Work]:
        works: list[Work] = []
        for step in self.values.steps:
            y = step.y
            folds = step.eqn is not None and isinstance(step.eqn.op, Reduce | ArgReduce) and bool(step.over)
            axes = frozenset({*y.axes, *step.over} if folds else y.axes)
            works.append(
                Work("fold" if folds else "compute", len(works), y, list(step.xs), step, axes, frozenset(step.over))
            )
            if y.var is not None and y.var in self.region.graph.outputs:
                at = self.values.where[y.var]
                param = Param(self.label(self.names[y.var]) + "_out", y.var, at, None, None)
                self.outs[param] = y
                axes = frozenset(a for a in at if a >= 0)  # all of its own, where the value only repeats
                works.append(Work("store", len(works), None, [y], None, axes, param=param))
        return works

    def spaced(self) -> Axes:
        strides: dict[Param, dict[int, int]] = {}
        for (var, at), p in self.values.params.items():
            strides[p] = {a: s for a, s in zip(at, self.operands[var].strides, strict=True) if a >= 0}
        for p in self.outs:
            strides[p] = {a: s for a, s in zip(p.axes, self.operands[p.var].strides, strict=True) if a >= 0}
        steps = self.values.steps
        helds = list({id(x): x for s in steps for x in (s.y, *s.xs)}.values())
        used = {a for x in helds for a in x.axes} | {a for s in steps for a in s.over} | {a for s in strides.values() for a in s}
        sizes = {a: n for a, n in enumerate(self.region.space) if a in used}
        axes = Axes(sizes, steps, helds, strides)
        axes.merge()
        for w in self.works:  # whose axes may have been joined
            w.axes, w.over = w.axes & sizes.keys(), w.over & sizes.keys()
        axes.order(self.works, list(self.outs))
        return axes

    def lettered(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for spec in self.axes.specs:
            for a in spec.axes:
                found.setdefault(a, LETTERS[len(found)])
        return found

    # -- names

    def label(self, name: str) -> str:
        taken = name in RESERVED or name in LETTERS
        return f"{name}_" if taken else name

    def argue(self, name: str, declaration: str, kind: str, value: Any = None) -> str:
        self.arguments.setdefault(name, Argument(declaration, kind, value))
        return name

    def extent(self, a: int) -> str:
        n = self.axes.sizes[a]
        if a in self.axes.constant:
            return str(n)
        name = f"n_{self.letters[a]}"
        return self.argue(name, f"int64_t {name}", "size", n)

    def size(self, name: str, value: int) -> str:
        return self.argue(name, f"int64_t {name}", "size", value)

    def index(self, a: int) -> str:
        letter = self.letters[a]
        return f"({letter}0 + {letter})" if self.axes.block and a == self.axes.lane else letter

    def place(self, p: Param) -> str:
        """The index of an element of an array."""
        strides = self.axes.strides[p]
        terms = []
        ordered = sorted(strides, key=lambda a: [x for s in self.axes.specs for x in s.axes].index(a))
        for a in ordered:
            step = self.step(p, a)
            terms.append(self.index(a) if step == "1" else f"{self.index(a)} * {step}")
        return " + ".join(terms) or "0"

    def step(self, p: Param, a: int) -> str:
        """A stride as it can be said best: 1, the sizes of the axes within, or a number of its own."""
        strides = self.axes.strides[p]
        within = sorted((b for b in strides if strides[b] < strides[a]), key=lambda b: -strides[b])
        if strides[a] == 1:
            return "1"
        if strides[a] == 0:
            return "0"
        tight = all(
            strides[b] == math.prod(self.axes.sizes[c] for c in within[i + 1 :]) for i, b in enumerate(within)
        )
        if tight and within and strides[a] == math.prod(self.axes.sizes[b] for b in within):
            extents = [self.extent(b) for b in within]
            return extents[0] if len(extents) == 1 else f"({' * '.join(extents)})"
        return self.size(f"{p.name}_{self.letters[a]}", strides[a])

    # -- values

    def operand(self, x: Held) -> str:
        leaf = x.leaf
        if isinstance(leaf, Param):
            return self.load(x, leaf)
        if isinstance(leaf, Literal):
            return self.constant(leaf.value, x.dtype)
        if isinstance(leaf, Iota):
            return self.count(leaf, x)
        home, maker = self.homes[x], self.makers[x]
        if maker.kind == "fold":
            return self.folded(x, home, maker)
        return self.label(x.name) + self.at(home) if home.dims else self.label(x.name)

    def load(self, x: Held, p: Param) -> str:
        name = self.label(p.name)
        operand, dtype = self.operands[p.var], p.var.type.dtype
        if operand.value:
            return self.argue(name, f"{HELD[dtype]} {name}", "value", (operand, dtype))
        self.argue(name, f"const {STORED[dtype]} *{name}", "array", (operand, dtype))
        return f"{name}[{self.place(p)}]"

    def constant(self, value: Any, dtype: np.dtype) -> str:
        if baked(value, dtype, self.sizes):
            return number(value, dtype)
        key = (number(value, dtype), dtype)
        if key not in self.constants:
            name = self.constants[key] = f"k{len(self.constants)}"
            self.argue(name, f"{HELD[dtype]} {name}", "constant", (value, dtype))
        return self.constants[key]

    @property
    def sizes(self) -> frozenset[int]:
        return frozenset(n for a, n in self.axes.sizes.items() if a not in self.axes.constant)

    def count(self, op: Iota, x: Held) -> str:
        index = self.index(x.axes[0]) if x.axes else "0"
        if op.dtype in HALF:
            short = SUFFIX[op.dtype]
            return f"ge2_cast_{short}_f32(ge2_cast_f32_{short}((float){index}))"
        return f"({HELD[op.dtype]}){index}"

    def folded(self, x: Held, home: Home, maker: Work) -> str:
        """The result of a reduction, from the state that gathered it."""
        name = self.state(x)
        text = name + self.at(home) if home.dims else name
        assert maker.step is not None and maker.step.eqn is not None
        if isinstance(maker.step.eqn.op, ArgReduce):
            return f"{text}.index"
        wide, dtype = partial_of(maker), x.dtype
        return text if wide == dtype else f"({HELD[dtype]}){text}"

    def state(self, x: Held) -> str:
        return f"{self.label(x.name)}_{self.short(x)}"

    def short(self, x: Held) -> str:
        """What a reduction gathers, in a word."""
        maker = self.makers[x]
        assert maker.step is not None and maker.step.eqn is not None
        return maker.step.eqn.op.name.removeprefix("reduce_")

    def at(self, home: Home) -> str:
        """The index of a value in the array that keeps it."""
        text = ""
        for loop in home.dims:
            assert loop.spec is not None
            for a in loop.spec.axes:
                if loop.spec.role == "block":
                    continue
                text = f"({text}) * {self.extent(a)}" if text and " " in text else f"{text} * {self.extent(a)}" if text else ""
                text = f"{text} + {self.letters[a]}" if text else self.letters[a]
        return f"[{text}]"

    def span(self, home: Home) -> tuple[int, bool, str]:
        """The elements of such an array; whether they are always so many; and that in C."""
        total, fixed, texts = 1, True, []
        for loop in home.dims:
            assert loop.spec is not None
            for a in loop.spec.axes:
                if loop.spec.role == "block":
                    continue
                inner = loop.spec.role == "inner"
                total *= self.axes.block if inner else self.axes.sizes[a]
                fixed = fixed and (inner or a in self.axes.constant)
                texts.append(str(self.axes.block) if inner else self.extent(a))
        return total, fixed, " * ".join(texts) or "1"

    # -- the text

    def run(self) -> CKernel:
        body = self.loops(self.root)
        head = self.declared.get(self.root, [])
        arguments = list(self.arguments.values())
        if self.scratch:
            arguments = [replace(a, value=self.scratch) if "per_thread" in a.declaration else a for a in arguments]
            arguments.append(Argument("char *scratch", "scratch", self.scratch * self.threads))
        if any(a.kind == "team" for a in arguments):
            arguments = [a for a in arguments if a.kind != "team"] + [Argument("int threads", "threads")]
        order = ("array", "result", "value", "constant", "size", "partial", "scratch", "threads")
        arguments.sort(key=lambda a: order.index(a.kind))
        return CKernel(
            self.region.kind, self.text, tuple(arguments), tuple([*head, *body]), len(self.region.graph.eqns)
        )

    def loops(self, loop: Loop) -> list[Text]:
        """What a loop does, loops within it included."""
        lines: list[Text] = []
        for child in loop.children:
            if isinstance(child, Work):
                lines += self.line(child)
            else:
                lines += self.looped(child)
        return lines

    def looped(self, loop: Loop) -> list[Text]:
        spec = loop.spec
        assert spec is not None
        folds = [w for w in loop.everything() if w.kind == "fold" and w.y is not None and self.homes[w.y].first is loop]
        if spec.role in ("task", "block"):
            return self.tasks(loop, folds)
        before = [line for w in folds for line in self.begin(w, loop)]
        end = "width" if spec.role == "inner" else self.extent(spec.axes[0])
        return [*before, *self.walk(loop, self.letters[spec.axes[0]], "0", end)]

    def walk(self, loop: Loop, letter: str, begin: str, end: str) -> list[Text]:
        """A loop from `begin` to `end`."""
        spec = loop.spec
        assert spec is not None
        a = spec.axes[0]
        head = f"for (int64_t {letter} = {begin}; {letter} < {end}; {letter}++)"
        local = [w for w in loop.works if w.kind == "fold" and not w.over.isdisjoint(spec.axes)]
        if not loop.innermost:
            simd = a == self.axes.lane and not local and self.unrolled(loop)
            return [Text(head, body=tuple(self.scope(loop)), pragma=self.simd(loop, "") if simd else "")]
        few = a in self.axes.constant and spec.role == "whole"
        runs = [] if few else [w for w in local if self.in_runs(w)]
        if runs:
            return self.in_blocks(loop, local, runs, letter, begin, end)
        before, clause, after = self.gathered(local, frozenset())
        pragma = "" if few and self.axes.sizes[a] < 8 else self.simd(loop, clause)
        return [*before, Text(head, body=tuple(self.scope(loop)), pragma=pragma), *after]

    def unrolled(self, loop: Loop) -> bool:
        """Whether all loops within have so few rounds that the compiler writes them out."""
        inner = [child for child in loop.children if isinstance(child, Loop)]
        return all(c.spec is not None and c.spec.axes[0] in self.axes.constant and self.unrolled(c) for c in inner)

    def scope(self, loop: Loop) -> list[Text]:
        body = self.loops(loop)
        return [*self.declared.pop(loop, []), *body]

    def simd(self, loop: Loop, clause: str) -> str:
        if any(w.kind == "fold" and isinstance(w.step.eqn.op, ArgReduce) for w in loop.works if w.step and w.step.eqn):
            return ""
        if any(x.dtype in COMPLEX for w in loop.works for x in w.xs):
            return ""
        return f"#pragma omp simd{clause}"

    # -- reductions

    def in_runs(self, w: Work) -> bool:
        """Whether it is a float32 sum or product, gathered in float64 from short runs."""
        return w.xs[0].dtype in (FLOAT32, FLOAT64) and self.op(w).name in ("reduce_sum", "reduce_prod")

    def op(self, w: Work) -> Any:
        assert w.step is not None and w.step.eqn is not None
        return w.step.eqn.op

    def begin(self, w: Work, loop: Loop) -> list[Text]:
        """The state of a reduction, before the first loop that it folds."""
        assert w.y is not None
        home, name = self.homes[w.y], self.state(w.y)
        start = self.start(w)
        ctype = self.state_type(w)
        if not home.dims:
            return [Text(f"{ctype} {name} = {start};")]
        self.keep(w.y, home, ctype, name)
        return self.over_dims(home, f"{name}{self.at(home)} = {start};", crossing=loop)

    def over_dims(self, home: Home, code: str, crossing: Loop | None, comment: str = "") -> list[Text]:
        """A statement for each element of a state; dims outside `crossing` are those of loops already open."""
        open_ = set() if crossing is None or crossing.parent is None else set(crossing.parent.path)
        line = Text(code, comment)
        for loop in reversed(home.dims):
            if loop in open_:
                continue
            assert loop.spec is not None
            a = loop.spec.axes[0]
            letter = self.letters[a]
            end = "width" if loop.spec.role == "inner" else self.extent(a)
            line = Text(f"for (int64_t {letter} = 0; {letter} < {end}; {letter}++)", body=(line,))
        return [line]

    def keep(self, x: Held, home: Home, ctype: str, name: str) -> None:
        """Declares the array of a value: on the stack if it is small, else in the scratch of the thread."""
        total, fixed, text = self.span(home)
        if x in self.kept:
            return
        self.kept.add(x)
        declared = self.declared.setdefault(home.scope, [])
        if fixed and total <= STACK:
            declared.append(Text(f"{ctype} {name}[{total}];"))
            return
        nbytes = max(-(-total * self.bytes_of(ctype) // 64), 1) * 64
        offset = self.size(f"{name}_at", self.scratch) if self.scratch else ""
        self.scratch += nbytes
        own = self.size("per_thread", 0)
        place = f"scratch + GE2_THREAD * {own}" + (f" + {offset}" if offset else "")
        declared.append(Text(f"{ctype} *{name} = ({ctype} *)({place});"))

    def bytes_of(self, ctype: str) -> int:
        sizes = {"double": 8, "float": 4, "_Bool": 1, "float _Complex": 8, "double _Complex": 16}
        return sizes.get(ctype) or (16 if ctype.startswith("ge2_") else int("".join(c for c in ctype if c.isdigit())) // 8)

    def start(self, w: Work) -> str:
        lowering = self.op(w).lowering
        dtype = partial_of(w)
        text = lowering.start
        if "(" in text:
            return expression(text, [], w.xs[0].dtype, dtype)
        return {"false": "0", "true": "1"}.get(text) or number(int(text), dtype)

    def state_type(self, w: Work) -> str:
        if isinstance(self.op(w), ArgReduce):
            return f"ge2_indexed_{SUFFIX[w.xs[0].dtype]}"
        return HELD[partial_of(w)]

    def merged(self, w: Work, state: str, value: str) -> str:
        """The state with a value taken in."""
        op, dtype = self.op(w), w.xs[0].dtype
        if isinstance(op, ArgReduce):
            (axis,) = w.over
            value = expression(op.lowering.lift, [value, self.index(axis)], dtype, dtype)
        elif op.name in ("reduce_sum", "reduce_prod") and dtype != BOOL and dtype not in COMPLEX:
            return f"{state} {'+' if op.name == 'reduce_sum' else '*'}= {value};"
        return f"{state} = {expression(op.lowering.merge, [state, value], dtype if isinstance(op, ArgReduce) else partial_of(w), dtype)};"

    def combined(self, w: Work, state: str, other: str) -> str:
        """Two states as one."""
        op = self.op(w)
        if isinstance(op, ArgReduce):
            return f"{state} = {expression(op.lowering.merge, [state, other], w.xs[0].dtype, w.xs[0].dtype)};"
        return self.merged(w, state, other)

    def gathered(self, local: Sequence[Work], runs: frozenset[Work]) -> tuple[list[Text], str, list[Text]]:
        """Local states of the innermost loop: their declarations, the clause, and how they are merged."""
        before: list[Text] = []
        after: list[Text] = []
        clauses: dict[str, list[str]] = {}
        for w in local:
            assert w.y is not None
            home = self.homes[w.y]
            name = self.state(w.y)
            if home.dims or w in runs:
                part = f"{self.label(w.y.name)}_part"
                dtype = w.xs[0].dtype if w in runs else partial_of(w)
                ctype = self.state_type(w) if isinstance(self.op(w), ArgReduce) else HELD[dtype]
                before.append(Text(f"{ctype} {part} = {self.start_of(w, dtype)};"))
                target = name + (self.at(home) if home.dims else "")
                after.append(Text(self.combined(w, target, part)))
                self.local[w] = part
            else:
                self.local[w] = name
            clause = self.clause(w, runs)
            if clause:
                clauses.setdefault(clause, []).append(self.local[w])
        text = "".join(f" reduction({c}:{', '.join(names)})" for c, names in clauses.items())
        return before, text, after

    def start_of(self, w: Work, dtype: np.dtype) -> str:
        text = self.op(w).lowering.start
        return self.start(w) if "(" in text or dtype == BOOL else number(int(text), dtype)

    def clause(self, w: Work, runs: frozenset[Work]) -> str:
        op = self.op(w)
        dtype = w.xs[0].dtype
        if isinstance(op, ArgReduce) or dtype in COMPLEX:
            return ""
        if op.name in ("reduce_max", "reduce_min"):
            if dtype == BOOL:
                return "|" if op.name == "reduce_max" else "&"
            return f"ge2_{op.name[7:]}_{SUFFIX[dtype]}"
        if dtype == BOOL:
            return {"reduce_sum": "|", "reduce_or": "|"}.get(op.name, "&")
        return {"reduce_sum": "+", "reduce_prod": "*"}[op.name]

    def in_blocks(
        self, loop: Loop, local: Sequence[Work], runs: Sequence[Work], letter: str, begin: str, end: str
    ) -> list[Text]:
        """The innermost loop in runs, whose float32 sums are added up in float64."""
        before, clause, after = self.gathered(local, frozenset(runs))
        head = f"for (int64_t {letter} = at; {letter} < end; {letter}++)"
        lines = [*before, Text(head, body=tuple(self.scope(loop)), pragma=self.simd(loop, clause)), *after]
        first = f"const int64_t end = ge2_least(at + {RUN}, {end});"
        return [Text(f"for (int64_t at = {begin}; at < {end}; at += {RUN})", body=(Text(first), *lines))]

    # -- tasks

    def tasks(self, loop: Loop, folds: Sequence[Work]) -> list[Text]:
        """The loop that threads share, in tasks that the sizes alone decide."""
        spec = loop.spec
        assert spec is not None
        sizes, axes = self.axes.sizes, spec.axes
        blocked = spec.role == "block"
        count = -(-sizes[axes[0]] // self.axes.block) if blocked else math.prod(sizes[a] for a in axes)
        each = sum(w.cost * self.volume(w) for w in loop.everything()) // max(count, 1) + 1
        chunk = max(LEAST // each, 1)
        if folds:
            chunk = max(chunk, -(-count // TASKS))
        step = self.size("chunk", chunk)
        before, lines, after = self.partial(folds, loop, -(-count // chunk))
        letter = self.letters[axes[0]]
        extent = " * ".join(self.extent(a) for a in axes)
        total = f"(({extent} + {self.axes.block - 1}) / {self.axes.block})" if blocked else extent
        var = f"{letter}s" if blocked or len(axes) > 1 else letter
        head: list[Text] = []
        if blocked:
            head = [
                Text(f"const int64_t {letter}0 = {var} * {self.axes.block};"),
                Text(f"const int64_t width = ge2_least({self.axes.block}, {extent} - {letter}0);"),
            ]
        elif len(axes) > 1:
            other, inner = self.letters[axes[1]], self.extent(axes[1])
            head = [Text(f"const int64_t {letter} = {var} / {inner}, {other} = {var} % {inner};")]
        if head:
            text = f"for (int64_t {var} = from; {var} < to; {var}++)"
            walk = [Text(text, body=(*head, *self.scope(loop)))]
        else:
            walk = self.walk(loop, letter, "from", "to")
        self.argue("threads", "", "team")
        grain = max(GRAIN // each, 1)
        count_text = f"({total} + {step} - 1) / {step}"
        if folds:  # one at least, to say what nothing folds to
            count_text = f"{total} > 0 ? {count_text} : 1"
        return [
            *before,
            Text(f"const int64_t tasks = {count_text};"),
            Text(f"const int team = {total} > {self.size('grain', grain)} ? threads : 1;"),
            Text(
                "for (int64_t task = 0; task < tasks; task++)",
                pragma="#pragma omp parallel for num_threads(team) if (team > 1) schedule(dynamic)",
                body=(
                    Text(f"const int64_t from = task * {step}, to = ge2_least(from + {step}, {total});"),
                    *lines[0],
                    *walk,
                    *lines[1],
                ),
            ),
            *after,
        ]

    def volume(self, w: Work) -> int:
        return math.prod(self.axes.sizes[a] for a in w.axes)

    def partial(
        self, folds: Sequence[Work], loop: Loop, tasks: int
    ) -> tuple[list[Text], tuple[list[Text], list[Text]], list[Text]]:
        """Reductions over the axis of the tasks: each task has states of its own, merged in their order."""
        before: list[Text] = []
        first: list[Text] = []
        last: list[Text] = []
        after: list[Text] = []
        for w in folds:
            assert w.y is not None
            home, name, ctype = self.homes[w.y], self.state(w.y), self.state_type(w)
            total, _, text = self.span(home)
            parts = f"{name}s"
            self.argue(parts, f"{ctype} *{parts}", "partial", total * tasks * self.bytes_of(ctype))
            if not home.dims:
                first.append(Text(f"{ctype} {name} = {self.start(w)};"))
                last.append(Text(f"{parts}[task] = {name};"))
                after.append(Text(f"{ctype} {name} = {parts}[0];"))
                after.append(
                    Text(
                        "for (int64_t task = 1; task < tasks; task++)",
                        body=(Text(self.combined(w, name, f"{parts}[task]")),),
                    )
                )
                continue
            first.append(Text(f"{ctype} *{name} = {parts} + task * {self.wrapped(text)};"))
            first += self.over_dims(home, f"{name}{self.at(home)} = {self.start(w)};", crossing=loop)
            after.append(Text(f"{ctype} *{name} = {parts};"))
            place = self.at(home)
            other = f"{parts}[task * {self.wrapped(text)} + {place[1:-1]}]"
            after.append(
                Text(
                    "for (int64_t task = 1; task < tasks; task++)",
                    body=tuple(self.over_dims(home, self.combined(w, f"{name}{place}", other), crossing=loop)),
                )
            )
        return before, (first, last), after

    def wrapped(self, text: str) -> str:
        return f"({text})" if " " in text else text

    # -- statements

    def line(self, w: Work) -> list[Text]:
        if w.kind == "store":
            return [self.stored(w)]
        if w.kind == "fold":
            return self.fold_line(w)
        assert w.y is not None and w.step is not None
        y, home = w.y, self.homes[w.y]
        code = self.computed(w)
        comment = self.note(w.step.eqn)
        name = self.label(y.name)
        if home.dims:
            self.keep(y, home, HELD[y.dtype] if y.dtype != BOOL else "uint8_t", name)
            return [Text(f"{name}{self.at(home)} = {code};", comment)]
        return [Text(f"const {HELD[y.dtype]} {name} = {code};", comment)]

    def computed(self, w: Work) -> str:
        assert w.y is not None and w.step is not None
        eqn, operands = w.step.eqn, [self.operand(x) for x in w.xs]
        if eqn is None:
            assert w.step.xs[0].leaf is not None
            return f"ge2_cast_{SUFFIX[w.step.xs[0].leaf.var.type.dtype]}_f32({operands[0]})"
        op = eqn.op
        if isinstance(op, ArgReduce):
            return "0"
        if isinstance(op, Reduce):
            return f"ge2_add_{SUFFIX[w.xs[0].dtype]}({operands[0]}, 0)" if op.name == "reduce_sum" else operands[0]
        out = eqn.outs[0].type.dtype
        if op.name == "convert_element_type":
            return self.cast(operands[0], w.xs[0].dtype, out)
        lowering: Any = op.lowering
        return expression(lowering.expression, operands, w.xs[0].dtype, w.y.dtype)

    def cast(self, text: str, dtype: np.dtype, out: np.dtype) -> str:
        if out in HALF:  # through the half type and back
            short = SUFFIX[out]
            return f"ge2_cast_{short}_f32(ge2_cast_{SUFFIX[dtype]}_{short}({text}))"
        if dtype == BOOL and out not in COMPLEX:
            return f"{text} ? {number(1, out)} : {number(0, out)}"
        return text if dtype == out else f"ge2_cast_{SUFFIX[dtype]}_{SUFFIX[out]}({text})"

    def fold_line(self, w: Work) -> list[Text]:
        assert w.y is not None and w.home is not None and w.step is not None
        home = self.homes[w.y]
        spec = w.home.spec
        comment = self.note(w.step.eqn)
        value = self.operand(w.xs[0])
        if spec is not None and not w.over.isdisjoint(spec.axes) and w in self.local:
            return [Text(self.merged(w, self.local[w], value), comment)]
        name = self.state(w.y)
        return [Text(self.merged(w, name + (self.at(home) if home.dims else ""), value), comment)]

    def stored(self, w: Work) -> Text:
        p = w.param
        assert p is not None
        dtype = p.var.type.dtype
        name = p.name
        self.argue(name, f"{STORED[dtype]} *{name}", "result", (self.operands[p.var], dtype))
        value = self.operand(w.xs[0])
        if dtype in HALF:
            value = f"ge2_cast_f32_{SUFFIX[dtype]}({value})"
        return Text(f"{name}[{self.place(p)}] = {value};")

    def note(self, eqn: Eqn | None) -> str:
        if eqn is None:
            return ""
        inputs = "".join(" " + atom_text(a, self.names) for a in eqn.inputs)
        return f"{self.names[eqn.outs[0]]} = {op_text(eqn.op)}{inputs}"
