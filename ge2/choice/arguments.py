"""Arguments of functions as words: `f32[128,64]`, `2.5`, `{'w': f32[3,4], 'b': f32[4]}`, `@start`.

A specification is a Python literal in which `dtype[shape]` stands for an array that nobody makes,
and `@name` for what the function's own file calls so. `name=...` gives the argument of that name.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, final

import numpy as np

from ge2.base.dtypes import LONG
from ge2.base.errors import InputError
from ge2.base.formatting import pattern
from ge2.base.record import record
from ge2.ir import ShapeDtypeStruct

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
