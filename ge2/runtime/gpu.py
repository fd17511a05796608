"""A program as launches: the Python text that each call runs on a device, and the kernels it launches.

What no kernel of ours serves is computed by the array module where it can (`by_arrays`), and else by the
reference on the CPU: right, and slow, and the report says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any, final

import numpy as np

from ge2.backends.cpu.load import execute
from ge2.backends.cpu.quiet import hush, restore
from ge2.backends.device import Device, address, download, empty, kept_as, upload, view
from ge2.backends.product import Wanted
from ge2.base.config import config
from ge2.base.dtypes import HALF, SHORT
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
from ge2.passes.host import compute
from ge2.runtime.by_arrays import by_arrays, serves
from ge2.runtime.cost import bytes_behind
from ge2.runtime.hosted import Inner, hosted
from ge2.runtime.memory import Lifetime, Plan, plan
from ge2.runtime.program import Buffer, Program, Step
from ge2.runtime.records import Made
from ge2.runtime.rounds import Turn, loose, rounds, spare

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


PRECISION = {"tf32": "tf32", "bf16": "bf16"}  # any other is IEEE


@final
@record
class Spot:
    """An address, and what it is a multiple of; 0: of all that matters."""

    text: str
    offset: int


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
    names: dict[str, Any] = field(default_factory=dict)
    body: list[Line] = field(default_factory=list)
    made: list[Made] = field(default_factory=list)
    needs: list[tuple[str, Lifetime]] = field(default_factory=list)  # arrays of the arena
    begun: set[str] = field(default_factory=set)
    sources: dict[str, Source] = field(default_factory=dict)  # by their text without comments
    plan: Plan | None = None
    texts: dict[str, str] = field(default_factory=dict)
    direct: Callable[..., list[Any]] | None = None
    compiling: str = ""
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
            empty=device.xp.empty, array=device.xp.array, ready=partial(ready, device), at=address,
            view=view, address=np.uint64, upload=partial(upload, device),
        )  # fmt: skip
        if self.within is not None:
            stacked = loose(self.within, self.program.graph)
            self.loose = {self.name(v): n for v, n in stacked.items()}
        for buffer in self.program.buffers.values():
            if buffer.storage == "arena":
                self.needs.append((buffer.name, Lifetime(buffer.type.nbytes, buffer.first, buffer.last)))
        lines = [(step, self.step(step)) for step in self.program.steps]
        self.plan = plan([life for _, life in self.needs])
        offsets = self.offsets()
        for name, offset in offsets.items():
            self.names[f"{name}_offset"] = offset
        for _, found in lines:
            self.body += found
        results = [self.result(a, i) for i, a in enumerate(self.program.graph.outputs)]
        text = Text(
            self.parameters(),
            self.plan.nbytes,
            self.within is not None,
            (*self.start(), *self.body),
            ", ".join(results),
        )
        inner = [] if self.run else [b for each in self.branches.values() for b in each]
        texts = [s.text() for s in self.sources.values()]
        self.texts["cuda"] = "\n".join([*texts, *(b.written(run=False).texts["cuda"] for b in inner)])
        self.texts["python"] = render(TEMPLATE, text)
        if self.run:
            self.load()
            execute(self.texts["python"], self.names)
        run: Any = self.names.get("run")
        if self.within is not None:
            self.turn = self.turned(run)
            run = partial(self.turn.alone, device)
        if not self.run:
            return self
        self.direct = partial(on_device, getattr(device, "here", nullcontext), run)
        return self

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
        arrays = [self.name(v) for v in self.program.graph.inputs if not v.type.weak]
        return [Line(f"{name} = ready({name})") for name in arrays]

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
        return Turn(self.nbytes, tuple(placed), tuple(types[i] for i in placed), tuple(again), run)

    def load(self) -> None:
        """Compiles the kernels, those of a program at once, each under the settings of here and now."""
        sources = list(self.sources.values())
        with ThreadPoolExecutor(max(min(len(sources), config.thread_count()), 1)) as pool:
            asked = [pool.submit(copy_context().run, self.device.module, s.text()) for s in sources]
            modules = [each.result() for each in asked]
        for n, (source, module) in enumerate(zip(sources, modules, strict=True)):
            self.names[f"{source.name}_{n}"] = module.get_function(source.name)
        self.compiling = f"{len(sources)} kernels for {self.device.limits.name}"

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

    def number(self, value: int, far: bool) -> str:
        """A name for a size."""
        name = f"{'long' if far else 'int'}_{value}".replace("-", "minus_")
        self.names[name] = np.int64(value) if far else np.int32(value)
        return name

    # -- steps

    def step(self, step: Step) -> list[Line]:
        if step.kind == "view" and not any(isinstance(a, Var) for a in step.eqn.inputs):
            return self.library(step)
        if step.kind == "view":
            return []
        how = {"host": self.host, "library": self.library, "matmul": self.matmul, "hosted": self.hosted}
        return how.get(step.kind, self.kernels)(step)

    def host(self, step: Step) -> list[Line]:
        (out,) = step.eqn.outs
        f = self.given(partial(compute, step.eqn.op, out.type), "host_")
        inputs = ", ".join(self.array(a) for a in step.eqn.inputs)
        line = f"{self.name(out)} = {f}({inputs})"
        return [
            Line(
                line if out.type.weak else f"{line[: line.index('=')]}= upload({line[line.index('=') + 2 :]})"
            )
        ]

    def kernels(self, step: Step, family: Family | None = None) -> list[Line]:
        eqn = step.eqn
        types = tuple(a.type for a in eqn.inputs), tuple(v.type for v in eqn.outs)
        problem = Problem(eqn.op, *types, "cuda", step.shared)
        family = family or select(problem).family
        assert isinstance(family, Cuda), f"{eqn.op} was taken for CUDA"
        ins = [self.operand("in", i, a) for i, a in enumerate(eqn.inputs)]
        outs = [self.operand("out", i, v) for i, v in enumerate(eqn.outs)]
        found = family.kernels(problem, ins, outs, Chip.of(self.device.limits))
        temps = [self.need(nbytes, step.number) for nbytes in found.temps]
        lines = [line for v in eqn.outs for line in self.fresh(v)]
        return [*lines, *self.launches(step, found, temps)]

    def launches(self, step: Step, found: Kernels, temps: Sequence[str]) -> list[Line]:
        eqn, lines, named = step.eqn, [], []
        for kernel in found.kernels:
            name = self.define(kernel)
            named.append((name, kernel))
            handed = ", ".join(self.handed(step, a, temps) for a in kernel.given)
            shared = f", shared_mem={kernel.shared}" if kernel.shared else ""
            lines.append(Line(f"{name}({kernel.grid}, ({kernel.block},), ({handed},){shared})"))
        if named:
            name = named[0][0]
            texts = partial(texts_of, [k for _, k in named])
            nbytes = partial(bytes_behind, self.program.layouts)
            self.made.append(Made(eqn, named[0][1].kind, name, name, texts, nbytes, language="cuda"))
        return lines

    def define(self, kernel: CudaKernel) -> str:
        """The name of the kernel's function in the program; equal code is compiled once."""
        source = Source(kernel.kind.replace(" ", "_"), kernel)
        code = bare(source.text())
        self.sources.setdefault(code, source)
        return f"{source.name}_{list(self.sources).index(code)}"

    def operand(self, role: str, i: int, a: Atom) -> Operand:
        if isinstance(a, Literal) or a.type.weak:
            return Operand(role, i, (), value=True)
        layout, buffer = self.layout(a), self.buffer(a)
        loose = self.loose.get((buffer.base or buffer).name, 0)
        return Operand(role, i, layout.strides, layout.offset, loose=loose)

    def need(self, nbytes: int, step: int) -> str:
        name = f"own{len(self.needs)}"
        self.needs.append((name, Lifetime(nbytes, step, step)))
        return name

    def handed(self, step: Step, a: Argument, temps: Sequence[str]) -> str:
        if a.kind == "size":
            return self.number(a.value, "int64_t" in a.declaration)
        if a.kind == "constant":
            value, dtype = a.value
            return self.given(np.asarray(value).astype(held(dtype))[()], "k")
        operand, dtype = a.value
        if operand.role in ("part", "temp"):
            return self.place(f"arena + {temps[operand.index]}_offset", operand.offset * dtype.itemsize)
        atom = (step.eqn.inputs if operand.role == "in" else step.eqn.outs)[operand.index]
        if a.kind == "value":
            return self.value(atom, dtype)
        if isinstance(atom, Literal):
            return self.array(atom)
        buffer = self.buffer(atom)
        base, offset = buffer.base or buffer, operand.offset * dtype.itemsize
        if base.storage == "arena":
            return self.place(f"arena + {base.name}_offset", offset)
        return base.name if not offset else self.place(f"at({base.name})", offset)

    def place(self, text: str, offset: int) -> str:
        return f"address({text} + {offset})" if offset else f"address({text})"

    def value(self, atom: Atom, dtype: np.dtype) -> str:
        """A number as the kernel holds it."""
        wanted = held(dtype)
        if isinstance(atom, Literal):
            value = np.asarray(atom.value).astype(dtype) if dtype in HALF else np.asarray(atom.value)
            return self.given(value.astype(wanted)[()], "k")
        return f"{self.given(partial(narrowed, dtype, wanted), 'number_')}({self.name(atom)})"

    def fresh(self, var: Var) -> list[Line]:
        """Makes an array for the caller, that of the result or of what is returned in another form."""
        buffer = self.buffer(var)
        if buffer.storage == "view" and buffer.base is not None and var not in self.program.graph.outputs:
            buffer = buffer.base
        if buffer.storage != "output" or buffer.name in self.begun or self.within is not None:
            return []
        self.begun.add(buffer.name)
        type_ = buffer.type
        made = f"empty({type_.shape}, {type_.dtype.name})"
        if buffer.donor:
            made = buffer.donor
        return [Line(f"{buffer.name} = {made}", str(type_))]

    def array(self, a: Atom) -> str:
        """An atom as an array of the device, or a Python number."""
        if isinstance(a, Literal):
            value = a.value if a.type.weak else np.asarray(a.value, a.type.dtype)
            return self.given(value if a.type.weak else upload(self.device, value), "k")
        buffer, t = self.buffer(a), a.type
        base, layout = buffer.base or buffer, self.layout(a)
        if t.weak or (base is buffer and base.storage != "arena"):
            return buffer.name
        strides = tuple(s * t.dtype.itemsize for s in layout.strides)
        whole, offset = base.name, str(layout.offset * t.dtype.itemsize)
        if base.storage == "arena":
            whole, offset = "memory", f"{base.name}_offset + {offset}"
        return f"view({whole}, {offset}, {t.shape}, {t.dtype.name}, {strides})"

    def hosted(self, step: Step) -> list[Line]:
        """A loop or a branch: its rounds are launched one after another, in memory of the arena."""
        eqn, chosen = step.eqn, self.branches[step.number]
        turns = [branch.turn(self.run) for branch in chosen]
        memory = self.need(max(t.nbytes for t in turns), step.number)
        spares = [(t, self.need(t.nbytes, step.number)) for t in spare(eqn.op)]
        f = self.given(rounds(eqn.op, turns), f"{eqn.op.name}_")
        places = [self.array(v) for v in eqn.outs], [self.lent(name, t) for t, name in spares]
        lists = [f"[{', '.join(each)}]" for each in places]
        lent = self.lent(memory, ArrayType((max(t.nbytes for t in turns),), np.dtype(np.uint8)))
        handed = ", ".join([lent, *lists, *map(self.aligned, eqn.inputs)])
        lines = [line for v in eqn.outs for line in self.fresh(v)]
        return [*lines, Line(f"{f}({handed})", eqn.op.name)]

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

    def library(self, step: Step) -> list[Line]:
        """What the array module or the reference computes; loops and branches, with bodies on the device."""
        eqn, chosen = step.eqn, self.branches.get(step.number)
        if isinstance(eqn.op, Constant):  # which is there from the start
            (out,) = eqn.outs
            return [
                Line(
                    f"{self.name(out)} = {self.given(upload(self.device, eqn.op.reference()), 'k')}",
                    "constant",
                )
            ]
        inputs = ", ".join(map(self.array, eqn.inputs))
        if chosen is not None:
            run = hosted(eqn.op, [*map(alone, chosen)], partial(empty, self.device))
            f = self.given(partial(run, [()] * len(chosen)), f"{eqn.op.name}_")
        else:
            run = by_arrays if serves(eqn) else elsewhere
            f = self.given(partial(run, self.device, eqn), f"{eqn.op.name}_")
        outs = ", ".join(self.name(v) for v in eqn.outs) + ("," if eqn.op.several else "")
        lines = [Line(f"{outs} = {f}({inputs})" if eqn.outs else f"{f}({inputs})", eqn.op.name)]
        return lines + [Line(f"{self.name(v)} = ready({self.name(v)})") for v in eqn.outs if not v.type.weak]

    def matmul(self, step: Step) -> list[Line]:
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
                spots[i] = Spot(f"arena + {temps[-1]}_offset", 0)
        order = (1, 0, 2) if g.second else (0, 1, 2)
        factors = [spots[i] for i in order]
        aligned = tuple(
            math.gcd(16, spot.offset, *(c[n] * atoms[i].type.dtype.itemsize for c in g.calls))
            for n, (i, spot) in enumerate(zip(order, factors, strict=True))
        )
        wanted = Wanted(g, a.dtype, out.type.dtype, PRECISION.get(eqn.op.precision), aligned)  # type: ignore[arg-type]
        run = self.device.product(wanted)
        if run is None:
            return self.kernels(step, CudaProduct())
        scratch = "0"
        if run.workspace:  # which is to begin at a multiple of 256
            scratch = f"(arena + {self.need(run.workspace + 255, step.number)}_offset + 255) // 256 * 256"
        f = self.given(run, "product_")
        call = f"{f}({', '.join(spot.text for spot in factors)}, {scratch})"
        copied = self.launches(step, Kernels(tuple(kernels)), temps)
        return [*self.fresh(out), *copied, Line(call, "dot_general")]

    def spot(self, a: Atom) -> Spot:
        """Where an array begins, as a number, and what it is known to be a multiple of."""
        if isinstance(a, Literal):
            return Spot(f"at({self.array(a)})", 0)
        buffer, size = self.buffer(a), a.type.dtype.itemsize
        base, offset = buffer.base or buffer, self.layout(a).offset * size
        start = f"arena + {base.name}_offset" if base.storage == "arena" else f"at({base.name})"
        text = f"{start} + {offset}" if offset else start
        return Spot(text, math.gcd(offset, self.loose.get(base.name, 0) * size))

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
        return f"array({self.array(atom)}, order='C')"


def on_device(here: Callable[[], Any], run: Callable[..., list[Any]], *arrays: Any) -> list[Any]:
    """Runs a program with its device CuPy's current one, and none of NumPy's warnings."""
    loud = hush()
    try:
        with here():
            return run(*arrays)
    finally:
        restore(loud)


def texts_of(kernels: Sequence[CudaKernel]) -> str:
    return "\n".join(dict.fromkeys(Source(k.kind.replace(" ", "_"), k).text() for k in kernels))


def alone(run: Callable[..., list[Any]]) -> Inner:
    """A program that makes its own scratch."""
    return Inner(0, lambda arena: (), lambda bound, *arrays: run(*arrays))


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
