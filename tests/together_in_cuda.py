"""Many CUDA sources as one C++ file for the CPU: a compilation a batch instead of one a kernel.

Each source is in a namespace of its own, with its kernel under a name of its own; the headers come
before all of them. Sources that declare shared memory are compiled one by one, since its size is
checked; what headers declare is not counted, since here it is that of all kernels. If the file does
not compile, each source is compiled by itself, so that the error names the one that is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, final

import pytest

from ge2.base.compiler import Library
from ge2.base.errors import CompilerTrouble
from ge2.targets.cuda import emulator
from ge2.targets.cuda.emulator import ShimKernel, ShimModule, shim
from ge2.targets.cuda.emulator.shim import COMMENTS, KERNEL, Entry, compiled, entries

INCLUDE = re.compile(r'^#include "(ge2/\w+\.cuh)"$', re.MULTILINE)
MODULE, STATIC = "ge2_shim_module_of", emulator._static


@final
@dataclass(eq=False)
class Part:
    """The library of one source, as `ShimModule` sees it."""

    whole: Together
    number: int
    source: str

    @property
    def library(self) -> Library:
        return self.whole.library or compiled(self.source, False)

    @property
    def key(self) -> str:
        return self.library.key

    def address(self, symbol: str) -> int:
        ours = symbol.startswith("ge2_shim_kernel_") and self.whole.library is not None
        return self.library.address(f"{symbol}_{self.number}" if ours else symbol)


@final
@dataclass(eq=False)
class Later:
    """A kernel that is looked for when it is first launched."""

    module: ShimModule
    entry: Entry
    made: ShimKernel | None = None

    def __call__(self, *args: Any, **more: Any) -> None:
        if self.made is None:
            self.made = ShimKernel(self.module, self.entry)
        self.made(*args, **more)


@final
@dataclass
class Together:
    """The file in the making."""

    parts: dict[str, Part] = field(default_factory=dict)  # by what counts of a source
    lock: Lock = field(default_factory=Lock)
    made: Library | None = None
    tried: bool = False

    def take(self, source: str, watched: bool) -> Library | Part:
        text = COMMENTS.sub(r"\1 ", source)
        if watched or self.tried or "__shared__" in text:
            return compiled(source, watched)
        with self.lock:
            return self.parts.setdefault(text, Part(self, len(self.parts), source))

    def static(self, module: int) -> int:
        """Bytes of shared memory that count: none of the kernels that are compiled here."""
        ours = self.made is not None and module == self.made.address(MODULE)
        return 0 if ours else STATIC(module)

    def text(self) -> str:
        sources = [part.source for part in self.parts.values()]
        kernels = ["GE2_SHIM_MODULE"]
        for n, text in enumerate(sources):
            for entry in entries(text):
                kernels += [
                    f"using part{n}::{entry.name}_{n};",
                    f"GE2_SHIM_KERNEL({entry.name}_{n})",
                ]
        before = '#include "shim/shim.h"', "namespace {", *one_file(sources), "}"
        return "\n".join([*before, *kernels, ""])

    @property
    def library(self) -> Library | None:
        """All sources, compiled; None if they do not compile together."""
        with self.lock:
            if not self.tried and self.parts:
                self.tried = True
                try:
                    self.made = library_of(self.text())
                except CompilerTrouble:
                    self.made = None
            return self.made


def one_file(sources: list[str]) -> list[str]:
    """The headers of all sources, then each source in a namespace, its kernels renamed."""
    headers = dict.fromkeys(name for text in sources for name in INCLUDE.findall(text))
    parts = [f'#include "{name}"' for name in headers]
    for n, text in enumerate(sources):
        body = KERNEL.sub(lambda found, n=n: renamed(found, n), INCLUDE.sub("", text))
        parts.append(f'namespace part{n} {{\n#line 1 "part{n}.cu"\n{body}\n}}')
    return parts


def renamed(found: re.Match[str], n: int) -> str:
    end = found.end("name") - found.start()
    return f"{found[0][:end]}_{n}{found[0][end:]}"


def library_of(text: str) -> Library:
    flags = (*shim.FLAGS, *shim.QUICK, *shim._include(), *shim._script(), *shim.LIBRARIES)
    return shim.library(text, "together", flags, shim._digest(), symbol=MODULE)


@contextmanager
def together_in_cuda() -> Iterator[Together]:
    """Programs for the shim that are built inside share a library, which the
    first launch compiles.
    """
    file = Together()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emulator, "compiled", file.take)
        patch.setattr(emulator, "ShimKernel", Later)
        patch.setattr(emulator, "_static", file.static)
        yield file
