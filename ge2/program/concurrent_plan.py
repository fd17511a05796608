"""Where arrays lie so that steps that know nothing of each other need not wait for each other.

What follows in time may lie at the same place, and that is how little memory is enough. But in a
captured graph steps run at once that need nothing of each other, unless one writes where the
other's arrays lie: the gradient of one layer's weights would wait for that of the next layer's. So
an array takes the place of a small one only if all who read that are steps that it needs anyway.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from ge2.base.memory import Lifetime, Plan, in_time, lowest, plan
from ge2.ir import Atom, Var
from ge2.program.program import Program

MANY: Final = 512  # arrays beyond which nobody looks for independent ones
SMALL: Final = 4 << 20  # bytes of an array; who writes more keeps the whole GPU busy
MORE: Final = 64 << 20  # bytes that all of it may cost
Touching = dict[str, set[int]]


def planned_beside(program: Program, needs: Sequence[tuple[str, Lifetime]], alignment: int) -> Plan:
    """The places of arrays and of what steps need besides, by name;
    tight where apart costs too much.
    """
    lives = [life for _, life in needs]
    tight = plan(lives, alignment)
    if len(needs) > MANY:
        return tight
    before = behind(program)
    touching = users(program)
    by = [touching.get(name) or {life.first} for name, life in needs]
    apart = lowest(lives, in_time(lives), keeps_apart(lives, by, before), alignment)
    return apart if tight.nbytes < apart.nbytes <= tight.nbytes + MORE else tight


def keeps_apart(
    lives: Sequence[Lifetime], by: Sequence[set[int]], before: Sequence[int]
) -> Callable[[int, int], bool]:
    """Tells whether two arrays may not share a place, given who uses them and
    what each step needs.
    """
    masks = [sum(1 << n for n in steps) for steps in by]
    common = [~0] * len(by)
    for i, steps in enumerate(by):
        for n in steps:
            common[i] &= before[n]

    def apart(i: int, j: int) -> bool:
        a, b = lives[i], lives[j]
        if a.meets(b):
            return True
        if max(a.nbytes, b.nbytes) > SMALL:
            return False
        return bool(masks[i] & ~common[j]) and bool(masks[j] & ~common[i])

    return apart


def users(program: Program) -> Touching:
    """The steps that write or read each array, also through views."""
    found: Touching = defaultdict(set)
    for step in program.steps:
        if step.kind != "view":
            for name in homes(program, (*step.eqn.inputs, *step.eqn.outs)):
                found[name].add(step.number)
    return found


def behind(program: Program) -> list[int]:
    """For each step those that it needs, and those that they need, as the bits of a number.

    Who writes over an argument needs all that read it before.
    """
    found: list[int] = []
    writers: Touching = defaultdict(set)
    readers: Touching = defaultdict(set)
    given = {b.name for b in program.buffers.values() if b.storage == "input"}
    for step in program.steps:
        reads, writes = homes(program, step.eqn.inputs), homes(program, step.eqn.outs)
        needs = {n for name in reads for n in writers[name]}
        needs |= {n for name in writes if name in given for n in readers[name]}
        mask = 0
        for n in needs:
            mask |= found[n] | 1 << n
        found.append(mask)
        if step.kind != "view":
            for name in reads:
                readers[name].add(step.number)
            for name in writes:
                writers[name].add(step.number)
    return found


def homes(program: Program, atoms: Sequence[Atom]) -> list[str]:
    """What holds the memory of arrays: of a view what it views, of a result perhaps an argument."""
    buffers = [program.buffers[a] for a in atoms if isinstance(a, Var)]
    return [base.donor or base.name for b in buffers for base in (b.base or b,)]
