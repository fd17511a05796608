"""Loops over time and layers: scans, their derivatives, a while loop, Python
loops, per-example gradients.

Each function is written once, for both: `xp` and `lax` are NumPy and ge2.lax, or those of JAX.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import numpy as np

import ge2
from benchmarks.fresh import fresh
from benchmarks.options import USUAL, Options
from benchmarks.peers import installed, peer
from benchmarks.ran import executor_of, remarks
from benchmarks.record import AtMost, Faster, Row, Target
from benchmarks.regions import first_call
from benchmarks.timing import medians
from ge2 import lax as our_lax

ROUNDS, BUDGET = 15, 6.0
STEPS, STATES = 10_000, 16
TIME, BATCH, WIDTH = 512, 16, 64
LAYERS, NARROW = 200, 32
SIZES = (64, 256, 256, 10)  # of the demo's network
TOLERANCE = 1e-3  # of the largest number of a result, after thousands of float32 rounds
Draw = np.random.Generator


def recurrence(a: Any, b: Any, xs: Any, xp: Any, lax: Any) -> Any:
    """h = a * h + b * x for each x, where h and a hold 16 states; all h."""

    def step(h: Any, x: Any) -> Any:
        h = a * h + b * x
        return h, h

    return lax.scan(step, xp.zeros(a.shape, xp.float32), xs)[1]


def dense_recurrence(a: Any, b: Any, xs: Any, xp: Any, lax: Any) -> Any:
    """h = A @ h + b * x, A a matrix; all h."""

    def step(h: Any, x: Any) -> Any:
        h = a @ h + b * x
        return h, h

    return lax.scan(step, xp.zeros(b.shape, xp.float32), xs)[1]


def cell(weights: Any, h: Any, x: Any, xp: Any) -> Any:
    by_x, by_h, bias = weights
    return xp.tanh(x @ by_x + h @ by_h + bias)


def rnn(weights: Any, h: Any, xs: Any, xp: Any, lax: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = cell(weights, h, x, xp)
        return h, h

    return lax.scan(step, h, xs)[1]


def rnn_in_python(weights: Any, h: Any, xs: Any, xp: Any, lax: Any) -> Any:
    total = 0.0
    for t in range(xs.shape[0]):
        h = cell(weights, h, xs[t], xp)
        total = total + (h * h).sum()
    return total


def roots(a: Any, xp: Any, lax: Any) -> Any:
    def root(a: Any) -> Any:
        return lax.while_loop(lambda x: abs(x * x - a) > 1e-5 * a, lambda x: 0.5 * (x + a / x), a)

    return lax.vmap(root)(a)


def layers(weights: Any, x: Any, xp: Any, lax: Any) -> Any:
    for w, b in weights:
        x = xp.tanh(x @ w + b)
    return (x * x).sum()


def example_loss(params: Any, x: Any, y: Any, xp: Any, lax: Any) -> Any:
    *hidden, (w, b) = params
    for v, c in hidden:
        x = xp.maximum(x @ v + c, 0)
    z = x @ w + b
    return xp.log(xp.exp(z - z.max()).sum()) + z.max() - (z * y).sum()


def squares(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **which: (f(*args, **which) ** 2).sum()


class Library:
    """ge2 or JAX, as the functions above want it."""

    def __init__(self, whole: ModuleType, xp: ModuleType, lax: ModuleType) -> None:
        self.whole, self.xp, self.lax = whole, xp, lax

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lax if hasattr(self.lax, name) else self.whole, name)

    def bound(self, f: Callable[..., Any]) -> Callable[..., Any]:
        return partial(f, xp=self.xp, lax=self)


def libraries() -> dict[str, Library]:
    found = {"ge2": Library(ge2, np, our_lax)}
    jax = peer("jax")
    if jax is not None:
        found["jax"] = Library(jax, jax.numpy, jax.lax)
    return found


def normal(rng: Draw, *shape: int, scale: float = 1.0) -> Any:
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def weights_of(rng: Draw, width: int) -> Any:
    return (
        normal(rng, width, width, scale=0.7 / width**0.5),
        normal(rng, width, width, scale=0.7 / width**0.5),
        normal(rng, width),
    )


def network(rng: Draw) -> Any:
    return [(normal(rng, m, n, scale=(2 / m) ** 0.5), normal(rng, n)) for m, n in pairwise(SIZES)]


Work = tuple[
    str,
    Callable[[Library], Callable[..., Any]],
    Callable[[Draw], tuple[Any, ...]],
    tuple[Target, ...],
]


def works() -> dict[str, Work]:
    def line(n: int) -> Callable[[Draw], tuple[Any, ...]]:
        return lambda rng: (
            rng.uniform(0.5, 0.99, STATES).astype(np.float32),
            normal(rng, STATES),
            normal(rng, n),
        )

    def dense(n: int) -> Callable[[Draw], tuple[Any, ...]]:
        return lambda rng: (
            normal(rng, STATES, STATES, scale=0.2),
            normal(rng, STATES),
            normal(rng, n),
        )

    def run(rng: Draw) -> tuple[Any, ...]:
        return weights_of(rng, WIDTH), normal(rng, BATCH, WIDTH), normal(rng, TIME, BATCH, WIDTH)

    def examples(rng: Draw) -> tuple[Any, ...]:
        return (
            network(rng),
            normal(rng, 128, SIZES[0]),
            np.eye(SIZES[-1], dtype=np.float32)[np.arange(128) % SIZES[-1]],
        )

    def grad(f: Callable[..., Any], argnums: Any = 0) -> Callable[[Library], Callable[..., Any]]:
        return lambda lib: lib.grad(lib.bound(f), argnums)

    steps = f"{STEPS:,} steps of {STATES} states"
    network_title = f"tanh RNN, {TIME} steps, ({BATCH}, {WIDTH})"
    all_three = (0, 1, 2)

    def bound(f: Callable[..., Any]) -> Callable[[Library], Callable[..., Any]]:
        return lambda lib: lib.bound(f)

    def per_example(lib: Library) -> Callable[..., Any]:
        return lib.vmap(lib.grad(lib.bound(example_loss)), (None, 0, 0))  # type: ignore[no-any-return]

    def positive(rng: Draw) -> tuple[Any, ...]:
        return (rng.uniform(0.1, 100, 10_000).astype(np.float32),)

    diagonal, full = (f"scan: {kind} recurrence, {steps}" for kind in ("diagonal", "dense"))
    by_line, by_full = (grad(squares(f), all_three) for f in (recurrence, dense_recurrence))
    five, two, half = (Faster(5, "jax"),), (Faster(2, "jax"),), (Faster(1.5, "jax"),)
    newton, each = (
        "while: Newton over a vmapped vector of 10,000",
        "vmap(grad) of the demo's network, batch 128",
    )
    return {
        "scan": (diagonal, bound(recurrence), line(STEPS), five),
        "scan-grad": (f"grad of the squares of {diagonal}", by_line, line(STEPS), two),
        "dense-scan": (full, bound(dense_recurrence), dense(STEPS), five),
        "dense-scan-grad": (f"grad of the squares of {full}", by_full, dense(STEPS), two),
        "rnn-grad": (f"grad of a {network_title}, as scan", grad(squares(rnn)), run, half),
        "newton": (newton, bound(roots), positive, two),
        "per-example": (each, per_example, examples, (Faster(1.2, "jax"),)),
    }


def run(options: Options = USUAL) -> list[Row]:
    rows = [
        measure(work, options) for name, work in works().items() if options.wants("loops", name)
    ]
    if options.wants("loops", "rnn-loop"):
        rows += in_python(options)
    if options.wants("loops", "layers"):
        rows += compile_times(options)
    return rows


def measure(work: Work, options: Options) -> Row:
    title, make, draw, targets = work
    arguments = draw(np.random.default_rng(0))
    calls, ran = {}, ""
    for name, library in libraries().items():
        compiled = library.jit(make(library))
        if name == "ge2":
            calls[name] = partial(compiled, *arguments)
            calls[name]()
            ran = executor_of(compiled, *arguments)
        else:
            moved = library.whole.tree.map(library.xp.asarray, arguments)
            calls[name] = blocked(library, compiled, moved)
    agree(title, calls)
    times = medians(calls, options.rounds_or(ROUNDS), BUDGET)
    return Row(
        title, "seconds", times.pop("ge2"), times, () if options.quick else targets, "float32, C order",
        {"arguments": [str(np.shape(a)) for a in ge2.tree.leaves(arguments)]}, remarks(ran),
    )  # fmt: skip


def blocked(library: Library, compiled: Callable[..., Any], arguments: Any) -> Callable[[], Any]:
    return lambda: library.whole.block_until_ready(compiled(*arguments))


def agree(title: str, calls: Mapping[str, Callable[[], Any]]) -> None:
    results = {
        name: [np.asarray(y) for y in ge2.tree.leaves(list(plain(call())))]
        for name, call in calls.items()
    }
    for name, found in results.items():
        for y, y0 in zip(found, results["ge2"], strict=True):
            largest = np.abs(y0).max()
            np.testing.assert_allclose(
                y, y0, rtol=0, atol=TOLERANCE * largest, err_msg=f"{title}: {name}"
            )


def plain(result: Any) -> Any:
    """Containers of arrays of any library as nested lists."""
    return [plain(y) for y in result] if isinstance(result, list | tuple) else [np.asarray(result)]


def in_python(options: Options) -> list[Row]:
    """The RNN as a Python loop, beside itself as a scan; and its first
    call, in a process of its own.
    """
    arguments = works()["rnn-grad"][2](np.random.default_rng(0))
    library = libraries()["ge2"]
    looped = library.jit(library.grad(library.bound(rnn_in_python)))
    scanned = library.jit(library.grad(library.bound(squares(rnn))))
    calls = {"ge2": partial(looped, *arguments), "scan": partial(scanned, *arguments)}
    times = medians(calls, options.rounds_or(ROUNDS), BUDGET)
    ratio = times["ge2"] / times["scan"]
    ran = remarks(executor_of(looped, *arguments))
    first = first_calls("rnn", options, ["ge2"])["ge2"]
    title = f"grad of the RNN as a Python loop of {TIME} rounds"
    limits = ((), ()) if options.quick else ((AtMost(1.2),), (AtMost(2.0),))
    return [
        Row(f"{title}, over the scan", "times", ratio, {}, limits[0], "float32, C order", {}, ran),
        Row(
            f"{title}: first call, nothing cached",
            "seconds",
            first,
            {},
            limits[1],
            "float32, C order",
        ),
    ]


def compile_times(options: Options) -> list[Row]:
    found = first_calls("layers", options, ["ge2", *installed(["jax"])])
    title = f"{LAYERS} layers of ({BATCH}, {NARROW}) as a Python loop: first call, nothing cached"
    targets = () if options.quick else (Faster(2, "jax"),)
    return [Row(title, "seconds", found.pop("ge2"), found, targets, "float32, C order")]


def first_calls(what: str, options: Options, names: list[str]) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(options.rounds or (1 if options.quick else 5)):
        for name in names:
            with TemporaryDirectory() as folder:
                program = f"from benchmarks import loops; loops.first('{what}', '{name}')"
                said = fresh(program, GE2_CACHE_DIR=str(Path(folder, "ge2"))).said
                times[name].append(json.loads(said))
    return {name: median(each) for name, each in times.items()}


def first(what: str, name: str) -> None:
    """Traces, compiles and calls once; prints the seconds."""
    library, rng = libraries()[name], np.random.default_rng(0)
    if what == "rnn":
        function, arguments = (
            library.grad(library.bound(rnn_in_python)),
            works()["rnn-grad"][2](rng),
        )
    else:
        weights = [
            (normal(rng, NARROW, NARROW, scale=0.7 / NARROW**0.5), normal(rng, NARROW))
            for _ in range(LAYERS)
        ]
        function, arguments = library.bound(layers), (weights, normal(rng, BATCH, NARROW))
    compiled = library.jit(function)
    if name == "ge2":
        print(json.dumps(first_call(compiled, *arguments)))
    else:
        moved = library.whole.tree.map(library.xp.asarray, arguments)
        print(json.dumps(first_call(blocked(library, compiled, moved))))
