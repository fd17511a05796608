"""A program that changes its arguments: in their own memory, or by a copy when it has succeeded.

The plan has the last contents of an argument computed in its own memory where nothing
else reads the old ones and nothing can fail from then on (`schedule`); elsewhere they
are copied there when the call is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import starmap
from typing import Any, final

from ge2.trace.writes import Writes

Run = Callable[..., list[Any]]


@final
class Writing:
    """A program whose first results are the contents of arguments, as a
    function that changes those.
    """

    __slots__ = ("ready", "run", "writes")

    def __init__(self, run: Run, writes: Writes, ready: Callable[[Any], Any] | None = None) -> None:
        self.run, self.writes = run, writes
        # what makes an argument as a device's kernels read it: itself, or a copy
        self.ready = ready
        if hasattr(run, "told"):  # it knows of a better way soon
            run.told = self.on_ready

    def on_ready(self, run: Run) -> None:
        self.run = run

    def __call__(self, *arrays: Any) -> list[Any]:
        writes = self.writes
        writes.check(arrays)
        given = arrays if self.ready is None else self.made_ready(arrays)
        found: list[list[Any]] = []
        try:
            # no interrupt comes between the run and its results
            found.extend(starmap(self.run, (given,)))
            return writes.of(writes.carried(arrays, found[0]))
        except BaseException:
            # only an interrupt can have come: some arguments have changed, so all of them do
            if found:
                writes.carried(arrays, found[0])
            raise

    def made_ready(self, arrays: Sequence[Any]) -> list[Any]:
        """The arrays, those that are written as kernels write them."""
        assert self.ready is not None
        given = list(arrays)
        for w in self.writes.each:
            given[w.input] = self.ready(given[w.input])
        return given
