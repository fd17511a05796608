"""A function of a user's file, named `FILE.py:function`.

What the file does under `__main__` is not done.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from difflib import get_close_matches
from types import ModuleType
from typing import Any, Final

from ge2.base.errors import Ge2Error, InputError

FORM: Final = "ge2 show FILE.py:function"


def load(place: str) -> tuple[Callable[..., Any], ModuleType]:
    """The function, and the module that its file became. InputError if there is no such thing."""
    path, colon, name = place.rpartition(":")
    if not colon or not path or not name:
        raise InputError(f"{place!r} names no function of a file", fix=FORM)
    module = module_of(path)
    return function_of(module, name, path), module


def module_name(path: str) -> str:
    """That of the file, unless another module has it."""
    name = os.path.splitext(os.path.basename(path))[0]
    return f"_shown_{name}" if name in sys.modules else name


def module_of(path: str) -> ModuleType:
    """The file as a module, which finds its neighbours as it would if it were run."""
    if not os.path.isfile(path):
        folder = os.path.dirname(path) or "."
        files = (
            [f for f in os.listdir(folder) if f.endswith(".py")] if os.path.isdir(folder) else []
        )
        near = get_close_matches(os.path.basename(path), files, 1)
        fix = os.path.join(os.path.dirname(path), near[0]) if near else FORM
        raise InputError(f"there is no file {path}", fix=fix)
    name = module_name(path)
    spec = importlib.util.spec_from_file_location(name, os.path.abspath(path))
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is no Python file", fix=FORM)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        what = f"{path} fails when it is imported: {words(error)}"
        raise Ge2Error(what, where=last_line(error, path)) from error
    return module


def function_of(module: ModuleType, name: str, path: str) -> Callable[..., Any]:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [n for n, x in vars(found).items() if callable(x) and not n.startswith("_")]
            own = [n for n in known if getattr(vars(found)[n], "__module__", "") == module.__name__]
            near = get_close_matches(part, known, 3) or own[:5]
            fix = " or ".join(f"{path}:{n}" for n in near) or f"def {part} in {path}"
            raise InputError(f"{path} has no function {part}", fix=fix)
        found = getattr(found, part)
    if not callable(found):
        raise InputError(f"{name} of {path} is no function: it is {found!r:.60}", fix=FORM)
    function: Callable[..., Any] = found
    return function


def words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def last_line(error: BaseException, path: str) -> str:
    """The line of the user's file that was being executed."""
    file, whole = os.path.basename(path), os.path.abspath(path)
    if isinstance(error, SyntaxError) and error.filename == whole:
        return f"{file}:{error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == whole]
    return f"{file}:{frames[-1].lineno} in {frames[-1].name}" if frames else path
