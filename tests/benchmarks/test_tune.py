"""What makes the record that ships: races, then lines that the record reads."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import ge2
from benchmarks import tune_gpu
from ge2.base.config import config
from ge2.choice import record
from ge2.compile import race
from tests.together import needs_compiler


def test_every_problem_is_a_program() -> None:
    """Each is traced, in float32 alone: the others differ in their dtype."""
    for name, f, xs in tune_gpu.problems():
        if "float32" in name or "indices" in name:
            ge2.make_jaxpr(f)(*xs)


def test_workers_part_the_problems_and_share_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process is this module with a part of its own: together they take every problem once."""
    seen, script = tmp_path / "seen", tmp_path / "python"
    script.write_text(f'#!/bin/sh\necho "$GE2_CACHE_DIR $*" >> {seen}\n')
    script.chmod(0o755)
    monkeypatch.setattr(tune_gpu.sys, "executable", str(script))
    tune_gpu.by_workers(3, "a-folder", Namespace(budget=5.0))
    told = [line.split() for line in seen.read_text().splitlines()]
    assert {words[0] for words in told} == {"a-folder"}
    assert sorted(words[-1] for words in told) == [f"--part={n}/3" for n in range(3)]

    raced: list[str] = []
    monkeypatch.setattr(tune_gpu, "problems", lambda: ((each, each, ()) for each in "abcdefgh"))
    monkeypatch.setattr(
        "ge2.transforms.arguments.make_jaxpr", lambda f: lambda: SimpleNamespace(graph=f)
    )
    monkeypatch.setattr("ge2.compile.compile_graph", lambda graph, **_: graph)
    monkeypatch.setattr(tune_gpu, "tune", lambda executable, *_: raced.append(executable))
    for n in range(3):
        tune_gpu.measured(60.0, None, n, 3)
    assert sorted(raced) == list("abcdefgh") != raced


@needs_compiler
def test_what_was_measured_is_written_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = ge2.ShapeDtypeStruct((64, 128), np.float32)
    monkeypatch.setattr(tune_gpu, "problems", lambda: iter([("softmax", tune_gpu.softmax, (x,))]))
    monkeypatch.setattr(race, "LEAST", 1e-6)
    monkeypatch.setattr(race, "probed", lambda *_: True)
    monkeypatch.setattr(record, "SHIPPED", str(tmp_path))
    monkeypatch.setattr("ge2.choice.SHIPPED", str(tmp_path))
    with config.using(threads=2, progress="off", cache_dir=str(tmp_path / "cache")):
        assert tune_gpu.main(["--device", "cpu", "--budget", "60", "--out", str(tmp_path)]) == 0
        (file,) = tmp_path.glob("*.jsonl")
        made, factors, line = file.read_text().splitlines()
        entry = record.entry_of(line)
        assert entry is not None and entry.raced and entry.best is not None
        assert "rowwise" in entry.problem and entry.best.family == "region in C"
        assert json.loads(made)["made"]["classes"] == 1 and "region in C" in factors
        record.forget()
        (choice,) = ge2.jit(tune_gpu.softmax).lower(x).choices.values()
        assert choice.by == "measured"  # type: ignore[attr-defined]
    record.forget()
