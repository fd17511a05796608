"""Products whose operands are made as they are read, beside the same with operands in memory: in turns
in one process, as in `contractions`.

A row has the time of ge2's own choice; others are those of each family that makes operands, of the
steps apart, and of the peers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.cuda.contractions import REST, ROUNDS, Call, in_turns, ours
from benchmarks.cuda.exchange import back, to_jax, to_torch
from benchmarks.cuda.machine import Machine, machine
from benchmarks.cuda.measure import Lines, each
from benchmarks.cuda.work import BF16, Draw
from benchmarks.options import USUAL, Options
from benchmarks.peers import peer
from benchmarks.record import AtMost, Row

MADE = "wgmma product of operands that it makes", "mma product of operands that it makes"
EPSILON = 1e-5
Layer = Callable[..., Any]


def norm(xp: Any, x: Any, gain: Any, bias: Any) -> Any:
    mean = xp.mean(x, -1, keepdims=True)
    spread = xp.sqrt(xp.mean((x - mean) ** 2, -1, keepdims=True) + EPSILON)
    return (x - mean) / spread * gain + bias


def cast(xp: Any, low: Any, high: Any, x: Any, w: Any) -> Any:
    return low(x) @ w


def masked(xp: Any, low: Any, high: Any, mask: Any, a: Any, b: Any) -> Any:
    return xp.where(mask, a, xp.zeros_like(a)) @ b


def normed(xp: Any, low: Any, high: Any, x: Any, gain: Any, bias: Any, w: Any) -> Any:
    return low(norm(xp, high(x), gain, bias)) @ w


LAYERS: dict[str, tuple[Layer, str]] = {
    "cast": (cast, "bf16(x_f32) @ w, 8192x768x3072"),
    "mask": (masked, "where(mask, a, 0) @ b, bf16, 4096x4096x1024"),
    "norm": (normed, "layernorm(x) @ w, bf16, 8192x768x3072"),
}


def arguments(name: str, draw: Draw) -> tuple[Any, ...]:
    if name == "mask":
        a, b = draw.normal(4096, 4096, dtype=BF16), draw.normal(4096, 1024, dtype=BF16)
        return draw.normal(4096, 4096) > 0, a, b
    w = draw.normal(768, 3072, dtype=BF16)
    if name == "cast":
        return draw.normal(8192, 768), w
    return draw.normal(8192, 768, dtype=BF16), draw.normal(768), draw.normal(768), w


def contenders(name: str, xs: Any, notes: dict[str, str]) -> dict[str, Call]:
    layer, _ = LAYERS[name]

    def function(*xs: Any) -> Any:
        return layer(np, lambda x: x.astype(BF16), lambda x: x.astype(np.float32), *xs)

    found: dict[str, Call] = {}
    found["ge2"], taken = ours(function, xs)
    notes["kernels"] = "; ".join(taken)
    found["ge2 apart"], _ = ours(function, xs, passes_off=("prologue",))
    for family in MADE:
        call, taken = ours(function, xs, prefer=(family,))
        if any(family in title for title in taken):
            found[f"ge2 {family.split()[0]}"] = call
    return {**found, **by_torch(layer, xs), **by_jax(layer, xs)}


def by_torch(layer: Layer, xs: Any) -> dict[str, Call]:
    torch = peer("torch")
    if torch is None:
        return {}
    given = [to_torch(torch, x) for x in xs]
    torch.compiler.reset()

    class Names:
        """Torch under NumPy's names."""

        where, sqrt, zeros_like = torch.where, torch.sqrt, torch.zeros_like

        @staticmethod
        def mean(x: Any, axis: int, keepdims: bool) -> Any:
            return torch.mean(x, axis, keepdim=keepdims)

    def run(*xs: Any) -> Any:
        return layer(Names, lambda x: x.to(torch.bfloat16), lambda x: x.float(), *xs)

    compiled = torch.compile(run, dynamic=False)

    def call() -> Any:
        with torch.inference_mode():
            return compiled(*given)

    return {"torch.compile": call}


def by_jax(layer: Layer, xs: Any) -> dict[str, Call]:
    jax = peer("jax")
    if jax is None:
        return {}
    given = [to_jax(jax, x) for x in xs]
    xp = jax.numpy

    def run(*xs: Any) -> Any:
        return layer(xp, lambda x: x.astype(xp.bfloat16), lambda x: x.astype(xp.float32), *xs)

    compiled = jax.jit(run)
    return {"jax": lambda: compiled(*given)}


def line(name: str, options: Options, at: Machine) -> list[Row]:
    _, title = LAYERS[name]
    xs = tuple(map(at.xp.asarray, arguments(name, Draw(options.quick))))
    notes: dict[str, str] = {}
    calls = contenders(name, xs, notes)
    wanted = back(at.xp, calls["ge2 apart"]()).astype(np.float32)
    for other in [x for x in calls if x.startswith("ge2")]:
        found = back(at.xp, calls[other]()).astype(np.float32)
        error = np.abs(found - wanted).max() / np.abs(wanted).max()
        notes[f"{other} differs by"] = f"{error:.2g} of the largest"
        assert error < 2**-6, f"{other} is wrong by {error}"
    rows = []
    for word, rest in (("rested", REST), ("hot", 0.0)):
        times = in_turns(calls, at, 0.0 if options.quick else rest, options.rounds_or(ROUNDS))
        mine, apart = times.pop("ge2"), times["ge2 apart"]
        targets = () if options.quick else (AtMost(1.02 * apart),)
        full = f"{title}, {word}"
        rows.append(Row(full, "seconds", mine, times, targets, "bfloat16", {}, notes))
    return rows


def run(options: Options = USUAL) -> Lines:
    at = machine(options.quick)
    titles = {name: title for name, (_, title) in LAYERS.items()}
    return each("operands", titles, lambda name: line(name, options, at), options, at)
