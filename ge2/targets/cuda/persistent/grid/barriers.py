"""Where all blocks of a grid must meet: a pass over the levels of a kernel, in the
order in which they run.

A thread may read what it has written itself. What another one has written since all met last, it
reads after they have met; and so it writes what another one may still read. A carry has two places,
which change roles at the end of a round, and what a round leaves meets the next: loops are gone
through until nothing is new. Of a stack each round has another part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, final

from ge2.base.record import record
from ge2.targets.cuda.persistent.grid.matrices import Spread
from ge2.targets.cuda.persistent.nodes import Choice, Level, Loop, Node, Rounds, Unwritten
from ge2.targets.cuda.persistent.reads import reads
from ge2.targets.cuda.persistent.values import Array, Made

FIRST: Final = -1  # who writes: the first block
ANY: Final = -2  # whoever it may be
OTHER = {"now": "then", "then": "now", "": ""}
# of a stack: that of a round, and those of rounds before
PART, PAST = "part of ", "earlier part of "


@final
@record
class Access:
    """Some elements of an array. `who`: of a size, each thread its own; or FIRST, or ANY.

    `turns`: it is written at two places by turns, so nobody overtakes who reads it.
    """

    name: str
    half: str
    who: int
    turns: bool = False

    def meets(self, other: Access) -> bool:
        """True if two accesses may be to one place, by two threads."""
        same = self.name == other.name and (
            not self.half or not other.half or self.half == other.half
        )
        return same and (self.who != other.who or self.who == ANY)


Accesses = frozenset[Access]
NONE: Accesses = frozenset()


@final
@record
class State:
    """What was read and written since all blocks met."""

    read: Accesses = NONE
    written: Accesses = NONE

    def __or__(self, other: State) -> State:
        return State(self.read | other.read, self.written | other.written)

    def changed(self, half: Callable[[Access], str]) -> State:
        """The same with other halves."""

        def all_of(accesses: Accesses) -> Accesses:
            return frozenset(Access(a.name, half(a), a.who, a.turns) for a in accesses)

        return State(all_of(self.read), all_of(self.written))


def wait(nodes: Sequence[Node], home: Callable[[Made, bool, Loop], Array]) -> None:
    """Notes at each level whether all blocks meet before it.

    `home` tells where a result is read.
    """
    Waits(home).walk(nodes, State())


@final
class Waits:
    def __init__(self, home: Callable[[Made, bool, Loop], Array]) -> None:
        self.home = home
        self.known: dict[int, State] = {}

    def walk(self, nodes: Sequence[Node], state: State) -> State:
        for node in nodes:
            if isinstance(node, Level):
                state = self.level(node, state)
            elif isinstance(node, Rounds):
                state = self.rounds(node, state)
            else:
                state = self.choice(node, state)
        return state

    def level(self, node: Level, state: State) -> State:
        touched = self.touched(node)
        if node.wait or met(state, touched):
            node.wait, state = True, State()
        return state | touched

    def rounds(self, node: Rounds, state: State) -> State:
        pairs = {now.name for _, now, _ in node.pairs if not now.mine}
        part, past = f"{PART}{node.label}", f"{PAST}{node.label}"

        def any_half(a: Access) -> str:
            return "" if a.name in pairs or a.half in (part, past) else a.half

        def next_half(a: Access) -> str:
            return OTHER[a.half] if a.name in pairs else past if a.half == part else a.half

        before = state.changed(any_half)  # which half is which begins anew
        while True:
            tested = self.walk(node.test, before)
            after = self.walk(node.body, tested).changed(next_half)
            if before | after == before:
                return (tested if node.decided is not None else before).changed(any_half)
            before = before | after

    def choice(self, node: Choice, state: State) -> State:
        after = State()
        for branch in node.branches:
            after = after | self.walk(branch, state)
        return after

    def touched(self, level: Level) -> State:
        """Returns what the loops of a level read and write.

        Unwritten if they would have to wait for each other.
        """
        if id(level) in self.known:
            return self.known[id(level)]
        found = [self.of_loop(loop) for loop in level.loops]
        for one in found:
            for other in found:
                if any(r.meets(w) for r in one.read for w in other.written):
                    raise Unwritten("a level that reads what it writes")
        together = State()
        for each in found:
            together = together | each
        self.known[id(level)] = together
        return together

    def of_loop(self, loop: Loop) -> State:
        read, written = set[Access](), set[Access]()
        writer = loop.key.size if loop.key.spread else ANY if loop.key.wide else FIRST
        for s in loop.statements:
            for x, own in reads(s):
                if isinstance(x, Made) and x.loop is loop and own:
                    continue
                if isinstance(s.kept, Spread) and x is s.kept.other:
                    x = s.kept.operand
                array = x if isinstance(x, Array) else self.home(x, own, loop)
                if elsewhere(array):
                    who = loop.key.size if own and loop.key.spread else ANY
                    read.add(Access(array.name, half(array), who))
            if s.parts is not None and s.key is not None and s.key.stage in ("whole", "chunk"):
                written.add(Access(s.parts.name, "", ANY, turns=True))
                continue
            written.update(Access(h.name, half(h), writer) for h in s.y.homes if elsewhere(h))
            if s.into is not None and elsewhere(s.into):
                written.add(Access(s.into.name, half(s.into), ANY if loop.key.wide else FIRST))
        return State(frozenset(read), frozenset(written))


def half(x: Array) -> str:
    """Returns which part of its memory an array is."""
    return x.half or (f"{PART}{x.stack[1]}" if x.stack is not None else "")


def met(state: State, touched: State) -> bool:
    """True if something is read before it is written, or written before
    it is read, by other threads.
    """
    late = any(r.meets(w) for r in touched.read for w in state.written)
    return late or any(
        w.meets(a) for w in touched.written if not w.turns for a in state.read | state.written
    )


def elsewhere(x: Array) -> bool:
    """True if other threads see an array that changes."""
    return not (x.shared or x.given or x.mine)
