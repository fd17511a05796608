"""The Python text of a program: `bind` lays out an arena once, `run` is what each call executes."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, final

import numpy as np

from ge2.base.dtypes import SHORT
from ge2.base.interpreter import collector_paused
from ge2.base.memory import plan
from ge2.base.record import record
from ge2.base.source import execute
from ge2.codegen.environment import render
from ge2.codegen.layout import Line
from ge2.ir import Atom, Dims, Var
from ge2.program.assembler import Assembler
from ge2.program.program import Buffer, Inner, Program, Step
from ge2.program.timer import Meter
from ge2.targets.c.caps import Caps
from ge2.targets.c.linked import Linked
from ge2.targets.c.load.blas import matmul_on, services
from ge2.targets.c.load.outputs import Kept, worth_keeping
from ge2.targets.c.load.pool import launch
from ge2.targets.c.native import Native, Segment, lifetimes
from ge2.targets.c.steps import CStep, SegmentStep, step_of
from ge2.targets.c.tuning import TUNING, Tuning

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
