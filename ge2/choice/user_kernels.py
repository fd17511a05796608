"""Kernels of a user's for functions of his: a folder with a text in C or CUDA, and `kernel.toml`.

The file names the NumPy function that the text computes (`serves`), examples of its arguments
(`args`), for which types it is (`when`), and how it is launched. `docs/design/user_kernels.md` has
the reasons.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import operator
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, final

from ge2.base.cache import content_key
from ge2.base.dtypes import LONG, short
from ge2.base.errors import InputError
from ge2.base.record import record
from ge2.ir import ArrayType
from ge2.ops.user_ops import BUILT_IN

FILE: Final = "kernel.toml"
LAUNCH: Final = ("blocks", "threads", "shared")
# each key, and the kind of value that it takes
KEYS: Final[dict[str, str]] = {
    "name": "a text", "serves": "a text", "args": "texts", "when": "texts", "c": "a text",
    "cuda": "a text", "helpers": "a text", "launch": "a table", "variants": "tables",
    "gradient": "a text", "library": "a text", "function": "a text",
}  # fmt: skip
OF_GRADIENT: Final = ("c", "cuda", "helpers", "launch", "variants", "when", "library", "function")
TEXTS: Final = ("c", "cuda", "helpers")
TYPED: Final = re.compile(r"\s*(\w+)\s*:\s*([\w|\s]+?)\s*\[([^\]]*)\]\s*")
Variant = tuple[tuple[str, int], ...]


@final
@record
class Kernel:
    """What a folder says. `texts`: the contents of `c`, `cuda` and `helpers`; `files` their paths.

    `key` is a hash of all that could change what the kernel computes: the texts, the file, and the
    file of the function.
    """

    folder: str
    file: str
    name: str
    serves: str
    args: tuple[str, ...]
    when: tuple[str, ...]
    texts: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, str], ...]
    launch: tuple[tuple[str, tuple[str, ...]], ...]
    variants: tuple[Variant, ...]
    gradient: Kernel | None
    key: str
    library: tuple[str, str] = ("", "")  # a library's path, and a function in it, in place of `c`

    def text(self, language: str) -> str:
        return dict(self.texts).get(language, "")

    @property
    def languages(self) -> tuple[str, ...]:
        own = {"c": self.text("c") or self.library[0], "cuda": self.text("cuda")}
        return tuple(name for name, text in own.items() if text)

    def function(self) -> Callable[..., Any]:
        """The NumPy function that it computes."""
        path, _, name = self.serves.rpartition(":")
        module = module_named(self.folder, path)
        found = getattr(module, name, None)
        if not callable(found):
            near = get_close_matches(name, [n for n in vars(module) if not n.startswith("_")], 1)
            fix = f'serves = "{path}:{near[0]}"' if near else "a function of that file"
            raise self.wrong("serves", f"{path} has no function {name}", fix)
        function: Callable[..., Any] = found
        return function

    def dims(self, types: Mapping[str, ArrayType]) -> dict[str, int]:
        """The names of sizes for operands of these types. Refused for types that it is not for."""
        found = {f"{x}_n{i}": n for x, t in types.items() for i, n in enumerate(t.shape)}
        found |= {f"{x}_size": t.size for x, t in types.items()}
        found |= {f"{x}_ndim": t.ndim for x, t in types.items()}
        for each in self.when:
            if (typed := TYPED.fullmatch(each)) is not None:
                bind(typed, types, found, self)
        for each in self.when:
            if TYPED.fullmatch(each) is None and not value_of(each, found, self, "when"):
                raise Refused(f"not {each}")
        return found

    def named_dims(self) -> Iterator[tuple[str, str, int]]:
        """The names that `when` gives to sizes, each with its operand and axis."""
        seen = set()
        for typed in filter(None, map(TYPED.fullmatch, self.when)):
            for axis, word in enumerate(words(typed[3])):
                if word.isidentifier() and word != "_" and word not in seen:
                    seen.add(word)
                    yield word, typed[1], axis

    def wrong(self, key: str, what: str, fix: str = "") -> InputError:
        """An error at the line of a key."""
        return at_line(self.file, key, what, fix)


@final
class Refused(Exception):
    """Why a kernel is not for a problem, in words."""


# --------------------------------------------------------------------------------------- reading


def load(folder: str) -> Kernel:
    """What a folder, or its `kernel.toml`, says. InputError, with file and line, where it is wrong."""
    folder = os.path.abspath(folder)
    file = folder if os.path.isfile(folder) else os.path.join(folder, FILE)
    return read(file, tuple(KEYS))


def read(file: str, keys: Sequence[str], outer: Kernel | None = None) -> Kernel:
    folder, found = os.path.dirname(file), parsed(file)
    for key, value in found.items():
        if key not in keys:
            near = get_close_matches(key, keys, 1, 0.0)
            raise at_line(file, key, f"{key!r} is no key of a kernel", f"{near[0]} = ...")
        if not is_kind(value, KEYS[key]):
            raise at_line(file, key, f"{key} is to be {KEYS[key]}; it is {value!r}")
    files = [(w, os.path.join(folder, found[w])) for w in TEXTS if w in found]
    texts = tuple((w, content(path, file, w)) for w, path in files)
    library = library_of(file, found)
    if not {"c", "cuda", "library"} & found.keys():
        raise at_line(file, "", "it names no text", 'c = "kernel.c", or cuda = "kernel.cu"')
    name = (
        found.get("name", os.path.basename(folder)) if outer is None else f"{outer.name}_gradient"
    )
    if not re.fullmatch(r"[a-z_][a-z0-9_]*", name):
        raise at_line(file, "name", f"{name!r} is no name of small letters", 'name = "my_kernel"')
    if name in BUILT_IN:
        raise at_line(file, "name", f"{name} is an operation of ge2", f'name = "my_{name}"')
    said = found.get("launch", {}).items()
    launch = tuple((w, tuple(map(str, v if isinstance(v, list) else [v]))) for w, v in said)
    for word, _ in launch:
        if word not in LAUNCH:
            near = get_close_matches(word, LAUNCH, 1, 0.0)
            raise at_line(file, "launch", f"launch has no {word!r}", near[0])
    variants = tuple(tuple(v.items()) for v in found.get("variants", [{}]))
    if not all(type(n) is int and w.isidentifier() for each in variants for w, n in each):
        raise at_line(file, "variants", "a variant gives whole numbers to names", "[{ ROWS = 4 }]")
    serves, args = (outer.serves, outer.args) if outer else (found.get("serves"), found.get("args"))
    if not serves or ":" not in serves:
        raise at_line(file, "serves", "it does not say what it computes", 'serves = "layer.py:f"')
    if not args:
        what = "it has no examples of arguments, on which it is checked"
        raise at_line(file, "args", what, 'args = ["f32[8,16], f32[16]"]')
    path = serves.rpartition(":")[0]
    source = content(os.path.join(folder, path), file, "serves") if path.endswith(".py") else path
    whole = [repr(sorted(found.items())), source, *(text for _, text in texts)]
    whole += [hash_of(library[0])] if library[0] else []
    made = Kernel(
        folder, file, name, serves, tuple(args), tuple(found.get("when", ())), texts, tuple(files),
        launch, variants, None, content_key(*whole), library,
    )  # fmt: skip
    checked(made)
    return with_gradient(made, found.get("gradient"))


def library_of(file: str, found: dict[str, Any]) -> tuple[str, str]:
    """The path of a library and the name of a function that is in it; InputError if it is not."""
    if "library" not in found and "function" not in found:
        return "", ""
    for key, other in (("library", "function"), ("function", "library")):
        if other not in found:
            raise at_line(file, key, f"it has a {key} and no {other}", f'{other} = "..."')
    if "c" in found:
        raise at_line(file, "library", "a library is in place of c", "one of the two")
    import ctypes

    path = os.path.join(os.path.dirname(file), found["library"])
    try:
        if not hasattr(ctypes.CDLL(path), found["function"]):
            what = f"{found['library']} has no function {found['function']}"
            raise at_line(file, "function", what, "nm -D shows what it has")
    except OSError as error:
        raise at_line(file, "library", f"it cannot be loaded: {error}") from None
    return path, found["function"]


def hash_of(path: str) -> str:
    with open(path, "rb") as opened:
        return content_key(opened.read())


def with_gradient(kernel: Kernel, path: str | None) -> Kernel:
    from dataclasses import replace

    if path is None:
        return kernel
    file = os.path.join(kernel.folder, path)
    if not os.path.isfile(file):
        raise kernel.wrong("gradient", f"there is no file {path}")
    inner = read(file, OF_GRADIENT, kernel)
    return replace(kernel, gradient=inner, key=content_key(kernel.key, inner.key))


def parsed(file: str) -> dict[str, Any]:
    try:
        with open(file, "rb") as opened:
            return tomllib.load(opened)
    except OSError as error:
        raise InputError(
            f"{file} cannot be read: {error.strerror}", fix=f"a folder with {FILE}"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{file} is no TOML: {error}") from None


def is_kind(value: Any, kind: str) -> bool:
    if kind.endswith("s") and kind != "a text":
        return isinstance(value, list) and all(is_kind(x, f"a {kind[:-1]}") for x in value)
    return isinstance(value, dict if kind == "a table" else str)


def content(path: str, file: str, key: str) -> str:
    try:
        with open(path, encoding="utf-8") as opened:
            return opened.read()
    except (OSError, UnicodeDecodeError) as error:
        folder = os.path.dirname(path)
        there = os.listdir(folder) if os.path.isdir(folder) else []
        near = get_close_matches(os.path.basename(path), there, 1)
        what = getattr(error, "strerror", None) or "it is no text"
        raise at_line(
            file, key, f"{path} cannot be read: {what}", near[0] if near else ""
        ) from None


def checked(kernel: Kernel) -> None:
    """That conditions and sizes are expressions, and types are types."""
    for each in kernel.when:
        typed = TYPED.fullmatch(each)
        if typed is None:
            tree_of(each, kernel, "when")
            continue
        for word in split_types(typed[2]):
            if word not in LONG:
                near = get_close_matches(word, list(LONG), 1, 0.0)
                raise kernel.wrong(
                    "when", f"{word} is no dtype", f"{near[0]}; of {', '.join(LONG)}"
                )
    for word, sides in kernel.launch:
        for each in sides:
            tree_of(each, kernel, f"launch {word}")


def at_line(file: str, key: str, what: str, fix: str = "") -> InputError:
    """An error that names the line of a key, or else the file."""
    with open(file, encoding="utf-8") as opened:
        lines = opened.read().splitlines()
    word = re.escape(key.partition(" ")[0])
    found = [n for n, line in enumerate(lines, 1) if key and re.match(rf"\s*{word}\b", line)]
    where = f"{file}:{found[0]}" if found else file
    return InputError(what, where=where, fix=fix)


def module_named(folder: str, path: str) -> Any:
    """The module that `serves` names: a file of the folder, or one that can be imported."""
    if path.endswith(".py"):
        return module_of(os.path.join(folder, path))
    try:
        return importlib.import_module(path)
    except ImportError as error:
        raise InputError(
            f"serves names {path}: {error}", fix='"layer.py:f", "numpy:cumsum"'
        ) from None


def module_of(path: str) -> Any:
    """The file as a module, which finds its neighbours; loaded once."""
    path = os.path.abspath(path)
    for module in [*sys.modules.values()]:
        if getattr(module, "__file__", None) == path:
            return module
    name = f"_served_{os.path.splitext(os.path.basename(path))[0]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is no Python file", fix='serves = "layer.py:f"')
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if os.path.dirname(path) not in sys.path:
        sys.path.append(os.path.dirname(path))
    spec.loader.exec_module(module)
    return module


# ----------------------------------------------------------------------------------- expressions
# Conditions and sizes: arithmetic of whole numbers, in Python's words.


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


def value_of(text: str, names: Mapping[str, int], kernel: Kernel, key: str) -> Any:
    """The value of an expression of sizes. InputError for a name that is none of them."""

    def walk(node: ast.expr) -> Any:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
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

    return walk(tree_of(text, kernel, key))


def bind(
    typed: re.Match[str], types: Mapping[str, ArrayType], found: dict[str, int], kernel: Kernel
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
