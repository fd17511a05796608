"""Steps of a program as functions of one C file, and the arguments that each call passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import gcd
from typing import Any, final

import numpy as np

from ge2.base.arrays import BOOL, COMPLEX
from ge2.base.compiler import is_known
from ge2.base.config import config
from ge2.base.errors import TooLong
from ge2.base.source import Source
from ge2.choice import ACCESS, Problem, prefs
from ge2.choice.choose import Choice, settled, written
from ge2.codegen.text import ALONE, Argument, CKernel, Text, guard, leaves
from ge2.ir import Eqn, Graph, Literal, Var
from ge2.ops.dot import DotGeneral
from ge2.ops.graphs.loops import RepeatLoop
from ge2.ops.graphs.region import Region
from ge2.ops.index import Gather, UpdateSlice
from ge2.ops.linalg import Linalg
from ge2.program import (
    WRITES,
    Buffer,
    Program,
    Step,
    announce,
    bytes_behind,
    computing,
    is_too_long,
    kernel_seconds,
)
from ge2.program.records import Made
from ge2.program.timeline import Lifetime
from ge2.targets.c.emit import argument, number
from ge2.targets.c.emit.file import CFile, Named, Run, Stage, repeated_calls, same_code
from ge2.targets.c.families import FAMILIES
from ge2.targets.c.kernels.generated import Pieces, file_of
from ge2.targets.c.loops import ALIGNED, IN_C, Loop, Need, Segment
from ge2.targets.c.tuning import Caps

Offsets = dict[tuple[str, int], int]  # elements, by an operand's role and number

SHOWN = 400  # equations of a graph that its file begins with


@final
class Native:
    """Writes the file."""

    def __init__(self, program: Program, caps: Caps, title: str) -> None:
        self.program, self.caps, self.title = program, caps, title
        self.tuning = caps.tuning
        self.named: dict[str, Named] = {}
        self.texts: list[str] = []
        self.runs: list[Run] = []
        self.products: frozenset[tuple[str, str]] = frozenset()
        self.made: list[Made] = []
        self.needs: list[Need] = []
        self.arena: dict[int, Need] = {}  # of buffers, by identity
        self.sources: list[Source | None] = [step.eqn.source for step in program.steps]
        self.prices: dict[str, float] = {}  # seconds in which a compiler makes each kernel
        self.inner: list[str] = []  # the functions that loops call
        self.bodies: dict[tuple[tuple[Stage, ...], bool], str] = {}  # these by what they do
        self.inlined: set[str] = set()  # the kernels that small rounds call
        self.sites: Counter[str] = Counter()  # where kernels and inner functions are called
        self.with_numbers: set[str] = set()  # the kernels that are called with sizes as numbers
        self.first = 0  # of the equations, among `sources`
        # what was chosen for problems, and the names of the kernels
        self.known: dict[Problem, tuple[Choice, Pieces, list[str]]] = {}
        self.fails = False  # whether a kernel may find an index out of range
        self.depth = 0  # loops and branches around
        self.spelt = False  # whether sizes are numbers in the text, not arguments

    def child(self, program: Program) -> Native:
        """Returns what writes a program that a loop of this one runs, into the same file."""
        small = sum(map(made, program.steps)) <= self.tuning.loops.small
        small = small and not any(map(self.is_long, program.steps))
        threads = ALONE if small else self.caps.threads
        child = Native(program, replace(self.caps, threads=threads), self.title)
        child.depth = self.depth + 1
        child.spelt = small and len(program.steps) < self.tuning.files.calls
        child.named, child.texts, child.runs, child.made = (
            self.named,
            self.texts,
            self.runs,
            self.made,
        )
        child.inner, child.inlined, child.prices = self.inner, self.inlined, self.prices
        child.bodies, child.sites, child.with_numbers = self.bodies, self.sites, self.with_numbers
        child.first, own = len(self.sources), child.sources
        self.sources += own
        child.sources = self.sources
        return child

    def is_long(self, step: Step) -> bool:
        """True of a region that threads share even if all that it makes is in arrays that are there."""
        if not isinstance(step.eqn.op, Region):
            return False
        done = computing(step.eqn)
        work = done.flops + self.caps.speed.functions * done.transcendentals
        return work >= self.tuning.loops.shared

    def segment(self, steps: Sequence[Step], direct: bool, inner: str = "") -> Segment:
        """Steps as a function of the file; `inner` names one that another calls."""
        name = inner or ("ge2_run" if direct else f"ge2_run_{len(self.runs)}")
        segment = Segment(name, tuple(steps), direct)
        segment.hosts = self.hosts(steps)
        if direct:
            graph = self.program.graph
            segment.add(self.program.buffers[v] for v in graph.inputs if not v.type.weak)
            segment.add(self.program.buffers[v] for v in self.computed(steps))
            made = [
                v
                for v in graph.outputs
                if isinstance(v, Var) and self.program.buffers[v].storage == "output"
            ]
            segment.add(self.program.buffers[v] for v in dict.fromkeys(made))
        for step in steps:
            self.step(segment, step)
        arrays = [
            Text(f"char {local(i)}[{b.type.nbytes}] {ALIGNED};")
            for i, b in enumerate(segment.local)
        ]
        calls = repeated_calls(segment.calls, segment.table, self.tuning.files)
        run = Run(name, (*arrays, *calls), bool(inner), self.short)
        segment.name = self.bodies.setdefault((run.calls, run.short), name) if inner else name
        if segment.name == name:  # no loop has had the same body
            self.runs.append(run)
        if inner and segment.work < self.tuning.loops.worth:
            self.with_numbers.add(segment.name)
        return segment

    @property
    def short(self) -> bool:
        """True if the program is part of the loop that runs it: what it calls
        takes longer than its work.

        Of nested ones each fourth is a function: inlined at all depths, code
        grows with their square.
        """
        tuning, steps = self.tuning.loops, len(self.program.steps)
        return self.spelt and steps <= tuning.fused and self.depth % tuning.nested != 0

    def hosts(self, steps: Sequence[Step]) -> list[Var]:
        """The Python numbers that C reads."""
        read = {
            a for step in steps if step.kind in IN_C for a in step.eqn.inputs if isinstance(a, Var)
        }
        return [v for v in self.program.buffers if v in read and v.type.weak]

    def computed(self, steps: Sequence[Step]) -> list[Var]:
        """The scalars that Python makes and C reads as arrays."""
        buffers = self.program.buffers
        atoms = [
            a for step in steps if step.kind in IN_C for a in step.eqn.inputs if isinstance(a, Var)
        ]
        read = {id(buffers[a].base or buffers[a]) for a in atoms}  # themselves, or by way of a view
        made = [v for step in steps if step.kind == "host" for v in step.eqn.outs]
        return [v for v in made if id(buffers[v]) in read and not v.type.weak]

    def source(self) -> str:
        prototypes = tuple(f"void {k.name}({k.kernel.parameters});" for k in self.named.values())
        file = CFile(
            self.title,
            shown(self.program.graph),
            self.tuning.files,
            tuple(self.texts),
            tuple(self.runs),
            self.products,
            prototypes,
            frozenset(self.inlined),
            frozenset(name for name, n in self.sites.items() if n > 1) - self.with_numbers,
            tuple(dict.fromkeys(h for n in self.named.values() for h in n.kernel.helpers)),
            tuple(dict.fromkeys(d for n in self.named.values() for d in n.kernel.definitions)),
            calls_alone=not (self.inlined or self.with_numbers),
        )
        return file.text()

    # -- steps

    def step(self, segment: Segment, step: Step) -> None:
        if step.kind in ("view", "host"):
            return
        if self.fails and any(self.program.home(v).written for v in step.eqn.outs):
            segment.calls.append(guard("lib->error->code", "return lib->error->code;"))
        if step.kind == "loop":
            segment.calls.append(Loop(self, segment, step).stage())
            return
        problem, offsets = at_first(self.problem(step))
        choice, pieces, names = self.kernels(step.eqn.choice, problem)
        temps = [self.need(nbytes, step.number) for nbytes in pieces.temps]
        for name, kernel in zip(names, pieces.kernels, strict=True):
            self.prices.setdefault(name, kernel_seconds(step.eqn, self.tuning.files.price))
            self.sites[name] += 1
            if self.spelt:
                self.with_numbers.add(name)
            if self.short:
                self.inlined.add(name)
            handed = [self.handed(segment, step, a, temps, offsets) for a in kernel.arguments]
            call = f"{name}({', '.join(handed)});"
            test = unless_same(kernel, handed)
            segment.calls.append(guard(test, call) if test else Text(call))
            segment.work += work_of(step)
        if pieces.kernels:
            named = [Named(*each) for each in zip(names, pieces.kernels, strict=True)]
            self.made.append(self.made_of(step, named, choice))

    def kernels(self, kept: object, problem: Problem) -> tuple[Choice, Pieces, list[str]]:
        """The choice for a problem, the kernels of what was taken, and their names."""
        if kept is None and (known := self.known.get(problem)) is not None:
            return known
        choice = settled(kept, problem, self.caps, prefs(), FAMILIES)
        pieces: Pieces
        choice, pieces = written(choice, kept)
        self.products |= pieces.products
        found = choice, pieces, [self.define(kernel) for kernel in pieces.kernels]
        if kept is None:
            self.known[problem] = found
        return found

    def problem(self, step: Step) -> Problem:
        """Returns what a kernel of a step is chosen for, its arrays where they are in the program.
        An array that a product reads twice, as itself and as its transpose, has one number.
        """
        given = self.program.operand
        found = Problem.of(step.eqn, "c", given, self.surely_shared(step))
        if not isinstance(step.eqn.op, DotGeneral):
            return found
        a, b = step.eqn.inputs
        if not (
            isinstance(a, Var)
            and isinstance(b, Var)
            and self.program.home(a) is self.program.home(b)
        ):
            return found
        left, right, out = found.operands
        return replace(found, operands=(left, replace(right, index=left.index), out))

    def surely_shared(self, step: Step) -> frozenset[tuple[int, int]]:
        """The results that lie in the memory of inputs, but for arguments: a
        caller may lend these or not.
        """
        buffers, inputs = self.program.buffers, step.eqn.inputs
        lent = [
            k for k, a in enumerate(inputs) if isinstance(a, Var) and buffers[a].storage == "input"
        ]
        return frozenset(pair for pair in step.shared if pair[1] not in lent)

    def define(self, kernel: CKernel) -> str:
        code = same_code(kernel)
        found = self.named.get(code)
        if found is None:
            found = self.named[code] = Named(f"{kernel.kind}_{len(self.named)}", kernel)
            self.texts.append(found.text())
        return found.name

    def need(self, nbytes: int, step: int) -> Need:
        need = Need(nbytes, step, step)
        self.needs.append(need)
        return need

    def none(self, step: int) -> Need:
        """A need that nothing is known of yet."""
        return Need(0, step, step)

    def shared(self, segment: Segment, need: Need, nbytes: int) -> str:
        """Scratch that several take in turn: enough for each."""
        if not need.nbytes:
            self.needs.append(need)
        need.nbytes = max(need.nbytes, nbytes)
        return self.scratch(segment, need)

    # -- arguments

    def handed(
        self, segment: Segment, step: Step, a: Argument, temps: Sequence[Need], offsets: Offsets
    ) -> str:
        """Returns the text of an argument in the call of a kernel."""
        if a.kind == "threads":
            return "1" if ALONE in (self.caps.threads, a.value) else "threads"
        if a.kind == "services":
            return "lib"
        if a.kind == "size":
            return self.size(segment, a.value)
        if a.kind == "equation":
            self.fails = True
            return self.size(segment, self.first + step.number)
        if a.kind == "constant":
            return self.constant(segment, *a.value)
        if a.kind in ("partial", "scratch"):
            return self.cast(a, self.scratch(segment, self.need(a.value, step.number)))
        operand, dtype = a.value
        if operand.role == "temp":
            return self.cast(a, self.scratch(segment, temps[operand.index]))
        atom = (step.eqn.inputs if operand.role == "in" else step.eqn.outs)[operand.index]
        if a.kind == "value":
            return self.value(segment, atom, dtype)
        place = self.pointer(segment, self.program.buffers[atom], a.kind == "result")
        offset = (operand.offset + offsets.get((operand.role, operand.index), 0)) * dtype.itemsize
        return self.cast(a, f"{place} + {self.size(segment, offset)}" if offset else place)

    def cast(self, a: Argument, text: str) -> str:
        ctype = a.declaration[: a.declaration.rindex("*") + 1]
        return f"({ctype})({text})" if "+" in text else f"({ctype}){text}"

    def size(self, segment: Segment, value: int | Need) -> str:
        if self.spelt and isinstance(value, int):
            return str(value)
        segment.sizes.append(value)
        return f"n[{len(segment.sizes) - 1}]"

    def constant(self, segment: Segment, value: Any, dtype: np.dtype) -> str:
        segment.constants.append((value, dtype))
        return argument(f"k[{len(segment.hosts) + len(segment.constants) - 1}]", dtype)

    def value(self, segment: Segment, atom: Var | Literal, dtype: np.dtype) -> str:
        if isinstance(atom, Literal):
            return number(atom.value, dtype)
        return argument(f"k[{segment.hosts.index(atom)}]", dtype)

    def scratch(self, segment: Segment, need: Need) -> str:
        if segment.direct:
            return f"arena + {self.size(segment, need)}"
        at = self.place(segment, need)
        segment.written.add(at)
        return f"p[{at}]"

    def pointer(self, segment: Segment, buffer: Buffer, written: bool) -> str:
        base = buffer.base or buffer
        few = base.type.nbytes <= self.tuning.loops.local
        if self.short and base.storage == "arena" and few and not self.listed:
            found = next((i for i, b in enumerate(segment.local) if b is base), None)
            if found is None:
                segment.local.append(base)
            return local(len(segment.local) - 1 if found is None else found)
        at, offset = self.located(segment, buffer, written)
        return f"p[{at}]" if at >= 0 else f"arena + {self.size(segment, offset)}"

    @property
    def listed(self) -> bool:
        """True if a loop finds arrays by numbers."""
        return any(isinstance(step.eqn.op, RepeatLoop) for step in self.program.steps)

    def located(self, segment: Segment, buffer: Buffer, written: bool) -> tuple[int, int | Need]:
        """Returns where an array is: the number of a pointer, or -1 for the
        arena, and the offset from there.
        """
        base = buffer.base or buffer
        if segment.direct and base.storage == "arena":
            found = self.arena.get(id(base))
            if found is None:
                found = self.arena[id(base)] = Need(base.type.nbytes, base.first, base.last)
                self.needs.append(found)
            return -1, found
        at = self.place(segment, base)
        if written:
            segment.written.add(at)
        return at, 0

    def place(self, segment: Segment, array: Buffer | Need) -> int:
        """The number of an array among those that the function is given."""
        if id(array) not in segment.places:
            segment.add([array])
        return segment.places[id(array)]

    # -- for people

    def made_of(self, step: Step, named: Sequence[Named], choice: Choice) -> Made:
        """Its own graph stands above a function that several steps share."""
        region = isinstance(step.eqn.op, Region)
        main = next((n for n in named if n.kernel.kind == "product"), named[-1])
        kind = main.kernel.kind if region or main.kernel.kind == "product" else step.eqn.op.name
        name = f"{kind}_{main.name.rpartition('_')[2]}"
        nbytes = partial(bytes_behind, self.program.layouts)
        known = choice.family.name in {family.name for family in FAMILIES}
        # one inside a small loop is part of the loop's function, and is raced nowhere
        apart = known and self.caps.threads != ALONE
        file = partial(file_of, choice, [n.kernel for n in named]) if apart else None
        return Made(
            step.eqn, kind, name, main.name, partial(texts, named), nbytes, choice=choice, file=file
        )


def at_first(problem: Problem) -> tuple[Problem, Offsets]:
    """The same problem with each array at the first address of equal alignment, and the elements
    from there on to where it is: iterations of a loop that differ in those alone have one problem.
    """
    op, shared, operands = problem.op, problem.shared, list(problem.operands)
    same = len({(x.role, x.index) for x in operands}) < len(operands)
    if same or not isinstance(op, Region | UpdateSlice | DotGeneral):
        return problem, {}
    offsets: Offsets = {}
    if isinstance(op, UpdateSlice) and (0, 0) in shared:  # nothing is written but the slice
        operands[-1] = operands[-1].part(op.start, (1,) * len(op.start))
        op = replace(op, start=(0,) * len(op.start))
    for k, (x, t) in enumerate(zip(operands, (*problem.inputs, *problem.outs), strict=True)):
        first = x.offset % (ACCESS // gcd(ACCESS, t.dtype.itemsize))
        offsets[x.role, x.index] = x.offset - first
        operands[k] = replace(x, offset=first) if x.offset != first else x
    return replace(problem, op=op, operands=tuple(operands)), offsets


def shown(graph: Graph) -> str:
    """The text of a graph, of a long one the first equations: what nobody would
    read takes long to write.
    """
    if len(graph.eqns) <= SHOWN:
        return str(graph)
    more = len(graph.eqns) - SHOWN
    return f"{Graph(graph.inputs, graph.eqns[:SHOWN], ())}\n... and {more} more equations"


def local(i: int) -> str:
    return f"local{i}"


def made(step: Step) -> int:
    """The elements that a step makes anew; what it writes into an array that is
    there is not all of that.
    """
    there = {i for i, _ in step.shared}
    if step.kind == "view":
        return 0
    if isinstance(step.eqn.op, WRITES) and there:
        return step.eqn.inputs[1].type.size
    return sum(v.type.size for i, v in enumerate(step.eqn.outs) if i not in there)


def texts(named: Sequence[Named]) -> str:
    return "\n".join(dict.fromkeys(n.text() for n in named))


def unless_same(kernel: CKernel, handed: Sequence[str]) -> str:
    """The test by which a copy is made: its result does not lie where it would copy from."""
    if not kernel.unless_same:
        return ""
    arrays = [
        text
        for a, text in zip(kernel.arguments, handed, strict=True)
        if a.kind in ("array", "result")
    ]
    return f"(const void *){arrays[0]} != (const void *){arrays[1]}"


def work_of(step: Step) -> int:
    """The elements that a step goes through: of an update in place those
    that it writes, of an array that it indexes those that it reads.
    """
    if step.shared and isinstance(step.eqn.op, WRITES):
        return max(a.type.size for a in step.eqn.inputs[1:])
    written = (v.type.size for v in step.eqn.outs)
    if isinstance(step.eqn.op, Linalg):  # which goes through a matrix once for each of its rows
        return max(a.type.size * a.type.shape[-1] for a in step.eqn.inputs[:1])
    return max(*written, *elements_read(step.eqn), 0)


def elements_read(eqn: Eqn) -> list[int]:
    """Returns how many elements an equation reads of each input; a region, those that its equations
    do.
    """
    if isinstance(eqn.op, Gather):
        return [eqn.outs[0].type.size, *(a.type.size for a in eqn.inputs[1:])]
    if not isinstance(eqn.op, Region):
        return [a.type.size for a in eqn.inputs]
    body, most = eqn.op.graph, dict.fromkeys(eqn.op.graph.inputs, 0)
    for inner in body.eqns:
        for atom, size in zip(inner.inputs, elements_read(inner), strict=True):
            if isinstance(atom, Var) and atom in most:
                most[atom] = max(most[atom], size)
    return list(most.values())


def lifetimes(needs: Sequence[Need]) -> list[Lifetime]:
    return [Lifetime(n.nbytes, n.first, n.last) for n in needs]


def packed(constants: Sequence[tuple[Any, np.dtype]]) -> bytes:
    """Numbers as the union `ge2_number` holds them, 16 bytes each."""
    found = b""
    for value, dtype in constants:
        if dtype in COMPLEX:
            found += np.complex128(value).tobytes()
        elif dtype == BOOL or dtype.kind in "iu":
            found += np.array([int(value) & (2**64 - 1), 0], np.uint64).tobytes()
        else:
            found += np.array([float(value), 0.0]).tobytes()
    return found


# -------- The time in which a C compiler makes a program: a Python loop may need too much.
# Such a program is compiled with fewer optimisations; if that takes too long as well, it is run as
# blocked NumPy.


SOONER = ("-O1",)  # options to compile sooner


def program_seconds(native: Native) -> float:
    """The time for all kernels of a file, and the functions that call them."""
    calls = sum(1 for run in native.runs for _ in leaves(run.calls))
    return sum(native.prices.values()) + native.tuning.files.call_seconds * calls


def cheaper(title: str, native: Native, source: str, flags: tuple[str, ...]) -> tuple[str, ...]:
    """The options for a file.

    TooLong if no options make a compiler end within the user's patience.
    """
    seconds, tuning = program_seconds(native), native.tuning.files
    if not is_too_long(seconds, native.sources, tuning.price) or is_known(source, flags):
        return flags
    sooner = seconds * tuning.quick <= config.compile_patience
    if not (sooner and is_known(source, (*flags, *SOONER))):
        way = "compiled with fewer optimisations" if sooner else "run as blocked NumPy"
        kernels, price = len(native.prices), tuning.price
        announce(title, native.sources, kernels, seconds, price, f"it is {way}")
    if not sooner:
        raise TooLong(f"{title} would take some {seconds:.0f} s to compile")
    return (*flags, *SOONER)
