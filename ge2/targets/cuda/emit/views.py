"""Parts of kernels as templates print them: of threads along what is kept, and of groups with a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, final

from ge2.base.record import record
from ge2.codegen.text import Text
from ge2.targets.cuda.emit import words
from ge2.targets.cuda.emit.region import Plain
from ge2.targets.cuda.emit.words import Stage as Reduction

# -------- Parts of kernels whose threads lie along what is kept, as their templates print them.


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


# -------- Parts of kernels whose teams of threads have a row each, as `cuda/rowwise.cu.jinja`
# prints them.


@final
@record
class Load:
    """The part of a row that a thread has: its places, in registers or in shared memory, and the
    reading of pack k.
    """

    at: int
    rooms: tuple[Text, ...]
    reads: tuple[Text, ...]
    shared: bool = False
    kind: ClassVar = "load"


@final
@record
class Fetch:
    """The prefetch of a row (`copies`), and its use (`takes`)."""

    rooms: tuple[Text, ...]
    split: tuple[Text, ...]
    copies: tuple[Text, ...]
    rows: tuple[Text, ...]
    takes: tuple[Text, ...]


@final
@record
class GroupLoop:
    """The rows that a thread group has: one, those that it walks to, or all."""

    at: int
    form: str
    row: str
    count: str
    states: tuple[Reduction, ...] = ()
    fetch: Fetch | None = None
    kind: ClassVar = "rows"


@final
@record
class GroupEnd:
    """The end of a loop over rows."""

    at: int
    after: tuple[Reduction, ...]
    kind: ClassVar = "end"


@final
@record
class PassLoop:
    """A loop over what a thread has of a row: `elements` are those of a pack, `apart` those of one
    that has no element which is looked for (`test`).
    """

    reads: tuple[Text, ...]
    elements: tuple[Text, ...]
    apart: tuple[Text, ...]
    test: str
    writes: tuple[Text, ...]
    head: str = ""
    unroll: str = ""
    places: tuple[Text, ...] = ()
    braces: bool = True


@final
@record
class Pass:
    """A stage that goes through a row."""

    at: int
    states: tuple[Reduction, ...]
    picks: tuple[Text, ...]
    waits: bool
    prepared: tuple[Reduction, ...]
    loops: tuple[PassLoop, ...]
    near: str
    folds: tuple[Reduction, ...]
    kind: ClassVar = "pass"


RowStage = Plain | Load | GroupLoop | GroupEnd | Pass


@final
@record
class RowsView:
    """The view that `templates/cuda/rowwise.cu.jinja` prints."""

    index: str
    teams: int
    packed: bool
    stages: tuple[RowStage, ...]
