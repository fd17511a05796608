"""The text of a kernel: lines and parameters, and the part of it that a measurement belongs to."""

from __future__ import annotations

import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass, replace
from functools import cache, lru_cache
from typing import Any, Final, final

import numpy as np

from ge2.base.cache import content_key
from ge2.base.compiler import reached, significant
from ge2.base.config import config
from ge2.base.errors import VerifyError
from ge2.base.record import outlines, record
from ge2.base.source import pattern, templates
from ge2.codegen.axes import Axes, Work, strides_of
from ge2.codegen.environment import user_templates
from ge2.codegen.kernel_values import Param, Values
from ge2.ir import Dims, Literal, Names, Var
from ge2.ops.graphs.region import KINDS, Region
from ge2.ops.reduce import ArgReduce, Reduce

# -------- The parts of a kernel in C: lines, parameters, and where the arrays are that it is given.


@final
@record
class Text:
    """A line of C."""

    code: str
    comment: str = ""
    body: tuple[Text, ...] = ()  # of a loop
    pragma: str = ""
    end: str = ""  # what follows the closing brace of a body


def guard(test: str, done: str | Sequence[Text]) -> Text:
    """A statement, or a block of some, for where a test holds."""
    if isinstance(done, str):
        return Text(f"if ({test}) {done}")
    return Text(f"if ({test})", body=tuple(done))


# in place of a number of threads: a kernel so small, and called so often, that it has no team
ALONE = 0


@final
@record
class Sharing:
    """Sharing of loops by threads: the test by which they do, how many there are, and the schedule
    of the iterations. With a `total`, they are a function of their own, of which each thread calls
    one part of so many iterations.
    """

    test: str
    schedule: str = ""
    long: bool = False  # whether the loop has so many lines that it is not compiled twice
    simd: bool = False
    count: str = "threads"
    total: str = ""


def leaves(view: Any) -> Iterator[Text]:
    """The statements of a view that enclose no others."""
    if isinstance(view, Text) and not view.body:
        yield view
    elif isinstance(view, tuple):
        for each in view:
            yield from leaves(each)
    elif is_dataclass(view):
        for f in outlines(type(view)):
            yield from leaves(getattr(view, f.name))


def length(text: Text) -> int:
    """The lines that it takes."""
    return 1 + sum(map(length, text.body))


def nested(texts: Sequence[Text]) -> list[str]:
    """All lines, but no comments."""
    found: list[str] = []
    for t in texts:
        found += (t.pragma, t.code, "{", *(nested(t.body) if t.body else ()), "}", t.end)
    return found


def coded(view: Any) -> list[str]:
    """All that a view has, but the comments of its statements."""
    found: list[str] = []
    add_code(view, found)
    return found


def add_code(view: Any, found: list[str]) -> None:
    if isinstance(view, Text):
        found += nested((view,))
    elif isinstance(view, tuple):
        found.append("(")
        for each in view:
            add_code(each, found)
        found.append(")")
    elif is_dataclass(view):
        found.append(type(view).__name__)
        for name in fields_of(type(view)):  # type: ignore[arg-type]
            found.append(name)
            add_code(getattr(view, name), found)
    else:
        found.append(repr(view))


@cache
def fields_of(kind: type) -> tuple[str, ...]:
    return tuple(f.name for f in outlines(kind))


@final
@record
class Argument:
    """A parameter of the kernel: an array of the graph, a size or a number."""

    declaration: str
    kind: str  # array, result, value, constant, size, partial, scratch, threads, services, equation
    value: Any = None  # (Operand, dtype), on a GPU (Operand, Tiles), (number, dtype), a size, bytes

    @property
    def name(self) -> str:
        return self.declaration.split()[-1].lstrip("*")

    @property
    def type(self) -> str:
        """The declaration without the name."""
        return self.declaration.removesuffix(self.name)

    @property
    def mapped(self) -> bool:
        """True of a tensor map of an array."""
        return self.kind in ("array", "result") and not isinstance(self.value[1], np.dtype)


