"""Loops and branches of a program for a device.

A loop whose rounds are nothing but launches, at places that are known beforehand, is written down
whole; if numbers on the device decide, as a loop or a branch of launches (`conditional`). Of any
other the rounds are programs that take scratch and places from the one around them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ge2.base.config import config
from ge2.codegen.layout import Line, plain
from ge2.ir import ArrayType, Atom, Eqn, Literal, Var
from ge2.ops.graphs.control import Cond
from ge2.ops.graphs.loops import RepeatLoop, ScanLoop
from ge2.program.program import Buffer, Step
from ge2.targets.cuda.device import put
from ge2.targets.cuda.launch.template import At
from ge2.targets.cuda.loops.conditional import conditional
from ge2.targets.cuda.loops.iterate import Turn, rounds, second_places
from ge2.targets.cuda.loops.record_launches import Writer, is_plain
from ge2.targets.cuda.loops.unroll import MOST, Round

if TYPE_CHECKING:
    from ge2.targets.cuda.assemble import GpuDriver

NUMBERS: Final = "numbers that Python computes"


def placed(driver: GpuDriver) -> list[int]:
    """The results for which there is an array beforehand, but for those made in an argument's."""
    outputs = driver.program.graph.outputs
    return [
        i
        for i, a in enumerate(outputs)
        if isinstance(a, Var) and a not in outputs[:i] and of_its_own(driver.buffer(a))
    ]


def of_its_own(buffer: Buffer) -> bool:
    return buffer.storage == "output" and not buffer.donor


def turned(driver: GpuDriver, run: Any) -> Turn:
    """The program as a part of another one."""
    outputs, places = driver.program.graph.outputs, placed(driver)
    again = [(i, j) for i in places for j in range(i + 1, len(outputs)) if outputs[i] is outputs[j]]
    types = tuple(a.type for a in outputs)
    inputs = [v.name for v in map(driver.buffer, driver.program.graph.inputs)]
    donors = {i: driver.buffer(a).donor for i, a in enumerate(outputs) if isinstance(a, Var)}
    over = {i: inputs.index(donor) for i, donor in donors.items() if donor}
    made = tuple(types[i] for i in places)
    found = as_round(driver, places)
    why = "" if found is not None else more_than_launches(driver)
    return Turn(driver.nbytes, tuple(places), made, tuple(again), over, run, found, why)


def as_round(driver: GpuDriver, places: Sequence[int]) -> Round | None:
    """The program as launches, if it is nothing else."""
    graph, groups = driver.program.graph, driver.groups
    weak = any(a.type.weak for a in (*graph.inputs, *graph.outputs))
    if weak or len(groups) != len(driver.body) or any(g.before or g.numbers for g in groups):
        return None
    names = [driver.name(graph.outputs[i]) for i in places]  # type: ignore[arg-type]
    ends = [end(driver, a) for a in graph.outputs]
    results = [e for e in ends if e is not None]
    if len(results) < len(ends):
        return None
    launches = [each for group in groups for each in group.launches]
    parameters = [*names, *map(driver.name, graph.inputs)]
    return Round(
        parameters, launches, [*driver.sources.values()], driver.offsets(), results, driver.names
    )


def more_than_launches(driver: GpuDriver) -> str:
    """What there is in a program that is no launch."""
    if driver.splits:
        return driver.splits[0][1]
    numbers = any(
        a.type.weak for a in (*driver.program.graph.inputs, *driver.program.graph.outputs)
    )
    if numbers or any(g.before or g.numbers for g in driver.groups):
        return NUMBERS
    return "a result whose elements lie in another order"


def end(driver: GpuDriver, a: Atom) -> str | tuple[At, ArrayType] | None:
    """A result by the name of a parameter, or by its place; None for one that
    is in another order.
    """
    if isinstance(a, Literal):
        return At(driver.array(a)), a.type
    buffer, layout = driver.buffer(a), driver.layout(a)
    if buffer.base is None and buffer.storage != "arena":
        return driver.holder(buffer)
    if layout.strides != plain(a.type.shape).strides:
        return None
    return driver.at(a, layout.offset * a.type.dtype.itemsize), a.type


