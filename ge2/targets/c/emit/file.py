"""A jitted graph as one C file: the parts of its functions, and calls that repeat, as loops."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, ClassVar, final

from ge2.base.record import record
from ge2.base.source import pattern
from ge2.codegen.environment import render
from ge2.codegen.text import Argument, CKernel, Sharing, Text, checked, coded, declarations
from ge2.codegen.text import length as length_of_text
from ge2.targets.c.emit import headers, types
from ge2.targets.c.tuning import Files

# -------- The parts of a C function, as templates print them (`stages` of
# `templates/c/loops.c.jinja`).


@final
@record
class For:
    """A loop."""

    index: str
    begin: str
    end: str
    body: tuple[Stage, ...]
    pragma: str = ""
    step: str = ""
    of_block: str = ""  # the index of blocks that the loop takes as one, which begin at 0
    kind: ClassVar = "loop"

    @property
    def braces(self) -> bool:
        """True if it encloses more than one statement."""
        first = self.body[0] if len(self.body) == 1 else None
        return not (isinstance(first, Text) and not first.body and not first.pragma)


@final
@record
class Braces:
    """A scope."""

    body: tuple[Stage, ...]
    kind: ClassVar = "braces"


WORD = pattern(r"\b[A-Za-z_]\w*")
VARIABLE = pattern(
    r"(?P<type>(?:const )?\w+ (?:_Complex )?\*?)(?P<name>\w+)(?P<size>\[[^\]]+\])?(?: = .*)?;"
)


@final
@record
class Read:
    """A parameter or variable of a kernel that its tasks read: by a pointer, if it is an array on
    the stack, which nobody else has.
    """

    type: str
    name: str
    array: bool = False


@final
@record
class Tasks:
    """A loop that threads share, in tasks: their number and that of the threads have names. With
    `reads` it is a function of its own, which takes these.
    """

    count: str
    rounds: str
    team: str
    total: str
    grain: str
    body: tuple[Stage, ...]
    sharing: Sharing
    after: tuple[Stage, ...]
    reads: tuple[Read, ...] = ()
    kind: ClassVar = "tasks"


@final
@record
class Iterations:
    """A loop of the user's: in each iteration its body, a function, is called with pointers `q`."""

    before: tuple[Text, ...]
    pointers: tuple[Text, ...]  # declarations of arrays of them
    length: str  # "" if `test` ends the loop
    interrupt: tuple[Text, ...]
    test: tuple[Text, ...]
    first: tuple[Text, ...]
    call: tuple[Text, ...]
    each: tuple[Text, ...]  # after the call: pointers move on, the carry changes roles
    after: tuple[Text, ...]
    kind: ClassVar = "iterations"


@final
@record
class Branches:
    """A choice of branches by an index, which is clamped."""

    chosen: str
    branches: tuple[tuple[Text, ...], ...]
    kind: ClassVar = "branches"


Stage = Text | For | Braces | Tasks | Iterations | Branches


def length(stage: Stage) -> int:
    """The lines that a stage takes."""
    if isinstance(stage, Text):
        return length_of_text(stage)
    assert isinstance(stage, For | Braces | Tasks)  # others are of programs
    return 1 + sum(map(length, stage.body))


def with_reads(body: Sequence[Stage], arguments: Sequence[Argument]) -> tuple[Stage, ...]:
    """The stages of a kernel, whose tasks are functions of all that they read: so they are compiled
    once, for one thread and for several.
    """
    known = {a.name: Read(a.type, a.name) for a in arguments if a.kind != "threads"}
    found = list[Stage]()
    for at, stage in enumerate(body):
        if isinstance(stage, Tasks):
            words = set(WORD.findall(" ".join(coded(stage.body))))
            reads = tuple(each for name, each in known.items() if name in words)
            found.append(replace(stage, reads=reads))
        else:
            found.append(stage)
        for text in stage.after if isinstance(stage, Tasks) else (stage,):
            variables = variables_of(text)
            if variables is None:
                return (*found, *body[at + 1 :])
            known.update(variables)
    return tuple(found)


