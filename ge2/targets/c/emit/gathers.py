"""Reading arrays at indices that a region computes: where an element is, and whether all indices
are inside.

In an innermost loop, which may run along vectors, the least and the greatest of its indices are
taken and looked at when it ends; until then one that is outside reads the first element. Elsewhere
each index is looked at as it is. One that cannot be outside, as `x & 255` of a table of 256, is not
looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from ge2.base.dtypes import INT64
from ge2.base.record import record
from ge2.codegen.kernel_values import Held
from ge2.codegen.loop_nest import Work
from ge2.codegen.text import Text, guard
from ge2.ir import Var
from ge2.ops.index import Gather
from ge2.targets.c.emit.kernel_parameters import Places, label
from ge2.targets.c.emit.types import SUFFIX


@final
@record
class Limit:
    """An index, of axis `axis` of what the work finds a place in; `name` begins names of its own.
    `inside`: it follows from how it is computed that it counts from the start and is inside. `of`:
    the first that is of the same axis of the same array, whose size and step have its name.
    """

    work: Work
    index: Held
    axis: int
    size: int
    step: int
    name: str
    inside: bool
    of: str

    @property
    def ends(self) -> tuple[str, str]:
        """The least and the greatest index of a loop."""
        return f"{self.name}_low", f"{self.name}_high"

    def fails(self, low: str, high: str, places: Places) -> str:
        """The statement that makes it the error of the call."""
        lib = places.argue("lib", "const ge2_services *lib", "services")
        equation = places.argue("equation", "int64_t equation", "equation")
        axis = places.size(f"{self.name}_axis", self.axis)
        return f"ge2_index_fails({lib}, {low}, {high}, {axis}, {self.extent(places)}, {equation});"

    def extent(self, places: Places) -> str:
        return places.size(f"{self.of}_size", self.size)


def is_place(w: Work) -> bool:
    """True of the work that finds where the elements of a gather are."""
    eqn = None if w.step is None else w.step.eqn
    return eqn is not None and isinstance(eqn.op, Gather) and w.y is not None and w.y.var is None


def limits_of(w: Work, places: Places) -> list[Limit]:
    """The indices of a place."""
    assert w.step is not None and w.step.eqn is not None and w.y is not None
    op, x = w.step.eqn.op, w.step.eqn.inputs[0]
    assert isinstance(op, Gather) and isinstance(x, Var)
    strides, found = places.operands[x].strides, list[Limit]()
    for k, (index, axis) in enumerate(zip(w.xs, op.axes, strict=True)):
        low, high = places.ranges.of(w.step.eqn.inputs[1 + k])
        name = f"{label(w.y.name)}{k}"
        of = places.gathered.setdefault((x, axis), name)
        inside, size = low >= 0 and high < x.type.shape[axis], x.type.shape[axis]
        found.append(Limit(w, index, axis, size, strides[axis], name, inside, of))
    return found


def limits(works: Iterable[Work], places: Places) -> list[Limit]:
    """The indices of all places that may be outside, each once for axes of one size."""
    found: dict[tuple[int, int], Limit] = {}
    for limit in (limit for w in filter(is_place, works) for limit in limits_of(w, places)):
        if not limit.inside:
            found.setdefault((id(limit.index), limit.size), limit)
    return list(found.values())


def begun(limit: Limit) -> Text:
    low, high = limit.ends
    return Text(f"int64_t {low} = 0, {high} = 0;")


def taken(limit: Limit, index: str) -> list[Text]:
    """The least and the greatest index, with one more."""
    each = index if limit.index.dtype == INT64 else f"(int64_t){index}"
    low, high = limit.ends
    return [Text(f"{y} = {each} {c} {y} ? {each} : {y};") for y, c in ((low, "<"), (high, ">"))]


def ended(limit: Limit, places: Places) -> Text:
    low, high = limit.ends
    size = limit.extent(places)
    return guard(f"{low} < -{size} || {high} >= {size}", limit.fails(low, high, places))


def looked_at(limit: Limit, index: str, places: Places) -> Text:
    """An index as it is."""
    outside = f"ge2_index_is_outside_{SUFFIX[limit.index.dtype]}({index}, {limit.extent(places)})"
    at = f"(int64_t){index}"
    return guard(outside, limit.fails(at, at, places))


def term(limit: Limit, index: str, places: Places) -> str:
    """Returns how far from the first element an index is."""
    at = f"(int64_t){index}"
    if not limit.inside:
        at = f"ge2_index_{SUFFIX[limit.index.dtype]}({index}, {limit.extent(places)})"
    return at if limit.step == 1 else f"{at} * {places.size(f'{limit.of}_step', limit.step)}"
