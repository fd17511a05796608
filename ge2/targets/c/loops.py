"""Loops and branches as C: the function of a round, and the stage that calls it again and again,
which `templates/c/loops.c.jinja` prints.

A round is a program of its own, written into the same file. What it reads and writes are pointers
in an array `q`: constants stay, elements and results move on by one, and a carry has two places
that change roles, or a single one where a round may write over what it reads.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from typing import Any, Protocol, final

import numpy as np

from ge2.base.record import mutable
from ge2.choice import Family, Problem, Variant
from ge2.codegen.text import Text, guard
from ge2.ir import Atom, Eqn, Graph, Literal, Var
from ge2.ops.graphs.control import Cond
from ge2.ops.graphs.loops import RepeatLoop, ScanLoop
from ge2.ops.graphs.while_loop import WhileLoop
from ge2.ops.shape import BroadcastInDim
from ge2.passes.context import Context
from ge2.program import CONTROL, Buffer, Program, Step, branch_pairs
from ge2.program.timeline import Lifetime, plan
from ge2.targets.c.emit import STORED
from ge2.targets.c.emit.file import Braces, Branches, Iterations, Stage
from ge2.targets.c.tuning import Tuning

COUNTED = (ScanLoop, RepeatLoop)
IN_C = ("kernel", "copy", "loop")  # kinds of steps
ALIGNED = "__attribute__((aligned(64)))"
STOPS = "return lib->error->code;"


def held(op: Any) -> tuple[Graph, ...]:
    """The graphs of a loop or a branch that are run."""
    return op.graphs()  # type: ignore[no-any-return]


def carried(op: Any, i: int, graph: Graph, short: int) -> dict[Var, Var]:
    """Returns which results of graph `i` become which carry; one of more than `short` bytes that is
    stacked as well has a place there.
    """
    if isinstance(op, COUNTED):
        first, count = op.consts, op.carry
    elif isinstance(op, WhileLoop) and i == 1:
        first, count = op.body_consts, len(graph.outputs)
    elif isinstance(op, Cond):
        return written_over(op, graph)
    else:
        return {}
    pairs = zip(graph.outputs[:count], graph.inputs[first : first + count], strict=True)
    found: dict[Var, Var] = {}
    for a, v in pairs:
        once = graph.outputs.count(a) == 1 or a.type.nbytes <= short
        if isinstance(a, Var) and a not in found and a not in graph.inputs and once:
            found[a] = v
    return found


def written_over(op: Cond, graph: Graph) -> dict[Var, Var]:
    """Pairs of a branch's results and the inputs that they may be made in."""
    found: dict[Var, Var] = {}
    for i, k in branch_pairs(op).items():
        a = graph.outputs[i]
        if isinstance(a, Var) and a not in graph.inputs and graph.outputs.count(a) == 1:
            found[a] = graph.inputs[k]
    return found


def grounded(graph: Graph, context: Context) -> Graph:
    """The graph with literals that a loop reads, or that it returns itself if
    it is a body, as arrays.
    """
    eqns: list[Eqn] = []
    made: dict[Literal, Var] = {}

    def array(a: Atom) -> Atom:
        if not isinstance(a, Literal) or a.type.weak:
            return a
        if a not in made:
            made[a] = Var(a.type)
            eqns.append(Eqn(BroadcastInDim((), ()), (a,), (made[a],)))
        return made[a]

    for eqn in graph.eqns:
        if isinstance(eqn.op, CONTROL) and any(isinstance(a, Literal) for a in eqn.inputs):
            eqn = Eqn(eqn.op, tuple(map(array, eqn.inputs)), eqn.outs, eqn.source)
        eqns.append(eqn)
    results = tuple(map(array, graph.outputs)) if context.body else graph.outputs
    return graph if not made else Graph(graph.inputs, tuple(eqns), results, graph.consts)


def needs_python(program: Program, kinds: Sequence[str]) -> str:
    """The reason why a program needs more than C; "" if it does not."""
    for step in program.steps:
        if step.kind not in (*kinds, "view"):
            return f"Python computes its {step.eqn.op.name}"
    for a in program.graph.outputs:
        if a.type.weak:
            return "it makes a Python number"
        made = a in program.graph.inputs or program.buffers[a].storage == "output"  # type: ignore[index]
        if isinstance(a, Literal) or not made:
            return "a result of it is no array of its own"
    return ""


