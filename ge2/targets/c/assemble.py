"""The Python text of a program in C, step by step."""

from __future__ import annotations

import builtins
import math
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any, final

import numpy as np

from ge2.base.arrays import SHORT
from ge2.base.record import collector_paused, record
from ge2.base.source import execute, load
from ge2.choice import Problem, prefs
from ge2.choice.choose import choose
from ge2.codegen.environment import render
from ge2.codegen.kernel_values import Param
from ge2.codegen.layout import KernelView, Line
from ge2.ir import Atom, Dims, Evaluate, Literal, Var
from ge2.program import Buffer, Cost, Inner, Program, Step, bound, hosted
from ge2.program.assembler import Assembler, Meter, StepCode
from ge2.program.records import Made
from ge2.program.timeline import Lifetime, plan
from ge2.targets.c.blocked import Launch
from ge2.targets.c.families import BLOCKED
from ge2.targets.c.launcher import Kept, launch, worth_keeping
from ge2.targets.c.libraries import limits, matmul_on
from ge2.targets.c.linked import Linked
from ge2.targets.c.loops import IN_C, Need, Segment
from ge2.targets.c.native import Native, lifetimes
from ge2.targets.c.numpy_calls import blocked, note, product, reference_of, view_text
from ge2.targets.c.tuning import TUNING, Tuning

# -------- Steps of a program as Python calls them: C functions, NumPy, blocked NumPy, numbers of
# the host.


EVALUATE = Evaluate()
BYTES = np.dtype(np.uint8)
Shape = tuple[Dims, np.dtype]


class CStep(StepCode["CAssembler"]):
    """A step between `bind`, which lays out the arena once, and `run`, which is a call.

    `shapes`: of what it needs; `views`: lines of `bind` by the names that they make; `uses`: names
    that its own lines read, of which `bind` passes on those that it knows. `passing`: results of
    loops and branches, and views of them.
    """

    def __init__(self, assembler: CAssembler, step: Step) -> None:
        super().__init__(assembler, step)
        self.shapes: dict[str, Shape] = {}
        self.views: dict[str, Line] = {}
        self.uses: dict[str, None] = {}
        self.passing: dict[str, Buffer] = {}

    def add(self, code: str) -> None:
        self.lines.append(Line(code, note(self.step.eqn)))

    # -- names

    def name(self, var: Var) -> str:
        return self.use(self.assembler.buffer(var).name)

    def use(self, name: str) -> str:
        self.uses[name] = None
        return name

    def operand(self, atom: Atom) -> str:
        return self.name(atom) if isinstance(atom, Var) else self.assembler.constant(atom)

    def is_early(self, name: str) -> bool:
        """True of what is known once the arena is."""
        return name in self.assembler.early or name in self.views

    def view(self, name: str, text: str, source: str, comment: str = "") -> None:
        """Names a view: once and for all if what it views is in the arena, else at each call."""
        line = Line(f"{name} = {text}", comment)
        if self.is_early(source):
            self.views[name] = line
            return
        self.lines.append(line)
        if source in self.assembler.passing:
            self.passing[name] = self.assembler.passing[source]

    def aligned(self, atom: Atom, order: Dims | None, shape: Dims | None) -> str:
        """An array with its axes in another order and of another shape: a view, never a copy."""
        if isinstance(atom, Literal):
            value = np.asarray(atom.value, atom.type.dtype)
            value = value if order is None else value.transpose(order)
            return self.assembler.bind(value if shape is None else value.reshape(shape), "k")
        source = self.assembler.buffer(atom).name
        moved = "" if order is None else f".transpose({order})"
        moved += "" if shape is None else f".reshape({shape})"
        if not moved or not self.is_early(source):
            return f"{self.name(atom)}{moved}"
        name = source + "_" + "_".join(str(n) for n in (*(order or ()), "as", *(shape or ())))
        if not self.is_early(name):
            self.view(name, f"{source}{moved}", source)
        return self.use(name)

    # -- memory

    def need(self, name: str, shape: Dims, dtype: np.dtype) -> str:
        """The name of an array of the arena that this step has for itself."""
        n = self.step.number
        return self.claim(name, shape, dtype, Lifetime(math.prod(shape) * dtype.itemsize, n, n))

    def claim(self, name: str, shape: Dims, dtype: np.dtype, life: Lifetime) -> str:
        self.needs[name], self.shapes[name] = life, (shape, dtype)
        return name


