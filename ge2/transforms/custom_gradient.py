"""Two shorter ways to a rule of one's own: `custom_gradient` and `sequential_vmap`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar, final

from ge2.base.pytree import flatten, register_pytree_node, unflatten
from ge2.transforms.batching import custom_batch
from ge2.transforms.closure import closure_convert
from ge2.transforms.custom import custom_vjp, paired
from ge2.transforms.loops import map as loop_map
from ge2.tree import map as tree_map

R = TypeVar("R")


@final
class Rule:
    """A function from a cotangent, and the arrays that it reads beside it, which are its leaves."""

    __slots__ = ("function", "residuals")

    def __init__(self, function: Callable[..., Any], residuals: Sequence[Any]) -> None:
        self.function, self.residuals = function, residuals


register_pytree_node(Rule, lambda r: (tuple(r.residuals), r.function), Rule)


def custom_gradient(fun: Callable[..., tuple[R, Callable[[Any], Any]]]) -> Callable[..., R]:
    """A function from one that returns its result and a function from a
    cotangent to those of the arguments.

    That function returns a tuple with a cotangent for each argument, or a cotangent if
    there is one argument; what it reads from `fun` is kept for it. GradientError if
    `fun` returns something else.

    >>> import numpy as np, ge2
    >>> f = custom_gradient(lambda x: (np.sin(x), lambda ct: ct * x * 10.0))
    >>> ge2.grad(f)(2.0)
    20.0
    """
    both = paired(fun, "a function with custom_gradient", "rule")

    def forward(*args: Any) -> tuple[Any, Any]:
        y, rule = both(*args)
        return y, (y, Rule(*closure_convert(rule, y)))

    def backward(kept: Any, ct: Any) -> Any:
        rule = kept[1]
        found = rule.function(ct, *rule.residuals)
        return found if isinstance(found, tuple | list) else (found,)

    made = custom_vjp(wraps(fun)(lambda *args: both(*args)[0]))
    made.defvjp(forward, backward)
    return made


def sequential_vmap(fun: Callable[..., R]) -> Callable[..., R]:
    """The function, whose batch is a loop over its elements, one after the other: for what vmap
    would make too large, or cannot batch.

    >>> import numpy as np, ge2
    >>> ge2.vmap(sequential_vmap(lambda x, y: x * y), (0, None))(np.array([1.0, 2.0]), 3.0)
    array([3., 6.])
    """
    made = custom_batch(fun)

    def rule(size: int, batched: Any, *args: Any) -> tuple[Any, Any]:
        leaves, structure = flatten(args)
        flags = flatten(batched)[0]

        def one(elements: Any) -> Any:
            rest = iter(elements)
            given = [next(rest) if b else x for x, b in zip(leaves, flags, strict=True)]
            return fun(*unflatten(structure, given))

        ys = loop_map(one, [x for x, b in zip(leaves, flags, strict=True) if b])
        return ys, tree_map(lambda _: True, ys)

    made.def_vmap(rule)
    return made
