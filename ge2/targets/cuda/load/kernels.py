"""The kernels of a program for a device: compiled, loaded, and joined to what
launches them in groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from ge2.base import compile_times
from ge2.base.compile_times import Had, finding, spent
from ge2.base.config import config
from ge2.base.errors import CompileError
from ge2.targets.cuda.emit.file import Source
from ge2.targets.cuda.load.compile_errors import blamed

if TYPE_CHECKING:
    from ge2.targets.cuda.assemble import CudaAssembler


def load(assembler: CudaAssembler, offsets: Mapping[str, int]) -> None:
    """Compiles and loads the kernels, and makes of each group what launches it.

    `offsets`: of what lies in the arena.
    """
    sources = list(assembler.sources.values())
    with spent("compile"):
        compile(assembler, sources)
    with spent("load"):
        modules = [blaming(assembler, assembler.device.module, n, s) for n, s in enumerate(sources)]
        assembler.code = sum(len(m.binary.cubin) for m in modules if hasattr(m, "binary"))
        kernels = [m.get_function(source.name) for source, m in zip(sources, modules, strict=True)]
        join(assembler, kernels, offsets)


def join(assembler: CudaAssembler, kernels: list[Any], offsets: Mapping[str, int]) -> None:
    spans = {name: (offsets[name], life.nbytes) for name, life in assembler.needs.items()}
    donors = {b.name: b.donor for b in assembler.program.buffers.values() if b.donor}
    raw = frozenset(assembler.arguments) - assembler.named
    callers = None if assembler.within is not None else (raw, assembler.names["ready"])
    for group in (found for found in assembler.groups if found.launches):
        assembler.names[group.name] = group.run(assembler.device, kernels, spans, callers, donors)
        assembler.launched.append(assembler.names[group.name])


def compile(assembler: CudaAssembler, sources: Sequence[Source]) -> None:
    """Compiles kernels at once, each under the settings of here and now."""
    tally = compile_times.current()
    if tally is not None:
        tally.asked += len(sources)
    with ThreadPoolExecutor(max(min(len(sources), config.thread_count()), 1)) as pool:
        asked = [
            pool.submit(copy_context().run, prepared, assembler, n, s)
            for n, s in enumerate(sources)
        ]
        for each in as_completed(asked):
            if tally is not None and each.exception() is None:
                tally.kernels.append(each.result())
    assembler.had += [each.result() for each in asked]


def prepared(assembler: CudaAssembler, n: int, source: Source) -> Had:
    """Compiles a kernel; how its code was had."""
    with finding() as found:
        blaming(assembler, lambda text: assembler.device.prepare([text]), n, source)
    return compile_times.had(f"{source.name}_{n}", found)


def blaming(assembler: CudaAssembler, work: Callable[[str], Any], n: int, source: Source) -> Any:
    """The work on a kernel's text. A CompileError says which line of the user's it is of."""
    text = assembler.kernel_texts[n]
    try:
        return work(text)
    except CompileError as error:
        raise blamed(
            error, source.name, text, assembler.owned.get(f"{source.name}_{n}", ())
        ) from None
