"""The nodes of a persistent kernel, its size, and the parts that its template prints."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import field, fields, is_dataclass
from typing import Any, ClassVar, Final, final

from ge2.base.record import mutable, record
from ge2.codegen.axes import strides_of
from ge2.codegen.text import Text
from ge2.ir import Atom, Dims, Eqn, Graph
from ge2.ops.dot import DotGeneral
from ge2.ops.graphs.loops import ScanLoop
from ge2.ops.graphs.while_loop import WhileLoop
from ge2.ops.reduce import ArgReduce, Reduce
from ge2.ops.shape import Transpose
from ge2.targets.cuda.emit.words import Stage as Reduction
from ge2.targets.cuda.persistent.values import Array, Made, Value
from ge2.targets.cuda.tuning import Persistent

# -------- What a persistent kernel is made of: statements in loops over elements, within rounds and
# branches.


LOOPS = (ScanLoop, WhileLoop)
FOLDS = (Reduce, ArgReduce)
E: Final = "e"  # the place of an element in its loop


class Unwritten(Exception):
    """The reason why no persistent kernel does something; who asks for one takes another way."""


@final
@record
class Key:
    """The loop of some statements: so many elements, each by a group of threads.

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
    """The partial results of a reduction by stages: `count` states for each of `size` results.

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


@final
@record
class Barriers:
    """The barriers that a persistent kernel passes, in all rounds: of a block, and of the grid."""

    block: int = 0
    grid: int = 0

    def __add__(self, other: Barriers) -> Barriers:
        return Barriers(self.block + other.block, self.grid + other.grid)

    def __mul__(self, times: int) -> Barriers:
        return Barriers(self.block * times, self.grid * times)


def barriers_of(nodes: Sequence[Node]) -> Barriers | None:
    """The barriers of nodes; None where a number on the GPU decides how many rounds there are, or which
    branch is taken.
    """
    found = Barriers()
    for node in nodes:
        if isinstance(node, Level):
            found += Barriers(0, 1) if node.wait else Barriers(1, 0)
            continue
        inner = barriers_of(node.body) if isinstance(node, Rounds) and node.length else None
        if inner is None:
            return None
        found += inner * node.length  # type: ignore[union-attr]
    return found


# -------- How large a persistent kernel is: its threads, which arrays have no gaps, and which are
# stacks.


def dense(steps: Dims, shape: Dims) -> Dims | None:
    """The axes of an array that has no gaps, the slowest first, as they are if
    that is C order; or None.

    >>> dense((12, 4, 1), (2, 3, 4)), dense((4, 8, 1), (2, 3, 4)), dense((24, 8, 1), (2, 3, 4))
    ((0, 1, 2), (1, 0, 2), None)
    """
    axes = tuple(range(len(shape)))
    for order in (axes, tuple(sorted(axes, key=lambda i: -steps[i]))):
        plain = strides_of(tuple(shape[i] for i in order))
        if all(shape[i] == 1 or steps[i] == step for i, step in zip(order, plain, strict=True)):
            return order
    return None


def stacks(graph: Graph) -> dict[Atom, int]:
    """The arrays of which loops read or write an element each round, with the
    axis that counts rounds.
    """
    found: dict[Atom, int] = {}
    for eqn in graph.eqns:
        if isinstance(eqn.op, ScanLoop):
            _, start, elements = eqn.op.parts(eqn.inputs)
            found.update(dict.fromkeys((*elements, *eqn.outs[len(start) :]), 0))
    for eqn in reversed(graph.eqns):
        if isinstance(eqn.op, Transpose) and eqn.outs[0] in found:
            found.setdefault(eqn.inputs[0], eqn.op.order[found[eqn.outs[0]]])
    return found


def threads(graph: Graph, tuning: Persistent) -> int:
    """As many threads as the widest step has work for; a view is read, and no
    step unless it is a result.
    """
    eqns = everything(graph)
    ends = {a for eqn in eqns for g in eqn.op.graphs() for a in g.outputs}
    ends.update(graph.outputs)
    steps = [eqn for eqn in eqns if not eqn.op.is_view or not ends.isdisjoint(eqn.outs)]
    wanted = max([tuning.narrowest, *map(wide, steps)])
    return min(tuning.widest, 1 << (wanted - 1).bit_length())


def wide(eqn: Eqn) -> int:
    """Returns how many threads an equation keeps busy."""
    op: Any = eqn.op
    if not eqn.outs or op.name in ("scan", "while", "cond", "iota"):
        return 1  # what reads the elements of an iota is as wide as they are, or reads one a round
    size = eqn.outs[0].type.size
    if isinstance(op, DotGeneral):
        folded = math.prod(eqn.inputs[0].type.shape[i] for i in op.contract[0])
        return size * min(max(folded // 4, 1), 32)
    return max(size, eqn.inputs[0].type.size // 4) if eqn.inputs else size


def everything(graph: Graph) -> list[Eqn]:
    """The equations of a graph, and of the graphs in it."""
    inner = [e for eqn in graph.eqns for g in eqn.op.graphs() for e in everything(g)]
    return [*graph.eqns, *inner]


# -------- The parts of a persistent kernel, as its template prints them
# (`templates/cuda/persistent.cu.jinja`).


def single(body: Sequence[Reduction]) -> bool:
    """True if a loop that encloses these needs no braces."""
    first = body[0] if len(body) == 1 else None
    return isinstance(first, Text) and not first.body and not first.pragma


@final
@record
class Barrier:
    """A barrier of the threads of a block; `grid`: of those of all blocks."""

    grid: bool = False
    kind: ClassVar = "barrier"


@final
@record
class Elements:
    """A loop in which each thread has elements of its own."""

    size: int
    threads: int
    body: tuple[Reduction, ...]
    kind: ClassVar = "elements"

    @property
    def braces(self) -> bool:
        return not single(self.body)


@final
@record
class Teams:
    """A loop in which threads side by side have an element together, `at_once` elements at a time;
    the first of them writes it.
    """

    size: int
    at_once: int
    team: int
    element: str
    lines: tuple[Reduction, ...]
    guard: str
    writes: tuple[Text, ...]
    kind: ClassVar = "teams"


@final
@record
class Columns:
    """A loop over rows, in which teams have columns of a matrix that they keep; the threads for
    which `writer` holds write.
    """

    rows: int
    lines: tuple[Reduction, ...]
    writer: str
    writes: tuple[Text, ...]
    after: tuple[Text, ...]
    kind: ClassVar = "columns"


@final
@record
class Own:
    """A loop over a thread's own elements i of a grid: where one is, and whether there is one."""

    count: int
    place: tuple[Text, ...]
    guard: str
    body: tuple[Reduction, ...]
    kind: ClassVar = "own"

    @property
    def braces(self) -> bool:
        return not single(self.body)


