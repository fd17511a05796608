"""Attention from plain NumPy beside cuDNN's and the peers', in turns in one process.

Contenders are timed in turns, round by round, since clocks fall with power: after 20 ms of rest each,
and hot, back to back. A row has ge2's time, notes its kernels and what it would be without them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ge2
from benchmarks.cuda.contractions import REST, in_turns, ours
from benchmarks.cuda.exchange import back, to_jax, to_torch
from benchmarks.cuda.machine import Machine, machine
from benchmarks.cuda.measure import Lines, each
from benchmarks.cuda.work import BF16, Draw
from benchmarks.options import USUAL, Options
from benchmarks.peers import peer
from benchmarks.record import AtMost, Row
from ge2.choice.choose import Choice
from ge2.targets.cuda.load.libraries import frontend

ROUNDS = 12
FAMILY, BACKWARD = "wgmma attention", "wgmma attention backward"
CUDNN, ORDERED = "cudnn attention", "cudnn attention backward"
ANY_ORDER = "cudnn attention backward in any order"
WITHOUT = tuple(f"-{name}" for name in (FAMILY, BACKWARD, CUDNN, ORDERED, ANY_ORDER))
SCRATCH = 4096  # megabytes: sums in order take cuDNN an array of the scores
BY_KEYS = "attention by keys"
Call = Callable[[], Any]
# of the lines whose names end so, the gradient too, forward included
SLOPES = "-slopes"
# batch, heads, length, width, causal, and the part of cuDNN's time that is to be reached
SHAPES = {
    "causal": (4, 16, 4096, 128, True, 0.87),
    "full": (4, 16, 4096, 128, False, 0.97),
    "one": (1, 16, 4096, 128, True, 0.75),
    "short": (8, 16, 1024, 128, True, 0.90),
    "narrow": (4, 16, 4096, 64, True, 0.9),
    "causal-slopes": (4, 16, 4096, 128, True, 0.95),
    "full-slopes": (4, 16, 4096, 128, False, 0.97),
    "one-slopes": (1, 16, 4096, 128, True, 0.95),
    "short-slopes": (8, 16, 1024, 128, True, 0.95),
    "narrow-slopes": (4, 16, 4096, 64, True, 0.95),
}
# one query of each head: batch, heads, heads of keys, keys, width
DECODING = {"decoding": (64, 32, 8, 8192, 128), "decoding-one": (1, 32, 8, 8192, 128)}
SHARE = 0.85  # of the bandwidth of a copy


def attention(q: Any, k: Any, v: Any, causal: bool) -> Any:
    scores = q @ np.swapaxes(k, -1, -2) * float(q.shape[-1]) ** -0.5
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def decoding(q: Any, k: Any, v: Any) -> Any:
    """Heads in groups, of which each has the same keys."""
    b, h, t, d = q.shape
    q = q.reshape(b, k.shape[1], h // k.shape[1], t, d)
    scores = np.einsum("bhgqd,bhkd->bhgqk", q, k) * float(d) ** -0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights = weights / weights.sum(-1, keepdims=True)
    return np.einsum("bhgqk,bhkd->bhgqd", weights, v).reshape(b, h, t, d)


def slopes(q: Any, k: Any, v: Any, ct: Any, causal: bool) -> Any:
    """The result, and cotangents of queries, keys and values for one of the result."""
    y, pull = ge2.vjp(lambda q, k, v: attention(q, k, v, causal), q, k, v)
    return (y, *pull(ct))


def slopes_by_torch(xs: Any, causal: bool) -> dict[str, Call]:
    torch = peer("torch")
    if torch is None:
        return {}
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v, ct = (to_torch(torch, x) for x in xs)
    given = [x.detach().requires_grad_() for x in (q, k, v)]

    def by(backend: Any) -> Call:
        def run() -> Any:
            with sdpa_kernel(backend):
                y = torch.nn.functional.scaled_dot_product_attention(*given, is_causal=causal)
            return torch.autograd.grad(y, given, ct)

        return run

    return {"cudnn": by(SDPBackend.CUDNN_ATTENTION), "flash": by(SDPBackend.FLASH_ATTENTION)}


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
    implementation = "cudnn" if jax.default_backend() == "gpu" else None  # a quick run has no GPU
    # JAX has heads after times
    q, k, v, *more = (jax.numpy.swapaxes(to_jax(jax, x), 1, 2) for x in xs)

    def layer(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(
            q, k, v, is_causal=causal, implementation=implementation
        )

    def with_slopes(q: Any, k: Any, v: Any, ct: Any) -> Any:
        y, pull = jax.vjp(layer, q, k, v)
        return (y, *pull(ct))

    compiled = jax.jit(with_slopes if more else layer)
    return {"jax": lambda: compiled(q, k, v, *more)}


def by_cudnn(function: Call, xs: Any, back_too: bool, notes: dict[str, str]) -> dict[str, Call]:
    """ge2 with cuDNN's kernels in place of its own: sums in order, and in any; where they are not
    taken, notes say why.
    """
    ways = {"ge2 cudnn": (CUDNN, ORDERED), "ge2 cudnn in any order": (CUDNN, ANY_ORDER)}
    found: dict[str, Call] = {}
    for name, families in ways.items():
        if isinstance(frontend(), str) or (len(found) and not back_too):
            continue
        ordered = ANY_ORDER not in families
        call, taken = ours(function, xs, prefer=families, workspace=SCRATCH, deterministic=ordered)
        wanted = families if back_too else families[:1]
        if all(any(each.startswith(f) for each in taken) for f in wanted):
            found[name] = call
        else:
            settings = {"prefer": families, "workspace": SCRATCH, "deterministic": ordered}
            notes[f"{name} is not taken"] = "; ".join(refusals(function, xs, wanted, settings))
    return found


def refusals(
    function: Call, xs: Any, families: tuple[str, ...], settings: dict[str, Any]
) -> list[str]:
    """Why families are not taken, or that they are, for each step that there is."""
    with ge2.config.using(**settings):
        choices = [
            c for c in ge2.jit(function).lower(*xs).choices.values() if isinstance(c, Choice)
        ]
    said = [
        f"{c.taken} for {each.family.name}: {each.refusal or 'not refused'}"
        for c in choices
        for each in c.candidates
        if each.family.name in families and " is no " not in each.refusal
    ]
    return said or [f"no step is attention: {', '.join(str(c.taken) for c in choices)}"]


def compared(at: Machine, found: Any, wanted: Any) -> str:
    """How far results are from those without the kernels."""
    pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
    errors = []
    for y, w in pairs:
        y, w = (back(at.xp, x).astype(np.float32) for x in (y, w))
        errors.append(np.linalg.norm(y - w) / np.linalg.norm(w))
    assert max(errors) < 2**-5, f"ge2 is wrong by {errors}"
    return f"{max(errors):.2g} from plain, relative"


def line(name: str, options: Options, at: Machine) -> list[Row]:
    b, h, t, d, causal, share = SHAPES[name]
    if options.quick:
        b, h, t = 1, 1, 128
    draw = Draw(options.quick)
    back_too = name.endswith(SLOPES)
    count = 4 if back_too else 3
    xs = tuple(at.xp.asarray(draw.normal(b, h, t, d, dtype=BF16)) for _ in range(count))
    notes: dict[str, str] = {}
    calls: dict[str, Call] = {}

    def function(*xs: Any) -> Any:
        return (slopes if back_too else attention)(*xs, causal)

    calls["ge2"], taken = ours(function, xs)
    notes["kernels"] = "; ".join(taken)
    # before others take memory, which cuDNN's kernels are loaded into
    theirs = {} if options.quick else by_cudnn(function, xs, back_too, notes)
    calls["ge2 plain"], _ = ours(function, xs, prefer=WITHOUT)
    calls.update(slopes_by_torch(xs, causal) if back_too else by_torch(xs, causal))
    calls.update(by_jax(xs, causal))
    notes["differs by"] = compared(at, calls["ge2"](), calls["ge2 plain"]())
    for way, call in theirs.items():
        calls[way] = call
        notes[f"{way} differs by"] = compared(at, call(), calls["ge2 plain"]())
    rows = []
    for word, rest in (("rested", REST), ("hot", 0.0)):
        times = in_turns(calls, at, 0.0 if options.quick else rest, options.rounds_or(ROUNDS))
        targets = () if options.quick else (AtMost(share * times.get("cudnn", 0.0)),)
        kind = "causal" if causal else "full"
        what = "attention and gradient" if back_too else "attention"
        title = f"{what} bf16 {kind} {b}x{h}x{t}x{d}, {word}"
        mine = times.pop("ge2")
        flops = (14 if back_too else 4) * b * h * t * t * d / (2 if causal else 1)
        notes[f"TFLOP/s, {word}"] = f"{flops / mine / 1e12:.0f}"
        rows.append(
            Row(title, "seconds", mine, times, targets, "bfloat16", {"sizes": [b, h, t, d]}, notes)
        )
    return rows


def line_of_decoding(name: str, options: Options, at: Machine) -> list[Row]:
    """Beside a copy of the keys, which moves as many bytes: it reads and writes them."""
    b, h, few, t, d = DECODING[name]
    if options.quick:
        b, h, few, t = 1, 4, 2, 128
    draw = Draw(options.quick)
    shapes = (b, h, 1, d), (b, few, t, d), (b, few, t, d)
    xs = tuple(at.xp.asarray(draw.normal(*shape, dtype=BF16)) for shape in shapes)
    calls: dict[str, Call] = {}
    calls["ge2"], taken = ours(decoding, xs)
    calls["ge2 plain"], _ = ours(decoding, xs, prefer=(f"-{FAMILY}", f"-{BY_KEYS}"))
    there = at.xp.empty_like(xs[1])
    calls["copy"] = lambda: at.xp.copyto(there, xs[1])  # whose bytes are those of keys and values
    notes = {
        "kernels": "; ".join(taken),
        "differs by": compared(at, calls["ge2"](), calls["ge2 plain"]()),
    }
    rows = []
    for word, rest in (("rested", REST), ("hot", 0.0)):
        times = in_turns(calls, at, 0.0 if options.quick else rest, options.rounds_or(ROUNDS))
        mine = times.pop("ge2")
        targets = () if options.quick or name != "decoding" else (AtMost(times["copy"] / SHARE),)
        notes[f"part of a copy's bandwidth, {word}"] = f"{times['copy'] / mine:.2f}"
        title = f"decoding bf16 {b}x{h}/{few}x{t}x{d}, {word}"
        sizes = {"sizes": [b, h, few, t, d]}
        rows.append(Row(title, "seconds", mine, times, targets, "bfloat16", sizes, notes))
    return rows


def run(options: Options = USUAL) -> Lines:
    at = machine(options.quick)
    titles = {name: name for name in (*SHAPES, *DECODING)}
    lines = {name: line_of_decoding if name in DECODING else line for name in titles}
    return each("attention", titles, lambda name: lines[name](name, options, at), options, at)
