"""What a loop shows and logs, and the curve that is drawn of it."""

from __future__ import annotations

import gc
import io
import json
import sys
import time

import numpy as np
import pytest

import ge2
from ge2.cli import main
from ge2.errors import ArgumentError, FileError, InputError
from ge2.io.training import Lines


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def run(count, out, pause=0.0, **options):
    bar = ge2.io.progress(range(count), out=out, **options)
    for i in bar:
        time.sleep(pause)
        bar.record(loss=np.float32(1 / (i + 1)), mode="a")
    return bar


def test_lines_where_there_is_no_terminal():
    out = io.StringIO()
    bar = run(4, out, label="train", tokens=100, flops=1e6, peak=1e12, every=0)
    *_, last = out.getvalue().splitlines()
    assert last.startswith("train 4/4  loss 0.25  mode a  ")
    for word in ("tokens/s", "FLOP/s", "% of peak"):
        assert word in last
    assert repr(bar) == "<progress: step 4>"
    assert next(bar, None) is None


def test_a_long_run_has_few_lines(monkeypatch):
    out = io.StringIO()
    lines = Lines("", 1000, 0, out)
    for step in range(1, 1001):
        lines.show(step, "")
    lines.close()
    assert len(out.getvalue().splitlines()) == 21
    lines = Lines("", None, 0, out)
    monkeypatch.setattr("ge2.io.training.PAUSE", -1.0)
    assert lines.show(7, "x") is None
    assert out.getvalue().endswith("\n7  x\n")


@pytest.mark.parametrize("package", ["rich", "tqdm"])
def test_a_bar_on_a_terminal(package, monkeypatch):
    pytest.importorskip(package)
    monkeypatch.setattr("ge2.io.training.find_spec", lambda name: name == package or None)
    monkeypatch.setenv("COLUMNS", "160")
    out = Terminal()
    run(3, out, label="train", every=0)
    assert "train" in out.getvalue()
    assert "loss 0.3333" in out.getvalue()
    assert "3/3" in out.getvalue()


def test_the_log_has_a_line_a_step_and_rates(tmp_path):
    path = tmp_path / "run.jsonl"
    run(3, io.StringIO(), 0.02, log=path, tokens=10, flops=2.0, peak=4.0, every=100)
    found = lines_of(path)
    assert found[-1]["seconds"] >= 0.06
    assert 0.5 < found[-1]["steps_per_second"] <= 50
    assert [(x["step"], x["loss"], x["mode"]) for x in found] == [
        (1, 1.0, "a"), (2, 0.5, "a"), (3, pytest.approx(1 / 3), "a"),
    ]  # fmt: skip
    assert found[0]["tokens_per_second"] == pytest.approx(10 * found[0]["steps_per_second"])
    assert found[0]["share_of_peak"] == pytest.approx(found[0]["flops_per_second"] / 4)
    assert ge2.io.read_log(path)["step"].tolist() == [1, 2, 3]
    assert "mode" not in ge2.io.read_log(path)


def test_values_are_looked_at_now_and_then_alone():
    class Value:
        size, shape, looked = 1, (), 0

        def __array__(self, dtype=None, copy=None):
            Value.looked += 1
            return np.ones(())

    bar = ge2.io.progress(range(5), out=io.StringIO(), every=100)
    for _ in bar:
        assert Value.looked == 0
        bar.record(loss=Value())
    assert Value.looked == 5


@pytest.mark.parametrize("how", ["break", "error", "with"])
def test_a_loop_that_ends_early_logs_what_was_done(how, tmp_path):
    path = tmp_path / "run.jsonl"
    bar = ge2.io.progress(range(5), out=io.StringIO(), log=path)
    try:
        with bar if how == "with" else io.StringIO():
            for i in bar:
                bar.record(loss=i)
                if i == 2:
                    if how == "error":
                        raise ZeroDivisionError
                    break
    except ZeroDivisionError:
        pass
    if how == "with":
        assert next(bar, None) is None
    del bar
    gc.collect()
    assert [x["loss"] for x in lines_of(path)] == [0, 1, 2]


