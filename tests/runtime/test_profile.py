"""A profile times a program that is like the one that runs, and leaves that one as it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ge2
from ge2 import compile as peaks
from ge2 import lax
from ge2.base.config import config
from ge2.dispatch import cache
from ge2.dispatch.explanation import profile
from tests.fake_cupy import stand_in
from tests.together import needs_compiler

pytestmark = needs_compiler
X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(peaks, "COPIED", 1 << 12)
    monkeypatch.setattr(peaks, "ELEMENTS", 1 << 10)
    cache.forget()
    yield
    cache.forget()


@pytest.fixture(params=["shim", "c", "blocked"])
def executor(request: pytest.FixtureRequest) -> Iterator[str]:
    with config.using(executor=request.param):
        yield request.param


def several(x: Any, w: Any, n: Any) -> Any:
    y = np.tanh(x @ w) * n
    z = lax.while_loop(lambda c: c.sum() < 1000, lambda c: c + 1, y)
    return (
        y, z, np.sort(y.T, axis=0), y.reshape(64), np.cumsum(x),
        lax.cond(n > 1, np.sin, np.cos, x),
    )  # fmt: skip


@pytest.mark.exhaustive
def test_the_program_that_is_timed_gives_the_same(executor: str) -> None:
    f = ge2.jit(several)
    wanted = f(X, X, 2.0)
    _, arrays = f.prepared((X, X, 2.0), {})
    found: list[Any] = []
    known = f.prepared((X, X, 2.0), {})[0]
    another = known.another

    def kept() -> Any:
        made = another()
        found.append(made)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache.Entry, "another", lambda self: kept())
        timed = profile(f, (X, X, 2.0), {}, rounds=3)
    (measured,) = found
    for a, b in zip(measured(*arrays), wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    assert timed.total == sum(row.seconds for row in timed.rows)
    assert len({row.name for row in timed.rows}) == len(timed.rows)


def test_the_program_that_runs_is_left_alone(executor: str) -> None:
    f = ge2.jit(several)
    text = f.lower(X, X, 2.0).executable.source()
    profile(f, (X, X, 2.0), {}, rounds=1)
    executable = f.lower(X, X, 2.0).executable
    assert executable.meter is None
    assert "timed_" not in text
    assert executable.source() == text


def test_a_branch_that_is_not_taken_has_no_row() -> None:
    with config.using(executor="shim", passes_off=("resident",)):
        rows = profile(ge2.jit(several), (X, X, 2.0), {}, rounds=1).rows
    inside = [row.name for row in rows if row.name.startswith("cond")]
    assert len(inside) == 1
    assert sum(row.name.startswith("while") for row in rows) == 2


def test_donated_arguments_are_the_callers_still(executor: str) -> None:
    f = ge2.jit(lambda x: x * 2 + 1, donate_argnums=0)
    x = X.copy()
    profile(f, (x,), {}, rounds=2)
    np.testing.assert_array_equal(x, X)


def test_arrays_that_a_function_closes_over_are_among_its_arguments(executor: str) -> None:
    w = X.copy()
    (row,) = profile(ge2.jit(lambda x: np.tanh(x) * w), (X,), {}, rounds=1).rows
    assert row.read == 2 * X.nbytes


def test_on_a_gpu_copies_of_results_have_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    with stand_in(monkeypatch) as cp:
        found = profile(ge2.jit(lambda x: (x, x + 1)), (cp.asarray(X),), {}, rounds=2)
    assert [(row.name, row.by, row.written) for row in found.rows] == [
        ("pointwise_0", "CUDA", X.nbytes),
        ("copy of a result", "CuPy", X.nbytes),
    ]
    assert found.device == "the CPU in place of H200, sm_90a"
    assert found.rounds == 2


def test_ranges_and_clocks_go_together() -> None:
    with config.using(executor="shim", nvtx=True):
        assert profile(ge2.jit(np.tanh), (X,), {}, rounds=1).rows[0].name == "pointwise_0"


def test_written_arguments_are_the_callers_still() -> None:
    x = np.zeros(64)
    profile(ge2.jit(lambda x: np.add(x, 1, out=x)), (x,), {}, 2)
    assert not x.any()
