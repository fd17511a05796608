"""`ge2 demo` and `ge2 demo gpt`: small trainings, with their speed and their kernels."""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from itertools import pairwise
from textwrap import indent
from typing import Any, NamedTuple

import numpy as np

import ge2
from ge2.base.arrays import beside
from ge2.base.config import config
from ge2.base.errors import ArgumentError, Ge2Error, InputError
from ge2.base.record import record
from ge2.base.source import table, templates
from ge2.cli import deliver, milliseconds

# -------- `ge2 demo gpt`: trains the model of letters of examples/gpt2, and writes a text by it.


STEPS, LETTERS = 1000, 400
OTHERS = ("epochs", "json", "kernels", "output")


def example(name: str) -> Any:
    """A module of examples/, which is beside the templates in a checkout and in a wheel."""
    if "examples" not in sys.modules:
        spec = ModuleSpec("examples", None, is_package=True)
        spec.submodule_search_locations = [os.path.join(os.path.dirname(templates()), "examples")]
        sys.modules["examples"] = module_from_spec(spec)
    return importlib.import_module(f"examples.{name}")


def run_gpt(options: argparse.Namespace) -> int:
    """Trains and writes; 0 if the model knows more of unseen text than a table of pairs of letters."""
    others = [f"--{name}" for name in OTHERS if getattr(options, name)]
    if others or options.device != "cpu":
        what = f"ge2 demo gpt does not take {others[0] if others else '--device cuda'}"
        raise ArgumentError(what, fix="ge2 demo gpt --steps 1000 --seed 0")
    characters, steps = example("gpt2.characters"), options.steps or STEPS
    print("A small GPT-2 learns the letters of Python's help, float32, on the CPU\n")
    began, bar = (
        time.perf_counter(),
        ge2.io.progress(range(steps), label="training", out=sys.stdout),
    )

    def each(step: int, loss: float) -> None:
        next(bar)
        bar.record(loss=loss)

    with bar:
        model, alphabet, held, pairs = characters.train(steps, each, seed=options.seed)
    rows = [
        ("trained", f"{steps} steps in {time.perf_counter() - began:.0f} s, compiling included"),
        ("unseen text", f"{held:.3f} nats a letter"),
        ("a table of pairs", f"{pairs:.3f} nats a letter, the exact one of all the text"),
    ]
    print(f"\n{indent(table(rows), '  ')}\n\nIt writes:\n")
    print(characters.write(model, alphabet, "The ", LETTERS, options.seed))
    if held < pairs:
        return 0
    print("\nFAILED: a table of pairs of letters knows more.")
    return 1


# -------- `ge2 demo`: trains on handwritten digits, then prints the accuracy, the speed and the
# kernels.


# ------------------------------------------------------------------------------------------ digits
# The main job: a 64-256-256-10 network that learns handwritten digits, as
# plain NumPy and again by hand.
#
# `train_step` is what a user writes: NumPy functions on NumPy arrays, which `ge2.jit` compiles whole.
# `step_by_hand` is the same step with its derivative worked out on paper, in vectorised NumPy: the
# yardstick for time and results.


Array = np.ndarray[Any, np.dtype[Any]]
Layer = dict[str, Array]
Params = list[Layer]

SIZES = (64, 256, 256, 10)
BATCH = 128
RATE, BETA1, BETA2, EPSILON = 1e-3, 0.9, 0.999, 1e-8


class State(NamedTuple):
    """The values that a step changes: the parameters, Adam's running means of their gradients, the
    number of steps.
    """

    params: Params
    mean: Params
    square: Params
    steps: int


Step = Callable[[State, Array, Array], tuple[State, Array]]


@record
class Digits:
    """Images f32[n, 64] in 0..1 and their labels i64[n], in two parts with the
    same share of each digit.
    """

    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array


def load(seed: int = 0) -> Digits:
    """The 1,797 digits that scikit-learn ships, a fifth of them kept aside for the test."""
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        raise InputError(
            "the digits come with scikit-learn", where=error, fix='pip install ".[demo]"'
        ) from None
    images, labels = load_digits(return_X_y=True)
    scaled = (images / 16).astype(np.float32)
    parts = train_test_split(scaled, labels, test_size=0.2, stratify=labels, random_state=seed)
    train_x, test_x, train_y, test_y = map(np.ascontiguousarray, parts)
    return Digits(train_x, train_y, test_x, test_y)


