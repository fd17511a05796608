"""What a call runs: a Program with its kernels, as a function of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ge2.base.dtypes import python_type
from ge2.ir import ArrayType, Evaluate, Graph, Var, read
from ge2.passes.host import compute, on_host

EVALUATE = Evaluate()


def interpret(graph: Graph, arrays: Sequence[Any]) -> list[Any]:
    """Op by op with the references; Python numbers stay Python numbers."""
    env: dict[Var, Any] = dict(zip(graph.inputs, arrays, strict=True))
    for eqn in graph.eqns:
        xs = read(env, eqn.inputs)
        if on_host(eqn):
            env[eqn.outs[0]] = compute(eqn.op, eqn.outs[0].type, *xs)
        else:
            env.update(zip(eqn.outs, EVALUATE.apply(eqn.op, xs), strict=True))
    return read(env, graph.outputs)


def owned(y: Any, type: ArrayType) -> Any:
    """A fresh array that the caller may keep and change; a Python number where the type is weak."""
    if type.weak:
        return python_type(type.dtype)(y)
    return np.array(y, type.dtype, order="C", copy=True)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Executable:
    name: str
    graph: Graph

    def __call__(self, *arrays: Any) -> list[Any]:
        return [owned(y, a.type) for y, a in zip(interpret(self.graph, arrays), self.graph.outputs, strict=True)]
