"""Writes into slices without passes of their own: a region makes its result right where it goes.

`y[1:-1] = f(x)` is an update of a slice by what a region makes. If y is written in place, the
region writes into y, unless somebody reads y between the two, or the region itself reads it
anywhere else. If y is a copy, the region writes into the copy, and the rest is copied around it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import starmap
from typing import TYPE_CHECKING, Any, final

from ge2.base.toolchain.command import Provisional
from ge2.codegen.layout import Layout, plain
from ge2.compile.steps.writes import Box, disjoint, read_box, written_box
from ge2.ir import Atom, Eqn, Var
from ge2.ops.index import UpdateSlice
from ge2.program.program import Buffer
from ge2.trace.writes import Writes

if TYPE_CHECKING:
    from ge2.compile.schedule import Scheduler


def join_update(scheduler: Scheduler, n: int, eqn: Eqn) -> None:
    """Has the region whose result step `n` writes into a slice make it there,
    if that is the same.
    """
    op, (x, u), (out,) = eqn.op, eqn.inputs, eqn.outs
    assert isinstance(op, UpdateSlice)
    lent = (0, 0) in scheduler.there.get(n, ())
    if (
        out in scheduler.layouts
        or x in scheduler.layouts
        or not (lent or copied_around(scheduler, x, op))
    ):
        return
    strides = plain(out.type.shape).strides
    place = Layout(
        sum(a * s for a, s in zip(op.start, strides, strict=True)),
        tuple(a * s for a, s in zip(op.step, strides, strict=True)),
    )
    found = scheduler.made_for(u, place)
    if found is None:
        return
    part, layout = found
    source, whole = scheduler.buffers[part], scheduler.buffers[out]
    home = whole.base or whole
    if lent and not Undisturbed(scheduler, n, home, source.first).by(part, layout):
        return
    scheduler.layouts[part] = layout
    source.storage, source.base = "view", home
    home.first, home.last = min(home.first, source.first), max(home.last, source.last)
    scheduler.there.setdefault(n, set()).add((0, 1))


def copied_around(scheduler: Scheduler, x: Atom, op: UpdateSlice) -> bool:
    """True if the rest of an array can be copied around the slice, and not
    written in the caller's memory.
    """
    kept = isinstance(x, Var) and x not in scheduler.donated and x not in scheduler.written.values()
    return kept and set(op.step) <= {1}


class Undisturbed:
    """The steps from `m`, which would write into `home`, to the update `n`, which does so today."""

    def __init__(self, scheduler: Scheduler, n: int, home: Buffer, m: int) -> None:
        self.scheduler, self.n, self.home, self.m = scheduler, n, home, m
        self.eqns = scheduler.graph.eqns

    def by(self, part: Var, layout: Layout) -> bool:
        """True if all that is in `home` is there before step `m`, and nobody
        else looks until step `n`.
        """
        others = self.others()
        if others is None:
            return False
        if any(self.touched(k) for k in range(self.m + 1, self.n) if k not in others):
            return False
        eqn = self.eqns[self.m]
        inputs = [a for a in eqn.inputs if isinstance(a, Var) and self.is_home(a)]
        return all(self.elsewhere(a) or self.same_place(eqn, a, part, layout) for a in inputs)

    def others(self) -> set[int] | None:
        """Updates of other elements between the two; None if what is written
        over is not there before.
        """
        mine, found = self.box(self.n), set[int]()
        x = self.eqns[self.n].inputs[0]
        while (k := self.scheduler.number(x)) >= self.m:
            if k == self.m:  # it makes all of the array, in an order that nobody knows
                return None
            eqn = self.eqns[k]
            fits = isinstance(eqn.op, UpdateSlice) and (0, 0) in self.scheduler.there.get(k, ())
            if not fits or not disjoint(mine, self.box(k)) or self.is_home(eqn.inputs[1]):
                return None
            found.add(k)
            x = eqn.inputs[0]
        return found

    def box(self, k: int) -> Box:
        """Returns the elements that update `k` writes, computed once: many updates ask for them."""
        boxes = self.scheduler.boxes
        if k not in boxes:
            boxes[k] = written_box(self.eqns[k])
        return boxes[k]

    def is_home(self, a: Atom) -> bool:
        if not isinstance(a, Var) or a.type.weak:
            return False
        buffer = self.scheduler.buffers[a]
        return (buffer.base or buffer) is self.home

    def touched(self, k: int) -> bool:
        """True if step `k` reads or writes the array; a view does neither."""
        if self.scheduler.kinds[k] == "view":
            return False
        return any(map(self.is_home, (*self.eqns[k].inputs, *self.eqns[k].outs)))

    def elsewhere(self, a: Var) -> bool:
        """True if a value is a slice of the array with none of the elements that are written."""
        found = read_box(self.scheduler.makers, a)
        if found is None or not self.is_home(found[0]) or found[0] in self.scheduler.layouts:
            return False
        return disjoint(found[1], self.box(self.n))

    def same_place(self, eqn: Eqn, a: Var, part: Var, layout: Layout) -> bool:
        """True if the region reads each element where it writes it, and then alone."""
        if a.type != part.type or self.scheduler.layouts.get(a) != layout:
            return False
        return self.scheduler.is_elementwise(eqn, eqn.outs.index(part), a)


# ------------------------------------------------------------------------------- written arguments
# A program that changes its arguments: in their own memory, or by a copy when it has succeeded.
#
# The plan has the last contents of an argument computed in its own memory where nothing
# else reads the old ones and nothing can fail from then on (`schedule`); elsewhere they
# are copied there when the call is over.


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
        if isinstance(run, Provisional):  # it knows of a better way soon
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
