"""`ge2 profile`: a row for each step of a program, and their sum beside the
whole, wherever it runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ge2 import compile as peaks
from ge2.base.config import config
from ge2.cli import main
from ge2.cli.kernels import microseconds
from ge2.targets.cuda.load import driver
from tests.fake_cupy import stand_in
from tests.together import needs_compiler

pytestmark = needs_compiler

MODEL = """
import numpy as np
from ge2 import lax

def softmax(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)

def loss(w, x):
    return np.tanh(x @ w).sum(axis=0)

def scalar_loss(w, x):
    return loss(w, x).sum()

def mixed(x):
    return np.searchsorted(x[0], softmax(x)), lax.fori_loop(0, 3, lambda i, c: np.tanh(c) * 2, x)

def picked(x, i):
    return x[i] + 1

def same(x):
    return x

def start():
    return np.full((8, 4), 0.5, np.float32)
"""


@pytest.fixture
def model(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "a_model.py").write_text(MODEL)
    monkeypatch.setattr(peaks, "COPIED", 1 << 12)
    monkeypatch.setattr(peaks, "ELEMENTS", 1 << 10)
    return str(tmp_path / "a_model.py")


@pytest.fixture(params=["shim", "c", "blocked"])
def executor(request: pytest.FixtureRequest) -> Iterator[str]:
    with config.using(executor=request.param):
        yield request.param


Said = Callable[..., str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    def run(*words: str, code: int = 0) -> str:
        assert main(["profile", *words, "--rounds", "3"]) == code
        found = capsys.readouterr()
        assert "Traceback" not in found.err
        return found.err if code else found.out

    return run


def data(said: Said, *words: str) -> Any:
    return json.loads(said(*words, "--device", "cpu", "--json"))


def test_a_table_with_its_sum_and_its_ceilings(model: str, said: Said, executor: str) -> None:
    text = said(f"{model}:softmax", "--args", "f32[64,32]", "--device", "cpu")
    first, how, nothing, empty, head, row, *rest = text.splitlines()
    assert first.startswith("softmax on ")
    assert "GB/s" in first
    assert "operations/s in float32, measured just now" in first
    assert "medians of 3 rounds, by the host's clock, caches as the step before leaves them" in how
    assert "a step that does nothing reads as" in nothing
    assert empty == ""
    assert head.split()[:4] == ["kernel", "by", "calls", "us"]
    assert ("registers" in head) == (executor == "shim")
    assert row.split()[:3] == [
        "rowwise_0",
        {"shim": "CUDA", "c": "C", "blocked": "Python"}[executor],
        "1",
    ]
    assert row.endswith("a_model.py:6-7 in softmax")
    assert [line.split()[0] for line in rest if line] == ["all", "a", "between"]


def test_every_step_is_there_and_the_sum_is_theirs(model: str, said: Said, executor: str) -> None:
    with config.using(passes_off=("resident",)):  # the rounds of its loop are steps of their own
        found = data(said, f"{model}:mixed", "--args", "f32[16,16]")
    rows = found["kernels"]
    assert found["total"] == pytest.approx(sum(row["seconds"] for row in rows))
    assert found["whole"] > 0
    assert found["rounds"] == 3
    assert all(row["seconds"] > 0 for row in rows)
    by = {row["name"].partition("_")[0]: row["by"] for row in rows}
    assert by["searchsorted"] == {"shim": "NumPy", "c": "C", "blocked": "NumPy"}[executor]
    if executor == "c":
        return
    (inside,) = (row for row in rows if "/" in row["name"])
    assert inside["launches"] == 3
    assert inside["read"] == 3 * 16 * 16 * 4
    assert inside["operations"] == 3 * 2 * 16 * 16


def test_bytes_and_operations_are_those_of_the_cost_analysis(
    model: str, said: Said, executor: str
) -> None:
    (row,) = data(said, f"{model}:softmax", "--args", "f32[64,32]")["kernels"]
    assert (row["read"], row["written"]) == (64 * 32 * 4, 64 * 32 * 4)
    assert row["operations"] == 5 * 64 * 32
    assert row["share"] > 0
    assert row["lines"] == ["a_model.py:6-7 in softmax"]


def test_kernels_that_merge_parts_have_rows_of_their_own(model: str, said: Said) -> None:
    with config.using(executor="shim", passes_off=("small_products",)):
        rows = data(said, f"{model}:loss", "--args", "f32[4,8]", "f32[4096,4]")["kernels"]
    product, first, second = rows
    # no unit that was measured computes it
    assert (product["by"], product["share"]) == ("NumPy", None)
    assert (product["operations"], second["operations"]) == (2 * 4096 * 8 * 4, 0)
    assert first["operations"] == 2 * 4096 * 8
    assert second["name"].startswith("finish")
    assert first["written"] == second["read"] > second["written"] == 8 * 4


def test_derivatives_batches_and_arguments_of_the_file(model: str, said: Said) -> None:
    with config.using(executor="c"):
        rows = data(said, f"{model}:scalar_loss", "--grad", "--args", "@start", "f32[16,8]")[
            "kernels"
        ]
        assert sum(row["name"].startswith("product") for row in rows) == 2
        rows = data(said, f"{model}:softmax", "--vmap", "0", "--args", "f64[3,4,5]")["kernels"]
        assert rows[0]["read"] == 60 * 8


def test_indices_that_are_drawn_are_in_range(model: str, said: Said, executor: str) -> None:
    assert data(said, f"{model}:picked", "--args", "f32[2,3]", "int64[5]")["kernels"]


def test_a_program_that_does_nothing(model: str, said: Said) -> None:
    with config.using(executor="blocked"):
        found = data(said, f"{model}:same", "--args", "f32[3]")
    assert found["kernels"] == []
    assert found["total"] == 0


def test_cold_caches_and_a_file(model: str, said: Said, tmp_path: Any) -> None:
    with config.using(executor="c"):
        path = tmp_path / "found.txt"
        assert not said(
            f"{model}:softmax", "--args", "f32[8,8]", "--cold", "--device", "cpu", "-o", str(path)
        )
    assert "caches emptied before each step" in path.read_text()


def test_on_a_gpu(model: str, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for one: arrays of CuPy's, and steps of the right names."""
    with stand_in(monkeypatch):
        text = said(f"{model}:mixed", "--args", "f32[16,16]", "--device", "cuda")
    assert "mixed on the CPU in place of H200, sm_90a" in text
    by = [line.split()[1] for line in text.splitlines() if " in " in line and "a_model" in line]
    assert {"CUDA", "CuPy"} <= set(by)


