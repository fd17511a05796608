"""Reductions in CUDA: the state that gathers a result, how it begins, takes in a value, and is
merged, which `templates/cuda/reduce.cu.jinja` prints.
"""

from __future__ import annotations

from typing import Any, ClassVar, final

import numpy as np

from ge2.base.record import record
from ge2.codegen.loop_nest import Work
from ge2.codegen.text import Text
from ge2.ops.reduce import ArgReduce
from ge2.targets.cuda.emit.types import GATHERED, HELD, SUFFIX, expression, number


@final
@record
class State:
    """A state as it begins; with a `count`, an array of so many."""

    type: str
    name: str
    start: str
    count: str = ""
    index: str = "e"
    kind: ClassVar = "state"


@final
@record
class Gather:
    """A thread's share of a reduction: elements k from `first` to `end` by `step` are taken in."""

    first: str
    end: str
    step: int
    taken: tuple[Text, ...]
    kind: ClassVar = "gather"


@final
@record
class Merge:
    """States of several threads become one, by a `function` that is handed how two of them do."""

    value: str
    function: str
    type: str
    merged: str
    in_place: bool = False  # the value is an array of states
    kind: ClassVar = "merge"


@final
@record
class Each:
    """The same for each of `count` states, in a loop that the compiler writes out."""

    index: str
    count: str
    body: tuple[Stage, ...]
    kind: ClassVar = "each"

    @property
    def braces(self) -> bool:
        """True if it encloses more than one statement."""
        return len(self.body) > 1 or (isinstance(self.body[0], Text) and bool(self.body[0].body))


Stage = Text | State | Gather | Merge | Each


def op_of(w: Work) -> Any:
    assert w.step is not None and w.step.eqn is not None
    return w.step.eqn.op


def state(w: Work) -> str:
    """Returns what the state of a reduction is called: `b_sum`, `c_argmax`."""
    assert w.y is not None
    return f"{w.y.name}_{str(op_of(w).name).removeprefix('reduce_')}"


def dtype_of(w: Work) -> np.dtype:
    return w.xs[0].dtype


def indexed(w: Work) -> bool:
    """True if the state has an index beside the value."""
    return isinstance(op_of(w), ArgReduce)


def state_type(w: Work) -> str:
    return f"ge2_indexed_{SUFFIX[dtype_of(w)]}" if indexed(w) else GATHERED[dtype_of(w)]


def state_bytes(w: Work) -> int:
    size = dtype_of(w).itemsize
    return max(16, size + 8) if indexed(w) else size


def start(w: Work) -> str:
    return start_of(op_of(w), dtype_of(w))


def start_of(op: Any, dtype: np.dtype) -> str:
    """Returns what the state of a reduction is of nothing at all."""
    text = op.lowering.start
    if "(" in text:
        return expression(text, [], dtype, dtype)
    return {"false": "false", "true": "true"}.get(text) or number(int(text), dtype)


def begun(w: Work, count: str = "", index: str = "e") -> State:
    """The state of a reduction, or those of `count` elements, before anything is gathered."""
    return State(state_type(w), state(w), start(w), count, index)


def merged(w: Work, mine: str, other: str) -> str:
    """One state of two."""
    dtype = dtype_of(w)
    return expression(op_of(w).lowering.merge, [mine, other], dtype, dtype)


def taken_in(w: Work, mine: str, value: str, index: str) -> str:
    """The statement that takes a value into a state; `index` is its place along the axis."""
    dtype = dtype_of(w)
    if indexed(w):
        value = expression(op_of(w).lowering.lift, [value, index], dtype, dtype)
    return f"{mine} = {merged(w, mine, value)};"


def merge(w: Work, value: str, function: str, in_place: bool = False) -> Merge:
    """The merging of a state with those of other threads."""
    return Merge(value, function, state_type(w), merge_of(w), in_place)


def merge_of(w: Work) -> str:
    return merged(w, "mine", "other")


def read(w: Work, text: str) -> str:
    """The result that a state holds."""
    assert w.y is not None
    if indexed(w):
        return f"{text}.index"
    return text if dtype_of(w) == w.y.dtype else f"({HELD[w.y.dtype]}){text}"
