"""The Python text of a program: `bind` lays out an arena once, `run` is what each call executes."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cache, partial
from typing import Any, final

import numpy as np

from ge2.base.dtypes import SHORT
from ge2.base.interpreter import collector_paused
from ge2.base.memory import Lifetime, Plan, Room, plan
from ge2.base.record import mutable, record
from ge2.base.source import execute, load
from ge2.choice.choose import choose
from ge2.choice.problem import Problem, prefs
from ge2.codegen.environment import render
from ge2.codegen.kernel_values import Param
from ge2.codegen.layout import KernelView, Line
from ge2.ir import Atom, Dims, Evaluate, Literal, Var
from ge2.ops.dot import DotGeneral
from ge2.passes.scalars import compute
from ge2.program.cost import Cost, bytes_behind, cost
from ge2.program.program import Buffer, Inner, Program, Step, bound, hosted
from ge2.program.records import Made
from ge2.program.timer import Call, Meter
from ge2.targets.c.blocked.family import Launch
from ge2.targets.c.caps import Caps
from ge2.targets.c.families import BLOCKED
from ge2.targets.c.linked import Linked
from ge2.targets.c.load.blas import matmul_on
from ge2.targets.c.load.outputs import Kept, worth_keeping
from ge2.targets.c.load.pool import launch
from ge2.targets.c.native import IN_C, Need, Segment, lifetimes
from ge2.targets.c.numpy_steps import note, product, reference_of, view_text

TEMPLATE = "numpy/program.py.jinja"
NUMPY = ("empty", "array", "copyto", "matmul", "broadcast_to", "ndarray")
EVALUATE = Evaluate()
SHARED = 1 << 17  # the elements of a space from which on several threads are worth their trouble


@cache
def known() -> dict[str, Any]:
    """The names that every program knows, beside Python's own: one dictionary for all."""
    numpy = {name: getattr(np, name) for name in NUMPY}
    dtypes = {dtype.name: dtype for dtype in (*SHORT, np.dtype(np.uint8))}
    own = {"launch": launch, "owned": owned, "reuse": reuse, "written": written}
    return {**vars(builtins), **numpy, **dtypes, **own}


@final
@record
class Text:
    """What the template of a program prints."""

    name: str
    parameters: str
    arena: int
    bind: tuple[Line, ...]
    bound: tuple[str, ...]
    run: tuple[Line, ...]
    results: str


