"""A program as launches: the Python text that each call runs on a device, and the kernels it launches.

What no kernel of ours serves is computed by the array module where it can (`by_arrays`), and else by the
reference on the CPU: right, and slow, and the report says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, final

import numpy as np

from ge2.backends.cpu.load import execute
from ge2.backends.cpu.quiet import hush, restore
from ge2.backends.device import Device, Module, address, download, empty, kept_as, upload, view
from ge2.backends.product import Wanted
from ge2.base.config import config
from ge2.base.dtypes import HALF, SHORT
from ge2.base.errors import CompileError
from ge2.base.pause import collector_paused
from ge2.base.record import mutable, record
from ge2.codegen.c.layout import Layout, plain
from ge2.codegen.c.text import Argument, Operand
from ge2.codegen.cuda.chip import Chip
from ge2.codegen.cuda.file import Source
from ge2.codegen.cuda.gemm import by_blas
from ge2.codegen.cuda.kernel import CudaKernel, bare
from ge2.codegen.cuda.partial import Kernels
from ge2.codegen.environment import render
from ge2.codegen.values import held
from ge2.codegen.view import Line
from ge2.ir import ArrayType, Atom, Eqn, Literal, Op, Var
from ge2.kernels.catalog import select
from ge2.kernels.cuda import Cuda, copying
from ge2.kernels.kernel import Family, Problem
from ge2.kernels.products import CudaProduct
from ge2.ops.constant import Constant
from ge2.ops.dot import DotGeneral
from ge2.ops.loops import RepeatLoop, ScanLoop
from ge2.passes.host import compute
from ge2.runtime.blame import Written, blamed, written
from ge2.runtime.by_arrays import by_arrays, serves
from ge2.runtime.cost import Cost, bytes_behind, computing, cost
from ge2.runtime.doubles import slow
from ge2.runtime.hosted import Inner, hosted
from ge2.runtime.launching import Asked, At, Group, Pending
from ge2.runtime.memory import Lifetime, Plan, plan
from ge2.runtime.meter import Call, Meter
from ge2.runtime.program import Buffer, Program, Step
from ge2.runtime.records import Made
from ge2.runtime.rounds import Turn, loose, rounds, spare
from ge2.runtime.scopes import Part, ranged, scopes_of, title
from ge2.runtime.unrolled import MOST, Placed, Round

if TYPE_CHECKING:
    from ge2.runtime.executable import Executable

TEMPLATE = "numpy/launches.py.jinja"


@final
@record
class Text:
    """What the template prints."""

    parameters: str
    arena: int
    lent: bool  # whether there is memory for it
    run: tuple[Line, ...]
    results: str


ALIGNMENT = 256  # of arrays in the arena: what a library asks of its scratch
ON_DEVICE = ("kernel", "copy", "matmul", "view")  # kinds of steps
PRECISION = {"tf32": "tf32", "bf16": "bf16"}  # any other is IEEE


@final
@record
class Spot:
    """A place, and what its address is known to be a multiple of; 0: of all that matters."""

    at: At
    multiple: int


@final
@mutable
class GpuDriver:
    """Writes the text of a program for a device, and collects what its names stand for."""

    program: Program
    device: Device
    title: str
    branches: Mapping[int, Sequence[Executable]]
    run: bool = True  # whether the program is to run; else it is written for people, and nothing is compiled
    within: Op | None = None  # the loop or the branch whose program it is
    ranged: bool = False  # whether each step is a range in a profiler's time line
    scope: str = ""  # the user's name for what is around the program
    meter: Meter | None = None  # what times each launch, if somebody wants to know
    names: dict[str, Any] = field(default_factory=dict)
    body: list[Line | Group] = field(default_factory=list)
    made: list[Made] = field(default_factory=list)
    needs: list[tuple[str, Lifetime]] = field(default_factory=list)  # arrays of the arena
    apart: bool = False  # whether the next launch begins a group
    named: set[str] = field(default_factory=set)  # arrays that the text names elsewhere than in launches
    begun: set[str] = field(default_factory=set)
    numbers: set[Var] = field(default_factory=set)  # strong ones that kernels are handed as such
    sources: dict[str, Source] = field(default_factory=dict)  # by their text without comments
    numbered: dict[str, int] = field(default_factory=dict)  # likewise
    owned: dict[str, list[Written]] = field(default_factory=dict)  # texts of the user's in kernels
    plan: Plan | None = None
    texts: dict[str, str] = field(default_factory=dict)
    direct: Callable[..., list[Any]] | None = None
    launched: list[Any] = field(default_factory=list)  # what launches each group
    compiling: str = ""
    narrowings: dict[np.dtype, str] = field(default_factory=dict)  # names of what makes numbers of a dtype
    loose: dict[str, int] = field(default_factory=dict)  # arrays among the elements of stacks
    turn: Turn | None = None

    @property
    def nbytes(self) -> int:
        return 0 if self.plan is None else self.plan.nbytes

    @property
    def source(self) -> str:
        return "\n".join(self.texts.values())

    @collector_paused
    def build(self) -> GpuDriver:
        device = self.device
        self.names.update({dtype.name: kept_as(device, dtype) for dtype in SHORT})
        self.names.update(
            empty=device.xp.ndarray, array=device.xp.array, ready=partial(ready, device), at=address,
            view=view, upload=partial(upload, device),
        )  # fmt: skip
        if self.within is not None:
            stacked = loose(self.within, self.program.graph)
            self.loose = {self.name(v): n for v, n in stacked.items()}
        self.numbers = self.handed_over()
        for buffer in self.program.buffers.values():
            if buffer.storage == "arena":
                self.needs.append((buffer.name, Lifetime(buffer.type.nbytes, buffer.first, buffer.last)))
        parts = [self.part(step) for step in self.program.steps]
        self.plan = plan([life for _, life in self.needs], ALIGNMENT)
        offsets = self.offsets()
        for name, offset in offsets.items():
            self.names[f"{name}_offset"] = offset
        written = self.in_ranges(parts) if self.ranged else [line for p in self.body for line in lines(p)]
        results = [self.result(a, i) for i, a in enumerate(self.program.graph.outputs)]
        text = Text(
            self.parameters(),
            self.plan.nbytes,
            self.within is not None,
            (*self.start(), *written),
            ", ".join(results),
        )
        inner = [] if self.run else [b for each in self.branches.values() for b in each]
        texts = [s.text() for s in self.sources.values()]
        self.texts["cuda"] = "\n".join([*texts, *(b.written(run=False).texts["cuda"] for b in inner)])
        self.texts["python"] = render(TEMPLATE, text)
        if self.run:
            self.load(offsets)
            execute(self.texts["python"], self.names)
        run: Any = self.names.get("run")
        if self.within is not None:
            self.turn = self.turned(run)
            run = partial(self.turn.alone, device)
        if not self.run:
            return self
        self.direct = current_first(device, run if self.silent() else partial(quietly, run))
        return self

    def silent(self) -> bool:
        """Whether NumPy computes nothing, and so cannot warn."""
        numbers = any(v.type.weak for v in self.program.graph.inputs)
        return not numbers and all(step.kind in ON_DEVICE for step in self.program.steps)

    def parameters(self) -> str:
        """What the function takes: if another program runs it the memory and the places, then the arrays."""
        outputs = self.program.graph.outputs
        places = [self.name(outputs[i]) for i in self.placed()] if self.within is not None else []  # type: ignore[arg-type]
        memory = ["memory"] if self.within is not None else []
        return ", ".join([*memory, *places, *map(self.name, self.program.graph.inputs)])

    def start(self) -> list[Line]:
        """Arguments as kernels read them; who runs a part sees to it."""
        if self.within is not None:
            return []
        return [Line(f"{name} = ready({name})") for name in self.arguments if name in self.named]

    @property
    def arguments(self) -> list[str]:
        """The arrays that the program is called with."""
        return [self.name(v) for v in self.program.graph.inputs if not v.type.weak]

    def placed(self) -> list[int]:
        """The results for which there is an array beforehand."""
        outputs = self.program.graph.outputs
        return [
            i
            for i, a in enumerate(outputs)
            if isinstance(a, Var) and self.buffer(a).storage == "output" and a not in outputs[:i]
        ]

    def turned(self, run: Any) -> Turn:
        """The program as a part of another one."""
        outputs, placed = self.program.graph.outputs, self.placed()
        again = [(i, j) for i in placed for j in range(i + 1, len(outputs)) if outputs[i] is outputs[j]]
        types = tuple(a.type for a in outputs)
        made = tuple(types[i] for i in placed)
        return Turn(self.nbytes, tuple(placed), made, tuple(again), run, self.as_round(placed))

    def as_round(self, placed: Sequence[int]) -> Round | None:
        """The program as launches, if it is nothing else."""
        graph, groups = self.program.graph, self.groups
        weak = any(a.type.weak for a in (*graph.inputs, *graph.outputs))
        if weak or len(groups) != len(self.body) or any(g.before or g.numbers for g in groups):
            return None
        names = [self.name(graph.outputs[i]) for i in placed]  # type: ignore[arg-type]
        results = [self.end(a) for a in graph.outputs]
        if None in results:
            return None
        launches = [each for group in groups for each in group.launches]
        parameters = [*names, *map(self.name, graph.inputs)]
        return Round(parameters, launches, [*self.sources.values()], self.offsets(), results, self.names)  # type: ignore[arg-type]

    def end(self, a: Atom) -> str | tuple[At, ArrayType] | None:
        """A result by the name of a parameter, or by its place; None for one that is in another order."""
        if isinstance(a, Literal):
            return None
        buffer, layout = self.buffer(a), self.layout(a)
        if buffer.base is None and buffer.storage != "arena":
            return buffer.name
        if layout.strides != plain(a.type.shape).strides:
            return None
        return self.at(a, layout.offset * a.type.dtype.itemsize), a.type

    def load(self, offsets: Mapping[str, int]) -> None:
        """Compiles the kernels, those of a program at once, each under the settings of here and now."""
        sources = list(self.sources.values())
        with ThreadPoolExecutor(max(min(len(sources), config.thread_count()), 1)) as pool:
            asked = [pool.submit(copy_context().run, self.compiled, n, s) for n, s in enumerate(sources)]
            modules = [each.result() for each in asked]
        kernels = [m.get_function(source.name) for source, m in zip(sources, modules, strict=True)]
        raw = frozenset(self.arguments) - self.named
        callers = None if self.within is not None else (raw, self.names["ready"])
        for group in (found for found in self.groups if found.launches):
            self.names[group.name] = group.run(self.device, kernels, offsets, callers)
            self.launched.append(self.names[group.name])
        self.compiling = f"{len(sources)} kernels for {self.device.limits.name}"

    def compiled(self, n: int, source: Source) -> Module:
        text = source.text()
        try:
            return self.device.module(text)
        except CompileError as error:
            raise blamed(error, source.name, text, self.owned.get(f"{source.name}_{n}", ())) from None

    def offsets(self) -> dict[str, int]:
        """Where in the arena each array lies, by its name."""
        assert self.plan is not None
        return dict(zip((name for name, _ in self.needs), self.plan.offsets, strict=True))

    # -- names

    def buffer(self, var: Var) -> Buffer:
        return self.program.buffers[var]

    def name(self, var: Var) -> str:
        return self.buffer(var).name

    def layout(self, v: Var) -> Layout:
        return self.program.layouts.get(v) or plain(v.type.shape)

    def given(self, value: Any, prefix: str) -> str:
        """A name for something made beforehand."""
        name = f"{prefix}{len(self.names)}"
        self.names[name] = value
        return name

    # -- the text

    @property
    def groups(self) -> list[Group]:
        return [part for part in self.body if isinstance(part, Group)]

    def emit(self, *lines: Line) -> None:
        """Lines that come after all that was launched."""
        self.body += lines

    def group(self) -> Group:
        """That which the next launch is part of."""
        last = self.body[-1] if self.body else None
        if isinstance(last, Group) and not self.apart and not (self.meter and last.launches):
            return last
        self.apart = False
        found = Group(len(self.groups))
        self.body.append(found)
        return found

    # -- steps

    def part(self, step: Step) -> Part:
        """A step's lines; if it is to be a range, with the names of that one and of those around it."""
        first, before, self.apart = len(self.body), len(self.made), self.ranged
        self.step(step)
        if not self.ranged:
            return Part((), "", ())
        found = tuple(line for part in self.body[first:] for line in lines(part))
        if step.kind in ("host", "view") or isinstance(step.eqn.op, Constant):
            return Part((), "", found)
        regional = step.kind in ("kernel", "copy") and len(self.made) > before
        name = self.made[before].name if regional else step.name
        around = tuple(self.scope.split("/")) if self.scope else ()
        return Part(scopes_of(step.eqn, around), title(name, step.eqn), found)

    def in_ranges(self, parts: Sequence[Part]) -> list[Line]:
        return ranged(parts, lambda name: self.given(self.device.span(name), "range_"))

    def step(self, step: Step) -> None:
        if step.kind == "view" and any(isinstance(a, Var) for a in step.eqn.inputs):
            return
        how = {"host": self.host, "library": self.library, "matmul": self.matmul, "hosted": self.hosted}
        how.get("library" if step.kind == "view" else step.kind, self.kernels)(step)

    def host(self, step: Step) -> None:
        """A number that Python computes; an array of the device only where something asks for one.

        It needs nothing that was launched.
        """
        (out,) = step.eqn.outs
        f = self.given(partial(compute, step.eqn.op, out.type), "host_")
        found = f"{f}({', '.join(self.array(a) for a in step.eqn.inputs)})"
        if out in self.numbers:
            found = f"{self.narrowing(out.type.dtype)}({found})"
        elif not out.type.weak:
            found = f"upload({found})"
        self.group().before.append(Line(f"{self.name(out)} = {found}"))

    def narrowing(self, dtype: np.dtype) -> str:
        """The name of what makes a number of Python's one of `dtype`, as a kernel holds it."""
        if dtype not in self.narrowings:
            self.narrowings[dtype] = self.given(partial(narrowed, dtype, held(dtype)), "number_")
        return self.narrowings[dtype]

    def handed_over(self) -> set[Var]:
        """What the host computes of a dtype of its own and kernels alone read: it needs no memory there."""
        made = {v for step in self.program.steps if step.kind == "host" for v in step.eqn.outs}
        made -= {v for v in made if v.type.weak} | set(self.program.graph.outputs)
        asking = [step.eqn for step in self.program.steps if step.kind != "kernel"]
        return made - {a for eqn in asking for a in eqn.inputs if isinstance(a, Var)}

    def kernels(self, step: Step, family: Family | None = None) -> None:
        eqn = step.eqn
        types = tuple(a.type for a in eqn.inputs), tuple(v.type for v in eqn.outs)
        problem = Problem(eqn.op, *types, "cuda", step.shared)
        family = family or select(problem).family
        assert isinstance(family, Cuda), f"{eqn.op} was taken for CUDA"
        ins = [self.operand("in", i, a) for i, a in enumerate(eqn.inputs)]
        outs = [self.operand("out", i, v) for i, v in enumerate(eqn.outs)]
        found = family.kernels(problem, ins, outs, Chip.of(self.device.limits))
        temps = [self.need(nbytes, step.number) for nbytes in found.temps]
        self.fresh(*eqn.outs)
        self.launches(step, found, temps, "" if step.kind == "matmul" else slow(eqn, self.device.limits))

    def launches(
        self, step: Step, found: Kernels, temps: Sequence[str], words: str = "", whole: bool = True
    ) -> None:
        """The launches of a step; of a product by BLAS, which is no `whole` step, what comes before it."""
        eqn, named = step.eqn, []
        for kernel in found.kernels:
            number, name = self.define(kernel)
            named.append((name, kernel))
            self.owned[name] = written(eqn.op)
            handed = tuple(self.handed(step, a, temps) for a in kernel.given)
            cost = self.moved(step, kernel, temps) + (computing(eqn) if len(named) == 1 and whole else Cost())
            what = Call(self.title, name, "CUDA", eqn, cost, Source(source_name(kernel), kernel))
            sizes = kernel.grid, kernel.shape, kernel.shared
            self.launch(Pending(number, *sizes, handed, name, place(eqn)), what)
        if named:
            name = named[0][0]
            texts = partial(texts_of, [k for _, k in named])
            nbytes = partial(bytes_behind, self.program.layouts)
            self.made.append(Made(eqn, named[0][1].kind, name, name, texts, nbytes, "cuda", words))

    def launch(self, pending: Pending, what: Call) -> None:
        """Adds a launch; if there is somebody who times each, as a call of its own."""
        group = self.group()
        group.launches.append(pending)
        if self.meter is not None:
            group.through = self.given(self.meter.timed(what), "timed_")

    def call(self, f: str, given: str, what: Call) -> str:
        """The text of a call, through what times it if there is somebody who does."""
        if self.meter is None:
            return f"{f}({given})"
        return f"{self.given(self.meter.timed(what), 'timed_')}({f}, {given})"

    def moved(self, step: Step, kernel: CudaKernel, temps: Sequence[str]) -> Cost:
        """The bytes of the arrays that a kernel is handed."""
        own, eqn, layouts = dict(self.needs), step.eqn, self.program.layouts
        found: dict[str, dict[Any, int]] = {"array": {}, "result": {}}
        for a in kernel.given:
            if a.kind not in found:
                continue
            operand, _ = a.value
            at = operand.role, operand.index
            if operand.role in ("part", "temp"):
                found[a.kind][at] = own[temps[operand.index]].nbytes
            else:
                atoms: Sequence[Atom] = eqn.inputs if operand.role == "in" else eqn.outs
                found[a.kind][at] = bytes_behind(layouts, atoms[operand.index])
        return Cost(read=sum(found["array"].values()), written=sum(found["result"].values()))

    def cost(self, step: Step) -> Cost:
        return cost(step.eqn, partial(bytes_behind, self.program.layouts))

    @property
    def library_name(self) -> str:
        return "NumPy" if self.device.xp is np else "CuPy"

    def define(self, kernel: CudaKernel) -> tuple[int, str]:
        """The number of the kernel's source, and its name in the program; equal code is compiled once."""
        source = Source(source_name(kernel), kernel)
        code = bare(source.text())
        number = self.numbered.setdefault(code, len(self.numbered))
        self.sources.setdefault(code, source)
        return number, f"{source.name}_{number}"

    def operand(self, role: str, i: int, a: Atom) -> Operand:
        if isinstance(a, Literal) or a.type.weak or a in self.numbers:
            return Operand(role, i, (), value=True)
        layout, buffer = self.layout(a), self.buffer(a)
        loose = self.loose.get((buffer.base or buffer).name, 0)
        return Operand(role, i, layout.strides, layout.offset, loose=loose)

    def need(self, nbytes: int, step: int) -> str:
        name = f"own{len(self.needs)}"
        self.needs.append((name, Lifetime(nbytes, step, step)))
        return name

    def handed(self, step: Step, a: Argument, temps: Sequence[str]) -> At | Asked | np.generic:
        if a.kind == "size":
            return np.int64(a.value) if "int64_t" in a.declaration else np.int32(a.value)
        if a.kind == "constant":
            value, dtype = a.value
            return scalar(np.asarray(value), held(dtype))
        operand, dtype = a.value
        if operand.role in ("part", "temp"):
            return At(temps[operand.index], operand.offset * dtype.itemsize, own=True)
        atom = (step.eqn.inputs if operand.role == "in" else step.eqn.outs)[operand.index]
        if a.kind == "value":
            return self.value(atom, dtype)
        return self.at(atom, operand.offset * dtype.itemsize)

    def at(self, atom: Atom, offset: int) -> At:
        """A place in an array, `offset` bytes from the beginning of what holds its memory."""
        if isinstance(atom, Literal):
            return At(self.array(atom), offset)
        buffer = self.buffer(atom)
        base = buffer.base or buffer
        return At(base.name, offset, own=base.storage == "arena")

    def value(self, atom: Atom, dtype: np.dtype) -> Asked | np.generic:
        """A number as the kernel holds it."""
        wanted = held(dtype)
        if isinstance(atom, Literal):
            value = np.asarray(atom.value).astype(dtype) if dtype in HALF else np.asarray(atom.value)
            return scalar(value, wanted)
        if atom in self.numbers:  # which are held so already
            return Asked(self.name(atom), wanted.itemsize)
        return Asked(f"{self.narrowing(dtype)}({self.name(atom)})", wanted.itemsize)

    def fresh(self, *made: Var) -> None:
        """Makes arrays for the caller, of results or of what is returned in another form."""
        for var in made:
            buffer = self.buffer(var)
            if buffer.storage == "view" and buffer.base is not None and var not in self.program.graph.outputs:
                buffer = buffer.base
            if buffer.storage != "output" or buffer.name in self.begun or self.within is not None:
                continue
            self.begun.add(buffer.name)
            self.named.add(buffer.donor)
            text = buffer.donor or f"empty({buffer.type.shape}, {buffer.type.dtype.name})"
            self.group().before.append(Line(f"{buffer.name} = {text}", str(buffer.type)))

    def array(self, a: Atom) -> str:
        """An atom as an array of the device, or a Python number."""
        if isinstance(a, Literal):
            value = a.value if a.type.weak else np.asarray(a.value, a.type.dtype)
            return self.given(value if a.type.weak else upload(self.device, value), "k")
        buffer, t = self.buffer(a), a.type
        base, layout = buffer.base or buffer, self.layout(a)
        self.named.add(base.name)
        if t.weak or (base is buffer and base.storage != "arena"):
            return buffer.name
        strides = tuple(s * t.dtype.itemsize for s in layout.strides)
        whole, offset = base.name, str(layout.offset * t.dtype.itemsize)
        if base.storage == "arena":
            whole, offset = "memory", f"{base.name}_offset + {offset}"
        return f"view({whole}, {offset}, {t.shape}, {t.dtype.name}, {strides})"

    def hosted(self, step: Step) -> None:
        """A loop or a branch: its rounds are launched one after another, in memory of the arena."""
        eqn, chosen = step.eqn, self.branches[step.number]
        turns = [branch.turn(self.run) for branch in chosen]
        if self.unrolled(step, turns):
            return
        memory = self.need(max(t.nbytes for t in turns), step.number)
        spares = [(t, self.need(t.nbytes, step.number)) for t in spare(eqn.op)]
        f = self.given(rounds(eqn.op, turns), f"{eqn.op.name}_")
        places = [self.array(v) for v in eqn.outs], [self.lent(name, t) for t, name in spares]
        lists = [f"[{', '.join(each)}]" for each in places]
        lent = self.lent(memory, ArrayType((max(t.nbytes for t in turns),), np.dtype(np.uint8)))
        handed = ", ".join([lent, *lists, *map(self.aligned, eqn.inputs)])
        self.fresh(*eqn.outs)
        self.emit(Line(f"{f}({handed})", eqn.op.name))

    def unrolled(self, step: Step, turns: Sequence[Turn]) -> bool:
        """Writes a loop's rounds as launches of this program, if they are nothing else and not too many."""
        eqn, (turn, *_) = step.eqn, turns
        op, known = eqn.op, turn.round
        if not isinstance(op, ScanLoop | RepeatLoop) or known is None or config.capture == "off":
            return False
        if self.ranged or self.meter:  # each round is to be seen
            return False
        if len(known.launches) * op.length > MOST or not all(map(self.is_plain, (*eqn.inputs, *eqn.outs))):
            return False
        self.fresh(*eqn.outs)

        def launch(each: Pending, source: Source | None) -> None:
            if source is not None:
                number, name = self.define(source.kernel)
                each = replace(each, kernel=number, name=name)
            self.group().launches.append(each)

        def copy(x: Placed, to: Placed) -> None:
            self.copied(step, x, to)

        def own(t: ArrayType) -> Placed:
            return Placed(At(self.need(t.nbytes, step.number), own=True), t, copy)

        memory = own(ArrayType((turn.nbytes,), np.dtype(np.uint8)))
        symbolic = replace(turn, run=partial(known.run, launch, self.constant))
        places = [[own(t) for t in spare(op)], [self.placed_at(v, copy) for v in (*eqn.outs, *eqn.inputs)]]
        results, inputs = places[1][: len(eqn.outs)], places[1][len(eqn.outs) :]
        rounds(op, [symbolic])(memory, results, places[0], *inputs)
        return True

    def is_plain(self, a: Atom) -> bool:
        """Whether an array lies in C order, from where wide accesses may begin."""
        if a.type.weak:
            return False
        if isinstance(a, Literal):
            return True
        layout, loose = self.layout(a), self.loose.get((self.buffer(a).base or self.buffer(a)).name, 0)
        begins = all(n * a.type.dtype.itemsize % 16 == 0 for n in (layout.offset, loose))
        return begins and layout.strides == plain(a.type.shape).strides

    def placed_at(self, a: Atom, copy: Callable[[Placed, Placed], None]) -> Placed:
        offset = 0 if isinstance(a, Literal) else self.layout(a).offset * a.type.dtype.itemsize
        return Placed(self.at(a, offset), a.type, copy)

    def constant(self, value: Any) -> At:
        """A place for an array that is there from the start."""
        known = next((name for name, found in self.names.items() if found is value), None)
        return At(known or self.given(value, "k"))

    def copied(self, step: Step, x: Placed, to: Placed) -> None:
        """Launches a copy."""
        strides, n = plain(x.type.shape).strides, math.prod(x.type.shape)
        source, target = Operand("in", 0, strides, loose=n), Operand("out", 0, strides, loose=n)
        for kernel in copying(x.type, to.type, source, target, self.device.limits.multiprocessors).kernels:
            number, name = self.define(kernel)
            ends = {"array": x.at, "result": to.at}
            handed = tuple(ends[a.kind] if a.kind in ends else self.handed(step, a, ()) for a in kernel.given)
            launch = Pending(number, kernel.grid, kernel.shape, kernel.shared, handed, name, place(step.eqn))
            self.group().launches.append(launch)

    def lent(self, name: str, type_: ArrayType) -> str:
        """A part of the arena as an array."""
        strides = plain(type_.shape).strides
        nbytes = tuple(n * type_.dtype.itemsize for n in strides)
        return f"view(memory, {name}_offset, {type_.shape}, {type_.dtype.name}, {nbytes})"

    def aligned(self, a: Atom) -> str:
        """An atom as an array that begins where wide accesses may."""
        text = self.array(a)
        if isinstance(a, Literal):
            return text
        layout, buffer = self.layout(a), self.buffer(a)
        parts = layout.offset, self.loose.get((buffer.base or buffer).name, 0)
        lies = all(n * a.type.dtype.itemsize % 16 == 0 for n in parts)
        return text if lies and layout.strides == plain(a.type.shape).strides else f"ready({text})"

    def library(self, step: Step) -> None:
        """What the array module or the reference computes; loops and branches, with bodies on the device."""
        eqn, chosen = step.eqn, self.branches.get(step.number)
        if isinstance(eqn.op, Constant):  # which is there from the start
            (out,) = eqn.outs
            value = self.given(upload(self.device, eqn.op.reference()), "k")
            self.group().before.append(Line(f"{self.name(out)} = {value}", "constant"))
            return
        inputs = ", ".join(map(self.array, eqn.inputs))
        if chosen is not None:
            run = hosted(eqn.op, [*map(alone, chosen)], partial(empty, self.device))
            f = self.given(partial(run, [()] * len(chosen)), f"{eqn.op.name}_")
        else:
            run = by_arrays if serves(eqn) else elsewhere
            f = self.given(partial(run, self.device, eqn), f"{eqn.op.name}_")
        outs = ", ".join(self.name(v) for v in eqn.outs) + ("," if eqn.op.several else "")
        by, text = self.library_name if serves(eqn) else "the CPU", f"{f}({inputs})"
        if chosen is None:
            text = self.call(f, inputs, Call(self.title, eqn.op.name, by, eqn, self.cost(step)))
        self.emit(Line(f"{outs} = {text}" if eqn.outs else text, eqn.op.name))
        made = [self.name(v) for v in eqn.outs if not v.type.weak]
        self.emit(*(Line(f"{name} = ready({name})") for name in made))

    def matmul(self, step: Step) -> None:
        """A product by the device's BLAS; in CUDA if that has none such."""
        eqn, (out,) = step.eqn, step.eqn.outs
        assert isinstance(eqn.op, DotGeneral)
        atoms, (a, b) = (*eqn.inputs, out), (x.type for x in eqn.inputs)
        first, second, third = (self.operand("in", i, x) for i, x in enumerate(atoms))
        found = by_blas(eqn.op, a, b, (first.strides, second.strides, third.strides))
        if found is None:
            return self.kernels(step, CudaProduct())
        copies, g = found
        spots = [self.spot(x) for x in atoms]
        kernels, temps = list[CudaKernel](), list[str]()
        for i, (x, strides) in enumerate(zip((first, second), copies, strict=True)):
            if strides is not None:
                target, t = Operand("temp", len(temps), strides), eqn.inputs[i].type
                kernels += copying(t, t, x, target, Chip.of(self.device.limits)).kernels
                temps.append(self.need(t.nbytes, step.number))
                spots[i] = Spot(At(temps[-1], own=True), 0)
        order = (1, 0, 2) if g.second else (0, 1, 2)
        factors = [spots[i] for i in order]
        aligned = tuple(
            math.gcd(16, spot.multiple, *(c[n] * atoms[i].type.dtype.itemsize for c in g.calls))
            for n, (i, spot) in enumerate(zip(order, factors, strict=True))
        )
        wanted = Wanted(g, a.dtype, out.type.dtype, PRECISION.get(eqn.op.precision), aligned)  # type: ignore[arg-type]
        product = self.device.product(wanted)
        if product is None:
            return self.kernels(step, CudaProduct())
        scratch = At(self.need(product.workspace, step.number), own=True) if product.workspace else None
        self.fresh(out)
        self.launches(step, Kernels(tuple(kernels)), temps, whole=False)
        by = "NumPy" if self.device.xp is np else "cuBLASLt"
        places = (*(spot.at for spot in factors), scratch)
        one = Call(self.title, eqn.op.name, by, eqn, self.cost(step))
        self.launch(Pending(product, (), (), 0, places, "dot_general", place(eqn)), one)
        return None

    def spot(self, a: Atom) -> Spot:
        """Where an array begins."""
        if isinstance(a, Literal):
            return Spot(self.at(a, 0), 0)
        buffer, size = self.buffer(a), a.type.dtype.itemsize
        base, offset = buffer.base or buffer, self.layout(a).offset * size
        return Spot(self.at(a, offset), math.gcd(offset, self.loose.get(base.name, 0) * size))

    # -- results

    def result(self, atom: Atom, i: int) -> str:
        """What is returned: a Python number, or an array that nobody else holds."""
        if isinstance(atom, Literal):
            lent = atom.type.weak or self.within is not None
            return self.array(atom) if lent else f"array({self.array(atom)})"
        if atom.type.weak:
            return self.name(atom)
        if self.within is not None:
            return self.array(atom)
        again = atom in self.program.graph.outputs[:i]
        if self.buffer(atom).storage == "output" and not again:
            return self.name(atom)
        nbytes = atom.type.nbytes
        copy = Call(self.title, "copy of a result", self.library_name, None, Cost(0, 0, nbytes, nbytes))
        return self.call("array", f"{self.array(atom)}, order='C'", copy)


