"""Functions of which one is called: traced, brought to one type, and the arguments that they write.

Where it is known which one, only that one is called, as `if` does: the others cost nothing, have no
side effects, and a recursion that ends in one of them ends. Their results are then compared all the
same, by a trace, unless they come to another branch: a trace of a recursion would not end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from ge2.base.errors import TypeRuleError
from ge2.base.record import record
from ge2.ir import ArrayType, type_of
from ge2.ops.control import Cond
from ge2.trace import Closed
from ge2.trace.writes import Write, Writes
from ge2.transforms.arguments import Arguments, Results, is_array
from ge2.transforms.several import common_types, conformed, retyped, widened

Function = Callable[..., Any]
_comparing: ContextVar[bool] = ContextVar("comparing", default=False)


class NestedBranch(Exception):
    """A branch inside of a function that is traced for the types of its results alone."""


@record
class Branch:
    """One of the functions, traced; the last contents of what it writes are
    outputs after its results.
    """

    closed: Closed
    returned: Results
    call: Arguments
    writes: Writes | None

    @staticmethod
    def of(f: Function, operands: tuple[Any, ...]) -> Branch:
        call, returned = Arguments.of(f, operands, {}), Results()
        closed, writes = call.stage_writing(
            call.inputs(), returned, "cond", [True] * len(call.arrays)
        )
        return Branch(closed, returned, call, writes)

    @property
    def each(self) -> tuple[Write, ...]:
        """The arguments that it writes."""
        return self.writes.each if self.writes else ()

    @property
    def types(self) -> list[ArrayType]:
        """The types of its results."""
        outputs = self.closed.graph.outputs
        return [a.type for a in outputs[: len(outputs) - len(self.each)]]

    def writing(self, inputs: Sequence[int]) -> Closed:
        """The trace, whose outputs after the results are the last contents of these inputs."""
        graph, captured = self.closed.graph, self.closed.captured
        count = len(self.types)
        last = dict(zip([w.input for w in self.each], graph.outputs[count:], strict=True))
        kept = graph.inputs[len(captured) :]
        outputs = (*graph.outputs[:count], *(last.get(i, kept[i]) for i in inputs))
        return Closed(replace(graph, outputs=outputs), captured, self.closed.looked)


def decided(which: Any, branches: Sequence[Branch], types: Sequence[ArrayType]) -> Any:
    """The results of the branch that a traced value decides for."""
    first = branches[0]
    each = {w.input: w for b in branches for w in b.each}
    inputs = sorted(each)
    graphs, captured = widened([b.writing(inputs) for b in branches])
    writes = Writes(
        first.call.title, tuple(array_names(first.call)), tuple([each[i] for i in inputs]), ()
    )
    if inputs:
        first.call.check(writes)
    found = Cond(tuple(retyped(g, types) for g in graphs))(which, *captured, *first.call.values())
    if inputs:
        first.call.carry(writes, found)
    return first.returned.build(found)


def array_names(call: Arguments) -> list[str]:
    names = call.names()
    return [names[i] for i in call.arrays]


def of_known(
    what: str,
    names: Sequence[str],
    branches: Sequence[Function],
    at: int,
    operands: tuple[Any, ...],
) -> Any:
    """The result of branch `at`; the others are compared with it, so that
    unlike ones are an error.
    """
    check_nested()
    found, own = branches[at](*operands), Results()
    leaves = own.flat(found)
    if not all(map(is_array, leaves)):
        return found
    types = [type_of(x) for x in leaves]
    for i, f in enumerate(branches):
        other = None if i == at else compared(f, operands)
        if other is not None:
            pairs = [(names[i], other.returned, other.types), (names[at], own, types)]
            (a, ra, ta), (b, rb, tb) = pairs if i < at else reversed(pairs)
            types = common_types(TypeRuleError, what, (a, b), (ra, rb), (ta, tb))
    return own.build([conformed(x, t) for x, t in zip(leaves, types, strict=True)])


def compared(f: Function, operands: tuple[Any, ...]) -> Branch | None:
    """A branch that is not taken, traced; None if it holds another."""
    try:
        with comparing():
            return Branch.of(f, operands)
    except NestedBranch:
        return None


@contextmanager
def comparing() -> Iterator[None]:
    token = _comparing.set(True)
    try:
        yield
    finally:
        _comparing.reset(token)


def check_nested() -> None:
    """NestedBranch inside of a function that is traced for its types."""
    if _comparing.get():
        raise NestedBranch