def variables_of(stage: Stage) -> dict[str, Read] | None:
    """The variables that a statement declares; None if it is not known what they are.

    >>> variables_of(Text("double *sums = (double *)(scratch + 8);"))
    {'sums': Read(type='double *', name='sums', array=False)}
    >>> variables_of(Text("const float x = a[0];"))
    {'x': Read(type='float ', name='x', array=False)}
    >>> variables_of(Text("double kept[24];"))
    {'kept': Read(type='double *', name='kept', array=True)}
    """
    if not isinstance(stage, Text) or stage.body or stage.pragma:
        return {}
    names, found = [*declarations(stage.code.rstrip(";"))], VARIABLE.fullmatch(stage.code)
    if not names:
        return {}
    if found is None or names != [found["name"]]:
        return None
    ctype, array = found["type"], bool(found["size"])
    if not ctype.endswith("*"):
        ctype = ctype.removeprefix("const ")
    return {names[0]: Read(f"{ctype}*" if array else ctype, names[0], array)}


@final
@record
class Partial:
    """Reductions over the axis that tasks share: what a task does first and
    last, and what follows all.
    """

    first: tuple[Stage, ...]
    last: tuple[Stage, ...]
    after: tuple[Stage, ...]


@final
@record
class Cut:
    """`count` rounds (`total` in C) in tasks of `chunk`, for several
    threads from `grain` rounds on.
    """

    total: str
    count: int
    chunk: int
    grain: int


# -------- A jitted graph as one C file: kernels, each once, and functions that call them in order.


PROGRAM = "c/program.c.jinja"
EACH_TYPE = frozenset(
    (
        "complex",
        "complex_exp",
        "complex_log",
        "fold",
        "index",
        "integer",
        "random",
        "select",
        "sort",
        "sort_lines",
        "transpose",
    )
)  # headers that have functions for each type
PRODUCTS = {
    "f32": "GE2_PRODUCT_BLAS(f32, float, sgemm, sgemv, float, one, zero)",
    "f64": "GE2_PRODUCT_BLAS(f64, double, dgemm, dgemv, double, one, zero)",
    "c64": "GE2_PRODUCT_BLAS(c64, float _Complex, cgemm, cgemv, const void *, &one, &zero)",
    "c128": "GE2_PRODUCT_BLAS(c128, double _Complex, zgemm, zgemv, const void *, &one, &zero)",
}


KERNEL_NAME = pattern(r"^(GE2_SOONER\n)?static void (\w+_\d+)\(", re.MULTILINE)


@final
@record
class Named:
    """A kernel under its name in the file."""

    name: str
    kernel: CKernel
    part: bool = False  # its function for a range of the work alone

    def text(self) -> str:
        if own := self.kernel.text:
            return re.sub(rf"\b{self.kernel.kind}(?=(_part)?\s*\()", self.name, own)
        return checked(render(self.kernel.template, self))


@final
@record
class Then:
    """The view that `templates/c/product/then.c.jinja` prints: a product and a region of its elements."""

    type: str
    product: CKernel
    region: CKernel
    multiply: str
    go_on: str
    lines: tuple[Text, ...]
    first: str
    last: str
    blas: bool

    def of_product(self, name: str) -> str:
        return Named(name, self.product, part=True).text()

    def of_region(self, name: str) -> str:
        return Named(name, self.region, part=True).text()


@final
@record
class Run:
    """A function that the launcher, or a loop, calls: `int name(p, n, k, arena, threads, lib)`."""

    name: str
    calls: tuple[Stage, ...]
    inner: bool = False  # another function of the file calls it
    short: bool = False  # and it becomes part of that one