@final
class CLoop(Family[Any, tuple[Program, ...]]):
    """A loop or a branch whose iterations are functions of the C file.

    `program` makes the program of each graph of the operation.
    """

    name = "loop in C"
    ops = CONTROL
    target = "c"

    def __init__(self, eqn: Eqn, program: Callable[[int], Program]) -> None:
        self.eqn, self.program = eqn, program

    def refuses(self, problem: Problem, caps: object) -> str:
        if any(a.type.weak for a in self.eqn.inputs):
            return "an input is a Python number"
        return (
            "an input is a literal" if any(isinstance(a, Literal) for a in self.eqn.inputs) else ""
        )

    def variants(self, problem: Problem, caps: object) -> tuple[Variant, ...]:
        found, part = [], "a branch" if isinstance(problem.op, Cond) else "an iteration"
        for i, graph in enumerate(held(problem.op)):
            if any(v.type.weak for v in graph.inputs):
                return (Variant(refusal=f"{part} is given a Python number"),)
            found.append(self.program(i))
            if why := needs_python(found[-1], IN_C):
                return (Variant(refusal=f"in {part}, {why}"),)
        return (Variant(plan=tuple(found)),)

    def kernels(self, problem: Problem, variant: Variant, caps: object) -> tuple[Program, ...]:
        found: tuple[Program, ...] = variant.plan
        return found


@final
@mutable
class Round:
    """The function of a round as the loop sees it.

    Its arrays are numbered: inputs, then results.
    """

    program: Program
    call: str  # with `q`
    made: list[Var]  # the results it writes
    work: int
    fails: bool  # whether it may find an index out of range

    def slot(self, a: Atom) -> int:
        """The number of an array."""
        assert isinstance(a, Var)
        inputs = self.program.graph.inputs
        return inputs.index(a) if a in inputs else len(inputs) + self.made.index(a)

    def donor(self, a: Atom) -> bool:
        return bool(self.program.buffers[a].donor)  # type: ignore[index]

    @property
    def count(self) -> int:
        return len(self.program.graph.inputs) + len(self.made)


def spares(op: Any, i: int, program: Program) -> int:
    """Bytes of second places for the carry that graph `i` makes, but for what
    is made in a stack.
    """
    outputs, total = program.graph.outputs, 0
    carry = (
        op.carry
        if isinstance(op, COUNTED)
        else len(outputs)
        if isinstance(op, WhileLoop) and i
        else 0
    )
    for n, out in enumerate(outputs[:carry]):
        assert isinstance(out, Var)
        new = out not in program.graph.inputs and outputs.index(out) == n
        stacked = isinstance(op, COUNTED) and out in outputs[carry:]
        total += 0 if new and (program.buffers[out].donor or stacked) else out.type.nbytes
    return total


@final
@mutable
class Need:
    """Bytes of scratch from step `first` to step `last`."""

    nbytes: int
    first: int
    last: int


@final
@mutable
class Segment:
    """Steps in a row that are one C function.

    `arrays` are its `p`: buffers, or scratch that it needs.
    """

    name: str
    steps: tuple[Step, ...]
    direct: bool  # it is the whole program: results and arena come from the launcher
    hosts: list[Var] = field(default_factory=list)
    arrays: list[Buffer | Need] = field(default_factory=list)
    places: dict[int, int] = field(default_factory=dict)  # of arrays, by identity
    written: set[int] = field(default_factory=set)
    sizes: list[int | Need] = field(default_factory=list)  # a need: its offset in the arena
    constants: list[tuple[Any, np.dtype]] = field(default_factory=list)
    calls: list[Stage] = field(default_factory=list)
    local: list[Buffer] = field(default_factory=list)  # arrays that are variables of the function
    work: int = 0

    def add(self, arrays: Iterable[Buffer | Need]) -> None:
        for array in arrays:
            self.places.setdefault(id(array), len(self.arrays))
            self.arrays.append(array)

    def table(self, numbers: Sequence[int]) -> int:
        """The index in `n` from which on these integers are."""
        self.sizes += numbers
        return len(self.sizes) - len(numbers)


class Native(Protocol):
    """The writer of the file, as loops ask it."""

    program: Program
    inner: list[str]
    sites: Counter[str]
    products: frozenset[tuple[str, str]]
    needs: list[Need]
    fails: bool

    @property
    def tuning(self) -> Tuning: ...
    def child(self, program: Program) -> Native: ...
    def segment(self, steps: Sequence[Step], direct: bool, inner: str = "") -> Segment: ...
    def need(self, nbytes: int, step: int) -> Need: ...
    def none(self, step: int) -> Need: ...
    def shared(self, segment: Segment, need: Need, nbytes: int) -> str: ...
    def scratch(self, segment: Segment, need: Need) -> str: ...
    def size(self, segment: Segment, value: int | Need) -> str: ...
    def pointer(self, segment: Segment, buffer: Buffer, written: bool) -> str: ...
    def located(
        self, segment: Segment, buffer: Buffer, written: bool
    ) -> tuple[int, int | Need]: ...


