"""This module records measurements: rows by the class of a problem, in the checksummed store.

A class is a problem with its extents rounded, so that a kernel that won for one batch size is
known for its like. What this user measured stands above what ships with the package. A row whose
kernels have another text today is shown, and not believed. `docs/design/choice.md` has the reasons.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, fields, is_dataclass, replace
from functools import cache as once
from functools import lru_cache
from math import gcd
from typing import Any, Final, final

import numpy as np

from ge2.base.arrays import short
from ge2.base.cache import Cache, content_key
from ge2.base.config import cache_folder, config
from ge2.base.record import mutable, record
from ge2.choice import (
    ACCESS,
    SHIPPED,
    TUNED,
    Family,
    Measured,
    Problem,
    key_of,
    listed,
    recorded_keys,
    shipped_name,
)
from ge2.codegen.axes import strides_of
from ge2.codegen.text import Operand
from ge2.ir import ArrayType, Dims, Graph
from ge2.ops.graphs.region import Region

SMALL: Final = 8  # numbers up to which each is itself: axes, steps, extents, few terms
TIE: Final = 1.03  # times the least: what is nearer is chance
DIVISORS: Final = (64, 16, 8, 4, 2)
DOUBTED: Final = 1 / 32  # of a prediction: a time below was predicted in doubt
WON: Final = 1024  # choices for problems that are kept in memory
EXTENTS: Final = ("shape",)  # parameters of views that are extents, however small
CODE: Final = 16  # digits of a content hash


# ---------------------------------------------------------------------------------------- classes


@final
@record
class ProblemClass:
    """A class of problems that are likely to be solved best in one way. `form` is the problem
    without its extents, which are rounded in `extents`.

    Two classes of one form are neighbours if no extent is more than twice, or less than half, that
    of the other, and the same extents are 0 or 1.
    """

    form: str
    extents: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"{self.form} with {' '.join(self.extents)}"

    @property
    def key(self) -> str:
        """Returns the name by which a pin refers to the class."""
        return content_key(self.text)[:16]

    def is_near(self, other: ProblemClass) -> bool:
        pairs = zip(self.extents, other.extents, strict=False)
        same = self.form == other.form and len(self.extents) == len(other.extents)
        return same and all(is_like(a, b) for a, b in pairs)


@lru_cache(4096)
def rounded(n: int) -> str:
    """Iterations an extent for its class: a small one is kept, others become the next power of two,
    with the powers of two that divide them.

    >>> [rounded(n) for n in (0, 1, 3, 64, 72, 99, 65536, 65537)]
    ['0', '1', '3', '64/64', '128/8', '128', '65536/64', '131072']
    """
    if n <= SMALL:
        return str(n)
    by = next((d for d in DIVISORS if n % d == 0), 0)
    return f"{1 << (n - 1).bit_length()}/{by}" if by else str(1 << (n - 1).bit_length())


def is_like(one: str, other: str) -> bool:
    """True of extents of neighbouring classes."""
    degenerate = ("0", "1")  # nothing is repeated along such an axis, or all is
    if one in degenerate or other in degenerate:
        return one == other
    return abs(octave(one) - octave(other)) <= 1


def octave(extent: str) -> int:
    return int(extent.partition("/")[0]).bit_length()


Families = tuple[Family[Any, Any], ...]


@lru_cache(1024)
def class_of(problem: Problem) -> ProblemClass:
    """Returns the class of a problem: the operation with the parameters that matter, types and
    layouts.
    """
    form, extents = [problem.target, problem.op.name], list[int]()
    parameters(problem.op, form, extents)
    for number, t in enumerate((*problem.inputs, *problem.outs)):
        form.append("," if number else " of ")
        typed(t, form, extents)
        if problem.operands:
            operand = problem.operands[number]
            form.append(layout_word(operand, t))
            if operand.role == "in" and operand.index < number:
                form.append(f" as {operand.index}")  # one array, read twice
    if problem.shared:
        form.append(f" in place {sorted(problem.shared)}")
    return ProblemClass("".join(form), tuple(map(rounded, extents)))


def typed(t: ArrayType, form: list[str], extents: list[int]) -> None:
    form.append(f"{'~' if t.weak else ''}{short(t.dtype)}{len(t.shape)}")
    extents += t.shape


def parameters(op: Any, form: list[str], extents: list[int]) -> None:
    """Adds the parameters of an operation to `form`, and its numbers to `extents`. The name is
    enough for an operation in a table.
    """
    if isinstance(op, Region):  # whose space and axes follow from its graph
        form.append(f" {op.kind} ")
        graph_spelled(op.graph, form, extents)
        return
    names = names_of(type(op))  # type: ignore[arg-type]
    if "name" in names:
        form.append(f" {getattr(op, 'edition', '')}")
        return
    for name in names:
        form.append(f" {name}=")
        if name in EXTENTS:
            form.append(f"({'n,' * len(getattr(op, name))})")
            extents += getattr(op, name)
        else:
            spelled(getattr(op, name), form, extents)


@once
def names_of(kind: type) -> tuple[str, ...]:
    found = fields(kind) if is_dataclass(kind) else ()
    return tuple(f.name for f in found if not f.name.startswith("_"))


def spelled(x: Any, form: list[str], extents: list[int]) -> None:
    kind = type(x)
    if kind is tuple or kind is list:
        form.append("(")
        for each in x:
            if type(each) is int:
                if each > SMALL:
                    form.append("n,")
                    extents.append(each)
                else:
                    form.append(f"{each},")
            else:
                spelled(each, form, extents)
                form.append(",")
        form.append(")")
    elif x is None or isinstance(x, str | bool | np.dtype):
        form.append(str(x))
    elif isinstance(x, int):
        large = x > SMALL
        form.append("n" if large else str(x))
        extents += [x] if large else []
    elif isinstance(x, Graph):
        graph_spelled(x, form, extents)
    elif isinstance(x, ArrayType):
        typed(x, form, extents)
    elif is_dataclass(x) and not isinstance(x, type):
        form.append(kind.__name__)
        parameters(x, form, extents)
    else:  # a number, or Python of the user's
        form.append(kind.__name__)


def graph_spelled(graph: Graph, form: list[str], extents: list[int]) -> None:
    number: dict[Any, int] = {v: n for n, v in enumerate(graph.inputs)}
    for eqn in graph.eqns:
        form.append(f"; {eqn.op.name}")
        parameters(eqn.op, form, extents)
        for a in eqn.inputs:
            n = number.get(a)
            form.append(f" {short(a.type.dtype)}" if n is None else f" {n}")
        for v in eqn.outs:
            number[v] = len(number)
            form.append(f":{short(v.type.dtype)}")
    form.append(f"; {' '.join(str(number.get(a, '')) for a in graph.outputs)}")


def layout_word(x: Operand, t: ArrayType) -> str:
    """Describes the layout of an array: "c" is C order, "s" is C order with gaps; other layouts
    list the axes from the longest stride on. The misalignment for vector accesses follows.
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


