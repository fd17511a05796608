"""The parts of a persistent kernel, as its template prints them (`templates/cuda/persistent.cu.jinja`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, Final, final

from ge2.base.record import record
from ge2.codegen.text import Text
from ge2.targets.cuda.emit.reductions import Stage as Reduction


def single(body: Sequence[Reduction]) -> bool:
    """True if a loop that encloses these needs no braces."""
    first = body[0] if len(body) == 1 else None
    return isinstance(first, Text) and not first.body and not first.pragma


@final
@record
class Barrier:
    """Where the threads of a block meet; `grid`: those of all blocks."""

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
    """What is done for one index; `braces`: it is more than a statement."""

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
