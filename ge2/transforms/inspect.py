"""Looking at functions: their graph as text, and the types of their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from ge2.base.errors import ParseError, VerifyError
from ge2.base.tracebacks import hides
from ge2.ir import Graph, verify
from ge2.ir import ShapeDtypeStruct as ShapeDtypeStruct
from ge2.ir import parse as parse_text
from ge2.ops import KNOWN
from ge2.trace import ABSTRACT, Input
from ge2.transforms.arguments import Arguments, Results, Static, is_array
from ge2.tree import map as tree_map


def make_jaxpr(
    fun: Callable[..., Any], static_argnums: int | Sequence[int] = (), return_shape: bool = False
) -> Callable[..., Any]:
    """A function that takes `fun`'s arguments and returns its graph; arrays
    that `fun` captured come first.

    The last contents of arguments that `fun` writes are outputs of the graph, after its results.

    >>> import numpy as np
    >>> print(make_jaxpr(lambda x: np.tanh(x) * 2)(np.zeros(3, np.float32)))
    { lambda ; a:f32[3]. let
        b:f32[3] = tanh a
        c:f32[3] = mul b 2.0:f32[]
      in (c,) }
    """
    static = Static.of(static_argnums)

    @wraps(fun)
    @hides
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        _, others, merged = static.split(fun, args)
        call = Arguments.of(merged, others, kwargs)
        inputs = [Input(g.type, ABSTRACT, g.name) for g in call.inputs()]
        returned = Results()
        closed, _ = call.stage_writing(inputs, returned, "make_jaxpr", [True] * len(inputs))
        if not return_shape:
            return closed
        return closed, returned.build(
            [ShapeDtypeStruct(a.type.shape, a.type.dtype) for a in closed.graph.outputs]
        )

    return wrapped


def eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The structure, shapes and dtypes of `fun(*args)`, which is not computed.

    An argument is an array, a `ShapeDtypeStruct`, or anything with a `shape` and a `dtype`; one
    that `fun` would write is left as it is.

    >>> import numpy as np
    >>> eval_shape(lambda x: x @ x.T, ShapeDtypeStruct((2, 3), np.float32))
    ShapeDtypeStruct(shape=(2, 2), dtype=dtype('float32'))
    """
    args, kwargs = tree_map(as_struct, (args, kwargs))
    return make_jaxpr(fun, return_shape=True)(*args, **kwargs)[1]


def as_struct(x: Any) -> Any:
    """A ShapeDtypeStruct of what only has a shape and dtype; an array as it is."""
    if is_array(x) or not (hasattr(x, "shape") and hasattr(x, "dtype")):
        return x
    return ShapeDtypeStruct(x.shape, x.dtype)


def parse(text: str) -> Graph:
    """The graph that a text in jaxpr form stands for.

    >>> import numpy as np
    >>> parse("{ lambda ; a:f32[3]. let b:f32[3] = tanh a in (b,) }")(np.zeros(3, np.float32))
    [array([0., 0., 0.], dtype=float32)]

    Raises:
        ParseError: it is no text of a graph, or its types do not fit.
    """
    graph = parse_text(text, KNOWN)
    try:
        return verify(graph)
    except VerifyError as error:
        raise ParseError(f"the text is no graph: {error}") from None
