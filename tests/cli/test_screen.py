from __future__ import annotations

import io

import pytest

from ge2.cli import Progress, milliseconds


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def test_a_terminal_sees_one_line_that_redraws_itself():
    out = Terminal()
    progress = Progress("training", 4, "epochs", out)
    for done in range(1, 5):
        progress(done, f"loss {done}")
    text = out.getvalue()
    assert text.count("\r") == 4
    assert text.count("\n") == 1
    assert text.endswith("4/4 epochs   loss 4\n")
    assert "━" * 30 in text


def test_a_narrow_terminal_is_not_overrun(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    out = Terminal()
    Progress("training", 4, "epochs", out)(4, "x" * 100)
    assert len(out.getvalue().rstrip("\n").split("\x1b[K")[1]) < 40


def test_an_ascii_terminal_gets_ascii():
    out = Terminal()
    out.encoding = "ascii"
    Progress("training", 2, "epochs", out)(1)
    assert out.getvalue().isascii()


def test_a_pipe_sees_plain_lines_and_the_last_one():
    out = io.StringIO()
    progress = Progress("training", 30, "epochs", out)
    for done in range(1, 31):
        progress(done, "note")
    lines = out.getvalue().splitlines()
    assert lines[-1] == "  training  30/30 epochs   note"
    assert 3 <= len(lines) <= 7
    assert "\r" not in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_quiet_is_quiet():
    out = io.StringIO()
    Progress("training", 1, "epochs", out, quiet=True)(1)
    assert not out.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"), [(1e-3, "1 ms"), (2.3456e-3, "2.35 ms"), (12.0, "12000 ms")]
)
def test_milliseconds(seconds, text):
    assert milliseconds(seconds) == text
