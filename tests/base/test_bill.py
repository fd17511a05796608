"""Time is counted once, for the stage that goes on, in the thread that makes the program."""

from __future__ import annotations

import io
import logging
import sys
import threading
import time
from contextvars import copy_context
from functools import partial

import pytest

from ge2.base import compile_times as progress
from ge2.base.compile_times import (
    Had,
    Tally,
    counting,
    current,
    finding,
    had,
    making,
    note,
    passed,
    spent,
)
from ge2.base.config import config
from ge2.base.source import is_heard, say
from tests.threads import on_threads

NAP = 0.02


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on when it is told to."""
    now = [100.0]
    monkeypatch.setattr("ge2.base.compile_times.perf_counter", lambda: now[0])

    def wait(seconds):
        now[0] += seconds

    return wait


def bill_of(tally):
    return tally.so_far().compile_times(tally.title)


def test_a_stage_inside_another_stops_its_clock(clock):
    tally = Tally("f")
    with counting(tally):
        clock(1)
        with spent("render"):
            clock(2)
            with spent("compile"):
                clock(4)
            clock(8)
        with spent("render"):
            clock(16)
    bill = bill_of(tally)
    assert bill.stages == (("render", 26.0), ("compile", 4.0), ("other", 1.0))
    assert (bill.total, bill.seconds("render"), bill.seconds("trace")) == (31.0, 26.0, 0.0)


def test_what_fails_is_counted_too(clock):
    tally = Tally("f")

    def fail():
        with counting(tally), spent("trace"):
            clock(1)
            _ = 1 // 0

    with pytest.raises(ZeroDivisionError):
        fail()
    with counting(tally), spent("compile"):
        clock(2)
    assert bill_of(tally).stages == (("trace", 1.0), ("compile", 2.0), ("other", 0.0))


def test_an_inner_function_has_a_bill_of_its_own(clock):
    outer, inner = Tally("outer"), Tally("inner")
    with counting(outer), spent("trace"):
        clock(1)
        with counting(inner), spent("compile"):
            clock(2)
        assert current() is outer
    assert bill_of(inner).seconds("compile") == 2 and bill_of(outer).stages == (
        ("trace", 3.0),
        ("other", 0.0),
    )


def test_nobody_counts():
    with spent("trace"):
        passed("fold", 1.0)
        note("disk")
    assert current() is None


def test_other_threads_change_nothing(clock):
    """They inherit the context, and may even ask for the same bill."""
    tally, other = Tally("f"), []

    def work():
        with spent("load"):
            passed("fold", 1.0)
            clock(4)
        with counting(tally), spent("compile"):
            other.append(current())

    with counting(tally), spent("render"):
        clock(1)
        on_threads(partial(copy_context().run, work))
    assert other == [None]
    assert (
        bill_of(tally).stages == (("render", 5.0), ("other", 0.0)) and bill_of(tally).passes == ()
    )
    assert tally.thread == 0


def test_a_later_thread_goes_on(clock):
    tally = Tally("f")

    def work():
        with counting(tally), spent("compile"):
            clock(2)

    with counting(tally), spent("trace"):
        clock(1)
    tally = Tally("f", tally.so_far())  # as a signature keeps it
    on_threads(work)
    assert bill_of(tally).stages == (("trace", 1.0), ("compile", 2.0), ("other", 0.0))


def test_how_a_kernel_was_had():
    with finding() as outer:
        with finding() as found:
            note("disk")
            note("memory")
        assert had("f", found) == Had("f", "disk") and not outer
        note("compiled", 0.5)
    assert had("g", outer) == Had("g", "compiled", 0.5)
    assert had("h", []) == Had("h", "memory")


def test_the_bill_printed():
    tally = Tally("step")
    tally.spent |= {"trace": 0.0301, "passes": 0.002, "compile": 1.25, "other": 0.0}
    tally.passes |= {"fold": 0.0005, "fuse": 0.0015}
    tally.kernels += [
        Had("gelu_0", "disk"),
        Had("sum_1", "compiled", 0.04),
        Had("max_2", "compiled", 1.2),
    ]
    bill = tally.so_far().compile_times("step", 0.003)
    assert (bill.count("compiled"), bill.count("disk"), bill.count("memory")) == (2, 1, 0)
    assert str(bill).splitlines() == [
        "step: ready in 1.28 s",
        "  trace     30.1 ms",
        "  passes     2.0 ms  most of it fuse, 1.5 ms",
        "  compile    1.25 s  3 kernels: 2 compiled, 1 from disk",
        "    max_2    1.20 s  compiled",
        "    sum_1   40.0 ms  compiled",
        "    gelu_0           from disk",
        "  capture    3.0 ms  graphs of launches, by later calls",
    ]


# ------------------------------------------------------------------------------------- what is told


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def alone(monkeypatch):
    """Nobody listens to the logger, as in a program that sets up no logging."""
    monkeypatch.setattr(logging.getLogger("ge2"), "propagate", False)
    monkeypatch.setattr(progress, "PATIENCE", NAP)


def made(seconds, asked=0):
    """What is told of a program whose kernels take so long to compile."""
    tally = Tally("step")
    with making(tally), spent("compile"):
        tally.asked, tally.kernels = asked, [Had("f", "compiled", 0.1)] * (asked // 2)
        time.sleep(seconds)


LINE = "ge2: step is not ready yet: compiling 34 kernels, 17 done (GE2_PROGRESS=off says no such thing)\n"


def test_what_lasts_is_told_once_on_a_terminal(alone, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    made(10 * NAP, 34)
    assert sys.stderr.getvalue() == LINE


def test_what_is_short_is_not_told(alone, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(progress, "PATIENCE", 30.0)
    made(0)
    assert sys.stderr.getvalue() == "" and not any(isinstance(t, threading.Timer) for t in timers())


def timers():
    """Those that are still to fire; one that was cancelled ends soon."""
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join(5)
    return [thread for thread in threading.enumerate() if thread.is_alive()]


@pytest.mark.parametrize(("setting", "terminal", "told"), [
    ("auto", False, False), ("auto", True, True), ("on", False, True), ("off", True, False),
])  # fmt: skip
def test_the_setting(alone, monkeypatch, setting, terminal, told):
    monkeypatch.setattr(sys, "stderr", Terminal() if terminal else io.StringIO())
    with config.using(progress=setting):
        made(10 * NAP)
    assert bool(sys.stderr.getvalue()) is told


def test_an_inner_function_is_told_as_part_of_the_outer(alone, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with making(Tally("outer")), spent("trace"):
        made(10 * NAP)
    assert sys.stderr.getvalue().startswith("ge2: outer is not ready yet: tracing (")
    assert sys.stderr.getvalue().count("\n") == 1


def test_who_listens_hears_it_and_the_terminal_does_not(caplog, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", NAP)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with caplog.at_level(logging.INFO, "ge2"):
        made(10 * NAP)
    assert [r.levelname for r in caplog.records] == ["INFO"] and sys.stderr.getvalue() == ""


def test_no_stderr_no_trouble(alone, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with config.using(progress="on"):
        made(5 * NAP)
    made(0)


def test_who_is_told(caplog, monkeypatch, capsys):
    monkeypatch.setattr(logging.getLogger("ge2"), "propagate", False)
    assert not is_heard("WARNING")
    say("%d things", 3)
    monkeypatch.setattr(logging.getLogger("ge2"), "propagate", True)
    with caplog.at_level(logging.WARNING, "ge2"):
        assert is_heard("WARNING") and not is_heard("INFO")
        say("%d words", 4)
    assert capsys.readouterr().err == "ge2: 3 things\n" and caplog.messages == ["4 words"]
