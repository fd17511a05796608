"""What a resident kernel is made of: statements in loops over elements,
within rounds and branches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, Final, final

from ge2.base.record import mutable, record
from ge2.ir import Eqn
from ge2.ops.graphs.loops import ScanLoop
from ge2.ops.graphs.while_loop import WhileLoop
from ge2.ops.reduce import ArgReduce, Reduce
from ge2.targets.cuda.persistent.values import Array, Made, Value

LOOPS = (ScanLoop, WhileLoop)
FOLDS = (Reduce, ArgReduce)
E: Final = "e"  # the place of an element in its loop


class Unwritten(Exception):
    """What no persistent kernel does, in words; who asks for one takes another way."""


@final
@record
class Key:
    """What statements of one loop have in common: so many elements, each by a team of threads.

    `product` is that whose matrix the threads keep; its team is another one. `wide`:
    all threads of a grid share the elements, else each block has all of them. `stage`:
    of a fold by stages, see `Parts`.
    """

    size: int
    team: int = 1
    product: Eqn | None = None
    wide: bool = False
    stage: str = ""

    @property
    def spread(self) -> bool:
        """True if each thread of a grid has elements of its own, the same ones
        in all loops of the size.
        """
        return self.wide and self.team == 1 and self.stage in ("", "whole")


@final
@record
class Parts:
    """What a fold by stages leaves in between: `count` states for each of `size` results.

    There are two places for them, which take turns: so nobody writes what another is still to read.
    """

    name: str
    eqn: Eqn
    count: int
    size: int
    state: str  # the type in the text
    nbytes: int  # of all of them, twice

    @property
    def turn(self) -> str:
        return f"{self.name}_turn"

    @property
    def start(self) -> str:
        """The place of the first."""
        return f"{self.turn} * {self.count * self.size}"


@final
@mutable
class Statement:
    """An equation, or a copy where there is none."""

    y: Made
    eqn: Eqn | None
    xs: Sequence[Value]
    key: Key | None = None  # None: it goes where what it reads is
    kept: Any = None  # how threads keep a matrix, of a product that is made so
    parts: Parts | None = None  # of a fold by stages: what the first leaves, and the second reads
    into: Array | None = None  # of a write in place, whose elements are those of the updates


@final
@mutable
class Loop:
    key: Key
    statements: list[Statement] = field(default_factory=list)


@final
@mutable
class Level:
    """Loops that need not wait for each other; a barrier follows.

    `wait`: all blocks meet before it.
    """

    loops: list[Loop] = field(default_factory=list)
    wait: bool = False


@final
@mutable
class Rounds:
    """A loop over rounds: `length`, or while `decided` holds after the nodes of `test`.

    `count` is the argument that has the length: it is no part of the text.
    """

    label: str
    side: str  # which of its two places the carry has
    body: list[Node]
    length: int = 0
    reverse: bool = False
    count: str = ""
    test: list[Node] = field(default_factory=list)
    decided: Value | None = None
    # both places of each carry that threads share out
    pairs: list[Any] = field(default_factory=list)


@final
@mutable
class Choice:
    """Of several branches the one that `index` tells."""

    label: str
    index: Value
    branches: list[list[Node]]


Node = Level | Rounds | Choice