def code_of(kernels: Any) -> str:
    """Returns the content hash of kernels, without the numbers in their text."""
    return content_key(*getattr(kernels, "content", (str(kernels),)))[:CODE]


# -------------------------------------------------------------------------------------- the entries


@final
@record
class Entry:
    """The rows that the record has for a class on a kind of device. `raced` means that all
    candidates of that time were measured, so the least time is the winner's.
    """

    problem: str
    device: str
    raced: bool
    rows: tuple[Measured, ...]

    @property
    def best(self) -> Measured | None:
        """Returns the valid row with the least time. Of nearly equal times it takes the candidate
        that comes first without measurements.
        """
        least = min((r.median for r in self.rows if r.believed), default=0.0)
        return next((r for r in self.rows if r.believed and r.median <= least * TIE), None)

    @property
    def winner(self) -> Name | None:
        """Returns the winner of the race if it is known: no stale row has a smaller time."""
        best = self.best if self.raced else None
        if best is None or any(
            r.stale and not r.failure and r.median < best.median for r in self.rows
        ):
            return None
        return best.family, best.variant

    def row(self, family: str, variant: str) -> Measured | None:
        return next((r for r in self.rows if (r.family, r.variant) == (family, variant)), None)

    def told(self, is_stale: Callable[[Measured], bool]) -> Entry:
        """Returns a copy in which rows are marked as stale whose kernels have another text today."""
        if not any(map(is_stale, self.rows)):
            return self
        rows = tuple(row._replace(stale=row.stale or is_stale(row)) for row in self.rows)
        return replace(self, rows=rows)

    def line(self) -> str:
        """Formats the entry as a line of JSON, which `entry_of` parses and `lines_of` finds by the
        problem.
        """
        columns = zip(Measured._fields, zip(*self.rows, strict=True), strict=True)
        same = {name: column[0] for name, column in columns if len({*column}) == 1}
        rows = [
            {name: x for name, x in row._asdict().items() if x and name not in (*same, "stale")}
            for row in self.rows
        ]
        found = {"problem": self.problem, "device": self.device, "raced": self.raced}
        return json.dumps(
            found | {"all": {n: x for n, x in same.items() if x and n != "stale"}, "rows": rows}
        )


