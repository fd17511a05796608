"""Texts that users see: numbers of bytes and seconds, lists of names, tables in a notebook."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

from ge2.base.errors import ArgumentError
from ge2.base.source import here

# ---------------------------------------------------------------------------------------- patterns


def pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """A regular expression that is compiled when it is first used, of which an import uses none.

    >>> pattern("a+").findall("aa b a")
    ['aa', 'a']
    """
    return cast("re.Pattern[str]", _Pattern(text, flags))


class _Pattern:
    def __init__(self, text: str, flags: int) -> None:
        self._given = text, flags

    def __getattr__(self, name: str) -> Any:
        found = getattr(re.compile(*self._given), name)
        self.__dict__[name] = found
        return found


# ----------------------------------------------------------------------------------------- display
# Representations of results at a prompt and in a notebook.


class Printed:
    """A value that is shown as it prints. Subclasses define `__str__`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """The text in a fixed-width font, as notebooks ask for it."""
        return preformatted(str(self))


def preformatted(text: str) -> str:
    """
    >>> preformatted("a < b")
    '<pre>a &lt; b</pre>'
    """
    from html import escape  # in a notebook alone

    return f"<pre>{escape(text)}</pre>"


# -------------------------------------------------------------------------------------- formatting
# Sizes, counts and tables in words.


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


def byte_count(size: Any) -> int:
    """A number of bytes, or its text; a KB is 1024 of them. ArgumentError for anything else.

    >>> byte_count(17), byte_count("19.5 KB"), byte_count("1.5GB")
    (17, 19968, 1610612736)
    """
    found = (
        re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([kmgt]?)(i?)b?\s*", size.lower())
        if isinstance(size, str)
        else None
    )
    if found is not None:
        return int(float(found[1]) * 1024 ** " kmgt".index(found[2] or " "))
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    raise ArgumentError(
        f"{size!r} is no number of bytes", where=here(), fix="200_000_000, '200MB' or '1.5GB'"
    )


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


def counted(count: int, noun: str) -> str:
    """
    >>> counted(1, "kernel"), counted(3, "kernel")
    ('1 kernel', '3 kernels')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def table(rows: Sequence[tuple[str, ...]], right: frozenset[int] = frozenset()) -> str:
    """Rows of columns as wide as they must be; those numbered in `right` stand at their right edge.

    >>> print(table([("a", "bcd"), ("ef", "g")], right=frozenset((1,))))
    a   bcd
    ef    g
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    adjust = [str.rjust if i in right else str.ljust for i in range(len(widths))]
    lines = (
        "  ".join(f(x, w) for f, x, w in zip(adjust, row, widths, strict=True)).rstrip()
        for row in rows
    )
    return "\n".join(lines)
