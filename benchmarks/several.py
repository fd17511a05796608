"""Five kinds of work, and the geometric mean of how they compare."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.options import USUAL, Options
from benchmarks.record import Faster, Row, mean_of
from benchmarks.work import Draw, Work, lines

BETA1, BETA2, EPSILON, RATE, STEPS = 0.9, 0.999, 1e-8, 1e-3, 10
MILLION = 1_000_000
EACH = (Faster(4, "numpy"),)
TOGETHER = Faster(1.2, "jax")
ROOT_2_OVER_PI = (2 / np.pi) ** 0.5


def gelu(x: Any, bias: Any, xp: ModuleType = np) -> Any:
    """The tanh form (arXiv:1606.08415)."""
    z = x + bias
    return 0.5 * z * (1 + xp.tanh(ROOT_2_OVER_PI * (z + 0.044715 * z * z * z)))


def torch_gelu(torch: ModuleType, x: Any, bias: Any) -> Any:
    return torch.nn.functional.gelu(x + bias, approximate="tanh")


def adam(p: Any, g: Any, m: Any, v: Any, xp: ModuleType = np) -> tuple[Any, Any, Any]:
    """The tenth step of Adam (arXiv:1412.6980): parameters and both moments, new."""
    m = BETA1 * m + (1 - BETA1) * g
    v = BETA2 * v + (1 - BETA2) * g * g
    rate = RATE * (1 - BETA2**STEPS) ** 0.5 / (1 - BETA1**STEPS)
    return p - rate * m / (xp.sqrt(v) + EPSILON), m, v


def torch_adam(torch: ModuleType, *state: Any) -> tuple[Any, Any, Any]:
    return adam(*state, xp=torch)


def standardise(x: Any, xp: ModuleType = np) -> Any:
    return (x - x.mean(0)) / xp.sqrt(x.var(0) + 1e-6)


def torch_standardise(torch: ModuleType, x: Any) -> Any:
    return (x - x.mean(0)) / torch.sqrt(x.var(0, correction=0) + 1e-6)


def distances(a: Any, b: Any, xp: ModuleType = np) -> Any:
    return xp.sqrt(((a[:, None, :] - b[None, :, :]) ** 2).sum(-1))


def torch_distances(torch: ModuleType, a: Any, b: Any) -> Any:
    return distances(a, b, xp=torch)


def stencil(u: Any, xp: ModuleType = np) -> Any:
    """One step of heat by seven points, of the inner points."""
    inner = u[1:-1, 1:-1, 1:-1]
    around = (
        (u[2:, 1:-1, 1:-1] + u[:-2, 1:-1, 1:-1])
        + (u[1:-1, 2:, 1:-1] + u[1:-1, :-2, 1:-1])
        + (u[1:-1, 1:-1, 2:] + u[1:-1, 1:-1, :-2])
    )
    return inner + 0.1 * (around - 6 * inner)


def torch_stencil(torch: ModuleType, u: Any) -> Any:
    return stencil(u, xp=torch)


def moments(draw: Draw) -> tuple[Any, Any, Any, Any]:
    p, g, m, v = (draw.normal(10 * MILLION) for _ in range(4))
    return p, g, m, np.square(v, out=v)


# fmt: off
WORKS = {
    "gelu": Work(
        "bias and gelu of (4096, 1024)", gelu,
        lambda draw: (draw.normal(4096, 1024), draw.normal(1024)), torch_gelu, targets=EACH),
    "adam": Work(
        "Adam, 10 M parameters", adam, moments, torch_adam, targets=EACH),
    "standardise": Work(
        "standardise the columns of (10000, 1000)", standardise,
        lambda draw: (draw.normal(10_000, 1000),), torch_standardise, targets=EACH),
    "distances": Work(
        "pairwise distances, 2000 x 2000 x 3", distances,
        lambda draw: (draw.normal(2000, 3), draw.normal(2000, 3)), torch_distances, targets=EACH),
    "stencil": Work(
        "stencil of 7 points, 256^3", stencil,
        lambda draw: (draw.normal(256, 256, 256),), torch_stencil, targets=EACH),
}
# fmt: on


def run(options: Options = USUAL) -> list[Row]:
    rows = lines("several", WORKS, options)
    if len(rows) < len(WORKS):
        return rows
    targets = () if options.quick else (TOGETHER,)
    return [*rows, mean_of("geometric mean of these five", rows, *targets)]
