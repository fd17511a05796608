"""What a kernel in C is made of: lines, parameters, and where the arrays are that it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

from ge2.base.record import record
from ge2.codegen.axes import strides_of
from ge2.ir import Dims
from ge2.ops.region import KINDS


@final
@record
class Text:
    """A line of C."""

    code: str
    comment: str = ""
    body: tuple[Text, ...] = ()  # of a loop
    pragma: str = ""
    end: str = ""  # what follows the closing brace of a body


HOME = Text("const int home = ge2_home();")
# in place of a number of threads: a kernel so small, and called so often, that it has no team
ALONE = 0


LINES = 8  # lines of a loop that is written twice, for a team and without one


def by_team(loop: Text, test: str, count: str, schedule: str) -> list[Text]:
    """A loop that a team of `count` threads shares where `test` holds, and else the plain loop.

    A clause `if` alone would cost a call into OpenMP, 0.2 us, for little work too. A long loop has
    it all the same: it would take twice as long to compile. No other thread of a team runs where
    the caller does: see ge2_apart.
    """
    long = length(loop) > LINES
    each = replace(loop, pragma=f"#pragma omp {schedule}")
    pragma = f"#pragma omp parallel num_threads({count}){f' if ({test})' if long else ''}"
    team = (HOME, Text("", body=(Text("ge2_apart(home);"), each), pragma=pragma))
    if long:
        return [Text("", body=team)]
    simd = "#pragma omp simd" if " simd" in schedule and "collapse" not in schedule else ""
    return [Text(f"if ({test})", body=team), Text("else", body=(replace(loop, pragma=simd),))]


def length(text: Text) -> int:
    """The lines that it takes."""
    return 1 + sum(map(length, text.body))


@final
@record
class Argument:
    """A parameter of the kernel: an array of the graph, a size or a number."""

    declaration: str
    kind: str  # array, result, value, constant, size, partial, scratch, threads, services, equation
    value: Any = None  # (Operand, dtype), (number, dtype), a size, bytes

    @property
    def name(self) -> str:
        return self.declaration.split()[-1].lstrip("*")


@final
@record
class CKernel:
    """A C function, and what is handed to it.

    With a `total`, the body is a part of the work, rounds `from` to `to` of so many: a function of
    its own, which one thread calls for all, or several for tasks of `chunk` rounds.
    """

    kind: str
    graph: str
    arguments: tuple[Argument, ...]
    body: tuple[Text, ...]
    equations: int = 0
    total: str = ""
    helpers: tuple[str, ...] = ()  # what a user's C needs before the function
    unless_same: bool = False  # a copy that is not to be made of an array to itself

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
        return tuple(a for a in self.arguments if a.name not in ("chunk", "grain", "threads"))


@final
@record
class Operand:
    """An array that a step reads (`in`), makes (`out`), or has for itself
    (`temp`), or a part of one.

    Strides and offset count elements. `value`: it is a number that is handed over as
    such. `loose`: elements of which the array's place is a multiple, if it is not known
    to be that of the widest access.
    """

    role: str
    index: int
    strides: Dims
    offset: int = 0
    value: bool = False
    loose: int = 0

    def part(self, start: Dims, step: Dims) -> Operand:
        """The elements `start, start + step, ...` of each axis."""
        offset = self.offset + sum(a * s for a, s in zip(start, self.strides, strict=True))
        strides = tuple(a * s for a, s in zip(step, self.strides, strict=True))
        return replace(self, offset=offset, strides=strides)


def whole(role: str, index: int, shape: Sequence[int]) -> Operand:
    """All of an array in C order."""
    return Operand(role, index, strides_of(shape))
