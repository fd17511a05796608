"""The record of what was measured: rows by the class of a problem, in the checksummed store.

A class is a problem with its extents rounded, so that a kernel that won for one batch size is
known for its like. What this user measured stands above what ships with the package. A row whose
kernel is made of another text today is shown, and not believed. `docs/design/choice.md` has the
reasons.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache as once
from functools import lru_cache
from math import gcd
from typing import Any, Final, final

import numpy as np

from ge2.base.cache import Cache, content_key
from ge2.base.config import cache_folder
from ge2.base.dtypes import short
from ge2.base.record import record
from ge2.base.source import FOLDER, templates
from ge2.choice.measured import SHIPPED, TUNED, Measured, listed, recorded_keys, ships
from ge2.choice.problem import Family, Problem
from ge2.codegen.axes import strides_of
from ge2.codegen.text import Operand
from ge2.ir import ArrayType, Dims, Graph, Literal
from ge2.ops.graphs.region import Region

SMALL: Final = 8  # numbers of an operation up to which each is itself: axes, steps, few terms
TIE: Final = 1.03  # times the least: what is nearer is chance
DIVISORS: Final = (64, 16, 8)
ACCESS: Final = 16  # bytes of the widest access


# ---------------------------------------------------------------------------------------- classes


@final
@record
class ProblemClass:
    """Problems that are likely to be done best in one way: `form` is all but their extents, which
    are rounded in `extents`.

    Two classes of one form are neighbours if no extent is more than twice, or less than half, that
    of the other.
    """

    form: str
    extents: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"{self.form} with {' '.join(self.extents)}"

    @property
    def key(self) -> str:
        """What a pin names it by."""
        return content_key(self.text)[:16]

    def is_near(self, other: ProblemClass) -> bool:
        pairs = zip(self.extents, other.extents, strict=False)
        same = self.form == other.form and len(self.extents) == len(other.extents)
        return same and all(abs(octave(a) - octave(b)) <= 1 for a, b in pairs)


def rounded(n: int) -> str:
    """An extent as its class has it: the next power of two, and by what it can be divided.

    >>> [rounded(n) for n in (0, 1, 3, 64, 72, 100, 65536, 65537)]
    ['0', '1', '4', '64/64', '128/8', '128', '65536/64', '131072']
    """
    if n < 2:
        return str(n)
    by = next((d for d in DIVISORS if n % d == 0), 0)
    return f"{1 << (n - 1).bit_length()}/{by}" if by else str(1 << (n - 1).bit_length())


def octave(extent: str) -> int:
    return int(extent.partition("/")[0]).bit_length()


@lru_cache(1024)
def class_of(problem: Problem) -> ProblemClass:
    """The class of a problem: operation with what matters of its parameters, types, and layouts."""
    form, extents = [problem.target, problem.op.name], list[int]()
    parameters(problem.op, form, extents)
    for number, t in enumerate((*problem.inputs, *problem.outs)):
        form.append("," if number else " of ")
        typed(t, form, extents)
        if problem.operands:
            form.append(layout_word(problem.operands[number], t))
    if problem.shared:
        form.append(f" in place {sorted(problem.shared)}")
    return ProblemClass("".join(form), tuple(map(rounded, extents)))


def typed(t: ArrayType, form: list[str], extents: list[int]) -> None:
    form.append(f"{'~' if t.weak else ''}{short(t.dtype)}{t.ndim}")
    extents += t.shape


def parameters(op: Any, form: list[str], extents: list[int]) -> None:
    """Adds what an operation is, but for values of numbers; of one in a table its name is enough."""
    if not is_dataclass(op):
        return
    if isinstance(op, Region):  # whose space and axes follow from its graph
        form.append(f" {op.kind} ")
        graph_spelled(op.graph, form, extents)
        return
    if "name" in names_of(type(op)):  # type: ignore[arg-type]
        form.append(f" {getattr(op, 'edition', '')}")
        return
    for name in names_of(type(op)):  # type: ignore[arg-type]
        form.append(f" {name}=")
        spelled(getattr(op, name), form, extents)


@once
def names_of(kind: type) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind) if not f.name.startswith("_"))


def spelled(x: Any, form: list[str], extents: list[int]) -> None:
    if x is None or isinstance(x, str | bool | np.dtype):
        form.append(str(x))
    elif isinstance(x, int):
        large = x > SMALL
        form.append("n" if large else str(x))
        extents += [x] if large else []
    elif isinstance(x, tuple | list):
        form.append("(")
        for each in x:
            spelled(each, form, extents)
            form.append(",")
        form.append(")")
    elif isinstance(x, Graph):
        graph_spelled(x, form, extents)
    elif isinstance(x, ArrayType):
        typed(x, form, extents)
    elif is_dataclass(x) and not isinstance(x, type):
        form.append(type(x).__name__)
        parameters(x, form, extents)
    else:  # a number, or Python of the user's
        form.append(type(x).__name__)


def graph_spelled(graph: Graph, form: list[str], extents: list[int]) -> None:
    number = {v: str(n) for n, v in enumerate(graph.inputs)}
    for eqn in graph.eqns:
        form.append(f"; {eqn.op.name}")
        parameters(eqn.op, form, extents)
        form += [
            f" {short(a.type.dtype)}" if isinstance(a, Literal) else f" {number[a]}"
            for a in eqn.inputs
        ]
        for v in eqn.outs:
            number[v] = str(len(number))
            form.append(f":{short(v.type.dtype)}")
    form.append(f"; {' '.join(number.get(a, '') for a in graph.outputs)}")  # type: ignore[arg-type]


def layout_word(x: Operand, t: ArrayType) -> str:
    """How an array lies: "c" in C order, "s" so with gaps, or its axes from the longest stride on;
    then by how much it is out of the alignment of wide accesses.
    """
    if x.value:
        return "v"
    real = [a for a, n in enumerate(t.shape) if n > 1]
    away = gcd(ACCESS, x.offset * t.dtype.itemsize, x.loose * t.dtype.itemsize)
    aligned = "" if away == ACCESS else f"@{away}"
    return order_word(x.strides, strides_of(t.shape), real) + aligned


def order_word(strides: Dims, plain: Dims, real: Sequence[int]) -> str:
    if all(strides[a] == plain[a] for a in real):
        return "c"
    order = sorted(real, key=lambda a: -abs(strides[a]))
    if order == [*real] and strides[real[-1]] == 1 and min(strides[a] for a in real) > 0:
        return "s"
    words = (("b" if s == 0 else "-" if s < 0 else "") for s in (strides[a] for a in order))
    ends = "" if strides[order[-1]] in (0, 1) else "x"
    return f"<{' '.join(f'{w}{a}' for w, a in zip(words, order, strict=True))}{ends}>"


# ----------------------------------------------------------------------------------------- content


@once
def code_of(family: Family[Any, Any]) -> str:
    """The content hash of what the kernels of a family are made of: its module, and the modules and
    templates that it names (`texts`).
    """
    import sys

    module = sys.modules[type(family).__module__].__file__
    places = [module or "", *(place_of(name) for name in family.texts)]
    return content_key(*map(content, places))[:16]


def place_of(name: str) -> str:
    return os.path.join(FOLDER, name) if name.endswith(".py") else templates(name)


def content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # of a family that was made by hand
        return path.encode()


# -------------------------------------------------------------------------------------- the entries


@final
@record
class Entry:
    """What the record has of a class on a kind of device. `raced`: all candidates that there were
    when it was made, so that the least time is the winner's.
    """

    problem: str
    device: str
    raced: bool
    rows: tuple[Measured, ...]

    @property
    def best(self) -> Measured | None:
        """The row of the least time that is believed; of times that are nearly the same, that of the
        candidate which comes first without measurements.
        """
        least = min((r.median for r in self.rows if r.believed), default=0.0)
        return next((r for r in self.rows if r.believed and r.median <= least * TIE), None)

    @property
    def is_won(self) -> bool:
        """True if the winner of a race is known: no time that is not believed was less."""
        best = self.best
        others = (row.median for row in self.rows if row.stale and not row.failure)
        return self.raced and best is not None and all(best.median <= m for m in others)

    def row(self, family: str, variant: str) -> Measured | None:
        return next((r for r in self.rows if (r.family, r.variant) == (family, variant)), None)

    def believed(self, families: Iterable[Family[Any, Any]]) -> Entry:
        """It, with the rows marked whose kernels are made of another text today."""
        known = {f.name: f for f in families}
        rows = tuple(
            row if row.family in known and code_of(known[row.family]) == row.code
            else replace(row, stale=True)
            for row in self.rows
        )  # fmt: skip
        return replace(self, rows=rows)

    def line(self) -> str:
        """It as a line of JSON, which `entry_of` reads."""
        rows = [
            {name: value for name, value in zip(ROW, values(row), strict=True) if value}
            for row in self.rows
        ]
        found = {"problem": self.problem, "device": self.device, "raced": self.raced, "rows": rows}
        return json.dumps(found, ensure_ascii=True)


ROW: Final = tuple(name for name in names_of(Measured) if name != "stale")


def values(row: Measured) -> list[Any]:
    return [getattr(row, name) for name in ROW]


def entry_of(line: str | bytes) -> Entry | None:
    """The entry of a line; None if it is none."""
    try:
        found = json.loads(line)
        rows = tuple(
            Measured(**{**row, "libraries": tuple(map(tuple, row.get("libraries", ())))})
            for row in found["rows"]
        )
        return Entry(found["problem"], found["device"], found["raced"], rows)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def key_of(device: str, problem: ProblemClass) -> str:
    return content_key("tuned", device, problem.text)


def store() -> Cache:
    """The store of what this user measured: beside the cache of kernels, without a limit."""
    folder = cache_folder()
    return Cache(folder and os.path.join(folder, TUNED))


# what this process has read: its snapshot
_read: dict[tuple[str | None, str, ProblemClass], Entry | None] = {}


def find(device: str, problem: ProblemClass, families: Iterable[Family[Any, Any]]) -> Entry | None:
    """What is known of a class of problems on a kind of device; None if nothing is."""
    place = cache_folder(), device, problem
    if place not in _read:
        key = key_of(device, problem)
        found = store().get(key) if key in recorded_keys() else None
        entry = entry_of(found) if found is not None else shipped(device).get(key)
        _read[place] = entry and entry.believed(families)
    return _read[place]


@once
def shipped(device: str) -> dict[str, Entry]:
    """What ships for a kind of device, by key."""
    try:
        with open(shipped_path(device), "rb") as file:
            entries = [entry for line in file if (entry := entry_of(line)) is not None]
    except OSError:
        return {}
    return {content_key("tuned", each.device, each.problem): each for each in entries}


def shipped_path(device: str) -> str:
    """The file of a kind of device, as JSON lines."""
    name = "".join(c if c.isalnum() else "_" for c in device.lower())
    return os.path.join(SHIPPED, f"{name}.jsonl")


def keep(device: str, problem: ProblemClass, raced: bool, rows: Sequence[Measured]) -> Entry:
    """Writes the rows of a class, in place of those of the same variants. The caller says when
    programs are to be built by them (`config.renew`).
    """
    key, kept = key_of(device, problem), store()
    before = entry_of(kept.get(key) or b"")
    new = {(r.family, r.variant) for r in rows}
    older = () if before is None else before.rows
    all_rows = (*rows, *(r for r in older if (r.family, r.variant) not in new))
    entry = Entry(problem.text, device, raced, all_rows)
    best = entry.best
    about = {
        "kind": "measurements", "name": problem.form.partition(" of ")[0][:60], "device": device,
        "best": "" if best is None else f"{best.family} {best.variant} {best.median * 1e6:.3g} us",
    }  # fmt: skip
    kept.put(key, entry.line().encode(), about)
    forget()
    return entry


def forget() -> None:
    """Reads the record anew from now on."""
    _read.clear()
    for each in (listed, shipped, ships):
        each.cache_clear()


def entries() -> list[Entry]:
    """All that this user measured."""
    kept = store()
    lines = [kept.get(each.key) for each in kept.entries()]
    return [entry for line in lines if line and (entry := entry_of(line)) is not None]


# -------------------------------------------------------------------------------------- neighbours

_taken: dict[tuple[str, str], list[tuple[ProblemClass, str, str]]] = {}
NEIGHBOURS: Final = 64  # of one form that are remembered


def remember(device: str, problem: ProblemClass, family: str, variant: str) -> None:
    """This program has a kernel for the class, of the variant that was measured to be the best."""
    found = _taken.setdefault((device, problem.form), [])
    if len(found) < NEIGHBOURS and all(problem != each for each, _, _ in found):
        found.append((problem, family, variant))


def neighbour(device: str, problem: ProblemClass) -> tuple[str, str] | None:
    """The family and the variant which this program has for a neighbouring class."""
    found = _taken.get((device, problem.form), ())
    return next(((f, v) for each, f, v in found if each.is_near(problem)), None)
