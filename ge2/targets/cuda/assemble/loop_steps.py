"""Loops and branches of a program for a device.

A loop whose iterations are nothing but launches, at places that are known beforehand, is recorded
in full; if numbers on the device decide, as a loop or a branch of launches (`conditional`). Of any
other the iterations are programs that take scratch and places from the one around them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, final

import numpy as np

from ge2.base.config import config
from ge2.choice import Family, Problem, Variant, prefs
from ge2.choice.choose import settled
from ge2.codegen.layout import Line, plain
from ge2.ir import ArrayType, Atom, Eqn, Var
from ge2.ops.graphs.control import Cond
from ge2.ops.graphs.loops import RepeatLoop, ScanLoop
from ge2.program import Buffer, Program, Step
from ge2.targets.cuda.assemble.loops import (
    LoopBody,
    RecordedBody,
    Recorder,
    conditional,
    iterated,
    second_places,
)
from ge2.targets.cuda.assemble.steps import CudaStep, StepAssembler
from ge2.targets.cuda.device import Caps, put
from ge2.targets.cuda.launch import Address
from ge2.targets.cuda.launch.template import Assembled

NUMBERS: Final = "numbers that Python computes"


# a result of a body: by the name of a parameter, or by its place
End = str | tuple[Address, ArrayType]


def placed(program: Program) -> list[int]:
    """The results for which there is an array beforehand, but for those made in an argument's."""
    outputs = program.graph.outputs
    return [
        i
        for i, a in enumerate(outputs)
        if isinstance(a, Var) and a not in outputs[:i] and of_its_own(program.buffers[a])
    ]


def of_its_own(buffer: Buffer) -> bool:
    return buffer.storage == "output" and not buffer.donor


def as_loop_body(
    p: Assembled,
    parameters: Sequence[str],
    results: Sequence[End | None],
    splits: Sequence[tuple[int, str]],
    run: Any,
) -> LoopBody:
    """The program as a part of another one.

    `parameters`: places of results, then inputs. `splits`: what the host does between launches.
    """
    outputs, buffers, places = p.program.graph.outputs, p.program.buffers, placed(p.program)
    again = [(i, j) for i in places for j in range(i + 1, len(outputs)) if outputs[i] is outputs[j]]
    types = tuple(a.type for a in outputs)
    inputs = [buffers[v].name for v in p.program.graph.inputs]
    donors = {i: buffers[a].donor for i, a in enumerate(outputs) if isinstance(a, Var)}
    over = {i: inputs.index(donor) for i, donor in donors.items() if donor}
    made = tuple(types[i] for i in places)
    why = more_than_launches(p, splits, None in results)
    body = None if why else recorded_body(p, parameters, [r for r in results if r is not None])
    return LoopBody(p.nbytes, tuple(places), made, tuple(again), over, run, body, why)


def recorded_body(p: Assembled, parameters: Sequence[str], results: list[End]) -> RecordedBody:
    """The program as launches, where it is nothing else."""
    launches = [each for group in p.groups for each in group.launches]
    return RecordedBody([*parameters], launches, [*p.sources], dict(p.offsets), results, p.names)


def more_than_launches(p: Assembled, splits: Sequence[tuple[int, str]], strided: bool) -> str:
    """Returns what there is in a program that is no launch; "" if there is nothing."""
    alone = len(p.groups) == len(p.parts) and not any(g.before or g.numbers for g in p.groups)
    if alone and not p.numbers and not strided:
        return ""
    if splits:
        return splits[0][1]
    if p.numbers or any(g.before or g.numbers for g in p.groups):
        return NUMBERS
    return "a result whose elements lie in another order"


def loop_code(assembler: StepAssembler, step: Step) -> CudaStep:
    """A loop or a branch in the way that is chosen."""
    bodies = [branch.loop_body(assembler.run) for branch in assembler.branches[step.number]]
    caps, catalog = Caps.of(assembler.device), (Launched(assembler, step, bodies),)
    choice = settled(step.eqn.choice, assembler.problem(step), caps, prefs(), catalog)
    code: CudaStep = choice.kernels()
    code.choice = choice
    return code


@final
class Launched(Family[Caps, CudaStep]):
    """A loop or a branch as launches, in the program of its step."""

    name = "launches"
    target = "cuda"

    def __init__(self, assembler: StepAssembler, step: Step, bodies: Sequence[LoopBody]) -> None:
        self.assembler, self.step, self.bodies = assembler, step, bodies

    def variants(self, problem: Problem, caps: Caps) -> tuple[Variant, ...]:
        given = self.assembler, self.step, self.bodies
        why = by_host(*given)
        fixed = isinstance(problem.op, ScanLoop | RepeatLoop)
        name, make = ("recorded", unrolled) if fixed else ("decided on the device", conditional)
        host = Variant("by the host", partial(IteratedStep, *given, why))
        return Variant(name, partial(make, *given), why), host

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> CudaStep:
        found: CudaStep = variant.plan()
        return found


