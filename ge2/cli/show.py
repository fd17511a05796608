"""`ge2 show` and `ge2 compile`: what a function becomes, printed or written to files."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, cast, final

from ge2.base.arrays import expecting
from ge2.base.config import config
from ge2.base.errors import Ge2Error
from ge2.base.record import record
from ge2.base.source import count_words, size_words, table
from ge2.cli import Look, add_executor, add_function, add_output, deliver, named
from ge2.cli.kernels import placed
from ge2.compile import compile_graph, how_to_make, stand_in
from ge2.compile.executable import Executable
from ge2.program.records import PLACES, KernelRecord, cut, places
from ge2.program.records import kernels as records
from ge2.targets.cuda.assemble import CudaAssembler
from ge2.targets.cuda.emit import Source
from ge2.targets.cuda.emulator import OfflineDevice, limits_of
from ge2.targets.cuda.limits import slow_products
from ge2.targets.cuda.load.gpu import current_gpu
from ge2.targets.cuda.load.nvrtc import Binary, Order, compile_all

# -------- `ge2 show FILE.py:function --args ...`: what a function becomes, from its graph to the
# kernels it runs.


WIDTH = 100
TITLES: Final = {"c": "the C file", "cuda": "the CUDA files", "python": "what Python runs"}
USUAL: Final = ("graph", "widened", "passes", "regions", "kernels")
# fmt: off
DATA: Final = (
    "name", "kind", "function", "calls", "region", "equations", "lines", "read", "written", "operations",
    "language", "source", "slow",
)
# fmt: on
ROW: Final = ("name", "type", "kind", "nbytes", "born", "dies", "at", "reuse", "line")


@record
class Part:
    """A heading and what stands below it."""

    title: str
    text: str


@record
class Shown:
    """The output of a stage: as text, and for programs."""

    parts: tuple[Part, ...]
    data: Any


def show_arguments(parser: argparse.ArgumentParser) -> None:
    add_function(parser)
    option, stages = parser.add_argument, (*STAGES, "all")
    option("--stage", choices=stages, action="append", help="show this alone; may be repeated")
    option("--all", action="store_true", help="of choices: families of other operations by name")
    add_executor(parser, "c", "blocked", "emulator")
    add_output(parser)


def run_show(options: argparse.Namespace) -> int:
    with config.using(executor=options.executor or config.executor):
        look, there = placed(options)
        stages = STAGES | {"choice": partial(choice, every=options.all)}
        with there():
            shown = {name: stages[name](look) for name in chosen(options.stage)}
    if options.json:
        text = json.dumps({name: each.data for name, each in shown.items()}, indent=1)
    else:
        parts = [part for each in shown.values() for part in each.parts]
        text = "\n\n".join(f"{f' {part.title} ':=^{WIDTH}}\n{part.text}" for part in parts)
    deliver(text, options.output)
    return 0


def chosen(stages: list[str] | None) -> tuple[str, ...]:
    if not stages:
        return USUAL
    return tuple(STAGES) if "all" in stages else tuple(s for s in STAGES if s in stages)


def graph(look: Look) -> Shown:
    text = str(look.graph())
    return Shown((Part("graph, as traced", text),), text)


def widened(look: Look) -> Shown:
    """The lines at which float32 becomes float64; nothing where there are none."""
    lines = look.traced().widened
    return Shown((Part("float32 becomes float64", "\n".join(lines)),) if lines else (), list(lines))


def passes(look: Look) -> Shown:
    found = list(after_each(look))
    last = found[-1][1] if found else ""
    parts = tuple(
        Part(f"after {name}", words_of(text, changed, last)) for name, text, changed in found
    )
    return Shown(
        parts, [{"name": name, "graph": text, "changed": changed} for name, text, changed in found]
    )


def words_of(text: str, changed: bool, last: str) -> str:
    """A graph that is not shown elsewhere."""
    return "as before" if not changed else "the regions" if text == last else text


def after_each(look: Look) -> Iterator[tuple[str, str, bool]]:
    """Each pass of the pipeline, the graph after it, and whether that is another."""
    entry, device = look.traced().entry, current_gpu() if look.on_gpu else stand_in()
    before = str(entry.graph)
    how = how_to_make(entry.title, device, writes=entry.writes, iotas=entry.iotas())
    for name, graph in how.stages(entry.graph):
        text = str(graph)
        yield name, text, text != before
        before = text


def regions(look: Look) -> Shown:
    text = look.lowered().as_text()
    return Shown((Part("regions, after the last pass", text),), text)


def kernels(look: Look) -> Shown:
    lowered = look.lowered()
    found = lowered.kernels
    named = {f"{kernel.name} {kernel.slow}" for kernel in found}
    others = [words for words in lowered.executable.slow if words not in named]
    parts = [
        Part("kernels", "\n".join([str(found), *others])),
        *(Part(k.name, str(k).rstrip()) for k in found),
    ]
    return Shown(tuple(parts), [kernel_data(k) for k in found])


def kernel_data(kernel: Any) -> dict[str, Any]:
    return {name: getattr(kernel, name) for name in DATA}


def choice(look: Look, every: bool = False) -> Shown:
    """The choice of each kernel, loop and library call: the refusals before it, what was taken, and
    what could have been; families that serve other operations by name, or counted.
    """
    found = look.lowered().choices
    parts = (Part(f"choice of {name}", each.in_words(every)) for name, each in found.items())
    return Shown(
        tuple(parts), {name: each.in_words(every=True).splitlines() for name, each in found.items()}
    )


def source(look: Look) -> Shown:
    executable = look.lowered().executable
    texts = {language: text for language in TITLES if (text := executable.text(language))}
    return Shown(
        tuple(Part(TITLES[language], text.strip()) for language, text in texts.items()), texts
    )


def plan(look: Look) -> Shown:
    lowered = look.lowered()
    memory, cost = lowered.memory_analysis(), lowered.cost_analysis()
    bytes_ = {
        name: getattr(memory, name) for name in ("arguments", "outputs", "donated", "arena", "kept")
    }
    rows = [(name, size_words(n)) for name, n in bytes_.items()]
    rows += [
        (name, (size_words if "bytes" in name else count_words)(int(n))) for name, n in cost.items()
    ]
    steps = lowered.executable.report()
    parts = (Part("steps", steps), Part("memory and work of a call", table(rows)))
    return Shown(parts, {"steps": steps.splitlines(), "memory": bytes_, "cost": cost})


def memory(look: Look) -> Shown:
    timeline = look.lowered().memory_timeline()
    rows = [{name: getattr(row, name) for name in ROW} for row in timeline.rows]
    return Shown(
        (Part("memory, step by step", str(timeline)),), {"arena": timeline.arena, "rows": rows}
    )


STAGES: dict[str, Callable[[Look], Shown]] = {
    "graph": graph,
    "widened": widened,
    "passes": passes,
    "regions": regions,
    "kernels": kernels,
    "choice": choice,
    "source": source,
    "plan": plan,
    "memory": memory,
}


# -------- `ge2 compile FILE.py:function --args ... -o DIR`:
# CUDA kernels and their cubins, with no GPU at hand.


HEAD: Final = (
    "kernel",
    "threads",
    "registers",
    "spills",
    "stack",
    "shared",
    "cubin",
    "compiled in",
    "of",
)
FIGURES: Final = ("threads", "registers", "spills", "stack", "shared", "asked")
ELSEWHERE: Final = {
    "matmul": "matrix product",
    "hosted": "loop or branch",
    "library": "step by a library",
}
MANY: Final = {"loop or branch": "loops or branches", "step by a library": "steps by a library"}


@final
@record
class Compiled:
    """A kernel: source, cubin, and the user's lines.

    Sizes in bytes; `asked`: of shared memory at launch.

    `slow` says what makes it slow on GPUs of the architecture that could be otherwise.
    """

    name: str
    source: str
    binary: Binary
    lines: str
    threads: int
    registers: int
    spills: int
    stack: int
    shared: int
    asked: int
    slow: str = ""


def compile_arguments(parser: argparse.ArgumentParser) -> None:
    add_function(parser)
    option = parser.add_argument
    option(
        "--arch",
        default="sm_90a",
        help="what to compile for: sm_80, sm_100, ...; sm_90a unless told",
    )
    option("--json", action="store_true", help="print JSON and nothing else")
    option("-o", "--output", metavar="DIR", help="folder for the kernels (.cu) and cubins")


def run_compile(options: argparse.Namespace) -> int:
    with expecting(options.arch):
        graph = named(options).graph()
        executable = compile_graph(graph, device=OfflineDevice(limits_of(options.arch)))
    kernels = compiled(executable, options.arch)
    written = write(kernels, options.output) if options.output else []
    if options.json:
        slow = slow_words(kernels, executable)
        data = {
            "arch": options.arch,
            "kernels": list(map(as_data, kernels)),
            "files": written,
            "slow": slow,
        }
        print(json.dumps(data, indent=1))
    else:
        print("\n".join(report(kernels, executable, options)))
    return 0


# -------------------------------------------------------------------------------------- the kernels


def compiled(executable: Executable, arch: str) -> list[Compiled]:
    """The kernels of a program and of the loops and branches in it, each once."""
    found: dict[str, tuple[Source, KernelRecord | None]] = {}
    for assembler in assemblers(executable):
        known = {each.function: each for each in records(assembler.made)}
        for n, (code, source) in enumerate(assembler.kernels.sources.items()):
            record = known.get(f"{source.name}_{n}")
            # a loop's own program knows the lines of its iterations
            if record is not None or code not in found:
                found[code] = source, record
    binaries = compile_all([Order(source.text(), arch) for source, _ in found.values()])
    return [
        one(n, *each, binary)
        for n, (each, binary) in enumerate(zip(found.values(), binaries, strict=True))
    ]


def assemblers(executable: Executable) -> Iterator[CudaAssembler]:
    """The text of a program, and of those in it."""
    assert executable.device is not None, "it is no program for a GPU"
    yield cast(CudaAssembler, executable.written(run=False))
    for branches in executable.branches.values():
        for branch in branches:
            yield from assemblers(branch)


def lines_of(source: Source, known: KernelRecord | None) -> str:
    """The user's lines, as the program has them of a step; not of a copy, or
    a second kernel of a step.
    """
    if known is None:
        return "a copy" if source.name == "pointwise" else "the one above"
    return cut(places(known.sources), PLACES, ", ")


def one(number: int, source: Source, known: KernelRecord | None, binary: Binary) -> Compiled:
    (usage,) = binary.kernels
    kernel, figures = source.kernel, (usage.registers, usage.spills, usage.stack, usage.shared)
    name = f"{source.name}_{number}"
    slow = known.slow if known else ""
    return Compiled(
        name,
        source.text(),
        binary,
        lines_of(source, known),
        kernel.block,
        *figures,
        kernel.shared,
        slow,
    )


def write(kernels: list[Compiled], folder: str) -> list[str]:
    """Writes two files a kernel, and returns their paths. Ge2Error if it cannot."""
    files: dict[str, bytes] = {}
    for kernel in kernels:
        files |= {
            f"{kernel.name}.cu": kernel.source.encode(),
            f"{kernel.name}.cubin": kernel.binary.cubin,
        }
    try:
        os.makedirs(folder, exist_ok=True)
        for name, content in files.items():
            with open(os.path.join(folder, name), "wb") as file:
                file.write(content)
    except OSError as error:
        raise Ge2Error(
            f"{folder} cannot be written: {error.strerror}", fix="-o another folder"
        ) from error
    return [os.path.join(folder, name) for name in files]


# ---------------------------------------------------------------------------------------- the words


def report(
    kernels: list[Compiled], executable: Executable, options: argparse.Namespace
) -> Iterator[str]:
    if kernels:
        yield table([HEAD, *map(row, kernels)], right=frozenset(range(1, len(HEAD) - 1)))
        yield ""
    where = f", written to {options.output}" if options.output else ""
    yield f"{counted(len(kernels), 'kernel')} for {options.arch}{where}"
    if spilling := [kernel.name for kernel in kernels if kernel.spills]:
        yield f"registers are spilled by {', '.join(spilling)}"
    yield from slow_words(kernels, executable)
    others = {words: executable.program.count(kind) for kind, words in ELSEWHERE.items()}
    ours = [k for k in executable.kernels if k.kind == "small product" and "/" not in k.name]
    others[ELSEWHERE["matmul"]] -= len(ours)
    if any(others.values()):
        yield f"besides: {', '.join(counted(n, words) for words, n in others.items() if n)}"


def slow_words(kernels: list[Compiled], executable: Executable) -> list[str]:
    """The computations in float64 where that is slow; matrix products, and those of loops, come
    last.
    """
    own = [f"{kernel.name} {kernel.slow}" for kernel in kernels if kernel.slow]
    limits = executable.device.limits  # type: ignore[union-attr]
    found = [
        words
        for assembler in assemblers(executable)
        for words in slow_products(assembler.program, limits)
    ]
    return [*own, *dict.fromkeys(found)]


def counted(count: int, word: str) -> str:
    """
    >>> counted(1, "kernel"), counted(2, "matrix product"), counted(2, "loop or branch")
    ('1 kernel', '2 matrix products', '2 loops or branches')
    """
    if count == 1:
        return f"1 {word}"
    return f"{count} {MANY.get(word, f'{word}s')}"


def row(kernel: Compiled) -> tuple[str, ...]:
    shared = f"{kernel.shared} + {kernel.asked}" if kernel.asked else str(kernel.shared)
    time = f"{kernel.binary.seconds * 1e3:.0f} ms" if kernel.binary.seconds else "kept"
    numbers = (kernel.threads, kernel.registers, kernel.spills, kernel.stack)
    size = size_words(len(kernel.binary.cubin))
    return (kernel.name, *map(str, numbers), shared, size, time, kernel.lines)


def as_data(kernel: Compiled) -> dict[str, Any]:
    figures = {name: getattr(kernel, name) for name in FIGURES}
    size = len(kernel.binary.cubin)
    return {
        "name": kernel.name,
        "lines": kernel.lines,
        **figures,
        "cubin": size,
        "source": kernel.source,
    }
