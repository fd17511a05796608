"""A training step of GPT-2 (Radford and others, 2019): plain functions of a dict of arrays, bfloat16
beside float32 parameters, AdamW. 124M parameters on 8 rows of 1024 tokens, and 355M on 4, each layer
computed again in the backward pass. Beside the same network in torch.compile and in JAX with cuDNN's
attention, in turns in one process. And the losses of 300 steps beside torch's, from several starts.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np

import ge2
from benchmarks.cuda.contractions import Call, in_turns
from benchmarks.cuda.exchange import leaves
from benchmarks.cuda.machine import Machine, machine
from benchmarks.cuda.measure import Lines, each, release
from benchmarks.options import USUAL, Options
from benchmarks.peers import peer
from benchmarks.record import AtMost, Faster, Row, Target

LENGTH, WORDS = 1024, 50304


@final
@dataclass(frozen=True, slots=True)
class Size:
    """Of a network and of what it is trained on at once; `again`: a layer's values are not kept."""

    layers: int
    heads: int
    width: int
    batch: int
    words: int = WORDS
    length: int = LENGTH
    again: bool = False


SMALL, MEDIUM = Size(12, 12, 768, 8), Size(24, 16, 1024, 4, again=True)
QUICK = Size(2, 2, 128, 2, 256, 128)
RATE, DECAY = 3e-4, 0.1
ROUNDS = 7
Params = dict[str, Any]


def start(layers: int, width: int, words: int, length: int, seed: int = 0) -> Params:
    """The parameters: weights of small normal numbers, gains of ones, biases of zeros."""
    rng = np.random.default_rng(seed)

    def weight(*shape: int) -> Any:
        return 0.02 * rng.standard_normal(shape, np.float32)

    def zeros(n: int) -> Any:
        return np.zeros(n, np.float32)

    def block() -> Params:
        return {
            "gain1": 1 + zeros(width), "shift1": zeros(width),
            "qkv": weight(width, 3 * width), "qkv_bias": zeros(3 * width),
            "out": weight(width, width), "out_bias": zeros(width),
            "gain2": 1 + zeros(width), "shift2": zeros(width),
            "up": weight(width, 4 * width), "up_bias": zeros(4 * width),
            "down": weight(4 * width, width), "down_bias": zeros(width),
        }  # fmt: skip

    return {
        "words": weight(words, width), "places": weight(length, width),
        "blocks": [block() for _ in range(layers)],
        "gain": 1 + zeros(width), "shift": zeros(width),
    }  # fmt: skip


def norm(xp: Any, x: Any, gain: Any, shift: Any) -> Any:
    apart = x - x.mean(-1, keepdims=True)
    return apart / xp.sqrt((apart * apart).mean(-1, keepdims=True) + 1e-5) * gain + shift


def gelu(xp: Any, x: Any) -> Any:
    return 0.5 * x * (1 + xp.tanh(0.7978845608 * (x + 0.044715 * (x * x * x))))


def attention(q: Any, k: Any, v: Any) -> Any:
    """Causal, of (batch, heads, length, width)."""
    scores = q @ np.swapaxes(k, -1, -2) * float(q.shape[-1]) ** -0.5
    scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def network(
    xp: Any,
    attend: Callable[..., Any],
    params: Params,
    tokens: Any,
    heads: int,
    kept: Callable[..., Any] | None = None,
) -> Any:
    """The scores of the word after each; `kept` says what the backward pass keeps of a layer."""
    batch, length = tokens.shape
    x = params["words"][tokens] + params["places"]

    def layer(x: Any, p: Params) -> Any:
        h = norm(xp, x, p["gain1"], p["shift1"]) @ p["qkv"] + p["qkv_bias"]
        q, k, v = (
            xp.swapaxes(each.reshape(batch, length, heads, -1), 1, 2)
            for each in xp.split(h, 3, axis=-1)
        )
        a = xp.swapaxes(attend(q, k, v), 1, 2).reshape(x.shape)
        x = x + a @ p["out"] + p["out_bias"]
        h = norm(xp, x, p["gain2"], p["shift2"]) @ p["up"] + p["up_bias"]
        return x + gelu(xp, h) @ p["down"] + p["down_bias"]

    for p in params["blocks"]:
        x = (kept(layer) if kept else layer)(x, p)
    return norm(xp, x, params["gain"], params["shift"]) @ params["words"].T


