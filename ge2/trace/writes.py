"""The arguments that a function writes: what a trace finds out, what a call
checks, how they change.

The graph of such a function yields the last contents of each written argument beside its results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NoReturn, final

import numpy as np

from ge2.base.arrays import on_gpu
from ge2.base.errors import InPlaceError, ReadOnlyError
from ge2.base.record import record
from ge2.base.source import Source, here
from ge2.trace.tracer import is_traced

WORK: Final[Any] = 10_000  # candidates that a search for a common element may try


@final
@record
class Write:
    """One argument that is written: its place among the inputs, the line that does it, whether only
    the memory of an array in C order has the meaning that was assumed.
    """

    input: int
    line: Source | None
    ordered: bool = False


@final
@record
class Writes:
    """The written arguments.

    `names`: of all inputs; `results`: for each result its place among the graph's outputs, where a
    written argument that is returned is the caller's array itself.
    """

    title: str
    names: tuple[str, ...]
    each: tuple[Write, ...]
    results: tuple[int, ...]

    @property
    def inputs(self) -> tuple[int, ...]:
        return tuple(w.input for w in self.each)

    @property
    def written(self) -> tuple[str, ...]:
        """The names that the user gives those arguments."""
        return tuple(self.names[w.input] for w in self.each)

    def __str__(self) -> str:
        lines = [f" ({w.line})" if w.line else "" for w in self.each]
        return "writes " + ", ".join(
            self.names[w.input] + line for w, line in zip(self.each, lines, strict=True)
        )

    def of(self, found: Sequence[Any]) -> list[Any]:
        """The results among the values that begin with the written arguments."""
        return [found[i] for i in self.results]

    def of_inputs(self, arrays: Sequence[Any]) -> list[Any]:
        """The written arguments."""
        return [arrays[w.input] for w in self.each]

    def carried(self, arrays: Sequence[Any], found: list[Any]) -> list[Any]:
        """The writes found, with each last contents replaced by the argument,
        which now has them.
        """
        for n, w in enumerate(self.each):
            x = arrays[w.input]
            if found[n] is not x:
                change(x, found[n], self.names[w.input], self.title)
                found[n] = x
        return found

    # --------------------------------------------------------------------------------------- checks

    def check_given(self, arrays: Sequence[Any]) -> None:
        """As `check`, of arrays or traced values."""
        if any(map(is_traced, arrays)):
            self.check_traced(arrays)
        else:
            self.check(arrays)

    def check(self, arrays: Sequence[Any]) -> None:
        """ReadOnlyError, InPlaceError unless each array can be written and
        shares no memory with another.
        """
        for w in self.each:
            x = arrays[w.input]
            if not getattr(x.flags, "writeable", True):
                self.refuse_read_only(w, x)
            if not (x.flags.c_contiguous or x.flags.f_contiguous) and repeats(x):
                self.refuse_repeats(w)
            if w.ordered and not x.flags.c_contiguous:
                self.refuse_order(w)
            if x.base is not None or any(
                y is x or is_view(y) for j, y in enumerate(arrays) if j != w.input
            ):
                self.check_apart(w, arrays)

    def check_traced(self, arrays: Sequence[Any]) -> None:
        """InPlaceError if a traced value that is written may share memory with another argument."""
        for w in self.each:
            for j, y in enumerate(arrays):
                if j != w.input and is_traced(y) and meet(arrays[w.input], y):
                    self.refuse_overlap(w.input, j)

    def check_apart(self, w: Write, arrays: Sequence[Any]) -> None:
        x = arrays[w.input]
        for j, y in enumerate(arrays):
            if j != w.input and share(x, y):
                self.refuse_overlap(w.input, j)

    def refuse_overlap(self, i: int, j: int) -> NoReturn:
        same = "share memory, and one of them is written"
        what = f"{self.names[i]} and {self.names[j]} of {self.title} {same}: {self}"
        raise InPlaceError(what, where=here(), fix="pass a copy of one of them, as x.copy()")

    def refuse_read_only(self, w: Write, x: Any) -> NoReturn:
        what = f"assignment destination is read-only: {self.names[w.input]} of {self.title}, which {self}"
        fix = "pass a copy, x.copy()"
        if may_be_writable(x):
            fix += ", or x.flags.writeable = True"
        raise ReadOnlyError(what, where=here(), fix=fix)

    def refuse_repeats(self, w: Write) -> NoReturn:
        what = f"{self.names[w.input]} of {self.title} has elements that share memory, as a broadcast array"
        raise InPlaceError(
            f"{what}, and the function {self}", where=here(), fix="pass a copy, x.copy()"
        )

    def refuse_order(self, w: Write) -> NoReturn:
        name = self.names[w.input]
        what = f"{name} of {self.title} is not in C order, so a reshape or ravel of it may be a copy in NumPy"
        raise InPlaceError(
            f"{what}, and the function {self}",
            where=here(),
            fix=f"pass np.ascontiguousarray({name}), or write {name}[...] without a reshape",
        )


def repeats(x: Any) -> bool:
    """True if elements of an array may share memory: its axes do not nest."""
    end = x.itemsize
    for stride, n in sorted((abs(s), n) for s, n in zip(x.strides, x.shape, strict=True) if n > 1):
        if stride < end:
            return bool(x.size)
        end += stride * (n - 1)
    return False


def may_be_writable(x: np.ndarray) -> bool:
    """True if NumPy would let the user make a read-only array writable: not a view of one, of a
    file that is mapped to be read, or of bytes.
    """
    if x.flags.owndata:
        return True
    view = x.view()
    try:
        view.flags.writeable = True
    except ValueError:
        return False
    return True


def is_view(x: Any) -> bool:
    return getattr(x, "base", None) is not None


def share(x: Any, y: Any) -> bool:
    """True if two arrays have an element in common, or that cannot be decided quickly."""
    if on_gpu(x) or on_gpu(y):
        return on_gpu(x) and on_gpu(y) and share_on_gpu(x, y)
    return isinstance(y, np.ndarray) and bool(np.may_share_memory(x, y, WORK))


def meet(x: Any, y: Any) -> bool:
    """The same of two traced values: by their layouts, if both are known."""
    if not is_traced(x) or x.cell.root is not y.cell.root or not y.cell.is_array:
        return False
    layouts = x.cell.ghost(), y.cell.ghost()
    return any(each is None for each in layouts) or share(*layouts)


def share_on_gpu(x: Any, y: Any) -> bool:
    """The same by the addresses of a device, as if they were those of a host."""
    return bool(x.size and y.size and np.may_share_memory(at_address(x), at_address(y), WORK))


def at_address(x: Any) -> np.ndarray:
    """An array that is never read, laid out in this process as another is on its device."""
    layout = {"shape": x.shape, "typestr": f"|V{x.itemsize}", "strides": x.strides}
    return np.asarray(Described({**layout, "data": (x.data.ptr, True), "version": 3}))


@final
class Changing:
    """Finds which arguments a trace changes in place.

    Their last contents are outputs, before the results.

    `first` is the number of inputs before the arguments; `positions` are the leaves that those are.
    """

    def __init__(
        self, first: int, positions: Sequence[int], donated: frozenset[int] = frozenset()
    ) -> None:
        self.first, self.positions, self.donated = first, positions, donated
        self.each: list[tuple[int, Any]] = []  # inputs that are written, with their cells
        self.results: list[int] = []  # places of the results among the outputs
        # leaves of which it matters whether they are NumPy's scalars
        self.scalars: dict[int, bool] = {}

    def outputs(self, xs: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        """The last contents of what was written, then the results that are none of those arrays."""
        given = list(enumerate(xs))[self.first :]
        for leaf, (_, x) in zip(self.positions, given, strict=True):
            if not x.type.shape and (changed(x.cell) or (x.owner.writes and indexes(x))):
                self.scalars[leaf] = not x.cell.is_array
        kept = [leaf not in self.donated for leaf in self.positions]
        written = [
            pair for pair, k in zip(given, kept, strict=True) if k and written_to(pair[1].cell)
        ]
        self.each = [(i, x.cell) for i, x in written]
        cells = [x.cell for _, x in written]
        found, self.results = [x for _, x in written], []
        for y in results:
            same = cells.index(y.cell) if is_traced(y) and y.cell in cells else len(found)
            self.results.append(same)
            if same == len(found):
                found.append(y)
        return found

    def writes(self, title: str, names: Sequence[str]) -> Writes | None:
        """The writes known when the trace is over; None if there are none. `names`: of inputs."""
        if not self.each:
            return None
        before = len(names) - self.first - len(self.positions)
        found = [(before + i, cell.argument) for i, cell in self.each]
        each = [Write(i, argument.line, argument.ordered) for i, argument in found]
        return Writes(title, tuple(names), tuple(each), tuple(self.results))


def changed(cell: Any) -> bool:
    """True if an argument was changed in place, or bound anew by an operator that would have."""
    return cell.argument is not None and (cell.argument.rebound or written_to(cell))


def indexes(x: Any) -> bool:
    """True if an argument indexes an array, which tells NumPy's scalars from arrays."""
    return x.cell.argument is not None and x.cell.argument.index and not x.type.weak


def written_to(cell: Any) -> bool:
    """True if an argument's cell was written; one whose contents are in doubt
    says so when it is read.
    """
    return cell.argument is not None and bool(cell.version or cell.doubt)


def is_scalar(leaf: Any) -> bool:
    """True for NumPy's scalar, or a value traced as one: it never changes in place."""
    return isinstance(leaf, np.generic) or (is_traced(leaf) and not leaf.cell.is_array)


@final
class Described:
    """Something with an array interface alone."""

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def change(x: Any, value: Any, name: str, title: str) -> None:
    """Gives an argument its last contents, NumPy's or CuPy's array or a traced value."""
    if is_traced(x):
        x.write(value, f"{title}, which writes {name},")
    elif is_traced(value):
        what = f"{title} writes {name}, which is a real array here, and what is written is traced"
        fix = (
            "pass np.zeros_like(x) of a traced x, or x.copy() of an argument, which can be written"
        )
        raise InPlaceError(what, where=here(), fix=fix)
    else:
        x[...] = value
