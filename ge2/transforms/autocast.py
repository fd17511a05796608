"""`autocast`: a function in mixed precision."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar, overload

from ge2.base.errors import ArgumentError, InputError
from ge2.base.source import here
from ge2.trace import run, tidy
from ge2.transforms.arguments import Arguments, Results, owned
from ge2.transforms.graphs.precision import LOW, Policy, lowered
from ge2.transforms.remembered import remembering

__all__ = ["Policy", "autocast"]
P = ParamSpec("P")
R = TypeVar("R")
PRODUCTS = (*LOW, "tf32")


@overload
def autocast(fun: Callable[P, R], policy: str | Policy | None = "bf16") -> Callable[P, R]: ...
@overload
def autocast(
    fun: None = None, policy: str | Policy | None = "bf16"
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def autocast(fun: Any = None, policy: str | Policy | None = "bf16") -> Any:
    """`fun` in mixed precision: its products multiply bfloat16 (or "f16", "tf32") and give float32.

    Arguments and results keep their dtypes, so parameters stay float32, and so do their gradients.
    Everything but products is float32: sums, norms, exponentials, losses, and what is computed of
    half types, until it is stored in one. A weight is rounded once, however many products read it.
    Products of float64, and those of `precision="highest"`, are left as they are; so are those of
    solvers. `policy` is a `Policy` or the name of a type for products; None, inside of another
    autocast, leaves a function out of it.

    It is a transform of graphs and comes before derivatives: `grad(autocast(loss))`, where it rounds
    cotangents likewise. Under f16 they may vanish: `ge2.optim.loss_scale`. Micikevicius and others,
    "Mixed Precision Training", 2017.

    Without a function it is a decorator: `@autocast(policy="f16")`, as that of `jit`.

    Raises ArgumentError for a policy that there is not.

    >>> import numpy as np, ge2
    >>> w, x = np.ones((2, 3), np.float32), np.ones((4, 2), np.float32)
    >>> print(ge2.make_jaxpr(autocast(lambda w, x: np.tanh(x @ w)))(w, x))
    { lambda ; a:f32[2,3] b:f32[4,2]. let
        c:bf16[4,2] = convert_element_type[dtype=bf16 weak=False] b
        d:bf16[2,3] = convert_element_type[dtype=bf16 weak=False] a
        e:f32[4,3] = dot_general[beside=((), ()) contract=((1,), (0,)) out=f32 precision=half] c d
        f:f32[4,3] = tanh e
      in (f,) }
    """
    chosen = policy_of(policy)
    if fun is None:
        return partial(autocast, policy=policy)
    if not callable(fun):
        what = f"autocast takes a function; got {fun!r:.60} ({type(fun).__name__})"
        raise InputError(what, where=here(), fix='ge2.autocast(f, policy="bf16")(x)')

    def work(*args: Any, **kwargs: Any) -> Any:
        call, returned = Arguments.of(fun, args, kwargs), Results()
        closed, writes = call.stage_writing(
            call.inputs(), returned, "autocast", [True] * len(call.arrays)
        )
        call.check(writes)
        values = (*closed.captured, *call.values())
        found = run(lowered(tidy(closed.graph), chosen), values)
        count = len(found) - (len(writes.each) if writes else 0)
        results = owned(found[:count], values)
        call.carry(writes, found)
        return returned.build(results)

    return remembering(fun, "autocast", (chosen,), work)


def policy_of(policy: Any) -> Policy:
    """The policy that a name stands for."""
    found = policy if isinstance(policy, Policy) else Policy(policy)
    if not (found.product is None or found.product in PRODUCTS):
        what = (
            f"products are of {', '.join(map(repr, PRODUCTS))} or None; got {found.product!r:.60}"
        )
        raise ArgumentError(what, where=here(), fix="ge2.autocast(f, 'bf16')")
    if not isinstance(found.chains, bool):
        raise InputError(f"chains is a bool; got {found.chains!r:.60}", where=here())
    return found


def __dir__() -> list[str]:
    return __all__
