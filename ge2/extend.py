"""Operations of your own: their type rule, meaning, derivatives, batch, and C that `jit` compiles.

`elementwise` makes a function of an expression, which is fused with its neighbours like
any other. `op` makes an operation of a class, with a whole C function of its own.
`ge2.test_util.check_op` checks what you wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from ge2.base.arrays import BOOL, COMPLEX, INEXACT
from ge2.base.errors import ArgumentError
from ge2.base.source import here
from ge2.base.tracebacks import hides, publish
from ge2.ir import ArrayType as ArrayType
from ge2.ir import Evaluate, current, type_of
from ge2.numpy.promotion import common_dtype, common_shape, fit, lift, strong
from ge2.ops.pointlike import Elementwise, Pointwise
from ge2.ops.user_ops import EDITIONS, check_name, judge, register
from ge2.ops.user_ops import Own as Op
from ge2.ops.user_ops import in_front as in_front
from ge2.ops.user_ops import op as op

__all__ = ["ArrayType", "Op", "elementwise", "in_front", "op"]
Partial = Callable[..., Any] | None
KINDS = frozenset("bifc")


def elementwise(
    name: str,
    reference: Callable[..., Any],
    c: str,
    *partials: Partial,
    takes: str = "f",
    result: Any = None,
    helpers: str = "",
    cuda: str = "",
) -> Callable[..., Any]:
    """A function of single elements: `reference` in NumPy, `c` as an
    expression of `{0}`, `{1}`, ...

    `partials` has for each operand its derivative as a function of `(y, *operands)`, or None where
    that is zero throughout. `takes` are the kinds of dtypes: b(ool), i(nteger), f(loat), c(omplex);
    integers become floats where only those are taken. The result has the operands' dtype, or
    `result` (a dtype). `helpers` is C that stands before the kernels, such as functions that the
    expression calls; in both, `$t` is the dtype as our functions spell it (`ge2_tanh_$t`, `f32`)
    and `$T` its C type. `cuda` is the expression in CUDA, if it is to be another there; `helpers`
    stands before those kernels too.

    The function broadcasts and promotes as NumPy's do, and has the operation itself as `op`.
    ArgumentError for a name that is taken or an expression that does not name its operands.

    >>> import numpy as np, ge2
    >>> relu3 = elementwise("relu3", lambda x: np.maximum(x, 0) ** 3, "ge2_max_$t({0} * {0} * {0}, 0)",
    ...                     lambda y, x: 3 * np.maximum(x, 0) ** 2)
    >>> ge2.jit(ge2.grad(lambda x: relu3(x).sum()))(np.array([-1.0, 2.0]))
    array([ 0., 12.])
    """
    check_name(name, getattr(reference, "__name__", "f"))
    if not takes or not KINDS.issuperset(takes):
        raise ArgumentError(
            f"takes={takes!r} of {name} is not made of b, i, f and c", where=here(), fix='"f"'
        )
    for text in filter(None, (c, cuda)):
        check_expression(name, text, len(partials))
    to = None if result is None else np.dtype(result)
    more: dict[str, Any] = {} if to is None else {"result": lambda dtype: to}
    made = Elementwise(
        name,
        reference,
        takes,
        Pointwise(c, helpers, cuda),
        partials,
        **more,
        edition=next(EDITIONS),
    )
    register(name, lambda: made)

    @hides
    def function(*operands: Any) -> Any:
        return applied(made, operands)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{name} of each element, an operation of your own."
    function.op = made  # type: ignore[attr-defined]
    return function


def check_expression(name: str, text: str, count: int) -> None:
    """Refuses a text that is no expression of so many operands."""
    if not count:
        raise ArgumentError(
            f"{name} has no operands", where=here(), fix="a derivative for each, or None"
        )
    try:
        text.format(*("x" for _ in range(count)))
    except (IndexError, KeyError, ValueError):
        what = f"{text!r} of {name} is no expression of {count} operands, which has one partial for each"
        raise ArgumentError(
            what, where=here(), fix="{0}, {1}, ...; statements go into a function of helpers"
        ) from None
    lacking = [i for i in range(count) if f"{{{i}}}" not in text]
    if lacking:
        what = f"{text!r} of {name} does not read operand {{{lacking[0]}}}"
        raise ArgumentError(what, where=here(), fix="a derivative for each operand, and no more")


def applied(made: Elementwise, operands: tuple[Any, ...]) -> Any:
    """The operation on operands of one dtype and shape."""
    if len(operands) != len(made.partials):
        what = f"{made.name} takes {len(made.partials)} operands; got {len(operands)}"
        raise ArgumentError(what, where=here())
    xs = [lift(x) for x in operands]
    dtype = taken_as(made.takes, common_dtype(xs))
    shape = common_shape(made.name, xs)
    args = [strong(fit(x, dtype, shape)) for x in xs]
    y: Any = made(*args)
    if isinstance(current(), Evaluate):
        judge(made, made.infer(*map(type_of, args)), y)
    return y


def taken_as(takes: str, dtype: np.dtype) -> np.dtype:
    """The dtype in which an operation that takes these kinds computes;
    the same if it takes none wider.
    """
    if dtype in INEXACT or (dtype == BOOL and "b" in takes) or (dtype != BOOL and "i" in takes):
        wide = dtype in INEXACT and dtype not in COMPLEX and "f" not in takes and "c" in takes
        return np.result_type(dtype, np.complex64) if wide else dtype
    steps = [np.dtype(np.int64)] if "i" in takes else [np.dtype(np.float16)]
    return reduce(np.promote_types, steps, dtype)


publish(globals())
