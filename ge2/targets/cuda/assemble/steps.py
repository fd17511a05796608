"""Steps of a program for a device: kernels, products, and what the host does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ge2.base.arrays import HALF, accumulator
from ge2.base.config import config
from ge2.base.errors import VerifyError
from ge2.base.record import record
from ge2.choice import Problem, prefs
from ge2.choice.choose import Choice, settled, written
from ge2.codegen.layout import Layout, Line, plain
from ge2.codegen.text import Argument, Operand
from ge2.ir import ArrayType, Atom, Eqn, Literal, Op, Var, lines_of
from ge2.ops.shape import Constant
from ge2.program import (
    WRITES,
    Buffer,
    Cost,
    Inner,
    Program,
    Step,
    bytes_behind,
    computing,
    kernel_seconds,
)
from ge2.program import hosted as by_python
from ge2.program.assembler import Assembler, Call, Meter, StepCode
from ge2.program.records import Made, place
from ge2.program.timeline import Lifetime
from ge2.targets.cuda.device import (
    Caps,
    Device,
    by_arrays,
    elsewhere,
    empty,
    narrowed,
    scalar,
    serves,
)
from ge2.targets.cuda.emit import CudaKernel
from ge2.targets.cuda.emit.special_reductions import Kernels, LibraryLaunch
from ge2.targets.cuda.families import FAMILIES
from ge2.targets.cuda.kernels import file_of
from ge2.targets.cuda.launch import (
    Address,
    HostScalar,
    Item,
    Launch,
    LaunchArgument,
    TensorMap,
    Tiles,
)
from ge2.targets.cuda.launch.template import launch_of
from ge2.targets.cuda.limits import slow
from ge2.targets.cuda.load.kernels import ProgramKernels, source_of

if TYPE_CHECKING:
    from ge2.targets.cuda.device import Failed


ELEMENTWISE: Final = "cuda/pointwise.cu.jinja"
NAMES: Final = frozenset(family.name for family in FAMILIES)


@final
@record
class Around:
    """The surroundings of a program: the loop or the branch whose it is, if another one runs it
    (`within`), and the user's name for that (`scope`).

    `ranged`: each step is a range in a profiler's time line. `failed`: the error of a call for
    which there was no memory. `tight`: the arena is to be as small as may be.
    """

    within: Op | None = None
    ranged: bool = False
    scope: str = ""
    failed: Failed | None = None
    tight: bool = False


@final
class Order:
    """The order in which launches go through arrays of more than so many bytes: an elementwise one
    that begins where the one before has ended finds the end of what that read, or wrote, in the cache.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.arrays = set[str]()
        self.back = False  # whether the last one went backwards

    def of(
        self, kernels: tuple[CudaKernel, ...], arrays: Mapping[str, int]
    ) -> tuple[CudaKernel, ...]:
        """The kernels of a step of arrays of so many bytes."""
        large = {name for name, nbytes in arrays.items() if nbytes > self.most}
        if not large:
            return kernels
        simple = len(kernels) == 1 and kernels[0].template == ELEMENTWISE
        self.back = simple and not self.back and not large.isdisjoint(self.arrays)
        self.arrays = large
        return (replace(kernels[0], backwards=True),) if self.back else kernels


