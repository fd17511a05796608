"""This module reads user kernels: a folder with a text in C or CUDA, and `kernel.toml`.

The file names the NumPy function that the text computes (`serves`), examples of its arguments
(`args`), for which types it is (`when`), and how it is launched. `docs/design/user_kernels.md` has
the reasons.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Final, final

from ge2.base.arrays import LONG
from ge2.base.cache import content_key
from ge2.base.compiler import FOR_C, headers_key
from ge2.base.errors import InputError
from ge2.base.record import record
from ge2.choice.arguments import TYPED, Refused, bind, split_types, tree_of, value_of, words
from ge2.codegen.environment import user_templates, writing
from ge2.ir import ArrayType
from ge2.ops.user_ops import BUILT_IN

FILE: Final = "kernel.toml"
LAUNCH: Final = ("blocks", "threads", "shared")
NONE: Final[Mapping[str, Any]] = MappingProxyType({})
# each key, and the kind of value that it takes
KEYS: Final[dict[str, str]] = {
    "name": "a text", "serves": "a text", "op": "a text", "args": "texts", "when": "texts",
    "arch": "a text", "c": "a text, or texts", "cuda": "a text, or texts", "helpers": "a text",
    "options": "texts", "include": "texts", "workspace": "a number, or a text",
    "launch": "a table, or tables", "variants": "tables", "gradient": "a text", "cubin": "a text",
    "library": "a text", "function": "a text, or a table",
}  # fmt: skip
OF_GRADIENT: Final = tuple(w for w in KEYS if w not in ("name", "serves", "op", "args", "gradient"))
TEXTS: Final = ("c", "cuda", "helpers")
EXTENDS: Final = re.compile(r"""\{%-?\s*extends\s+["']([^"']+)["']""")
ARCH: Final = re.compile(r"sm_(\d+)([af]?)")
Variant = tuple[tuple[str, int], ...]
Launch = tuple[tuple[str, tuple[str, ...]], ...]  # expressions of blocks, threads and shared memory


@final
@record
class Part:
    """The text of a kernel with its language and path."""

    language: str
    path: str
    text: str

    @property
    def is_template(self) -> bool:
        return self.path.endswith(".jinja")

    @property
    def extends(self) -> str:
        """Returns the template that the text extends, or ""."""
        found = EXTENDS.search(self.text) if self.is_template else None
        return "" if found is None else found[1]


@final
@record
class Kernel:
    """A user kernel as its folder describes it. `parts` are its texts; those of a language run in
    their order.

    `functions`: of each language the function of the `library`, or of the `cubin`. `key` is a hash
    of all that could change what the kernel computes: the texts and what they include, the file,
    and the file of the function.
    """

    folder: str
    file: str
    name: str
    serves: str
    args: tuple[str, ...]
    when: tuple[str, ...]
    parts: tuple[Part, ...]
    launches: tuple[Launch, ...]
    variants: tuple[Variant, ...]
    gradient: Kernel | None
    key: str
    functions: tuple[tuple[str, str], ...] = ()
    library: str = ""
    cubin: str = ""
    op: str = ""  # in place of a function that it serves, an operation
    options: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    workspace: str = "0"
    arch: str = ""

    def texts(self, language: str) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if part.language == language)

    @property
    def helpers(self) -> str:
        return "".join(part.text for part in self.texts("helpers"))

    @property
    def languages(self) -> tuple[str, ...]:
        own = {"c": self.texts("c"), "cuda": self.texts("cuda") or self.cubin} | dict(
            self.functions
        )
        return tuple(name for name in ("c", "cuda") if own[name])

    def options_in(self, language: str) -> tuple[str, ...]:
        """Returns the options for the compiler of a language, the folders that are included, and a
        hash of their files.
        """
        own = [o for o in self.options if language == "cuda" or o.startswith(FOR_C)]
        if not self.include:
            return tuple(own)
        held = headers_key("\n".join(part.text for part in self.parts), self.include)
        return (*own, *(f"-I{each}" for each in self.include), f"-DGE2_INCLUDED={held[:16]}")

    def runs_on(self, arch: str) -> str:
        """Returns why the kernel does not run on a chip of that architecture; "" if it does."""
        if not self.arch:
            return ""
        (own, kind), (given, _) = (
            (int(f[1]), f[2]) for f in map(ARCH.match, (self.arch, arch)) if f
        )
        alike = own // 10 == given // 10 if self.cubin else True
        same = own == given if kind else own <= given and alike
        return (
            "" if same else f"it is for {self.arch}{'' if kind else ' and later'}, not for {arch}"
        )

    def function(self) -> Callable[..., Any]:
        """Returns the NumPy function that the kernel computes."""
        path, _, name = self.serves.rpartition(":")
        module = module_named(self.folder, path)
        found = getattr(module, name, None)
        if not callable(found):
            near = get_close_matches(name, [n for n in vars(module) if not n.startswith("_")], 1)
            fix = f'serves = "{path}:{near[0]}"' if near else "a function of that file"
            raise self.wrong("serves", f"{path} has no function {name}", fix)
        function: Callable[..., Any] = found
        return function

    def dims(
        self, types: Mapping[str, ArrayType], more: Mapping[str, Any] = NONE
    ) -> dict[str, Any]:
        """Returns the names of sizes for operands of these types, with the parameters of an
        operation in `more`. It raises a refusal where `when` excludes them.
        """
        found = dict(more)
        found |= {f"{x}_n{i}": n for x, t in types.items() for i, n in enumerate(t.shape)}
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
        """Yields the names that `when` gives to sizes, each with its operand and axis."""
        seen = set()
        for typed in filter(None, map(TYPED.fullmatch, self.when)):
            for axis, word in enumerate(words(typed[3])):
                if word.isidentifier() and word != "_" and word not in seen:
                    seen.add(word)
                    yield word, typed[1], axis

    def wrong(self, key: str, what: str, fix: str = "") -> InputError:
        """Makes an error at the line of a key."""
        return at_line(self.file, key, what, fix)


# --------------------------------------------------------------------------------------- reading


def load(folder: str) -> Kernel:
    """Loads a folder, or its `kernel.toml`. An error in it is an InputError with file and line."""
    folder = os.path.abspath(folder)
    file = folder if os.path.isfile(folder) else os.path.join(folder, FILE)
    if not file.endswith(".toml"):
        fix = f"the folder of a {FILE}; a kernel that was saved is checked by f.pin"
        raise InputError(f"{file} is no {FILE}", fix=fix)
    return read(file, tuple(KEYS))


def read(file: str, keys: Sequence[str], outer: Kernel | None = None) -> Kernel:
    folder, found = os.path.dirname(file), parsed(file)
    whose = "a kernel" if outer is None else "a gradient"
    check_keys(file, found, {key: KEYS[key] for key in keys}, whose)
    texts = ("c", "cuda", "library", "cubin")
    if not any(found.get(key) for key in texts):
        empty = next((key for key in texts if key in found), "")
        raise at_line(file, empty, "it names no text", 'c = "kernel.c", or cuda = "kernel.cu"')
    serves, op, args = served(file, found, outer)
    path = serves.rpartition(":")[0]
    source = content(os.path.join(folder, path), file, "serves") if path.endswith(".py") else path
    library, functions = functions_of(file, found)
    made = Kernel(
        folder, file, name_of(file, found, outer), serves, args, tuple(found.get("when", ())),
        parts_of(file, found), launches_of(file, found), variants_of(file, found), None, "", functions,
        library, cubin_of(file, found, dict(functions)), op, options_of(file, found),
        include_of(file, found), str(found.get("workspace", 0)), arch_of(file, found),
    )  # fmt: skip
    checked(made)
    whole = [repr(sorted(found.items())), source, *(part.text for part in made.parts)]
    whole += [hash_of(each) for each in (made.library, made.cubin) if each]
    whole += made.options_in("cuda")
    if any(part.extends for part in made.parts):
        whole.append(writing(user_templates()))
    made = replace(made, key=content_key(*whole))
    return with_gradient(made, found.get("gradient"))


def check_keys(file: str, found: dict[str, Any], known: Mapping[str, str], whose: str) -> None:
    """Raises InputError for an unknown key and for a value of another kind."""
    for key, value in found.items():
        if key not in known:
            near = get_close_matches(key, known, 1, 0.0)
            raise at_line(file, key, f"{key!r} is no key of {whose}", f"{near[0]} = ...")
        if not is_kind(value, known[key]):
            raise at_line(file, key, f"{key} is to be {known[key]}; it is {value!r}")


def name_of(file: str, found: dict[str, Any], outer: Kernel | None) -> str:
    if outer is not None:
        return f"{outer.name}_gradient"
    name = str(found.get("name", os.path.basename(os.path.dirname(file))))
    if not re.fullmatch(r"[a-z_][a-z0-9_]*", name):
        raise at_line(file, "name", f"{name!r} is no name of small letters", 'name = "my_kernel"')
    if name in BUILT_IN:
        raise at_line(file, "name", f"{name} is an operation of ge2", f'name = "my_{name}"')
    return name


def served(
    file: str, found: dict[str, Any], outer: Kernel | None
) -> tuple[str, str, tuple[str, ...]]:
    """Returns the function or the operation that the kernel serves, and examples of arguments."""
    if outer is not None:
        return outer.serves, outer.op, outer.args
    serves, op, args = found.get("serves", ""), found.get("op", ""), found.get("args")
    if op and op not in BUILT_IN:
        near = get_close_matches(op, BUILT_IN, 1, 0.0)
        raise at_line(file, "op", f"there is no operation {op!r}", f'op = "{near[0]}"')
    if op and (serves or "gradient" in found):
        key = "serves" if serves else "gradient"
        what = f"it has an op and {'a function' if serves else 'a gradient'}"
        raise at_line(file, key, what, "one of the two: derivatives are of other operations")
    if not op and ":" not in serves:
        raise at_line(file, "serves", "it does not say what it computes", 'serves = "layer.py:f"')
    if not args:
        what = "it has no examples of arguments, on which it is checked"
        raise at_line(file, "args", what, 'args = ["f32[8,16], f32[16]"]')
    return serves, op, tuple(args)


def parts_of(file: str, found: dict[str, Any]) -> tuple[Part, ...]:
    """Returns the texts of each language in order. A text that extends a template of ge2 is the
    only one.
    """
    parts = []
    for word in TEXTS:
        for name in several(found.get(word, [])):
            path = os.path.join(os.path.dirname(file), name)
            parts.append(Part(word, path, content(path, file, word)))
    for part in parts:
        if part.extends and sum(each.language == part.language for each in parts) > 1:
            what = f"{os.path.basename(part.path)} extends {part.extends}, which is all there is to run"
            raise at_line(file, part.language, what, "that text alone")
        for key in ("workspace", *(("launch",) if part.language == "cuda" else ())):
            if part.extends and key in found:
                what = f"{os.path.basename(part.path)} extends {part.extends}, whose {key} is ge2's"
                raise at_line(file, key, what, "without it")
    return tuple(parts)


def several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def launches_of(file: str, found: dict[str, Any]) -> tuple[Launch, ...]:
    """Returns how each CUDA text is launched; one table serves all of them."""
    launches = []
    for each in several(found.get("launch", {})):
        for word in each:
            if word not in LAUNCH:
                near = get_close_matches(word, LAUNCH, 1, 0.0)
                raise at_line(file, "launch", f"launch has no {word!r}", near[0])
        launches.append(tuple((w, tuple(map(str, several(v)))) for w, v in each.items()))
    count = len(several(found.get("cuda", "")))
    if "cuda" in found and len(launches) not in (1, count):
        what = f"there are {len(launches)} launches of {count} texts in CUDA"
        raise at_line(file, "launch", what, "a table for each text, or one for all")
    return tuple(launches * count if len(launches) == 1 else launches)


def variants_of(file: str, found: dict[str, Any]) -> tuple[Variant, ...]:
    variants = tuple(tuple(v.items()) for v in found.get("variants", [{}]))
    if not all(type(n) is int and w.isidentifier() for each in variants for w, n in each):
        raise at_line(file, "variants", "a variant gives whole numbers to names", "[{ ROWS = 4 }]")
    return variants


def options_of(file: str, found: dict[str, Any]) -> tuple[str, ...]:
    options = tuple(found.get("options", ()))
    for each in options:
        if not each.startswith("-"):
            raise at_line(file, "options", f"{each!r} is no option", 'options = ["-DROWS=4"]')
        if not each.startswith(FOR_C) and "cuda" not in found:
            what = f"{each} is an option of NVRTC's: C is compiled in one file with other kernels"
            raise at_line(file, "options", what, f"{', '.join(FOR_C)}, or a library of your own")
    return options


def include_of(file: str, found: dict[str, Any]) -> tuple[str, ...]:
    folders = [
        os.path.normpath(os.path.join(os.path.dirname(file), n)) for n in found.get("include", ())
    ]
    for each in folders:
        if not os.path.isdir(each):
            raise at_line(file, "include", f"there is no folder {each}", 'include = ["."]')
    return tuple(folders)


def arch_of(file: str, found: dict[str, Any]) -> str:
    arch = str(found.get("arch", ""))
    if arch and not ARCH.fullmatch(arch):
        raise at_line(file, "arch", f"{arch!r} is no architecture", 'arch = "sm_90a"')
    return arch


def functions_of(file: str, found: dict[str, Any]) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Returns the path of a library or of a cubin, and its functions by language."""
    said = found.get("function")
    if said is None and not {"library", "cubin"} & found.keys():
        return "", ()
    holder = "cubin" if "cubin" in found else "library"
    for key, other in ((holder, "function"), ("function", holder)):
        if other not in found:
            raise at_line(file, key, f"it has a {key} and no {other}", f'{other} = "..."')
    plain = "cuda" if holder == "cubin" else "c"
    functions: dict[str, Any] = said if isinstance(said, dict) else {plain: said}
    for language, name in functions.items():
        if language not in ("c", "cuda") or not isinstance(name, str):
            what = f"a function is of c or cuda, not {language} = {name!r}"
            raise at_line(file, "function", what, 'function = { cuda = "launch_it" }')
        if language in found:
            what = f"a {holder} is in place of {language}"
            raise at_line(file, holder, what, "one of the two")
    if holder == "cubin":
        return "", tuple(functions.items())
    path = os.path.join(os.path.dirname(file), found["library"])
    check_library(file, path, functions)
    return path, tuple(functions.items())


def check_library(file: str, path: str, functions: Mapping[str, str]) -> None:
    """Raises InputError if a library lacks the functions. A library for a GPU is not loaded where
    there is no GPU.
    """
    import ctypes

    if "c" not in functions:
        check_symbols(file, path, "library", functions.values())
        return
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise at_line(file, "library", f"it cannot be loaded: {error}") from None
    for name in functions.values():
        if not hasattr(library, name):
            what = f"{os.path.basename(path)} has no function {name}"
            raise at_line(file, "function", what, "nm -D shows what it has")


def check_symbols(file: str, path: str, key: str, names: Iterable[str], before: str = "") -> None:
    """Raises InputError if a binary is absent or lacks one of these names."""
    try:
        with open(path, "rb") as opened:
            held = opened.read()
    except OSError as error:
        raise at_line(file, key, f"{path} cannot be read: {error.strerror}") from None
    for name in names:
        if f"{before}{name}\0".encode() not in held:
            what = f"{os.path.basename(path)} has no function {name}"
            raise at_line(file, "function", what, "cuobjdump -elf, or nm -D, shows what it has")


def cubin_of(file: str, found: dict[str, Any], functions: Mapping[str, str]) -> str:
    if "cubin" not in found:
        return ""
    if "arch" not in found:
        raise at_line(file, "cubin", "it does not say for which chip it is", 'arch = "sm_90a"')
    if "library" in found or "c" in functions:
        key = "library" if "library" in found else "function"
        raise at_line(file, key, "a cubin is the whole kernel", 'function = "its_name"')
    path = os.path.join(os.path.dirname(file), found["cubin"])
    check_symbols(file, path, "cubin", functions.values(), ".text.")
    return path


def hash_of(path: str) -> str:
    with open(path, "rb") as opened:
        return content_key(opened.read())


def with_gradient(kernel: Kernel, path: str | None) -> Kernel:
    if path is None:
        return kernel
    file = os.path.join(kernel.folder, path)
    if not os.path.isfile(file):
        raise kernel.wrong("gradient", f"there is no file {path}")
    inner = read(file, OF_GRADIENT, kernel)
    return replace(kernel, gradient=inner, key=content_key(kernel.key, inner.key))


def parsed(file: str, fix: str = f"a folder with {FILE}") -> dict[str, Any]:
    try:
        with open(file, "rb") as opened:
            return tomllib.load(opened)
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}", fix=fix) from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(
            f"{file} is no TOML: {error}", fix='name = "text", list = ["a", "b"]'
        ) from None


