"""Many compiled programs as one C file: a compilation a batch instead of one a program.

Everything but the call of the compiler is what every user's program goes through: the text of each
program is written as always; then its functions are renamed, equal kernels become one, and the
first call compiles all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final

import pytest

from ge2.base.compiler import Library, library
from ge2.base.config import config
from ge2.base.detect import toolchain
from ge2.targets.c import linked
from ge2.targets.c.emit.file import EACH_TYPE
from ge2.targets.c.launcher import make_launcher
from tests.exhaustive import SAMPLING

needs_compiler = pytest.mark.skipif(toolchain() is None, reason="no C compiler")

TYPES = re.compile(r"#define GE2_(SOME_TYPES|HAS_\w+)")
HEADER = re.compile(r'#include "ge2/(\w+)\.h"')
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
# of a large file
PART = re.compile(r"^(?:#(?:if|endif).*|GE2_SOONER)$|^GE2_SHARED void \w+\([^)]*\);$", re.MULTILINE)
CALL = re.compile(
    r"\b\w+(?=\()|(?<=ge2_share\()\w+|(?<=^ {4}ge2_share\(\n {8})\w+|(?<=^ {8}ge2_share\(\n {12})\w+",
    re.MULTILINE,
)
FUNCTION = re.compile(
    r"^(?:(?:static|GE2_(?:FN|SINGLE|CALLER|CHOOSING|PANEL_TILE|CALLED|CALLED_TILE)) (?:void|int)|int) "
    r"(\w+)\(.*?^}$",
    re.DOTALL | re.MULTILINE,
)


@final
@dataclass(eq=False)
class Part:
    """The library of one program, as `ge2.targets.c.linked` sees it."""

    whole: Together
    number: int
    key: str
    cached: bool = False
    seconds: float = 0.0
    nbytes: int = 0  # it has no file of its own

    def address(self, symbol: str) -> Callable[[], int]:
        return lambda: self.whole.library.address(f"part{self.number}_{symbol}")


@final
@dataclass
class Together:
    """The file in the making."""

    count: int = 0
    types: dict[str, None] = field(default_factory=dict)  # lines that say which headers have
    every: bool = False  # whether a program has the functions of all of them
    head: dict[str, None] = field(default_factory=dict)  # includes, then what products need
    products: dict[str, None] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)  # by text without their name
    runs: list[str] = field(default_factory=list)
    made: Library | None = None
    flags: tuple[str, ...] = ()
    more: tuple[str, ...] = ()

    def take(
        self,
        source: str,
        name: str,
        flags: tuple[str, ...] = (),
        symbol: str = "ge2_run",
        alone: bool = False,
    ) -> Part:
        assert self.made is None, "it is compiled already"
        assert not self.count or flags == self.flags, "programs of one file are compiled alike"
        self.flags = flags
        text = PART.sub("", COMMENT.sub("", source)).replace("GE2_SHARED void", "static void")
        names: dict[str, str] = {}
        for found in FUNCTION.finditer(text):
            code = CALL.sub(lambda call: names.get(call[0], call[0]), found[0])
            if code.startswith(("static", "GE2_")):
                nameless = code.replace(f" {found[1]}(", " (", 1)
                names[found[1]] = self.kernels.setdefault(nameless, f"kernel{len(self.kernels)}")
            else:
                self.runs.append(
                    code.replace(f"int {found[1]}(", f"int part{self.count}_{found[1]}(", 1)
                )
        for line in FUNCTION.sub("", text).splitlines():
            place = self.head if line.startswith("#") else self.products
            place = self.types if TYPES.match(line) else place
            place.update({line: None} if line.strip() else {})
        self.every |= "GE2_SOME_TYPES" not in text and not EACH_TYPE.isdisjoint(
            HEADER.findall(text)
        )
        self.count += 1
        return Part(self, self.count - 1, f"{id(self)}-{self.count}")

    def text(self) -> str:
        kernels = [text.replace(" (", f" {name}(", 1) for text, name in self.kernels.items()]
        types = () if self.every else self.types
        return "\n".join([*types, *self.head, *self.products, *kernels, *self.runs, "int ge2_run;"])

    @property
    def library(self) -> Library:
        if self.made is None:
            with config.using(compile_timeout=0):
                self.made = library(self.text(), "together", (*self.flags, *self.more))
        return self.made

    def later(
        self, address: Callable[[], int], *args: Any, **more: Any
    ) -> Callable[..., list[Any]]:
        made: list[Callable[..., list[Any]]] = []

        def run(*arrays: Any) -> list[Any]:
            if not made:
                made.append(make_launcher(address(), *args, **more | {"owner": self.library}))
            return made[0](*arrays)

        return run


@contextmanager
def together(level: str = "") -> Iterator[Together]:
    """Executables that are built inside share one library, which their first call compiles.

    `level`: of optimisation, to take a half or a fifth of the time; under
    `--all` as a user's programs are.
    """
    file = Together(more=(level,) if level and not SAMPLING.every else ())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linked, "library", file.take)
        patch.setattr(linked, "make_launcher", file.later)
        yield file