def hosted(driver: GpuDriver, step: Step) -> None:
    """A loop or a branch: its rounds are launched one after another, in memory of the arena."""
    eqn, chosen = step.eqn, driver.branches[step.number]
    turns = [branch.turn(driver.run) for branch in chosen]
    if unrolled(driver, step, turns) or conditional(driver, step, turns):
        return
    memory = driver.need(max(t.nbytes for t in turns), step.number)
    f = driver.given(rounds(eqn.op, turns), f"{eqn.op.name}_")
    results, copies = result_places(driver, step)
    places = results, second_places(eqn.op, turns, results, partial(in_arena, driver, step))
    lists = [f"[{', '.join(each)}]" for each in places]
    scratch = lent(driver, memory, ArrayType((max(t.nbytes for t in turns),), np.dtype(np.uint8)))
    handed = ", ".join([scratch, *lists, *map(partial(aligned, driver), eqn.inputs)])
    driver.fresh(*eqn.outs)
    parts = "branches" if isinstance(eqn.op, Cond) else "rounds"
    driver.split(eqn, f"whose {parts} the host launches ({by_host(driver, eqn, turns)})")
    driver.emit(Line(f"{f}({handed})", eqn.op.name))
    for line in copies:
        driver.emit(line)


def result_places(driver: GpuDriver, step: Step) -> tuple[list[str], list[Line]]:
    """The arrays that results are written to; of those that lie where wide accesses may not begin,
    as one among the elements of a stack, others in the arena, and the copies from there.
    """
    places, copies = list[str](), list[Line]()
    for v in step.eqn.outs:
        text = driver.array(v)
        if not begins(driver, v):
            own = in_arena(driver, step, v.type)
            copies.append(Line(f"{driver.given(put, 'put')}({text}, {own})", step.eqn.op.name))
            text = own
        places.append(text)
    return places, copies


def by_host(driver: GpuDriver, eqn: Eqn, turns: Sequence[Turn]) -> str:
    """Why the host launches the rounds of a loop, or a branch, one after another."""
    op, fixed = eqn.op, isinstance(eqn.op, ScanLoop | RepeatLoop)
    if driver.ranged or driver.meter:
        return "so that each is seen"
    if fixed and config.capture == "off":
        return "capture is off"
    if (why := next((turn.why for turn in turns if turn.why), "")) or any(
        a.type.weak for a in eqn.inputs
    ):
        return why or NUMBERS
    launches = sum(turn.round.count for turn in turns if turn.round) * getattr(op, "length", 2)
    return (
        f"{launches} launches, more than {MOST}"
        if launches > MOST
        else "its arrays lie in another order"
    )


def unrolled(driver: GpuDriver, step: Step, turns: Sequence[Turn]) -> bool:
    """Writes a loop's rounds as launches of this program, if they are
    nothing else and not too many.
    """
    eqn, (turn, *_) = step.eqn, turns
    op, known = eqn.op, turn.round
    if not isinstance(op, ScanLoop | RepeatLoop) or known is None or config.capture == "off":
        return False
    if driver.ranged or driver.meter:  # each round is to be seen
        return False
    atoms = *eqn.outs, *eqn.inputs
    if known.count * op.length > MOST or not all(is_plain(driver, a) for a in atoms):
        return False
    driver.fresh(*eqn.outs)
    writer = Writer(driver, step)
    memory = writer.own(ArrayType((turn.nbytes,), np.dtype(np.uint8)))
    places = [writer.placed(a) for a in atoms]
    results, inputs = places[: len(eqn.outs)], places[len(eqn.outs) :]
    spares = second_places(op, turns, results, writer.own)
    rounds(op, [writer.turn(turn)])(memory, results, spares, *inputs)
    return True


def in_arena(driver: GpuDriver, step: Step, type_: ArrayType) -> str:
    """An array in the arena that a step has for itself."""
    return lent(driver, driver.need(type_.nbytes, step.number), type_)


def lent(driver: GpuDriver, name: str, type_: ArrayType) -> str:
    """A part of the arena as an array."""
    strides = plain(type_.shape).strides
    nbytes = tuple(n * type_.dtype.itemsize for n in strides)
    return f"view(memory, {name}_offset, {type_.shape}, {type_.dtype.name}, {nbytes})"


def aligned(driver: GpuDriver, a: Atom) -> str:
    """An atom as an array that begins where wide accesses may."""
    text = driver.array(a)
    if isinstance(a, Literal):
        return text
    return text if begins(driver, a) else f"ready({text})"


def begins(driver: GpuDriver, a: Var) -> bool:
    """True if an array is in C order, and begins where wide accesses may, or is a number."""
    parts = driver.layout(a).offset, driver.loose.get(driver.holder(driver.buffer(a)), 0)
    lies = a.type.size == 1 or all(n * a.type.dtype.itemsize % 16 == 0 for n in parts)
    return lies and driver.layout(a).strides == plain(a.type.shape).strides
