"""The table a person reads: our value, what it must be, and each peer's
value with its ratio to ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.record import Failure, Faster, Row, Target, describe
from ge2.base.source import size_words

PEERS = ("numpy", "cupy", "jax", "torch")
MARKS = {True: "yes", False: "NO", None: "?"}


def show(
    rows: Sequence[Row], device: Mapping[str, str] | None = None, failures: Sequence[Failure] = ()
) -> str:
    peers = [p for p in PEERS if any(p in row.others for row in rows)]
    head = ["work", "layout", "ge2", "must be", "reached", *peers]
    lines = [head, *(cells(row, peers) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    lines.insert(1, ["-" * width for width in widths])
    text = "\n".join(
        "  ".join(f"{c:{w}}" for c, w in zip(line, widths, strict=True)).rstrip() for line in lines
    )
    notes = [f"{row.work}: {peer} {note}" for row in rows for peer, note in row.notes.items()]
    failed = [f"FAILED {failure.work}: {failure.reason}" for failure in failures]
    how = "medians of interleaved runs; a ratio is a peer's time over ours; ?: the peer is not installed"
    return "\n".join([describe(device), how, "", text, *notes, *failed])


def brief(found: Row | Failure) -> str:
    """A line as soon as it is known: what is measured next may not end."""
    if isinstance(found, Failure):
        return f"FAILED {found.work}: {found.reason}"
    values = {"ge2": found.ours} | dict(found.others)
    return f"{found.work}: " + ", ".join(f"{k} {value(v, found.unit)}" for k, v in values.items())


def cells(row: Row, peers: list[str]) -> list[str]:
    reached = ", ".join(MARKS[verdict] for verdict in row.verdicts)
    bounds = ", ".join(bound(target, row.unit) for target in row.targets)
    others = [against(row, row.others[p]) if p in row.others else "" for p in peers]
    return [row.work, row.layout, value(row.ours, row.unit), bounds, reached, *others]


def against(row: Row, other: float) -> str:
    return (
        f"{value(other, row.unit)} ({other / row.ours:.3g}x)"
        if row.unit == "seconds"
        else value(other, row.unit)
    )


def bound(target: Target, unit: str) -> str:
    if isinstance(target, Faster):
        return f">= {target.times:g}x {target.peer}"
    either = f" or {target.times:g}x {target.peer}" if target.peer else ""
    return f"<= {value(target.bound, unit)}{either}"


def value(number: float, unit: str) -> str:
    if unit == "bytes":
        return size_words(round(number))
    if unit == "times":
        return f"{number:.3g}x"
    if unit == "relative":
        return f"{number:.2g}"
    return seconds(number) if unit == "seconds" else f"{number:g} {unit}"


def seconds(number: float) -> str:
    for scale, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if number >= scale:
            return f"{number / scale:.3g} {name}"
    return f"{number * 1e9:.3g} ns"