@final
class HostStep(CStep):
    """A number that Python computes."""

    def __init__(self, assembler: CAssembler, step: Step) -> None:
        super().__init__(assembler, step)
        number = assembler.host_number(step)
        self.add(f"{self.name(step.eqn.outs[0])} = {number}")


@final
class LibraryStep(CStep):
    """Steps that the reference computes, and loops and branches that Python runs."""

    def __init__(self, assembler: CAssembler, step: Step) -> None:
        super().__init__(assembler, step)
        eqn, inner = step.eqn, assembler.branches.get(step.number)
        work = reference_of(eqn) if inner is None else hosted(eqn.op, inner)
        f = assembler.bind(work, f"{eqn.op.name}_")
        outs = ", ".join(self.name(v) for v in eqn.outs) + ("," if eqn.op.several else "")
        given = list(map(self.operand, eqn.inputs))
        if inner is None:
            call = assembler.timed(f, ", ".join(given), eqn, "NumPy", step.name)
        else:
            call = f"{f}({', '.join([self.lend(f, inner), *given])})"
            made = (v for v in eqn.outs if not v.type.weak)
            self.passing = {self.name(v): assembler.buffer(v) for v in made}
        self.add(f"{outs} = {call}" if eqn.outs else call)

    def lend(self, f: str, inner: Sequence[Inner]) -> str:
        """The name of what programs that a step runs are bound to: a part of
        the arena, for that step.
        """
        nbytes, bind = max(each.nbytes for each in inner), self.assembler.bind
        if not nbytes:
            return bind(bound(inner, np.empty(0, np.uint8)), "bound_")
        arena, name = self.need(f"{f}_arena", (nbytes,), BYTES), f"{f}_bound"
        self.views[name] = Line(f"{name} = {bind(partial(bound, inner), 'bind_')}({arena})")
        return self.use(name)


@final
class ViewStep(CStep):
    """Another form of an array, without a copy; constants, which are there from the start."""

    def __init__(self, assembler: CAssembler, step: Step) -> None:
        super().__init__(assembler, step)
        eqn, words = step.eqn, note(step.eqn)
        if assembler.shared is not None and assembler.shared.unseen.issuperset(eqn.outs):
            return  # C knows it by its layout
        if not any(isinstance(a, Var) for a in eqn.inputs):
            held = [np.asarray(a.value, a.type.dtype) for a in eqn.inputs if isinstance(a, Literal)]
            constant = assembler.bind(EVALUATE.apply(eqn.op, held)[0], "k")
            self.view(assembler.buffer(eqn.outs[0]).name, constant, constant, words)
            return
        for x, out in zip(eqn.inputs, eqn.outs, strict=True):
            assert isinstance(x, Var)
            source = assembler.buffer(x).name
            self.view(assembler.buffer(out).name, view_text(eqn, source), source, words)


@final
class CopyStep(CStep):
    """A view that has to be a copy."""

    def __init__(self, assembler: CAssembler, step: Step) -> None:
        super().__init__(assembler, step)
        (x,), (out,) = step.eqn.inputs, step.eqn.outs
        assert isinstance(x, Var)
        self.results = (out,)
        given = f"{self.name(out)}.reshape({x.type.shape}), {self.name(x)}"
        self.add(assembler.timed("copyto", given, step.eqn, "NumPy", step.name))


@final
class ProductStep(CStep):
    """A matrix product by NumPy."""

    def __init__(self, assembler: CAssembler, step: Step) -> None:
        super().__init__(assembler, step)
        eqn = step.eqn
        *moved, y = product(eqn)
        self.results = eqn.outs
        left, right = (self.matrix(x, *each) for x, each in zip(eqn.inputs, moved, strict=True))
        given = f"{left}, {right}, out={self.aligned(eqn.outs[0], None, y)}"
        self.add(assembler.timed("matmul", given, eqn, "NumPy", step.name))

    def matrix(self, atom: Atom, order: Dims | None, shape: Dims | None) -> str:
        """An operand of a product.

        Its axes may not merge without a copy, which is then made at each call.
        """
        if (
            shape is None
            or isinstance(atom, Literal)
            or (order is None and self.assembler.buffer(atom).storage == "arena")
        ):
            return self.aligned(atom, order, shape)
        return f"{self.aligned(atom, order, None)}.reshape({shape})"


