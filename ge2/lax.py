"""Control flow and operations that NumPy has no name for, under the names they have in JAX."""

from __future__ import annotations

from ge2.transforms.lax import cond as cond
from ge2.transforms.lax import dot_general as dot_general
from ge2.transforms.lax import stop_gradient as stop_gradient
from ge2.transforms.solves import custom_linear_solve as custom_linear_solve
from ge2.transforms.solves import custom_root as custom_root