@final
@record
class CFile:
    """`products`: the types whose matrices it multiplies, as (suffix, C type)."""

    title: str
    graph: str
    tuning: Files
    kernels: tuple[str, ...]
    runs: tuple[Run, ...]
    products: frozenset[tuple[str, str]] = frozenset()
    prototypes: tuple[str, ...] = ()
    inlined: frozenset[str] = frozenset()  # kernels that a loop calls with sizes that are numbers
    single: frozenset[str] = frozenset()  # functions of several callers, compiled once for all
    helpers: tuple[str, ...] = ()
    defined: tuple[str, ...] = ()  # macros that define functions which several kernels call
    calls_alone: bool = False  # what its functions call is not to become part of them

    @property
    def parts(self) -> tuple[tuple[str, ...], ...]:
        """The kernels; those of a large file in 2, 4, 8 or 16 parts that take as long
        to compile, at once.
        """
        weights = [statements(k) + self.tuning.loop * k.count("for (") for k in self.kernels]
        halves = sum(weights) // (self.tuning.large // 2)
        if self.inlined or len(self.kernels) < self.tuning.many or halves < 2:
            return (tuple(KERNEL_NAME.sub(self.head, k) for k in self.kernels),)
        count = min(self.tuning.parts, 1 << halves.bit_length() - 1)
        shared = [KERNEL_NAME.sub(r"\1GE2_SHARED void \2(", k) for k in self.kernels]
        return tuple(tuple(part) for part in in_parts(shared, weights, count) if part)

    def head(self, found: re.Match[str]) -> str:
        sooner, name = found.groups("") if self.calls_alone else ("", found[2])
        if name in self.inlined:
            return f"GE2_FN void {name}("
        return f"{sooner}{'GE2_SINGLE' if name in self.single else 'static'} void {name}("

    @property
    def named(self) -> str:
        """The texts that name functions of headers."""
        called = [c for run in self.runs for c in coded(run.calls)]
        return "".join([*self.helpers, *self.defined, *self.kernels, *called])

    @property
    def types(self) -> tuple[str, ...]:
        """The types whose functions headers are to have; () for all, where a user's C may call any."""
        return () if self.helpers or EACH_TYPE.isdisjoint(self.headers) else types(self.named)

    @property
    def headers(self) -> tuple[str, ...]:
        found = {*headers(self.named)}
        if self.helpers:
            found.add("complex")  # a user's own C may calculate with them
        return ("core", *sorted(found | ({"product"} if self.products else set())))

    @property
    def definitions(self) -> tuple[str, ...]:
        products = tuple(
            PRODUCTS.get(suffix, f"GE2_PRODUCT_LOOPS({suffix}, {ctype}, {ctype})")
            for suffix, ctype in sorted(self.products)
        )
        return (*products, *self.defined)

    def text(self) -> str:
        return render(PROGRAM, self)


def statements(text: str) -> int:
    """The statements of a text of C, of which a graph in a comment has few."""
    return text.count(";")


