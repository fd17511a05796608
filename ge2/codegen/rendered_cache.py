"""Texts that were rendered before, on disk: a process that finds all of a
program there imports no Jinja.

The pages of a program are one entry of the cache. An entry is found by what the program looks like
from outside, which is a guess and may be wrong; a page in it by all that its template is given,
which is not. So whatever is found, a page is the text that rendering would give.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import is_dataclass
from functools import cache as once
from importlib.util import cache_from_source
from typing import Any, final

import numpy as np

from ge2.base.cache import VERSION, cache, content_key
from ge2.base.config import config
from ge2.base.errors import CompileError
from ge2.base.record import outlines
from ge2.base.source import FOLDER, templates

WRITERS = (
    "codegen",
    "targets/c/emit",
    "targets/c/blocked",
    "targets/cuda/emit",
)  # folders of what writes texts
LEAVES = (str, int, float, bool, bytes, type(None), np.dtype, np.generic)
LEAF, MANY = ("a leaf",), ("a sequence",)


@final
class Pages:
    """The texts of a program by their keys: those that were `there`, and those that it has."""

    __slots__ = ("has", "there", "version")

    def __init__(self, there: dict[str, str], version: str) -> None:
        self.there, self.has, self.version = there, dict[str, str](), version


_pages: ContextVar[Pages | None] = ContextVar("ge2_pages", default=None)


@contextmanager
def kept_pages(title: str, *looks: str) -> Iterator[None]:
    """Inside, texts of a program are looked for in the cache, and put
    there at the end if any is new.

    `title` and `looks` are what it looks like; inside another program it is part of that.
    """
    if _pages.get() is not None:
        yield
        return
    on_disk = cache().path is not None
    key = content_key("texts", VERSION, title, *looks)
    pages = Pages(read(cache().get(key) or b"") if on_disk else {}, writing(user_templates()))
    token = _pages.set(pages)
    try:
        yield
    finally:
        _pages.reset(token)
    if on_disk and not pages.has.keys() <= pages.there.keys():
        about = {"kind": "texts", "name": f"texts of {title}", "version": VERSION}
        cache().put(key, written(pages.has), about)


def page(template: str, view: object) -> tuple[Pages, str] | None:
    """The pages of the program that is written, and the key of a text;
    None if it is not to be kept.
    """
    pages = _pages.get()
    if pages is None:
        return None
    parts: list[str] = []
    return (
        (
            pages,
            content_key("page", pages.version, template, "\n".join(parts)),
        )  # no part has a line's end
        if spelt(view, parts)
        else None
    )


def spelt(x: Any, parts: list[str]) -> bool:
    """Adds all that a value consists of; False if it holds something whose
    text does not say it.
    """
    kind: Any = type(x)
    names = names_of(kind)
    if names is LEAF:
        parts.append(f"{kind.__name__} {x!r}")
        return True
    if names is MANY:
        parts.append(f"{kind.__name__} {len(x)}")
        inside = x
    elif names is not None:
        parts.append(f"{kind.__module__}.{kind.__qualname__}")
        inside = [getattr(x, name) for name in names]
    elif isinstance(x, frozenset) and all(isinstance(each, str | tuple) for each in x):
        parts.append("set")
        inside = (sorted(x),)
    else:
        return False
    for each in inside:  # noqa: SIM110 - `all` of a generator takes twice as long
        if not spelt(each, parts):
            return False
    return True


@once
def names_of(kind: type) -> tuple[str, ...] | None:
    """The fields of a record, or how a value of another kind is spelt; None of what is not, and
    where equal ones are two: variables.
    """
    if issubclass(kind, LEAVES):
        return LEAF
    if issubclass(kind, (tuple, list)):
        return MANY
    if not is_dataclass(kind) or kind.__eq__ is object.__eq__:
        return None
    return tuple(f.name for f in outlines(kind))


def user_templates() -> str:
    """The folder of templates that the user put before ours (`GE2_TEMPLATES`); "" if there is none.

    CompileError where it is none.
    """
    if config.templates and not os.path.isdir(config.templates):
        raise CompileError(
            f"there is no folder of templates {config.templates!r}",
            fix="GE2_TEMPLATES names a folder that has cuda/ or c/ in it, or nothing",
        )
    return os.path.abspath(config.templates) if config.templates else ""


def writing(users: str = "") -> str:
    """The contents of what writes texts: modules, templates, and a folder of the user's."""
    return content_key(ours(), *contents([users], ".jinja")) if users else ours()