@pytest.mark.skipif(driver() is not None, reason="there is a driver")
def test_without_a_gpu(model: str, said: Said) -> None:
    err = said(f"{model}:softmax", "--args", "f32[8,8]", "--device", "cuda", code=1)
    assert "no NVIDIA driver, so no GPU can be used" in err
    assert "try  ge2 doctor" in err


def test_what_cannot_be_profiled(
    model: str, said: Said, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"{model}:softmax", "--args", "f32[8,8]", "--device", "cpu"]
    for settings in ({"executor": "reference"}, {"disable_jit": True}):
        with config.using(**settings):
            err = said(*words, code=1)
        assert "runs op by op here, so there are no kernels to time" in err
        assert "unset GE2_DISABLE_JIT and GE2_EXECUTOR" in err
    assert "softmax takes (x)" in said(f"{model}:softmax", "--device", "cpu", code=1)
    with pytest.raises(SystemExit):
        main(["profile", *words, "--rounds", "0"])
    assert "0 is no number of rounds" in capsys.readouterr().err


def test_float64_is_told_of(model: str, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from ge2 import compile as compiling
    from ge2.targets.cuda.emulator import ShimDevice
    from ge2.targets.cuda.limits import H200

    slow = ShimDevice(replace(H200, name="GeForce", double=64))
    monkeypatch.setattr(compiling, "stand_in", lambda: slow)
    with config.using(executor="shim"):
        text = said(f"{model}:loss", "--args", "f64[4,8]", "f64[64,4]", "--device", "cpu")
    rate = "computes in float64 at a_model.py:10 in loss, which GeForce does at 1/64 of the rate of float32"
    assert f"dot_general {rate}" in text
    assert "in float64, measured just now" in text
    assert text.count(rate) == 2


def test_times_in_words() -> None:
    assert [microseconds(t) for t in (0.0, 9.96e-6, 999.94e-6, 1e-3)] == [
        "0.0",
        "10.0",
        "999.9",
        "1000",
    ]


def test_drawn_arrays_are_of_their_types() -> None:
    from ge2 import ShapeDtypeStruct
    from ge2.base.arrays import LONG
    from ge2.cli.kernels import Drawn

    for dtype in LONG.values():
        x = Drawn(lambda x: x)(ShapeDtypeStruct((3, 2), dtype))
        assert (x.shape, x.dtype) == ((3, 2), dtype)
        assert np.isfinite(x.astype(np.complex128)).all()
