"""A whole training step of the demo, beside the same step by hand, in JAX and in torch."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

import ge2
from benchmarks.options import USUAL, Options
from benchmarks.peers import peer
from benchmarks.ran import executor_of, remarks
from benchmarks.record import Faster, Row
from benchmarks.timing import medians
from benchmarks.work import compiled_or_not
from ge2.cli import demo as digits
from ge2.cli.demo import BATCH, BETA1, BETA2, EPSILON, RATE, SIZES

STEPS = 3  # after which every candidate must have the same loss


def run(options: Options = USUAL) -> list[Row]:
    data = digits.load()
    x, y = data.train_x[:BATCH], data.train_y[:BATCH]
    compiled = ge2.jit(digits.train_step)
    notes = dict(remarks(executor_of(compiled, digits.start(), x, y)))
    candidates = {
        "ge2": stepper(compiled, digits.start(), x, y),
        "numpy": stepper(digits.step_by_hand, digits.start(), x, y),
        **jax_candidate(x, y),
        **torch_candidate(x, y, notes),
    }
    losses = {name: [float(step()) for _ in range(STEPS)] for name, step in candidates.items()}
    for name, found in losses.items():
        np.testing.assert_allclose(found, losses["numpy"], rtol=1e-4, err_msg=name)
    times = medians(candidates, options.rounds_or(41))
    targets = () if options.quick else (Faster(1.3, "numpy"), Faster(1.2, "jax"))
    sizes = {"network": list(SIZES), "batch": BATCH}
    layout = "float32 and int64, C order"
    return [
        Row("the demo's step", "seconds", times.pop("ge2"), times, targets, layout, sizes, notes)
    ]


def stepper(step: Callable[..., tuple[Any, Any]], state: Any, x: Any, y: Any) -> Callable[[], Any]:
    def go() -> Any:
        nonlocal state
        state, loss = step(state, x, y)
        return loss

    return go


def jax_candidate(x: Any, y: Any) -> dict[str, Callable[[], Any]]:
    jax = peer("jax")
    if jax is None:
        return {}
    ours = import_module("benchmarks.digits_in_jax")
    step = jax.jit(ours.train_step)
    go = stepper(step, ours.start(), jax.numpy.asarray(x), jax.numpy.asarray(y))
    return {"jax": lambda: go().block_until_ready()}


def torch_candidate(x: Any, y: Any, notes: dict[str, str]) -> dict[str, Callable[[], Any]]:
    """The loss compiled with its derivative, and torch's own Adam."""
    torch = peer("torch")
    if torch is None:
        return {}
    params = [
        torch.tensor(p, requires_grad=True)
        for layer in digits.start().params
        for p in layer.values()
    ]
    inputs = torch.tensor(x), torch.tensor(y)

    def cross_entropy(*params: Any) -> Any:
        h = inputs[0]
        for w, b in zip(params[:-2:2], params[1:-2:2], strict=True):
            h = torch.relu(h @ w + b)
        return torch.nn.functional.cross_entropy(h @ params[-2] + params[-1], inputs[1])

    loss_of = compiled_or_not(torch, cross_entropy, params, notes)
    adam = torch.optim.Adam(params, lr=RATE, betas=(BETA1, BETA2), eps=EPSILON, foreach=True)

    def go() -> Any:
        adam.zero_grad()
        loss = loss_of(*params)
        loss.backward()
        adam.step()
        return loss.detach()

    return {"torch": go}
