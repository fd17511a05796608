"""Parts of kernels whose threads lie along what is kept, as their templates print them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, final

from ge2.base.record import record
from ge2.codegen.text import Text
from ge2.targets.cuda.emit import words
from ge2.targets.cuda.emit.region import Plain


@final
@record
class Pack:
    """The work on a thread's neighbours: reads, statements for each of them, writes."""

    at: int
    reads: tuple[Text, ...]
    elements: tuple[Text, ...]
    writes: tuple[Text, ...]
    kind: ClassVar = "pack"


@final
@record
class RowLoop:
    """A loop over rows; in narrow blocks a thread reads some of them at once. `turns`: rows that it goes
    through without a look at the end, if any number of them.
    """

    at: int
    states: tuple[words.Stage, ...]
    row: str
    count: str
    split: tuple[Text, ...]
    narrow: bool
    start: str = ""
    step: str = ""
    unroll: int = 0
    braces: bool = True
    turns: int = 0
    rooms: tuple[Text, ...] = ()
    reads: tuple[Text, ...] = ()
    kind: ClassVar = "rows"


@final
@record
class End:
    """The end of a loop over rows, which is one of loops over `turns` of them, or has braces."""

    at: int
    after: tuple[words.Stage, ...]
    turns: bool
    braces: bool
    kind: ClassVar = "end"


Stage = Plain | Pack | RowLoop | End


@final
@record
class Lying:
    """The layout of threads: its form, the place along other axes, how many packs there are, and
    the axis of neighbours.
    """

    form: str
    places: tuple[Text, ...] = ()
    count: str = ""
    row: str = ""
    extent: str = ""
    line: str = ""  # the row, of several
    last: str = ""  # the last pack of a row, which threads beyond it have too


@final
@record
class LanesView:
    """The view that `templates/cuda/pointwise.cu.jinja` and `columnwise.cu.jinja` print."""

    index: str
    packed: bool
    lying: Lying
    block: int
    stages: tuple[Stage, ...]


def single(stages: Sequence[Stage]) -> bool:
    """True if it is one statement."""
    lines = [line for s in stages if isinstance(s, Plain) for line in s.lines]
    alone = len(lines) == 1 and all(isinstance(s, Plain) for s in stages)
    return alone and not lines[0].body and not lines[0].pragma
