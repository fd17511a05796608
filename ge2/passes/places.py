"""Where the elements of an array are that is seen through slices, joins and repetition: along each axis
in runs of places, of elements one after another, or of one again and again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

from ge2.ir import Eqn
from ge2.ops.graphs.region import Runs
from ge2.ops.shape import BroadcastInDim


class Run(NamedTuple):
    """The places of a result from `begin` to `end`: elements from `first` on, `step` apart (1 or 0)."""

    begin: int
    end: int
    first: int
    step: int


@final
@dataclass(frozen=True)
class Along:
    """What is read along an axis of an array: at places along `axis` of the result; -1: one element."""

    axis: int
    runs: tuple[Run, ...]

    def moved(self, by: int) -> Along:
        return Along(self.axis, tuple(r._replace(first=r.first + by) for r in self.runs))

    def within(self, begin: int, end: int) -> Along | None:
        """The same of a part of the array, which has the elements from `begin` to `end`."""
        found = []
        for r in self.runs:
            if not r.step:
                inside = begin <= r.first < end
                found += [r._replace(first=r.first - begin)] if inside else []
                continue
            start, last = max(begin, r.first), min(end, r.first + r.end - r.begin)
            at = r.begin + start - r.first
            found += [Run(at, at + last - start, start - begin, 1)] if start < last else []
        return Along(self.axis, tuple(found)) if found else None

    @property
    def indices(self) -> Runs:
        """The runs, of which those are one that go on."""
        found = [self.runs[0]]
        for r in self.runs[1:]:
            last = found[-1]
            on = last.first + last.step * (last.end - last.begin)
            if r.step == last.step and r.first == on:
                found[-1] = last._replace(end=r.end)
            else:
                found.append(r)
        return tuple((r.begin, r.first, r.step) for r in found)


def spread(part: Along, axes: tuple[Along, ...]) -> list[tuple[Along, Along]]:
    """The axes of an array that a part of a join is of, each as it is at the places of the part, too,
    if it is one element.
    """
    found = []
    for along in axes:
        index = along.runs[0].first
        there = tuple(Run(r.begin, r.end, index, 0) for r in part.runs)
        found.append((along, along if along.axis >= 0 else Along(part.axis, there)))
    return found


def together(parts: tuple[tuple[Along, Along], ...]) -> Along | None:
    """What is read along an axis of an array by all parts of a join; None if some go along one axis of
    the result, and some along another.
    """
    (first, there), *_ = parts
    if all(along == first for along, _ in parts):
        return first
    if any(along.axis != there.axis for _, along in parts):
        return None
    return Along(there.axis, tuple(sorted(r for _, along in parts for r in along.runs)))


def seen_axes(eqn: Eqn, axes: tuple[Along, ...]) -> tuple[Along, ...]:
    """Where the elements are of what is seen with axes more or less."""
    op, (x,), (y,) = eqn.op, eqn.inputs, eqn.outs
    if isinstance(op, BroadcastInDim):
        return tuple(axes[d] for d in op.dims)
    rest = iter([d for d, n in enumerate(y.type.shape) if n != 1])
    one = Along(-1, (Run(0, 1, 0, 0),))
    return tuple(one if n == 1 else axes[next(rest)] for n in x.type.shape)