@final
@record
class Strides:
    """Loops over a thread's own elements of a grid, some at a time."""

    size: int
    count: int
    loops: tuple[Own, ...]
    first: str = "mine"
    kind: ClassVar = "strides"


@final
@record
class Pieces:
    """The loading of what a thread keeps of a matrix: pieces n of four terms of a sum each."""

    count: int
    places: tuple[Text, ...]
    to: str
    element: str
    kind: ClassVar = "pieces"


@final
@record
class Scope:
    """Stages whose names are theirs."""

    body: tuple[Stage, ...]
    kind: ClassVar = "scope"


@final
@record
class Iterations:
    """A loop: of `count` iterations, or until `test` decides otherwise."""

    head: str
    test: tuple[Stage, ...]
    until: str
    body: tuple[Stage, ...]
    kind: ClassVar = "iterations"


@final
@record
class Branch:
    """The stages for one index; `braces`: they are more than a statement."""

    body: tuple[Stage, ...]
    braces: bool


@final
@record
class Branches:
    """A choice of branches, by an index that all threads know."""

    label: str
    chosen: str
    branches: tuple[Branch, ...]
    kind: ClassVar = "branches"


Stage = (
    Reduction
    | Barrier
    | Elements
    | Teams
    | Columns
    | Own
    | Strides
    | Pieces
    | Scope
    | Iterations
    | Branches
)
BARRIER: Final = Barrier()
MEETING: Final = Barrier(grid=True)


@final
@record
class PersistentView:
    """`rooms`: arrays in shared memory; `own`: what a thread of a grid has; `matrices`: their
    loading.
    """

    rooms: tuple[Text, ...]
    mine: bool  # whether a thread's number among all is needed
    own: tuple[Text, ...]
    matrices: tuple[Stage, ...]
    stages: tuple[Stage, ...]


def named(name: str, stages: Sequence[Stage]) -> bool:
    """True if stages name something."""
    return any(re.search(rf"\b{name}\b", code) for code in codes(tuple(stages)))


def codes(x: Any) -> list[str]:
    """All that is printed of a stage, but comments."""
    if isinstance(x, Text):
        return [x.code, *codes(x.body)]
    if isinstance(x, tuple):
        return [code for each in x for code in codes(each)]
    if is_dataclass(x):
        return [code for f in fields(x) for code in codes(getattr(x, f.name))]
    return [x] if isinstance(x, str) else []
