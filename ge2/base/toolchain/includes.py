"""Finds the headers that a C or CUDA source includes, directly or through others, and the compiler
options that it states.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from ge2.base.cache import content_key
from ge2.base.formatting import pattern

INCLUDE: Final = pattern(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)
OPTIONS: Final = pattern(r"^#define GE2_OPTIONS (.*)$", re.MULTILINE)


def with_options(options: Sequence[str]) -> str:
    """Lines of a source that say with which options it is compiled. They are part of its text, and
    so of every key that it is found by.

    >>> options_of(with_options(["-DA=1", "-I/a folder"]))
    ('-DA=1', '-I/a folder')
    """
    return f"#undef GE2_OPTIONS\n#define GE2_OPTIONS {shlex.join(options)}\n" if options else ""


@lru_cache(256)
def options_of(source: str) -> tuple[str, ...]:
    """The options that a source says."""
    if "GE2_OPTIONS" not in source:
        return ()
    return tuple(
        dict.fromkeys(word for found in OPTIONS.findall(source) for word in shlex.split(found))
    )


def headers_key(source: str, folders: tuple[str, ...]) -> str:
    """The contents of all headers that a source reaches; one that no folder
    has counts by its name.
    """
    return content_key(
        *(part for name, text in sorted(reached(source, folders)) for part in (name, text))
    )


def reached(source: str, folders: tuple[str, ...]) -> Iterator[tuple[str, str]]:
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
