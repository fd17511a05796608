"""The parts of a region's kernel, as its template prints them (`templates/c/region.c.jinja`)."""

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
    kind: ClassVar = "loop"

    @property
    def braces(self) -> bool:
        """Whether it encloses more than one statement."""
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
    after: tuple[Text, ...]
    kind: ClassVar = "tasks"


Stage = Text | For | Braces | Tasks


def length(stage: Stage) -> int:
    """The lines that a stage takes."""
    if isinstance(stage, Text):
        return length_of_text(stage)
    return 1 + sum(map(length, stage.body))