def current_first(device: Device, run: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Runs a program with its device CuPy's current one."""
    if not hasattr(device, "here"):
        return run
    here, number, current = device.here, device.number, device.xp.cuda.runtime.getDevice  # type: ignore[attr-defined]
    check = getattr(device, "check", lambda: None)

    def there(*arrays: Any) -> list[Any]:
        check()
        if current() == number:
            return run(*arrays)
        with here():
            return run(*arrays)

    return there


def quietly(run: Callable[..., list[Any]], *arrays: Any) -> list[Any]:
    """Runs a program with none of NumPy's warnings."""
    loud = hush()
    try:
        return run(*arrays)
    finally:
        restore(loud)


def place(eqn: Eqn) -> str:
    """The user's line."""
    return str(eqn.source or "")


def lines(part: Line | Group) -> list[Line]:
    return part.lines() if isinstance(part, Group) else [part]


def texts_of(kernels: Sequence[CudaKernel]) -> str:
    return "\n".join(dict.fromkeys(Source(source_name(k), k).text() for k in kernels))


def source_name(kernel: CudaKernel) -> str:
    return kernel.kind.replace(" ", "_")


def alone(run: Callable[..., list[Any]]) -> Inner:
    """A program that makes its own scratch."""
    return Inner(0, lambda arena: (), lambda bound, *arrays: run(*arrays))


def scalar(value: np.ndarray, dtype: np.dtype) -> np.generic:
    """A number as a kernel is handed it."""
    found: Any = value.astype(dtype)
    return found[()]  # type: ignore[no-any-return]


def narrowed(dtype: np.dtype, wanted: np.dtype, x: Any) -> Any:
    """A Python number of `dtype` as a kernel holds it."""
    value = np.asarray(x)
    return (value.astype(dtype).astype(wanted) if dtype in HALF else value.astype(wanted))[()]


def ready(device: Device, x: Any) -> Any:
    """An array of the device as kernels read it: in C order, from a place that wide accesses may begin at."""
    x = x if isinstance(x, device.xp.ndarray) else upload(device, x)
    if x.flags.c_contiguous and address(x) % 16 == 0:
        return x
    return device.xp.array(x, order="C", copy=True)


def elsewhere(device: Device, eqn: Eqn, *xs: Any) -> Any:
    """The reference on the CPU."""
    weak = [a.type.weak for a in eqn.inputs]
    arrays = [
        np.asarray(x, a.type.dtype) if w else download(x).view(a.type.dtype)
        for x, a, w in zip(xs, eqn.inputs, weak, strict=True)
    ]
    ys = eqn.op.reference(*arrays)
    found = [
        y if v.type.weak else upload(device, np.asarray(y, v.type.dtype))
        for y, v in zip(ys if eqn.op.several else (ys,), eqn.outs, strict=True)
    ]
    return found if eqn.op.several else found[0]
