"""How long it takes to compile one graph of 25 fused regions, no two alike, with nothing cached."""

from __future__ import annotations

import json
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.fresh import fresh
from benchmarks.options import USUAL, Options
from benchmarks.peers import installed
from benchmarks.ran import executor_of, remarks
from benchmarks.record import AtMost, Row

WIDTH = 64
INNER = (
    lambda xp, z: xp.tanh(z),
    lambda xp, z: xp.sqrt(1 + z * z),
    lambda xp, z: xp.exp(-z * z),
    lambda xp, z: xp.log1p(xp.abs(z)),
    lambda xp, z: xp.maximum(z, 0.1 * z),
)
OUTER = (
    lambda xp, z: 0.5 * z + 0.1,
    lambda xp, z: z * xp.sin(z),
    lambda xp, z: xp.where(z > 0, z, -0.2 * z),
    lambda xp, z: z / (1 + xp.abs(z)),
    lambda xp, z: xp.minimum(z * z, 2.0) - z,
)
REGIONS = len(INNER) * len(OUTER)


def chain(x: Any, weights: Any, xp: ModuleType = np) -> Any:
    """Every inner with every outer function; a matrix product ends each region."""
    for i in range(REGIONS):
        inner, outer = INNER[i // len(OUTER)], OUTER[i % len(OUTER)]
        x = outer(xp, inner(xp, x @ weights))
    return x


def run(options: Options = USUAL) -> list[Row]:
    names = ["ge2", *installed(["jax"])]
    times: dict[str, list[float]] = {name: [] for name in names}
    ran = ""
    for _ in range(options.rounds or (1 if options.quick else 3)):
        for name in names:
            found = in_new_cache(name)
            times[name].append(found["seconds"])
            ran = found.get("ran", ran)
    others = {name: median(each) for name, each in times.items()}
    sizes = {"regions": REGIONS, "x": [WIDTH, WIDTH]}
    title = f"{REGIONS} fused regions: first call, nothing cached"
    ours, layout = others.pop("ge2"), "float32, C order"
    return [Row(title, "seconds", ours, others, (AtMost(1.2),), layout, sizes, remarks(ran))]


def in_new_cache(name: str) -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        program = f"from benchmarks import regions; regions.in_{name}()"
        found: dict[str, Any] = json.loads(
            fresh(program, GE2_CACHE_DIR=str(Path(folder, "ge2"))).said
        )
    assert found.get("regions", REGIONS) >= REGIONS, f"{found['regions']} regions"
    return found


def in_ge2() -> None:
    import ge2

    x, weights = arguments()
    compiled = ge2.jit(chain)
    seconds = first_call(compiled, x, weights)
    regions = compiled.lower(x, weights).regions
    ran = executor_of(compiled, x, weights)
    print(json.dumps({"seconds": seconds, "regions": regions, "ran": ran}))


def in_jax() -> None:
    import jax

    compiled = jax.jit(lambda x, weights: chain(x, weights, jax.numpy))
    x, weights = map(jax.numpy.asarray, arguments())
    seconds = first_call(lambda *a: jax.block_until_ready(compiled(*a)), x, weights)
    print(json.dumps({"seconds": seconds}))


def first_call(function: Any, *arguments: Any) -> float:
    began = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - began


def arguments() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((WIDTH, WIDTH), np.float32) / np.float32(WIDTH) ** np.float32(0.5)
    return rng.standard_normal((WIDTH, WIDTH), np.float32), weights
