"""Parts of kernels whose teams of threads have a row each, as `cuda/rowwise.cu.jinja` prints them."""

from __future__ import annotations

from typing import ClassVar, final

from ge2.base.record import record
from ge2.codegen.text import Text
from ge2.targets.cuda.emit.region import Plain
from ge2.targets.cuda.emit.words import Stage as Reduction


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
class RowLoop:
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
class End:
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


Stage = Plain | Load | RowLoop | End | Pass


@final
@record
class RowsView:
    """The view that `templates/cuda/rowwise.cu.jinja` prints."""

    index: str
    teams: int
    packed: bool
    stages: tuple[Stage, ...]
