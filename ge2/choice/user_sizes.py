"""Sizes of a user's kernel, by name: types that bind them, conditions, and expressions of them.

Conditions and sizes are arithmetic of whole numbers, in Python's words.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, final

from ge2.base.dtypes import short
from ge2.ir import ArrayType

if TYPE_CHECKING:
    from ge2.choice.user_kernels import Kernel

TYPED: Final = re.compile(r"\s*(\w+)\s*:\s*([\w|\s]+?)\s*\[([^\]]*)\]\s*")


@final
class Refused(Exception):
    """The reason why a kernel is not for a problem, in words."""


BINARY: Final[dict[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
CALLED: Final[dict[str, Callable[..., Any]]] = {
    "min": min, "max": max, "cdiv": lambda a, b: -(-a // b),
}  # fmt: skip


def tree_of(text: str, kernel: Kernel, key: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        fix = '"x: f32[n, c]", or "c % 8 == 0"' if key == "when" else '"cdiv(n, 256)"'
        raise kernel.wrong(key, f"{text!r} is no expression", fix) from None


def value_of(text: str, names: Mapping[str, Any], kernel: Kernel, key: str) -> Any:
    """The value of an expression of sizes. InputError for a name that is none of them."""

    def walk(node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Tuple):
            return tuple(map(walk, node.elts))
        if isinstance(node, ast.Name):
            if node.id in names:
                return names[node.id]
            near = get_close_matches(node.id, list(names), 1, 0.0)
            raise kernel.wrong(key, f"{text!r} names {node.id}, which is no size", "".join(near))
        if isinstance(node, ast.BinOp) and type(node.op) in BINARY:
            return BINARY[type(node.op)](walk(node.left), walk(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
            inner = walk(node.operand)
            return not inner if isinstance(node.op, ast.Not) else -inner
        if isinstance(node, ast.BoolOp):
            each = (bool(walk(v)) for v in node.values)
            return all(each) if isinstance(node.op, ast.And) else any(each)
        if isinstance(node, ast.Compare) and all(type(o) in BINARY for o in node.ops):
            sides = [walk(x) for x in (node.left, *node.comparators)]
            pairs = zip(node.ops, sides, sides[1:], strict=False)
            return all(BINARY[type(o)](a, b) for o, a, b in pairs)
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in CALLED
        ):
            return CALLED[node.func.id](*map(walk, node.args))
        raise kernel.wrong(
            key, f"{text!r} has more than arithmetic in it", "n, +, //, %, <, min, cdiv"
        )

    try:
        return walk(tree_of(text, kernel, key))
    except (ArithmeticError, TypeError) as error:
        raise kernel.wrong(key, f"{text!r} has no value: {error}") from None


def bind(
    typed: re.Match[str], types: Mapping[str, ArrayType], found: dict[str, Any], kernel: Kernel
) -> None:
    """Gives the sizes of an operand their names. Refused if it is of another type."""
    name, dtypes, dims = typed[1], split_types(typed[2]), words(typed[3])
    if name not in types:
        near = get_close_matches(name, list(types), 1, 0.0)
        what = f"it has no operand {name}: there are {', '.join(types)}"
        raise kernel.wrong("when", what, "".join(near))
    t = types[name]
    if short(t.dtype) not in dtypes:
        raise Refused(f"{name} is {t}, not {' or '.join(dtypes)}")
    if len(dims) != t.ndim:
        raise Refused(f"{name} is {t}, which has not {len(dims)} axes")
    for word, n in zip(dims, t.shape, strict=True):
        if word.isdecimal() and int(word) != n:
            raise Refused(f"{name} is {t}, with {n} in place of {word}")
        if word.isidentifier() and word != "_" and found.setdefault(word, n) != n:
            raise Refused(f"{word} is {found[word]} and, of {name}, {n}")


def split_types(text: str) -> list[str]:
    return [word.strip() for word in text.split("|")]


def words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
