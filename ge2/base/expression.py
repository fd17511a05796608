"""The expression of the user's program that is being evaluated, read from its source."""

from __future__ import annotations

import ast
import builtins
import linecache
from opcode import opname
from types import CodeType, FrameType, ModuleType
from typing import Any, Final, final

from ge2.base.record import record
from ge2.base.source import user_frame

MISSING: Final = object()
LENGTH: Final = 40  # of a text that is quoted


@final
@record
class Expression:
    """A node of the syntax tree, and those around it, the innermost first."""

    node: ast.AST
    around: tuple[ast.AST, ...]
    frame: FrameType
    decides: bool = False  # whether its truth decides what runs next

    def value(self, node: ast.AST) -> Any:
        """The object that a name or a dotted name stands for; MISSING for all else."""
        if isinstance(node, ast.Name):
            frame = self.frame
            for names in (frame.f_locals, frame.f_globals, vars(builtins)):
                if node.id in names:
                    return names[node.id]
        if isinstance(node, ast.Attribute):
            owner = self.value(node.value)
            if isinstance(owner, ModuleType | type):
                return getattr(owner, node.attr, MISSING)
        return MISSING

    def text(self, node: ast.AST, otherwise: str) -> str:
        """The source of a node, or a word for it if that is long."""
        found = ast.unparse(node)
        return found if len(found) <= LENGTH else otherwise

    def primary(self, node: ast.expr, otherwise: str) -> str:
        """The source as an attribute may follow it: in parentheses where it needs them."""
        found = ast.unparse(ast.Attribute(node, "a")).removesuffix(".a")
        return found if len(found) <= LENGTH else otherwise


def expression() -> Expression | None:
    """The expression of the user's line that is being evaluated; None where
    there is no source to read.
    """
    frame = user_frame(2)
    if frame is None:
        return None
    return expression_at(frame, frame.f_lasti)


def expression_at(frame: FrameType, at: int) -> Expression | None:
    """The expression of an instruction of a frame; None where there is no source to read."""
    code = frame.f_code
    decides = "JUMP" in opname[code.co_code[at]] or opname[code.co_code[at]] == "TO_BOOL"
    # a jump has the place of the statement; what it asks was made just before
    path = path_to(code, at - 2 if decides else at)
    return Expression(path[-1], tuple(path[-2::-1]), frame, decides) if path else None


def path_to(code: CodeType, lasti: int) -> list[ast.AST]:
    """The nodes of the file from the top down to the one that an instruction belongs to."""
    place = list(code.co_positions())[lasti // 2]
    if None in place:
        return []
    try:
        at: ast.AST | None = ast.parse("".join(linecache.getlines(code.co_filename)))
    except SyntaxError:
        return []
    path: list[ast.AST] = []
    while at is not None:
        path.append(at)
        at = next((each for each in ast.iter_child_nodes(at) if holds(each, place)), None)
    return path if holds(path[-1], place) and span(path[-1]) == place else []


def span(node: Any) -> tuple[int | None, ...]:
    """First and last line, first and last column of a node, as code objects give them."""
    return (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset)


def holds(node: Any, place: tuple[int | None, ...]) -> bool:
    """True if a node covers a place; nodes without one, such as arguments, are looked into."""
    if not hasattr(node, "lineno"):
        return any(holds(each, place) for each in ast.iter_child_nodes(node))
    first, last, start, end = span(node)
    line, end_line, column, end_column = place
    return (first, start) <= (line, column) and (end_line, end_column) <= (last, end)
