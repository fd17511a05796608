"""Control flow and other operations that NumPy has no name for, under the names they have in JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ge2.base.dtypes import BOOL, INTEGERS
from ge2.base.errors import TypeRuleError
from ge2.base.pytree import mismatch
from ge2.base.source import here
from ge2.ir import Graph, type_of
from ge2.numpy import dot_general as dot_general
from ge2.ops.control import Cond
from ge2.ops.shape import StopGradient
from ge2.trace import Closed, Input, is_traced, run, stage, tidy, title_of
from ge2.transforms.arguments import Arguments, Results
from ge2.transforms.custom import widened
from ge2.tree import map as tree_map


def stop_gradient(x: Any) -> Any:
    """The same values (of an array or a container of arrays), through which no derivative flows.

    >>> import ge2
    >>> ge2.grad(lambda x: x * stop_gradient(x))(3.0)
    3.0
    """
    return tree_map(StopGradient(), x)


def cond(pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any) -> Any:
    """`true_fun(*operands)` where the scalar `pred` holds, else `false_fun(*operands)`; only one is computed.

    Both return the same structure, shapes and dtypes. Under `vmap` with a mapped predicate both are computed
    and selected from.

    >>> cond(True, lambda x: x + 1, lambda x: x - 1, 10)
    11
    """
    if not is_traced(pred):
        return (true_fun if pred else false_fun)(*operands)
    t = type_of(pred)
    if t.shape or t.dtype not in (BOOL, *INTEGERS):
        raise TypeRuleError(f"cond is decided by a bool scalar; got {t}", where=here(), fix="np.any(x) or np.all(x); x != 0; np.where for arrays")
    pred = pred if t.dtype == BOOL else pred != 0
    branches = [staged(f, operands) for f in (false_fun, true_fun)]
    check_branches(branches, (false_fun, true_fun))
    captured = [x for closed, _, _ in branches for x in closed.captured]
    graphs, at = [], 0
    for closed, _, _ in branches:
        graphs.append(strong(widened(closed, captured, at)))
        at += len(closed.captured)
    return branches[0][1].build(Cond(tuple(graphs))(pred, *captured, *branches[0][2].values()))


def staged(f: Callable[..., Any], operands: tuple[Any, ...]) -> tuple[Closed, Results, Arguments]:
    call, returned = Arguments.of(f, operands, {}), Results()
    return call.stage(call.inputs(), returned, "cond"), returned, call


def check_branches(branches: Any, functions: Any) -> None:
    """Both branches return one structure and the same types; the error names the first place that differs."""
    (a, ra, _), (b, rb, _) = branches
    names = (f"the false branch {title_of(functions[0])}", f"the true branch {title_of(functions[1])}")
    if ra.structure != rb.structure:
        raise TypeRuleError(f"cond: {mismatch(ra.structure, rb.structure, *names)}", where=here())
    for x, y in zip(a.graph.outputs, b.graph.outputs, strict=True):
        if x.type.shape != y.type.shape or x.type.dtype != y.type.dtype:
            raise TypeRuleError(f"cond: {names[0]} returns {x.type} where {names[1]} returns {y.type}", where=here(), fix="x.astype(dtype), np.broadcast_to")


def strong(graph: Graph) -> Graph:
    """The branch with weak results made arrays: which branch runs does not decide a type."""
    return tidy(retraced(graph))


def retraced(graph: Graph) -> Graph:
    def outputs(*xs: Any) -> list[Any]:
        return [y.cast(y.type.dtype) if is_traced(y) and y.type.weak else y for y in run(graph, xs)]

    return stage(outputs, [Input(v.type) for v in graph.inputs], "a branch").graph
