"""The executable of a call: a Program with its kernels, as a function of arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import field, replace
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, final

from ge2.base.command import Provisional
from ge2.base.compile_times import Had, kernels_words, spent
from ge2.base.config import config
from ge2.base.detect import excuse, toolchain
from ge2.base.errors import CompileError, CompilerTrouble, Ge2Error, TooLong
from ge2.base.record import mutable
from ge2.choice import Decisions, deciding, keep
from ge2.choice.choose import Made as Choices
from ge2.choice.choose import made_once
from ge2.codegen.environment import cached_pages
from ge2.compile import catalog
from ge2.compile.catalog import Memory, Reference, Runner, Watched, inner_of, manner, runner
from ge2.compile.pipeline import TUNING, Tuning
from ge2.compile.writes import Writing
from ge2.ir import Graph, Op
from ge2.ops.graphs.region import Region, Resident
from ge2.ops.pointlike import Elementwise
from ge2.ops.user_ops import Own
from ge2.passes.context import dump
from ge2.program import Inner, Program, Step
from ge2.program.assembler import Assembler, Built
from ge2.program.records import KernelRecord, Kernels, Made, kernels, names
from ge2.program.timeline import Timeline
from ge2.targets.c.assemble import CAssembler
from ge2.trace.writes import Writes

if TYPE_CHECKING:
    from ge2.compile.catalog import Shortage, Smaller
    from ge2.compile.memory import Remat
    from ge2.program.assembler import Meter
    from ge2.targets.cuda.assemble.loops import LoopBody
    from ge2.targets.cuda.device import Device

SUFFIX = {"c": "c", "cuda": "cu", "python": "py"}


def region_text(kernel: KernelRecord) -> str:
    lines = f" of {', '.join(kernel.lines)}" if kernel.lines else ""
    return f"{kernel.name} ({kernel.kind}){lines}\n{kernel.region}"


def own_names(op: Op) -> list[str]:
    """The operations with C of the user's in a step."""
    if isinstance(op, Region):
        return [name for e in op.graph.eqns for name in own_names(e.op)]
    own = (isinstance(op, Own) and op.c) or (isinstance(op, Elementwise) and op.edition)
    return [op.name] if own else []


def library_name(step: Step) -> str:
    """A step without a kernel: a product that the library goes on with by its product, since kernels of
    ours have the name of both.
    """
    root = step.eqn.op.root if isinstance(step.eqn.op, Region) else None
    return step.name if root is None else root.op.name


def looks(graph: Graph) -> Iterator[str]:
    """The looks of a graph: operations and types, in order."""
    yield " ".join(map(str, (v.type for v in graph.inputs)))
    for eqn in graph.eqns:
        yield eqn.op.name
        yield " ".join(str(v.type) for v in eqn.outs)


