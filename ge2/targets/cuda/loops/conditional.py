"""While loops and branches as items of the launches around them: numbers on the
device decide, not the host.

The iterations of a loop go to and fro between two places of what it carries, the results
and second ones, so that nothing is copied from iteration to iteration: an iteration of the item is
two of the loop, with a branch between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ge2.base.dtypes import BOOL
from ge2.ir import ArrayType
from ge2.ops.graphs.while_loop import WhileLoop
from ge2.program.program import Step
from ge2.program.records import place
from ge2.targets.cuda.launch.launches import Branch, While
from ge2.targets.cuda.loops.iterate import Carry, LoopBody, second_places, written_over
from ge2.targets.cuda.loops.record_launches import Recorder
from ge2.targets.cuda.loops.unroll import Placed

if TYPE_CHECKING:
    from ge2.targets.cuda.assemble import CudaAssembler

Places = Sequence[Placed]


def conditional(assembler: CudaAssembler, step: Step, bodies: Sequence[LoopBody]) -> Recorder:
    """A while loop or a branch as one item of this program."""
    eqn, op = step.eqn, step.eqn.op
    writer = Recorder(assembler, step)
    memory = writer.own_place(ArrayType((max(t.nbytes for t in bodies),), np.dtype(np.uint8)))
    results = [*map(writer.placed, eqn.outs)]
    spares = second_places(op, bodies, results, writer.own_place)
    inputs, symbolic = [*map(writer.placed, eqn.inputs)], [*map(writer.recorded, bodies)]
    if isinstance(op, WhileLoop):
        loop(writer, op, symbolic, memory, results, spares, inputs)
    else:
        branch(writer, symbolic, memory, results, inputs)
    return writer


def branch(
    writer: Recorder, bodies: Sequence[LoopBody], memory: Placed, results: Places, inputs: Places
) -> None:
    index, *xs = inputs
    xs = [*written_over(bodies, results, xs)]
    lists = []
    for body in bodies:
        with writer.apart() as found:
            body.write_all(memory, results, *xs)
        lists.append(tuple(found))
    eqn = writer.step.eqn
    writer.launch(Branch(tuple(lists), index.at, index.dtype, eqn.op.name, place(eqn)))


def loop(
    writer: Recorder,
    op: WhileLoop,
    bodies: Sequence[LoopBody],
    memory: Placed,
    results: Places,
    more: Places,
    xs: Places,
) -> None:
    """What is carried begins in the results, and is there again after each iteration of an item."""
    (test, body), (*seconds, decided), where = bodies, more, place(writer.step.eqn)
    by_cond, by_body, start = op.parts(xs)
    Carry(start, (), ()).settle(results)
    carry = Carry(results, seconds, results)

    def tested() -> Placed:
        found: Placed = test.into(memory, [decided], *by_cond, *carry.now)[0]
        return found

    def went() -> None:
        homes = carry.homes
        carry.take(body.into(memory, homes, *by_body, *carry.now), homes)

    with writer.apart() as first:
        going = tested()
    with writer.apart() as both:
        went()
        between = tested()
        with writer.apart() as last:
            carry.settle(results)
        with writer.apart() as second:
            went()
            tested()
        writer.launch(
            Branch(
                (tuple(last), tuple(second)),
                between.at,
                BOOL,
                f"{op.name}'s second iteration",
                where,
            )
        )
    writer.launch(While(tuple(first), tuple(both), going.at, op.name, where))