def write_round(
    native: Native, segment: Segment, scratch: Need, program: Program, kind: str
) -> Round:
    """Writes the function into the file; what it needs besides arrays is part
    of what `segment` is given.

    Its scratch is that of all graphs of the step, of which one runs at a time.
    """
    child = native.child(program)
    native.inner.append(f"{kind}_{len(native.inner)}")
    inner = child.segment(program.steps, True, native.inner[-1])
    native.sites[inner.name] += 1
    native.products |= child.products
    native.fails |= child.fails
    found = plan([Lifetime(n.nbytes, n.first, n.last) for n in child.needs])
    offsets = dict(zip(map(id, child.needs), found.offsets, strict=True))
    sizes = [n if isinstance(n, int) else offsets[id(n)] for n in inner.sizes]
    at_n, at_k = len(segment.sizes), len(segment.hosts) + len(segment.constants)
    segment.sizes += sizes
    segment.constants += inner.constants
    arena = native.shared(segment, scratch, found.nbytes) if found.nbytes else "arena"
    returned = [v for v in dict.fromkeys(program.graph.outputs) if isinstance(v, Var)]
    made = [v for v in returned if program.buffers[v].storage == "output"]
    call = f"{inner.name}({{}}, n + {at_n}, k + {at_k}, {arena}, threads, lib)"
    return Round(program, call, made, inner.work, child.fails)