def start(seed: int = 0) -> State:
    """Weights from He's initialisation (arXiv:1502.01852), everything else zero."""
    rng = np.random.default_rng(seed)
    params = [layer(rng, rows, columns) for rows, columns in pairwise(SIZES)]
    return State(params, zeros(params), zeros(params), 0)


def layer(rng: np.random.Generator, rows: int, columns: int) -> Layer:
    scale = np.float32(np.sqrt(2 / rows))
    return {
        "w": rng.standard_normal((rows, columns), np.float32) * scale,
        "b": np.zeros(columns, np.float32),
    }


def zeros(params: Params) -> Params:
    return [{name: np.zeros_like(p) for name, p in layer.items()} for layer in params]


def batches(
    x: Array, y: Array, rng: np.random.Generator, size: int = BATCH
) -> Iterator[tuple[Array, Array]]:
    """One pass over the data in a new order; the last batch is smaller if
    `size` does not divide it.
    """
    order = beside(rng.permutation(len(x)), x)
    for i in range(0, len(x), size):
        yield x[order[i : i + size]], y[order[i : i + size]]


# ------------------------------------------------------------------------------ as a user writes it


def forward(params: Params, x: Array) -> Array:
    *hidden, last = params
    for layer in hidden:
        x = np.maximum(x @ layer["w"] + layer["b"], 0)
    return x @ last["w"] + last["b"]


def cross_entropy(params: Params, x: Array, y: Array) -> Array:
    """The mean over the batch of -log softmax(forward(x))[y]."""
    z = forward(params, x)
    z = z - z.max(axis=1, keepdims=True)
    log_p = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    loss: Array = -np.take_along_axis(log_p, y[:, None], axis=1).mean()
    return loss


def train_step(state: State, x: Array, y: Array) -> tuple[State, Array]:
    """One step of Adam (arXiv:1412.6980): the new state and the loss before it."""
    loss, grads = ge2.value_and_grad(cross_entropy)(state.params, x, y)
    steps = state.steps + 1
    mean = ge2.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, state.mean, grads)
    square = ge2.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, state.square, grads)
    rate = RATE * (1 - BETA2**steps) ** 0.5 / (1 - BETA1**steps)
    params = ge2.tree.map(
        lambda p, m, v: p - rate * m / (np.sqrt(v) + EPSILON), state.params, mean, square
    )
    return State(params, mean, square, steps), loss


def accuracy(params: Params, x: Array, y: Array) -> float:
    return float((forward(params, x).argmax(axis=1) == y).mean())


# ------------------------------------------------------------------------------------------ by hand


def step_by_hand(state: State, x: Array, y: Array) -> tuple[State, Array]:
    """`train_step` without a compiler.

    It reuses arrays where it can: the given state is overwritten.
    """
    loss, grads = loss_and_grads_by_hand(state.params, x, y)
    steps = state.steps + 1
    rate = RATE * (1 - BETA2**steps) ** 0.5 / (1 - BETA1**steps)
    for p, g, m, v in zip(state.params, grads, state.mean, state.square, strict=True):
        for name in p:
            adam_by_hand(p[name], g[name], m[name], v[name], rate)
    return state._replace(steps=steps), loss


def loss_and_grads_by_hand(params: Params, x: Array, y: Array) -> tuple[Array, Params]:
    *hidden, last = params
    seen = [x]
    for layer in hidden:
        z = seen[-1] @ layer["w"]
        z += layer["b"]
        seen.append(np.maximum(z, 0, out=z))
    z = seen[-1] @ last["w"]
    z += last["b"]
    z -= z.max(axis=1, keepdims=True)
    rows = np.arange(len(y), like=y)
    picked = z[rows, y]
    np.exp(z, out=z)
    total = z.sum(axis=1, keepdims=True)
    loss = (np.log(total[:, 0]) - picked).mean()

    z /= total
    z[rows, y] -= 1
    z /= len(y)
    return loss, backward_by_hand(params, seen, z)


def backward_by_hand(params: Params, seen: list[Array], ct: Array) -> Params:
    """All gradients, from `ct`, that of the last layer's output; `seen` holds
    each layer's input.
    """
    grads: Params = []
    for layer, x in zip(reversed(params), reversed(seen), strict=True):
        grads.append({"w": x.T @ ct, "b": ct.sum(axis=0)})
        if len(grads) < len(params):
            ct = ct @ layer["w"].T
            ct *= x > 0
    return grads[::-1]


