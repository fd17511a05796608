"""Names of `ge2.numpy` that programs rarely need: a module is imported when one of its names is asked for.

`MODULES` are functions of ours, `PASSED` NumPy's own objects, `REFUSED` what NumPy has and we have not, with
the reason and what to write instead.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import FunctionType
from typing import Any

import numpy as np

from ge2.base.tracebacks import hides

# fmt: off
MODULES: dict[str, tuple[str, ...]] = {
    "at": ("at",),
    "grids": ("c_", "mgrid", "ndenumerate", "ogrid", "r_"),
}
OTHERS: dict[str, tuple[str, ...]] = {  # not names of the main namespace: where NumPy keeps its own
}
PASSED: tuple[str, ...] = (
    "False_", "ScalarType", "True_", "base_repr", "binary_repr", "bool", "byte", "bytes_", "cdouble",
    "character", "clongdouble", "common_type", "complexfloating", "csingle", "double", "errstate",
    "exceptions", "flexible", "floating", "format_float_positional", "format_float_scientific",
    "frombuffer", "fromfile", "fromregex", "fromstring", "generic", "genfromtxt", "get_printoptions",
    "getbufsize", "geterr", "geterrcall", "half", "index_exp", "inexact", "info", "int_", "intc", "integer",
    "intp", "little_endian", "load", "loadtxt", "long", "longdouble", "longlong", "mintypecode", "ndindex",
    "number", "object_", "printoptions", "random", "s_", "save", "savetxt", "savez", "savez_compressed",
    "sctypeDict", "set_printoptions", "setbufsize", "seterr", "seterrcall", "short", "show_config",
    "show_runtime", "signedinteger", "single", "str_", "testing", "typecodes", "typename", "typing",
    "ubyte", "ufunc", "uint", "uintc", "uintp", "ulong", "ulonglong", "unsignedinteger", "ushort", "void",
)
REFUSED: dict[str, tuple[str, str]] = {}
# fmt: on
OFFERED: list[str] = [*(n for names in MODULES.values() for n in names), *PASSED]
HOME = {name: module for module, names in MODULES.items() for name in names}
FROM_ELSEWHERE = {name: home for home, names in OTHERS.items() for name in names}


@cache
def find(name: str) -> Any:
    """The object of that name; KeyError if there is none."""
    if name in HOME:
        found = getattr(import_module(f"ge2.numpy.{HOME[name]}"), name)
        return hides(found) if type(found) is FunctionType else found
    if name in PASSED:
        return getattr(np, name)
    raise KeyError(name)


def theirs(name: str) -> Any:
    """NumPy's object of that name; None if it has none."""
    found: Any = np
    for part in (*FROM_ELSEWHERE.get(name, "").split("."), name):
        found = getattr(found, part, None) if part else found
    return found


def ours_of(function: Any) -> Any:
    """Our function for one of NumPy's, if its module is among those of `MODULES`; else None."""
    name = getattr(function, "__name__", "")
    return find(name) if name in HOME and theirs(name) is function else None


def lacking(name: str) -> str:
    """What an error says of a name that is not here: the reason and what to write, where NumPy has it."""
    if name in REFUSED:
        reason, fix = REFUSED[name]
        return f"ge2.numpy has no {name}: {reason}\n  try  {fix}"
    return f"module 'ge2.numpy' has no attribute {name!r}"
