"""Reductions in C: the state that gathers a result, how it begins, and how it takes in a value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ge2.base.dtypes import BOOL, COMPLEX, COMPLEX64, COMPLEX128, FLOAT32, FLOAT64
from ge2.codegen.loop_nest import Work
from ge2.ops.reduce import ArgReduce
from ge2.targets.c.emit.types import GATHERED, SUFFIX, expression, number
from ge2.targets.c.tuning import Regions

ADDED = ("reduce_sum", "reduce_prod")
EXTREME = ("reduce_max", "reduce_min")
WIDER = {FLOAT32: FLOAT64, COMPLEX64: COMPLEX128}
REAL = (FLOAT32, FLOAT64)
BITS = {
    "reduce_sum": "|", "reduce_or": "|", "reduce_max": "|",
    "reduce_prod": "&", "reduce_and": "&", "reduce_min": "&",
}  # fmt: skip


def op_of(w: Work) -> Any:
    assert w.step is not None and w.step.eqn is not None
    return w.step.eqn.op


def word(w: Work) -> str:
    """What a reduction gathers, in a word: sum, max, argmin."""
    return str(op_of(w).name).removeprefix("reduce_")


def gathers_index(w: Work) -> bool:
    return isinstance(op_of(w), ArgReduce)


def state_dtype(w: Work) -> np.dtype:
    """Sums and products of floats are gathered in the next wider type."""
    dtype = w.xs[0].dtype
    return WIDER.get(dtype, dtype) if op_of(w).name in ADDED else dtype


def state_type(w: Work) -> str:
    return f"ge2_indexed_{SUFFIX[w.xs[0].dtype]}" if gathers_index(w) else GATHERED[state_dtype(w)]


def in_runs(w: Work) -> bool:
    """Whether it is a sum or product of floats, taken in short runs, which a wide type gathers."""
    return w.xs[0].dtype in (*REAL, COMPLEX128) and op_of(w).name in ADDED


def compensated(w: Work) -> bool:
    """Whether no wider type can gather the sums of runs: then what they round
    away is gathered too.
    """
    return op_of(w).name == "reduce_sum" and state_dtype(w) == w.xs[0].dtype


def run_length(works: Iterable[Work], tuning: Regions) -> int:
    """How many elements the wider type, or the compensated sum, takes in at once."""
    exact = [w.xs[0].dtype for w in works if compensated(w)]
    if COMPLEX128 in exact:  # which are added one by one
        return tuning.exact_run // 8
    return tuning.exact_run if exact else tuning.run


def apart(w: Work) -> bool:
    """Whether an innermost loop looks for NaN beside the extreme itself, which is quicker."""
    return w.xs[0].dtype in REAL and op_of(w).name in EXTREME


def start(w: Work, dtype: np.dtype | None = None) -> str:
    """What the state is of nothing at all."""
    text = op_of(w).lowering.start
    if "(" in text:
        return expression(text, [], w.xs[0].dtype, w.xs[0].dtype)
    return {"false": "0", "true": "1"}.get(text) or number(int(text), dtype or state_dtype(w))


def taken_in(w: Work, state: str, value: str, index: str = "") -> str:
    """The statement that takes a value into the state; `index` is its place along the axis."""
    op, dtype = op_of(w), w.xs[0].dtype
    if gathers_index(w):
        taken = expression(
            f"ge2_{op.name}_next({{0}}, {{1}}, {{2}})", [state, value, index], dtype, dtype
        )
        return f"{state} = {taken};"
    return merged(w, state, value)


def merged(w: Work, state: str, other: str) -> str:
    """The statement that makes one of two states."""
    op, dtype = op_of(w), w.xs[0].dtype
    if op.name in ADDED and dtype != BOOL and dtype not in COMPLEX:
        return f"{state} {'+' if op.name == 'reduce_sum' else '*'}= {other};"
    typed = dtype if gathers_index(w) else state_dtype(w)
    return (
        f"{state} = {expression(running(op.lowering.merge, typed), [state, other], typed, typed)};"
    )


def running(merge: str, dtype: np.dtype) -> str:
    """The expression that takes a value into a state: an extreme of floats by a branch."""
    if dtype not in REAL:
        return merge
    return merge.replace("ge2_max(", "ge2_running_max(").replace("ge2_min(", "ge2_running_min(")


def larger(w: Work, state: str, value: str) -> str:
    """The extreme of numbers that are not NaN."""
    return f"{state} = {value} {'>' if op_of(w).name == 'reduce_max' else '<'} {state} ? {value} : {state};"


def clause(w: Work) -> str:
    """How OpenMP's `simd` is told of it; nothing where it cannot be."""
    op, dtype = op_of(w), w.xs[0].dtype
    if gathers_index(w) or dtype in COMPLEX:
        return ""
    if dtype == BOOL:
        return BITS[op.name]
    if op.name in EXTREME:
        return word(w) if apart(w) else f"ge2_{word(w)}_{SUFFIX[dtype]}"
    return {"reduce_sum": "+", "reduce_prod": "*"}[op.name]


def vectorises(works: Iterable[Work]) -> bool:
    """Whether the compiler can take several elements of such a loop at a time."""
    return not any(
        (w.kind == "fold" and gathers_index(w)) or any(x.dtype in COMPLEX for x in w.xs)
        for w in works
    )
