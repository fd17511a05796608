"""The loops that a region becomes: every equation finds its loop, and every value the loops it must
outlive.

The axes are nested in one order. At each axis the equations that run along it fall into
stages: what reads the result of a reduction over the axis comes in a later loop than
the reduction. A value that is made in one loop and read in another is kept in an array,
unless it is cheaper to make it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import final

from ge2.base.record import mutable, record
from ge2.codegen.kernel_values import Held, Param, Step
from ge2.ops.reduce import ArgReduce


@final
@record
class Spec:
    """A loop over `axes`.

    Threads share a `task` or a `panel` (of blocks); others are `whole`, go over the blocks of an
    axis (`block`), or are `inner`, within a block.
    """

    axes: tuple[int, ...]
    role: str = "whole"


@final
@mutable
class Work:
    """One equation (or the storing of a result) as something to be done for
    each element of `axes`.
    """

    kind: str  # compute, fold, store
    order: int
    y: Held | None
    xs: list[Held]
    step: Step | None
    axes: frozenset[int]
    over: frozenset[int] = frozenset()
    param: Param | None = None  # where a store goes
    home: Loop | None = None

    @property
    def cost(self) -> int:
        """The number of simple operations that it costs."""
        if self.kind == "store":
            return 1
        eqn = None if self.step is None else self.step.eqn
        if eqn is None or self.kind == "fold":
            return 1
        return eqn.op.cost.instructions


@final
@mutable
class Loop:
    """One instance of a loop; the outermost, without a spec, is the kernel itself."""

    spec: Spec | None
    parent: Loop | None
    children: list[Work | Loop] = field(default_factory=list)

    @property
    def path(self) -> list[Loop]:
        """The loops around it and itself, outermost first."""
        return [*([] if self.parent is None else self.parent.path), self]

    @property
    def innermost(self) -> bool:
        return all(isinstance(child, Work) for child in self.children)

    @property
    def works(self) -> list[Work]:
        return [child for child in self.children if isinstance(child, Work)]

    def everything(self) -> Iterable[Work]:
        for child in self.children:
            if isinstance(child, Work):
                yield child
            else:
                yield from child.everything()


@final
@mutable
class Home:
    """The storage of a value: a local variable of loop `scope`, or an array over the loops `dims`."""

    scope: Loop
    dims: tuple[Loop, ...] = ()
    first: Loop | None = None  # of a reduction: the outermost loop that it folds


def nest(
    works: Sequence[Work], specs: Sequence[Spec], again: int, around: Spec | None = None
) -> Loop:
    """The tree of loops. What costs no more than `again` operations is made again rather than kept.

    All of it is in the loop `around`, also what does not run along its axes:
    on a GPU it is the threads.
    """
    root = Loop(None, None)
    if around is not None:
        root.children.append(Loop(around, root))
    inner = root if around is None else root.children[0]
    assert isinstance(inner, Loop)
    build(list(works), list(specs), inner, Kernel(list(works), again))
    return root


@final
@record
class Kernel:
    """All works of a kernel, those included that are found on the way."""

    works: list[Work]
    again: int


def build(works: list[Work], specs: list[Spec], parent: Loop, kernel: Kernel) -> None:
    """Puts works into loops below `parent`."""
    if not works:
        return
    if not specs:
        # last, since a result may share the memory of an input
        stores = [w for w in works if w.kind == "store"]
        parent.children += [*(w for w in works if w.kind != "store"), *stores]
        for w in works:
            w.home = parent
        return
    spec, rest = specs[0], specs[1:]
    inside = {w for w in works if not w.axes.isdisjoint(spec.axes)}
    if not inside:
        build(works, rest, parent, kernel)
        return
    stages = Stages(works, inside, frozenset(spec.axes), kernel)
    for within, outside in stages.run():
        build(outside, rest, parent, kernel)
        if within:
            loop = Loop(spec, parent)
            parent.children.append(loop)
            build(within, rest, loop, kernel)


class Stages:
    """The stages of works at one axis."""

    def __init__(
        self, works: list[Work], inside: set[Work], axes: frozenset[int], kernel: Kernel
    ) -> None:
        self.works, self.inside, self.axes, self.kernel = works, inside, axes, kernel
        self.maker: dict[Held, Work] = {w.y: w for w in works if w.y is not None}
        self.stage: dict[Work, int] = {}
        self.readers: dict[Held, list[Work]] = {}
        self.origin: dict[Held, Held] = {}  # of values that are made again

    def run(self) -> list[tuple[list[Work], list[Work]]]:
        for w in self.works:
            self.stage[w] = max((self.after(x) for x in w.xs), default=0)
        if not any(self.stage.values()):
            outside = [w for w in self.works if w not in self.inside]
            return [([w for w in self.works if w in self.inside], outside)]
        self.read()
        self.later()
        self.again()
        count = 1 + max(self.stage.values())
        ordered = sorted(self.works, key=lambda w: w.order)
        return [
            (
                [w for w in ordered if self.stage[w] == t and w in self.inside],
                [w for w in ordered if self.stage[w] == t and w not in self.inside],
            )
            for t in range(count)
        ]

    def after(self, x: Held) -> int:
        """The first stage in which a value can be read."""
        maker = self.maker.get(x)
        if maker is None:
            return 0
        folded = maker in self.inside and not maker.over.isdisjoint(self.axes)
        return self.stage[maker] + folded

    def read(self) -> None:
        self.readers = {}
        for w in self.works:
            for x in w.xs:
                self.readers.setdefault(x, []).append(w)

    def later(self) -> None:
        """Moves what is read only later to where it is read."""
        for w in reversed(self.works):
            if w.kind == "compute" and w.y in self.readers:
                self.stage[w] = max(self.stage[w], min(self.stage[r] for r in self.readers[w.y]))

    def again(self) -> None:
        """Makes cheap values again in each stage that reads them."""
        made: dict[int, dict[Held, Held]] = {}
        for w in list(self.works):
            if w.kind != "compute" or w not in self.inside or w.y is None:
                continue
            stages = {self.stage[r] for r in self.readers.get(w.y, ())} - {self.stage[w]}
            for t in sorted(stages):
                if self.is_cheap(w, t):
                    self.copy(w, t, made.setdefault(t, {}))
            self.read()
        self.drop()

    def drop(self) -> None:
        """Leaves out what nothing reads any more, here or in other loops."""
        while True:
            read = {x for w in self.kernel.works for x in w.xs}
            unread = [w for w in self.works if w.kind == "compute" and w.y not in read]
            if not unread:
                return
            for w in unread:
                self.works.remove(w)
                self.kernel.works.remove(w)

    def free(self, x: Held, t: int) -> bool:
        """True if stage `t` has a value at no price."""
        maker = self.maker.get(x)
        if maker is None or maker not in self.inside or maker.kind != "compute":
            return True
        if self.stage[maker] == t:
            return True
        later = any(self.stage[r] > self.stage[maker] for r in self.readers.get(x, ()))
        return later and maker.cost > self.kernel.again  # it is kept anyway

    def is_cheap(self, w: Work, t: int) -> bool:
        """True if it is worth making a value again in stage `t`, with all that is not there."""
        needed, waiting, found = {w}, [w], w.cost
        while waiting and found <= self.kernel.again:
            for x in waiting.pop().xs:
                maker = self.maker.get(x)
                if maker is not None and maker not in needed and not self.free(x, t):
                    needed.add(maker)  # once, however many ways lead to it
                    waiting.append(maker)
                    found += maker.cost
        return found <= self.kernel.again

    def copy(self, w: Work, t: int, made: dict[Held, Held]) -> Held:
        """The work once more in stage `t`; the readers there take the new value."""
        assert w.y is not None
        origin = self.origin.get(w.y, w.y)
        if origin in made:
            return self.taken(w.y, made[origin], t)
        xs = [x if self.free(x, t) else self.copy(self.maker[x], t, made) for x in w.xs]
        y = Held(w.y.name, w.y.axes, w.y.dtype, var=w.y.var)
        new = Work("compute", w.order, y, xs, w.step, w.axes)
        made[origin], self.origin[y] = y, origin
        self.works.append(new)
        self.kernel.works.append(new)
        self.inside.add(new)
        self.maker[y], self.stage[new] = new, t
        return self.taken(w.y, y, t)

    def taken(self, old: Held, y: Held, t: int) -> Held:
        """Has the readers in stage `t` take `y` for the old value."""
        for r in self.readers.get(old, ()):
            if self.stage[r] == t:
                r.xs = [y if x is old else x for x in r.xs]
        return y


def homes(root: Loop) -> dict[Held, Home]:
    """The storage of each value, for all that read it."""
    works = list(root.everything())
    readers: dict[Held, list[Work]] = {}
    for w in works:
        for x in w.xs:
            readers.setdefault(x, []).append(w)
    return {w.y: home(w, readers.get(w.y, [])) for w in works if w.y is not None}


def home(w: Work, readers: Sequence[Work]) -> Home:
    assert w.home is not None and w.y is not None
    path, axes = w.home.path, set(w.y.axes)
    first = None
    if w.kind == "fold":
        first = next(
            (loop for loop in path if loop.spec and not w.over.isdisjoint(loop.spec.axes)), None
        )
    outer = path if first is None else path[: path.index(first)]
    shared = outer
    for r in readers:
        assert r.home is not None
        shared = common(shared, r.home.path)
    crossing = [loop for loop in outer if loop not in shared]
    below = [] if first is None else path[path.index(first) + 1 :]
    dims = [
        loop for loop in (*crossing, *below) if loop.spec and not axes.isdisjoint(loop.spec.axes)
    ]
    return Home(shared[-1], tuple(dims), first)


def common(a: Sequence[Loop], b: Sequence[Loop]) -> list[Loop]:
    found = []
    for x, y in zip(a, b, strict=False):
        if x is not y:
            break
        found.append(x)
    return found


def is_state(step: Step | None) -> bool:
    """True if a reduction carries more than a number."""
    return step is not None and step.eqn is not None and isinstance(step.eqn.op, ArgReduce)
