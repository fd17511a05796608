"""The Python text of a program: `bind` lays out an arena once, `run` is what each call executes."""

from __future__ import annotations

import builtins
import math
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any, final

import numpy as np

from ge2.base.dtypes import SHORT
from ge2.base.interpreter import collector_paused
from ge2.base.memory import Lifetime, plan
from ge2.base.record import record
from ge2.base.source import execute, load
from ge2.choice.choose import choose
from ge2.choice.problem import Problem, prefs
from ge2.codegen.environment import render
from ge2.codegen.kernel_values import Param
from ge2.codegen.layout import KernelView, Line
from ge2.ir import Atom, Dims, Evaluate, Literal, Var
from ge2.ops.dot import DotGeneral
from ge2.program.assembler import Assembler
from ge2.program.cost import Cost
from ge2.program.program import Buffer, Inner, Program, Step, bound, hosted
from ge2.program.records import Made
from ge2.program.timer import Meter
from ge2.targets.c.blocked.family import Launch
from ge2.targets.c.caps import Caps
from ge2.targets.c.families import BLOCKED
from ge2.targets.c.linked import Linked
from ge2.targets.c.load.blas import matmul_on, services
from ge2.targets.c.load.outputs import Kept, worth_keeping
from ge2.targets.c.load.pool import launch
from ge2.targets.c.native import IN_C, Native, Need, Segment, lifetimes
from ge2.targets.c.numpy_steps import note, product, reference_of, view_text
from ge2.targets.c.tuning import TUNING, Tuning

