"""The kernels of a program for a device: numbered by their code, compiled, and loaded."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextvars import copy_context
from typing import Any, final

from ge2.base import compile_times
from ge2.base.compile_times import Had, finding, spent
from ge2.base.config import config
from ge2.base.errors import CompileError
from ge2.targets.cuda.device import Device
from ge2.targets.cuda.emit.file import Source, same_code
from ge2.targets.cuda.emit.kernel import CudaKernel
from ge2.targets.cuda.load.compile_errors import Written, blamed


@final
class ProgramKernels:
    """The sources of a program's kernels, equal code once, in the order of their numbers.

    `owned`: texts of the user's in kernels, by their names; `prices`: the seconds in which a
    compiler makes each; `had`: how the code of each was had; `code`: its bytes. `unused`: the numbers
    of those that nothing launches any more, which are not compiled.
    """

    __slots__ = (
        "_met", "code", "had", "numbers", "owned", "prices", "sources", "texts", "unused",
    )  # fmt: skip

    def __init__(self) -> None:
        self.sources: dict[str, Source] = {}
        self.numbers: dict[str, int] = {}
        self.owned: dict[str, list[Written]] = {}
        self.prices: dict[int, float] = {}
        self.texts: list[str] = []
        self.had: list[Had] = []
        self.code = 0
        self.unused: set[int] = set()
        # by the identity of a kernel, which many steps may have
        self._met: dict[int, tuple[CudaKernel, int, Source]] = {}

    def number(self, kernel: CudaKernel) -> tuple[int, Source]:
        """The number of a kernel's source, and the first source of that code."""
        met = self._met.get(id(kernel))
        if met is None:
            source = source_of(kernel)
            code = same_code(source)
            number = self.numbers.setdefault(code, len(self.numbers))
            met = kernel, number, self.sources.setdefault(code, source)
            self._met[id(kernel)] = met
        return met[1:]

    def name(self, kernel: CudaKernel) -> tuple[int, str]:
        """The number of a kernel's source, and the kernel's name in the program."""
        number, first = self.number(kernel)
        return number, f"{first.name}_{number}"

    def write(self) -> list[str]:
        """The texts of all sources."""
        self.texts = [source.text() for source in self.sources.values()]
        return self.texts

    def load(self, device: Device) -> list[Any]:
        """The kernels, compiled and loaded."""
        with spent("compile"):
            self.compile(device)
        with spent("load"):
            modules = {n: self.blaming(device.module, n, s) for n, s in self.used()}
            self.code = sum(len(m.binary.cubin) for m in modules.values() if hasattr(m, "binary"))
            found = {n: modules[n].get_function(s.name) for n, s in self.used()}
            return [found.get(n) for n in range(len(self.sources))]

    def used(self) -> list[tuple[int, Source]]:
        """The sources of what is launched, with their numbers."""
        return [(n, s) for n, s in enumerate(self.sources.values()) if n not in self.unused]

    def missing_seconds(self, device: Device) -> float:
        """The time for the kernels that are yet to be compiled, on as many threads as there are."""
        texts = [self.texts[n] for n, _ in self.used()]
        return self.seconds * device.missing(texts) / max(len(texts), 1)

    @property
    def seconds(self) -> float:
        """The time for all kernels, if nobody has compiled one yet."""
        prices = [self.prices[n] for n in self.prices if n not in self.unused]
        return sum(prices) / max(min(len(prices), config.thread_count()), 1)

    def compile(self, device: Device) -> None:
        """Compiles kernels at once, each under the settings of here and now."""
        tally, count = compile_times.current(), len(self.used())
        if tally is not None:
            tally.asked += count

        def prepared(n: int, source: Source) -> Had:
            with finding() as found:
                self.blaming(lambda text: device.prepare([text]), n, source)
            return compile_times.had(f"{source.name}_{n}", found)

        with ThreadPoolExecutor(max(min(count, config.thread_count()), 1)) as pool:
            asked = {
                n: pool.submit(copy_context().run, prepared, n, s)
                for n, s in sorted(self.used(), key=lambda each: -len(self.texts[each[0]]))
            }  # the longest first: nobody waits for one that begins when all others are done
            for each in as_completed(asked.values()):
                if tally is not None and each.exception() is None:
                    tally.kernels.append(each.result())
        self.had += [asked[n].result() for n in sorted(asked)]

    def blaming(self, work: Callable[[str], Any], n: int, source: Source) -> Any:
        """The work on a kernel's text. A CompileError says which line of the user's it is of."""
        text = self.texts[n]
        try:
            return work(text)
        except CompileError as error:
            own = self.owned.get(f"{source.name}_{n}", ())
            raise blamed(error, source.name, text, own) from None


def source_of(kernel: CudaKernel) -> Source:
    return Source(kernel.kind.replace(" ", "_"), kernel)
