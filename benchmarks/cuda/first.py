"""A training step's first call in processes of their own: nothing cached, all
cached, and then another batch.

What is timed is from a process's first line on, in parts; a GPU is started in the one before the
first call. Without a GPU it runs on the CPU, to be tried.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.cuda.machine import has_gpu
from benchmarks.fresh import caches, fresh
from benchmarks.options import USUAL, Options
from benchmarks.peers import installed
from benchmarks.record import AtMost, Row, Target

ROUNDS, OF_PEERS, OTHER = 3, 1, 192  # pairs of processes, ours and a peer's; the other batch
PARTS: Final = ("import", "start", "call", "other")  # what a process times
PROGRAM = """
import time
began = time.perf_counter()
import numpy as np
{imports}
times = {{"import": time.perf_counter() - began}}
import json
from functools import partial
from benchmarks.cuda.programs import BATCH, WIDTHS, adamw, start
began = time.perf_counter()
rng = np.random.default_rng(0)
state, put = start(rng, {put}), {put}
def batch(n):
    return put(rng.standard_normal((n, WIDTHS[0])).astype(np.float32)), put(rng.integers(0, WIDTHS[-1], n))
first, second = batch(BATCH), batch({other})
float(first[0].sum())  # the device is started
times["start"] = time.perf_counter() - began
began = time.perf_counter()
step = {jit}(partial(adamw, {library}, {arrays}), donate_argnums=0)
state, loss = step(state, *first)
loss = float(loss)
times["call"] = time.perf_counter() - began
assert np.isfinite(loss)
{bill}
for _ in range(2):
    state, loss = step(state, *first)
began = time.perf_counter()
state, loss = step(state, *second)
loss = float(loss)
times["other"] = time.perf_counter() - began
assert np.isfinite(loss)
{other_bill}
print(json.dumps(times))
"""
BILL = """
bill = step.report().bill
times["{name}_stages"], times["{name}_kernels"] = dict(bill.stages), [each.how for each in bill.kernels]
"""
LAYOUT = "float32 and int64, C order"


def program(library: str, on_gpu: bool) -> str:
    if library == "jax":
        imports = 'import jax\njax.config.update("jax_default_matmul_precision", "tensorfloat32")'
        return PROGRAM.format(
            imports=imports, put="jax.numpy.asarray", jit="jax.jit", library="jax", arrays="jax.numpy",
            bill="", other_bill="", other=OTHER,
        )  # fmt: skip
    return PROGRAM.format(
        imports="import cupy\nimport ge2" if on_gpu else "import ge2",
        put="cupy.asarray" if on_gpu else "np.asarray", jit="ge2.jit", library="ge2", arrays="np",
        bill=BILL.format(name="call"), other_bill=BILL.format(name="other"), other=OTHER,
    )  # fmt: skip


def run(options: Options = USUAL) -> Iterator[Row]:
    if not any(
        options.wants("first", line) for line in ("nothing-cached", "cached", "other-batch")
    ):
        return
    turns, on_gpu = options.rounds or (1 if options.quick else ROUNDS), has_gpu()
    fresh(
        "import ge2.targets.cuda.assemble, benchmarks.cuda.programs" + (", cupy" if on_gpu else "")
    )  # bytecode
    ours = [processes("ge2", on_gpu) for _ in range(turns)]
    names = installed(["jax"]) if on_gpu else []
    theirs = {name: [processes(name, True) for _ in range(min(turns, OF_PEERS))] for name in names}
    lines = {"nothing-cached": nothing_cached, "cached": cached, "other-batch": other_batch}
    for name, line in lines.items():
        if options.wants("first", name):
            yield from line(ours, theirs, on_gpu and not options.quick)


# what two processes say, the second of which finds all cached
Both = tuple[dict[str, Any], dict[str, Any]]


def processes(library: str, on_gpu: bool) -> Both:
    with TemporaryDirectory() as folder:
        variables = caches(folder) | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        said = [
            fresh(program(library, on_gpu), **variables).said.splitlines()[-1] for _ in range(2)
        ]
        return json.loads(said[0]), json.loads(said[1])


def nothing_cached(
    ours: Sequence[Both], theirs: dict[str, list[Both]], judged: bool
) -> Iterator[Row]:
    def call(found: Sequence[Both]) -> float:
        return median(cold["call"] for cold, _ in found)

    notes = {"ge2": bill_words([cold for cold, _ in ours])}
    title = "MLP step, batch 256: first call, nothing cached"
    yield row(
        title, call(ours), {name: call(found) for name, found in theirs.items()}, 2.0, judged, notes
    )


def cached(ours: Sequence[Both], theirs: dict[str, list[Both]], judged: bool) -> Iterator[Row]:
    def whole(found: Sequence[Both]) -> float:
        return median(sum(warm[part] for part in PARTS[:3]) for _, warm in found)

    notes = {name: words([warm for _, warm in found]) for name, found in theirs.items()}
    notes["ge2"] = bill_words([warm for _, warm in ours])
    title = "MLP step, batch 256: cached, a new process, import and start of the GPU included"
    yield row(
        title,
        whole(ours),
        {name: whole(found) for name, found in theirs.items()},
        0.9,
        judged,
        notes,
    )


def other_batch(ours: Sequence[Both], theirs: dict[str, list[Both]], judged: bool) -> Iterator[Row]:
    def other(found: Sequence[Both]) -> float:
        return median(cold["other"] for cold, _ in found)

    compiled = max(cold["other_kernels"].count("compiled") for cold, _ in ours)
    found = f"{compiled} of {len(ours[0][0]['other_kernels'])} kernels compiled"
    notes = {"ge2": f"{found}; {stages_words([cold['other_stages'] for cold, _ in ours])}"}
    title = f"MLP step, batch 256 to {OTHER}: first call"
    yield row(
        title,
        other(ours),
        {name: other(each) for name, each in theirs.items()},
        0.15,
        judged,
        notes,
    )
    targets = (AtMost(0),)
    yield Row(f"{title}, kernels compiled", "kernels", compiled, {}, targets, LAYOUT)


def row(
    title: str,
    ours: float,
    others: dict[str, float],
    bound: float,
    judged: bool,
    notes: dict[str, str],
) -> Row:
    targets: tuple[Target, ...] = (AtMost(bound),) if judged else ()
    return Row(title, "seconds", ours, others, targets, LAYOUT, {"other batch": OTHER}, notes)


def words(found: Sequence[dict[str, Any]]) -> str:
    """The parts of processes, as medians."""
    return ", ".join(f"{part} {median(one[part] for one in found):.2f} s" for part in PARTS[:3])


def bill_words(found: Sequence[dict[str, Any]]) -> str:
    how = found[0]["call_kernels"]
    kernels = ", ".join(f"{how.count(each)} {each}" for each in sorted(set(how)))
    stages = stages_words([one["call_stages"] for one in found])
    return f"{words(found)}; kernels: {kernels}; {stages}"


def stages_words(found: Sequence[dict[str, float]]) -> str:
    """What stages of a first call took, in milliseconds."""
    medians = {stage: median(one.get(stage, 0.0) for one in found) for stage in found[0]}
    return ", ".join(f"{stage} {seconds * 1e3:.0f}" for stage, seconds in medians.items()) + " ms"
