"""What the setting `dump` writes: texts of each stage, and a program
that runs by itself and judges.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.compile.pipeline import PIPELINES
from tests.together import needs_compiler

ROOT = Path(__file__).parents[2]
X = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)


def softmax(x: Any, t: Any) -> Any:
    e = np.exp((x - x.max(axis=1, keepdims=True)) * t)
    return e / e.sum(axis=1, keepdims=True), x.T @ x


def dumped(
    folder: Path, function: Any, *args: Any, executor: str = "blocked", **options: Any
) -> list[str]:
    with ge2.config.using(dump=str(folder), executor=executor):
        ge2.jit(function, **options)(*args)
    return sorted(path.name for path in folder.iterdir())


def run(path: Path) -> tuple[int, str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", str(path)]
    found = subprocess.run(
        command, capture_output=True, text=True, timeout=100, cwd=path.parent, env=environment
    )
    return found.returncode, found.stdout + found.stderr


@needs_compiler
def test_every_stage_is_a_file(tmp_path: Path) -> None:
    names = dumped(tmp_path, softmax, X, 2.0, executor="c")
    stages = [
        f"softmax-{n}-{p}.txt"
        for n, p in enumerate(("traced", *(p.__name__ for p in PIPELINES["c"])))
    ]
    kinds = ("regions.txt", "plan.txt", "program.c", "repro.py", "inputs.npz")
    assert {*stages, *(f"softmax-{kind}" for kind in kinds)} <= set(names)
    plan = (tmp_path / "softmax-plan.txt").read_text()
    assert plan.startswith("4 steps for c; arena of ")
    assert "kernel  rowwise " in plan
    assert "in softmax" in plan
    assert "input " in plan
    assert "the call to" in plan
    assert "to its end" in plan
    regions = (tmp_path / "softmax-regions.txt").read_text()
    assert "rowwise_0 (rowwise) of test_dump.py:" in regions
    assert "reduce_max[axes=(1,)] a" in regions


def test_a_second_program_of_a_name_has_files_of_its_own(tmp_path: Path) -> None:
    f = ge2.jit(lambda x: np.exp(x) * x)
    with ge2.config.using(dump=str(tmp_path), executor="blocked"):
        f(X)
        f(X[:2])
    assert {"lambda-0-traced.txt", "lambda.2-0-traced.txt"} <= {p.name for p in tmp_path.iterdir()}
    assert "f32[2,4]" in (tmp_path / "lambda.2-repro.py").read_text()


@pytest.mark.parametrize("with_inputs", [True, False])
def test_the_program_runs_by_itself_and_agrees(tmp_path: Path, with_inputs: bool) -> None:
    dumped(tmp_path, softmax, X, 2.0)
    if not with_inputs:
        (tmp_path / "softmax-inputs.npz").unlink()
    code, text = run(tmp_path / "softmax-repro.py")
    assert code == 0, text
    assert "result 0 f32[6,4]: differs by" in text
    assert "result 1 f32[4,4]" in text


def test_the_program_takes_the_arguments_of_the_first_call(tmp_path: Path) -> None:
    dumped(
        tmp_path, lambda x, i, n: (x[i] * n, x.sum()), X.astype(ge2.bfloat16), np.array([5, 0]), 3
    )
    found = np.load(tmp_path / "lambda-inputs.npz")
    np.testing.assert_array_equal(found["input_1"], [5, 0])
    code, text = run(tmp_path / "lambda-repro.py")
    assert code == 0, text
    assert "result 0 bf16[2,4]: differs by 0\n" in text


def test_the_program_finds_a_wrong_result(tmp_path: Path) -> None:
    dumped(tmp_path, lambda x: np.exp(x), X)
    path = tmp_path / "lambda-repro.py"
    wrong = "    found = [y + 1 for y in found]\n    with ge2.config.using(disable_jit=True):"
    text = path.read_text()
    assert text.count("    with ge2.config.using(disable_jit=True):") == 1
    path.write_text(text.replace("    with ge2.config.using(disable_jit=True):", wrong))
    code, said = run(path)
    assert code == 1, said
    assert "WRONG" in said


def test_prints_stay_and_callbacks_are_left_out(tmp_path: Path) -> None:
    def f(x: Any) -> Any:
        ge2.debug.print("x {}", x[0, 0])
        ge2.debug.callback(lambda v: None, x)
        body = lambda c, r: (ge2.debug.callback(lambda v: None, r) or c + r, c)  # noqa: E731
        return ge2.lax.scan(body, x[0] * 0, x)[0]

    dumped(tmp_path, f, X)
    code, text = run(tmp_path / "f-repro.py")
    assert code == 0, text
    assert text.count(f"x {X[0, 0]}") == 2
    assert "debug_callback" not in (tmp_path / "f-repro.py").read_text()


def test_a_pure_callback_is_named_as_what_cannot_be_written(tmp_path: Path) -> None:
    dumped(tmp_path, lambda x: ge2.pure_callback(softmax_in_numpy, x, x), X)
    code, text = run(tmp_path / "lambda-repro.py")
    assert code == 1
    assert "calls Python functions, which no text holds: softmax_in_numpy (test_dump.py:" in text


def softmax_in_numpy(x: Any) -> Any:
    return softmax(x, 1.0)[0]


def test_donated_arguments_are_written_before_they_are_overwritten(tmp_path: Path) -> None:
    dumped(tmp_path, lambda x: x * 2, X.copy(), donate_argnums=0)
    np.testing.assert_array_equal(np.load(tmp_path / "lambda-inputs.npz")["input_0"], X)


def test_nothing_is_written_without_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ge2.jit(lambda x: np.cos(x) * 3)(X)
    assert not list(tmp_path.iterdir())