KINDS: Final[dict[str, type]] = {"a text": str, "a table": dict, "a number": int}


def is_kind(value: Any, kind: str) -> bool:
    """Returns True if a value is of the kind that some words describe.

    >>> is_kind(["a"], "a text, or texts"), is_kind([3], "texts"), is_kind(True, "a number")
    (True, False, False)
    """
    for each in kind.split(", or "):
        if each in KINDS and type(value) is KINDS[each]:
            return True
        of = KINDS.get(f"a {each[:-1]}")
        if of is not None and isinstance(value, list) and all(type(x) is of for x in value):
            return True
    return False


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
    """Checks that conditions and sizes are expressions, and that types are types."""
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
    for launch in kernel.launches:
        for word, sides in launch:
            for each in sides:
                tree_of(each, kernel, f"launch {word}")
    tree_of(kernel.workspace, kernel, "workspace")


def at_line(file: str, key: str, what: str, fix: str = "") -> InputError:
    """Makes an error that names the line of a key, or else the file."""
    with open(file, encoding="utf-8") as opened:
        lines = opened.read().splitlines()
    word = re.escape(key.partition(" ")[0])
    found = [n for n, line in enumerate(lines, 1) if key and re.match(rf"\s*{word}\b", line)]
    where = f"{file}:{found[0]}" if found else file
    return InputError(what, where=where, fix=fix)


def module_named(folder: str, path: str) -> Any:
    """Imports the module that `serves` names: a file of the folder, or an installed module."""
    if path.endswith(".py"):
        return module_of(os.path.join(folder, path))
    try:
        return importlib.import_module(path)
    except ImportError as error:
        raise InputError(
            f"serves names {path}: {error}", fix='"layer.py:f", "numpy:cumsum"'
        ) from None


def module_of(path: str) -> Any:
    """Loads a file as a module, once; it can import files in its folder."""
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