@final
@record
class CKernel:
    """A C function, and what is passed to it.

    With a `total`, the body is a part of the work, iterations `from` to `to` of so many: a function
    of its own, which one thread calls for all, or several for tasks of `chunk` iterations.
    """

    kind: str
    graph: str
    arguments: tuple[Argument, ...]
    body: tuple[Text, ...]  # the statements, of a kernel that has no template of its own
    equations: int = 0
    total: str = ""
    helpers: tuple[str, ...] = ()  # what a user's C needs before the function
    definitions: tuple[str, ...] = ()  # macros of a header that define functions which it calls
    unless_same: bool = False  # a copy that is not to be made of an array to itself
    template: str = "c/kernel.c.jinja"  # the family's, which prints the loops around statements
    view: Any = None  # a frozen record of what that template prints
    text: str = ""  # the whole function, called as its kind, in place of what a template prints
    unit: int = 0  # elements of a region that an iteration has, in C order; 0 if in another
    choosing: bool = False  # it folds extremes of what it computes, in loops along them

    @property
    def title(self) -> str:
        article = "An" if self.kind[0] in "aeiou" else "A"
        return f"{article} {self.kind}{' region' if self.kind in KINDS else ''}."

    @property
    def parameters(self) -> str:
        return ", ".join(a.declaration for a in self.arguments)

    @property
    def of_part(self) -> tuple[Argument, ...]:
        """The parameters that concern a part."""
        others = "chunk", "grain", "threads", "work"
        return tuple(a for a in self.arguments if a.name not in others)


@final
@record
class Operand:
    """An array that a step reads (`in`), makes (`out`), or has for itself
    (`temp`), or a part of one.

    Strides and offset count elements. `value`: it is a number that is passed as
    such. `loose`: elements of which the array's place is a multiple, if it is not known
    to be that of the widest access. `memory`: the number of the first array that a step reads
    of the same memory, if that is another.
    """

    role: str
    index: int
    strides: Dims
    offset: int = 0
    value: bool = False
    loose: int = 0
    memory: int = -1

    def part(self, start: Dims, step: Dims) -> Operand:
        """The elements `start, start + step, ...` of each axis."""
        offset = self.offset + sum(a * s for a, s in zip(start, self.strides, strict=True))
        strides = tuple(a * s for a, s in zip(step, self.strides, strict=True))
        return replace(self, offset=offset, strides=strides)


def whole(role: str, index: int, shape: Sequence[int]) -> Operand:
    """All of an array in C order."""
    return Operand(role, index, strides_of(shape))


# ---------------------------------------------------------------------------------------- declared
# Names that generated C or CUDA declares where they are declared already: two
# values would share a name.


ASIDE = pattern(r"/\*.*?\*/|//[^\n]*|^[ \t]*#[^\n]*|\"(?:\\.|[^\"\\])*\"", re.DOTALL | re.MULTILINE)
MARK = pattern(r"[(){};]")
NOT_TYPES = frozenset((
    "return", "else", "goto", "case", "typedef", "using", "delete", "new", "throw", "sizeof", "break", "if",
    "while", "switch", "do",
))  # fmt: skip
DECLARED = pattern(
    r"(?:(?:static|extern|const|constexpr|inline|volatile|register|unsigned|struct|alignas|__shared__"
    r"|__align__\(\d+\)|_Alignas\(\w+\))\s+)*"
    r"(?P<type>[A-Za-z_]\w*)(?:<[^;={}]*>)?(?:\s+(?:_Complex|const|int|long))*"
    r"(?P<mark>\s+|\s*[*&]+\s*)(?P<rest>[^;]*)",
    re.DOTALL,
)
NAME = pattern(
    r"(?:[*&]|const\b|__restrict__\b|restrict\b|\s)*\(?\s*(?:[*&]\s*)?(?:const\s+)?(\w+)\s*(?:=(?!=)|\[|$|\))"
)
COMPARED = pattern(r" (?:<<|>>|[<>]=?) ")
LOOP = pattern(r"for ?\((.*?);")
FUNCTION = pattern(r"\b(?:void|int)\b.*\w\(([^()]*)\)$")


def checked(source: str) -> str:
    """The source of a kernel, which in check mode declares no name where it is declared already."""
    if config.check and (names := declared_twice(source)):
        raise VerifyError(f"a kernel declares {', '.join(names)} twice:\n{source}")
    return source


@lru_cache(1024)
def declared_twice(source: str) -> list[str]:
    """The names that a scope, or one around it, has already; a loop's own are
    of the scope of its body.

    >>> declared_twice("void f(int n) { { int a; } { float a; } for (int i = 0; i < n; i++) { int i = 2; } }")
    ['i']
    >>> declared_twice("void f(float by) { const float a = 1, by = 2; }")
    ['by']
    """
    found: list[str] = []
    scopes: list[set[str]] = [set()]
    for head, mark in pieces(ASIDE.sub(" ", source)):
        if mark == "}":
            del scopes[-1:]
            scopes = scopes or [set()]
            continue
        begins = LOOP.match(head) or FUNCTION.search(head)
        if begins and mark == ";":
            continue  # a loop of one statement, whose names nothing else sees
        scopes += [set()] if begins else []
        for name in declarations(head):
            found += [name] if any(name in scope for scope in scopes) else []
            scopes[-1].add(name)
        scopes += [set()] if mark == "{" and not begins else []
    return found


