"""Derivatives and batches: functions from graph to graph, and the
functions of functions made of them.
"""

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
from ge2.transforms.branches import cond as cond
from ge2.transforms.branches import stop_gradient as stop_gradient
from ge2.transforms.custom import custom_jvp as custom_jvp
from ge2.transforms.custom import custom_vjp as custom_vjp
from ge2.transforms.graphs import float0 as float0
from ge2.transforms.pullback import checkpoint as checkpoint
from ge2.transforms.pullback import checkpoint_name as checkpoint_name
from ge2.transforms.pullback import remat as remat
