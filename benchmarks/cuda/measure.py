"""A work timed beside JAX and torch: the same buffers, output dtypes and
moment, after all have agreed.

A figure is the median time of a call when the GPU is kept busy: many calls are
launched, then waited for.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from random import Random
from statistics import median
from typing import Any

import numpy as np

import ge2
from benchmarks.cuda.exchange import back, leaves, to_jax, to_torch
from benchmarks.cuda.machine import Machine, machine
from benchmarks.cuda.work import Draw, Work, parted
from benchmarks.options import Options
from benchmarks.peers import installed, peer
from benchmarks.record import Failure, Row

ROUNDS, SAMPLE = 9, 0.02  # seconds of work that are launched at once
# over the root of the count: what means of numbers of spread 1 are never apart by, 5.7 sigma
CHANCE = 8.0
Call = Callable[[], Any]
Lines = Iterator[Row | Failure]


def lines(family: str, works: dict[str, Work], options: Options) -> Lines:
    """A row a work; one that fails is reported, and the others go on."""
    at = machine(options.quick)
    titles = {name: work.title for name, work in works.items()}
    return each(family, titles, lambda name: [measure(works[name], options, at)], options, at)


def each(
    family: str,
    titles: Mapping[str, str],
    rows: Callable[[str], Iterable[Row]],
    options: Options,
    at: Machine,
) -> Lines:
    """The rows of each name that is wanted; a failure in their place, under its title."""
    for name, title in titles.items():
        if not options.wants(family, name):
            continue
        began = time.perf_counter()
        try:
            yield from rows(name)
        except Exception as error:  # noqa: BLE001 whatever it is: time on a GPU is not spent twice
            traceback.print_exc()
            yield Failure(title, f"{type(error).__name__}: {error}")
        release(at)
        print(f"  {name}: {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)


def measure(work: Work, options: Options, at: Machine) -> Row:
    numbers, arrays = parted(work.arguments(Draw(options.quick)))
    arrays = tuple(map(at.xp.asarray, arrays))
    notes = {name: note for name, note in work.notes.items() if name in {"ge2", *installed(PEERS)}}
    ours = of_ge2(work, numbers, arrays)
    wanted = [back(at.xp, y) for y in leaves(ours())]
    calls = {"ge2": ours, **peers(work, numbers, arrays, wanted, at, notes)}
    times = rounds(calls, at.wait, options.rounds_or(ROUNDS))
    speed = rate(work, arrays, wanted, times["ge2"])
    notes["ge2"] = "; ".join(filter(None, [speed, notes.get("ge2")]))
    sizes = {"arguments": [*numbers, *(list(x.shape) for x in arrays)]}
    layout = " and ".join(dict.fromkeys(str(x.dtype) for x in arrays))
    targets = () if options.quick else work.targets
    title = f"{work.title} (sizes cut)" if options.quick else work.title
    return Row(title, "seconds", times.pop("ge2"), times, targets, layout, sizes, notes)


def rate(work: Work, arrays: tuple[Any, ...], results: list[Any], seconds: float) -> str:
    """What is worked off a second."""
    if work.summed is not None:
        return f"{2 * results[0].size * arrays[0].shape[work.summed] / seconds / 1e12:.3g} TFLOP/s"
    moved = sum(x.nbytes for x in (*arrays, *results))
    return f"{moved / seconds / 1e9:.0f} GB/s of arguments and results"


def release(at: Machine) -> None:
    at.release()
    torch = sys.modules.get("torch")
    if torch is not None and at.is_gpu:
        torch.cuda.empty_cache()


# ----------------------------------------------------------------------------------- the candidates


def of_ge2(work: Work, numbers: tuple[int, ...], arrays: tuple[Any, ...]) -> Call:
    compiled = ge2.jit(partial(work.function, ge2, np, *numbers))
    return lambda: compiled(*arrays)


def of_jax(work: Work, numbers: tuple[int, ...], arrays: tuple[Any, ...]) -> Call | None:
    jax = peer("jax")
    if jax is None:
        return None
    jax.config.update("jax_enable_x64", True)  # so that it returns the same dtypes
    compiled = jax.jit(partial(work.function, jax, jax.numpy, *numbers))
    given = [to_jax(jax, x) for x in arrays]
    return lambda: compiled(*given)


def of_torch(work: Work, numbers: tuple[int, ...], arrays: tuple[Any, ...]) -> Call | None:
    torch = peer("torch")
    if torch is None or work.torch is None:
        return None
    torch.set_float32_matmul_precision("high" if work.tf32 else "highest")
    products = torch.backends.cuda.matmul
    products.allow_bf16_reduced_precision_reduction = False  # as in ge2 and JAX: sums are float32
    given = [to_torch(torch, x) for x in arrays]
    function = partial(work.torch, torch, *numbers)
    if work.eager:
        return lambda: function(*given)
    torch.compiler.reset()
    compiled = torch.compile(lambda *xs: function(*xs))
    # by what torch does not compile: it would run without any compiled part
    if work.derived is not None:
        compiled = partial(work.derived, torch, compiled)
    return lambda: compiled(*given)


PEERS = {"jax": of_jax, "torch": of_torch}


def peers(
    work: Work,
    numbers: tuple[int, ...],
    arrays: Any,
    wanted: list[Any],
    at: Machine,
    notes: dict[str, str],
) -> dict[str, Call]:
    """Those that are there and compute the same; a note tells of others."""
    found = {}
    for name, make in PEERS.items():
        try:
            call = make(work, numbers, arrays)
            if call is None:
                continue
            agree(work, name, [back(at.xp, y) for y in leaves(call())], wanted)
        except Exception as error:  # noqa: BLE001 such as a version without this function: ours is timed all the same
            traceback.print_exc()
            notes[name] = f"left out, {type(error).__name__}: {str(error).partition(chr(10))[0]}"
            continue
        found[name] = call
        if name == "torch" and work.eager:
            notes[name] = "; ".join(filter(None, ["runs uncompiled", notes.get(name)]))
    return found


def agree(work: Work, name: str, found: list[Any], wanted: list[Any]) -> None:
    """AssertionError, naming the candidate, unless it computed the same."""
    assert len(found) == len(wanted), (
        f"{work.title}: {name} has {len(found)} results, not {len(wanted)}"
    )
    for y, w in zip(found, wanted, strict=True):
        got, asked = (f"{x.dtype}{list(x.shape)}" for x in (y, w))
        assert got == asked, f"{work.title}: {name} returns {got}, not {asked}"
        if work.random:
            worst, largest = max(abs(float(f(y)) - float(f(w))) for f in (mean, spread)), 1.0
            tolerance = CHANCE / float(w.size) ** 0.5
        else:
            worst, largest = difference(y, w)
            tolerance = work.tolerance
        assert worst <= tolerance * largest, f"{work.title}: {name} differs by {worst} of {largest}"


def mean(y: Any) -> Any:
    return y.mean(dtype=np.float64)


def spread(y: Any) -> Any:
    return y.std(dtype=np.float64)


def difference(y: Any, w: Any) -> tuple[float, float]:
    """How far arrays are apart, and the largest number of the second."""
    y, w = (x.astype(np.float32) if x.dtype.itemsize < 4 else x for x in (y, w))
    return float(abs(y - w).max()), float(abs(w).max())


# ---------------------------------------------------------------------------------------- the times


def rounds(calls: dict[str, Call], wait: Callable[[], Any], count: int) -> dict[str, float]:
    """Interleaved: every candidate meets the same machine."""
    repeats = {name: calls_of(sample(call, 3, wait)) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    names, order = [*calls], Random(0)
    for _ in range(count):
        for name in order.sample(names, len(names)):
            times[name].append(sample(calls[name], repeats[name], wait))
    return {name: median(found) for name, found in times.items()}


def calls_of(seconds: float) -> int:
    """How many calls of so many seconds are launched at once."""
    return 1 if seconds > 10 * SAMPLE else max(3, round(SAMPLE / seconds))


def sample(call: Call, repeats: int, wait: Callable[[], Any]) -> float:
    finish(call(), wait)
    began = time.perf_counter()
    for _ in range(repeats - 1):
        call()
    finish(call(), wait)
    return (time.perf_counter() - began) / repeats


def finish(result: Any, wait: Callable[[], Any]) -> None:
    """Waits for the GPU; JAX may launch from a thread of its own, so its
    results are asked first.
    """
    for leaf in leaves(result):
        if hasattr(leaf, "block_until_ready"):
            leaf.block_until_ready()
    wait()
