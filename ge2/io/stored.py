"""The contents of a file of arrays: names, types, and a function that reads each; and its errors."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ge2.base.dtypes import known, short
from ge2.base.errors import FileError, InputError
from ge2.base.record import record
from ge2.base.source import here

Path = str | os.PathLike[str]
AGAIN: Final = "writing it again, or downloading it again"


@record
class Stored:
    """An array of a file that is open, which `read` reads into memory of its own."""

    dtype: np.dtype
    shape: tuple[int, ...]
    read: Callable[[], Any]

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    def __str__(self) -> str:
        return type_words(self.dtype, self.shape)


def type_words(dtype: np.dtype, shape: tuple[int, ...]) -> str:
    """The type of an array as in a graph's text, f32[2,3]."""
    return f"{short(dtype) if known(dtype) else dtype}[{','.join(map(str, shape))}]"


def path_text(path: Any) -> str:
    """A path as text. InputError for what is none."""
    if isinstance(path, str | os.PathLike):
        return os.fspath(path)
    what = f"a path is a text or a pathlib.Path; got a {type(path).__name__}"
    raise InputError(what, where=here(), fix="save(path, tree), with the path first")


def damaged(path: str, why: str, fix: str = AGAIN) -> FileError:
    return FileError(f"{path!r} cannot be read: {why}", where=here(), fix=fix)


def wrong_name(name: str) -> str:
    """The reason why no array may have this name; empty if one may.

    Names are keys and never paths, but other programs unpack the same files.
    """
    if not name or not name.isprintable():
        return "it is empty, or holds characters that cannot be printed"
    if ".." in name.replace("\\", "/").split("/") or name[0] in "/\\" or name[1:2] == ":":
        return "it is a path that leads out of a folder"
    return ""
