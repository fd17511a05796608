"""A GPU without memory: what is idle is given back, and then an error says what
is large, what would help.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import ge2
import tests.fake_cupy as fake
from ge2.base.errors import MemoryLimitError, OutOfMemoryError
from ge2.base.source import Ge2Warning
from ge2.compile.catalog import MARGIN
from ge2.targets.cuda.load import gpu as device
from ge2.targets.cuda.load.arena import Scratch
from tests.together import needs_compiler

pytestmark = needs_compiler
KB = 1024
F32 = np.dtype(np.float32)


class Ledger:
    """A GPU's memory: what the arrays of programs and their scratch take of it."""

    def __init__(self, room: int) -> None:
        self.room, self.spared, self.kept = room, 0, 0

    def take(self, nbytes: int) -> None:
        if nbytes + self.kept > self.room:
            raise MemoryError(f"Out of memory allocating {nbytes:,} bytes")

    def free(self) -> None:
        self.spared += 1
        self.kept = 0

    def memory(self) -> tuple[int, int]:
        return self.room - self.kept, 10 * self.room


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    found = Ledger(1 << 40)
    make = fake.ndarray.__init__

    def limited(self: Any, shape: Any, dtype: Any = float, memptr: Any = None, *more: Any) -> None:
        if memptr is None:
            found.take(int(np.prod(shape)) * np.dtype(dtype).itemsize)
        make(self, shape, dtype, memptr, *more)

    with fake.stand_in(monkeypatch) as xp:
        monkeypatch.setattr(fake.ndarray, "__init__", limited)
        gpu: Any = device.gpu(0)

        def empty(nbytes: int) -> Any:
            found.take(nbytes)
            return xp.empty(nbytes, np.uint8)

        gpu.scratch = Scratch(empty, lambda: 0, free=found.free)
        gpu.memory = found.memory
        yield found