@final
class BlockedStep(CStep):
    """A region as blocked NumPy."""

    def __init__(self, assembler: CAssembler, step: Step) -> None:
        super().__init__(assembler, step)
        eqn = self.eqn = step.eqn
        problem = Problem.of(eqn, shared=step.shared)
        self.choice = choose(problem, assembler.caps, prefs(), BLOCKED)
        chosen: Launch = self.choice.kernels()
        view, module, names = chosen.view, load(chosen.source), assembler.names
        kind, name = view.kind, f"{view.kind}_{len(assembler.made)}"
        names[name] = blocked(module[view.name], eqn.op)
        self.results = eqn.outs
        inner = chosen.op.graph
        pairs = zip((*inner.inputs, *inner.outputs), (*eqn.inputs, *eqn.outs), strict=True)
        arrays = self.arrays(dict(pairs), (*view.inputs, *view.outputs))
        partials = [self.need(f"{name}_{s.name}", s.shape, s.dtype) for s in view.partials]
        self.call(name, view, [*arrays, *map(self.use, partials)])
        if view.after:
            finish = f"{name}_finish"
            names[finish] = module["finish"]
            given = ", ".join([*arrays[len(view.inputs) :], *partials])
            self.line(assembler.timed(finish, given, eqn, "Python", finish, Cost()))
        self.made.append(
            Made(
                eqn, kind, name, name, lambda: chosen.source,
                language="python", choice=self.choice,
            )
        )  # fmt: skip

    def arrays(self, outer: dict[Atom, Atom], params: Sequence[Param]) -> list[str]:
        return [self.aligned(outer[p.var], p.order, p.shape) for p in params]

    def line(self, code: str) -> None:
        self.lines.append(Line(code))

    def call(self, name: str, view: KernelView, arrays: Sequence[str]) -> None:
        assembler, eqn = self.assembler, self.eqn
        if not view.looped:
            own = [self.use(self.need(f"{name}_{s.name}", s.shape, s.dtype)) for s in view.scratch]
            given = ", ".join([*arrays, *own])
            self.line(assembler.timed(name, given, eqn, "Python", name))
            return
        sets = []
        shared = math.prod(view.tiling.space) >= assembler.caps.tuning.shared
        for i in range(min(assembler.threads, view.tiling.parts) if shared else 1):
            own = [self.need(f"{name}_{s.name}_{i}", s.shape, s.dtype) for s in view.scratch]
            sets.append(f"({', '.join(own)}{',' if own else ''})")
        work = self.use(f"{name}_work")
        self.views[work] = Line(f"{work} = ({', '.join(sets)},)")
        given = f"{name}, {view.tiling.parts}, ({', '.join(arrays)},), {work}"
        self.line(assembler.timed("launch", given, eqn, "Python", name))


@final
class SegmentStep(CStep):
    """Steps that are one C function, called with the arrays that they read and write."""

    def __init__(self, assembler: CAssembler, segment: Segment, made: Sequence[Made]) -> None:
        steps = [step for step in segment.steps if step.kind in IN_C]
        super().__init__(assembler, steps[0])
        self.results = tuple(v for step in steps for v in step.eqn.outs)
        names = [self.array(f"{segment.name}_{i}", x) for i, x in enumerate(segment.arrays)]
        names += [self.name(v) for v in segment.hosts]
        eqn = steps[0].eqn
        name = next((each.name for each in made if each.eqn is eqn), steps[0].name)
        self.lines.append(Line(assembler.timed(segment.name, ", ".join(names), eqn, "C", name)))

    def array(self, name: str, x: Need | Buffer) -> str:
        """An array of the program, or scratch."""
        if isinstance(x, Buffer):
            return self.use(x.name)
        life = Lifetime(x.nbytes, x.first, x.last)
        return self.use(self.claim(name, (x.nbytes,), BYTES, life))


STEPS: dict[str, type[CStep]] = {
    "host": HostStep,
    "library": LibraryStep,
    "view": ViewStep,
    "copy": CopyStep,
    "matmul": ProductStep,
    "kernel": BlockedStep,
}


