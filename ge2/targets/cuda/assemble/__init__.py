"""A program as launches: the Python text of each call, and programs whose call is made in C."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import TYPE_CHECKING, Any, final

from ge2.base.arrays import SHORT
from ge2.base.config import config
from ge2.base.errors import VerifyError
from ge2.base.record import collector_paused, record
from ge2.base.source import execute
from ge2.codegen.environment import render
from ge2.codegen.layout import Line, plain
from ge2.ir import ArrayType, Atom, Literal, Var
from ge2.ops.shape import Constant
from ge2.program import Cost, Program, Step, announce, is_too_long
from ge2.program.assembler import Meter
from ge2.program.records import Part, ranged, scopes_of, title
from ge2.program.timeline import Plan, plan, planned_unhurried
from ge2.targets.cuda.assemble.loop_steps import End, as_loop_body, loop_code, placed
from ge2.targets.cuda.assemble.loops import Body, loose
from ge2.targets.cuda.assemble.steps import (
    Around,
    CudaStep,
    HostStep,
    KernelStep,
    LibraryStep,
    StepAssembler,
)
from ge2.targets.cuda.device import (
    Device,
    address,
    again,
    anew,
    current_first,
    explain,
    kept_as,
    quietly,
    ready,
    upload,
    view,
)
from ge2.targets.cuda.launch import ARENA, Address, Item, Launch, Straight, While, address_of
from ge2.targets.cuda.launch.template import Assembled, Bundling, Group, Groups, accesses, functions

if TYPE_CHECKING:
    from ge2.targets.cuda.device import Failed


# -------- Programs that are nothing but arrays for results and one group of launches: their call is
# made in C.


TEXT = """def compute({}):
{}
    return {},