@once
def ours() -> str:
    return content_key(*contents([*(os.path.join(FOLDER, name) for name in WRITERS), templates()]))


def contents(places: Sequence[str], ending: str = "") -> list[str | bytes]:
    """The names and contents of files in folders, of those whose names end so."""
    parts: list[str | bytes] = []
    for root in places:
        for folder, folders, files in os.walk(root):
            folders[:] = sorted(
                name for name in folders if name not in ("__pycache__", "include", "shim")
            )
            for name in sorted(name for name in files if name.endswith(ending)):
                with open(os.path.join(folder, name), "rb") as file:
                    parts += [os.path.relpath(os.path.join(folder, name), root), file.read()]
    return parts


# ------------------------------------------------------------------------------ compiled templates
# A program that is new renders its texts; what Jinja made of the templates is Python's byte code, and
# is where that of this package does; in the cache where that cannot be written, or a user's are
# among them.


def compiled_templates(jinja: str, users: str) -> dict[str, bytes]:
    """The byte code of templates by their keys."""
    key = compiled_key(jinja, users)
    found = read(_as_bytecode(key) or cache().get(key) or b"")
    return {name: text.encode("latin-1") for name, text in found.items()}


def keep_compiled(found: dict[str, bytes], jinja: str, users: str) -> None:
    key = compiled_key(jinja, users)
    content = written({name: code.decode("latin-1") for name, code in found.items()})
    if users or not _keep_as_bytecode(key, content):
        about = {"kind": "texts", "name": "compiled templates", "version": VERSION}
        cache().put(key, content, about)


def _as_bytecode(key: str) -> bytes:
    """The compiled templates that are kept with this package's byte code; b"" unless they have the key."""
    try:
        with open(_bytecode_path(), "rb") as file:
            return file.read() if file.readline() == key.encode() + b"\n" else b""
    except (OSError, NotImplementedError):
        return b""


def _keep_as_bytecode(key: str, content: bytes) -> bool:
    """Puts it there; False where byte code cannot be written or is not wanted."""
    try:
        path = _bytecode_path()
        if sys.dont_write_bytecode:
            return False
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(f"{path}.{os.getpid()}", "wb") as file:
            file.write(key.encode() + b"\n" + content)
        os.replace(file.name, path)
    except (OSError, NotImplementedError):
        return False
    return True


def _bytecode_path() -> str:
    """The path of the compiled templates. NotImplementedError where Python has no tag for its cache of
    byte code (`sys.implementation.cache_tag` is None), which callers take for: keep none.
    """
    path = cache_from_source(os.path.join(FOLDER, "codegen", "templates.py"))
    return path.removesuffix(".pyc") + ".jinja"


def compiled_key(jinja: str, users: str) -> str:
    return content_key("templates", VERSION, jinja, sys.version, writing(users))


# ----------------------------------------------------------------------------------------- an entry


def written(texts: dict[str, str]) -> bytes:
    """Key, length and text of each page."""
    parts = []
    for key, text in texts.items():
        data = text.encode("utf-8", "surrogatepass")
        parts += [f"{key} {len(data)}\n".encode(), data]
    return b"".join(parts)


def read(content: bytes) -> dict[str, str]:
    """
    >>> read(written({"a1": "one", "b2": ""})), read(b"no entry")
    ({'a1': 'one', 'b2': ''}, {})
    """
    found, at = dict[str, str](), 0
    try:
        while at < len(content):
            end = content.index(b"\n", at)
            key, _, length = content[at:end].decode().partition(" ")
            at = end + 1 + int(length)
            found[key] = content[end + 1 : at].decode("utf-8", "surrogatepass")
    except ValueError:
        return {}
    return found
