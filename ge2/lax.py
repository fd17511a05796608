"""Control flow and operations that NumPy has no name for, under the names they have in JAX."""

from __future__ import annotations

from ge2.base.tracebacks import publish
from ge2.transforms.lax import cond as cond
from ge2.transforms.lax import dot_general as dot_general
from ge2.transforms.lax import stop_gradient as stop_gradient
from ge2.transforms.lax import switch as switch
from ge2.transforms.lax import top_k as top_k
from ge2.transforms.loops import associative_scan as associative_scan
from ge2.transforms.loops import fori_loop as fori_loop
from ge2.transforms.loops import map as map
from ge2.transforms.loops import scan as scan
from ge2.transforms.loops import while_loop as while_loop
from ge2.transforms.solves import custom_linear_solve as custom_linear_solve
from ge2.transforms.solves import custom_root as custom_root

__all__ = [
    "associative_scan",
    "cond",
    "custom_linear_solve",
    "custom_root",
    "dot_general",
    "fori_loop",
    "map",
    "scan",
    "stop_gradient",
    "switch",
    "top_k",
    "while_loop",
]

publish(globals())


def __dir__() -> list[str]:
    return __all__
