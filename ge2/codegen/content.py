"""The text of a kernel but for its numbers, which a measurement belongs to.

Kernels for other sizes of a class of problems differ in numbers: extents, strides, threads of a
row, and the user's own constants. Everything else but comments and blank space is its content:
names, statements, the templates that print them, with all that these use, and the headers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache as once
from typing import Final

from ge2.base.cache import content_key
from ge2.base.formatting import pattern
from ge2.base.source import templates
from ge2.base.toolchain.compiler import significant
from ge2.base.toolchain.includes import reached
from ge2.codegen.rendered_cache import user_templates

NUMBER: Final = pattern(
    r"(?:(?<![\w)\]])-)?(?<![\w.])"
    r"(?:0x[\da-fA-F.]+(?:p[-+]?\d+)?|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)[uUlLfF]*"
)
NOTES: Final = pattern(r"\{#.*?#\}", re.DOTALL)
USED: Final = pattern(r"""["']([\w./]+\.jinja)["']""")


def content_of(code: str, template: str) -> tuple[str, ...]:
    """The content of a kernel that a template prints, `code` being all that it is given."""
    return unnumbered(code), *_texts(template, user_templates())


@once
def headers_content(names: tuple[str, ...], folders: tuple[str, ...]) -> str:
    """The content of headers, and of those that they include."""
    source = "".join(f'#include "{name}"\n' for name in names)
    found = ((name, significant(text)) for name, text in sorted(reached(source, folders)))
    return content_key(*(part for each in found for part in each))


def unnumbered(code: str) -> str:
    """Code without its numbers.

    >>> unnumbered("a_row[k] = ge2_read<PACK, 4>(a + i * 1000, -1.5e-3f - j1);")
    'a_row[k] = ge2_read<PACK, #>(a + i * #, # - j1);'
    """
    return NUMBER.sub("#", code)


@once
def _texts(template: str, users: str) -> tuple[str, ...]:
    """The text of a template and of those that it uses, the user's before ours."""
    seen, waiting = set[str](), [template]
    found = list[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for text in _files(name, users):
            found.append(significant(NOTES.sub("", text)))
            waiting += USED.findall(text)
    return tuple(found)


def _files(name: str, users: str) -> Iterator[str]:
    for folder in filter(None, (users, templates())):
        path = os.path.join(folder, *name.split("/"))
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                yield file.read()