"""


def straight(
    p: Assembled, begun: AbstractSet[str], extra: int, failed: Failed | None
) -> Straight | None:
    """The program as such a call; None if it is more than that.

    `begun`: the results that have an array; `extra`: how many of these are not made within the group.
    """
    group = only_group(p, len(begun) - extra)
    if group is None:
        return None
    buffers, graph = p.program.buffers, p.program.graph
    given = [buffers[v].name for v in graph.inputs]
    homes = [b for b in buffers.values() if b.name in begun]
    made = [b for b in homes if not b.donor]
    taken = {*given, *begun}
    known = [name for name in group.bases if name in p.names and name not in taken]
    results = [end(p.program, a, begun) for a in graph.outputs]
    asked = [n.text for n in group.numbers]
    numbers = [*asked, *(r for r in results if r and r not in taken)]
    places = {
        name: i for i, name in enumerate([*given, *(b.name for b in made), *known, *numbers, ARENA])
    }
    places |= {b.name: places[b.donor] for b in homes if b.donor}
    if (
        None in results
        or len(set(results)) < len(results)
        or not places.keys() >= {*group.bases, *results}
    ):
        return None
    weak = [buffers[v].name for v in graph.inputs if v.type.weak]
    return Straight(
        len(given),
        tuple((b.type.shape, p.names[b.type.dtype.name]) for b in made),
        tuple(p.names[name] for name in known),
        len(numbers),
        tuple(places[name] for name in weak),
        computing(p, weak, numbers) if numbers else None,
        p.nbytes,
        tuple(places[name] for name in [*group.bases, *asked]),
        tuple(places[name] for name in results if name is not None),
        p.names["take"],
        p.names["empty"],
        partial(explain, failed),
        p.names[group.name],
    )


def only_group(p: Assembled, arrays: int) -> Group | None:
    """The one group that the program is, if what comes before it makes so many arrays for results,
    or numbers.
    """
    if len(p.parts) != 1 or not isinstance(group := p.parts[0], Group):
        return None
    plain = len(group.before) == arrays + len(p.computed)
    return group if group.launches and plain else None


def end(program: Program, a: Atom, begun: AbstractSet[str]) -> str | None:
    """The name of a result: of an array made for it, or donated to it, or of a
    number that was computed.
    """
    if isinstance(a, Literal):
        return None
    found = program.buffers[a]
    if a.type.weak:
        return None if a in program.graph.inputs else found.name
    return found.name if found.storage == "output" and found.name in begun else None


def computing(p: Assembled, weak: list[str], numbers: list[str]) -> Any:
    """Returns what makes the numbers from the Python numbers among the arguments."""
    lines = "\n".join(f"    {line.code}" for line in p.computed) or "    pass"
    names = dict(p.names)
    execute(TEXT.format(", ".join(weak), lines, ", ".join(numbers)), names)
    return partial(quietly, names["compute"])


# -------- Whose the memory is that a launch reads, where graphs are checked.


def check_owners(
    items: Iterable[Item], spans: Mapping[str, tuple[int, int]], elsewhere: AbstractSet[str]
) -> None:
    """VerifyError if a launch reads an array of the arena where another one was written since.

    `elsewhere`: arrays that more than launches write.
    """
    ends = sorted({end for first, nbytes in spans.values() for end in (first, first + nbytes)})
    owners = dict[int, str]()  # of what begins at each of the ends
    for each in flat(items):
        addresses = enumerate(map(address_of, each.arguments))
        found = [(i, a.array) for i, a in addresses if a is not None and a.in_arena]
        used = [(i in each.written, name, parts_of(ends, *spans[name])) for i, name in found]
        for written, name, parts in used:
            others = {owners.get(part, name) for part in parts} - {name}
            if others and not written and name not in elsewhere:
                raise VerifyError(f"{each} reads {name} where {min(others)} was written since")
        for written, name, parts in used:
            owners.update(dict.fromkeys(parts if written else (), name))


def parts_of(ends: Sequence[int], first: int, nbytes: int) -> Sequence[int]:
    """Those of the `ends` of arrays that are in an array."""
    return ends[bisect_left(ends, first) : bisect_left(ends, first + nbytes)]


def flat(items: Iterable[Item]) -> Iterator[Launch]:
    """The launches of lists too, those of a loop twice."""
    for each in items:
        lists = () if isinstance(each, Launch) else each.lists
        for inner in lists * (1 + isinstance(each, While)):
            yield from flat(inner)
        if isinstance(each, Launch):
            yield each


# -------- A program as launches: the Python text that each call runs on a device, and the kernels
# it launches.
# What no kernel of ours serves is computed by the array module where it can (`by_arrays`), and else
# by the reference on the CPU: right, and slow, and the report says so.


TEMPLATE = "numpy/launches.py.jinja"


@final
@record
class LauncherText:
    """The view that the template prints."""

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
class CudaAssembler(StepAssembler):
    """A program as groups of launches on a device, and Python between them.

    `named`: arrays that the text names elsewhere than in launches. `made_first`: those that are
    made before anything is launched.
    """

    def __init__(
        self,
        program: Program,
        title: str,
        device: Device,
        branches: Mapping[int, Sequence[Body]],
        run: bool = True,
        meter: Meter | None = None,
        around: Around | None = None,
    ) -> None:
        super().__init__(program, title, device, branches, run, meter, around)
        self.groups = Groups(None if meter is None else self.timing)
        self.named: set[str] = set()
        self.made_first: list[tuple[str, ArrayType]] = []

    @collector_paused
    def build(self) -> CudaAssembler:
        self.begin()
        parts = [self.part(step) for step in self.program.steps]
        bundling = None if self.inside or self.seen else self.bundling()
        self.arena.plan = self.planned(bundling)
        offsets = self.arena.offsets()
        self.names.update({f"{name}_offset": offset for name, offset in offsets.items()})
        if bundling is not None:
            self.bundle(bundling, offsets)
        if config.check:
            launched = (each for group in self.groups for each in group.launches)
            check_owners(launched, self.spans(offsets), self.named)
        self.write(parts)
        if self.run:
            self.load(offsets)
            execute(self.texts["python"], self.names)
        run: Any = self.names.get("run")
        if self.inside:
            results = [*map(self.end, self.program.graph.outputs)]
            names, splits = self.parameters()[1:], self.groups.splits
            self.built.loop_body = as_loop_body(self.assembled(), names, results, splits, run)
            run = partial(self.built.loop_body.in_new_arrays, self.device)
        if self.run:
            self.built.direct = self.call_of(run)
        return self

    def bundling(self) -> Bundling:
        limits = self.device.limits
        return Bundling(self.kernels, limits.tuning.launches, limits.threads, limits.parameters)

    def bundle(self, bundling: Bundling, offsets: Mapping[str, int]) -> None:
        """Makes small launches of one kernel that wait for no other one launch."""
        touched = partial(accesses, spans=self.spans(offsets), donors=self.donors)
        for group in self.groups:
            group.launches = bundling.launches(group.launches, touched)
        self.kernels.unused = {*range(len(bundling.sources))} - functions(self.groups)

    def spans(self, offsets: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """The offset in the arena, and the bytes, of each array there."""
        return {name: (offsets[name], life.nbytes) for name, life in self.arena.needs.items()}

    @property
    def donors(self) -> dict[str, str]:
        """The arguments whose memory results take."""
        return {b.name: b.donor for b in self.program.buffers.values() if b.donor}

    def planned(self, bundling: Bundling | None) -> Plan:
        """Returns where arrays lie: apart where steps may run at once, and for longer where launches
        may be one; tight where they follow or memory is short.
        """
        needs, tuning = [*self.arena.needs.items()], self.device.limits.tuning.concurrent
        if self.around.tight or self.inside:
            return plan([life for _, life in needs], ALIGNMENT)
        early, late = set[str](), set[str]()
        if bundling is not None:
            early, late = bundling.unhurried([group.launches for group in self.groups])
        return planned_unhurried(self.program, needs, ALIGNMENT, tuning, early, late)

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
        stacked = loose(self.around.within, self.program.graph)
        self.loose = {self.name(v): n for v, n in stacked.items()}
        self.arena.claim(self.program.buffers.values())

    def write(self, parts: Sequence[Part]) -> None:
        """The texts, of what is run inside it too if people are to read them."""
        written = self.in_ranges(parts) if self.around.ranged else self.groups.lines()
        results = self.results()
        text = LauncherText(
            ", ".join(self.parameters()),
            self.arena.nbytes,
            self.inside,
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
        self.announce()
        kernels = self.kernels.load(self.device)
        built, self.built.splits = self.built, self.groups.splits
        built.had, built.code = self.kernels.had, self.kernels.code
        spans, donors = self.spans(offsets), self.donors
        raw = frozenset(self.arguments) - self.named
        callers = None if self.inside else (raw, self.names["ready"])
        for group in (found for found in self.groups if found.launches):
            run = group.run(self.device, kernels, spans, callers, donors)
            self.names[group.name] = run
            built.launched.append(run)

    def announce(self) -> None:
        """Warns of a Python loop whose kernels compile longer than the user's patience."""
        kernels, price = self.kernels, self.device.limits.tuning.compile_price
        sources = [step.eqn.source for step in self.program.steps]
        if not is_too_long(kernels.seconds, sources, price):
            return  # before anybody asks the cache
        seconds = kernels.missing_seconds(self.device)
        if is_too_long(seconds, sources, price):
            way = "each is compiled once, and then found in the cache"
            announce(self.title, sources, len(kernels.texts), seconds, price, way)

    def call_of(self, run: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        """The program as it is called: in C where it is simple enough,
        and the device has such calls.
        """
        found = current_first(
            self.device, run if self.silent() else partial(quietly, run), self.around.failed
        )
        if self.inside or self.seen or self.numbers.uploads or self.named & {*self.arguments}:
            return found
        work = straight(self.assembled(), self.begun, len(self.made_first), self.around.failed)
        return found if work is None else self.device.call(work, found)

    def assembled(self) -> Assembled:
        return Assembled(
            self.program, self.groups.parts, self.numbers.lines, self.names, self.arena.nbytes,
            self.arena.offsets(), [*self.kernels.sources.values()],
        )  # fmt: skip

    def silent(self) -> bool:
        """True if NumPy computes nothing, and so cannot warn."""
        numbers = any(v.type.weak for v in self.program.graph.inputs)
        return not numbers and all(step.kind in ON_DEVICE for step in self.program.steps)

    def parameters(self) -> list[str]:
        """Returns what the function takes: if another program runs it the memory and the
        places, then the arrays.
        """
        outputs = self.program.graph.outputs
        places = [self.name(outputs[i]) for i in placed(self.program)] if self.inside else []  # type: ignore[arg-type]
        memory = ["memory"] if self.inside else []
        return [*memory, *places, *map(self.name, self.program.graph.inputs)]

    def start(self) -> list[Line]:
        """Arguments as kernels read them; who runs a part sees to it."""
        if self.inside:
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

    def upload(self, value: Any) -> Any:
        """An array that is there from the start; a text that nobody runs
        needs none on the device.
        """
        return upload(self.device, value) if self.run else value

    # -- steps

    def part(self, step: Step) -> Part:
        """A step's lines; if it is to be a range, with the names of
        that one and of those around it.
        """
        groups, before = self.groups, len(self.made)
        first, groups.apart = len(groups.parts), self.around.ranged
        self.step(step)
        if not self.around.ranged:
            return Part((), "", ())
        found = tuple(groups.lines(first))
        if step.kind in ("host", "view") or isinstance(step.eqn.op, Constant):
            return Part((), "", found)
        regional = step.kind in ("kernel", "copy") and len(self.made) > before
        name = self.made[before].name if regional else step.name
        around = tuple(self.around.scope.split("/")) if self.around.scope else ()
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
        self.numbers.lines += code.computed
        self.numbers.uploads |= code.uploads
        self.groups.add(code)

    def fresh(self, *made: Var) -> None:
        """Makes arrays for the caller, of results or of what is returned in another form."""
        for var in made if not self.inside else ():
            buffer = self.result_to_make(var)
            if buffer is None:
                continue
            if buffer.donor:  # a donor is as launches read it: `donate` sees to that
                self.groups.current().before.append(
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
        base, layout = buffer.base or buffer, self.program.layout(a)
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
        """Returns what is returned; to a program around it wherever it lies."""
        if self.inside and not atom.type.weak:
            return self.operand(atom)
        return super().result(atom, i)

    def end(self, a: Atom) -> End | None:
        """A result to a program around it: by the name of a parameter, or by its place; None for a
        number, and for one that is in another order.
        """
        if a.type.weak:
            return None
        if isinstance(a, Literal):
            return Address(self.operand(a)), a.type
        buffer, layout = self.buffer(a), self.program.layout(a)
        if buffer.base is None and buffer.storage != "arena":
            return self.holder(buffer)
        if layout.strides != plain(a.type.shape).strides:
            return None
        return self.at(a, layout.offset * a.type.dtype.itemsize), a.type

    def copy_of_result(self, var: Var, again: bool) -> str:
        nbytes, text = var.type.nbytes, f"{self.operand(var)}, order='C'"
        work = Cost(0, 0, nbytes, nbytes)
        return self.timed("array", text, None, self.library_name, "copy of a result", work)
