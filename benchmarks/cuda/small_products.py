"""Small products, fifty in a row in a captured graph: by ge2's kernel for them,
by the library, by torch.

A graph launches each when the one before is done, so a figure is what one costs
among the steps of a program.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import ge2
from benchmarks.cuda.exchange import to_torch
from benchmarks.cuda.machine import Machine, machine
from benchmarks.options import USUAL, Options
from benchmarks.peers import peer
from benchmarks.record import Failure, Row
from benchmarks.timing import medians
from ge2.targets.cuda.products.rules import NAME

COUNT, ROUNDS = 50, 41
Call = Callable[[], Any]

# The digits' network 64-256-256-10 with a batch of 128 in IEEE float32, and what is thin in the
# network 784-1024-1024-10 with a batch of 256, where TF32 is allowed: rows x sums x columns,
# turned, precision. fmt: off
SHAPES: dict[str, tuple[int, int, int, str, str | None]] = {
    "small-first": (128, 64, 256, "", None),
    "small-second": (128, 256, 256, "", None),
    "small-third": (128, 256, 10, "", None),
    "small-third-back": (128, 10, 256, "b", None),
    "small-third-weight": (256, 128, 10, "a", None),
    "small-second-back": (128, 256, 256, "b", None),
    "small-second-weight": (256, 128, 256, "a", None),
    "small-first-weight": (64, 128, 256, "a", None),
    "thin-last": (256, 1024, 10, "", "tf32"),
    "thin-last-back": (256, 10, 1024, "b", "tf32"),
    "thin-last-weight": (1024, 256, 10, "a", "tf32"),
}
# fmt: on


def run(options: Options = USUAL) -> Iterator[Row | Failure]:
    at = machine(options.quick)
    for name, shape in SHAPES.items():
        if options.wants("small_products", name):
            try:
                yield measured(name, *shape, options, at)
            except Exception as error:  # noqa: BLE001 whatever it is: time on a GPU is not spent twice
                traceback.print_exc()
                yield Failure(name, f"{type(error).__name__}: {error}")


def measured(
    name: str,
    m: int,
    k: int,
    n: int,
    turned: str,
    precision: str | None,
    options: Options,
    at: Machine,
) -> Row:
    rng = np.random.default_rng(0)
    a, b = (at.xp.asarray(rng.standard_normal(s, np.float32)) for s in ((m, k), (k, n)))
    a, b = (x.T.copy() if role in turned else x for role, x in (("a", a), ("b", b)))

    def product(a: Any, b: Any) -> Any:
        left, right = (x.T if role in turned else x for role, x in (("a", a), ("b", b)))
        return ge2.numpy.matmul(left, right, precision=precision)

    calls = {
        "ge2": ours(product, a, b, ()),
        "library": ours(product, a, b, (NAME,)),
        **theirs(turned, precision, a, b, at),
    }
    wanted = wide(at, a, "a" in turned) @ wide(at, b, "b" in turned)
    for who, call in calls.items():
        found = np.asarray(wide(at, call(), False))
        bound = 5e-3 if precision else 1e-5
        assert abs(found - wanted).max() <= bound * abs(wanted).max(), (
            f"{name}: {who} computes something else"
        )
    times = medians({who: many(call, at) for who, call in calls.items()}, options.rounds_or(ROUNDS))
    times = {who: seconds / COUNT for who, seconds in times.items()}
    how = f", {turned} turned" if turned else ""
    title = f"{m}x{k} @ {k}x{n}{how}, one of {COUNT} in a row"
    print(
        f"  {name}: " + ", ".join(f"{who} {s * 1e6:.2f} us" for who, s in times.items()),
        file=sys.stderr,
        flush=True,
    )
    return Row(
        title,
        "seconds",
        times.pop("ge2"),
        times,
        (),
        f"float32, {precision or 'IEEE'}",
        {"m": m, "k": k, "n": n},
    )


def ours(product: Callable[..., Any], a: Any, b: Any, off: tuple[str, ...]) -> Call:
    compiled = ge2.jit(lambda a, b: product(a, b))

    def call() -> Any:
        with ge2.config.using(passes_off=off):
            return compiled(a, b)

    return call


def theirs(turned: str, precision: str | None, a: Any, b: Any, at: Machine) -> dict[str, Call]:
    torch = peer("torch") if at.is_gpu else None
    if torch is None:
        return {}
    torch.set_float32_matmul_precision("high" if precision else "highest")
    left, right = (
        to_torch(torch, x).T if role in turned else to_torch(torch, x)
        for role, x in (("a", a), ("b", b))
    )
    return {"torch": lambda: left @ right}


def wide(at: Machine, x: Any, turned: bool) -> Any:
    if hasattr(x, "detach"):
        x = x.detach().cpu().numpy()
    found = (x.get() if hasattr(x, "get") else x).astype(np.float64)
    return found.T if turned else found


def many(call: Call, at: Machine) -> Call:
    """Fifty of them: as a graph where there is a GPU."""
    if not at.is_gpu:
        return lambda: [call() for _ in range(COUNT)]
    go = captured(call) if "torch" not in type(call()).__module__ else captured_by_torch(call)

    def waited() -> None:
        go()
        at.wait()

    return waited


def captured(call: Call) -> Call:
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        kept = [call() for _ in range(COUNT)]
        stream.synchronize()
        del kept
        stream.begin_capture()
        held = [call() for _ in range(COUNT)]
        graph = stream.end_capture()

    def go() -> None:
        graph.launch(stream=stream)

    go.held = held  # type: ignore[attr-defined]
    return go


def captured_by_torch(call: Call) -> Call:
    torch = peer("torch")
    assert torch is not None
    graph = torch.cuda.CUDAGraph()
    call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        held = [call() for _ in range(COUNT)]

    def go() -> None:
        graph.replay()

    go.held = held  # type: ignore[attr-defined]
    return go
