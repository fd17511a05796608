"""What a CUDA kernel is: a function, what it is handed, and the grid that it is launched on."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, final

from ge2.base.record import record
from ge2.codegen.text import Argument, Operand, Text
from ge2.ops.graphs.region import KINDS

ORDER = ("array", "result", "size", "value", "constant")
UNROLL = "#pragma unroll"
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
UNROLLED = re.compile(rf"{UNROLL}(?! 1$)[^\n]*\n\s*for ", re.MULTILINE)
MARKS = re.compile(r"[(){};]")
# a promise that a kernel cannot give which begins while others write what it reads
EXCLUSIVE = "__restrict__ "


@final
@record
class Fixed:
    """A number of the text under a name: `constexpr int THREADS = 256;`."""

    name: str
    value: int
    why: str = ""


@final
@record
class Bundle:
    """So many launches of one kernel, which are one; its blocks lie along `axis` of the grid. Members
    at the end may have no blocks.
    """

    member: CudaKernel
    count: int
    axis: str


@final
@record
class CudaKernel:
    """A `__global__` function.

    `grid` counts blocks, `block` their threads, `shared` is asked for at launch.

    `arguments` are those of the C target: arrays, sizes, numbers, and partial
    results that it has for itself.
    """

    kind: str
    graph: str
    arguments: tuple[Argument, ...]
    body: tuple[Text, ...]  # the statements, of a kernel that has no template of its own
    block: int
    grid: tuple[int, ...]
    fixed: tuple[Fixed, ...] = ()
    shared: int = 0
    equations: int = 0
    helpers: tuple[str, ...] = ()  # what a user's CUDA needs before the function
    most: int = 0  # threads that a block may have, if other sizes give it others
    resident: int = 1  # blocks that a multiprocessor is to hold at once
    sides: tuple[int, ...] = ()  # threads along each axis of a block, if not all along the first
    foreign: bool = False  # what it does is a user's text
    # whether a multiprocessor is to hold one block, whose threads have all registers: groups of them
    # then give some to others
    single: bool = False
    # whether its blocks wait for each other, and so are all on the GPU at once
    together: bool = False
    template: str = "cuda/kernel.cu.jinja"  # the family's, which prints the loops around statements
    view: Any = None  # a frozen record of what that template prints
    text: str = ""  # the whole source, in place of what a template prints,
    file: str = ""  # and the user's file that it stands in
    bundle: Bundle | None = None  # what it does for several at once

    @property
    def title(self) -> str:
        article = "An" if self.kind[0] in "aeiou" else "A"
        many = f", for up to {self.bundle.count} steps at once" if self.bundle else ""
        return f"{article} {self.kind}{' region' if self.kind in KINDS else ''}{many}."

    @property
    def given(self) -> tuple[Argument, ...]:
        """The arguments in the order of the parameters."""
        return tuple(sorted(self.arguments, key=lambda a: ORDER.index(a.kind)))

    @property
    def parameters(self) -> str:
        return ", ".join(a.declaration for a in self.given)

    def fits(self, threads: int) -> bool:
        """True if a GPU that holds so many threads holds all of its blocks at once: little to
        one too large is won where it is launched while those before it end.
        """
        return self.block * math.prod(self.grid) <= threads

    @property
    def lets(self) -> bool:
        """True if it lets those that wait for it be launched as soon as
        all of its blocks are there.

        One whose blocks wait for each other needs the GPU to itself.
        """
        return not (self.foreign or self.together)

    def in_turns(self, code: str) -> bool:
        """True if its code, without comments, reads in a loop what comes after
        what it has written there.

        Several rounds at once are under way only if what is written is known to
        be nothing that is read. Tensor maps are no accesses of the code's.
        """
        read, written = (
            re.compile(
                rf"\b({'|'.join([more, *(a.name for a in self.given if a.kind == kind and not a.mapped)])})\b"
            )
            for kind, more in (("array", "from"), ("result", "to"))
        )
        return any(read.search(body) and written.search(body) for body in unrolled_bodies(code))

    @property
    def shape(self) -> tuple[int, ...]:
        """Threads along each axis of a block."""
        return self.sides or (self.block,)

    def shifted(self, temps: int) -> CudaKernel:
        """The kernel among others: its own arrays come after so many."""
        return replace(self, arguments=tuple(later(a, temps) for a in self.arguments))

    @property
    def bounds(self) -> str:
        """Returns how many threads a block has at most, and how many blocks are to fit."""
        most = self.most or self.block
        told = self.resident > 1 or self.single
        return f"{most}, {self.resident}" if told else str(most)


def unrolled_bodies(code: str) -> Iterator[str]:
    """The bodies of loops of which several rounds are unrolled.

    >>> list(unrolled_bodies("#pragma unroll\\nfor (int v = 0; v < f(2); v++)\\n    y[v] = x[v];\\nn = 1;"))
    ['\\n    y[v] = x[v];']
    """
    for found in UNROLLED.finditer(code):
        begin = past(code, found.end(), ")")
        yield code[begin : past(code, begin, ";}")]


def past(code: str, at: int, ends: str) -> int:
    """Returns where the next parentheses (`)`) or the next statement (`;` or `}`) ends."""
    depth = 0
    for found in MARKS.finditer(code, at):
        depth += 1 if found[0] in "({" else -1 if found[0] in ")}" else 0
        if depth == 0 and found[0] in ends:
            return found.end()
    return len(code)


def later(argument: Argument, temps: int) -> Argument:
    if argument.kind not in ("array", "result"):
        return argument
    operand, dtype = argument.value
    own = isinstance(operand, Operand) and operand.role == "part"
    return (
        replace(argument, value=(replace(operand, index=operand.index + temps), dtype))
        if own
        else argument
    )


def bare(source: str) -> str:
    """A source without its comments, each line where it was: sources that
    differ in comments alone are one.

    >>> bare("/* about\\n   a */ int a; /* b */")
    '\\n int a; '
    """
    return COMMENT.sub(lambda found: "\n" * found[0].count("\n"), source)
