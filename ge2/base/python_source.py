"""Sources of kernels as functions: each text is compiled once a process, and
tracebacks show its lines.
"""

from __future__ import annotations

import linecache
import os
from collections import OrderedDict, deque
from collections.abc import Mapping
from itertools import count
from threading import RLock
from typing import Any, Final

from ge2.base.errors import CompileError

# sources that are found again, and whose lines tracebacks show; the oldest is forgotten
KEPT: Final = 64
_numbers = count()
_loaded: OrderedDict[str, Mapping[str, Any]] = OrderedDict()
_files: deque[str] = deque()
_lock = RLock()


def load(source: str) -> Mapping[str, Any]:
    """The names that a source defines. Equal sources share one module."""
    found = _loaded.get(source)
    if found is None:
        with _lock:
            found = _loaded.get(source)
            if found is None:
                found = _loaded[source] = execute(source, {})
                if len(_loaded) > KEPT:
                    _loaded.popitem(last=False)
    return found


def execute(source: str, names: dict[str, Any]) -> dict[str, Any]:
    """Runs a source in a module of its own that knows `names` beforehand."""
    file = f"<ge2 kernel {next(_numbers)}>"
    try:
        code = compile(source, file, "exec")
    except SyntaxError as error:
        raise CompileError(f"a generated kernel is no Python: {error}", where=source) from error
    with _lock:
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        _files.append(file)
        if len(_files) > KEPT:
            linecache.cache.pop(_files.popleft(), None)
    exec(code, names)
    return names


def _after_fork() -> None:
    global _lock
    _lock = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
