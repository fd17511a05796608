"""Sizes, counts and tables in words."""

from __future__ import annotations

from collections.abc import Sequence


def size_words(count: int) -> str:
    """
    >>> size_words(17), size_words(20_000), size_words(1 << 30)
    ('17 B', '19.5 KB', '1.0 GB')
    """
    if count < 1024:
        return f"{count} B"
    value, unit = count / 1024, 0
    while value >= 1000 and unit < 3:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {('KB', 'MB', 'GB', 'TB')[unit]}"


def count_words(count: int) -> str:
    """
    >>> count_words(17), count_words(20_000), count_words(10**9)
    ('17', '20.0 k', '1.0 G')
    """
    if count < 1000:
        return str(count)
    value, unit = count / 1000, 0
    while value >= 1000 and unit < 3:
        value, unit = value / 1000, unit + 1
    return f"{value:.1f} {'kMGT'[unit]}"


def table(rows: Sequence[tuple[str, ...]], right: frozenset[int] = frozenset()) -> str:
    """Rows of columns as wide as they must be; those numbered in `right` stand at their right edge.

    >>> print(table([("a", "bcd"), ("ef", "g")], right=frozenset((1,))))
    a   bcd
    ef    g
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    adjust = [str.rjust if i in right else str.ljust for i in range(len(widths))]
    lines = ("  ".join(f(x, w) for f, x, w in zip(adjust, row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines)
