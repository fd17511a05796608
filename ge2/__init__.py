"""A compiler for the array functions people already write: trace, differentiate, batch and fuse NumPy code.

>>> import numpy as np
>>> import ge2
>>> step = ge2.jit(ge2.grad(lambda w, x: np.tanh(x @ w).sum()))
>>> step(np.zeros(2), np.eye(2))
array([1., 1.])
"""

from typing import Any

from ge2 import errors as errors
from ge2 import lax as lax
from ge2 import numpy as numpy
from ge2 import random as random
from ge2 import tree as tree
from ge2 import tree_util as tree_util
from ge2.base.config import config as config
from ge2.base.dtypes import BFLOAT16 as bfloat16
from ge2.runtime import clear_caches as clear_caches
from ge2.runtime import disable_jit as disable_jit
from ge2.runtime import jit as jit
from ge2.transforms.api import grad as grad
from ge2.transforms.api import hessian as hessian
from ge2.transforms.api import jacfwd as jacfwd
from ge2.transforms.api import jacobian as jacobian
from ge2.transforms.api import jacrev as jacrev
from ge2.transforms.api import jvp as jvp
from ge2.transforms.api import linearize as linearize
from ge2.transforms.api import value_and_grad as value_and_grad
from ge2.transforms.api import vjp as vjp
from ge2.transforms.api import vmap as vmap
from ge2.transforms.custom import checkpoint as checkpoint
from ge2.transforms.custom import custom_jvp as custom_jvp
from ge2.transforms.custom import custom_vjp as custom_vjp
from ge2.transforms.custom import remat as remat
from ge2.transforms.inspect import ShapeDtypeStruct as ShapeDtypeStruct
from ge2.transforms.inspect import eval_shape as eval_shape
from ge2.transforms.inspect import make_jaxpr as make_jaxpr
from ge2.transforms.inspect import parse as parse


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # slow to import, and hardly ever asked for

        return version("ge2")
    raise AttributeError(f"module 'ge2' has no attribute {name!r}")
