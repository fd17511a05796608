"""Control flow and operations that NumPy has no name for, under the names they have in JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ge2.base.tracebacks import publish
from ge2.transforms.branches import cond as cond
from ge2.transforms.branches import dot_general as dot_general
from ge2.transforms.branches import stop_gradient as stop_gradient
from ge2.transforms.branches import switch as switch
from ge2.transforms.branches import top_k as top_k
from ge2.transforms.loops import associative_scan as associative_scan
from ge2.transforms.loops import fori_loop as fori_loop
from ge2.transforms.loops import map as map
from ge2.transforms.loops import scan as scan
from ge2.transforms.loops import while_loop as while_loop
from ge2.transforms.solves import custom_linear_solve as custom_linear_solve
from ge2.transforms.solves import custom_root as custom_root

if TYPE_CHECKING:
    from ge2.numpy.access.at import clamp as clamp
    from ge2.numpy.access.at import dynamic_index_in_dim as dynamic_index_in_dim
    from ge2.numpy.access.at import dynamic_slice as dynamic_slice
    from ge2.numpy.access.at import dynamic_slice_in_dim as dynamic_slice_in_dim
    from ge2.numpy.access.at import dynamic_update_index_in_dim as dynamic_update_index_in_dim
    from ge2.numpy.access.at import dynamic_update_slice as dynamic_update_slice
    from ge2.numpy.access.at import dynamic_update_slice_in_dim as dynamic_update_slice_in_dim
    from ge2.numpy.access.at import index_in_dim as index_in_dim
    from ge2.numpy.access.at import select as select
    from ge2.numpy.access.at import select_n as select_n
    from ge2.numpy.access.at import slice as slice
    from ge2.numpy.access.at import slice_in_dim as slice_in_dim

_AT = (
    "clamp",
    "dynamic_index_in_dim",
    "dynamic_slice",
    "dynamic_slice_in_dim",
    "dynamic_update_index_in_dim",
    "dynamic_update_slice",
    "dynamic_update_slice_in_dim",
    "index_in_dim",
    "select",
    "select_n",
    "slice",
    "slice_in_dim",
)
publish(globals(), advise=True, late=dict.fromkeys(_AT, "ge2.numpy.access.at"))