def step_of(assembler: CAssembler, step: Step) -> CStep:
    """A step that is not part of a C function."""
    outs = step.eqn.outs
    number = step.kind == "library" and len(outs) == 1 and outs[0].type.weak
    return STEPS["host" if number else step.kind](assembler, step)


# -------- The Python text of a program: `bind` lays out an arena once, `run` is what each call
# executes.


TEMPLATE = "numpy/program.py.jinja"
NUMPY = ("empty", "array", "copyto", "matmul", "broadcast_to", "ndarray")


@cache
def known() -> dict[str, Any]:
    """The names that every program knows, beside Python's own: one dictionary for all."""
    numpy = {name: getattr(np, name) for name in NUMPY}
    dtypes = {dtype.name: dtype for dtype in (*SHORT, np.dtype(np.uint8))}
    own = {"launch": launch, "owned": owned, "reuse": reuse, "written": written}
    return {**vars(builtins), **numpy, **dtypes, **own}


@final
@record
class ProgramText:
    """The view that the template of a program prints."""

    name: str
    parameters: str
    arena: int
    bind: tuple[Line, ...]
    bound: tuple[str, ...]
    run: tuple[Line, ...]
    results: str


@final
class CAssembler(Assembler):
    """A program as C functions, and NumPy between them: `bind` lays out an arena, `run` is a call.

    `borrowed`: all of its scratch is another program's, and it keeps no results.
    """

    def __init__(
        self,
        program: Program,
        title: str,
        threads: int,
        branches: Mapping[int, Sequence[Inner]],
        borrowed: bool = False,
        run: bool = True,
        meter: Meter | None = None,
        tuning: Tuning = TUNING,
    ) -> None:
        super().__init__(program, title, run, meter)
        self.caps = limits(threads, tuning)
        self.threads, self.branches, self.borrowed = threads, branches, borrowed
        self.bound: dict[str, None] = {}  # names that `bind` passes to `run`
        self.body: list[Line] = []
        self.shapes: dict[str, tuple[Dims, np.dtype]] = {}  # of arrays of the arena
        self.views: list[Line] = []  # lines of `bind` that follow the arrays of the arena
        self.early: set[str] = set()  # names known once the arena is
        # results of loops and branches, and views of them
        self.passing: dict[str, Buffer] = {}
        self.shared: Linked | None = None

    @collector_paused
    def build(self) -> CAssembler:
        self.names["__builtins__"] = known()
        self.names["matmul"] = matmul_on(self.threads)
        if self.program.target == "c":
            measured = self.meter is not None
            self.shared = Linked(
                self.program, self.caps, self.title, self.borrowed or measured, measured
            )
            if self.shared.whole is not None:
                return self.build_whole(self.shared, self.shared.whole)
        self.early |= {*self.arena.claim(self.program.buffers.values())}
        for part in self.program.steps if self.shared is None else self.shared.parts:
            if isinstance(part, Step):
                self.add(step_of(self, part))
                self.forget(part.number)
            else:
                assert self.shared is not None
                self.add(SegmentStep(self, part, self.shared.native.made))
                self.forget(max(step.number for step in part.steps if step.kind != "view"))
        results = self.results()
        self.arena.plan = plan([*self.arena.needs.values()])
        if self.shared is not None and self.shared.segments:
            self.texts["c"] = self.shared.source
        self.texts["python"] = self.python((*self.arrays(), *self.views), results)
        if self.shared is not None:
            self.made += self.shared.native.made
        if self.run:
            self.load()
        return self

    def arrays(self) -> list[Line]:
        """The arrays of the arena."""
        types = {b.name: (b.type.shape, b.type.dtype) for b in self.program.buffers.values()}
        found = []
        for name, offset in self.arena.offsets().items():
            shape, dtype = self.shapes.get(name) or types[name]
            found.append(Line(f"{name} = ndarray({shape}, {dtype.name}, arena, {offset})"))
        return found

    def python(self, bind: tuple[Line, ...], results: str, nbytes: int | None = None) -> str:
        inputs = ", ".join(self.name(v) for v in self.program.graph.inputs)
        nbytes = self.arena.nbytes if nbytes is None else nbytes
        bound, body = tuple(self.bound), tuple(self.body)
        return render(TEMPLATE, ProgramText("program", inputs, nbytes, bind, bound, body, results))

    # -- compiled C

    def build_whole(self, linked: Linked, segment: Segment) -> CAssembler:
        """A program that is one C function: the launcher allocates, and
        Python does its own numbers.
        """
        native = linked.native
        names = {id(native.arena[id(b)]): b.name for b in self.buffers_of(native)}
        lives = zip(native.needs, lifetimes(native.needs), strict=True)
        arena = self.arena
        arena.needs = {names.get(id(n), f"own{i}"): life for i, (n, life) in enumerate(lives)}
        arena.plan = plan([*arena.needs.values()])
        self.made, self.texts["c"] = native.made, linked.source
        launcher = None
        if self.run:
            offsets = dict(zip(map(id, native.needs), arena.plan.offsets, strict=True))
            launcher = linked.launcher(segment, arena.nbytes, offsets)
            self.note_compiled(linked)
        graph = self.program.graph
        made = [
            v for v in graph.outputs if isinstance(v, Var) and self.buffer(v).storage == "output"
        ]
        given = linked.given(segment)
        if (
            given == list(graph.inputs)
            and list(graph.outputs) == made
            and len(set(made)) == len(made)
        ):
            self.built.direct = launcher
            return self
        self.names["compiled"] = launcher
        for step in self.program.steps:
            if step.kind == "host":
                self.add(step_of(self, step))
        outs = "".join(f"{self.name(v)}, " for v in dict.fromkeys(made))
        self.body.append(Line(f"{outs}= compiled({', '.join(map(self.name, given))})"))
        self.texts["python"] = self.python((), self.results(), 0)
        if self.run:
            execute(self.texts["python"], self.names)
            run = self.names["run"]
            self.built.direct = lambda *arrays: run((), *arrays)
        return self

    def buffers_of(self, native: Native) -> list[Buffer]:
        """The program's arrays that lie in the arena of a C function."""
        return [b for b in self.program.buffers.values() if id(b) in native.arena]

    def load(self) -> None:
        """Makes the text's functions, and compiles the segments, now that all are known."""
        execute(self.texts["python"], self.names)
        linked = self.shared
        if linked is None:
            return
        for segment in linked.segments:
            self.names[segment.name] = linked.launcher(segment, 0, {})
        self.note_compiled(linked)

    def note_compiled(self, linked: Linked) -> None:
        self.built.how = linked.how
        self.built.code = linked.library.nbytes if linked.native.runs else 0

    # -- names

    def name(self, var: Var) -> str:
        """The name of a value, which `run` is to know."""
        name = self.buffer(var).name
        if name in self.early:
            self.bound[name] = None
        return name

    def operand(self, atom: Atom) -> str:
        return self.name(atom) if isinstance(atom, Var) else self.constant(atom)

    def fresh(self, var: Var) -> None:
        """Makes the caller's array of a result."""
        buffer = self.result_to_make(var)
        if buffer is None:
            return
        type_ = buffer.type
        made = f"empty({type_.shape}, {type_.dtype.name})"
        if buffer.donor:
            made = f"{'written' if buffer.written else 'reuse'}({buffer.donor}, {type_.dtype.name})"
        elif worth_keeping(type_.nbytes, self.caps.tuning.results) and not self.borrowed:
            made = f"{self.bind(Kept(type_.shape, type_.dtype), 'again_')}()"
        self.body.append(Line(f"{buffer.name} = {made}", str(type_)))

    # -- steps

    def write_step(self, code: CStep) -> None:
        for var in code.results:
            self.fresh(var)
        self.shapes |= code.shapes
        self.early |= {*code.needs, *code.views}
        self.bound |= {name: None for name in code.uses if name in self.early}
        self.views += code.views.values()
        self.body += code.lines
        self.passing |= code.passing

    def forget(self, n: int) -> None:
        """Lets go of results of loops and branches that no step after `n` reads."""
        past = [name for name, buffer in self.passing.items() if buffer.last <= n]
        if past:
            self.body.append(Line(f"del {', '.join(past)}"))
        for name in past:
            del self.passing[name]

    # -- results

    def copy_of_result(self, var: Var, again: bool) -> str:
        name = self.name(var)
        made = self.buffer(var).storage == "library" and not again
        return f"owned({name})" if made else f"array({name}, order='C')"


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
