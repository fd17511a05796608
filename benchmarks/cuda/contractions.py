"""Products with work on their elements, beside the library's bare product: in turns in one process.

Clocks fall with power, so contenders are timed in turns, round by round: after 20 ms of rest each,
and hot, back to back. A row has the time of ge2's own choice, and notes those of its candidates.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from statistics import median
from typing import Any

import numpy as np

import ge2
from benchmarks.cuda.exchange import back, to_jax, to_torch
from benchmarks.cuda.machine import Machine, machine
from benchmarks.cuda.measure import Lines, each
from benchmarks.cuda.work import BF16, Draw
from benchmarks.options import USUAL, Options
from benchmarks.peers import peer
from benchmarks.record import AtMost, Row
from ge2.base.errors import CompileError
from ge2.choice import forget
from ge2.choice.choose import Choice

ROUNDS, LAUNCHES, REST = 15, 20, 0.02
Call = Callable[[], Any]
BARE = "wgmma product", "wgmma product of copies", "mma product"
LIBRARY = "product by BLAS"
EPILOGUE = f"{LIBRARY} and its epilogue"
FUSED = (EPILOGUE, *(f"{name} and region" for name in BARE))
SHAPES = {
    "wide": (8192, 3072, 768, 0.97),
    "square": (4096, 4096, 1024, 0.97),
    "large": (8192, 8192, 8192, 1.0),
    "tiny": (512, 512, 512, 1.0),
    "odd": (4095, 3071, 767, 1.0),  # rows are no multiples of 16 bytes apart
    "digits": (8192, 1000, 784, 1.0),
}


def gelu(xp: Any, x: Any) -> Any:
    return 0.5 * x * (1 + xp.tanh(0.7978845608 * (x + 0.044715 * (x * x * x))))


def layer(xp: Any, a: Any, b: Any, c: Any) -> Any:
    return gelu(xp, a @ b + c)


def ours(function: Callable[..., Any], xs: Any, **settings: Any) -> tuple[Call, list[str]]:
    """A call, and the kernels and library functions that it has."""
    compiled = ge2.jit(function)
    with ge2.config.using(**settings):
        compiled(*xs)
        lowered = compiled.lower(*xs)

    def call() -> Any:
        with ge2.config.using(**settings):
            return compiled(*xs)

    return (call if settings else lambda: compiled(*xs)), [
        str(c.taken) for c in lowered.choices.values() if isinstance(c, Choice)
    ]


def contenders(xs: Any, notes: dict[str, str]) -> dict[str, Call]:
    """The bare product and the whole layer, by everyone."""
    a, b, _ = xs
    found: dict[str, Call] = {}
    found["ge2"], taken = ours(lambda a, b, c: layer(np, a, b, c), xs)
    notes["kernels"] = "; ".join(taken)
    found["ge2 split"], _ = ours(
        lambda a, b, c: layer(np, a, b, c), xs, prefer=tuple(f"-{name}" for name in FUSED)
    )
    with suppress(CompileError):  # where the library has no such product
        found["ge2 library"], _ = ours(lambda a, b, c: layer(np, a, b, c), xs, prefer=(EPILOGUE,))
    found["ge2 mma"], _ = ours(lambda a, b, c: layer(np, a, b, c), xs, prefer=FUSED[-1:])
    found["ge2 bare, library"], _ = ours(lambda a, b: a @ b, (a, b), prefer=(LIBRARY,))
    found["ge2 bare, own"], taken = ours(lambda a, b: a @ b, (a, b), prefer=BARE)
    notes["bare kernel"] = "; ".join(taken)
    return {**found, **by_torch(xs), **by_jax(xs)}


def by_torch(xs: Any) -> dict[str, Call]:
    torch = peer("torch")
    if torch is None:
        return {}
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    a, b, c = (to_torch(torch, x) for x in xs)
    y = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
    torch.compiler.reset()
    compiled = torch.compile(
        lambda a, b, c: torch.nn.functional.gelu(a @ b + c, approximate="tanh"), dynamic=False
    )
    fused = torch._addmm_activation

    def inferred(call: Call) -> Call:
        def run() -> Any:
            with torch.inference_mode():
                return call()

        return run

    return {
        "cublas bare": inferred(lambda: torch.mm(a, b, out=y)),
        "cublas gelu": inferred(lambda: fused(c, a, b, use_gelu=True)),
        "torch.compile": inferred(lambda: compiled(a, b, c)),
    }


def by_jax(xs: Any) -> dict[str, Call]:
    jax = peer("jax")
    if jax is None:
        return {}
    given = [to_jax(jax, x) for x in xs]
    compiled = jax.jit(lambda a, b, c: jax.nn.gelu(a @ b + c, approximate=True))
    return {"jax": lambda: compiled(*given)}


def sample(call: Call, wait: Callable[[], Any], rest: float) -> float:
    """Seconds of a call of so many, launched at once after a warming one."""
    time.sleep(rest)
    finished(call(), wait)
    began = time.perf_counter()
    for _ in range(LAUNCHES - 1):
        call()
    finished(call(), wait)
    return (time.perf_counter() - began) / LAUNCHES


def finished(result: Any, wait: Callable[[], Any]) -> None:
    if hasattr(result, "block_until_ready"):
        result.block_until_ready()
    wait()


def in_turns(calls: dict[str, Call], at: Machine, rest: float, rounds: int) -> dict[str, float]:
    for call in calls.values():
        for _ in range(3):
            finished(call(), at.wait)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for n in range(rounds):
        for name in [*calls] if n % 2 else [*reversed(calls)]:
            times[name].append(sample(calls[name], at.wait, rest))
    return {name: median(found) for name, found in times.items()}


def line(name: str, options: Options, at: Machine) -> list[Row]:
    forget()  # a kernel that was built for another line is no reason to take it
    m, n, k, share = SHAPES[name]
    draw = Draw(options.quick)
    a, b, c = (
        draw.normal(m, k, dtype=BF16),
        draw.normal(k, n, dtype=BF16),
        draw.normal(n, dtype=BF16),
    )
    b = (b.astype(np.float32) / np.sqrt(b.shape[0])).astype(BF16)
    xs = tuple(map(at.xp.asarray, (a, b, c)))
    notes: dict[str, str] = {}
    calls = contenders(xs, notes)
    wanted = [
        back(at.xp, calls[x]()).astype(np.float32) for x in ("ge2 split", "ge2 bare, library")
    ]
    for x, w in (
        ("ge2", wanted[0]),
        ("ge2 library", wanted[0]),
        ("ge2 mma", wanted[0]),
        ("ge2 bare, own", wanted[1]),
    ):
        if x not in calls:
            continue
        error = np.abs(back(at.xp, calls[x]()).astype(np.float32) - w).max() / np.abs(w).max()
        notes[f"{x} differs by"] = f"{error:.2g} of the largest"
        assert error < 2**-6, f"{x} is wrong by {error}"
    rows = []
    for word, rest in (("rested", REST), ("hot", 0.0)):
        times = in_turns(calls, at, 0.0 if options.quick else rest, options.rounds_or(ROUNDS))
        bare = times.get("cublas bare", times["ge2 bare, library"])
        targets = () if options.quick else (AtMost(share * bare),)
        title = f"gelu(a@b+c) bf16 {m}x{n}x{k}, {word}"
        mine = times.pop("ge2")
        rows.append(
            Row(title, "seconds", mine, times, targets, "bfloat16", {"sizes": [m, n, k]}, notes)
        )
    return rows


def run(options: Options = USUAL) -> Lines:
    at = machine(options.quick)
    titles = {name: name for name in SHAPES}
    return each("contractions", titles, lambda name: line(name, options, at), options, at)
