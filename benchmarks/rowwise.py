"""Softmax, layer norm and logsumexp of rows, and the derivatives of their sums of squares."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from benchmarks import by_hand
from benchmarks.options import USUAL, Options
from benchmarks.record import Faster, Row
from benchmarks.work import Draw, Work, lines, squared

ROWS, COLUMNS = 4096, 1024
TARGETS = (Faster(4, "numpy"), Faster(1, "jax"))


def softmax(x: Any, xp: ModuleType = np) -> Any:
    e = xp.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def logsumexp(x: Any, xp: ModuleType = np) -> Any:
    most = x.max(-1, keepdims=True)
    return xp.log(xp.exp(x - most).sum(-1)) + most[..., 0]


def layernorm(x: Any, scale: Any, bias: Any, xp: ModuleType = np) -> Any:
    h = x - x.mean(-1, keepdims=True)
    return h / xp.sqrt((h * h).mean(-1, keepdims=True) + by_hand.EPSILON) * scale + bias


def torch_softmax(torch: ModuleType, x: Any) -> Any:
    return torch.softmax(x, -1)


def torch_logsumexp(torch: ModuleType, x: Any) -> Any:
    return torch.logsumexp(x, -1)


def torch_layernorm(torch: ModuleType, x: Any, scale: Any, bias: Any) -> Any:
    return torch.nn.functional.layer_norm(x, scale.shape, scale, bias, by_hand.EPSILON)


def rows(draw: Draw) -> tuple[Any]:
    return (draw.normal(ROWS, COLUMNS),)


def rows_and_scale(draw: Draw) -> tuple[Any, Any, Any]:
    return draw.normal(ROWS, COLUMNS), draw.normal(COLUMNS), draw.normal(COLUMNS)


# fmt: off
FUNCTIONS = {
    "softmax":   (softmax, torch_softmax, by_hand.softmax, by_hand.softmax_grad, rows),
    "layernorm": (layernorm, torch_layernorm, by_hand.layernorm, by_hand.layernorm_grad, rows_and_scale),
    "logsumexp": (logsumexp, torch_logsumexp, by_hand.logsumexp, by_hand.logsumexp_grad, rows),
}
# fmt: on


def works() -> dict[str, Work]:
    found = {}
    for name, (function, torch, hand, _, arguments) in FUNCTIONS.items():
        title = f"{name} of ({ROWS}, {COLUMNS})"
        found[name] = Work(title, function, arguments, torch, hand, targets=TARGETS)
    for name, (function, torch, _, hand, arguments) in FUNCTIONS.items():
        title = f"grad of the squares of {name} of ({ROWS}, {COLUMNS})"
        wanted = (0, 1, 2) if name == "layernorm" else (0,)
        found[f"{name}-grad"] = Work(
            title, squared(function), arguments, squared(torch), hand, wanted, TARGETS
        )
    return found


def run(options: Options = USUAL) -> list[Row]:
    return lines("rowwise", works(), options)
