"""A jitted function looked at without being called: its graph, its kernels,
what was remembered and why.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ge2.base.compile_times import CompileTimes, Spent
from ge2.base.errors import InputError
from ge2.base.pytree import Structure, structure
from ge2.base.pytree import map_structure as tree_map
from ge2.base.record import record
from ge2.base.source import Printed, Source, counted, here
from ge2.base.tracebacks import hides
from ge2.dispatch.cache import Entry
from ge2.dispatch.cache_report import signature_text, widened
from ge2.dispatch.signature import Static
from ge2.ir import Evaluate, Graph, GraphOp, ShapeDtypeStruct, current
from ge2.ops.graphs.loops import RepeatLoop, ScanLoop, ScanSaving

if TYPE_CHECKING:
    from ge2.compile.catalog import Memory
    from ge2.compile.executable import Executable
    from ge2.compile.memory import Remat
    from ge2.program.records import Kernels
    from ge2.program.timeline import Timeline


class Stage:
    """The facts of a signature however far it was taken, under the names they have in JAX."""

    __slots__ = ()
    entry: Entry

    def __repr__(self) -> str:
        """A line: how far it was taken, and for what arguments."""
        given = signature_text(self.entry.names, self.entry.key.leaves)
        outs = ", ".join(str(a.type) for a in self.entry.graph.outputs)
        return f"<{type(self).__name__.lower()} {self.fun_name}({given}) -> {outs or 'nothing'}>"

    @property
    def fun_name(self) -> str:
        return self.entry.title

    @property
    def args_info(self) -> Any:
        """(args, kwargs) with a `ShapeDtypeStruct` for each array; static
        arguments are left out.
        """
        keys = self.entry.key.leaves
        args, kwargs = self.entry.key.structure.unflatten(keys)
        shown = (
            tuple(x for x in args if type(x) is not Static),
            {k: x for k, x in kwargs.items() if type(x) is not Static},
        )
        return tree_map(struct_of, shown, is_leaf=is_key)

    @property
    def in_tree(self) -> Structure:
        return structure(self.args_info)

    @property
    def out_tree(self) -> Structure:
        return self.entry.structure

    @property
    def out_info(self) -> Any:
        """The result with a `ShapeDtypeStruct` for each array."""
        types = self.entry.result_types()
        return self.entry.structure.unflatten(
            [ShapeDtypeStruct(t.shape, t.dtype, t.weak) for t in types]
        )


def is_key(x: Any) -> bool:
    """True if it is the key of a leaf rather than a container of them."""
    return isinstance(x, type) or (
        type(x) is tuple and len(x) in (2, 3) and isinstance(x[1], np.dtype)
    )


def struct_of(key: Any) -> Any:
    """The array or number that a key stands for; anything else as it is."""
    if not is_key(key):
        return key
    return (
        ShapeDtypeStruct((), np.dtype(key), True)
        if isinstance(key, type)
        else ShapeDtypeStruct(*key[:2])
    )


LANGUAGES: Final = ("c", "cuda", "python")
STAGES: Final = ("graph", "jaxpr", "kernels", "plan", "memory", *LANGUAGES)


@final
@record
class Lowered(Stage):
    """A signature's program: the graph after all passes, and its kernels."""

    entry: Entry
    call: Callable[..., Any]

    @property
    def executable(self) -> Executable:
        return self.entry.ready()

    @property
    def kernels(self) -> Kernels:
        """The kernels that it runs, in order: printed, a table; each of them printed, its code."""
        return self.executable.kernels

    @property
    def choices(self) -> dict[str, object]:
        """The choice for each kernel, then for each loop, branch and library call: by its name.

        Printed, a choice has the refusals before it in words, and what could have been taken too;
        families that serve other operations are counted, and `in_words(every=True)` names them.
        """
        return self.executable.choices

    @property
    def regions(self) -> int:
        return self.executable.regions

    @hides
    def as_text(self, dialect: str = "jaxpr") -> str:
        """The program as text: "graph" as traced, "jaxpr" after all passes, "kernels"
        one by one, "plan" the steps of a call, "memory" its arrays, "c" or "cuda" what
        is compiled, "python" what runs around it.

        Raises InputError for any other word, and for a language that it is not written in.
        """
        return as_text(self, dialect)

    def memory_analysis(self) -> Memory:
        """The bytes that a call needs."""
        return self.executable.memory_analysis()

    def memory_timeline(self) -> Timeline:
        """Each array of a call: its bytes, the steps at which it is born and dies, whose memory it
        takes and the line that makes it. Printed, a table.
        """
        return self.executable.memory_timeline()

    @property
    def remat(self) -> Remat | None:
        """The values that it computes again to fit in its `memory_limit`: printed, a table; None
        without a limit.
        """
        return self.executable.remat

    def cost_analysis(self) -> dict[str, float]:
        """The operations and bytes of a call: "flops", "transcendentals", "bytes accessed"."""
        return self.executable.cost_analysis()

    @hides
    def compile(self) -> Compiled:
        self.entry.ready()
        return Compiled(self.entry, self.call)

    def __str__(self) -> str:
        return self.as_text()