def pieces(text: str) -> Iterator[tuple[str, str]]:
    """Pairs of the text before each brace or semicolon that is in no parentheses, and that mark."""
    depth, begin = 0, 0
    for found in MARK.finditer(text):
        mark = found[0]
        depth += (mark == "(") - (mark == ")")
        if depth == 0 and mark in "{};":
            yield " ".join(text[begin : found.start()].split()), mark
            begin = found.end()


def declarations(head: str) -> Iterator[str]:
    """The names that a statement, the head of a loop or that of a function declares."""
    loop, function = LOOP.match(head), FUNCTION.search(head)
    if function:
        for each in split(function[1]):
            yield from named(each)
    elif loop:
        yield from named(loop[1])
    else:
        yield from named(head)


def named(text: str) -> Iterator[str]:
    found = DECLARED.fullmatch(text.strip())
    if found is None or found["type"] in NOT_TYPES:
        return
    for each in split(found["rest"]):
        name = NAME.match(each)
        if name:
            yield name[1]


def split(text: str) -> list[str]:
    """The parts between commas that no parentheses or braces hold.

    >>> split("a = b >= c ? f(b, v) : 0, d")
    ['a = b   c ? f(b, v) : 0', ' d']
    """
    if "," not in text:
        return [text]
    found, depth = [""], 0
    for letter in COMPARED.sub("   ", text):
        depth += (letter in "([{<") - (letter in ")]}>")
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return found


# -------- The parameters of a kernel, and what axes, sizes, strides and numbers are called in it;
# for C and CUDA alike.


class Parameters(ABC):
    """The parameters of a kernel, each declared when it is first named."""

    def __init__(self) -> None:
        self.arguments: dict[str, Argument] = {}

    def add_argument(self, name: str, declaration: str, kind: str, value: Any = None) -> str:
        new = Argument(declaration, kind, value)
        known = self.arguments.setdefault(name, new)
        if known != new:  # what one name means twice would be read as the other
            raise VerifyError(
                f"a kernel would have two arguments {name}: {known.value} and {value}"
            )
        return name

    @abstractmethod
    def size(self, name: str, value: int) -> str:
        """A size or a stride as a parameter."""

    def sizes(self, letters: Sequence[str], values: Sequence[int]) -> list[str]:
        return [self.size(f"n_{letter}", n) for letter, n in zip(letters, values, strict=True)]

    def place(self, name: str, letters: Sequence[str], strides: Sequence[int]) -> str:
        """The index of an element of an array: `i * x_i + j`."""
        terms = [
            letter if step == 1 else f"{letter} * {self.size(f'{name}_{letter}', step)}"
            for letter, step in zip(letters, strides, strict=True)
            if step
        ]
        return " + ".join(terms) or "0"


class AxesParameters(Parameters):
    """The parameters of a kernel of loops over axes, whose letters are in `letters`."""

    def __init__(
        self, axes: Axes, operands: Mapping[Var, Operand], order: Sequence[int], letters: str
    ) -> None:
        super().__init__()
        self.axes, self.operands, self.order = axes, operands, list(order)
        self.letters: dict[int, str] = {
            a: letters[n] if n < len(letters) else f"i{n}"
            for n, a in enumerate(dict.fromkeys(order))
        }
        self.constants: dict[object, str] = {}

    @abstractmethod
    def extent(self, a: int) -> str:
        """The size of an axis."""

    def passed(self, literal: Literal, dtype: np.dtype, held: str) -> str:
        """A number that is no part of the text."""
        # not the value: it may be a size, which equals another by chance
        key = (id(literal), dtype)
        if key not in self.constants:
            name = self.constants[key] = f"const{len(self.constants)}"  # k0 begins a block
            self.add_argument(name, f"{held} {name}", "constant", (literal.value, dtype))
        return self.constants[key]

    def stride_by(self, p: Param, a: int, within: Sequence[int], name: str) -> str:
        """A stride as the product of the sizes of the axes `within`, where the array is tight
        there; else a number of its own.
        """
        strides, sizes = self.axes.strides[p], self.axes.sizes
        within = sorted(within, key=lambda b: -strides[b])
        tight = all(
            strides[b] == math.prod(sizes[c] for c in within[i + 1 :]) for i, b in enumerate(within)
        )
        if tight and within and strides[a] == math.prod(sizes[b] for b in within):
            extents = [self.extent(b) for b in within]
            return extents[0] if len(extents) == 1 else f"({' * '.join(extents)})"
        return self.size(f"{name}_{self.letters[a]}", strides[a])  # n_i is a size


# -------- The text of a kernel but for its numbers, which a measurement belongs to.
# Kernels for other sizes of a class of problems differ in numbers: extents, strides, threads of a
# row, and the user's own constants. Everything else but comments and blank space is its content:
# names, statements, the templates that print them, with all that these use, and the headers.


