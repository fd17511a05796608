"""Programs that were not written for ge2 compute what NumPy computes, on every executor."""

from __future__ import annotations

import numpy as np
import pytest

import ge2
from benchmarks import programs as suite
from benchmarks.cuda import suite as on_a_gpu
from benchmarks.options import Options
from benchmarks.programs.program import Draw, Program
from benchmarks.record import Failure, Row
from ge2.base.config import config
from tests.backends.compilers import needs_compiler

PROGRAMS = {each.name: each for each in suite.programs()}
EXECUTORS = [pytest.param("c", marks=needs_compiler), "blocked", "shim"]
LONG = {"sinkhorn"}  # six seconds in the emulator
OFTEN_CALLED = {"gram-schmidt", "kalman-filters"}  # seconds to trace, whatever the sizes are


def test_there_are_a_hundred_in_ten_groups() -> None:
    groups = [each.group for each in PROGRAMS.values()]
    assert [*dict.fromkeys(groups)] == [*suite.GROUPS]
    assert len(groups) >= 100
    assert min(map(groups.count, suite.GROUPS)) >= 10


@pytest.mark.exhaustive("executor")
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in OFTEN_CALLED])
def test_each_is_as_numpy(name: str, executor: str) -> None:
    """In the emulator at its own size: kernels of few elements are not those that a GPU runs."""
    program = PROGRAMS[name]
    small = executor != "shim" or bool(program.by) or name in LONG
    arguments = program.arguments(Draw(small))
    with config.using(executor=executor):
        found = suite.leaves(ge2.jit(program.for_ge2())(*arguments))
    for y, y0 in zip(found, wanted(program, arguments), strict=True):
        assert (y.shape, y.dtype) == (y0.shape, y0.dtype)
        assert suite.agree(y, y0, program.tolerance)


def wanted(program: Program, arguments: tuple) -> list:
    """NumPy's results; derivatives are those of float64, by differences."""
    if not program.by:
        return suite.leaves(program(*arguments))
    exact = [np.asarray(a, np.float64) if np.asarray(a).dtype.kind == "f" else a for a in arguments]
    return [by_differences(program, exact, i).astype(arguments[i].dtype) for i in program.by]


def by_differences(program: Program, arguments: list, i: int) -> np.ndarray:
    """Central differences, element by element."""
    found = np.zeros(arguments[i].shape)
    for at in np.ndindex(found.shape):
        ends = []
        for h in (1e-6, -1e-6):
            moved = [*arguments]
            moved[i] = arguments[i].copy()
            moved[i][at] += h
            ends.append(float(program(*moved)))
        found[at] = (ends[0] - ends[1]) / 2e-6
    return found


def test_a_row_and_the_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.peers.find_spec", lambda name: None)
    asked = frozenset({"integer-matrices", "seam-energy"})
    *rows, both, unbound = suite.run(Options(quick=True, rounds=1, only=asked))
    assert [row.work for row in rows] == ["recursions: seam-energy", "integers: integer-matrices"]
    assert all(isinstance(row, Row) and row.ours > 0 and "numpy" in row.others for row in rows)
    assert both.others == unbound.others


def test_what_fails_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.peers.find_spec", lambda name: None)
    broken = Program(lambda x: np.linalg.nothing(x), lambda d: (d.normal(3),), 0.0, "", ())
    found = suite.line(broken, Options(quick=True))
    assert isinstance(found, Failure)
    assert "AttributeError" in found.reason


def test_the_same_programs_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried by NumPy's arrays where there is no GPU."""
    monkeypatch.setattr("benchmarks.peers.find_spec", lambda name: None)
    monkeypatch.setattr("benchmarks.cuda.machine.driver", lambda: None)
    asked = Options(quick=True, rounds=1, only=frozenset(("finance",)))
    *rows, mean, _ = on_a_gpu.run(asked)
    names = [f"finance: {p.name}" for p in suite.programs(("finance",))]
    assert [row.work for row in rows] == names
    assert all(isinstance(row, Row) and row.ours > 0 for row in rows)
    assert "geometric mean" in mean.work
