"""References of large products, whose operands repeat: the same results, of much less work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ge2
from ge2 import compile
from ge2.base.config import config
from ge2.choice import bench as benches
from ge2.choice import bench as repeats
from ge2.choice import record
from ge2.choice.bench import GUARD, Images
from ge2.compile import compile_graph, race
from ge2.compile.executable import Executable
from ge2.ir import Evaluate
from ge2.targets.cuda.emulator import OfflineDevice
from ge2.targets.cuda.limits import H200

RNG = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(race, "LEAST", 1e-6)
    monkeypatch.setattr(compile, "SCALE", 512)
    monkeypatch.setattr(compile, "SIDE", 64)
    monkeypatch.setattr(repeats, "LARGE", 1)
    monkeypatch.setattr(repeats, "PERIOD", 5)
    monkeypatch.setattr(repeats, "FEW", 3)
    monkeypatch.setattr(benches, "DRAWN", 101)
    with config.using(cache_dir=str(tmp_path), threads=1, progress="off"):
        record.forget()
        yield
    record.forget()


def program(f: Any, *shapes: tuple[int, ...], dtype: str = "f4") -> Executable:
    args = [RNG.normal(size=shape).astype(dtype) for shape in shapes]
    with config.using(executor="shim"):
        return compile_graph(ge2.jit(f).trace(*args).entry.graph)


def images_of(made: Executable, name: str = "", signs: bool = True) -> Images:
    steps = [s for s in made.program.steps if s.kind in ("kernel", "matmul")]
    step = next(s for s in steps if name in s.name)
    return Images(made.program, step, signs)


CASES = {
    "two axes": (lambda a, b: np.tensordot(a, b, ((0, 1), (0, 1))), (4, 6, 37), (4, 6, 11)),
    "rows of rows": (lambda a, b: a @ b, (4, 9, 20), (20, 13)),
    "batches": (lambda a, b: a @ b, (6, 16, 24), (6, 24, 21)),
    "few lines": (lambda a, b: a @ b, (2, 30), (30, 40)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_product_of_what_repeats(case: str) -> None:
    f, *shapes = CASES[case]
    found = images_of(program(f, *shapes), "dot")
    assert found.repeats
    given = found.given()
    (wanted,) = Evaluate().apply(found.eqn.op, given)
    np.testing.assert_allclose(found.wanted[0], wanted, rtol=1e-5, atol=1e-5)
    for n, small in found.repeats.items():  # and no further
        lines = repeats.lines_once(given[n], small)
        np.testing.assert_array_equal(given[n], repeats.repeated(lines, given[n].shape))
        assert np.unique(lines).size == lines.size


REGIONS = {
    "an epilogue": lambda a, b, c: np.tanh(a @ b + c[0]),
    "a product that is a result": lambda a, b, c: (y := a @ b, np.tanh(y * 2 + c[0])),
    "a pair": lambda a, b, c: (a @ b) * np.tanh(a @ c),
}


@pytest.mark.parametrize("case", REGIONS)
def test_a_product_and_a_region(case: str) -> None:
    xs = [RNG.normal(size=shape).astype("f2") for shape in ((512, 768), (768, 1024), (768, 1024))]
    graph = ge2.jit(REGIONS[case]).trace(*xs).entry.graph
    found = images_of(compile_graph(graph, device=OfflineDevice(H200)), "contraction")
    assert len(found.repeats) == (3 if case == "a pair" else 2)
    with np.errstate(all="ignore"):
        wanted = Evaluate().apply(found.eqn.op, found.given())
    for y, w in zip(found.wanted, wanted, strict=True):
        np.testing.assert_allclose(y, w, rtol=2e-3, atol=1e-3)


def test_an_operand_that_is_multiplied_by_itself_does_not_repeat() -> None:
    found = images_of(program(lambda a: a.T @ a, (16, 24)), "dot")
    assert not found.repeats
    assert found.wanted[0].shape == (24, 24)


def test_operands_in_one_array_do_not_repeat() -> None:
    made = program(lambda x: x[:, :24] @ x[:, 24:].T, (40, 48))
    found = images_of(made, "dot")
    assert not found.repeats
    (wanted,) = Evaluate().apply(found.eqn.op, found.given())
    np.testing.assert_allclose(found.wanted[0], wanted, rtol=1e-5)


def test_a_race_refuses_a_product_that_is_wrong_in_one_element() -> None:
    found = images_of(program(lambda a, b: a @ b, (32, 24), (24, 48)), "dot")
    memory = {n: each.copy() for n, each in found.bytes.items()}
    (out,) = found.outs
    out.of(memory[id(out.buffer)])[...] = found.wanted[0]
    assert not found.wrong(memory)
    out.of(memory[id(out.buffer)])[7, 33] *= 1.01
    assert "at [7, 33]" in found.wrong(memory)


def test_long_arrays_have_numbers_again() -> None:
    found = images_of(program(lambda a: np.tanh(a) * 2, (30, 40)))
    (x,) = found.given()
    flat = x.reshape(-1)
    np.testing.assert_array_equal(flat[101:202], flat[:101])
    assert np.unique(flat).size == 101


def test_writing_to_an_operand_is_found_where_the_memory_is() -> None:
    made = program(lambda a, b: a @ b, (32, 24), (24, 48))
    bench = next(race.benches(made))
    images = bench.images[0]
    memory = bench.memory(images)
    (out,) = images.outs
    out.of(memory[id(out.buffer)])[...] = images.wanted[0]
    assert not bench.wrong(images, memory)
    for n in memory:
        for at in (0, GUARD - 1, -1):
            memory[n][at] ^= 1
            assert bench.wrong(images, memory) == benches.OUTSIDE
            memory[n][at] ^= 1
    operand = next(n for n in memory if n != id(out.buffer))
    memory[operand][GUARD + 5] ^= 1
    assert bench.wrong(images, memory) == benches.OUTSIDE


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_candidates_are_checked_by_such_a_reference(dtype: str) -> None:
    made = program(lambda a, b, c: np.tanh(a @ b + c), (64, 96), (96, 128), (128,), dtype=dtype)
    tuned = race.tune(made, 60.0)
    assert tuned.races
    for each in tuned.races:
        assert not any(row.failure for row in each.entry.rows), each.entry