def unrolled(assembler: StepAssembler, step: Step, bodies: Sequence[LoopBody]) -> Recorder:
    """The iterations of a loop as launches of this program."""
    eqn, (body, *_) = step.eqn, bodies
    found = Recorder(assembler, step)
    memory = found.own_place(ArrayType((body.nbytes,), np.dtype(np.uint8)))
    places = [*map(found.placed, (*eqn.outs, *eqn.inputs))]
    results, inputs = places[: len(eqn.outs)], places[len(eqn.outs) :]
    spares = second_places(eqn.op, bodies, results, found.own_place)
    iterated(eqn.op, [found.recorded(body)])(memory, results, spares, *inputs)
    return found


@final
class IteratedStep(CudaStep):
    """A loop or a branch whose iterations the host launches, one by one, in memory of the arena."""

    def __init__(
        self, assembler: StepAssembler, step: Step, bodies: Sequence[LoopBody], why: str
    ) -> None:
        super().__init__(assembler, step)
        eqn, nbytes = step.eqn, max(t.nbytes for t in bodies)
        memory = self.in_arena(ArrayType((nbytes,), np.dtype(np.uint8)))
        f = assembler.bind(iterated(eqn.op, bodies), f"{eqn.op.name}_")
        results, copies = self.result_places()
        lists = results, second_places(eqn.op, bodies, results, self.in_arena)
        given = [memory, *(f"[{', '.join(each)}]" for each in lists)]
        given += [self.aligned(a) for a in eqn.inputs]
        self.results = eqn.outs
        parts = "branches" if isinstance(eqn.op, Cond) else "iterations"
        self.split = f"whose {parts} the host launches ({why})"
        self.lines = [Line(f"{f}({', '.join(given)})", eqn.op.name), *copies]

    def result_places(self) -> tuple[list[str], list[Line]]:
        """The arrays that results are written to; of those that lie where wide accesses may not
        begin, as one among the elements of a stack, others in the arena, and the copies from there.
        """
        assembler, eqn = self.assembler, self.step.eqn
        places, copies = list[str](), list[Line]()
        for v in eqn.outs:
            text = assembler.operand(v)
            if not assembler.in_order(v):
                own = self.in_arena(v.type)
                copies.append(Line(f"{assembler.bind(put, 'put')}({text}, {own})", eqn.op.name))
                text = own
            places.append(text)
        return places, copies

    def in_arena(self, type_: ArrayType) -> str:
        """An array in the arena that the step has for itself."""
        name, size = self.need(type_.nbytes), type_.dtype.itemsize
        strides = tuple(n * size for n in plain(type_.shape).strides)
        return f"view(memory, {name}_offset, {type_.shape}, {type_.dtype.name}, {strides})"

    def aligned(self, a: Atom) -> str:
        """An atom as an array that begins where wide accesses may."""
        text = self.assembler.operand(a)
        return text if self.assembler.in_order(a) else f"ready({text})"


def by_host(assembler: StepAssembler, step: Step, bodies: Sequence[LoopBody]) -> str:
    """The reason why the host launches the iterations of a loop, or a branch, one after another; ""
    if they are nothing but launches, at places where kernels may read and write.
    """
    eqn, op = step.eqn, step.eqn.op
    times = op.length if isinstance(op, ScanLoop | RepeatLoop) else None
    if assembler.seen:
        return "so that each is seen"
    if times is not None and config.capture == "off":
        return "capture is off"
    if why := next((body.why for body in bodies if body.why), ""):
        return why
    if any(a.type.weak for a in eqn.inputs):
        return NUMBERS
    launches = sum(body.recorded.count for body in bodies if body.recorded)
    launches *= 2 if times is None else times
    most = assembler.device.limits.tuning.launches.recorded
    if launches > most:
        return f"{launches} launches, more than {most}"
    return "" if all(lies_as_read(assembler, eqn)) else "its arrays lie in another order"


def lies_as_read(assembler: StepAssembler, eqn: Eqn) -> Iterator[bool]:
    """For each array of a loop or a branch, whether it lies as the kernels of an iteration take it to.

    Those of a scan know that a slice of a stack begins at any multiple of its size, so a stack may,
    too; others begin where wide accesses may.
    """
    op: Any = eqn.op
    first = 1 if isinstance(op, Cond) else 0  # an index is read alone, wherever it lies
    arrays, stacks = (*eqn.outs, *eqn.inputs[first:]), tuple[Atom, ...]()
    if isinstance(op, ScanLoop):
        stacks = (*eqn.outs[op.carry :], *eqn.inputs[op.consts + op.carry :])
        arrays = (*eqn.outs[: op.carry], *eqn.inputs[: op.consts + op.carry])
    yield from map(assembler.is_plain, arrays)
    yield from (assembler.is_stack(a, math.prod(a.type.shape[1:])) for a in stacks)
