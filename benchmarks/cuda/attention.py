"""Attention from plain NumPy beside cuDNN's and the peers', in turns in one process.

Contenders are timed in turns, round by round, since clocks fall with power: after 20 ms of rest each,
and hot, back to back. A row has ge2's time, notes its kernels and what it would be without them.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.cuda.contractions import REST, in_turns, ours
from benchmarks.cuda.exchange import back, to_jax, to_torch
from benchmarks.cuda.machine import Machine, machine
from benchmarks.cuda.measure import Lines, release
from benchmarks.cuda.work import BF16, Draw
from benchmarks.options import USUAL, Options
from benchmarks.peers import peer
from benchmarks.record import AtMost, Failure, Row

ROUNDS = 12
FAMILY = "wgmma attention"
Call = Callable[[], Any]
# batch, heads, length, width, causal, and the part of cuDNN's time that is to be reached
SHAPES = {
    "causal": (4, 16, 4096, 128, True, 0.87),
    "full": (4, 16, 4096, 128, False, 0.97),
    "one": (1, 16, 4096, 128, True, 0.75),
    "short": (8, 16, 1024, 128, True, 0.90),
    "narrow": (4, 16, 4096, 64, True, 0.9),
}


def attention(q: Any, k: Any, v: Any, causal: bool) -> Any:
    scores = q @ np.swapaxes(k, -1, -2) * float(q.shape[-1]) ** -0.5
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def by_torch(xs: Any, causal: bool) -> dict[str, Call]:
    torch = peer("torch")
    if torch is None:
        return {}
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (to_torch(torch, x) for x in xs)

    def by(backend: Any) -> Call:
        def run() -> Any:
            with torch.inference_mode(), sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

        return run

    return {"cudnn": by(SDPBackend.CUDNN_ATTENTION), "flash": by(SDPBackend.FLASH_ATTENTION)}


def by_jax(xs: Any, causal: bool) -> dict[str, Call]:
    jax = peer("jax")
    if jax is None:
        return {}
    # JAX has heads after times
    q, k, v = (jax.numpy.swapaxes(to_jax(jax, x), 1, 2) for x in xs)
    compiled = jax.jit(
        lambda q, k, v: jax.nn.dot_product_attention(
            q, k, v, is_causal=causal, implementation="cudnn"
        )
    )
    return {"jax": lambda: compiled(q, k, v)}


def line(name: str, options: Options, at: Machine) -> list[Row]:
    b, h, t, d, causal, share = SHAPES[name]
    if options.quick:
        b, h, t = 1, 1, 128
    draw = Draw(options.quick)
    xs = tuple(at.xp.asarray(draw.normal(b, h, t, d, dtype=BF16)) for _ in range(3))
    notes: dict[str, str] = {}
    calls: dict[str, Call] = {}
    calls["ge2"], taken = ours(lambda q, k, v: attention(q, k, v, causal), xs)
    notes["kernels"] = "; ".join(taken)
    calls["ge2 plain"], _ = ours(
        lambda q, k, v: attention(q, k, v, causal), xs, prefer=(f"-{FAMILY}",)
    )
    calls.update(by_torch(xs, causal))
    calls.update(by_jax(xs, causal))
    wanted = back(at.xp, calls["ge2 plain"]()).astype(np.float32)
    error = np.abs(back(at.xp, calls["ge2"]()).astype(np.float32) - wanted).max()
    notes["differs by"] = f"{error:.2g} from plain"
    assert error < 2**-4, f"ge2 is wrong by {error}"
    rows = []
    for word, rest in (("rested", REST), ("hot", 0.0)):
        times = in_turns(calls, at, 0.0 if options.quick else rest, options.rounds_or(ROUNDS))
        targets = () if options.quick else (AtMost(share * times.get("cudnn", 0.0)),)
        kind = "causal" if causal else "full"
        title = f"attention bf16 {kind} {b}x{h}x{t}x{d}, {word}"
        mine = times.pop("ge2")
        flops = 4 * b * h * t * t * d / (2 if causal else 1)
        notes[f"TFLOP/s, {word}"] = f"{flops / mine / 1e12:.0f}"
        rows.append(
            Row(title, "seconds", mine, times, targets, "bfloat16", {"sizes": [b, h, t, d]}, notes)
        )
    return rows


def run(options: Options = USUAL) -> Lines:
    at = machine(options.quick)
    for name in SHAPES:
        if not options.wants("attention", name):
            continue
        began = time.perf_counter()
        try:
            yield from line(name, options, at)
        except Exception as error:  # noqa: BLE001 whatever it is: time on a GPU is not spent twice
            traceback.print_exc()
            yield Failure(name, f"{type(error).__name__}: {error}")
        release(at)
        print(f"  {name}: {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
