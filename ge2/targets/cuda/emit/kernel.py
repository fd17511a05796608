"""What a CUDA kernel is: a function, what it is handed, and the grid that it is launched on."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import final

from ge2.base.record import record
from ge2.codegen.text import Argument, Operand, Text
from ge2.ops.graphs.region import KINDS

ORDER = ("array", "result", "size", "value", "constant")
UNROLL = "#pragma unroll"
# a promise that a kernel cannot give which begins while others write what it reads
ALONE = "__restrict__ "
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


@final
@record
class Fixed:
    """A number of the text under a name: `constexpr int THREADS = 256;`."""

    name: str
    value: int
    why: str = ""


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
    body: tuple[Text, ...]
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
    # whether its blocks wait for each other, and so are all on the GPU at once
    together: bool = False

    @property
    def title(self) -> str:
        article = "An" if self.kind[0] in "aeiou" else "A"
        return f"{article} {self.kind}{' region' if self.kind in KINDS else ''}."

    @property
    def given(self) -> tuple[Argument, ...]:
        """The arguments in the order of the parameters."""
        return tuple(sorted(self.arguments, key=lambda a: ORDER.index(a.kind)))

    @property
    def parameters(self) -> str:
        declared = ", ".join(a.declaration for a in self.given)
        return declared.replace(ALONE, "") if self.waits else declared

    @property
    def waits(self) -> bool:
        """Whether it waits by itself for the kernels before it
        (`ge2_await_kernels`), whatever its sizes are.

        One that reads and writes in turns needs what its compiler then may not assume.
        """
        return self.lets and not self.in_turns

    def early(self, threads: int) -> bool:
        """Whether it is launched while those that it waits for end, by a GPU that holds so many
        threads: little to one too large for it.
        """
        return self.waits and self.block * math.prod(self.grid) <= threads

    @property
    def lets(self) -> bool:
        """Whether it lets those that wait for it be launched as soon as
        all of its blocks are there.

        One whose blocks wait for each other needs the GPU to itself.
        """
        return not (self.foreign or self.together)

    @property
    def in_turns(self) -> bool:
        """Whether it reads in a loop what comes after what it has written there.

        Several rounds at once are under way only if what is written is known to
        be nothing that is read.
        """
        read, written = (
            re.compile(
                rf"\b({'|'.join([more, *(a.name for a in self.given if a.kind == kind)])})\b"
            )
            for kind, more in (("array", "from"), ("result", "to"))
        )
        return any(
            all(any(map(each.search, codes(loop.body))) for each in (read, written))
            for loop in loops(self.body)
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Threads along each axis of a block."""
        return self.sides or (self.block,)

    def shifted(self, temps: int) -> CudaKernel:
        """The kernel among others: its own arrays come after so many."""
        return replace(self, arguments=tuple(later(a, temps) for a in self.arguments))

    @property
    def bounds(self) -> str:
        """How many threads a block has at most, and how many blocks are to fit."""
        most = self.most or self.block
        return f"{most}, {self.resident}" if self.resident > 1 else str(most)


def codes(texts: Sequence[Text]) -> list[str]:
    """All lines."""
    return [line for t in texts for line in (t.code, *codes(t.body))]


def loops(texts: tuple[Text, ...]) -> list[Text]:
    """Those of which several rounds are unrolled."""
    found = [t for t in texts if t.pragma.startswith(UNROLL) and t.pragma != f"{UNROLL} 1"]
    return found + [inner for t in texts for inner in loops(t.body)]


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
