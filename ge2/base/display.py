"""Representations of results at a prompt and in a notebook."""

from __future__ import annotations


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
