"""Layers of networks with all their gradients, and a chain of layers, beside torch.compile and JAX:
in turns in one process, as in `contractions`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ge2
from benchmarks.cuda.contractions import FUSED, ROUNDS, Call, gelu, in_turns, ours
from benchmarks.cuda.exchange import back, leaves, to_jax, to_torch
from benchmarks.cuda.machine import Machine, machine
from benchmarks.cuda.measure import Lines, each
from benchmarks.cuda.work import BF16, Draw
from benchmarks.options import USUAL, Options
from benchmarks.peers import peer
from benchmarks.record import Faster, Row, Target

LINKS = 100
# what a layer is with each array module, and the shapes of its arguments, the cotangent's last
Layer = Callable[..., Any]
DENSE = ((8192, 768), (768, 3072), (3072,), (8192, 3072))
GATED = ((4096, 4096), (4096, 11008), (4096, 11008), (4096, 11008))
PAIRED = "wgmma pair of products and region", "mma pair of products and region"
GATE = ((8192, 768), (768, 3072), (768, 3072))
HALVES = ((8192, 768), (768, 6144), (8192, 3072))
CHAIN = ((512, 512), (512, 512), (512,))


def silu(xp: Any, x: Any) -> Any:
    return x / (1 + xp.exp(-x))


def dense(xp: Any, x: Any, w: Any, b: Any) -> Any:
    return gelu(xp, x @ w + b)


def residual(xp: Any, x: Any, w: Any, b: Any, r: Any) -> Any:
    return gelu(xp, x @ w + b) + r


def before(xp: Any, x: Any, w: Any, b: Any) -> Any:
    z = x @ w + b
    return z, gelu(xp, z)


def before_residual(xp: Any, x: Any, w: Any, b: Any, r: Any) -> Any:
    z = x @ w + b
    return z, gelu(xp, z) + r


def gated(xp: Any, x: Any, w: Any, v: Any) -> Any:
    return silu(xp, x @ w) * (x @ v)


def halves(xp: Any, x: Any, w: Any) -> Any:
    h, n = x @ w, w.shape[1] // 2
    return silu(xp, h[:, :n]) * h[:, n:]


def chain(xp: Any, x: Any, w: Any, b: Any) -> Any:
    for _ in range(LINKS):
        x = gelu(xp, x @ w + b)
    return x


def pulled(vjp: Callable[..., Any], layer: Layer, xp: Any) -> Callable[..., Any]:
    """The layer and all its gradients, of its arguments and a cotangent."""

    def both(*xs: Any) -> Any:
        y, pull = vjp(lambda *args: layer(xp, *args), *xs[:-1])
        return (y, *pull(xs[-1]))

    return both


def by_jax(layer: Layer, xs: Any, gradients: bool) -> dict[str, Call]:
    jax = peer("jax")
    if jax is None:
        return {}
    xp, given = jax.numpy, [to_jax(jax, x) for x in xs]
    function = pulled(jax.vjp, layer, xp) if gradients else lambda *args: layer(xp, *args)
    compiled = jax.jit(function)
    return {"jax": lambda: leaves(compiled(*given))[0]}


def by_torch(layer: Layer, xs: Any, gradients: bool) -> dict[str, Call]:
    torch = peer("torch")
    if torch is None:
        return {}
    torch.compiler.reset()
    given = [to_torch(torch, x).detach().requires_grad_(gradients) for x in xs]
    compiled = torch.compile(lambda *args: layer(torch, *args), dynamic=False)

    def call() -> Any:
        if not gradients:
            return compiled(*given)
        y = compiled(*given[:-1])
        return (y, *torch.autograd.grad(y, given[:-1], given[-1].detach()))

    return {"torch.compile": call}


LAYERS: dict[str, tuple[str, Layer, tuple[tuple[int, ...], ...], bool, float]] = {
    "dense-gradients": ("gelu(x@w+b) and all gradients", dense, DENSE, True, 1.25),
    "gated-gradients": ("silu(x@w)*(x@v) and all gradients", gated, GATED, True, 1.1),
    "gated": ("silu(x@w)*(x@v)", gated, GATE, False, 0.0),
    "halves": ("silu and gate, halves of x@w", halves, HALVES[:2], False, 0.0),
    "halves-gradients": (
        "silu and gate, halves of x@w, and all gradients",
        halves,
        HALVES,
        True,
        0.0,
    ),
    "residual": ("gelu(x@w+b)+r", residual, DENSE, False, 0.0),
    "before": ("x@w+b and its gelu", before, DENSE[:3], False, 0.0),
    "before-residual": ("x@w+b, and its gelu + r", before_residual, DENSE, False, 0.0),
    "chain": (f"gelu(x@w+b), {LINKS} times", chain, CHAIN, False, 0.0),
}


def line(name: str, options: Options, at: Machine) -> list[Row]:
    title, layer, shapes, gradients, times = LAYERS[name]
    draw = Draw(options.quick)
    drawn = [draw.normal(*shape, dtype=np.float32) for shape in shapes]
    drawn = [x / np.sqrt(x.shape[0]) if x.ndim == 2 else x for x in drawn]
    xs = tuple(at.xp.asarray(x.astype(BF16)) for x in drawn)
    notes: dict[str, str] = {}
    function = pulled(ge2.vjp, layer, np) if gradients else lambda *args: layer(np, *args)
    calls: dict[str, Call] = {}
    calls["ge2"], taken = ours(function, xs)
    notes["kernels"] = "; ".join(taken[:8])
    without = tuple(f"-{each}" for each in PAIRED)
    split = tuple(f"-{each}" for each in FUSED)
    calls["ge2 split"], _ = ours(function, xs, prefer=(*without, *split))
    if layer in (gated, halves):
        calls["ge2 one by one"], _ = ours(function, xs, prefer=without)
    pairs = zip(leaves(calls["ge2"]()), leaves(calls["ge2 split"]()), strict=True)
    for n, (found, wanted) in enumerate(pairs):
        y, w = (back(at.xp, each).astype(np.float32) for each in (found, wanted))
        error, most = float(abs(y - w).max()), float(abs(w).max())
        assert error <= 2**-5 * most, f"result {n} is wrong by {error} of {most}"
    calls |= by_torch(layer, xs, gradients) | by_jax(layer, xs, gradients)
    found = in_turns(calls, at, 0.0 if options.quick else 0.01, options.rounds_or(ROUNDS))
    peers = min((p for p in found if not p.startswith("ge2")), key=found.get, default="")  # type: ignore[arg-type]
    targets: tuple[Target, ...] = (Faster(times, peers),) if times and peers else ()
    mine = found.pop("ge2")
    sizes = {"shapes": [list(x.shape) for x in xs]}
    return [Row(title, "seconds", mine, found, targets, "bfloat16", sizes, notes)]


def run(options: Options = USUAL) -> Lines:
    at = machine(options.quick)
    titles = {name: name for name in LAYERS}
    return each("layers", titles, lambda name: line(name, options, at), options, at)