@final
class Loop:
    """Writes the statements of one loop or branch."""

    def __init__(self, native: Native, segment: Segment, step: Step) -> None:
        self.native, self.segment, self.step = native, segment, step
        self.tuning = native.tuning.loops
        self.op: Any = step.eqn.op
        scratch = native.none(step.number)
        self.rounds = [
            write_round(native, segment, scratch, program, self.op.name)
            for program in native.program.inner[step.number]
        ]
        given, results = step.eqn.inputs, step.eqn.outs
        if isinstance(self.op, RepeatLoop):
            given, results = given[: self.op.consts + self.op.carry], results[: self.op.carry]
        self.given = [self.pointer(a, False) for a in given]
        self.results = [self.pointer(v, True) for v in results]
        self.pointers: list[str] = []
        self.before: list[Text] = []
        self.first: list[Text] = []  # before a round
        self.each: list[Text] = []  # after it
        self.after: list[Text] = []

    def stage(self) -> Stage:
        if isinstance(self.op, COUNTED):
            return self.scan()
        return self.while_loop() if isinstance(self.op, WhileLoop) else self.cond()

    # -- arrays

    def pointer(self, a: Atom, written: bool) -> str:
        native = self.native
        assert isinstance(a, Var)
        place = native.pointer(self.segment, native.program.buffers[a], written)
        offset = native.program.layout(a).offset * a.type.dtype.itemsize
        return f"{place} + {self.size(offset)}" if offset else place

    def size(self, n: int) -> str:
        return self.native.size(self.segment, n)

    def bytes(self, a: Atom) -> str:
        """The size of an array, or of one element of a stack."""
        return (
            str(a.type.nbytes) if a.type.nbytes <= self.tuning.known else self.size(a.type.nbytes)
        )

    def copied(self, to: str, source: str, a: Atom) -> Text:
        return Text(f"ge2_copy({to}, {source}, {self.bytes(a)});")

    def called(self, turn: Round, name: str = "q") -> Text:
        call = turn.call.format(name)
        return guard(call, STOPS) if turn.fails else Text(f"{call};")

    def looks(self, turn: Round) -> tuple[Text, ...]:
        """The statement that lets an interrupt end the loop; of short
        iterations, one in many has a look.
        """
        self.native.fails = True
        often = self.tuning.often
        seldom = "" if turn.work > self.tuning.small else f"(t & {often}) == {often} && "
        return (guard(f"{seldom}ge2_interrupted(lib)", STOPS),)

    def array(self, name: str, pointers: Sequence[str]) -> Text:
        """Pointers as an array, a few of them a line."""
        listed = ", ".join(pointers) or "0"
        lines = textwrap.wrap(listed, 90, break_long_words=False, break_on_hyphens=False)
        return Text(f"char *{name}[] = {{{(chr(10) + 12 * ' ').join(lines)}}};")

    # -- the carry

    def carry(self, turn: Round, i: int, first: int, length: int | None) -> None:
        """The way of part `i` of the carry from one iteration to the next, and at last to the
        results.

        `first`: the number of the first of them among the inputs; `length`: how
        many rounds, if it is known.
        """
        slot, out = first + i, turn.program.graph.outputs[i]
        a, result = turn.program.graph.inputs[slot], self.results[i]
        if out is a:  # it stays as it is
            self.after.append(self.copied(result, f"q[{slot}]", a))
            return
        outputs = turn.program.graph.outputs
        if out in turn.made and turn.donor(out) and outputs.index(out) == i:
            home = result
            if a.type.nbytes <= self.tuning.carry:
                home = f"state{i}"
                self.before.append(Text(f"char {home}[{a.type.nbytes}] {ALIGNED};"))
                self.after.append(self.copied(result, home, a))
            self.before.append(self.copied(home, self.pointers[slot], a))
            self.pointers[slot] = self.pointers[turn.slot(out)] = home
            return
        if length is not None and self.stack_of(turn, out, i) is not None:
            self.each.append(Text(f"q[{slot}] = q[{turn.slot(out)}];"))  # before that moves on
            self.after.append(self.copied(result, f"q[{slot}]", a))
            return
        target = turn.slot(out)
        if out in turn.program.graph.inputs or outputs.index(out) != i:
            target = len(self.pointers)  # another value, which is copied
            self.pointers.append("")
            self.each.insert(0, self.copied(f"q[{target}]", f"q[{turn.slot(out)}]", a))
        if a.type.nbytes <= self.tuning.known:
            self.moved(i, slot, target, a)
            return
        spare = self.native.scratch(self.segment, self.native.need(a.type.nbytes, self.step.number))
        places = (result, spare) if length is None or length % 2 else (spare, result)
        self.pointers[target] = places[0]
        self.each.append(Text(f"ge2_turn(q, {slot}, {target}, {places[1]}, t);"))
        if length is None:
            self.after.append(
                guard(f"q[{slot}] != {result}", f"memcpy({result}, q[{slot}], {self.bytes(a)});")
            )

    def moved(self, i: int, slot: int, target: int, a: Atom) -> None:
        """Has part `i` of the carry, a few bytes, in variables, which a
        compiler keeps in registers.
        """
        state, later = f"state{i}", f"next{i}"
        self.before += [Text(f"char {name}[{a.type.nbytes}] {ALIGNED};") for name in (state, later)]
        self.before.append(self.copied(state, self.pointers[slot], a))
        self.pointers[slot], self.pointers[target] = state, later
        self.each.append(self.copied(state, later, a))
        self.after.append(self.copied(self.results[i], state, a))

    def stack_of(self, turn: Round, out: Atom, i: int) -> int | None:
        """The result that stacks this part of the carry, which is then made where it is to stay."""
        outputs, carry = turn.program.graph.outputs, self.op.carry
        if out in turn.program.graph.inputs or out in outputs[:i]:
            return None
        return next((n for n in range(carry, len(outputs)) if outputs[n] is out), None)

    # -- kinds

    def scan(self) -> Stage:
        (turn,) = self.rounds
        op, graph = self.op, turn.program.graph
        first = op.consts + op.carry
        self.pointers = [*self.given[:first], *("0" for _ in range(turn.count - first))]
        moves: list[Text] = []
        for slot in range(first, len(graph.inputs)):
            at = self.stack(first, slot - first)
            if isinstance(op, RepeatLoop):
                self.pointers[slot] = self.listed(
                    slot, self.step.eqn.inputs[at : at + op.length], False
                )
                continue
            self.pointers[slot] = self.moving(moves, slot, self.given[at], graph.inputs[slot])
        for i in range(op.carry):
            self.carry(turn, i, op.consts, op.length)
        for n in range(op.carry, len(graph.outputs)):
            self.stacked(turn, n, moves)
        work = turn.work * op.length
        self.segment.work += work
        length = self.size(op.length)
        looks = self.looks(turn) if work >= self.tuning.long else ()
        if op.length == 0:
            given = zip(
                self.results, self.given[op.consts :], graph.inputs[op.consts : first], strict=False
            )
            return Braces(tuple(self.copied(y, x, v) for y, x, v in given))
        self.each += moves
        return self.iterations(turn, (self.array("q", self.pointers),), length, looks, ())

    def iterations(
        self,
        turn: Round,
        pointers: tuple[Text, ...],
        length: str,
        looks: tuple[Text, ...],
        test: tuple[Text, ...],
    ) -> Iterations:
        return Iterations(
            tuple(self.before), pointers, length, looks, test, tuple(self.first),
            (self.called(turn),), tuple(self.each), tuple(self.after),
        )  # fmt: skip

    def stack(self, first: int, i: int) -> int:
        """The number of stack `i` among the inputs or results, which begin with `first` others."""
        return first + i * (self.op.length if isinstance(self.op, RepeatLoop) else 1)

    def listed(self, slot: int, atoms: Sequence[Atom], written: bool) -> str:
        """Arrays of their own, one for each round, found by numbers: code for
        each takes long to compile.
        """
        sizes, native = self.segment.sizes, self.native
        self.first.append(Text(f"q[{slot}] = ge2_place(p, arena, n + {len(sizes)} + 3 * t);"))
        for a in atoms:
            assert isinstance(a, Var)
            at, offset = native.located(self.segment, native.program.buffers[a], written)
            sizes += [at, offset, native.program.layout(a).offset * a.type.dtype.itemsize]
        return "0"

    def moving(self, moves: list[Text], slot: int, base: str, a: Atom) -> str:
        """The first element of a stack, from which each round moves on by one."""
        step = self.bytes(a)
        moves.append(Text(f"q[{slot}] {'-' if self.op.reverse else '+'}= {step};"))
        last = (self.op.length - 1) * a.type.nbytes
        return f"{base} + {self.size(last)}" if self.op.reverse and last > 0 else base

    def stacked(self, turn: Round, n: int, moves: list[Text]) -> None:
        """Result `n` of a round, which is written where it is to stay, or copied there."""
        out = turn.program.graph.outputs[n]
        again = out in turn.program.graph.inputs or turn.program.graph.outputs.index(out) != n
        through = self.op.carry and self.shares(turn, n)
        if again and not through:
            slot = len(self.pointers)
            self.pointers.append("")
            self.each.insert(0, self.copied(f"q[{slot}]", f"q[{turn.slot(out)}]", out))
        else:
            slot = turn.slot(out)
        at = self.stack(self.op.carry, n - self.op.carry)
        if isinstance(self.op, RepeatLoop):
            self.pointers[slot] = self.listed(
                slot, self.step.eqn.outs[at : at + self.op.length], True
            )
        else:
            self.pointers[slot] = self.moving(moves, slot, self.results[at], out)

    def shares(self, turn: Round, n: int) -> bool:
        """True if the first part of the carry that is this value is made in this stack."""
        outputs = turn.program.graph.outputs
        i = outputs.index(outputs[n])
        if i >= self.op.carry or (outputs[n] in turn.made and turn.donor(outputs[n])):
            return False
        return self.stack_of(turn, outputs[n], i) == n

    def while_loop(self) -> Iterations:
        test, turn = self.rounds
        op = self.op
        consts, carry = op.cond_consts, len(turn.program.graph.outputs)
        self.pointers = [*self.given[consts:], *("0" for _ in turn.made)]
        for i in range(carry):
            self.carry(turn, i, op.body_consts, None)
        self.segment.work += turn.work * self.tuning.rounds
        decided = test.program.graph.outputs[0]
        pointers = [self.array("q", self.pointers)]
        if decided in test.program.graph.inputs:
            at = test.slot(decided)
            place = self.given[at] if at < consts else f"q[{at - consts + op.body_consts}]"
            stops: list[Text] = []
        else:
            place = "on"
            inputs = [f"q[{i + op.body_consts}]" for i in range(carry)]
            pointers.append(Text("char on[8];"))
            stops = [self.array("c", [*self.given[:consts], *inputs, "on"]), self.called(test, "c")]
        stops.append(guard(f"!*(const uint8_t *){place}", "break;"))
        return self.iterations(turn, tuple(pointers), "", self.looks(turn), tuple(stops))

    def cond(self) -> Branches:
        index = self.step.eqn.inputs[0]
        read = f"*(const {STORED[index.type.dtype]} *)({self.given[0]})"
        self.segment.work += max(turn.work for turn in self.rounds)
        return Branches(read, tuple(map(self.branch, self.rounds)))

    def branch(self, turn: Round) -> tuple[Text, ...]:
        outputs = turn.program.graph.outputs
        pointers = [*self.given[1:], *("0" for _ in turn.made)]
        copies = []
        for n, out in enumerate(outputs):
            if out in turn.made and outputs.index(out) == n:
                pointers[turn.slot(out)] = self.results[n]
            else:
                copies.append(self.copied(self.results[n], f"q[{turn.slot(out)}]", out))
        return (self.array("q", pointers), self.called(turn), *copies)
