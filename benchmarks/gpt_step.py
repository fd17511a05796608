"""A training step of a small GPT on the CPU, on a quiet machine and beside processes that spin.

Matrix products by a BLAS whose threads wait for each other are an order of magnitude
slower where other processes use the cores. JAX stands beside both; the second line has
ge2 on the quiet machine, too.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import ge2
from benchmarks.options import USUAL, Options
from benchmarks.peers import peer
from benchmarks.ran import executor_of, remarks
from benchmarks.record import Faster, Row
from benchmarks.timing import medians

WIDTH, LENGTH, BATCH, HEADS, LAYERS, LETTERS = 64, 64, 16, 4, 2, 96
SPINNERS = 2
SPIN = "int main(void) { for (volatile unsigned long i = 0;; i++) {} }"
ROUNDS, BUDGET = 41, 12.0


def start(seed: int = 0) -> dict[str, Any]:
    """The parameters: weights of normal numbers, gains of ones."""
    rng = np.random.default_rng(seed)

    def weight(*shape: int) -> Any:
        return (rng.standard_normal(shape) * 0.02).astype(np.float32)

    layer = lambda: {  # noqa: E731
        "gain1": np.ones(WIDTH, np.float32), "qkv": weight(WIDTH, 3 * WIDTH), "out": weight(WIDTH, WIDTH),
        "gain2": np.ones(WIDTH, np.float32), "up": weight(WIDTH, 4 * WIDTH), "down": weight(4 * WIDTH, WIDTH),
    }  # fmt: skip
    return {
        "letters": weight(LETTERS, WIDTH), "places": weight(LENGTH, WIDTH),
        "layers": [layer() for _ in range(LAYERS)], "gain": np.ones(WIDTH, np.float32),
    }  # fmt: skip


def text(seed: int = 1) -> Any:
    return np.random.default_rng(seed).integers(0, LETTERS, (BATCH, LENGTH + 1), np.int32)


def norm(x: Any, gain: Any, xp: Any) -> Any:
    apart = x - x.mean(-1, keepdims=True)
    return gain * apart / xp.sqrt((apart * apart).mean(-1, keepdims=True) + 1e-5)


def attention(x: Any, layer: Any, xp: Any) -> Any:
    batch, length, width = x.shape
    qkv = (x @ layer["qkv"]).reshape(batch, length, 3, HEADS, width // HEADS)
    q, k, v = (xp.swapaxes(qkv[:, :, i], 1, 2) for i in range(3))
    scores = q @ xp.swapaxes(k, 2, 3) / (width // HEADS) ** 0.5
    scores = xp.where(xp.arange(length)[:, None] >= xp.arange(length), scores, -1e9)
    weights = xp.exp(scores - scores.max(-1, keepdims=True))
    weights = weights / weights.sum(-1, keepdims=True)
    return xp.swapaxes(weights @ v, 1, 2).reshape(batch, length, width) @ layer["out"]


def gelu(x: Any, xp: Any) -> Any:
    return 0.5 * x * (1 + xp.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def loss(params: Any, tokens: Any, xp: Any = np) -> Any:
    given, wanted = tokens[:, :-1], tokens[:, 1:]
    x = params["letters"][given] + params["places"]
    for layer in params["layers"]:
        x = x + attention(norm(x, layer["gain1"], xp), layer, xp)
        x = x + gelu(norm(x, layer["gain2"], xp) @ layer["up"], xp) @ layer["down"]
    logits = norm(x, params["gain"], xp) @ params["letters"].T
    logits = logits - logits.max(-1, keepdims=True)
    chosen = xp.take_along_axis(logits, wanted[..., None], -1)[..., 0]
    return (xp.log(xp.exp(logits).sum(-1)) - chosen).mean()


def step_of(module: Any, xp: Any, tree: Any) -> Callable[[Any, Any], Any]:
    """One step of gradient descent by a module's derivative."""
    derived = module.value_and_grad(lambda params, tokens: loss(params, tokens, xp))

    def step(params: Any, tokens: Any) -> Any:
        value, gradient = derived(params, tokens)
        return tree.map(lambda w, g: w - np.float32(0.1) * g, params, gradient), value

    return step


def stepper(step: Callable[..., Any], params: Any, tokens: Any) -> Callable[[], Any]:
    def go() -> Any:
        nonlocal params
        params, value = step(params, tokens)
        return value

    return go


def candidates() -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    tokens = text()
    compiled = ge2.jit(step_of(ge2, np, ge2.tree))
    found = {"ge2": stepper(compiled, start(), tokens)}
    jax = peer("jax")
    if jax is not None:
        jnp = import_module("jax.numpy")
        theirs = stepper(
            jax.jit(step_of(jax, jnp, jax.tree)),
            jax.tree.map(jnp.asarray, start()),
            jnp.asarray(tokens),
        )
        found["jax"] = lambda: theirs().block_until_ready()
    losses = {name: [float(go()) for _ in range(3)] for name, go in found.items()}
    for name, values in losses.items():
        np.testing.assert_allclose(values, losses["ge2"], rtol=1e-4, err_msg=name)
    return found, dict(remarks(executor_of(compiled, start(), tokens)))


@contextmanager
def spinning(count: int = SPINNERS) -> Iterator[None]:
    """Other processes that use a core each; written in C where there is a compiler."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", "while True: pass"]
        if cc := shutil.which("cc") or shutil.which("gcc"):
            source, binary = Path(folder, "spin.c"), Path(folder, "spin")
            source.write_text(SPIN)
            subprocess.run([cc, "-O1", "-o", str(binary), str(source)], check=True)
            command = [str(binary)]
        others = [subprocess.Popen(command) for _ in range(count)]
        try:
            yield
        finally:
            for each in others:
                each.kill()
                each.wait()


def run(options: Options = USUAL) -> list[Row]:
    found, notes = candidates()
    layout, sizes = "float32 and int32, C order", {"width": WIDTH, "length": LENGTH, "batch": BATCH}
    rounds = options.rounds_or(ROUNDS)
    quiet = medians(found, rounds, BUDGET)
    with spinning():
        busy = medians(found, rounds, BUDGET)
    busy["quiet"] = quiet["ge2"]
    rows = []
    for title, times, targets in (
        ("GPT's step", quiet, (Faster(1.3, "jax"),)),
        ("GPT's step, two others spin", busy, (Faster(1.0, "jax"), Faster(1 / 3, "quiet"))),
    ):
        ours = times.pop("ge2")
        rows.append(
            Row(
                title,
                "seconds",
                ours,
                times,
                () if options.quick else targets,
                layout,
                sizes,
                notes,
            )
        )
    return rows
