"""The benchmarks run at small sizes, and their table and files say what was measured."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.__main__ import SUITES, main
from benchmarks.record import Row, Target, save
from benchmarks.table import seconds, show
from benchmarks.timing import medians

ROOT = Path(__file__).parents[2]
ROWS = [
    Row("quick work", "seconds", 2e-3, {"numpy": 8e-3}, Target(3.5, "numpy"), "float32", {"x": [8]}),
    Row("slow work", "seconds", 0.5, {}, Target(0.25)),
    Row("growth", "times", 10.5, {}, Target(11)),
    Row("no target", "equations", 12, {"jax": 20}),
]


@pytest.mark.parametrize(("row", "reached"), [*zip(ROWS, [True, False, True, True], strict=True)])
def test_targets(row, reached):
    assert row.reached == reached


def test_the_table_shows_ratios_and_what_was_missed():
    quick, slow, growth, plain = show(ROWS).splitlines()[-4:]
    assert "8 ms (4x)" in quick
    assert ">= 3.5x numpy" in quick
    assert " NO" in slow
    assert "<= 11x" in growth
    assert growth.endswith("yes")
    assert "20 equations" in plain
    assert "yes" not in plain


def test_results_are_kept_with_all_that_explains_them(tmp_path):
    kept = json.loads(save(ROWS, "cpu", tmp_path).read_text())
    assert kept["machine"]["cores"] >= 1
    assert "numpy" in kept["versions"]
    assert kept["commit"]
    first = kept["rows"][0]
    assert first["reached"]
    assert (first["dtype"], first["sizes"], first["ours"]) == ("float32", {"x": [8]}, 2e-3)


@pytest.mark.parametrize(
    ("number", "text"), [(2.5, "2.5 s"), (1.2e-3, "1.2 ms"), (3e-6, "3 us"), (5e-9, "5 ns")]
)
def test_seconds(number, text):
    assert seconds(number) == text


def test_medians_tell_a_short_wait_from_a_long_one():
    found = medians({"short": lambda: time.sleep(0.001), "long": lambda: time.sleep(0.004)}, rounds=3)
    assert 0.001 <= found["short"] < found["long"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SUITES["cpu"])
def test_each_workload_runs_at_a_small_size(name, monkeypatch):
    monkeypatch.setattr("benchmarks.peers.find_spec", lambda name: None)
    rows = import_module(f"benchmarks.{name}").run(quick=True)
    assert rows
    assert all(row.ours > 0 for row in rows)


def test_a_whole_run_prints_its_table_and_keeps_its_results(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.__main__.SUITES", {"cpu": ("nesting",)})
    monkeypatch.setattr("benchmarks.__main__.RESULTS", tmp_path)
    monkeypatch.setattr("benchmarks.peers.find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "cpu"])
    assert main() == 0
    (kept,) = tmp_path.glob("cpu-*.json")
    assert json.loads(kept.read_text())["rows"][0]["sizes"]["equations"] == 15
    shown = capsys.readouterr().out
    assert "grad nested 3 deep of 15 equations" in shown
    assert str(kept) in shown


def test_the_command_says_what_suites_there_are():
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks", "gpuu"], cwd=ROOT, capture_output=True, text=True
    )
    assert found.returncode == 2
    assert "cpu" in found.stderr
