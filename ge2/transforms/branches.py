"""Loops, branches and solvers as functions of functions.

Functions of which one is called: traced, brought to one type, and the arguments that they write.

Where it is known which one, only that one is called, as `if` does: the others cost nothing, have no
side effects, and a recursion that ends in one of them ends. Their results are then compared all the
same, by a trace, unless they come to another branch: a trace of a recursion would not end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import numpy as np

from ge2.base.arrays import BOOL, INTEGERS, PYTHON, python_type, with_number
from ge2.base.errors import Ge2Error, InputError, TypeRuleError
from ge2.base.pytree import mismatch
from ge2.base.record import holding, record
from ge2.base.source import here
from ge2.ir import ArrayType, Graph, Var, type_of
from ge2.numpy import dot_general as dot_general
from ge2.numpy.axes.sorting import top_k as top_k
from ge2.ops.graphs.control import Cond
from ge2.ops.shape import StopGradient
from ge2.trace import Closed, Input, is_traced, run, stage, tidy, title_of
from ge2.trace.writes import Write, Writes
from ge2.transforms.arguments import Arguments, Results, check_functions, is_array
from ge2.tree import map as tree_map

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
        with holding(_comparing, True):
            return Branch.of(f, operands)
    except NestedBranch:
        return None


def check_nested() -> None:
    """NestedBranch inside of a function that is traced for its types."""
    if _comparing.get():
        raise NestedBranch


# --------------------------------------------------------------------------------------------- lax
# Control flow and other operations that NumPy has no name for, under the
# names they have in JAX.


def stop_gradient(x: Any) -> Any:
    """The same values (of an array or a container of arrays), through which no derivative flows.

    >>> import ge2
    >>> ge2.grad(lambda x: x * stop_gradient(x))(3.0)
    3.0
    """
    return tree_map(StopGradient(), x)


def cond(
    pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any
) -> Any:
    """`true_fun(*operands)` where the scalar `pred` holds, else
    `false_fun(*operands)`; only one is computed.

    Both return the same structure, shapes and dtypes, or a TypeRuleError says where they differ.
    Where `pred` is known, one function is called, as by `if`, and the other is traced for that
    comparison alone, unless it comes to another `cond` or `switch` (so that recursion ends). What
    is written into the operands is written by the function that is taken. Under `vmap` with a
    mapped predicate both are computed and selected from.

    >>> cond(True, lambda x: x + 1, lambda x: x - 1, 10)
    11
    """
    check_functions("cond", true_fun, false_fun)
    t = checked_predicate(pred)
    names = (f"the false branch {title_of(false_fun)}", f"the true branch {title_of(true_fun)}")
    if not is_traced(pred):
        return of_known("cond", names, (false_fun, true_fun), int(bool(pred)), operands)
    check_nested()
    branches = [Branch.of(f, operands) for f in (false_fun, true_fun)]
    results, each = [b.returned for b in branches], [b.types for b in branches]
    types = common_types(TypeRuleError, "cond", names, results, each)
    return decided(pred if t.dtype == BOOL else pred != 0, branches, types)


def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """`branches[index](*operands)`, the integer `index` clamped to
    those there are; one is computed.

    All return the same structure, shapes and dtypes, or a TypeRuleError says where they differ;
    where `index` is known, the others are traced for that alone, as for `cond`. Under `vmap` with a
    mapped index all are computed and selected from.

    >>> switch(1, [lambda x: x + 1, lambda x: x * 10], 7)
    70
    """
    if not branches:
        raise InputError(
            "switch needs at least one branch", where=here(), fix="switch(index, [f, g], x)"
        )
    check_functions("switch", *branches)
    t = type_of(index) if is_array(index) else None
    if t is None or t.shape or t.dtype not in INTEGERS:
        got = t or f"a {type(index).__name__}"
        raise TypeRuleError(
            f"switch is decided by an integer scalar; got {got}", where=here(), fix="x.astype(int)"
        )
    if not is_traced(index) or len(branches) == 1:
        at = 0 if is_traced(index) else min(max(int(index), 0), len(branches) - 1)
        titles = [f"branch {i}, {title_of(f)}," for i, f in enumerate(branches)]
        return of_known("switch", titles, branches, at, operands)
    check_nested()
    parts = [Branch.of(f, operands) for f in branches]
    types = parts[0].types
    for _ in range(2):  # what a later branch widens, the earlier ones follow
        for i in range(1, len(branches)):
            names = (f"branch 0, {title_of(branches[0])},", f"branch {i}, {title_of(branches[i])},")
            results = parts[0].returned, parts[i].returned
            types = common_types(TypeRuleError, "switch", names, results, (types, parts[i].types))
    return decided(index.cast(np.dtype(np.int64)) if t.weak else index, parts, types)


def checked_predicate(pred: Any) -> ArrayType:
    try:
        t = type_of(pred)
    except InputError:
        raise TypeRuleError(
            f"cond is decided by a bool scalar; got a {type(pred).__name__}",
            where=here(),
            fix="bool(x)",
        ) from None
    if t.shape or t.dtype not in (BOOL, *INTEGERS):
        raise TypeRuleError(
            f"cond is decided by a bool scalar; got {t}",
            where=here(),
            fix="np.any(x) or np.all(x); x != 0; np.where for arrays",
        )
    return t


# ----------------------------------------------------------------------------------------- several
# Several traced functions as graphs that one operation can hold: the same
# inputs, the same result types.


Types = Sequence[ArrayType]


def widened(closeds: Sequence[Closed]) -> tuple[list[Graph], list[Any]]:
    """Graphs that take what all of them captured before their own inputs, and
    those values in that order.
    """
    captured = [x for c in closeds for x in c.captured]
    graphs, at = [], 0
    for closed in closeds:
        n = len(closed.captured)
        fresh = tuple(Var(type_of(x)) for x in captured)
        own, rest = closed.graph.inputs[:n], closed.graph.inputs[n:]
        inputs = (*fresh[:at], *own, *fresh[at + n :], *rest)
        graphs.append(Graph(inputs, closed.graph.eqns, closed.graph.outputs))
        at += n
    return graphs, captured


def common_types(
    kind: type[Ge2Error],
    what: str,
    names: tuple[str, str],
    results: Sequence[Results],
    types: Sequence[Types],
) -> list[ArrayType]:
    """The types of both functions' results; an error names the first place where they differ.

    A Python number takes the dtype of the array it stands beside, as NumPy has it.
    """
    (ra, rb), (ta, tb) = results, types
    if ra.main != rb.main:
        raise kind(
            f"{what}: {mismatch(ra.main, rb.main, *names)}",
            where=here(),
            fix="return one structure from both",
        )
    found = []
    for a, b, path in zip(ta[: ra.count], tb[: rb.count], ra.paths(), strict=False):
        t = common(a, b)
        if t is None:
            says = f"{what}: at {path}, " if path else f"{what}: "
            fix = f'x.astype("{b.dtype}")' if a.shape == b.shape else "np.broadcast_to(x, shape)"
            raise kind(
                f"{says}{names[0]} returns {a}, {names[1]} returns {b}", where=here(), fix=fix
            )
        found.append(t)
    return found


def common(a: ArrayType, b: ArrayType) -> ArrayType | None:
    """The type that holds both, if neither changes but by being a Python number."""
    if a.shape != b.shape:
        return None
    if a.weak and b.weak:
        if (a.dtype == BOOL) != (b.dtype == BOOL):
            return None
        wide = np.promote_types(a.dtype, b.dtype)
        return ArrayType((), wide, weak=True) if wide in PYTHON.values() else None
    if a.weak or b.weak:
        strong, number = (b, a) if a.weak else (a, b)
        if number.dtype == BOOL and strong.dtype != BOOL:
            return None  # a truth value is no number: `lambda x: x < 3` in place of a new x
        return (
            strong if with_number(strong.dtype, python_type(number.dtype)) == strong.dtype else None
        )
    return a if a.dtype == b.dtype else None


def conformed(x: Any, t: ArrayType) -> Any:
    """The value as that type, which differs from its own at most in being a Python number."""
    if type_of(x) == t:
        return x
    if is_traced(x):
        return x.cast(t.dtype, t.weak)
    return python_type(t.dtype)(x) if t.weak else t.dtype.type(x)


def retyped(graph: Graph, types: Types) -> Graph:
    """The graph with its first results converted to these types; tidy."""
    ours = [a.type for a in graph.outputs[: len(types)]]
    if ours == list(types):
        return tidy(graph)

    def outputs(*xs: Any) -> list[Any]:
        ys = run(graph, xs)
        return [
            *(y.cast(t.dtype, t.weak) for y, t in zip(ys, types, strict=False)),
            *ys[len(types) :],
        ]

    return tidy(stage(outputs, [Input(v.type) for v in graph.inputs], "a branch").graph)
