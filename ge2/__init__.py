"""A compiler for the array functions people already write: trace,
differentiate, batch and fuse NumPy code.

>>> import numpy as np
>>> import ge2
>>> step = ge2.jit(ge2.grad(lambda w, x: np.tanh(x @ w).sum()))
>>> step(np.zeros(2), np.eye(2))
array([1., 1.])
"""

import typing as _typing
from importlib import import_module as _import_module

from ge2 import errors as errors
from ge2 import numpy as numpy
from ge2 import tree as tree
from ge2.base.arrays import BFLOAT16 as _BFLOAT16
from ge2.base.config import config as config
from ge2.base.source import named_scope as named_scope
from ge2.base.tracebacks import hides as _hides
from ge2.base.tracebacks import hides_methods as _hides_methods
from ge2.base.tracebacks import publish as _publish
from ge2.dispatch import checking_leaks as checking_leaks
from ge2.dispatch import clear_caches as clear_caches
from ge2.dispatch import debug_infs as debug_infs
from ge2.dispatch import debug_nans as debug_nans
from ge2.dispatch import disable_jit as disable_jit
from ge2.dispatch import jit as jit
from ge2.transforms.api import grad as grad
from ge2.transforms.api import jvp as jvp
from ge2.transforms.api import linearize as linearize
from ge2.transforms.api import value_and_grad as value_and_grad
from ge2.transforms.api import vjp as vjp
from ge2.transforms.arguments import ShapeDtypeStruct as ShapeDtypeStruct
from ge2.transforms.arguments import eval_shape as eval_shape
from ge2.transforms.arguments import make_jaxpr as make_jaxpr
from ge2.transforms.arguments import parse as parse
from ge2.transforms.batching import hessian as hessian
from ge2.transforms.batching import jacfwd as jacfwd
from ge2.transforms.batching import jacobian as jacobian
from ge2.transforms.batching import jacrev as jacrev
from ge2.transforms.batching import vmap as vmap
from ge2.transforms.branches import stop_gradient as stop_gradient
from ge2.transforms.custom import custom_jvp as custom_jvp
from ge2.transforms.custom import custom_vjp as custom_vjp
from ge2.transforms.graphs import float0 as float0
from ge2.transforms.pullback import checkpoint as checkpoint
from ge2.transforms.pullback import checkpoint_name as checkpoint_name
from ge2.transforms.pullback import remat as remat

bfloat16 = _BFLOAT16
_hides_methods(type(config))

if _typing.TYPE_CHECKING:
    from ge2 import debug as debug
    from ge2 import extend as extend
    from ge2 import io as io
    from ge2 import kernels as kernels
    from ge2 import lax as lax
    from ge2 import nn as nn
    from ge2 import optim as optim
    from ge2 import random as random
    from ge2 import test_util as test_util
    from ge2 import tree_util as tree_util
    from ge2.dispatch.explain import explain as explain
    from ge2.dispatch.pins import tuning as tuning
    from ge2.kernels import op_call as op_call
    from ge2.transforms import checkpoint_policies as checkpoint_policies
    from ge2.transforms.autocast import Policy as Policy
    from ge2.transforms.autocast import autocast as autocast
    from ge2.transforms.custom_gradient import closure_convert as closure_convert
    from ge2.transforms.custom_gradient import custom_batch as custom_batch
    from ge2.transforms.custom_gradient import custom_gradient as custom_gradient
    from ge2.transforms.custom_gradient import pure_callback as pure_callback
    from ge2.transforms.custom_gradient import sequential_vmap as sequential_vmap
    from ge2.transforms.solves import linear_transpose as linear_transpose

    __version__: str
else:
    _WHOLE = {  # modules themselves
        **{n: f"ge2.{n}" for n in ("debug", "extend", "io", "kernels", "lax", "nn", "optim")},
        **{n: f"ge2.{n}" for n in ("random", "test_util", "tree_util")},
        "checkpoint_policies": "ge2.transforms.checkpoint_policies",
    }  # fmt: skip
    _LATE = {
        "Policy": "ge2.transforms.autocast",
        "autocast": "ge2.transforms.autocast",
        "explain": "ge2.dispatch.explain",
        "op_call": "ge2.kernels",
        "tuning": "ge2.dispatch.pins",
        "closure_convert": "ge2.transforms.custom_gradient",
        "custom_batch": "ge2.transforms.custom_gradient",
        "custom_gradient": "ge2.transforms.custom_gradient",
        "sequential_vmap": "ge2.transforms.custom_gradient",
        "pure_callback": "ge2.transforms.custom_gradient",
        "linear_transpose": "ge2.transforms.solves",
    }
    _publish(globals(), True, ("errors", "numpy", "tree"), {**_WHOLE, **_LATE})
    _late = globals()["__getattr__"]

    @_hides
    def __getattr__(name):
        """Names that are imported when they are first asked for: seldom
        needed, or slow to import.
        """
        if name == "__version__":
            from importlib.metadata import PackageNotFoundError, version

            try:
                return version("ge2")
            except PackageNotFoundError:
                return "0.0.0+checkout"  # run from a folder, without being installed
        if name in _WHOLE:
            return _import_module(_WHOLE[name])
        return _late(name)
