"""The demo's step with nothing cached, on two cores: NVRTC for all its kernels, and its first call.

To compile needs no GPU; the first call, and what JAX takes for its own, do.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.cuda.machine import has_gpu
from benchmarks.fresh import fresh
from benchmarks.options import USUAL, Options
from benchmarks.peers import installed
from benchmarks.record import AtMost, Row

CORES, ROUNDS, FIRST_CALLS = 2, 3, 2
ARCHITECTURE = "sm_90a"  # without a GPU
START = f"""
import os
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:{CORES}])
import json
import time
import numpy as np
rng = np.random.default_rng(0)
"""
COMPILE = """
import ge2
from ge2.targets.cuda.load import driver
from ge2.targets.cuda.load.nvrtc import Order, compile_all
from ge2.targets.cuda.emulator import OfflineDevice, limits_of
from ge2.cli.show import assemblers
from ge2.cli.demo import BATCH, SIZES, start, train_step
from ge2.compile import compile_graph
x = rng.random((BATCH, SIZES[0]), np.float32)
y = rng.integers(0, SIZES[-1], BATCH)
found = driver()
arch = found.gpus[0].architecture if found and found.gpus else {architecture!r}
began = time.perf_counter()
graph = ge2.make_jaxpr(train_step)(start(), x, y).graph
executable = compile_graph(graph, device=OfflineDevice(limits_of(arch)))
sources = {{source.text() for each in assemblers(executable) for source in each.kernels.sources.values()}}
written = time.perf_counter()
binaries = compile_all([Order(source, arch) for source in sorted(sources)])
ended = time.perf_counter()
assert all(binary.seconds for binary in binaries), "a kernel was found in a cache"
of_all = sum(binary.seconds for binary in binaries)
print(json.dumps(dict(
    seconds=ended - written, writing=written - began, each=of_all, kernels=len(binaries), arch=arch)))
"""
FIRST = """
{import_library}
from {digits} import BATCH, SIZES, start, train_step
put = {put}
state = {state}
x, y = put(rng.random((BATCH, SIZES[0]), np.float32)), put(rng.integers(0, SIZES[-1], BATCH))
float(x.sum())  # the device is started
step = {library}.jit(train_step)
began = time.perf_counter()
state, loss = step(state, x, y)
loss = float(loss)
print(json.dumps(dict(seconds=time.perf_counter() - began)))
"""
PROGRAMS = {
    "compile": START + COMPILE.format(architecture=ARCHITECTURE),
    "ge2": START
    + FIRST.format(
        import_library="import cupy\nimport ge2",
        digits="ge2.cli.demo",
        put="cupy.asarray",
        state="ge2.tree.map(lambda x: put(x) if isinstance(x, np.ndarray) else x, start())",
        library="ge2",
    ),
    "jax": START
    + FIRST.format(
        import_library="import jax",
        digits="benchmarks.digits_in_jax",
        put="jax.numpy.asarray",
        state="start()",
        library="jax",
    ),
}
LAYOUT = "float32 and int64, C order"


def run(options: Options = USUAL) -> Iterator[Row]:
    turns = options.rounds or (1 if options.quick else ROUNDS)
    theirs = ["jax"] if has_gpu() and installed(["jax"]) else []
    peers = {name: first_call(name, min(turns, FIRST_CALLS)) for name in theirs}
    if options.wants("nvrtc", "compile"):
        yield compiled([in_no_cache("compile") for _ in range(turns)], peers)
    if options.wants("nvrtc", "first-call") and has_gpu():
        title = f"the demo's step, first call on {CORES} cores, nothing cached"
        yield Row(title, "seconds", first_call("ge2", min(turns, FIRST_CALLS)), peers, (), LAYOUT)


def first_call(name: str, turns: int) -> float:
    return median(float(in_no_cache(name)["seconds"]) for _ in range(turns))


def compiled(found: list[dict[str, Any]], peers: dict[str, float]) -> Row:
    about, cores = found[0], len(os.sched_getaffinity(0))
    seconds, writing, each = (
        median(one[key] for one in found) for key in ("seconds", "writing", "each")
    )
    said = f"{about['kernels']} kernels for {about['arch']}, {each:.2f} s one after another"
    notes = {
        "ge2": f"{said}; besides, {writing:.2f} s to trace, differentiate, fuse and write them"
    }
    if peers:
        notes["jax"] = "takes this for its whole first call of the step"
    title = f"NVRTC for all kernels of the demo's step on {min(CORES, cores)} cores"
    sizes = {"kernels": about["kernels"], "architecture": about["arch"]}
    return Row(title, "seconds", seconds, peers, (AtMost(1.5),), LAYOUT, sizes, notes)


def in_no_cache(name: str) -> dict[str, Any]:
    """What a program says, in a process of its own, where nothing is cached."""
    with TemporaryDirectory() as folder:
        variables = {
            "GE2_CACHE_DIR": str(Path(folder, "ge2")),
            "CUDA_CACHE_DISABLE": "1",
            "JAX_ENABLE_COMPILATION_CACHE": "false",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        }
        said: dict[str, Any] = json.loads(fresh(PROGRAMS[name], **variables).said.splitlines()[-1])
        return said
