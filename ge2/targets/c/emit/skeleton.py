"""The parts of a C function, as templates print them (`stages` of `templates/c/loops.c.jinja`)."""

from __future__ import annotations

from typing import ClassVar, final

from ge2.base.record import record
from ge2.codegen.text import Sharing, Text
from ge2.codegen.text import length as length_of_text


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


@final
@record
class Tasks:
    """A loop that threads share, in tasks: their number and that of the threads have names."""

    count: str
    rounds: str
    team: str
    total: str
    grain: str
    body: tuple[Stage, ...]
    sharing: Sharing
    after: tuple[Stage, ...]
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