ROW: Final = Measured._fields[:-1]  # all but whether it is stale
AFTER: Final = b', "device": '  # the problem, in a line


def entry_of(line: str | bytes) -> Entry | None:
    """Parses a line as an entry; returns None if it is not one."""
    if not line:
        return None
    try:
        found = json.loads(line)
        same = found["all"]
        if "libraries" in same:
            same["libraries"] = tuple(map(tuple, same["libraries"]))
        rows = tuple([Measured(**row, **same) for row in found["rows"]])
        return Entry(found["problem"], found["device"], found["raced"], rows)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def head_of(problem: str) -> bytes:
    """Returns the text with which the line of a problem begins."""
    return f'{{"problem": {json.dumps(problem)}'.encode()


def lines_of(content: bytes) -> dict[bytes, bytes]:
    """Splits a file into lines by the text with which they begin. A line is parsed when it is asked
    for.
    """
    found = (line.partition(AFTER) for line in content.splitlines())
    return {head: head + after + rest for head, after, rest in found}


def store() -> Cache:
    """Opens the store of this user's measurements, beside the cache of kernels and without a limit."""
    folder = cache_folder()
    return Cache(folder and os.path.join(folder, TUNED))


Name = tuple[str, str]  # of a family, and of its variant
Found = tuple[Entry | None, Name | None]  # what is known of a class, and who has won its race


@final
@mutable
class Snapshot:
    """A copy, in this process, of the record of a kind of device: unparsed `lines`, parsed
    `entries`, and for each family the factor between measured and predicted times; and the choices
    for problems whose race is `won`.
    """

    lines: dict[bytes, bytes]
    factors: dict[str, float]
    entries: dict[ProblemClass, Found] = field(default_factory=dict)
    won: dict[Problem, Any] = field(default_factory=dict)


_read: dict[tuple[str, str], Snapshot] = {}


def snapshot(device: str) -> Snapshot:
    """Reads the record of a kind of device. This user's measurements take precedence over those
    that are shipped.
    """
    place = config.cache_dir, device
    if place not in _read:
        lines, factors = dict[bytes, bytes](), dict[str, float]()
        for content in (shipped(device), own(device)):
            more = lines_of(content)
            lines |= more
            factors |= told_in(more, "factors") or {}
        _read[place] = Snapshot(lines, factors)
    return _read[place]


def told_in(lines: Iterable[bytes], word: str) -> Any:
    """Returns the value that a file gives for a word on a line of its own; None if it has no such
    line.
    """
    line = next((each for each in lines if each.startswith(f'{{"{word}"'.encode())), b"{}")
    try:
        return json.loads(line).get(word)
    except (ValueError, AttributeError):
        return None


def own(device: str) -> bytes:
    """Reads this user's measurements as lines."""
    key = key_of(device)
    return (store().get(key) if key in recorded_keys() else None) or b""


def shipped(device: str) -> bytes:
    """Reads the measurements that are shipped for a kind of device as lines."""
    try:
        with open(shipped_path(device), "rb") as file:
            return file.read()
    except OSError:
        return b""


def shipped_path(device: str) -> str:
    return os.path.join(SHIPPED, shipped_name(device))


def find(device: str, problem: ProblemClass, families: Families) -> Found:
    """Looks up the entry of a class of problems on a kind of device.

    Rows are marked as stale of families that are gone, or whose text is known to be another one. Of
    the others that is found when their kernels are written.
    """
    held = snapshot(device)
    found = held.entries.get(problem)
    if found is None:
        entry = entry_of(held.lines.get(head_of(problem.text), b""))
        if entry is not None:
            codes = codes_of(families)
            entry = entry.told(lambda row: codes.get(row.family, "gone") not in ("", row.code))
        found = held.entries[problem] = entry, entry and entry.winner
    return found


@lru_cache(64)
def codes_of(families: Families) -> dict[str, str]:
    return {f.name: f.code for f in families}


def keep_winner(device: str, problem: Problem, choice: Any) -> None:
    """Keeps the choice for a problem, beside some others."""
    won = snapshot(device).won
    if len(won) >= WON:
        won.clear()
    won[problem] = choice


def forget_winners() -> None:
    """Drops all such choices."""
    for held in _read.values():
        held.won.clear()