def test_a_source_that_fails_ends_the_bar(tmp_path):
    path = tmp_path / "run.jsonl"

    def source():
        yield 1
        raise KeyError("data")

    bar = ge2.io.progress(source(), out=io.StringIO(), log=path)
    next(bar)
    bar.record(loss=1.5)
    with pytest.raises(KeyError):
        next(bar)
    assert [x["loss"] for x in lines_of(path)] == [1.5]


def test_a_run_that_goes_on_replaces_what_came_after(tmp_path):
    path = tmp_path / "run.jsonl"
    run(6, io.StringIO(), log=path)
    with path.open("ab") as file:
        file.write(b'{"step": 7, "los')  # killed
    assert len(ge2.io.read_log(path)["step"]) == 6
    bar = run(2, io.StringIO(), log=path, start=4)
    assert bar.step == 6
    with pytest.raises(FileError, match=r"run.jsonl:7 is no line of a log: b'\{\"step\": 7, \"los"):
        ge2.io.read_log(path)


def test_what_is_not_finite_is_null_in_the_log(tmp_path):
    path = tmp_path / "run.jsonl"
    bar = ge2.io.progress(range(2), out=io.StringIO(), log=path)
    for i in bar:
        bar.record(loss=float("nan") if i else 1)
    assert "NaN" not in path.read_text()
    np.testing.assert_array_equal(ge2.io.read_log(path)["loss"], [1, np.nan])


def test_a_loss_that_was_never_finite_is_in_the_log(tmp_path):
    path = tmp_path / "run.jsonl"
    bar = ge2.io.progress(range(2), out=io.StringIO(), log=path)
    for _ in bar:
        bar.record(loss=float("nan"))
    np.testing.assert_array_equal(ge2.io.read_log(path)["loss"], [np.nan, np.nan])


def test_wrong_values_are_errors_at_the_users_line():
    bar = ge2.io.progress(range(2), out=io.StringIO())
    next(bar)
    with pytest.raises(
        InputError, match=r"loss is a ndarray of shape \(3,\)\n  at   test_progress"
    ):
        bar.record(loss=np.ones(3))
    with pytest.raises(InputError, match="loss is a dict"):
        bar.record(loss={})
    with pytest.raises(InputError, match="takes an iterable; got 3"):
        ge2.io.progress(3)
    with pytest.raises(ArgumentError, match="tokens is a number of at least 0; got 'many'"):
        ge2.io.progress([], tokens="many")


# -------------------------------------------------------------------------------------------- plot


def test_plot_draws_a_picture(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "run.jsonl"
    run(5, io.StringIO(), log=path)
    assert main(["plot", str(path)]) == 0
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    assert "5 steps, loss 1 to 0.2" in capsys.readouterr().out
    options = ["--x", "seconds", "--smooth", "0.5", "--log-y", "-o", str(tmp_path / "b.svg")]
    assert main(["plot", str(path), str(path), *options]) == 0
    assert b"<svg" in (tmp_path / "b.svg").read_bytes()
    assert main(["plot", str(path), "-o", str(tmp_path / "no" / "x.png")]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_plot_says_what_is_missing(tmp_path, capsys, monkeypatch):
    path = tmp_path / "run.jsonl"
    assert main(["plot", str(path)]) == 1
    assert "run.jsonl cannot be read: No such file" in capsys.readouterr().err
    path.write_text('{"step": 1, "error": 2.0}\n')
    assert main(["plot", str(path)]) == 1
    assert "try  --y with one of step, error" in capsys.readouterr().err
    path.write_text("epoch,loss\n1,2\n")
    assert main(["plot", str(path)]) == 1
    assert "run.jsonl:1 is no line of a log" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    path.write_text('{"step": 1, "loss": 2.0}\n')
    assert main(["plot", str(path)]) == 1
    assert "try  pip install 'ge2[plot]'" in capsys.readouterr().err
