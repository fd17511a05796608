"""How large a derivative of a derivative of a derivative becomes."""

from __future__ import annotations

from typing import Any

import numpy as np

import ge2
from benchmarks.options import USUAL, Options
from benchmarks.peers import peer
from benchmarks.record import AtMost, Row

DEPTH = 3


def wavy(x: Any, xp: Any = np) -> Any:
    """Fifteen equations on one number."""
    a = xp.sin(x) * xp.exp(-x)
    b = xp.tanh(a + x * 0.5)
    c = xp.sqrt(b * b + 1.0) / x
    return xp.log(c) * xp.cos(c) + a


def run(options: Options = USUAL) -> list[Row]:
    x = np.float64(0.7)
    sizes = {"equations": count(ge2, wavy, x), "depth": DEPTH}
    others = {}
    if (jax := peer("jax")) is not None:
        others["jax"] = len(nested(jax, in_jax(jax), DEPTH)(0.7).eqns)
    ours = count(ge2, nested_function(ge2, wavy, DEPTH), x)
    work = f"grad nested {DEPTH} deep of {sizes['equations']} equations"
    return [Row(work, "equations", ours, others, (AtMost(300),), "float64", sizes)]


def in_jax(jax: Any) -> Any:
    return lambda x: wavy(x, jax.numpy)


def nested_function(library: Any, function: Any, depth: int) -> Any:
    for _ in range(depth):
        function = library.grad(function)
    return function


def nested(library: Any, function: Any, depth: int) -> Any:
    return library.make_jaxpr(nested_function(library, function, depth))


def count(library: Any, function: Any, x: Any) -> int:
    return len(library.make_jaxpr(function)(x).graph.eqns)
