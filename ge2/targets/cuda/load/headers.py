"""The headers that a CUDA source includes, and theirs: what they say is part of a kernel's key."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache as once
from functools import lru_cache
from typing import Final

from ge2.base.cache import content_key
from ge2.base.source import templates

INCLUDE: Final = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)
COMMENTS: Final = re.compile(
    r"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|/\*.*?\*/|//(?:\\.|[^\\\n])*""", re.DOTALL
)


@once
def include_folder() -> str:
    """The headers of CUDA kernels, where a wheel puts them, or where a checkout keeps them."""
    return templates("cuda", "include")


def folders() -> tuple[str, ...]:
    """Where our headers are: those of CUDA, and those that C has, too."""
    return include_folder(), templates("include")


def headers() -> list[str]:
    """The names by which those of the folder are included."""
    root = include_folder()
    found = [os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names]
    return sorted(os.path.relpath(path, root) for path in found if path.endswith(".cuh"))


def headers_key(source: str, folders: tuple[str, ...]) -> str:
    """The contents of all headers that a source reaches; one that no folder
    has counts by its name.
    """
    return content_key(
        *(part for name, text in sorted(_reached(source, folders)) for part in (name, text))
    )


def _reached(source: str, folders: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Each header once, by the name of its first mention."""
    seen: set[str] = set()
    waiting = [(name, "") for name in included(source)]
    while waiting:
        name, beside = waiting.pop()
        path = _found(name, beside, folders)
        if (path or name) in seen:
            continue
        seen.add(path or name)
        text = _text(path) if path else ""
        yield name, text
        waiting += [(each, os.path.dirname(path)) for each in included(text)] if path else []


@lru_cache(256)
def included(source: str) -> tuple[str, ...]:
    """The names that a source includes, under whatever condition.

    >>> included('#include "ge2/core.cuh"\\n  # include <math.h>\\n// #include "no.h"')
    ('ge2/core.cuh', 'math.h')
    """
    return tuple(INCLUDE.findall(source))


def _found(name: str, beside: str, folders: tuple[str, ...]) -> str:
    """The file that the compiler will take: beside the one that includes it,
    else in the first folder.
    """
    places = (os.path.join(folder, name) for folder in (*filter(None, (beside,)), *folders))
    return next((os.path.realpath(path) for path in places if os.path.isfile(path)), "")


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


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
