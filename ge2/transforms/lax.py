"""Control flow and other operations that NumPy has no name for, under the names they have in JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ge2.base.dtypes import BOOL, INTEGERS
from ge2.base.errors import InputError, TypeRuleError
from ge2.base.source import here
from ge2.ir import ArrayType, type_of
from ge2.numpy import dot_general as dot_general
from ge2.ops.control import Cond
from ge2.ops.shape import StopGradient
from ge2.trace import Closed, is_traced, title_of
from ge2.transforms.arguments import Arguments, Results
from ge2.transforms.several import common_types, retyped, widened
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
    t = checked_predicate(pred)
    if not is_traced(pred):
        return (true_fun if pred else false_fun)(*operands)
    branches = [staged(f, operands) for f in (false_fun, true_fun)]
    closeds, results, calls = zip(*branches, strict=True)
    names = (f"the false branch {title_of(false_fun)}", f"the true branch {title_of(true_fun)}")
    types = common_types(
        TypeRuleError, "cond", names, results, [[a.type for a in c.graph.outputs] for c in closeds]
    )
    graphs, captured = widened(closeds)
    op = Cond(tuple(retyped(g, types) for g in graphs))
    return results[0].build(op(pred if t.dtype == BOOL else pred != 0, *captured, *calls[0].values()))


def checked_predicate(pred: Any) -> ArrayType:
    try:
        t = type_of(pred)
    except InputError:
        raise TypeRuleError(
            f"cond is decided by a bool scalar; got a {type(pred).__name__}", where=here(), fix="bool(x)"
        ) from None
    if t.shape or t.dtype not in (BOOL, *INTEGERS):
        raise TypeRuleError(
            f"cond is decided by a bool scalar; got {t}",
            where=here(),
            fix="np.any(x) or np.all(x); x != 0; np.where for arrays",
        )
    return t


def staged(f: Callable[..., Any], operands: tuple[Any, ...]) -> tuple[Closed, Results, Arguments]:
    call, returned = Arguments.of(f, operands, {}), Results()
    return call.stage(call.inputs(), returned, "cond"), returned, call