def arrays(*shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(0)
    return [fake.array(rng.standard_normal(s).astype(F32)) for s in shapes]


def deep(w: Any, x: Any) -> Any:
    for _ in range(8):
        x = np.tanh(x @ w)
    return (x * x).sum()


def layered(w: Any, x: Any) -> Any:
    """Products, whose values wait for the way back."""
    return ge2.grad(deep)(w, x)


def test_results_are_made_when_others_gave_back(ledger: Ledger) -> None:
    f, (x,) = ge2.jit(lambda x: (np.tanh(x), x * 2)), arrays((64, 64))
    wanted = f(x)
    ledger.room, ledger.kept = 20 * KB, 10 * KB
    for y, z in zip(f(x), wanted, strict=True):
        np.testing.assert_array_equal(y.get(), z.get())
    assert ledger.spared == 1


def test_scratch_is_made_when_others_gave_back(ledger: Ledger) -> None:
    w, x = arrays((32, 32), (64, 32))
    wanted = ge2.jit(layered)(w, x).get()
    device.gpu(0).scratch.release()
    ledger.room, ledger.kept = 1 << 20, 1 << 20
    np.testing.assert_array_equal(ge2.jit(layered)(w, x).get(), wanted)
    assert ledger.spared == 1


def test_a_donated_array_is_whole_when_results_are_made_again(ledger: Ledger) -> None:
    """Results are made before anything is launched, so nothing was overwritten."""

    def step(w: Any, x: Any) -> Any:
        w = w - np.tanh(w)
        return w, x.sum(0) + w[0]

    f = ge2.jit(step, donate_argnums=0)
    w, x = arrays((64, 64), (64, 64))
    wanted = step(w.get(), x.get())
    f(*arrays((64, 64), (64, 64)))
    ledger.room = ledger.kept = 2 * KB
    for y, z in zip(f(w, x), wanted, strict=True):
        np.testing.assert_allclose(y.get(), z, rtol=1e-5, atol=1e-5)
    assert ledger.spared == 1


def test_a_kernel_with_less_scratch_is_taken(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ge2.base.source._said", set())
    f, (x,) = ge2.jit(lambda x: np.cumsum(x, 0)), arrays((1024, 64))
    wanted, low = f(x).get(), f.lower(x)
    assert "blocks share lines" in str(*low.choices.values())
    device.gpu(0).scratch.release()

    def take(nbytes: int) -> None:
        if 8 * KB < nbytes < 64 * KB:  # the scratch, and not the result
            raise MemoryError(f"Out of memory allocating {nbytes:,} bytes")

    ledger.take = take  # type: ignore[method-assign]
    with pytest.warns(Ge2Warning) as told:
        found = f(x), f(x)
    for y in found:
        np.testing.assert_allclose(y.get(), wanted, rtol=1e-4, atol=1e-4)
    said = "the kernel scan in CUDA, blocks share lines for cumsum needs 12.0 KB of scratch; "
    said += "scan in CUDA, whole lines, none, is taken"
    executable = f.lower(x).executable
    assert len(told) == 1 and said in str(told[0].message) and said in executable.report()
    assert "scan in CUDA, whole lines, for want of memory" in str(*executable.choices.values())


def test_where_no_kernel_needs_less_the_error_stays(ledger: Ledger) -> None:
    f, (x,) = ge2.jit(lambda x: x.sum(0)), arrays((4096, 64))
    f(x)
    device.gpu(0).scratch.release()
    assert "own0 of reduce" in failing(ledger, f, x, room=4 * KB)


def failing(ledger: Ledger, f: Any, *args: Any, room: int = 0) -> str:
    ledger.room = room
    with pytest.raises(OutOfMemoryError) as caught:
        f(*args)
    ledger.room = 1 << 40
    f(*args)  # and it works when there is memory
    return str(caught.value)


def test_the_error_says_what_is_large_and_where(ledger: Ledger) -> None:
    f, (w, x) = ge2.jit(layered), arrays((32, 32), (256, 32))
    f(w, x)
    device.gpu(0).scratch.release()
    said = failing(ledger, f, w, x, room=8 * KB)
    first, second, *rest = said.split("\n")
    assert first.startswith("layered finds no memory: a call takes ")
    assert first.endswith("H200 has 8.0 KB free of 80.0 KB")
    assert second.startswith("  Out of memory allocating ")
    assert rest[0].startswith("  the largest arrays at step ") and "where most is in use" in rest[0]
    rows = [line.split() for line in rest[1:9]]
    assert all(row[1:3] == ["32.0", "KB"] for row in rows)
    assert {row[3] for row in rows} <= {"arena", "argument"}
    assert sum("test_shortage.py" in line and "in deep" in line for line in rest) >= 7
    assert any(line.startswith("  arguments 36.0 KB, outputs 4.0 KB") for line in rest)
    assert rest[-1].startswith("  try  ")


def test_the_error_names_the_checkpoint_that_fits(ledger: Ledger) -> None:
    """And with that limit there is enough."""
    f, (w, x) = ge2.jit(layered), arrays((32, 32), (256, 32))
    needed, wanted = f.lower(w, x).memory_analysis().peak, f(w, x).get()
    device.gpu(0).scratch.release()
    room = int(needed * 0.75 / MARGIN)
    said = failing(ledger, f, w, x, room=room)
    fix = said.split("\n")[-1]
    assert "in jit: about" in fix and "again, as ge2.checkpoint around that would" in fix
    assert "test_shortage.py" in fix and "in deep" in fix
    limit = fix.split("memory_limit=")[1].split("'")[1]
    limited = ge2.jit(layered, memory_limit=limit)
    device.gpu(0).scratch.release()
    ledger.room = room
    np.testing.assert_allclose(limited(w, x).get(), wanted, rtol=1e-5)


def test_where_no_checkpoint_fits_others_are_named(ledger: Ledger) -> None:
    f, (w, x) = ge2.jit(lambda w, x: w + np.tanh(x)), arrays((64, 64), (64, 64))
    f(w, x)
    said = failing(ledger, f, w, x, room=KB)
    assert said.endswith(
        "  try  smaller arrays, or donate_argnums for arguments that are not used again, "
        "as a:f32[64,64], b:f32[64,64]"
    )


def test_a_program_with_a_limit_says_so(ledger: Ledger) -> None:
    f = ge2.jit(layered, memory_limit="1 MB")
    w, x = arrays((32, 32), (256, 32))
    f(w, x)
    device.gpu(0).scratch.release()
    assert "a smaller memory_limit or smaller arrays" in failing(ledger, f, w, x)


def test_memory_that_came_back_since(ledger: Ledger) -> None:
    """What failed was another allocation than the program's own, and then there is enough."""
    f, (x,) = ge2.jit(lambda x: x * 2), arrays((64, 64))
    f(x)
    tries = []

    def take(nbytes: int) -> None:
        tries.append(nbytes)
        if len(tries) < 4:  # a call in C has Python try again
            raise MemoryError

    ledger.take = take  # type: ignore[method-assign]
    with pytest.raises(OutOfMemoryError, match="the call again: memory was given back since"):
        f(x)
    f(x)


def test_constants_are_sent_when_others_gave_back(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    (x,) = arrays((2048,))
    send, met = fake.array, list[int]()

    def failing_once(*args: Any, **kwargs: Any) -> Any:
        if not met:
            met.append(1)
            raise MemoryError
        return send(*args, **kwargs)

    monkeypatch.setattr(device.gpu(0).xp, "array", failing_once)
    y = ge2.jit(lambda x: x[::-1] + np.cos(np.arange(2048, dtype=np.float32)))(x)
    np.testing.assert_allclose(
        y.get(), x.get()[::-1] + np.cos(np.arange(2048, dtype=F32)), rtol=1e-5
    )
    assert met and ledger.spared == 1


def test_what_cupy_computes_is_computed_again(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    (x,), xp, met = arrays((300,)), device.gpu(0).xp, list[int]()
    search = xp.searchsorted

    def failing_once(*args: Any, **kwargs: Any) -> Any:
        met.append(1)
        if len(met) == 1:
            raise MemoryError
        return search(*args, **kwargs)

    monkeypatch.setattr(xp, "searchsorted", failing_once)
    edges = fake.array(np.linspace(-2, 2, 9).astype(F32))
    found = ge2.jit(lambda edges, x: np.searchsorted(edges, x))(edges, x)
    np.testing.assert_array_equal(found.get(), np.searchsorted(edges.get(), x.get()))
    assert (len(met), ledger.spared) == (2, 1)


def test_an_error_that_was_handled_keeps_no_arrays(ledger: Ledger) -> None:
    """Whoever goes on with a smaller batch needs that memory, and not when
    the collector comes by.
    """
    f, (x,) = ge2.jit(lambda x: x * 2), arrays((64, 64))
    f(x)
    seen, room = weakref.ref(x), ledger.room
    gc.collect()
    gc.disable()
    try:
        ledger.room = 0
        with suppress(OutOfMemoryError):
            f(x)
        del x
        assert seen() is None
    finally:
        gc.enable()
        ledger.room = room


def test_the_error_is_one_of_memory_and_keeps_the_cause(ledger: Ledger) -> None:
    f, (x,) = ge2.jit(lambda x: x * 2), arrays((64, 64))
    f(x)
    ledger.room = 0
    with pytest.raises(MemoryError) as caught:
        f(x)
    assert isinstance(caught.value, MemoryLimitError)
    assert "Out of memory allocating 16,384 bytes" in str(caught.value.__cause__)
    assert not any(
        isinstance(v, fake.ndarray)
        for v in frames_after(caught.value.__cause__)  # the arrays of the failed call are not kept
    )


def frames_after(error: BaseException | None) -> list[Any]:
    """What the frames of generated text hold."""
    found, trace = [], error.__traceback__ if error else None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith("<ge2 kernel"):
            found += trace.tb_frame.f_locals.values()
        trace = trace.tb_next
    return found


def test_other_errors_stay_what_they_are(ledger: Ledger) -> None:
    def wrong(x: Any) -> Any:
        raise ValueError("not memory")

    def f(x: Any) -> Any:
        return ge2.pure_callback(wrong, ge2.ShapeDtypeStruct(x.shape, x.dtype), x)

    with pytest.raises(Exception, match="not memory") as caught:
        ge2.jit(f)(*arrays((4,)))
    assert not isinstance(caught.value, OutOfMemoryError)
