"""A program as launches: the Python text that each call runs on a device, and
the kernels it launches.

What no kernel of ours serves is computed by the array module where it can (`by_arrays`), and else
by the reference on the CPU: right, and slow, and the report says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, final

import numpy as np

from ge2.base.dtypes import SHORT
from ge2.base.interpreter import collector_paused
from ge2.base.memory import Plan, plan
from ge2.base.record import record
from ge2.base.source import execute
from ge2.choice.problem import Problem
from ge2.codegen.environment import render
from ge2.codegen.kernel_values import held
from ge2.codegen.layout import Layout, Line, plain
from ge2.codegen.text import Operand
from ge2.ir import ArrayType, Atom, Eqn, Literal, Op, Var
from ge2.ops.shape import Constant
from ge2.program.assembler import Assembler
from ge2.program.cost import Cost
from ge2.program.program import Buffer, Program, Step
from ge2.program.records import Part, place, ranged, scopes_of, title
from ge2.program.timeline import planned_beside
from ge2.program.timer import Meter
from ge2.targets.cuda.device import Device, address, kept_as, upload, view
from ge2.targets.cuda.device_arrays import again, anew, current_first, narrowed, quietly, ready
from ge2.targets.cuda.launch.arguments import Address
from ge2.targets.cuda.launch.fast_call import straight
from ge2.targets.cuda.launch.template import Group
from ge2.targets.cuda.load.kernels import ProgramKernels
from ge2.targets.cuda.loops.iterate import Body, loose
from ge2.targets.cuda.loops.steps import as_loop_body, loop_code, placed
from ge2.targets.cuda.steps.code import CudaStep
from ge2.targets.cuda.steps.host import HostStep, LibraryStep
from ge2.targets.cuda.steps.kernels import KernelStep

if TYPE_CHECKING:
    from ge2.targets.cuda.device_arrays import Failed

TEMPLATE = "numpy/launches.py.jinja"


@final
@record
class LauncherText:
    """What the template prints."""

    parameters: str
    arena: int
    lent: bool  # whether there is memory for it
    made: tuple[Line, ...]  # the arrays that are made for the caller
    again: str  # the same, where there was no memory for them
    run: tuple[Line, ...]
    results: str


ALIGNMENT = 256  # of arrays in the arena: what a library asks of its scratch
ON_DEVICE = ("kernel", "copy", "matmul", "view")  # kinds of steps


@final
class CudaAssembler(Assembler):
    """A program as groups of launches on a device, and Python between them.

    `within`: the loop or the branch whose program it is, if another one runs it. `ranged`: each
    step is a range in a profiler's time line. `scope`: the user's name for what is around the
    program. `failed`: the error of a call for which there was no memory. `tight`: the arena is to
    be as small as may be.
    """

    def __init__(
        self,
        program: Program,
        title: str,
        device: Device,
        branches: Mapping[int, Sequence[Body]],
        run: bool = True,
        meter: Meter | None = None,
        *,
        within: Op | None = None,
        ranged: bool = False,
        scope: str = "",
        failed: Failed | None = None,
        tight: bool = False,
    ) -> None:
        super().__init__(program, title, run, meter)
        self.device, self.branches, self.within = device, branches, within
        self.ranged, self.scope, self.failed, self.tight = ranged, scope, failed, tight
        self.body: list[Line | Group] = []
        self.apart = False  # whether the next launch begins a group
        self.named: set[str] = set()  # arrays that the text names elsewhere than in launches
        self.computed: list[Line] = []  # what makes numbers, on the host
        self.uploads = False  # whether one of them becomes an array of the device
        self.numbers: set[Var] = set()  # strong ones that kernels are handed as such
        self.kernels = ProgramKernels()
        self.made_first: list[tuple[str, ArrayType]] = []  # arrays made before anything is launched
        self.narrowings: dict[np.dtype, str] = {}  # names of what makes numbers of a dtype
        self.loose: dict[str, int] = {}  # arrays among the elements of stacks

    @collector_paused
    def build(self) -> CudaAssembler:
        self.begin()
        parts = [self.part(step) for step in self.program.steps]
        self.plan = self.planned()
        offsets = self.offsets()
        self.names.update({f"{name}_offset": offset for name, offset in offsets.items()})
        self.write(parts)
        if self.run:
            self.load(offsets)
            execute(self.texts["python"], self.names)
        run: Any = self.names.get("run")
        if self.within is not None:
            self.loop_body = as_loop_body(self, run)
            run = partial(self.loop_body.in_new_arrays, self.device)
        if self.run:
            self.direct = self.call_of(run)
        return self

    def planned(self) -> Plan:
        """Where arrays lie: apart where steps may run at once, tight where they
        follow or memory is short.
        """
        if self.tight or self.within is not None:
            return plan([*self.needs.values()], ALIGNMENT)
        tuning = self.device.limits.tuning.concurrent
        return planned_beside(self.program, [*self.needs.items()], ALIGNMENT, tuning)

    def begin(self) -> None:
        """What the text names whatever the program is, and what is known of
        arrays before the first step.
        """
        device = self.device
        self.names.update({dtype.name: kept_as(device, dtype) for dtype in SHORT})
        take = device.scratch.take if device.scratch else partial(anew, device)
        self.names.update(
            empty=device.xp.ndarray, array=device.xp.array, ready=partial(ready, device), at=address,
            take=take, view=view, upload=partial(upload, device), again=partial(again, device),
        )  # fmt: skip
        if self.within is not None:
            stacked = loose(self.within, self.program.graph)
            self.loose = {self.name(v): n for v, n in stacked.items()}
        self.numbers = self.handed_over()
        self.arena_buffers()

    def write(self, parts: Sequence[Part]) -> None:
        """The texts, of what is run inside it too if people are to read them."""
        written = (
            self.in_ranges(parts) if self.ranged else [line for p in self.body for line in lines(p)]
        )
        results = self.results()
        text = LauncherText(
            self.parameters(),
            self.nbytes,
            self.within is not None,
            *self.makings(),
            (*self.start(), *written),
            results,
        )
        inner = [] if self.run else [b for each in self.branches.values() for b in each]
        own, more = self.kernels.write(), [b.written(run=False).texts["cuda"] for b in inner]
        self.texts["cuda"] = "\n".join([*own, *more])
        self.texts["python"] = render(TEMPLATE, text)

    def load(self, offsets: Mapping[str, int]) -> None:
        """Compiles and loads the kernels, and makes of each group what launches it."""
        kernels = self.kernels.load(self.device)
        self.had, self.code = self.kernels.had, self.kernels.code
        spans = {name: (offsets[name], life.nbytes) for name, life in self.needs.items()}
        donors = {b.name: b.donor for b in self.program.buffers.values() if b.donor}
        raw = frozenset(self.arguments) - self.named
        callers = None if self.within is not None else (raw, self.names["ready"])
        for group in (found for found in self.groups if found.launches):
            run = group.run(self.device, kernels, spans, callers, donors)
            self.names[group.name] = run
            self.launched.append(run)

    def call_of(self, run: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        """The program as it is called: in C where it is simple enough,
        and the device has such calls.
        """
        found = current_first(
            self.device, run if self.silent() else partial(quietly, run), self.failed
        )
        work = straight(self)
        return found if work is None else self.device.call(work, found)

    def silent(self) -> bool:
        """Whether NumPy computes nothing, and so cannot warn."""
        numbers = any(v.type.weak for v in self.program.graph.inputs)
        return not numbers and all(step.kind in ON_DEVICE for step in self.program.steps)

    def parameters(self) -> str:
        """What the function takes: if another program runs it the memory and the
        places, then the arrays.
        """
        outputs = self.program.graph.outputs
        places = [self.name(outputs[i]) for i in placed(self)] if self.within is not None else []  # type: ignore[arg-type]
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

    # -- names

    def name(self, var: Var) -> str:
        buffer = self.buffer(var)
        return buffer.name if buffer.base is not None else self.holder(buffer)

    def holder(self, buffer: Buffer) -> str:
        """The name of the array that holds a buffer: in a loop's body that of a carry, if the
        buffer is what becomes of it.
        """
        base = buffer.base or buffer
        return base.donor if base.donor and self.within is not None else base.name

    def layout(self, v: Var) -> Layout:
        return self.program.layouts.get(v) or plain(v.type.shape)

    def upload(self, value: Any) -> Any:
        """An array that is there from the start; a text that nobody runs
        needs none on the device.
        """
        return upload(self.device, value) if self.run else value

    # -- the text

    @property
    def groups(self) -> list[Group]:
        return [part for part in self.body if isinstance(part, Group)]

    def split(self, eqn: Eqn, why: str) -> None:
        """Notes what no graph holds."""
        where = place(eqn)
        words = f"{eqn.op.name}, {why}" + (f", at {where}" if where else "")
        self.splits.append((sum(bool(g.launches) for g in self.groups), words))

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
        """A step's lines; if it is to be a range, with the names of
        that one and of those around it.
        """
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
        return ranged(parts, lambda name: self.bind(self.device.span(name), "range_"))

    def step(self, step: Step) -> None:
        if step.kind == "view" and any(isinstance(a, Var) for a in step.eqn.inputs):
            return
        code: CudaStep
        if step.kind == "hosted":
            code = loop_code(self, step)
        elif step.kind == "host":
            code = HostStep(self, step)
        elif step.kind in ("library", "view"):
            code = LibraryStep(self, step)
        else:
            code = KernelStep(self, step)
        self.add(code)

    def write_step(self, code: CudaStep) -> None:
        self.fresh(*code.results)
        self.computed += code.computed
        self.uploads |= code.uploads
        if code.computed or code.before:
            self.group().before += [*code.computed, *code.before]
        if self.meter is not None:
            self.launch_each(code, self.meter)
        elif code.launches:
            self.group().launches += code.launches
        if code.split:
            self.split(code.step.eqn, code.split)
        self.body += code.lines

    def launch_each(self, code: CudaStep, meter: Meter) -> None:
        """Adds launches each as a group of its own, which is timed."""
        for launch, call in zip(code.launches, code.calls, strict=True):
            group = self.group()
            group.launches.append(launch)
            group.through = self.bind(meter.timed(call), "timed_")

    def handed_over(self) -> set[Var]:
        """What the host computes of a dtype of its own and kernels alone read:
        it needs no memory there.
        """
        made = {v for step in self.program.steps if step.kind == "host" for v in step.eqn.outs}
        made -= {v for v in made if v.type.weak} | set(self.program.graph.outputs)
        asking = [step.eqn for step in self.program.steps if step.kind != "kernel"]
        return made - {a for eqn in asking for a in eqn.inputs if isinstance(a, Var)}

    @property
    def library_name(self) -> str:
        return "NumPy" if self.device.xp is np else "CuPy"

    def kernel_operand(self, role: str, i: int, a: Atom) -> Operand:
        if isinstance(a, Literal) or a.type.weak or a in self.numbers:
            return Operand(role, i, (), value=True)
        layout, buffer = self.layout(a), self.buffer(a)
        loose = self.loose.get(self.holder(buffer), 0)
        return Operand(role, i, layout.strides, layout.offset, loose=loose)

    def problem(self, step: Step) -> Problem:
        """What a kernel of a step is chosen for, its arrays where they are in the program."""
        ins, outs = step.eqn.inputs, step.eqn.outs
        lie = [self.kernel_operand("in", i, a) for i, a in enumerate(ins)]
        lie += [self.kernel_operand("out", i, v) for i, v in enumerate(outs)]
        types = tuple(a.type for a in ins), tuple(v.type for v in outs)
        return Problem(step.eqn.op, *types, "cuda", step.shared, tuple(lie))

    def in_order(self, a: Atom) -> bool:
        """True if an array is in C order, and begins where wide accesses may, or is a number."""
        if isinstance(a, Literal):
            return True
        layout, loose = self.layout(a), self.loose.get(self.holder(self.buffer(a)), 0)
        parts = (n * a.type.dtype.itemsize % 16 for n in (layout.offset, loose))
        begins = a.type.size == 1 or not any(parts)
        return begins and layout.strides == plain(a.type.shape).strides

    def is_plain(self, a: Atom) -> bool:
        """True of an array whose address kernels may be given."""
        return not a.type.weak and self.in_order(a)

    def narrowing(self, dtype: np.dtype) -> str:
        """The name of what makes a number of Python's one of `dtype`, as a kernel holds it."""
        if dtype not in self.narrowings:
            self.narrowings[dtype] = self.bind(partial(narrowed, dtype, held(dtype)), "number_")
        return self.narrowings[dtype]

    def at(self, atom: Atom, offset: int) -> Address:
        """A place in an array, `offset` bytes from the beginning of what holds its memory."""
        if isinstance(atom, Literal):
            return Address(self.operand(atom), offset)
        buffer = self.buffer(atom)
        base = buffer.base or buffer
        return Address(self.holder(base), offset, in_arena=base.storage == "arena")

    def fresh(self, *made: Var) -> None:
        """Makes arrays for the caller, of results or of what is returned in another form."""
        for var in made if self.within is None else ():
            buffer = self.result_to_make(var)
            if buffer is None:
                continue
            if buffer.donor:  # a donor is as launches read it: `donate` sees to that
                self.group().before.append(
                    Line(f"{buffer.name} = {buffer.donor}", str(buffer.type))
                )
            else:
                self.made_first.append((buffer.name, buffer.type))

    def makings(self) -> tuple[tuple[Line, ...], str]:
        """The lines that make arrays for the caller, before anything is launched: so they can be
        made again when others have given memory back.
        """
        wanted = [(name, f"{t.shape}, {t.dtype.name}", t) for name, t in self.made_first]
        made = tuple(Line(f"{name} = empty({given})", str(t)) for name, given, t in wanted)
        names, specs = (
            ", ".join(each) for each in ([n for n, *_ in wanted], [f"({g})" for _, g, _ in wanted])
        )
        return made, f"[{names}] = again(trouble, {specs})"

    def operand(self, a: Atom) -> str:
        """An atom as an array of the device, or a Python number."""
        if isinstance(a, Literal):
            return self.constant(a)
        buffer, t = self.buffer(a), a.type
        base, layout = buffer.base or buffer, self.layout(a)
        name = self.holder(base)
        self.named.add(name)
        if t.weak or (base is buffer and base.storage != "arena"):
            return name
        strides = tuple(s * t.dtype.itemsize for s in layout.strides)
        whole, offset = name, str(layout.offset * t.dtype.itemsize)
        if base.storage == "arena":
            whole, offset = "memory", f"{base.name}_offset + {offset}"
        return f"view({whole}, {offset}, {t.shape}, {t.dtype.name}, {strides})"

    # -- results

    def result(self, atom: Atom, i: int) -> str:
        """What is returned; to a program around it wherever it lies."""
        if self.within is not None and not atom.type.weak:
            return self.operand(atom)
        return super().result(atom, i)

    def copy_of_result(self, var: Var, again: bool) -> str:
        nbytes, text = var.type.nbytes, f"{self.operand(var)}, order='C'"
        work = Cost(0, 0, nbytes, nbytes)
        return self.timed("array", text, None, self.library_name, "copy of a result", work)


def lines(part: Line | Group) -> list[Line]:
    return part.lines() if isinstance(part, Group) else [part]
