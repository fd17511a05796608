"""Notes on errors that functions of others raise for a traced value, of which they know nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import TracebackType

from ge2.base.expression import Expression, expression_at
from ge2.base.source import Source, is_library, is_package
from ge2.base.tracebacks import CALLS, is_raise
from ge2.ir import is_traced
from ge2.trace.hints import hint
from ge2.trace.tracer import Tracer

__all__ = ["explain"]


def explain(error: Exception) -> None:
    """Adds the user's line and a fix, if that line passed a traced value to a function that is
    neither the user's nor ours.
    """
    at = users_last(error)
    if at is None or any(words in str(error) for words in CALLS):
        return
    found = expression_at(at.tb_frame, at.tb_lasti)
    first = next(passed(found), None) if found is not None else None
    if first is None or is_raise(at.tb_frame.f_code, at.tb_lasti):
        return
    name = first.owner.names.get(first.atom, "") if first.owner.kind == "jit" else ""
    place = Source(at.tb_frame.f_code, at.tb_lasti)
    error.add_note(f"  at   {place}\n  try  {hint('array', name, found)}")


def users_last(error: Exception) -> TracebackType | None:
    """The innermost line of the user's; None if it led into ge2."""
    at, found = error.__traceback__, None
    while at is not None:
        code = at.tb_frame.f_code
        if not is_library(code):
            found = at
        elif is_package(code) and found is not None:
            return None
        at = at.tb_next
    return found


def passed(found: Expression) -> Iterator[Tracer]:
    """The traced values that are named in the arguments of a call, or in an index."""
    match found.node:
        case ast.Call(args=args, keywords=keywords):
            parts: list[ast.AST] = [*args, *keywords]
        case ast.Subscript(slice=index):
            parts = [index]
        case _:
            parts = []
    for part in parts:
        for node in ast.walk(part):
            value = found.value(node)
            if is_traced(value):
                yield value