def loss(params: Params, tokens: Any, size: Size) -> Any:
    kept = ge2.checkpoint if size.again else None
    logits = network(np, attention, params, tokens[:, :-1], size.heads, kept)
    return ge2.nn.cross_entropy(logits, tokens[:, 1:])


def ours(params: Params, tokens: Any, size: Size, low: bool = True) -> Call:
    """A step; its call may be given other tokens. `low`: products in bfloat16."""
    optimizer = ge2.optim.adamw(RATE, decay=DECAY)
    of = ge2.autocast(loss, "bf16") if low else loss

    @ge2.jit(donate_argnums=(0, 1))
    def step(params: Params, state: Any, tokens: Any) -> Any:
        value, slopes = ge2.value_and_grad(of, argnums=0)(params, tokens, size)
        return (*optimizer.update(slopes, state, params), value)

    held = [params, optimizer.init(params)]

    def call(tokens: Any = tokens) -> Any:
        held[0], held[1], value = step(*held, tokens)
        return value

    call.step, call.held = step, held  # type: ignore[attr-defined]
    return call


def by_jax(params: Params, tokens: Any, size: Size) -> dict[str, Call]:
    jax = peer("jax")
    if jax is None:
        return {}
    xp = jax.numpy
    implementation = "cudnn" if jax.default_backend() == "gpu" else None

    def attend(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (xp.swapaxes(x, 1, 2) for x in (q, k, v))
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=implementation)
        return xp.swapaxes(y, 1, 2)

    def loss(params: Params, tokens: Any) -> Any:
        low = jax.tree.map(lambda w: w.astype(xp.bfloat16), params)
        kept = jax.checkpoint if size.again else None
        logits = network(xp, attend, low, tokens[:, :-1], size.heads, kept).astype(xp.float32)
        chosen = xp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
        return (jax.nn.logsumexp(logits, axis=-1) - chosen).mean()

    def update(t: Any, p: Any, g: Any, m: Any, v: Any) -> Any:
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        slope = m / (1 - 0.9**t) / (xp.sqrt(v / (1 - 0.999**t)) + 1e-8)
        return p * (1 - RATE * DECAY) - RATE * slope, m, v

    def step(params: Params, m: Any, v: Any, t: Any, tokens: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(params, tokens)
        tree = jax.tree.structure(params)
        parts = [jax.tree.leaves(each) for each in (params, slopes, m, v)]
        found = [update(t, *each) for each in zip(*parts, strict=True)]
        return (*(tree.unflatten(each) for each in zip(*found, strict=True)), t + 1, value)

    compiled = jax.jit(step, donate_argnums=(0, 1, 2))
    given = jax.tree.map(xp.asarray, params)
    held = [given, *(jax.tree.map(xp.zeros_like, given) for _ in "mv"), xp.float32(1)]
    rows = xp.asarray(tokens)

    def call() -> Any:
        *held[:], value = compiled(*held, rows)
        return value

    return {"jax": call}


def by_torch(params: Params, tokens: Any, size: Size, low: bool = True) -> dict[str, Call]:
    torch = peer("torch")
    if torch is None:
        return {}
    functional, again = torch.nn.functional, torch.utils.checkpoint.checkpoint
    at = "cuda" if torch.cuda.is_available() else "cpu"
    tree = torch.utils._pytree
    held = tree.tree_map(lambda w: torch.tensor(w, device=at, requires_grad=True), params)
    rows = torch.tensor(tokens, device=at).long()
    given = tree.tree_leaves(held)
    optimizer = torch.optim.AdamW(given, RATE, weight_decay=DECAY, fused=at == "cuda")

    def normed(x: Any, gain: Any, shift: Any) -> Any:
        return functional.layer_norm(x, (x.shape[-1],), gain, shift)

    def scores(params: Params, tokens: Any) -> Any:
        batch, length = tokens.shape
        x = functional.embedding(tokens, params["words"]) + params["places"]

        def layer(x: Any, p: Params) -> Any:
            h = normed(x, p["gain1"], p["shift1"]) @ p["qkv"] + p["qkv_bias"]
            q, k, v = (
                y.view(batch, length, size.heads, -1).transpose(1, 2) for y in h.chunk(3, dim=-1)
            )
            a = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + a.transpose(1, 2).reshape(x.shape) @ p["out"] + p["out_bias"]
            h = normed(x, p["gain2"], p["shift2"]) @ p["up"] + p["up_bias"]
            return x + functional.gelu(h, approximate="tanh") @ p["down"] + p["down_bias"]

        for p in params["blocks"]:
            x = again(layer, x, p, use_reentrant=False) if size.again else layer(x, p)
        return normed(x, params["gain"], params["shift"]) @ params["words"].T

    @torch.compile(dynamic=False)
    def loss(params: Params, tokens: Any) -> Any:
        with torch.autocast(at, torch.bfloat16, enabled=low):
            logits = scores(params, tokens[:, :-1])
        wanted = tokens[:, 1:].reshape(-1)
        return functional.cross_entropy(logits.float().view(len(wanted), -1), wanted)

    def call(tokens: Any = None) -> Any:
        given = rows if tokens is None else torch.tensor(tokens, device=at).long()
        value = loss(held, given)
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.detach()

    return {"torch.compile": call}


def used(at: Machine) -> int:
    """The bytes of the GPU's memory that anybody has."""
    if not at.is_gpu:
        return 0
    free, total = at.xp.cuda.runtime.memGetInfo()
    return int(total - free)


def begun(call: Call, at: Machine) -> tuple[float, list[float]]:
    """Seconds of the first step, and the losses of three."""
    began = time.perf_counter()
    losses = [float(leaves(call())[0])]
    at.wait()
    seconds = time.perf_counter() - began
    return seconds, losses + [float(leaves(call())[0]) for _ in range(2)]


def line(
    options: Options, at: Machine, size: Size, bounds: Sequence[tuple[Target, ...]]
) -> list[Row]:
    size = replace(QUICK, again=size.again) if options.quick else size
    params = start(size.layers, size.width, size.words, size.length)
    shape = size.batch, size.length + 1
    tokens = np.random.default_rng(1).integers(0, size.words, shape, np.int32)
    makers: dict[str, Callable[[], dict[str, Call]]] = {
        "ge2": lambda: {"ge2": ours(ge2.tree.map(at.xp.array, params), at.xp.asarray(tokens), size)},
        "torch.compile": lambda: by_torch(params, tokens, size),
        "jax": lambda: by_jax(params, tokens, size),
    }  # fmt: skip
    calls: dict[str, Call] = {}
    first, memory, notes = dict[str, float](), dict[str, float](), dict[str, str]()
    for name, make in makers.items():
        before = used(at)
        calls |= make()
        if name in calls:
            first[name], losses = begun(calls[name], at)
            memory[name] = float(used(at) - before)
            notes[f"losses, {name}"] = " ".join(f"{x:.4f}" for x in losses)
    times = in_turns(calls, at, 0.0, options.rounds_or(ROUNDS))
    count = sum(w.size for w in ge2.tree.leaves(params))
    sizes = {"parameters": count, "tokens": [size.batch, size.length]}
    what = f"GPT-2 of {size.layers} layers, {size.batch}x{size.length}, bf16, AdamW"
    what += ", each layer computed again" * size.again
    found = ("a step", "seconds", times), ("first step, nothing cached", "seconds", first)
    return [
        Row(f"{what}: {name}", unit, each.pop("ge2"), each, bound, "bfloat16", sizes, notes)
        for (name, unit, each), bound in zip(
            (*found, ("memory", "bytes", memory)), bounds, strict=True
        )
    ]


# ------------------------------------------------------------------------------------------ curves
# Losses of so many steps beside torch's, on the bytes of the modules that ship with Python: apart by
# no more than torch's are from each other if it begins with other parameters.


STEPS, STARTS, WINDOW = 300, 3, 20  # steps that one mean is of


def curves(options: Options, at: Machine, low: bool) -> list[Row]:
    """How far our losses are from torch's from the same start, as a part of the
    widest distance of torch's from each other; means of some steps, the greatest of all.
    """
    size, steps = (QUICK, 2 * WINDOW) if options.quick else (SMALL, STEPS)
    batches = list(text(size, steps))

    def losses(call: Call, put: Callable[[Any], Any]) -> Any:
        found = [leaves(call(put(tokens)))[0] for tokens in batches]
        return np.array([float(each) for each in found]).reshape(-1, WINDOW).mean(1)

    first = start(size.layers, size.width, size.words, size.length)
    mine = losses(
        ours(ge2.tree.map(at.xp.array, first), at.xp.asarray(batches[0]), size, low), at.xp.asarray
    )
    release(at)
    theirs = []
    for seed in range(STARTS):
        begun = start(size.layers, size.width, size.words, size.length, seed)
        theirs += [losses(c, np.asarray) for c in by_torch(begun, batches[0], size, low).values()]
        release(at)
    notes = {"ge2": " ".join(f"{x:.4f}" for x in mine)}
    notes |= {
        f"torch, start {n}": " ".join(f"{x:.4f}" for x in each) for n, each in enumerate(theirs)
    }
    kind = "bf16" if low else "f32"
    title = f"GPT-2 of {size.layers} layers, {kind}, losses of {steps} steps"
    if not theirs:
        return [Row(f"{title}: the last", "nats", float(mine[-1]), {}, (), kind, {}, notes)]
    spread = np.ptp(theirs, axis=0).max()
    apart = float(np.abs(mine - theirs[0]).max() / spread)
    words = f"{title}: from torch's, of its spread over starts"
    return [
        Row(words, "times", apart, {}, () if options.quick else (AtMost(1.0),), kind, {}, notes)
    ]


def text(size: Size, steps: int) -> Iterator[Any]:
    """Rows of bytes of Python's own modules, from random places."""
    folder, rng = Path(ast.__file__).parent, np.random.default_rng(2)
    whole = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    letters = np.frombuffer(whole, np.uint8).astype(np.int32)
    for _ in range(steps):
        places = rng.integers(0, len(letters) - size.length - 1, size.batch)
        yield np.stack([letters[n : n + size.length + 1] for n in places])


def run(options: Options = USUAL) -> Lines:
    at = machine(options.quick)
    asked = (AtMost(14.0e-3),), (AtMost(4.0),), (AtMost(4200 * 2.0**20),)
    faster = (Faster(1.25, "jax"), Faster(1.25, "torch.compile")), (), ()
    rows: dict[str, Callable[[], list[Row]]] = {
        "gpt2-small": lambda: line(options, at, SMALL, ((),) * 3 if options.quick else asked),
        "gpt2-medium": lambda: line(options, at, MEDIUM, ((),) * 3 if options.quick else faster),
        "gpt2-curve-bf16": lambda: curves(options, at, True),
        "gpt2-curve-f32": lambda: curves(options, at, False),
    }
    return each("gpt2", {name: f"GPT-2: {name}" for name in rows}, lambda n: rows[n](), options, at)
