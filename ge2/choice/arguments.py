"""Arguments and sizes as words: `f32[128,64]`, and the sizes that types of a user's kernel bind."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import numpy as np

from ge2.base.arrays import LONG, short
from ge2.base.errors import InputError
from ge2.base.record import record
from ge2.base.source import pattern
from ge2.ir import ArrayType, ShapeDtypeStruct

if TYPE_CHECKING:

    class Kernel(Protocol):
        """A kernel of a user's, whose file is to blame."""

        def wrong(self, key: str, what: str, fix: str = "") -> InputError: ...


# -------- Arguments of functions as words: `f32[128,64]`, `2.5`, `{'w': f32[3,4], 'b': f32[4]}`,
# `@start`.
# A specification is a Python literal in which `dtype[shape]` stands for an array that nobody makes,
# and `@name` for what the function's own file calls so. `name=...` gives the argument of that name.


EXAMPLE: Final = (
    "f32[128,64], f64[], 2.5, True, {'w': f32[3,4], 'b': f32[4]}, @name of the file, lr=0.1"
)
DTYPES: Final = {**LONG, **{dtype.name: dtype for dtype in LONG.values()}}
EMPTY = pattern(r"\b(\w+)\[\s*\]")
FROM_FILE = pattern(r"@([A-Za-z_]\w*)")
MARK: Final = "_from_the_file_"
CALL: Final = "_called_"
NUMBERS: Final = {"inf": float("inf"), "nan": float("nan")}


def arguments(specs: Sequence[str], names: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments that the specifications stand for, by position and by name; `names` are those
    of the file.

    A specification may hold several arguments; a tuple stands in parentheses.

    >>> arguments(["f32[2,3]", "(1, 2), [1, -2.5]", "x=bool[]"], {})
    ([ShapeDtypeStruct(shape=(2, 3), dtype=dtype('float32')), (1, 2), [1, -2.5]],
     {'x': ShapeDtypeStruct(shape=(), dtype=dtype('bool'))})
    """
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for spec in specs:
        found, named = Spec(spec, names).values()
        if found and kwargs:
            raise InputError(
                f"{spec!r} stands behind an argument with a name", fix="first those without"
            )
        args += found
        kwargs |= named
    return args, kwargs


@final
@record
class Spec:
    text: str
    names: Mapping[str, Any]

    def values(self) -> tuple[list[Any], dict[str, Any]]:
        """Read as the arguments of a call."""
        text = FROM_FILE.sub(rf"{MARK}\1", EMPTY.sub(r"\1[()]", self.text.strip()))
        try:
            tree = ast.parse(f"{CALL}({text})", mode="eval").body
        except SyntaxError as error:
            raise self.wrong(f"it is no Python literal ({error.msg})") from None
        if not (
            isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == CALL
        ):
            raise self.wrong("its parentheses do not match")
        if any(each.arg is None for each in tree.keywords):
            raise self.wrong("it has ** in it")
        named = {str(each.arg): self.read(each.value) for each in tree.keywords}
        return [self.read(x) for x in tree.args], named

    def read(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Dict):
            if None in node.keys:
                raise self.wrong("it has ** in it")
            return {
                self.read(k): self.read(v) for k, v in zip(node.keys, node.values, strict=True) if k
            }
        if isinstance(node, ast.List):
            return [self.read(x) for x in node.elts]
        if isinstance(node, ast.Tuple):
            return tuple(self.read(x) for x in node.elts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            value = self.read(node.operand)
            return -value if isinstance(node.op, ast.USub) else value
        if isinstance(node, ast.Name):
            return self.name(node.id)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            return ShapeDtypeStruct(self.shape(node), self.dtype(node.value.id))
        raise self.wrong(f"{ast.unparse(node)} is neither a literal nor an array")

    def name(self, word: str) -> Any:
        if word in NUMBERS:
            return NUMBERS[word]
        if word in DTYPES:
            raise self.wrong(f"{word} has no shape", f"{word}[], or {word}[128,64]")
        if not word.startswith(MARK):
            raise self.wrong(f"{word} is not known here", f"@{word}, if the file has it")
        word = word.removeprefix(MARK)
        if word not in self.names:
            near = get_close_matches(word, [n for n in self.names if not n.startswith("_")], 3)
            raise self.wrong(f"the file has no {word}", " or ".join(f"@{n}" for n in near))
        found = self.names[word]
        return found() if callable(found) else found

    def dtype(self, word: str) -> np.dtype:
        if word in DTYPES:
            return DTYPES[word]
        (near,) = get_close_matches(word, list(DTYPES), 1, 0.0)
        raise self.wrong(f"{word} is no dtype", f"{near}[...]; there are {', '.join(LONG)}")

    def shape(self, node: ast.Subscript) -> tuple[int, ...]:
        sizes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        values = [self.read(x) for x in sizes]
        if not all(type(n) is int and n >= 0 for n in values):
            raise self.wrong(
                f"[{ast.unparse(node.slice)}] is no shape", "whole numbers: f32[128,64]"
            )
        return tuple(values)

    def wrong(self, why: str, fix: str = "") -> InputError:
        return InputError(f"--args {self.text!r} cannot be read: {why}", fix=fix or EXAMPLE)


# -------- Sizes of a user's kernel, by name: types that bind them, conditions, and expressions of
# them.
# Conditions and sizes are arithmetic of whole numbers, in Python's words.


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
        if called := function_of(node):
            return called(*map(walk, node.args))  # type: ignore[attr-defined]
        raise kernel.wrong(
            key, f"{text!r} has more than arithmetic in it", "n, +, //, %, <, min, cdiv"
        )

    try:
        return walk(tree_of(text, kernel, key))
    except (ArithmeticError, TypeError) as error:
        known = isinstance(error, InputError)
        raise error if known else kernel.wrong(key, f"{text!r} has no value: {error}") from None


def function_of(node: ast.expr) -> Callable[..., Any] | None:
    """The function that a node calls, if it is one of those that expressions have."""
    named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return CALLED.get(node.func.id) if named else None  # type: ignore[attr-defined]


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
