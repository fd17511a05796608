"""The kernels of a program for a device: compiled and loaded, with the errors of compilers."""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextvars import copy_context
from typing import Any, Final, final

from ge2.base import compile_times
from ge2.base.compile_times import Had, finding, spent
from ge2.base.config import config
from ge2.base.errors import CompileError, CompilerTrouble
from ge2.base.record import record
from ge2.base.source import Source as Line
from ge2.base.source import of_function
from ge2.ir import GraphOp, Op
from ge2.ops.pointlike import Elementwise
from ge2.ops.user_ops import Own
from ge2.targets.cuda.device import Device
from ge2.targets.cuda.emit import CudaKernel, Source, same_code
from ge2.targets.cuda.load.nvrtc import excerpt

# -------- What a compiler says of CUDA with a user's own text in it, told of the line of the user's
# program.


FIX: Final = "other CUDA; an operation without it runs its reference"
WORDS: Final = (re.compile(r"NVRTC refuses .* for sm_\w+: (.+)"), re.compile(r"error: (.+)"))
TYPED: Final = ((r"\$t", r"\w+"), (r"\$T", r"[\w ]+"))  # what stands for a dtype


@final
@record
class Written:
    """A text of the user's, of the operation of that name, which is defined near that line, or is
    the whole of that file.
    """

    name: str
    text: str
    near: Line | None
    file: str = ""


def written(op: Op, kernel: CudaKernel | None = None) -> list[Written]:
    """The texts of the user's that are in the CUDA of an operation, or in place of it."""
    if kernel is not None and kernel.file:
        return [Written(os.path.basename(kernel.file), kernel.text, None, kernel.file)]
    if isinstance(op, GraphOp):
        return [each for g in op.graphs() for e in g.eqns for each in written(e.op)]
    if isinstance(op, Own) and op.files:
        return [Written(op.name, text, None, file) for text, file in op.files]
    if isinstance(op, Own) and op.cuda:
        return [Written(op.name, text, op.defined) for text in (op.cuda, op.helpers)]
    if isinstance(op, Elementwise) and op.edition:
        return [Written(op.name, op.lowering.helpers, of_function(op.ufunc))]
    return []


def blamed(error: CompileError, name: str, source: str, texts: Sequence[Written]) -> CompileError:
    """The error, or one that says which line of the user's it is.

    `source` is that of kernel `name`.
    """
    if not texts or isinstance(error, CompilerTrouble):
        return error
    said = str(error)
    words = next((found[1] for each in WORDS if (found := each.search(said))), said.split("\n")[0])
    found = re.search(rf"\b{name}\.cu[:(](\d+)(?::\d+: error|\)|$)", said, re.MULTILINE)
    place = (
        None
        if found is None
        else next(filter(None, (placed(w, source, int(found[1])) for w in texts)), None)
    )
    if place is None:
        own = " and ".join(dict.fromkeys(w.name for w in texts))
        rest = "\n".join(line for line in said.split("\n") if not line.startswith("  try"))
        return CompileError(f"the CUDA of {name}, with {own} of your own in it: {rest}", fix=FIX)
    whose, where = place
    if "." in whose:  # a file, in place of a kernel of ge2
        return CompileError(f"{whose} does not compile: {words}", where=where)
    return CompileError(
        f"the CUDA of {whose}, an operation of your own: {words}", where=where, fix=FIX
    )


def placed(each: Written, source: str, line: int) -> tuple[str, str] | None:
    """Whose text a line of a source belongs to, and where that stands;
    None if it is in no line of it.
    """
    lines = each.text.splitlines()
    first = next((n for n, words in enumerate(lines) if words.strip()), None)
    begin = None if first is None else begins(source, lines[first:])
    if begin is None or first is None or not begin <= line <= begin + len(lines) - first:
        # of a template, lines that are printed as they are
        shown = source.splitlines()[line - 1].strip() if each.file else ""
        n = next((n for n, words in enumerate(lines) if shown and words.strip() == shown), -1)
    else:
        n = min(first + line - begin, len(lines) - 1)  # behind the last line stands a brace of ours
    if n < 0:
        return None
    at = beginning(each)
    if at is None:
        return each.name, f"line {n + 1} of its text\n{excerpt(each.text, n + 1)}"
    file, start = at
    whole = "".join(linecache.getlines(file))
    return each.name, f"{os.path.basename(file)}:{start + n}\n{excerpt(whole, start + n)}"


def begins(source: str, lines: Sequence[str]) -> int | None:
    """The number of the line of a source with which a user's lines begin, indented and typed."""
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    wanted = "\n".join(rf"[ \t]*{typed(each.strip())}" for each in lines)
    found = re.search(rf"^{wanted}", source, re.MULTILINE)
    return None if found is None else source.count("\n", 0, found.start()) + 1


def typed(line: str) -> str:
    text = re.escape(line)
    for sign, words in TYPED:
        text = text.replace(re.escape(sign.replace("\\", "")), words)
    return text


def beginning(each: Written) -> tuple[str, int] | None:
    """The file and the line where a text begins, if the file has it letter by letter."""
    if each.file:
        return each.file, 1
    if each.near is None:
        return None
    lines = linecache.getlines(each.near.file)
    whole, above = "".join(lines), len("".join(lines[: each.near.line - 1]))
    at = whole.find(each.text, above)
    if at < 0:  # a decorator that is called further down
        at = whole.rfind(each.text, 0, above)
    return None if at < 0 else (each.near.file, whole.count("\n", 0, at) + 1)


# -------- The kernels of a program for a device: numbered by their code, compiled, and loaded.


@final
class ProgramKernels:
    """The sources of a program's kernels, equal code once, in the order of their numbers.

    `owned`: what texts of the user's may be in, by the names of kernels; `prices`: the seconds in which a
    compiler makes each; `had`: how the code of each was had; `code`: its bytes. `unused`: the numbers
    of those that nothing launches any more, which are not compiled.
    """

    __slots__ = (
        "_met", "code", "had", "numbers", "owned", "prices", "sources", "texts", "unused",
    )  # fmt: skip

    def __init__(self) -> None:
        self.sources: dict[str, Source] = {}
        self.numbers: dict[str, int] = {}
        self.owned: dict[str, tuple[Op, CudaKernel]] = {}
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
            own = self.owned.get(f"{source.name}_{n}")
            texts = () if own is None else written(*own)
            raise blamed(error, source.name, text, texts) from None


def source_of(kernel: CudaKernel) -> Source:
    return Source(kernel.kind.replace(" ", "_"), kernel)