def factor(device: str, family: str, kin: str = "") -> float:
    """Returns how many times longer the kernels of a family took than was predicted; those of its
    `kin`, whose predictions are made of the same numbers, where none of its own was measured.
    """
    known = snapshot(device).factors
    return known.get(family, known.get(kin, 1.0))


def keep(device: str, problem: ProblemClass, raced: bool, rows: Sequence[Measured]) -> Entry:
    """Writes the rows of a class. They replace all its rows if all candidates were `raced`, else
    those of the same variants. The caller decides when programs are built with them
    (`config.renew`).
    """
    lines = lines_of(store().get(key_of(device)) or b"")  # as other processes left it
    before = None if raced else entry_of(lines.get(head_of(problem.text), b""))
    new = {(r.family, r.variant) for r in rows}
    older = () if before is None else before.rows
    all_rows = (*rows, *(r for r in older if (r.family, r.variant) not in new))
    entry = Entry(problem.text, device, raced, all_rows)
    lines[head_of(problem.text)] = entry.line().encode()
    found = [each for line in lines.values() if (each := entry_of(line)) is not None]
    about = {"kind": "measurements", "name": f"{len(found)} classes of problems", "device": device}
    store().put(key_of(device), text_of(found).encode(), about)
    forget()
    return entry


def text_of(found: Sequence[Entry], *more: dict[str, Any]) -> str:
    """Formats entries as lines of a file, after other lines and one with the factors of their
    families.
    """
    from statistics import median  # nobody pays for it who only reads

    factors = {f: round(median(ratios), 4) for (_, f), ratios in sorted(ratios_of(found).items())}
    lines = [*map(json.dumps, (*more, {"factors": factors})), *(each.line() for each in found)]
    return "".join(f"{line}\n" for line in lines)


def ratios_of(found: Iterable[Entry]) -> dict[tuple[str, str], list[float]]:
    """Computes the ratio of measured to predicted times by device and family. A prediction that a
    family doubts is a hundredfold, so that only a measurement decides: it says nothing of others.
    """
    ratios: dict[tuple[str, str], list[float]] = {}
    for entry in found:
        for row in entry.rows:
            if row.predicted and row.median > DOUBTED * row.predicted and not row.failure:
                ratios.setdefault((entry.device, row.family), []).append(row.median / row.predicted)
    return ratios


def forget() -> None:
    """Drops the copies in this process, so that the record is read again."""
    _read.clear()
    listed.cache_clear()


def entries() -> list[Entry]:
    """Returns all of this user's measurements."""
    kept = store()
    texts = [kept.get(each.key) or b"" for each in kept.entries()]
    return [entry for text in texts for line in text.splitlines() if (entry := entry_of(line))]


# ------------------------------------------------------------------------------------------- stale


def note_stale(device: str, problem: ProblemClass, row: Measured) -> None:
    """Notes for `ge2 tune --report` that a row is of kernels whose text has changed."""
    about = {"kind": "measurements", "name": "of other kernels than today's", "device": device}
    entry = Entry(problem.text, device, False, (row,))
    key = content_key("stale", device, problem.text, row.family, row.variant)
    if key not in recorded_keys():
        store().put(key, json.dumps({"stale": entry.line()}).encode(), about)


def stale() -> list[Entry]:
    """Returns the rows that were found to be stale, each as an entry, if they are still in the
    record.
    """
    kept, found = store(), list[Entry]()
    for each in kept.entries():
        text = kept.get(each.key) or b""
        if not text.startswith(b'{"stale"'):
            continue
        entry = entry_of(json.loads(text)["stale"])
        line = entry and snapshot(entry.device).lines.get(head_of(entry.problem), b"")
        now = entry_of(line or b"")
        if entry is not None and now is not None and entry.rows[0] in now.rows:
            found.append(entry)
    return found


# -------------------------------------------------------------------------------------- neighbours

_taken: dict[tuple[str, str], dict[ProblemClass, Name]] = {}
NEIGHBOURS: Final = 64  # of one form that are remembered


def remember(device: str, problem: ProblemClass, family: str, variant: str) -> None:
    """Notes that this program has a kernel for the class, of the variant that was measured as the
    best.
    """
    found = _taken.setdefault((device, problem.form), {})
    if len(found) < NEIGHBOURS:
        found.setdefault(problem, (family, variant))


def neighbour(device: str, problem: ProblemClass) -> Name | None:
    """Returns the family and the variant that this program has for a neighbouring class."""
    found = _taken.get((device, problem.form), {})
    return next((taken for each, taken in found.items() if each.is_near(problem)), None)