def in_parts(texts: Sequence[str], weights: Sequence[int], count: int) -> list[list[str]]:
    """Texts in their order, in so many parts of about one weight each.

    >>> in_parts(["a", "b", "c", "d", "e"], [4, 1, 1, 2, 4], 3)
    [['a'], ['b', 'c', 'd'], ['e']]
    """
    parts: list[list[str]] = [[] for _ in range(count)]
    total, before = sum(weights), 0
    for text, weight in zip(texts, weights, strict=True):
        parts[min((before + weight // 2) * count // total, count - 1)].append(text)
        before += weight
    return parts


def same_code(kernel: CKernel) -> str:
    """A kernel without what is for people alone: equal texts are one function."""
    if kernel.text:
        return kernel.text
    given = *kernel.helpers, *kernel.definitions
    head = [kernel.parameters, kernel.total, *given, *coded(kernel.body)]
    return "\n".join([*head, kernel.template, *coded(kernel.view)])


# -------- Calls that repeat, as loops over a table of their arguments: compiled once, however many
# there are.
# The calls of a C function differ in the numbers within `n[...]`, `p[...]` and `k[...]`: which
# size, array or constant each is passed. Where all else repeats with a period, such a number
# becomes `first + step * t`, or is read from a table in `n` where it has no step. Loops that repeat
# become a loop again, so nested Python loops stay nested.


REFERENCE = pattern(r"\b([npk])\[(\d+)\]")
MARK = "\0"  # in place of a number

# statements with marks, and the numbers they stand for, in order
Node = tuple[Stage, tuple[int, ...]]
# appends integers to `n`, and returns the index of the first
Table = Callable[[Sequence[int]], int]


def repeated_calls(calls: Sequence[Stage], table: Table, tuning: Files) -> tuple[Stage, ...]:
    """The same calls in the same order, those that repeat as loops."""
    if len(calls) < tuning.calls:
        return tuple(calls)
    nodes = list(map(parsed, calls))
    for depth in count():
        shorter = with_loops(nodes, f"t{depth}", table, tuning)
        if len(shorter) == len(nodes):
            return tuple(filled(text, iter(numbers)) for text, numbers in nodes)
        nodes = shorter
    raise AssertionError


def parsed(call: Stage) -> Node:
    """A call with marks for its numbers.

    >>> parsed(Text("f(p[2], n[10]);"))
    (Text(code='f(p[\\x00], n[\\x00]);', comment='', body=(), pragma='', end=''), (2, 10))
    """
    if not isinstance(call, Text):  # a loop of the user's, which has its own numbers
        return call, ()
    found = tuple(int(m[2]) for m in REFERENCE.finditer(call.code))
    return replace(call, code=REFERENCE.sub(rf"\1[{MARK}]", call.code)), found


def with_loops(nodes: Sequence[Node], variable: str, table: Table, tuning: Files) -> list[Node]:
    """The nodes, with every run that repeats by the shortest period at which any does as a loop."""
    known: dict[Stage, int] = {}
    keys = [known.setdefault(text, len(known)) for text, _ in nodes]
    for period in periods(keys, tuning.periods):
        found = runs(keys, period, tuning.iterations)
        if not found:
            continue
        made, at = list[Node](), 0
        for start, stop in found:
            made += [*nodes[at:start], looped(nodes[start:stop], period, variable, table)]
            at = stop
        return [*made, *nodes[at:]]
    return list(nodes)


def periods(keys: Sequence[int], most: int) -> list[int]:
    """The commonest distances between equal nodes, the shortest first."""
    last: dict[int, int] = {}
    distances: Counter[int] = Counter()
    for i, key in enumerate(keys):
        if key in last:
            distances[i - last[key]] += 1
        last[key] = i
    return sorted(period for period, _ in distances.most_common(most))


def runs(keys: Sequence[int], period: int, fewest: int) -> list[tuple[int, int]]:
    """Runs of nodes that equal those a period later, as whole iterations, `fewest` or more.

    >>> runs([7, 1, 2, 1, 2, 1, 2, 1, 8], 2, 3)
    [(1, 7)]
    """
    found, start = [], 0
    for i in range(len(keys) - period + 1):
        if i + period < len(keys) and keys[i] == keys[i + period]:
            continue
        iterations = (i + period - start) // period
        if iterations >= fewest:
            found.append((start, start + iterations * period))
        start = i + 1
    return [
        run for run, before in zip(found, [(0, 0), *found], strict=False) if run[0] >= before[1]
    ]


def looped(nodes: Sequence[Node], period: int, variable: str, table: Table) -> Node:
    """Iterations of equal nodes as one loop, whose length is a number in `n` too."""
    iterations = [nodes[i : i + period] for i in range(0, len(nodes), period)]
    columns = zip(
        *([n for _, numbers in each for n in numbers] for each in iterations), strict=True
    )
    moved = [by_iteration(column, variable, table) for column in columns]
    marks = iter([mark for mark, _ in moved])
    body = tuple(marked(text, marks) for text, _ in nodes[:period])
    length = table([len(iterations)])
    return For(variable, "0", f"n[{MARK}]", body), (length, *(first for _, first in moved))


def by_iteration(column: Sequence[int], variable: str, table: Table) -> tuple[str, int]:
    """A number that changes from iteration to iteration, as text with a mark
    and the number for that mark.

    >>> by_iteration((3, 5, 7), "t0", lambda numbers: 0), by_iteration((3, 3), "t0", lambda numbers: 0)
    (('\\x00 + 2 * t0', 3), ('\\x00', 3))
    """
    first, step = column[0], column[1] - column[0]
    if all(n == first + i * step for i, n in enumerate(column)):
        return (f"{MARK} + {step} * {variable}" if step else MARK), first
    return f"n[{MARK} + {variable}]", table(column)


def marked(call: Stage, marks: Iterator[str]) -> Any:
    """The call with something else for each mark."""

    def text(code: str) -> str:
        first, *rest = code.split(MARK)
        return first + "".join(next(marks) + part for part in rest)

    if isinstance(call, Text):
        return replace(call, code=text(call.code))
    if not isinstance(call, For):
        return call
    end = text(call.end)
    return replace(call, end=end, body=tuple(marked(each, marks) for each in call.body))


def filled(call: Stage, numbers: Iterator[int]) -> Stage:
    found: Stage = marked(call, map(str, numbers))
    return found
