"""Makes the record of measurements that ships with ge2, on the device that it is for.

    python -m benchmarks.tune_gpu                # the GPU that is here, else the processor
    python -m benchmarks.tune_gpu --budget 500 --out FOLDER   # seconds at most; in place of the package
    python -m benchmarks.tune_gpu --workers 4    # compile and check side by side, race in turns

Each problem is a line of NumPy at a few sizes: one for each class that programs are likely to have.
They are written from the families of kernels alone; no program of `benchmarks/programs` is among
them. What was measured goes to `ge2/choice/shipped/DEVICE.jsonl`: a line that says how, one with the
limits of the device, one with how far predictions are off, then one a class of problems, with
device, driver, library versions, medians and spreads. `ge2.choice.record` reads it below what a
user measured.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import ge2
from ge2.base.config import config
from ge2.choice import SHIPPED, probed, record, shipped_name
from ge2.choice.record import Entry
from ge2.compile.race import on_stderr, tune

Function = Callable[..., Any]
ROWS = ((64, 1 << 16), (4096, 1024), (1 << 16, 64), (1 << 20, 8), (4099, 1000))
SQUARES = (64, 256, 1024, 4096)
LAYERS = (
    (64, 1024, 1024), (8192, 768, 3072), (8192, 3072, 768), (4096, 4096, 1024), (4096, 4096, 8192),
    (4096, 10, 784), (256, 1024, 784),
)  # fmt: skip
FLOATS = ("bfloat16", "float32", "float16", "float64")


def softmax(x: Any) -> Any:
    y = np.exp(x - x.max(-1, keepdims=True))
    return y / y.sum(-1, keepdims=True)


def normed(x: Any) -> Any:
    away = x - x.mean(-1, keepdims=True)
    return away / np.sqrt((away * away).mean(-1, keepdims=True) + 1e-5)


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3)))


def standardised(x: Any) -> Any:
    return (x - x.mean(0)) / x.std(0)


BY_ROWS: dict[str, Function] = {
    "softmax": softmax,
    "normed": normed,
    "standardised": standardised,
    "sum of rows": lambda x: x.sum(1),
    "sum of columns": lambda x: x.sum(0),
    "largest of rows": lambda x: x.argmax(1),
    "sum of all": lambda x: (x * x).sum(),
    "elementwise": lambda x: np.tanh(x) * x + 1,
    "turned": lambda x: x.T.copy() * 2,
    "running sums": lambda x: np.cumsum(x, 1),
    "running sums of columns": lambda x: np.cumsum(x, 0),
    "sorted": lambda x: np.sort(x, 1),
    "largest": lambda x: ge2.lax.top_k(x, 8)[0],
}
PRODUCTS: dict[str, Function] = {
    "product": lambda a, b: a @ b,
    "by a turned one": lambda a, b: a @ b.T.copy().T,
    "of a turned one": lambda a, b: a.T.copy().T @ b,
    "of sums": lambda a, b: np.tanh(a @ b),
}
BIASED: dict[str, Function] = {
    "bias": lambda x, w, b: x @ w + b,
    "relu": lambda x, w, b: np.maximum(x @ w + b, 0),
    "gelu": lambda x, w, b: gelu(x @ w + b),
    "gradients of gelu": lambda x, w, b: ge2.grad(
        lambda *xs: gelu(xs[0] @ xs[1] + xs[2]).sum(), (0, 1, 2)
    )(x, w, b),
}
INDEXED: dict[str, Function] = {
    "rows at indices": lambda x, i: x[i],
    "sums at indices": lambda x, i: np.zeros_like(x).at[i].add(x[i]),
}


def struct(shape: tuple[int, ...], dtype: str) -> Any:
    return ge2.ShapeDtypeStruct(shape, ge2.bfloat16 if dtype == "bfloat16" else np.dtype(dtype))


def problems() -> Iterator[tuple[str, Function, tuple[Any, ...]]]:
    """Names, functions and arguments: what programs have most often comes first."""
    for dtype in FLOATS:
        for m, k, n in LAYERS:
            x, w, b = struct((m, k), dtype), struct((k, n), dtype), struct((n,), dtype)
            for name, f in BIASED.items():
                yield f"{name}, {dtype} {m}x{k}x{n}", f, (x, w, b)
        for n in SQUARES:
            pair = struct((n, n), dtype), struct((n, n), dtype)
            for name, f in PRODUCTS.items():
                yield f"{name}, {dtype} {n}", f, pair
        for shape in ROWS:
            for name, f in BY_ROWS.items():
                yield f"{name}, {dtype} {shape}", f, (struct(shape, dtype),)
        batch = struct((256, 64, 64), dtype)
        yield f"products, {dtype}", PRODUCTS["product"], (batch, batch)
    for shape in ((50000, 256), (1 << 20, 4)):
        for name, f in INDEXED.items():
            for count in (1 << 12, 1 << 17):
                given = struct(shape, "float32"), struct((count,), "int32")
                yield f"{name}, {shape} {count}", f, given


def measured(budget: float, device: Any, part: int = 0, parts: int = 1) -> None:
    """Races for all problems, or for every `parts`-th from the `part`-th on."""
    from ge2.compile import compile_graph
    from ge2.transforms.arguments import make_jaxpr

    end = time.monotonic() + budget
    for name, f, xs in islice(problems(), part, None, parts):
        if time.monotonic() > end:
            print(f"no time is left for {name} and what comes after it", file=sys.stderr)
            break
        try:
            graph = make_jaxpr(f)(*xs).graph
            executable = compile_graph(graph, name="tuned", device=device)
        except ge2.errors.Ge2Error as error:  # a dtype that the function does not take
            print(f"{name}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        tune(executable, end - time.monotonic(), on_stderr)


def by_workers(count: int, folder: str, options: argparse.Namespace) -> None:
    """The same in processes of their own, each of which has a part of the problems. They compile
    and compute references side by side; for a race each waits for its turn, by the folder's lock.
    """
    command = [sys.executable, "-m", "benchmarks.tune_gpu", f"--budget={options.budget}"]
    environment = os.environ | {"GE2_CACHE_DIR": folder}
    workers = [
        subprocess.Popen([*command, "--device=cuda", f"--part={n}/{count}"], env=environment)
        for n in range(count)
    ]
    for worker in workers:
        worker.wait()


def shipped(out: str, how: dict[str, Any]) -> Iterator[tuple[Path, int]]:
    """Writes what the record of this user has, and of other classes what shipped before, into a
    folder: a file each kind of device.
    """
    entries = record.entries()
    for kind in sorted({entry.device for entry in entries}):
        before = map(record.entry_of, record.shipped(kind).splitlines())
        by_class = {entry.problem: entry for entry in before if entry is not None}
        by_class |= {entry.problem: entry for entry in entries if entry.device == kind}
        found = sorted(by_class.values(), key=Entry.line)
        first = next(row for entry in found for row in entry.rows)
        made = how | {"driver": first.driver, "libraries": first.libraries, "classes": len(found)}
        known = probed(kind)
        more = [{"made": made}, *([] if known is None else [{"speed": astuple(known)}])]
        path = Path(out, shipped_name(kind))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(record.text_of(found, *more), encoding="ascii")
        yield path, len(found)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--budget", type=float, default=1200.0, help="seconds (%(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="the GPU if there is one")
    parser.add_argument("--out", default=SHIPPED, help="a folder in place of that of the package")
    parser.add_argument("--workers", type=int, default=1, help="processes (%(default)s); GPU only")
    parser.add_argument("--part", help=argparse.SUPPRESS)  # of a worker: 2/4 is the third of four
    options = parser.parse_args(argv)
    from ge2.cli.kernels import usual

    device = None
    if (options.device or usual()) == "cuda":
        from ge2.targets.cuda.load.gpu import current_gpu

        device = current_gpu()
    if options.part:
        part, parts = map(int, options.part.split("/"))
        with config.using(
            tune="cached", executor="c", threads=max(1, config.thread_count() // parts)
        ):
            measured(options.budget, device, part, parts)
        return 0
    with (
        tempfile.TemporaryDirectory() as folder,  # or else what this user measured would be in it
        config.using(tune="cached", executor="c", cache_dir=folder),
    ):
        if device is not None and options.workers > 1:
            by_workers(options.workers, folder, options)
        else:
            measured(options.budget, device)
        how = {
            "by": "python -m benchmarks.tune_gpu"
            f" --budget {options.budget:g} --workers {options.workers}",
            "ge2": ge2.__version__,
            "when": time.strftime("%Y-%m-%d", time.gmtime()),
        }
        for path, count in shipped(options.out, how):
            print(f"{path}: {count} classes of problems")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
