"""Training: AdamW with a warm-up and a cosine, clipped gradients, mixed precision."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import ge2
from examples.gpt2.model import loss
from ge2 import optim


class Options(NamedTuple):
    """How a model is trained."""

    steps: int = 1000
    rate: float = 6e-4
    warmup: int = 100
    decay: float = 0.1
    clip: float = 1.0
    parts: int = 1  # of a batch, one after another, where memory is short
    precision: str = "f32"  # of products: f32, tf32 or bf16


def optimizer_of(options):
    schedule = optim.cosine(options.rate, options.warmup, options.steps, options.rate / 10)
    return optim.adamw(schedule, 0.9, 0.95, decay=options.decay, mask=optim.matrices)


def started(config, model, options):
    """What training goes on from, and what is saved: a model, and the state of its optimiser."""
    return {"config": config, "model": model, "state": optimizer_of(options).init(model)}


def training(start, batches, options):
    """Yields what there is after each step as `start` is before them all, and the step's loss.

    A step takes the arrays of the model and the state before it for those after it.
    """
    optimizer = optimizer_of(options)
    low = loss if options.precision == "f32" else ge2.autocast(loss, options.precision)
    slope = ge2.value_and_grad(low)
    slope = optim.microbatches(slope, options.parts) if options.parts > 1 else slope

    @ge2.jit(donate_argnums=(0, 1))
    def step(model, state, ids):
        value, grads = slope(model, ids)
        model, state = optimizer.update(
            optim.clip_by_global_norm(grads, options.clip), state, model
        )
        return model, state, value

    config, model, state = start["config"], start["model"], start["state"]
    where = "cpu" if isinstance(model.wte.weight, np.ndarray) else "cuda"
    rest = (batches[number] for number in range(state["step"], options.steps))
    with ge2.io.prefetch(rest, device=where) as ahead:
        for ids in ahead:
            model, state, value = step(model, state, ids)
            yield {"config": config, "model": model, "state": state}, value
