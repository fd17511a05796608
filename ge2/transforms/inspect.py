"""Looking at functions: their graph as text, and the types of their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from ge2.base.pytree import register_leaf
from ge2.base.record import record
from ge2.ir import ArrayType, Graph
from ge2.ir import parse as parse_text
from ge2.ops import KNOWN
from ge2.trace import ABSTRACT, Input
from ge2.transforms.arguments import Arguments, Results, Static


@register_leaf
@record
class ShapeDtypeStruct:
    """The shape and dtype of an array that is not there."""

    shape: tuple[int, ...]
    dtype: Any

    @property
    def type(self) -> ArrayType:
        return ArrayType(tuple(self.shape), np.dtype(self.dtype))

    def __dlpack__(self) -> Any:
        raise BufferError("a ShapeDtypeStruct has no elements")


def make_jaxpr(
    fun: Callable[..., Any], static_argnums: int | Sequence[int] = (), return_shape: bool = False
) -> Callable[..., Any]:
    """A function that takes `fun`'s arguments and returns its graph; arrays that `fun` captured come first.

    >>> print(make_jaxpr(lambda x: np.tanh(x) * 2)(np.zeros(3, np.float32)))
    { lambda ; a:f32[3]. let
        b:f32[3] = tanh a
        c:f32[3] = mul b 2.0:f32[]
      in (c,) }
    """
    static = Static.of(static_argnums)

    @wraps(fun)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        _, others, merged = static.split(fun, args)
        call = Arguments.of(merged, others, kwargs)
        inputs = [Input(g.type, ABSTRACT, g.name) for g in call.inputs()]
        returned = Results()
        closed = call.stage(inputs, returned, "make_jaxpr")
        if not return_shape:
            return closed
        return closed, returned.build(
            [ShapeDtypeStruct(a.type.shape, a.type.dtype) for a in closed.graph.outputs]
        )

    return wrapped


def eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The structure, shapes and dtypes of `fun(*args)`, which is not computed.

    >>> eval_shape(lambda x: x @ x.T, ShapeDtypeStruct((2, 3), np.float32))
    ShapeDtypeStruct(shape=(2, 2), dtype=dtype('float32'))
    """
    return make_jaxpr(fun, return_shape=True)(*args, **kwargs)[1]


def parse(text: str) -> Graph:
    """The graph that a text in jaxpr form stands for.

    >>> parse("{ lambda ; a:f32[3]. let b:f32[3] = tanh a in (b,) }")(np.zeros(3, np.float32))
    [array([0., 0., 0.], dtype=float32)]
    """
    return parse_text(text, KNOWN)