@final
@record
class Compiled(Stage):
    """A function of arguments of one signature, ready to run."""

    entry: Entry
    call: Callable[..., Any]

    @hides
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the jitted function, static arguments given again or left out; InputError for
        arguments of another signature.
        """
        return self.call(self.entry, args, kwargs)

    @property
    def lowered(self) -> Lowered:
        return Lowered(self.entry, self.call)

    @property
    def kernels(self) -> Kernels:
        return self.lowered.kernels

    @hides
    def as_text(self, dialect: str = "jaxpr") -> str:
        return self.lowered.as_text(dialect)

    def memory_analysis(self) -> Memory:
        return self.lowered.memory_analysis()

    def memory_timeline(self) -> Timeline:
        return self.lowered.memory_timeline()

    def cost_analysis(self) -> dict[str, float]:
        return self.lowered.cost_analysis()

    def __str__(self) -> str:
        return self.as_text()


def as_text(lowered: Lowered, stage: str) -> str:
    executable = lowered.executable
    written = [name for name in STAGES if name not in LANGUAGES or executable.text(name)]
    code = next((name for name in LANGUAGES if name in written), "jaxpr")
    if stage not in STAGES:
        near = get_close_matches(str(stage).lower(), written, 1) or [code]
        what = f"a program has no text {stage!r}: it has {', '.join(written)}"
        raise InputError(what, where=here(), fix=repr(near[0]))
    if stage not in written:
        raise InputError(f"{executable.name} runs no {stage}", where=here(), fix=repr(code))
    if stage in LANGUAGES:
        return executable.text(stage)
    return TEXTS[stage](lowered)


TEXTS: Final[dict[str, Callable[[Lowered], str]]] = {
    "graph": lambda lowered: str(lowered.entry.graph),
    "jaxpr": lambda lowered: lowered.executable.as_text(),
    "kernels": lambda lowered: "\n\n".join(map(str, (lowered.kernels, *lowered.kernels))),
    "plan": lambda lowered: lowered.executable.report(),
    "memory": lambda lowered: str(lowered.memory_timeline()),
}


@final
@record
class Traced(Stage):
    """A signature's graph as traced; arrays met in the trace and closed-over
    ones are its first inputs.
    """

    entry: Entry
    call: Callable[..., Any]

    @property
    def jaxpr(self) -> Graph:
        """Printed, its text."""
        return self.entry.graph

    @property
    def widened(self) -> tuple[str, ...]:
        """A sentence for each line at which values of float32 or less become
        float64 or complex128.
        """
        return widened(self.entry.graph, self.entry.input_names)

    @hides
    def lower(self) -> Lowered:
        """The program and the kernels, compiled now unless within a trace."""
        if type(current()) is Evaluate:
            self.entry.ready()
        return Lowered(self.entry, self.call)

    def __str__(self) -> str:
        """The graph; if the function writes arguments, which ones: those come
        first among the outputs.
        """
        writes = self.entry.writes
        return str(self.jaxpr) if writes is None else f"{self.jaxpr}\n{writes}"


@final
@record
class Report(Printed):
    """The report of the last call."""

    title: str
    traced: bool  # for this call: the signature was new
    # its code was new to this process: compiled, written, or found in the cache on disk
    compiled: bool
    how: str
    regions: int
    kernels: tuple[str, ...]
    op_by_op: int  # steps that are one operation of a library
    compile_times: CompileTimes  # what the first call of the signature spent; printed, a table
    # Python loops that are compiled as loops: how many iterations, and where they are
    rolled: tuple[str, ...] = ()
    # what is computed in float64 on a GPU that is slow at it, a sentence each
    slow: tuple[str, ...] = ()
    launches: tuple[str, ...] = ()  # on a GPU: of each group of launches, how its calls went so far
    # where values of float32 or less become float64, a sentence a line
    widened: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()  # the arguments that a call changes in place
    written: str = ""  # the same in words, with the lines that do it

    @property
    def bill(self) -> CompileTimes:
        """`compile_times`, by its earlier name."""
        return self.compile_times

    def __str__(self) -> str:
        regions, steps = counted(self.regions, "region"), counted(self.op_by_op, "step")
        text = f"{self.title}: {self.how}; {regions}, {steps} op by op"
        written = (self.written,) if self.written else ()
        kernels = repeated(self.kernels)
        more = *written, *self.rolled, *kernels, *self.slow, *self.launches, *self.widened
        return "\n".join([text, *(f"  {line}" for line in more)])


def repeated(kernels: Sequence[str]) -> list[str]:
    """The names of kernels, those of one text in a line.

    >>> repeated(["pointwise_0", "copy_1", "copy_1.2", "copy_1.3"])
    ['pointwise_0', 'copy_1, 3 times']
    """
    counts = Counter(re.sub(r"\.\d+$", "", name) for name in kernels)
    return [name if n == 1 else f"{name}, {n} times" for name, n in counts.items()]


def report(title: str, entry: Entry) -> Report:
    """The report of the last call, which was of this signature."""
    executable, traced = entry.ready(), entry.hits == 1
    how = how_made(entry, executable) if traced else "nothing traced, nothing compiled"
    compiled = traced and "nothing compiled" not in how
    scans = sources_of_scans(entry.graph)
    rolled = tuple(
        f"a Python loop of {eqn.op.length} rounds as one loop, at {eqn.source}"
        for eqn in executable.graph.eqns
        if isinstance(eqn.op, RepeatLoop)
        or (isinstance(eqn.op, ScanLoop) and eqn.source not in scans)
    )
    times = (entry.spent or Spent()).compile_times(title, executable.capture)
    writes = entry.writes
    more = executable.slow, executable.launches, widened(entry.graph, entry.input_names)
    written = (writes.written, str(writes)) if writes else ((), "")
    return Report(
        title, traced, compiled, how, executable.regions, executable.kernel_names, executable.op_by_op, times,
        rolled, *more, *written,
    )  # fmt: skip


def sources_of_scans(graph: Graph) -> set[Source | None]:
    """The lines of the scans that were written as such."""
    found: set[Source | None] = set()
    for eqn in graph.eqns:
        if isinstance(eqn.op, ScanLoop | ScanSaving):
            found.add(eqn.source)
        elif isinstance(eqn.op, GraphOp):
            found.update(*map(sources_of_scans, eqn.op.graphs()))
    return found


def how_made(entry: Entry, executable: Executable) -> str:
    """The things that the first call of a signature made, in words."""
    if not entry.fresh:
        return "traced, nothing compiled: an equal graph was compiled before"
    return f"traced, {executable.how}"
