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
from benchmarks.fused import errors
from benchmarks.options import Options
from benchmarks.record import AtMost, Faster, Row, as_json, mean_of, save
from benchmarks.table import seconds, show
from benchmarks.timing import medians

ROOT = Path(__file__).parents[2]
BOTH = (Faster(3.5, "numpy"), Faster(1.2, "jax"))
C_ORDER = "float32, C order"
ROWS = [
    Row("quick work", "seconds", 2e-3, {"numpy": 8e-3, "jax": 3e-3}, BOTH, C_ORDER, {"x": [8]}),
    Row("half reached", "seconds", 2e-3, {"numpy": 8e-3, "jax": 1e-3}, BOTH),
    Row("not judged", "seconds", 2e-3, {"numpy": 8e-3}, BOTH),
    Row("slow work", "seconds", 0.5, {}, (AtMost(0.25),)),
    Row("a call", "seconds", 3e-6, {"numpy": 2e-6}, (AtMost(2e-6, 2, "numpy"),)),
    Row("a slow call", "seconds", 3e-6, {"numpy": 1e-6}, (AtMost(2e-6, 2, "numpy"),)),
    Row("growth", "times", 10.5, {}, (AtMost(11),)),
    Row("no target", "equations", 12, {"jax": 20}, notes={"jax": "counts otherwise"}),
]
VERDICTS = [[True, True], [True, False], [True, None], [False], [True], [False], [True], []]


@pytest.mark.parametrize(("row", "verdicts"), [*zip(ROWS, VERDICTS, strict=True)])
def test_targets(row, verdicts):
    assert row.verdicts == verdicts
    assert row.missed == (False in verdicts)


def test_the_table_shows_ratios_and_what_was_missed():
    *_, quick, half, unjudged, slow, call, _, growth, plain, note = show(ROWS).splitlines()
    assert C_ORDER in quick
    assert "8 ms (4x)" in quick
    assert ">= 3.5x numpy, >= 1.2x jax  yes, yes" in quick
    assert "yes, NO" in half
    assert "yes, ?" in unjudged
    assert " NO" in slow
    assert "<= 2 us or 2x numpy" in call
    assert "<= 11x" in growth
    assert growth.endswith("yes")
    assert "20 equations" in plain
    assert "yes" not in plain
    assert note == "no target: jax counts otherwise"


def test_a_geometric_mean_is_of_the_peers_that_every_row_has():
    rows = [
        Row("a", "seconds", 1.0, {"numpy": 8.0, "jax": 1.0, "torch": 1.0}, layout=C_ORDER),
        Row("b", "seconds", 2.0, {"numpy": 4.0, "jax": 4.5}, layout=C_ORDER),
    ]
    mean = mean_of("both", rows, Faster(1.4, "jax"), Faster(4.5, "numpy"))
    assert mean.others == pytest.approx({"numpy": 4.0, "jax": 1.5})
    assert mean.verdicts == [True, False]
    assert mean.layout == C_ORDER


def test_results_are_kept_with_all_that_explains_them(tmp_path):
    kept = json.loads(save(ROWS, "cpu", tmp_path).read_text())
    assert kept["machine"]["cores"] >= 1
    assert "numpy" in kept["versions"]
    assert kept["commit"]
    assert kept["settings"]["executor"]
    assert kept["settings"]["threads"] >= 1
    first = kept["rows"][0]
    assert [target["reached"] for target in first["targets"]] == [True, True]
    assert first["targets"][0] == {"kind": "Faster", "times": 3.5, "peer": "numpy", "reached": True}
    assert (first["layout"], first["sizes"], first["ours"]) == (C_ORDER, {"x": [8]}, 2e-3)


@pytest.mark.parametrize(
    ("number", "text"), [(2.5, "2.5 s"), (1.2e-3, "1.2 ms"), (3e-6, "3 us"), (5e-9, "5 ns")]
)
def test_seconds(number, text):
    assert seconds(number) == text


def test_medians_tell_a_short_wait_from_a_long_one():
    found = medians(
        {"short": lambda: time.sleep(0.001), "long": lambda: time.sleep(0.004)}, rounds=3
    )
    assert 0.001 <= found["short"] < found["long"]


def test_no_round_follows_the_fifth_once_the_budget_is_spent(monkeypatch):
    monkeypatch.setattr("benchmarks.timing.SAMPLE", 0.004)
    calls = []
    medians({"work": lambda: calls.append(time.sleep(0.005))}, rounds=1000, budget=0.0)
    assert len(calls) == 4 + 2 * 5  # to calibrate, and one before each sample


def test_what_is_measured_can_be_kept():
    row = errors(Options(quick=True))
    assert json.loads(json.dumps(as_json(row)))["ours"] == row.ours < 1e-6


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("name", SUITES["cpu"])
def test_each_workload_runs_at_a_small_size(name, monkeypatch):
    monkeypatch.setattr("benchmarks.peers.find_spec", lambda name: None)
    rows = import_module(f"benchmarks.{name}").run(Options(quick=True))
    assert rows
    assert all(row.ours > 0 for row in rows)
    assert all(json.dumps(as_json(row)) for row in rows)


@pytest.mark.parametrize("name", [name for name, parts in SUITES["cpu"].items() if parts])
def test_the_command_knows_every_part_of_a_workload(name):
    module = import_module(f"benchmarks.{name}")
    works = module.works() if hasattr(module, "works") else module.WORKS
    assert {*works} == {*SUITES["cpu"][name]} - {"fused-error", "rnn-loop", "layers"}


def test_one_line_alone(monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.peers.find_spec", lambda name: None)
    monkeypatch.setattr(
        sys,
        "argv",
        ["benchmarks", "cpu", "--quick", "--rounds", "1", "--only", "softmax", "gather"],
    )
    assert main() == 0
    *_, ruler, first, second = capsys.readouterr().out.splitlines()
    assert ruler.startswith("---")
    assert first.startswith("softmax of")
    assert second.startswith("gather")


def test_a_whole_run_prints_its_table_and_keeps_its_results(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.__main__.SUITES", {"cpu": {"nesting": ()}})
    monkeypatch.setattr("benchmarks.__main__.RESULTS", tmp_path)
    monkeypatch.setattr("benchmarks.peers.find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "cpu"])
    assert main() == 0
    (kept,) = tmp_path.glob("cpu-*.json")
    assert json.loads(kept.read_text())["rows"][0]["sizes"]["equations"] == 15
    shown = capsys.readouterr().out
    assert "grad nested 3 deep of 15 equations" in shown
    assert str(kept) in shown


@pytest.mark.parametrize(
    ("words", "known"), [(["gpuu"], "cpu"), (["cpu", "--only", "softmaxx"], "softmax-grad")]
)
def test_the_command_says_what_there_is(words, known):
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks", *words], cwd=ROOT, capture_output=True, text=True
    )
    assert found.returncode == 2
    assert known in found.stderr