@final
@mutable
class Executable:
    """A compiled graph: a function of arrays in the order of its inputs, which
    returns a list of arrays.

    The kernels are written and compiled when it is first called or asked for them.
    """

    name: str
    program: Program
    executor: str
    threads: int
    # of the conds among the steps
    branches: dict[int, tuple[Executable, ...]] = field(default_factory=dict)
    donated: tuple[bool, ...] = ()
    writes: Writes | None = None  # the inputs that those are carried back to
    device: Device | None = None  # that runs CUDA; None: the processor
    remat: Remat | None = None  # what it computes again, if its memory is limited
    watched: Graph | None = None  # as traced, where the results of a call are looked at for NaN
    limited: bool = False  # whether it has a limit on its memory
    smaller: Smaller | None = None  # what it could compute again to fit in so many bytes
    part: bool = False  # whether another program runs it
    within: Op | None = None  # the loop or the branch that does
    # on a GPU: what launches its kernels, in groups
    launched: list[Any] = field(default_factory=list)
    # likewise: what is done between groups
    splits: list[tuple[int, str]] = field(default_factory=list)
    had: tuple[Had, ...] = ()  # on a GPU: how the code of its kernels was had
    ranged: bool = False  # whether its steps are ranges in a profiler's time line, on a GPU
    tuning: Tuning = TUNING
    scope: str = ""  # the user's name for where the loop or the branch is
    meter: Meter | None = None  # what times its steps, if somebody wants to know
    label: str = ""  # what its files begin with, where the setting `dump` asked for them
    run: Runner | None = None  # once it is built
    chosen: Choices = field(default_factory=dict, repr=False)  # by problem, once it is written
    decided: Decisions | None = field(default=None, repr=False)  # on a GPU, until it is built
    remade: Callable[[], Executable] | None = None  # the same, by what is chosen now
    blocked: Callable[[], Executable] | None = None  # of a program in C: the same as blocked NumPy
    fallen: list[str] = field(default_factory=list)  # which kernels did not serve, and why
    _how: str = ""
    _code: int = 0  # bytes of what was compiled
    _text: Assembler | None = None
    _inner: Inner | None = None
    _loop_body: LoopBody | None = None
    _lock: RLock = field(default_factory=RLock, repr=False)

    def __call__(self, *arrays: Any) -> list[Any]:
        try:
            return (self.run or self.build())(*arrays)
        except MemoryError:
            if not self.lessened():
                raise
        return self(*arrays)

    def lessened(self) -> bool:
        """True if it can be called again, of kernels with less scratch, when there was no memory."""
        from ge2.compile.fallback import lessened  # hardly ever needed

        found = self.executor != "reference" and lessened(self)
        return (
            found and not any(self.donated) and self.writes is None
        )  # which may be changed by now

    def unbuild(self) -> None:
        """Has it built anew when it is called next."""
        with self._lock:
            self.run = self._text = self._inner = self._loop_body = None

    def build(self) -> Runner:
        """The runner of the program; the first thread to ask makes it."""
        with self._lock:
            if self.run is None:
                run = (
                    Reference(self.graph, self.device)
                    if self.executor == "reference"
                    else self.assembled()
                )
                run = run if self.watched is None else Watched(run, self.watched, self.name)
                self.run = run if self.writes is None else self.writing(run, self.writes)
                # it knows of a better way soon
                if self.writes is None and isinstance(self.run, Provisional):
                    self.run.told = self.settle
            return self.run

    def writing(self, run: Runner, writes: Writes) -> Runner:
        """It as what changes its arguments when it has succeeded."""
        if self.device is None:
            return Writing(run, writes)
        from ge2.targets.cuda.device import ready  # a GPU's

        return Writing(run, writes, partial(ready, self.device))

    def settle(self, run: Runner) -> None:
        """Calls go straight to what runs it for good."""
        self.run = run

    @property
    def assembler(self) -> Assembler:
        """The text of the program, for people: it is written again, for few ask
        and many signatures live.
        """
        with self._lock:
            self.build()
            return self.unbuilt()

    def unbuilt(self) -> Assembler:
        """The text as it is known before anything is compiled."""
        with self._lock:
            if self._text is None:
                self._text = self.written(run=False)
            return self._text

    def made(self, assembler: Assembler) -> list[Made]:
        """The kernels of a text in order; on a GPU also those of loops and
        branches, which have their own.
        """
        if self.device is None:
            return assembler.made
        number = {id(step.eqn): step.number for step in self.program.steps}
        found = [(number[id(each.eqn)], each) for each in assembler.made]
        for n, inside, branch in self.inside():
            found += [(n, each.within(inside)) for each in branch.made(branch.unbuilt())]
        return [each for _, each in sorted(found, key=lambda pair: pair[0])]

    def inside(self) -> Iterator[tuple[int, str, Executable]]:
        """The programs of loops and branches, each with its step and its name."""
        for n, branches in self.branches.items():
            before = f"{self.program.steps[n].name}_{n}"
            for i, branch in enumerate(branches):
                yield n, before if len(branches) == 1 else f"{before}.{i}", branch

    @property
    def choices(self) -> dict[str, object]:
        """The choice for each kernel by its name, then for other steps: loops and branches as
        launches, calls of a library. Printed, a choice has the refusals before it in words.
        """
        if self.executor == "reference":
            return {}
        # without a GPU the text may become another when it is compiled
        made = self.made(self.assembler if self.device is None else self.unbuilt())
        named = zip(names(each.name for each in made), made, strict=True)
        found = {name: each.choice for name, each in named if each.choice is not None}
        return found | self.without_kernel()

    def without_kernel(self) -> dict[str, object]:
        assembler, steps = self.unbuilt(), self.program.steps
        kernels = {id(each.eqn) for each in assembler.made}
        numbers = [n for n in assembler.choices if id(steps[n].eqn) not in kernels]
        found = {f"{library_name(steps[n])}_{n}": assembler.choices[n] for n in numbers}
        for _, inside, branch in self.inside() if self.device is not None else ():
            each = branch.without_kernel()
            found |= {f"{inside}/{name}": choice for name, choice in each.items()}
        return found

    def dump(self, assembler: Assembler) -> None:
        """Writes regions, plan and code, each a file."""
        for language, text in assembler.texts.items():
            dump(f"{self.label}-program.{SUFFIX[language]}", text)
        found = kernels(assembler.made)
        for kernel in found:
            dump(f"{self.label}-{kernel.name}.{SUFFIX[kernel.language]}", str(kernel))
        dump(f"{self.label}-regions.txt", "\n\n".join([str(found), *map(region_text, found)]))
        dump(
            f"{self.label}-plan.txt",
            catalog.plan_text(self.program, assembler.arena.offsets(), assembler.arena.nbytes),
        )

    def assembled(self) -> Runner:
        """The runner of the program, the next candidates in place of kernels that do not compile;
        in C without a compiler that works, as blocked NumPy.
        """
        try:
            assembler = self.served()
        except CompilerTrouble as trouble:
            if self.program.target != "c":
                raise
            if not isinstance(trouble, TooLong):  # of which the user has been warned
                self._blame(trouble)
                excuse(trouble)
            assert self.blocked is not None, "each program in C has one of blocked NumPy"
            other = self.blocked()  # of the graph before any pass: C has regions that NumPy lacks
            self.program, self.branches = other.program, other.branches
            assembler = self.written()
        keep(self.decided or [])
        built = assembler.built
        self._how, self._code = self.words(built), built.code
        self.launched, self.splits = built.launched, built.splits
        if self.label and config.dump:
            self.dump(assembler)
        if self.part:
            self._inner, self._loop_body = inner_of(assembler), built.loop_body
        return runner(assembler)

    def served(self) -> Assembler:
        """The text of kernels that compile, and for which there is memory."""
        try:
            return self.surely_written()
        except (CompileError, MemoryError) as error:
            from ge2.compile.fallback import fallen  # hardly ever needed

            if not fallen(self, error):
                raise
        return self.served()

    def words(self, built: Built) -> str:
        """The way in which a program was compiled, in words; on a GPU, of programs that it runs
        too.
        """
        if self.device is None:
            return built.how or "written as blocked NumPy"
        self.had = (
            *built.had,
            *(each for found in self.branches.values() for b in found for each in b.had),
        )
        if not self.had:
            return "nothing compiled: it has no kernels"
        words = kernels_words(self.had, self.device.limits.name)
        return (
            words
            if any(each.how != "memory" for each in self.had)
            else f"nothing compiled, {words}"
        )

    def written(self, run: bool = True) -> Assembler:
        with (
            spent("render"),
            made_once(self.chosen),
            deciding(self.decided),
            cached_pages(self.name, self.program.target, *looks(self.program.graph)),
        ):
            return self.assemble(run)

    def assemble(self, run: bool) -> Assembler:
        meter = self.meter if run else None
        if self.device is not None:
            from ge2.targets.cuda.assemble import CudaAssembler
            from ge2.targets.cuda.assemble.steps import Around

            within = self.within if self.part else None
            failed = self.shortage.error if run and not self.part else None
            return CudaAssembler(
                self.program, self.name, self.device, self.branches, run, meter,
                Around(within, self.ranged, self.scope, failed, self.limited),
            ).build()  # fmt: skip
        inner = {n: [branch.inner() for branch in found] for n, found in self.branches.items()}
        borrowed = self.limited and self.part
        return CAssembler(
            self.program, self.name, self.threads, inner, borrowed, run, meter, self.tuning.c
        ).build()

    @property
    def shortage(self) -> Shortage:
        """The facts for an error, if there is no memory for it."""
        from ge2.compile.catalog import Shortage

        return Shortage(self.name, self.program, self.device, self.branches, self.smaller)

    def surely_written(self) -> Assembler:
        """The text, with what it needs on the device: again when memory was
        given back, if there was none.
        """
        try:
            return self.written()
        except MemoryError as error:
            scratch = self.device.scratch if self.device is not None else None
            if self.part or scratch is None or isinstance(error, Ge2Error):
                raise
        scratch.spare()
        try:
            return self.written()
        except MemoryError as error:
            raise self.shortage.error(error) from error

    def inner(self) -> Inner:
        """It as part of another program. That of one C function alone has scratch of its own."""
        run = self.build()
        return self._inner or Inner.alone(run)

    def loop_body(self, run: bool) -> LoopBody:
        """It as an iteration on a device; if it is not to `run`, to be written of alone."""
        if not run:
            return self.written(run=False).built.loop_body  # type: ignore[no-any-return]
        self.build()
        assert self._loop_body is not None
        return self._loop_body

    def _blame(self, trouble: CompilerTrouble) -> None:
        """CompileError if a compiler that is well otherwise refuses a program
        with a user's own C in it.
        """
        own = dict.fromkeys(name for step in self.program.steps for name in own_names(step.eqn.op))
        if not own or toolchain() is None:
            return
        said = "\n".join(line for line in str(trouble).split("\n") if not line.startswith("  try"))
        what = f"the C of {self.name}, with {' and '.join(own)} of your own in it: {said}"
        raise CompileError(
            what, fix="other C; GE2_EXECUTOR=blocked runs the reference instead"
        ) from None

    @property
    def graph(self) -> Graph:
        """The graph after all passes."""
        return self.program.graph

    @property
    def kernels(self) -> Kernels:
        """The kernels that it runs, in order; none where it runs op by op."""
        return Kernels() if self.executor == "reference" else kernels(self.made(self.assembler))

    @property
    def kernel_names(self) -> tuple[str, ...]:
        """Of the kernels, whose texts nobody asks for."""
        if self.executor == "reference":
            return ()
        return tuple(names(each.name for each in self.made(self.assembler)))

    @property
    def slow(self) -> tuple[str, ...]:
        """The computations in float64 on a GPU that is slow at that: a sentence a kernel or
        product.
        """
        if self.device is None or self.executor == "reference":
            return ()
        if not self.device.limits.slow_in_double:
            return ()
        own = [f"{kernel.name} {kernel.slow}" for kernel in self.kernels if kernel.slow]
        return tuple(dict.fromkeys([*own, *self.slow_products(self.device)]))

    def slow_products(self, device: Device) -> list[str]:
        """The products among those, loops and branches included."""
        from ge2.targets.cuda.limits import slow_products

        inner = [branch for found in self.branches.values() for branch in found]
        own = [*slow_products(self.program, device.limits)]
        return own + [words for branch in inner for words in branch.slow_products(device)]

    @property
    def regions(self) -> int:
        """The number of fused regions that it runs."""
        return sum(
            step.kind == "kernel" and isinstance(step.eqn.op, Region | Resident)
            for step in self.program.steps
        )

    @property
    def op_by_op(self) -> int:
        """The number of steps that are a single operation of a library."""
        return self.program.count("kernel", "matmul", "library", "copy") - self.regions

    def as_text(self) -> str:
        return str(self.graph)

    def source(self) -> str:
        """The text of the program that each call runs: C, then what Python does around it."""
        return self.assembler.source

    def text(self, language: str) -> str:
        """The part of the source in "c", "cuda" or "python"; empty if there is none."""
        return self.assembler.texts.get(language, "")

    def memory_analysis(self) -> Memory:
        results = self.tuning.c.results
        if self.executor == "reference":
            return catalog.memory(self.program, 0, results=results)
        own = self.assembler.arena.nbytes
        inner = [(n, branch) for n, found in self.branches.items() for branch in found]
        memories = [branch.memory_analysis() for _, branch in inner]
        apart = sum(m.arena - self.lent(n, b) for m, (n, b) in zip(memories, inner, strict=True))
        found = catalog.memory(self.program, own + apart, memories, self.remat, results)
        found = replace(found, code=self._code + sum(m.code for m in memories))
        return replace(found, kept=0) if self.limited and self.part else found

    def memory_timeline(self) -> Timeline:
        if self.executor == "reference":
            return Timeline(self.program, (), 0)
        arena = self.assembler.arena
        return Timeline(self.program, arena.rooms(), arena.nbytes)

    def lent(self, n: int, branch: Executable) -> int:
        """The bytes of this arena that a program which step `n` runs has for its own."""
        hosted = self.program.steps[n].kind == "hosted"
        return branch.loop_body(False).nbytes if hosted else branch.inner().nbytes

    def cost_analysis(self) -> dict[str, float]:
        return catalog.cost_analysis(self.program)

    @property
    def how(self) -> str:
        """The way in which it was made ready to run."""
        if self.executor == "reference":
            return "nothing compiled: it runs op by op"
        self.build()
        return self._how

    def report(self) -> str:
        """A line for each step: number, kind, name."""
        lines = [f"{n:4} {step.kind:8} {step.name}" for n, step in enumerate(self.program.steps)]
        counts = Counter(step.kind for step in self.program.steps)
        total = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
        return "\n".join([*lines, total, *self.launches, *self.fallen])

    @property
    def capture(self) -> float:
        """On a GPU: the seconds spent on graphs of launches so far."""
        return float(sum(run.seconds for run in self.launched))

    @property
    def launches(self) -> tuple[str, ...]:
        """On a GPU: of each group of launches, in order, how its calls went so far; and what is
        between them, which no graph can hold.
        """
        found = []
        for n in range(len(self.launched) + 1):
            found += [words for after, words in self.splits if after == n]
            found += [f"launches_{n}: {manner(run)}" for run in self.launched[n : n + 1]]
        return tuple(found)