class StepAssembler(Assembler):
    """The part of an assembler that the steps of its program ask: names, addresses and problems.

    `written`: kernels, by what steps have in common. `loose`: arrays among the elements of stacks.
    """

    def __init__(
        self,
        program: Program,
        title: str,
        device: Device,
        branches: Mapping[int, Sequence[Any]],
        run: bool = True,
        meter: Meter | None = None,
        around: Around | None = None,
    ) -> None:
        super().__init__(program, title, run, meter)
        self.device, self.branches, self.around = device, branches, around or Around()
        self.numbers = HostNumbers(program, self.bind)
        self.kernels = ProgramKernels()
        self.written: dict[object, tuple[Choice, Kernels]] = {}
        self.loose: dict[str, int] = {}
        self.order = Order(device.limits.l2 // 2)

    @property
    def inside(self) -> bool:
        """True if another program runs it."""
        return self.around.within is not None

    @property
    def seen(self) -> bool:
        """True if each step is to be seen, or timed, by itself."""
        return self.around.ranged or self.meter is not None

    def holder(self, buffer: Buffer) -> str:
        """The name of the array that holds a buffer: in a loop's body that of a carry, if the
        buffer is what becomes of it.
        """
        base = buffer.base or buffer
        return base.donor if base.donor and self.inside else base.name

    @property
    def library_name(self) -> str:
        return "NumPy" if self.device.xp is np else "CuPy"

    def kernel_operand(self, role: str, i: int, a: Atom) -> Operand:
        if a in self.numbers.strong:
            return Operand(role, i, (), value=True)
        return self.program.operand(role, i, a, self.looseness(a))

    def looseness(self, a: Atom) -> int:
        """Returns how many elements lie between two places of what is among those of a stack."""
        return self.loose.get(self.holder(self.buffer(a)), 0) if isinstance(a, Var) else 0

    def problem(self, step: Step) -> Problem:
        """Returns what a kernel of a step is chosen for, its arrays where they are in the program."""
        found = Problem.of(step.eqn, "cuda", self.kernel_operand, step.shared)
        operands = tuple(self.of_one_memory(step.eqn, found.operands))
        return found if operands == found.operands else replace(found, operands=operands)

    def of_one_memory(self, eqn: Eqn, operands: Sequence[Operand]) -> Iterator[Operand]:
        """The operands of a step, those that lie in the same memory knowing of each other."""
        first: dict[tuple[str, str], int] = {}
        roles: dict[str, Sequence[Atom]] = {"in": eqn.inputs, "out": eqn.outs}
        for x in operands:
            a = roles[x.role][x.index] if x.role in roles and not x.value else None
            key = (x.role, self.holder(self.buffer(a))) if isinstance(a, Var) else None
            n = first.setdefault(key, x.index) if key else -1
            yield replace(x, memory=n) if n not in (-1, x.index) else x

    def in_order(self, a: Atom) -> bool:
        """True if an array is in C order, and begins where wide accesses may, or is a number."""
        if isinstance(a, Literal):
            return True
        layout = self.program.layout(a)
        parts = (n * a.type.dtype.itemsize % 16 for n in (layout.offset, self.looseness(a)))
        begins = a.type.size == 1 or not any(parts)
        return begins and layout.strides == plain(a.type.shape).strides

    def is_plain(self, a: Atom) -> bool:
        """True of an array whose address kernels may be given."""
        return not a.type.weak and self.in_order(a)

    def is_stack(self, a: Atom, size: int) -> bool:
        """True of an array in C order that begins at a multiple of `size` elements, or where wide
        accesses may.
        """
        if self.is_plain(a) or isinstance(a, Literal) or a.type.weak or not size:
            return self.is_plain(a)
        layout = self.program.layout(a)
        begins = layout.offset % size == self.looseness(a) % size == 0
        return begins and layout.strides == plain(a.type.shape).strides

    def at(self, atom: Atom, offset: int) -> Address:
        """A place in an array, `offset` bytes from the beginning of what holds its memory."""
        if isinstance(atom, Literal):
            return Address(self.operand(atom), offset)
        buffer = self.buffer(atom)
        base = buffer.base or buffer
        return Address(self.holder(base), offset, in_arena=base.storage == "arena")


# -------- A step of a program on a device as an object: what it needs, and what it launches.


class CudaStep(StepCode[StepAssembler]):
    """A step as launches, and Python around them.

    The first of its `needs` are `temps` of kernels. `computed`: numbers of the host, which may have
    `uploads`; `before`: other lines that need nothing launched. `calls`: what a meter, if there is one,
    is told of each launch. Its `lines` come after all that was launched; `split`: why.
    """

    def __init__(self, assembler: StepAssembler, step: Step) -> None:
        super().__init__(assembler, step)
        self.temps: list[str] = []
        self.computed: list[Line] = []
        self.uploads = False
        self.before: list[Line] = []
        self.launches: list[Item] = []
        self.calls: list[Call] = []
        self.split = ""

    # -- memory

    def need(self, nbytes: int) -> str:
        """The name of an array of the arena that this step has for itself."""
        name = f"own{len(self.assembler.arena.needs) + len(self.needs)}"
        self.needs[name] = Lifetime(nbytes, self.step.number, self.step.number)
        return name

    def own(self, nbytes: int) -> Address:
        """The address of such an array."""
        return Address(self.need(nbytes), in_arena=True)

    def atom(self, x: Operand) -> Atom:
        """The atom that an operand is."""
        eqn = self.step.eqn
        return eqn.inputs[x.index] if x.role == "in" else eqn.outs[x.index]

    def at(self, x: Operand, dtype: np.dtype) -> Address:
        """The address of an operand."""
        if x.role in ("part", "temp"):
            return Address(self.temps[x.index], x.offset * dtype.itemsize, in_arena=True)
        assert self.atom(x) not in self.assembler.numbers.strong, (
            "a number of the host has no address"
        )
        return self.assembler.at(self.atom(x), x.offset * dtype.itemsize)

    # -- arguments

    def argument(self, a: Argument) -> LaunchArgument:
        """An argument of a kernel, for a launch."""
        if a.kind == "size":
            return np.int64(a.value) if "int64_t" in a.declaration else np.int32(a.value)
        if a.kind == "constant":
            constant, dtype = a.value
            return scalar(np.asarray(constant), accumulator(dtype))
        operand, dtype = a.value
        if a.kind == "value":
            return self.number(self.atom(operand), dtype)
        if isinstance(dtype, Tiles):
            return TensorMap(self.at(operand, dtype.dtype), dtype)
        return self.at(operand, dtype)

    def number(self, atom: Atom, dtype: np.dtype) -> HostScalar | np.generic:
        """A number as a kernel holds it."""
        wanted, assembler = accumulator(dtype), self.assembler
        if isinstance(atom, Literal):
            number = np.asarray(atom.value)
            return scalar(number.astype(dtype) if dtype in HALF else number, wanted)
        name = assembler.name(atom)
        if atom in assembler.numbers.strong:  # which are held so already
            return HostScalar(name, wanted.itemsize)
        return HostScalar(f"{assembler.numbers.narrowing(dtype)}({name})", wanted.itemsize)


# -------- Steps of a program for a device that are no kernels of ours: of Python, the array module,
# the reference.


@final
class HostStep(CudaStep):
    """A number that Python computes; an array of the device only where something asks for one.

    It needs nothing that was launched.
    """

    def __init__(self, assembler: StepAssembler, step: Step) -> None:
        super().__init__(assembler, step)
        (out,) = step.eqn.outs
        found = assembler.host_number(step)
        if out in assembler.numbers.strong:
            found = f"{assembler.numbers.narrowing(out.type.dtype)}({found})"
        elif not out.type.weak:
            found, self.uploads = f"upload({found})", True
        self.computed.append(Line(f"{assembler.name(out)} = {found}"))


@final
class LibraryStep(CudaStep):
    """Steps that the array module or the reference computes; loops and branches, with bodies on the
    device; constants, which are there from the start.
    """

    def __init__(self, assembler: StepAssembler, step: Step) -> None:
        super().__init__(assembler, step)
        eqn = step.eqn
        outs = ", ".join(assembler.name(v) for v in eqn.outs) + ("," if eqn.op.several else "")
        if isinstance(eqn.op, Constant):
            value = assembler.bind(assembler.upload(eqn.op.reference()), "k")
            self.before.append(Line(f"{outs} = {value}", "constant"))
            return
        by = assembler.library_name if serves(eqn) else "the CPU"
        self.split = f"which {'the host' if by == 'the CPU' else by} computes"
        text = self.call(by)
        made = [assembler.name(v) for v in eqn.outs if not v.type.weak]
        self.lines.append(Line(f"{outs} = {text}" if eqn.outs else text, eqn.op.name))
        self.lines += [Line(f"{name} = ready({name})") for name in made]

    def call(self, by: str) -> str:
        assembler, eqn = self.assembler, self.step.eqn
        chosen = assembler.branches.get(self.step.number)
        inputs, name = ", ".join(map(assembler.operand, eqn.inputs)), f"{eqn.op.name}_"
        if chosen is not None:
            run = by_python(eqn.op, [*map(Inner.alone, chosen)], partial(empty, assembler.device))
            return f"{assembler.bind(partial(run, [()] * len(chosen)), name)}({inputs})"
        work = by_arrays if serves(eqn) else elsewhere
        f = assembler.bind(partial(work, assembler.device, eqn), name)
        return assembler.timed(f, inputs, eqn, by, eqn.op.name)


# -------- A step of a program for a device as launches of the kernels of a family, or of a library.


@final
class KernelStep(CudaStep):
    """The launches of the family that is chosen, now that it is known where arrays are."""

    def __init__(self, assembler: StepAssembler, step: Step) -> None:
        super().__init__(assembler, step)
        choice, found = chosen(assembler, step)
        self.choice = choice
        self.temps = [self.need(nbytes) for nbytes in found.temps]
        self.results, self.of_library = step.eqn.outs, found.library is not None
        kernels = assembler.order.of(found.kernels, self.arrays())
        for kernel in kernels:
            self.add_kernel(kernel, not self.launches and found.library is None)
        if kernels:
            self.made.append(self.record(choice, kernels))
        if found.library is not None:
            self.add_library(found.library)
        if config.check:
            check_written_over(assembler.program, step.eqn, uses_of(found))

    def arrays(self) -> dict[str, int]:
        """The bytes of the arrays that the step reads and makes, by what holds them."""
        eqn, assembler = self.step.eqn, self.assembler
        found = (a for a in (*eqn.inputs, *eqn.outs) if isinstance(a, Var) and not a.type.weak)
        return {assembler.holder(assembler.buffer(v)): v.type.nbytes for v in found}

    def add_kernel(self, kernel: CudaKernel, full: bool) -> None:
        """The launch of a kernel; `full`: the operations of the step are counted as its own."""
        eqn, assembler = self.step.eqn, self.assembler
        number, first = assembler.kernels.number(kernel)
        name = f"{first.name}_{number}"
        assembler.kernels.owned[name] = eqn.op, kernel
        price = assembler.device.limits.tuning.compile_price
        assembler.kernels.prices.setdefault(number, kernel_seconds(eqn, price))
        early = kernel.fits(assembler.device.limits.threads) and first.waits
        given = tuple(map(self.argument, kernel.given))
        self.launches.append(launch_of(kernel, number, given, name, place(eqn), early))
        if assembler.meter is not None:
            work = self.moved(kernel) + (computing(eqn) if full else Cost())
            self.calls.append(Call(assembler.title, name, "CUDA", eqn, work, source_of(kernel)))

    def record(self, choice: Choice, kernels: Sequence[CudaKernel]) -> Made:
        """The kernels as one, for people, by the name of the first."""
        eqn, assembler, name = self.step.eqn, self.assembler, self.launches[0].name
        texts, nbytes = partial(texts_of, kernels), partial(bytes_behind, assembler.program.layouts)
        words = "" if self.step.kind == "matmul" else slow(eqn, assembler.device.limits)
        known = choice.family.name in NAMES
        file = partial(file_of, choice, kernels) if known and not self.of_library else None
        return Made(eqn, kernels[0].kind, name, name, texts, nbytes, "cuda", words, choice, file)

    def add_library(self, found: LibraryLaunch) -> None:
        """The launch of a library's functions, with scratch of its own."""
        eqn, call, title = self.step.eqn, found.call, self.assembler.title
        scratch = self.own(call.workspace) if call.workspace else None
        arguments = *(self.at(x, dtype) for x, dtype in found.operands), scratch
        written = found.written | {len(found.operands)}
        self.launches.append(Launch(call, (), (), 0, arguments, eqn.op.name, place(eqn), written))
        if self.assembler.meter is not None:
            self.calls.append(Call(title, eqn.op.name, call.by, eqn, self.assembler.cost(eqn)))

    def moved(self, kernel: CudaKernel) -> Cost:
        """The bytes of the arrays that a kernel is handed."""
        layouts = self.assembler.program.layouts
        found: dict[str, dict[Any, int]] = {"array": {}, "result": {}}
        for a in kernel.given:
            if a.kind not in found:
                continue
            x, _ = a.value
            temporary = x.role in ("part", "temp")
            found[a.kind][x.role, x.index] = (
                self.needs[self.temps[x.index]].nbytes
                if temporary
                else bytes_behind(layouts, self.atom(x))
            )
        return Cost(read=sum(found["array"].values()), written=sum(found["result"].values()))


def chosen(assembler: StepAssembler, step: Step) -> tuple[Choice, Kernels]:
    """The choice for a step and its kernels: written once for equal steps of equal lines, as the
    layers of a network have.
    """
    problem, kept = assembler.problem(step), step.eqn.choice
    before = (kept.problem, kept.taken.title, kept.by) if isinstance(kept, Choice) else ()
    key = problem, before, lines_of(step.eqn)
    found = assembler.written.get(key)
    if found is None:
        caps = Caps.of(assembler.device)
        found = written(settled(kept, problem, caps, prefs(), FAMILIES), kept)
        assembler.written[key] = found
    return found


# -------- Results that a step writes where arrays are that it reads, where graphs are checked.


SMALL: Final = 1 << 14  # elements that are looked at one by one
Uses = list[dict[str, set[int]]]  # of each launch the inputs and the results, "in" and "out"


def uses_of(found: Kernels) -> Uses:
    lists = [[a.value[0] for a in k.given if a.kind in ("array", "result")] for k in found.kernels]
    if found.library is not None:
        lists.append([x for x, _ in found.library.operands])
    return [{at: {x.index for x in each if x.role == at} for at in ("in", "out")} for each in lists]


def check_written_over(program: Program, eqn: Eqn, uses: Uses) -> None:
    """VerifyError if a launch reads an input where one before it wrote a result, or where it writes
    one itself whose elements lie in another order. Writes into a part are at places of their own.
    """
    for i, x in enumerate(eqn.inputs if not isinstance(eqn.op, WRITES) else ()):
        for j, y in enumerate(eqn.outs):
            readers = [n for n, each in enumerate(uses) if i in each["in"]]
            writers = [n for n, each in enumerate(uses) if j in each["out"]]
            if not (readers and writers and isinstance(x, Var) and share(program, x, y)):
                continue
            alike = program.layout(x) == program.layout(y)
            if readers[-1] > writers[0] or (readers[-1] == writers[0] and not alike):
                what = f"{eqn.op.name} writes result {j} over input {i}, which it reads later"
                raise VerifyError(what, where=place(eqn))


def share(program: Program, x: Var, y: Var) -> bool:
    """True if there are bytes of both; of many elements, if they lie in one order."""
    if x.type.weak or y.type.weak or not x.type.size or not y.type.size:
        return False
    if len({home.donor or home.name for home in map(program.home, (x, y))}) > 1:
        return False
    if max(x.type.size, y.type.size) > SMALL:
        return program.layout(x) == program.layout(y)
    one, other = (places_of(program.layout(v), v.type) for v in (x, y))
    return not one.isdisjoint(other)


def places_of(layout: Layout, type_: ArrayType) -> set[int]:
    """The bytes, from the beginning of what holds an array, at which its elements begin."""
    pairs = zip(type_.shape, layout.strides, strict=True)
    steps = [np.arange(n) * stride for n, stride in pairs]
    found = reduce(np.add.outer, steps, np.asarray(layout.offset))
    return {*(found.ravel() * type_.dtype.itemsize).tolist()}


def texts_of(kernels: Sequence[CudaKernel]) -> str:
    return "\n".join(dict.fromkeys(source_of(k).text() for k in kernels))


# -------- Numbers that Python computes for the kernels of a program.


@final
class HostNumbers:
    """`strong`: those of a dtype of their own that kernels alone read, which need no memory on the
    device. `lines` compute them; `uploads`: whether one becomes an array of the device.
    """

    def __init__(self, program: Program, bind: Callable[[Any, str], str]) -> None:
        self.strong = handed_over(program)
        self.lines: list[Line] = []
        self.uploads = False
        self._names: dict[np.dtype, str] = {}
        self._bind = bind

    def narrowing(self, dtype: np.dtype) -> str:
        """The name of what makes a number of Python's one of `dtype`, as a kernel holds it."""
        if dtype not in self._names:
            self._names[dtype] = self._bind(partial(narrowed, dtype, accumulator(dtype)), "number_")
        return self._names[dtype]


def handed_over(program: Program) -> set[Var]:
    """Returns what the host computes of a dtype of its own and kernels alone read."""
    made = {v for step in program.steps if step.kind == "host" for v in step.eqn.outs}
    made -= {v for v in made if v.type.weak} | set(program.graph.outputs)
    asking = [step.eqn for step in program.steps if step.kind != "kernel"]
    return made - {a for eqn in asking for a in eqn.inputs if isinstance(a, Var)}