@final
@mutable
class Driver:
    """Writes the text of a program, and collects what its names stand for."""

    program: Program
    threads: int
    title: str
    branches: Mapping[int, Sequence[Inner]]
    # whether all of its scratch is lent by another program, and it keeps no results
    lent: bool = False
    # whether the program is to run; else it is written for people, and nothing is compiled
    run: bool = True
    # what times each step, if somebody wants to know: each is then called apart
    meter: Meter | None = None
    names: dict[str, Any] = field(default_factory=dict)
    bind: list[Line] = field(default_factory=list)
    bound: dict[str, None] = field(default_factory=dict)  # names that `bind` hands to `run`
    body: list[Line] = field(default_factory=list)
    made: list[Made] = field(default_factory=list)  # the kernels, for people
    needs: list[tuple[str, tuple[int, ...], np.dtype, int, int]] = field(default_factory=list)
    # lines of `bind` that follow the arrays of the arena
    views: list[Line] = field(default_factory=list)
    # results that have an array: a lent one has it early
    begun: set[str] = field(default_factory=set)
    early: set[str] = field(default_factory=set)  # names known once the arena is
    passing: dict[str, Buffer] = field(
        default_factory=dict
    )  # results of loops and branches, and views of them
    plan: Plan | None = None
    texts: dict[str, str] = field(default_factory=dict)  # by language: what each call runs
    direct: Callable[..., list[Any]] | None = None  # the whole program as one C function
    compiling: str = ""  # how the C of the program was had
    shared: Linked | None = None

    @property
    def source(self) -> str:
        return "\n".join(self.texts.values())

    @collector_paused
    def build(self) -> Driver:
        self.names["__builtins__"] = known()
        self.names["matmul"] = matmul_on(self.threads)
        if self.program.target == "c":
            measured = self.meter is not None
            self.shared = Linked(
                self.program, self.threads, self.title, self.lent or measured, measured
            )
            if self.shared.whole is not None:
                return self.build_whole(self.shared)
        for buffer in self.program.buffers.values():
            if buffer.storage == "arena":
                self.needs.append(
                    (buffer.name, buffer.type.shape, buffer.type.dtype, buffer.first, buffer.last)
                )
                self.early.add(buffer.name)
        for part in self.program.steps if self.shared is None else self.shared.parts:
            if isinstance(part, Segment):
                self.run_segment(part)
                self.forget(max(step.number for step in part.steps if step.kind != "view"))
            else:
                getattr(self, f"run_{part.kind}")(part)
                self.forget(part.number)
        results = [self.result(a, i) for i, a in enumerate(self.program.graph.outputs)]
        self.plan = plan(
            [
                Lifetime(math.prod(s) * d.itemsize, first, last)
                for _, s, d, first, last in self.needs
            ]
        )
        for (name, shape, dtype, _, _), offset in zip(self.needs, self.plan.offsets, strict=True):
            self.bind.append(Line(f"{name} = ndarray({shape}, {dtype.name}, arena, {offset})"))
        inputs = ", ".join(self.name(v) for v in self.program.graph.inputs)
        text = Text(
            "program",
            inputs,
            self.plan.nbytes,
            (*self.bind, *self.views),
            tuple(self.bound),
            tuple(self.body),
            ", ".join(results),
        )
        if self.shared is not None and self.shared.segments:
            self.texts["c"] = self.shared.source
        self.texts["python"] = render(TEMPLATE, text)
        if self.shared is not None:
            self.made += self.shared.native.made
        if self.run:
            self.load()
        return self

    def offsets(self) -> dict[str, int]:
        """Where in the arena each array lies, by its name."""
        assert self.plan is not None
        if self.shared is None or self.shared.whole is None:
            names = [name for name, *_ in self.needs]
            return dict(zip(names, self.plan.offsets, strict=True))
        native = self.shared.native
        known = dict(zip(map(id, native.needs), self.plan.offsets, strict=True))
        buffers = self.program.buffers.values()
        return {b.name: known[id(native.arena[id(b)])] for b in buffers if id(b) in native.arena}

    @property
    def code(self) -> int:
        """The bytes of what was compiled for it."""
        compiled = self.run and self.shared is not None and self.shared.native.runs
        return self.shared.library.nbytes if compiled and self.shared is not None else 0

    def rooms(self) -> list[Room]:
        """What lies in the arena."""
        assert self.plan is not None
        if self.shared is None or self.shared.whole is None:
            needs = [(n, Lifetime(math.prod(s) * d.itemsize, a, z)) for n, s, d, a, z in self.needs]
        else:
            native = self.shared.native
            names = {
                id(native.arena[id(b)]): b.name
                for b in self.program.buffers.values()
                if id(b) in native.arena
            }
            lives = zip(native.needs, lifetimes(native.needs), strict=True)
            needs = [(names.get(id(n), f"own{i}"), life) for i, (n, life) in enumerate(lives)]
        return [Room(*need, at) for need, at in zip(needs, self.plan.offsets, strict=True)]

    @property
    def nbytes(self) -> int:
        """The size of the arena."""
        return 0 if self.plan is None else self.plan.nbytes

    # -- compiled C

    def build_whole(self, linked: Linked) -> Driver:
        """A program that is one C function: the launcher allocates, and
        Python does its own numbers.
        """
        segment = linked.whole
        assert segment is not None
        needs = linked.native.needs
        self.plan = plan(lifetimes(needs))
        offsets = dict(zip(map(id, needs), self.plan.offsets, strict=True))
        self.made, self.texts["c"] = linked.native.made, linked.source
        launcher = linked.launcher(segment, self.plan.nbytes, offsets) if self.run else None
        self.compiling = linked.how if self.run else ""
        graph = self.program.graph
        made = [
            v for v in graph.outputs if isinstance(v, Var) and self.buffer(v).storage == "output"
        ]
        early = [step for step in self.program.steps if step.kind == "host"]
        given = linked.given(segment)
        if (
            given == list(graph.inputs)
            and list(graph.outputs) == made
            and len(set(made)) == len(made)
        ):
            self.direct = launcher
            return self
        self.names["compiled"] = launcher
        for step in early:
            self.run_host(step)
        inputs = [self.name(v) for v in graph.inputs]
        outs = "".join(f"{self.name(v)}, " for v in dict.fromkeys(made))
        self.add(f"{outs}= compiled({', '.join(map(self.name, given))})")
        results = [self.result(a, i) for i, a in enumerate(graph.outputs)]
        body, bound = tuple(self.body), tuple(self.bound)
        python = render(
            TEMPLATE, Text("program", ", ".join(inputs), 0, (), bound, body, ", ".join(results))
        )
        self.texts["python"] = python
        if self.run:
            execute(python, self.names)
            run = self.names["run"]
            self.direct = lambda *arrays: run((), *arrays)
        return self

    def run_segment(self, segment: Segment) -> None:
        """Steps that are one C function, called with the arrays that they read and write."""
        for step in segment.steps:
            if step.kind in IN_C:
                for var in step.eqn.outs:
                    self.fresh(var)
        names = []
        for i, array in enumerate(segment.arrays):
            if isinstance(array, Need):
                shape = (array.nbytes,)
                names.append(
                    self.need(f"{segment.name}_{i}", shape, np.dtype(np.uint8), array.first)
                )
                self.needs[-1] = (*self.needs[-1][:3], array.first, array.last)
            else:
                if array.name in self.early:
                    self.bound[array.name] = None
                names.append(array.name)
        names += [self.name(v) for v in segment.hosts]
        assert self.shared is not None
        steps = [step for step in segment.steps if step.kind in IN_C]
        known = {id(made.eqn): made.name for made in self.shared.native.made}
        name = known.get(id(steps[0].eqn), steps[0].name)
        self.add(self.timed(segment.name, ", ".join(names), steps[0], "C", name))

    def load(self) -> None:
        """Makes the text's functions, and compiles the segments, now that all are known."""
        execute(self.texts["python"], self.names)
        linked = self.shared
        if linked is None:
            return
        for segment in linked.segments:
            self.names[segment.name] = linked.launcher(segment, 0, {})
        self.compiling = linked.how

    # -- names

    def buffer(self, var: Var) -> Buffer:
        return self.program.buffers[var]

    def name(self, var: Var) -> str:
        """The name of a value, which `run` is to know."""
        name = self.buffer(var).name
        if name in self.early:
            self.bound[name] = None
        return name

    def operand(self, atom: Atom) -> str:
        if isinstance(atom, Var):
            return self.name(atom)
        value = atom.value if atom.type.weak else np.asarray(atom.value, atom.type.dtype)
        return self.given(value, "k")

    def given(self, value: Any, prefix: str) -> str:
        """A name for something made beforehand."""
        name = f"{prefix}{len(self.names)}"
        self.names[name] = value
        return name

    def view(self, name: str, text: str, source: str, comment: str = "") -> str:
        """Names a view: once and for all if what it views is in the arena, else at each call."""
        line = Line(f"{name} = {text}", comment)
        if source in self.early:
            self.early.add(name)
            self.views.append(line)
        else:
            self.body.append(line)
            if source in self.passing:
                self.passing[name] = self.passing[source]
        return name

    def add(self, code: str, comment: str = "") -> None:
        self.body.append(Line(code, comment))

    def fresh(self, var: Var) -> None:
        """Makes an array for the caller, that of the result or of what is
        returned in another form.
        """
        buffer = self.buffer(var)
        if (
            buffer.storage == "view"
            and buffer.base is not None
            and var not in self.program.graph.outputs
        ):
            buffer = buffer.base
        if buffer.storage != "output" or buffer.name in self.begun:
            return
        self.begun.add(buffer.name)
        type_ = buffer.type
        made = f"empty({type_.shape}, {type_.dtype.name})"
        if buffer.donor:
            made = f"{'written' if buffer.written else 'reuse'}({buffer.donor}, {type_.dtype.name})"
        elif worth_keeping(type_.nbytes) and not self.lent:
            made = f"{self.given(Kept(type_.shape, type_.dtype), 'again_')}()"
        self.add(f"{buffer.name} = {made}", str(type_))

    def timed(
        self, f: str, given: str, step: Step, by: str, name: str = "", work: Cost | None = None
    ) -> str:
        """The text of a call, through what times it if there is somebody who does."""
        if self.meter is None:
            return f"{f}({given})"
        found = (
            cost(step.eqn, partial(bytes_behind, self.program.layouts)) if work is None else work
        )
        call = Call(self.title, name or step.name, by, step.eqn, found)
        return f"{self.given(self.meter.timed(call), 'timed_')}({f}, {given})"

    # -- steps

    def run_host(self, step: Step) -> None:
        (out,) = step.eqn.outs
        f = self.given(partial(compute, step.eqn.op, out.type), "host_")
        self.add(
            f"{self.name(out)} = {f}({', '.join(map(self.operand, step.eqn.inputs))})",
            note(step.eqn),
        )

    def run_library(self, step: Step) -> None:
        eqn = step.eqn
        if len(eqn.outs) == 1 and eqn.outs[0].type.weak:
            self.run_host(step)
            return
        inner = self.branches.get(step.number)
        f = self.given(
            reference_of(eqn) if inner is None else hosted(eqn.op, inner), f"{eqn.op.name}_"
        )
        outs = ", ".join(self.name(v) for v in eqn.outs) + ("," if eqn.op.several else "")
        given = list(map(self.operand, eqn.inputs))
        if inner is not None:
            given.insert(0, self.lend(step, f, inner))
            self.passing.update((self.name(v), self.buffer(v)) for v in eqn.outs if not v.type.weak)
        handed = ", ".join(given)
        call = self.timed(f, handed, step, "NumPy") if inner is None else f"{f}({handed})"
        self.add(f"{outs} = {call}" if eqn.outs else call, note(eqn))

    def lend(self, step: Step, f: str, inner: Sequence[Inner]) -> str:
        """The name of what programs that a step runs are bound to: a part of
        the arena, for that step.
        """
        nbytes = max(each.nbytes for each in inner)
        if not nbytes:
            return self.given(bound(inner, np.empty(0, np.uint8)), "bound_")
        arena = self.need(f"{f}_arena", (nbytes,), np.dtype(np.uint8), step.number, direct=False)
        bind, name = self.given(partial(bound, inner), "bind_"), f"{f}_bound"
        self.early.add(name)
        self.bound[name] = None
        self.views.append(Line(f"{name} = {bind}({arena})"))
        return name

    def forget(self, n: int) -> None:
        """Lets go of results of loops and branches that no step after `n` reads."""
        past = [name for name, buffer in self.passing.items() if buffer.last <= n]
        if past:
            self.add(f"del {', '.join(past)}")
        for name in past:
            del self.passing[name]

    def run_view(self, step: Step) -> None:
        eqn = step.eqn
        if self.shared is not None and self.shared.unseen.issuperset(eqn.outs):
            return  # C knows it by its layout
        if not any(isinstance(a, Var) for a in eqn.inputs):
            held = [np.asarray(a.value, a.type.dtype) for a in eqn.inputs if isinstance(a, Literal)]
            constant = self.given(EVALUATE.apply(eqn.op, held)[0], "k")
            self.view(self.buffer(eqn.outs[0]).name, constant, constant, note(eqn))
            return
        for x, out in zip(eqn.inputs, eqn.outs, strict=True):
            assert isinstance(x, Var)
            source = self.buffer(x).name
            text = view_text(eqn, source)
            if source not in self.early:
                text = view_text(eqn, self.name(x))
            self.view(self.buffer(out).name, text, source, note(eqn))

    def run_copy(self, step: Step) -> None:
        (x,), (out,) = step.eqn.inputs, step.eqn.outs
        assert isinstance(x, Var)
        self.fresh(out)
        given = f"{self.name(out)}.reshape({x.type.shape}), {self.name(x)}"
        self.add(self.timed("copyto", given, step, "NumPy"), note(step.eqn))

    def run_matmul(self, step: Step) -> None:
        eqn = step.eqn
        assert isinstance(eqn.op, DotGeneral)
        (out,) = eqn.outs
        a, b, y = product(eqn)
        self.fresh(out)
        left, right = (
            self.matrix(x, *turned) for x, turned in zip(eqn.inputs, (a, b), strict=True)
        )
        given = f"{left}, {right}, out={self.aligned(out, None, y)}"
        self.add(self.timed("matmul", given, step, "NumPy"), note(eqn))

    def run_kernel(self, step: Step) -> None:
        eqn = step.eqn
        types = tuple(a.type for a in eqn.inputs), tuple(v.type for v in eqn.outs)
        choice = choose(
            Problem(eqn.op, *types, shared=step.shared), Caps(self.threads), prefs(), BLOCKED
        )
        chosen: Launch = choice.kernels()
        view = chosen.view
        name = f"{view.kind}_{len(self.made)}"
        module = load(chosen.source)
        self.names[name] = module[view.name]
        inner = chosen.op.graph
        outer: dict[Atom, Atom] = dict(
            zip((*inner.inputs, *inner.outputs), (*eqn.inputs, *eqn.outs), strict=True)
        )
        for var in eqn.outs:
            self.fresh(var)
        arrays = [self.param(outer, p) for p in (*view.inputs, *view.outputs)]
        partials = [
            self.need(f"{name}_{s.name}", s.shape, s.dtype, step.number) for s in view.partials
        ]
        self.call(step, name, view, [*arrays, *partials])
        if view.after:
            self.names[f"{name}_finish"] = module["finish"]
            handed = ", ".join([*arrays[len(view.inputs) :], *partials])
            self.add(self.timed(f"{name}_finish", handed, step, "Python", f"{name}_finish", Cost()))
        self.made.append(Made(eqn, view.kind, name, name, lambda: chosen.source, language="python"))

    def call(self, step: Step, name: str, view: KernelView, arrays: Sequence[str]) -> None:
        if not view.looped:
            scratch = [
                self.need(f"{name}_{s.name}", s.shape, s.dtype, step.number) for s in view.scratch
            ]
            self.add(self.timed(name, ", ".join([*arrays, *scratch]), step, "Python", name))
            return
        sets = []
        shared = math.prod(view.tiling.space) >= SHARED
        for i in range(min(self.threads, view.tiling.parts) if shared else 1):
            own = [
                self.need(f"{name}_{s.name}_{i}", s.shape, s.dtype, step.number, direct=False)
                for s in view.scratch
            ]
            sets.append(f"({', '.join(own)}{',' if own else ''})")
        self.early.add(f"{name}_work")
        self.bound[f"{name}_work"] = None
        self.views.append(Line(f"{name}_work = ({', '.join(sets)},)"))
        given = f"{name}, {view.tiling.parts}, ({', '.join(arrays)},), {name}_work"
        self.add(self.timed("launch", given, step, "Python", name))

    def need(self, name: str, shape: Dims, dtype: np.dtype, n: int, direct: bool = True) -> str:
        """An array of the arena that lives for one step."""
        self.needs.append((name, shape, dtype, n, n))
        self.early.add(name)
        if direct:
            self.bound[name] = None
        return name

    def matrix(self, atom: Atom, order: Dims | None, shape: Dims | None) -> str:
        """An operand of a product.

        Its axes may not merge without a copy, which is then made at each call.
        """
        if (
            shape is None
            or isinstance(atom, Literal)
            or (order is None and self.buffer(atom).storage == "arena")
        ):
            return self.aligned(atom, order, shape)
        return f"{self.aligned(atom, order, None)}.reshape({shape})"

    def param(self, outer: dict[Atom, Atom], param: Param) -> str:
        return self.aligned(outer[param.var], param.order, param.shape)

    def aligned(self, atom: Atom, order: Dims | None, shape: Dims | None) -> str:
        """An array with its axes in another order and of another shape: a view, never a copy."""
        if isinstance(atom, Literal):
            value = np.asarray(atom.value, atom.type.dtype)
            value = value if order is None else value.transpose(order)
            return self.given(value if shape is None else value.reshape(shape), "k")
        source = self.buffer(atom).name
        turned = ("" if order is None else f".transpose({order})") + (
            "" if shape is None else f".reshape({shape})"
        )
        if not turned:
            return self.name(atom)
        if source not in self.early:
            return f"{self.name(atom)}{turned}"
        name = source + "_" + "_".join(str(n) for n in (*(order or ()), "as", *(shape or ())))
        if name not in self.early:
            self.view(name, f"{source}{turned}", source)
        self.bound[name] = None
        return name

    # -- results

    def result(self, atom: Atom, i: int) -> str:
        """What is returned: a Python number, or an array that nobody else holds."""
        if isinstance(atom, Literal):
            number = self.operand(atom)
            return number if atom.type.weak else f"array({number})"
        name, buffer = self.name(atom), self.buffer(atom)
        if atom.type.weak:
            return name
        again = atom in self.program.graph.outputs[:i]
        if buffer.storage == "output" and not again:
            return name
        return (
            f"owned({name})"
            if buffer.storage == "library" and not again
            else f"array({name}, order='C')"
        )


def owned(y: Any) -> Any:
    """A result that a library made, or a copy where somebody else may hold its memory."""
    flags = y.flags
    if (
        type(y) is np.ndarray
        and flags.owndata
        and flags.c_contiguous
        and flags.writeable
        and y.base is None
    ):
        return y
    return np.array(y, order="C")


def reuse(x: Any, dtype: np.dtype) -> Any:
    """A donated array if it can hold a result, else a new one like it."""
    flags = x.flags
    if flags.c_contiguous and flags.writeable and flags.owndata:
        return x
    return np.empty(x.shape, dtype)


def written(x: Any, dtype: np.dtype) -> Any:
    """An argument that is written if its last contents can be made in it,
    else a new array like it.
    """
    return x if x.flags.carray else np.empty(x.shape, dtype)
