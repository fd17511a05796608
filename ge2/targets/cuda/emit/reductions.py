"""Reductions in CUDA: the state that gathers a result, how it begins,
takes in a value, and is merged.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ge2.codegen.loop_nest import Work
from ge2.ops.reduce import ArgReduce
from ge2.targets.cuda.emit.types import GATHERED, HELD, SUFFIX, expression, number


def op_of(w: Work) -> Any:
    assert w.step is not None and w.step.eqn is not None
    return w.step.eqn.op


def state(w: Work) -> str:
    """What the state of a reduction is called: `b_sum`, `c_argmax`."""
    assert w.y is not None
    return f"{w.y.name}_{str(op_of(w).name).removeprefix('reduce_')}"


def dtype_of(w: Work) -> np.dtype:
    return w.xs[0].dtype


def indexed(w: Work) -> bool:
    """Whether the state has an index beside the value."""
    return isinstance(op_of(w), ArgReduce)


def state_type(w: Work) -> str:
    return f"ge2_indexed_{SUFFIX[dtype_of(w)]}" if indexed(w) else GATHERED[dtype_of(w)]


def state_bytes(w: Work) -> int:
    size = dtype_of(w).itemsize
    return max(16, size + 8) if indexed(w) else size


def start(w: Work) -> str:
    """What the state is of nothing at all."""
    text, dtype = op_of(w).lowering.start, dtype_of(w)
    if "(" in text:
        return expression(text, [], dtype, dtype)
    return {"false": "false", "true": "true"}.get(text) or number(int(text), dtype)


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


def merge(w: Work) -> str:
    """The merging of two states as a function."""
    t = state_type(w)
    return f"[]({t} mine, {t} other) {{ return {merged(w, 'mine', 'other')}; }}"


def read(w: Work, text: str) -> str:
    """The result that a state holds."""
    assert w.y is not None
    if indexed(w):
        return f"{text}.index"
    return text if dtype_of(w) == w.y.dtype else f"({HELD[w.y.dtype]}){text}"
