"""The headers of CUDA kernels, and a source without its comments."""

from __future__ import annotations

import os
import re
from functools import cache as once
from typing import Final

from ge2.base.source import templates

COMMENTS: Final = re.compile(
    r"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|/\*.*?\*/|//(?:\\.|[^\\\n])*""", re.DOTALL
)


@once
def include_folder() -> str:
    """The headers of CUDA kernels, where a wheel puts them, or where a checkout keeps them."""
    return templates("cuda", "include")


def folders() -> tuple[str, ...]:
    """Returns where our headers are: those of CUDA, and those that C has, too."""
    return include_folder(), templates("include")


def headers() -> list[str]:
    """The names by which those of the folder are included."""
    root = include_folder()
    found = [os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names]
    return sorted(os.path.relpath(path, root) for path in found if path.endswith(".cuh"))


def told(source: str) -> str:
    """A source without its comments, each line where it was: the binary tells
    the lines of the source.

    >>> told("a; // of model.py:3\\nchar *b = \\"// no\\"; /* the\\n rest */ c;")
    'a;\\nchar *b = "// no";\\n c;'
    """
    bare = COMMENTS.sub(_without_words, source)
    return "\n".join(line.rstrip() for line in bare.split("\n"))


def _without_words(found: re.Match[str]) -> str:
    return found[1] if found[1] is not None else " " + "\n" * found[0].count("\n")
