from __future__ import annotations

import re
import subprocess
import sys

import pytest

from ge2.base.errors import InputError
from ge2.cli import demo, main


def test_without_a_command_it_prints_its_help(capsys):
    assert main([]) == 0
    assert "demo" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--help"], ["demo", "--help"]])
def test_help(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 0
    assert "usage: ge2" in capsys.readouterr().out


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert re.match(r"ge2 (\d+\.\d+|from a checkout)", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("word", "hint"), [("dmo", "did you mean 'ge2 demo'"), ("xyz", "see 'ge2 --help'")]
)
def test_unknown_command(word, hint, capsys):
    assert main([word]) == 2
    shown = capsys.readouterr()
    assert hint in shown.err
    assert f"'{word}'" in shown.err
    assert not shown.out


def test_unknown_option(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["demo", "--epoch-count", "3"])
    assert stop.value.code == 2
    assert "--epoch-count" in capsys.readouterr().err


def test_an_error_of_ours_is_a_line_and_an_exit_code(monkeypatch, capsys):
    def fails(options):
        raise InputError("this is wrong", where="model.py:3", fix="that")

    monkeypatch.setattr(demo, "run_demo", fails)
    assert main(["demo"]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("ge2: InputError: this is wrong")
    assert "model.py:3" in shown
    assert "Traceback" not in shown


def test_an_interrupt_is_a_line_and_an_exit_code(monkeypatch, capsys):
    def stopped(options):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run_demo", stopped)
    assert main(["demo"]) == 130
    assert "stopped" in capsys.readouterr().err


def test_it_runs_as_a_module():
    found = subprocess.run(
        [sys.executable, "-m", "ge2", "nonsense"], capture_output=True, text=True, check=False
    )
    assert found.returncode == 2
    assert "no command 'nonsense'" in found.stderr
