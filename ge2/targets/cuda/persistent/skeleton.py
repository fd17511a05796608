"""The parts of a persistent kernel, as its template prints them (`templates/cuda/persistent.cu.jinja`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, Final, final

from ge2.base.record import record
from ge2.codegen.text import Text


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
    body: tuple[Text, ...]
    kind: ClassVar = "elements"


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


Stage = Text | Barrier | Elements | Iterations | Branches
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
    matrices: tuple[Text, ...]
    stages: tuple[Stage, ...]


def named(name: str, stages: Sequence[Stage]) -> bool:
    """Whether stages name something."""
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