def adam_by_hand(p: Array, g: Array, m: Array, v: Array, rate: float) -> None:
    m *= BETA1
    m += (1 - BETA1) * g
    g *= g
    g *= 1 - BETA2
    v *= BETA2
    v += g
    step = np.sqrt(v)
    step += EPSILON
    np.divide(m, step, out=step)
    step *= rate
    p -= step


# -------------------------------------------------------------------------------------------- demo


REQUIRED = 0.97
EPOCHS, ROUNDS, SECONDS = 30, 200, 3.0
SHOW = "ge2 demo --kernels"
LIBRARY = ("matmul", "library")  # steps that are one operation of a library


@record
class Place:
    """The device of the work: what puts an array there, and what waits for it."""

    put: Callable[[Any], Any]
    wait: Callable[[], Any]

    def tree(self, tree: Any) -> Any:
        return ge2.tree.map(lambda x: self.put(x) if isinstance(x, np.ndarray) else x, tree)

    def digits(self, data: Digits) -> Digits:
        return Digits(*map(self.put, (data.train_x, data.train_y, data.test_x, data.test_y)))


CPU = Place(lambda x: x, lambda: None)


def place(name: str) -> Place:
    """The place of a name. DeviceError if there is no GPU, or no CuPy."""
    if name == "cpu":
        return CPU
    from ge2.targets.cuda.load import gpu  # slow to import

    device = gpu.current_gpu()
    return Place(device.xp.asarray, device.xp.cuda.Device(device.number).synchronize)


@record
class Report:
    """The results of a run of the demo. Times are seconds; `kernels` counts those of a step by
    kind.
    """

    epochs: int
    seed: int
    steps: int
    loss: float
    accuracy: float
    required: float
    step: float
    step_by_hand: float
    training: float
    kernels: dict[str, int]
    device: str = "cpu"

    @property
    def passed(self) -> bool:
        return self.accuracy >= self.required


def demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        default="digits",
        metavar="digits|gpt",
        help="what is learned (%(default)s)",
    )
    parser.add_argument("--epochs", type=positive, help=f"passes over the digits ({EPOCHS})")
    parser.add_argument("--steps", type=positive, help=f"of gpt ({STEPS})")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the split, the weights and the order (%(default)s)"
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="where (%(default)s)"
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument(
        "--json", action="store_true", help="print the result as JSON and nothing else"
    )
    output.add_argument(
        "--kernels",
        action="store_true",
        help="print a step's graph, regions and kernels; no training",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write to a file, not to the screen")


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def run_demo(options: argparse.Namespace) -> int:
    if options.what == "gpt":
        return run_gpt(options)
    if options.what != "digits":
        raise ArgumentError(f"there is no demo of {options.what}", fix="ge2 demo, ge2 demo gpt")
    if options.steps:
        raise ArgumentError("--steps is of ge2 demo gpt", fix="--epochs")
    at = place(options.device)
    data = at.digits(load(options.seed))
    step = ge2.jit(train_step)
    if options.kernels:
        deliver(explain(step, data, at), options.output)
        return 0
    quiet = bool(options.json or options.output)
    if not quiet:
        print(headline(data))
    report = train(step, data, options.epochs or EPOCHS, options.seed, quiet=quiet, at=at)
    report = replace(report, device=options.device)
    if options.json:
        text = json.dumps(asdict(report) | {"passed": report.passed}, indent=1)
    else:
        text = f"{headline(data)}{summary(report)}" if quiet else summary(report)
    deliver(text, options.output)
    return 0 if report.passed else 1


# ----------------------------------------------------------------------------------------- the work


def train(
    step: Step, data: Digits, epochs: int, seed: int, quiet: bool = False, at: Place = CPU
) -> Report:
    state, rng = at.tree(start(seed)), np.random.default_rng(seed)
    kernels = regions(step, state, data)
    began = time.perf_counter()
    loss: Array = np.zeros((), np.float32)
    out = io.StringIO() if quiet else sys.stdout
    bar = ge2.io.progress(range(epochs), label="training", out=out)
    for _ in bar:
        for x, y in batches(data.train_x, data.train_y, rng):
            state, loss = step(state, x, y)
        bar.record(loss=loss)
    training = time.perf_counter() - began
    reached = accuracy(state.params, data.test_x, data.test_y)
    ours, by_hand = times(step, state, data, at.wait)
    return Report(
        epochs,
        seed,
        state.steps,
        float(loss),
        reached,
        REQUIRED,
        ours,
        by_hand,
        training,
        dict(kernels),
    )


def regions(step: Any, state: State, data: Digits) -> Counter[str]:
    """The number of kernels of each kind that a step runs; an error if it runs op by op."""
    low = lowered(step, state, data)
    if config.disable_jit or low.executable.executor == "reference" or few_regions(low.executable):
        fix = "unset GE2_DISABLE_JIT, GE2_EXECUTOR and GE2_PASSES_OFF"
        raise Ge2Error("the training step runs op by op, not as fused regions", fix=fix)
    steps = {kind: low.executable.program.count(kind) for kind in LIBRARY}
    kinds = Counter("matmul" if kernel.kind == "product" else kernel.kind for kernel in low.kernels)
    steps["matmul"] -= kinds["small product"]  # which are kernels of ours
    return kinds + Counter(steps)


def few_regions(executable: Any) -> bool:
    """True if more is left to single operations than is fused; matrix products are never fused."""
    return bool(executable.regions <= executable.program.count("library"))


def lowered(step: Any, state: State, data: Digits) -> Any:
    return step.lower(state, data.train_x[:BATCH], data.train_y[:BATCH])


def times(step: Step, state: State, data: Digits, wait: Callable[[], Any]) -> tuple[float, float]:
    """Medians of a step's time, through ge2 and by hand, taken in turns, for
    a few seconds at most.
    """
    x, y = data.train_x[:BATCH], data.train_y[:BATCH]
    copied = ge2.tree.map(lambda x: x.copy() if hasattr(x, "copy") else x, state)
    candidates, states = (step, step_by_hand), [state, copied]
    found: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + SECONDS
    while len(found[1]) < ROUNDS and time.perf_counter() < end:
        for i, candidate in enumerate(candidates):
            began = time.perf_counter()
            states[i], _ = candidate(states[i], x, y)
            wait()
            found[i].append(time.perf_counter() - began)
    return float(np.median(found[0])), float(np.median(found[1]))


# ---------------------------------------------------------------------------------------- the words


def headline(data: Digits) -> str:
    network = "-".join(map(str, SIZES))
    counts = f"{len(data.train_x)} to train, {len(data.test_x)} to test"
    return f"A {network} network learns handwritten digits (float32, {counts})\n"


def summary(report: Report) -> str:
    ratio = report.step_by_hand / report.step
    fused = ", ".join(
        f"{n} {kind}" for kind, n in sorted(report.kernels.items()) if kind not in LIBRARY
    )
    calls = ", ".join(f"{n} {kind}" for kind, n in report.kernels.items() if kind in LIBRARY)
    library, whose = ("NumPy", "NumPy's own") if report.device == "cpu" else ("CuPy", "not fused")
    rows = [
        ("trained", f"{report.steps} steps in {report.training:.2f} s, compiling included"),
        ("test accuracy", f"{report.accuracy:.4f} (at least {report.required:.2f} is required)"),
        ("a step, ge2", f"{milliseconds(report.step)} (batch of {BATCH}, median)"),
        (
            "a step, by hand",
            f"{milliseconds(report.step_by_hand)} in vectorised {library}; ge2 is {ratio:.2f} x as fast",
        ),
        ("kernels of a step", f"{fused} (fused regions)"),
        *([("calls of a step", f"{calls} ({whose})")] if calls else []),
        ("to see them", SHOW),
    ]
    verdict = "" if report.passed else "\n\nFAILED: the test accuracy is below what is required."
    return f"\n{indent(table(rows), '  ')}{verdict}"


def explain(step: Any, data: Digits, at: Place = CPU) -> str:
    """The step as text: its graph as traced, the regions the passes made of it,
    and each kernel's source.
    """
    state = at.tree(start())
    x, y = data.train_x[:BATCH], data.train_y[:BATCH]
    low = lowered(step, state, data)
    parts = [
        ("graph, as traced", ge2.make_jaxpr(train_step)(state, x, y)),
        ("regions", low.as_text()),
        ("kernels", str(low.kernels)),
        *(
            (f"kernel {kernel.name} ({kernel.kind})", str(kernel).rstrip())
            for kernel in low.kernels
        ),
    ]
    return "\n\n".join(f"{f' {title} ':=^100}\n{body}" for title, body in parts)
