"""What a function reads from around it, as arguments: `closure_convert`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from ge2.base.dtypes import INEXACT
from ge2.base.errors import InputError
from ge2.base.source import here
from ge2.base.tracebacks import hides
from ge2.ir import type_of
from ge2.trace import is_traced, run
from ge2.transforms.arguments import Arguments, Results


def closure_convert(
    fun: Callable[..., Any], *example_args: Any
) -> tuple[Callable[..., Any], list[Any]]:
    """`fun` as a function of `(*args, *consts)`, and the consts: traced floats
    that it reads from around it.

    A `custom_vjp` or `custom_jvp` whose function closes over values that a derivative flows through
    is an error; with these as arguments its rule can speak of them. Arguments of other shapes or
    dtypes than `example_args` are an InputError.

    >>> import ge2
    >>> def outer(w):
    ...     f, consts = closure_convert(lambda x: x * w, 1.0)
    ...     return f(3.0, *consts)
    >>> ge2.grad(outer)(2.0)
    3.0
    """
    call, returned = Arguments.of(fun, example_args, {}), Results()
    closed = call.stage(call.inputs(), returned, "closure_convert")
    free = [
        i for i, x in enumerate(closed.captured) if is_traced(x) and type_of(x).dtype in INEXACT
    ]

    @wraps(fun)
    @hides
    def converted(*args: Any) -> Any:
        others = args[len(example_args) :]
        given = Arguments.of(fun, args[: len(example_args)], {})
        if (
            len(others) != len(free)
            or given.structure != call.structure
            or given.types() != call.types()
        ):
            what = f"{call.title} was converted for other arguments"
            raise InputError(
                what, where=here(), fix="f(*args, *consts), the args like example_args"
            )
        around = list(closed.captured)
        for i, x in zip(free, others, strict=True):
            around[i] = x
        return returned.build(run(closed.graph, (*around, *given.values())))

    return converted, [closed.captured[i] for i in free]
