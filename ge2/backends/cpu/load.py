"""Sources of kernels as functions: each text is compiled once a process, and tracebacks show its lines."""

from __future__ import annotations

import linecache
from collections.abc import Mapping
from itertools import count
from threading import Lock
from typing import Any

from ge2.base.errors import CompileError

_numbers = count()
_loaded: dict[str, Mapping[str, Any]] = {}
_lock = Lock()


def load(source: str) -> Mapping[str, Any]:
    """The names that a source defines. Equal sources share one module."""
    found = _loaded.get(source)
    if found is None:
        with _lock:
            found = _loaded.get(source)
            if found is None:
                found = _loaded[source] = execute(source, {})
    return found


def execute(source: str, names: dict[str, Any]) -> dict[str, Any]:
    """Runs a source in a module of its own that knows `names` beforehand."""
    file = f"<ge2 kernel {next(_numbers)}>"
    try:
        code = compile(source, file, "exec")
    except SyntaxError as error:
        raise CompileError(f"a generated kernel is no Python: {error}", where=source) from error
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(code, names)
    return names
