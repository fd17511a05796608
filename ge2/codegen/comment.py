r"""The one way in which what a user names comes into generated text.

Names of functions, scopes and operations and formats of `debug.print` stand in comments
of C, CUDA and Python and in docstrings, nowhere else. There they must not end what they
stand in, nor begin anything.
"""

from __future__ import annotations

import re

PAIRS = re.compile(r"\*(?=/)|/(?=\*)|\?(?=\?)")  # an end, a beginning, a trigraph
FOREIGN = re.compile(r"[^\n\x20-\x7e]")


def comment(text: object) -> str:
    r"""A text, of several lines perhaps, as it may stand in a comment or a
    docstring of any language.

    >>> print(comment("a*/b /*/ what??/ caf\xe9 \\"))
    a* /b / * / what? ?/ caf\xe9 \\
    """
    plain = str(text).replace("\\", "\\\\").replace('"""', "'''")
    return FOREIGN.sub(spelled, PAIRS.sub(r"\g<0> ", plain))


def one_line(text: object) -> str:
    r"""A name or an equation as it may stand in a comment of one line.

    >>> print(one_line("f\n#include <evil.h>"))
    f\x0a#include <evil.h>
    """
    return comment(text).replace("\n", r"\x0a")


def spelled(found: re.Match[str]) -> str:
    """The number of a character, in printable ASCII."""
    code = ord(found[0])
    return (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    )