NUMBER: Final = pattern(
    r"(?:(?<![\w)\]])-)?(?<![\w.])"
    r"(?:0x[\da-fA-F.]+(?:p[-+]?\d+)?|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)[uUlLfF]*"
)
NOTES: Final = pattern(r"\{#.*?#\}", re.DOTALL)
USED: Final = pattern(r"""["']([\w./]+\.jinja)["']""")


def content_of(code: str, template: str) -> tuple[str, ...]:
    """The content of a kernel that a template prints, `code` being all that it is given."""
    return unnumbered(code), *_texts(template, user_templates())


@cache
def headers_content(names: tuple[str, ...], folders: tuple[str, ...]) -> str:
    """The content of headers, and of those that they include."""
    source = "".join(f'#include "{name}"\n' for name in names)
    found = ((name, significant(text)) for name, text in sorted(reached(source, folders)))
    return content_key(*(part for each in found for part in each))


def unnumbered(code: str) -> str:
    """Code without its numbers.

    >>> unnumbered("a_row[k] = ge2_read<PACK, 4>(a + i * 1000, -1.5e-3f - j1);")
    'a_row[k] = ge2_read<PACK, #>(a + i * #, # - j1);'
    """
    return NUMBER.sub("#", code)


@cache
def _texts(template: str, users: str) -> tuple[str, ...]:
    """The text of a template and of those that it uses, the user's before ours."""
    seen, waiting = set[str](), [template]
    found = list[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for text in _files(name, users):
            found.append(significant(NOTES.sub("", text)))
            waiting += USED.findall(text)
    return tuple(found)


def _files(name: str, users: str) -> Iterator[str]:
    for folder in filter(None, (users, templates())):
        path = os.path.join(folder, *name.split("/"))
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                yield file.read()


# -------- The work of a region, and the axes over which it is done: what the writers of C and of
# CUDA begin with.


def works_of(
    values: Values, region: Region, names: Names, label: Callable[[str], str]
) -> tuple[list[Work], list[Param]]:
    """Each equation as a work, each result as one more that stores it;
    and the results as parameters.
    """
    works: list[Work] = []
    outs: list[Param] = []
    for step in values.steps:
        y, op = step.y, None if step.eqn is None else step.eqn.op
        folds = isinstance(op, Reduce | ArgReduce) and bool(step.over)
        axes, over = frozenset({*y.axes, *step.over} if folds else y.axes), frozenset(step.over)
        works.append(
            Work("fold" if folds else "compute", len(works), y, list(step.xs), step, axes, over)
        )
        if y.var is not None and y.var in region.graph.outputs:
            at = values.where[y.var]
            param = Param(f"{label(names[y.var])}_out", y.var, at, None, None)
            outs.append(param)
            # all of its own, where the value only repeats
            axes = frozenset(a for a in at if a >= 0)
            there = values.landing.get(y.var, ())
            works.append(Work("store", len(works), None, [y, *there], None, axes, param=param))
    return works, outs


def axes_of(
    values: Values,
    region: Region,
    works: list[Work],
    outs: list[Param],
    operands: Mapping[Var, Operand],
    short: int = 0,
) -> Axes:
    """The axes that anything has, joined where they can be, and a last one of at most `short`
    elements also where arrays lie elsewhere; the works then speak of these.
    """
    lying = [(p, var, at) for (var, at), p in (*values.params.items(), *values.tables.items())]
    lying += [(p, p.var, p.axes) for p in outs]
    placed = [(s.xs[0].leaf, s.placed) for s in values.steps if s.placed is not None]
    lying += [(p, each.var, each.at) for p, each in placed if each.var is not None]
    strides = {
        p: {}
        if operands[var].value
        else {a: s for a, s in zip(at, operands[var].strides, strict=True) if a >= 0}
        for p, var, at in lying
    }
    steps = values.steps
    helds = list({id(x): x for s in steps for x in (s.y, *s.xs)}.values())
    used = {a for x in helds for a in x.axes} | {a for s in steps for a in s.over}
    used.update(*strides.values())
    axes = Axes({a: n for a, n in enumerate(region.space) if a in used}, steps, helds, strides)
    axes.apart = frozenset().union(*(each.apart for _, each in placed))
    axes.apart |= {a for each in values.landing.values() for x in each for a in x.axes}
    axes.merge()
    axes.join_apart(short)
    for w in works:  # their axes may have been joined
        w.axes, w.over = (
            frozenset(a for a in (axes.joined.get(a, a) for a in each) if a in axes.sizes)
            for each in (w.axes, w.over)
        )
    return axes
