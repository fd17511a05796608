"""The table a person reads: our value, what it must be, and each peer's value with its ratio to ours."""

from __future__ import annotations

from benchmarks.record import Row, Target, describe

PEERS = ("numpy", "jax", "torch")


def show(rows: list[Row]) -> str:
    peers = [p for p in PEERS if any(p in row.others for row in rows)]
    head = ["work", "ge2", "must be", "reached", *peers]
    lines = [head, *(cells(row, peers) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    lines.insert(1, ["-" * width for width in widths])
    text = "\n".join(
        "  ".join(f"{c:{w}}" for c, w in zip(line, widths, strict=True)).rstrip() for line in lines
    )
    return f"{describe()}\nmedians of interleaved runs; a ratio is a peer's time over ours\n\n{text}"


def cells(row: Row, peers: list[str]) -> list[str]:
    reached = "" if row.target is None else "yes" if row.reached else "NO"
    others = [against(row, row.others[p]) if p in row.others else "" for p in peers]
    return [row.work, value(row.ours, row.unit), bound(row.target, row.unit), reached, *others]


def against(row: Row, other: float) -> str:
    return (
        f"{value(other, row.unit)} ({other / row.ours:.3g}x)"
        if row.unit == "seconds"
        else value(other, row.unit)
    )


def bound(target: Target | None, unit: str) -> str:
    if target is None:
        return ""
    if target.peer:
        return f">= {target.bound:g}x {target.peer}"
    return f"<= {value(target.bound, unit)}"


def value(number: float, unit: str) -> str:
    if unit == "times":
        return f"{number:.3g}x"
    return seconds(number) if unit == "seconds" else f"{number:g} {unit}"


def seconds(number: float) -> str:
    for scale, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if number >= scale:
            return f"{number / scale:.3g} {name}"
    return f"{number * 1e9:.3g} ns"
