"""Optimisers: each two pure functions over containers of arrays, as plain NumPy.

>>> import numpy as np, ge2
>>> from ge2 import optim
>>> optimizer = optim.adamw(optim.cosine(0.3, warmup=5, steps=100), decay=0.0)
>>> loss = lambda params: np.sum((params["w"] - 3.0) ** 2)
>>> @ge2.jit(donate_argnums=(0, 1))
... def step(params, state):
...     return optimizer.update(ge2.grad(loss)(params), state, params)
>>> params = {"w": np.zeros(2, np.float32)}
>>> state = optimizer.init(params)
>>> for _ in range(100):
...     params, state = step(params, state)
>>> bool(np.allclose(params["w"], 3.0, atol=0.01)), state["step"]
(True, 100)
"""

from typing import TYPE_CHECKING

from ge2.base.errors import lacking
from ge2.base.tracebacks import publish
from ge2.optim.optimisers import adafactor as adafactor
from ge2.optim.optimisers import adagrad as adagrad
from ge2.optim.optimisers import adam as adam
from ge2.optim.optimisers import adamw as adamw
from ge2.optim.optimisers import lamb as lamb
from ge2.optim.optimisers import lion as lion
from ge2.optim.optimisers import muon as muon
from ge2.optim.optimisers import rmsprop as rmsprop
from ge2.optim.optimisers import sgd as sgd
from ge2.optim.rule import Optimizer as Optimizer
from ge2.optim.rule import accumulate as accumulate
from ge2.optim.rule import clip_by_global_norm as clip_by_global_norm
from ge2.optim.rule import clip_by_value as clip_by_value
from ge2.optim.rule import constant as constant
from ge2.optim.rule import cosine as cosine
from ge2.optim.rule import ema as ema
from ge2.optim.rule import exponential as exponential
from ge2.optim.rule import global_norm as global_norm
from ge2.optim.rule import linear as linear
from ge2.optim.rule import loss_scale as loss_scale
from ge2.optim.rule import matrices as matrices
from ge2.optim.rule import microbatches as microbatches
from ge2.optim.rule import split as split
from ge2.optim.rule import step_decay as step_decay

__all__ = [
    "Optimizer", "accumulate", "adafactor", "adagrad", "adam", "adamw", "clip_by_global_norm",
    "clip_by_value", "constant", "cosine", "ema", "exponential", "global_norm", "lamb", "linear",
    "lion", "loss_scale", "matrices", "microbatches", "muon", "rmsprop", "sgd", "split", "step_decay",
]  # fmt: skip

publish(globals())


if not TYPE_CHECKING:

    def __getattr__(name):
        raise AttributeError(lacking(__name__, name, __all__))


def __dir__() -> list[str]:
    return __all__