TEMPLATE = "numpy/program.py.jinja"
NUMPY = ("empty", "array", "copyto", "matmul", "broadcast_to", "ndarray")
EVALUATE = Evaluate()
BYTES = np.dtype(np.uint8)


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
    """What the template of a program prints."""

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
        self.caps = Caps(threads, bool(services().dgemm), tuning)
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
        self.early |= {*self.arena_buffers()}
        for part in self.program.steps if self.shared is None else self.shared.parts:
            if isinstance(part, Segment):
                self.run_segment(part)
                self.forget(max(step.number for step in part.steps if step.kind != "view"))
            else:
                getattr(self, f"run_{part.kind}")(part)
                self.forget(part.number)
        results = self.results()
        self.plan = plan([*self.needs.values()])
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
        for name, offset in self.offsets().items():
            shape, dtype = self.shapes.get(name) or types[name]
            found.append(Line(f"{name} = ndarray({shape}, {dtype.name}, arena, {offset})"))
        return found

    def python(self, bind: tuple[Line, ...], results: str, nbytes: int | None = None) -> str:
        inputs = ", ".join(self.name(v) for v in self.program.graph.inputs)
        nbytes = self.nbytes if nbytes is None else nbytes
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
        self.needs = {names.get(id(n), f"own{i}"): life for i, (n, life) in enumerate(lives)}
        self.plan = plan([*self.needs.values()])
        self.made, self.texts["c"] = native.made, linked.source
        launcher = None
        if self.run:
            offsets = dict(zip(map(id, native.needs), self.plan.offsets, strict=True))
            launcher = linked.launcher(segment, self.plan.nbytes, offsets)
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
            self.direct = launcher
            return self
        self.names["compiled"] = launcher
        for step in self.program.steps:
            if step.kind == "host":
                self.run_host(step)
        outs = "".join(f"{self.name(v)}, " for v in dict.fromkeys(made))
        self.add(f"{outs}= compiled({', '.join(map(self.name, given))})")
        self.texts["python"] = self.python((), self.results(), 0)
        if self.run:
            execute(self.texts["python"], self.names)
            run = self.names["run"]
            self.direct = lambda *arrays: run((), *arrays)
        return self

    def buffers_of(self, native: Native) -> list[Buffer]:
        """The program's arrays that lie in the arena of a C function."""
        return [b for b in self.program.buffers.values() if id(b) in native.arena]

    def run_segment(self, segment: Segment) -> None:
        """Steps that are one C function, called with the arrays that they read and write."""
        for step in segment.steps:
            if step.kind in IN_C:
                for var in step.eqn.outs:
                    self.fresh(var)
        names = []
        for i, array in enumerate(segment.arrays):
            if isinstance(array, Need):
                life = Lifetime(array.nbytes, array.first, array.last)
                names.append(self.claim(f"{segment.name}_{i}", (array.nbytes,), BYTES, life))
            else:
                if array.name in self.early:
                    self.bound[array.name] = None
                names.append(array.name)
        names += [self.name(v) for v in segment.hosts]
        assert self.shared is not None
        first = next(step for step in segment.steps if step.kind in IN_C)
        known = {id(made.eqn): made.name for made in self.shared.native.made}
        name = known.get(id(first.eqn), first.name)
        self.add(self.timed(segment.name, ", ".join(names), first.eqn, "C", name))

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
        self.compiling = linked.how
        self.code = linked.library.nbytes if linked.native.runs else 0

    # -- names

    def name(self, var: Var) -> str:
        """The name of a value, which `run` is to know."""
        name = self.buffer(var).name
        if name in self.early:
            self.bound[name] = None
        return name

    def operand(self, atom: Atom) -> str:
        return self.name(atom) if isinstance(atom, Var) else self.constant(atom)

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
        self.add(f"{buffer.name} = {made}", str(type_))

    # -- steps

    def run_host(self, step: Step) -> None:
        number = self.host_number(step)
        self.add(f"{self.name(step.eqn.outs[0])} = {number}", note(step.eqn))

    def run_library(self, step: Step) -> None:
        eqn = step.eqn
        if len(eqn.outs) == 1 and eqn.outs[0].type.weak:
            self.run_host(step)
            return
        inner = self.branches.get(step.number)
        f = self.bind(
            reference_of(eqn) if inner is None else hosted(eqn.op, inner), f"{eqn.op.name}_"
        )
        outs = ", ".join(self.name(v) for v in eqn.outs) + ("," if eqn.op.several else "")
        given = list(map(self.operand, eqn.inputs))
        if inner is not None:
            given.insert(0, self.lend(step, f, inner))
            self.passing.update((self.name(v), self.buffer(v)) for v in eqn.outs if not v.type.weak)
        handed = ", ".join(given)
        call = self.timed(f, handed, eqn, "NumPy", step.name) if inner is None else f"{f}({handed})"
        self.add(f"{outs} = {call}" if eqn.outs else call, note(eqn))

    def lend(self, step: Step, f: str, inner: Sequence[Inner]) -> str:
        """The name of what programs that a step runs are bound to: a part of
        the arena, for that step.
        """
        nbytes = max(each.nbytes for each in inner)
        if not nbytes:
            return self.bind(bound(inner, np.empty(0, np.uint8)), "bound_")
        arena = self.need(f"{f}_arena", (nbytes,), BYTES, step.number, direct=False)
        bind, name = self.bind(partial(bound, inner), "bind_"), f"{f}_bound"
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
            constant = self.bind(EVALUATE.apply(eqn.op, held)[0], "k")
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
        self.add(self.timed("copyto", given, step.eqn, "NumPy", step.name), note(step.eqn))

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
        self.add(self.timed("matmul", given, eqn, "NumPy", step.name), note(eqn))

    def run_kernel(self, step: Step) -> None:
        eqn = step.eqn
        types = tuple(a.type for a in eqn.inputs), tuple(v.type for v in eqn.outs)
        choice = choose(Problem(eqn.op, *types, shared=step.shared), self.caps, prefs(), BLOCKED)
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
            self.add(self.timed(f"{name}_finish", handed, eqn, "Python", f"{name}_finish", Cost()))
        self.made.append(
            Made(
                eqn, view.kind, name, name, lambda: chosen.source, language="python", choice=choice
            )
        )

    def call(self, step: Step, name: str, view: KernelView, arrays: Sequence[str]) -> None:
        if not view.looped:
            scratch = [
                self.need(f"{name}_{s.name}", s.shape, s.dtype, step.number) for s in view.scratch
            ]
            self.add(self.timed(name, ", ".join([*arrays, *scratch]), step.eqn, "Python", name))
            return
        sets = []
        shared = math.prod(view.tiling.space) >= self.caps.tuning.shared
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
        self.add(self.timed("launch", given, step.eqn, "Python", name))

    def need(self, name: str, shape: Dims, dtype: np.dtype, n: int, direct: bool = True) -> str:
        """An array of the arena that lives for one step."""
        return self.claim(
            name, shape, dtype, Lifetime(math.prod(shape) * dtype.itemsize, n, n), direct
        )

    def claim(
        self, name: str, shape: Dims, dtype: np.dtype, life: Lifetime, direct: bool = True
    ) -> str:
        """An array of the arena, which `bind` passes to `run` if it is named there: `direct`."""
        self.needs[name], self.shapes[name] = life, (shape, dtype)
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
            return self.bind(value if shape is None else value.reshape(shape), "k")
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
