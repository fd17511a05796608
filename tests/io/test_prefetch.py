"""Items made ahead: all of them, in order, with errors at their place, and no thread left behind."""

from __future__ import annotations

import gc
import os
import threading
import time
import traceback

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.errors import ArgumentError, DeviceError, InputError
from ge2.io import training as module
from ge2.targets.cuda.load import gpu as cuda
from tests.fake_cupy import stand_in


def threads():
    return [t for t in threading.enumerate() if t.name == "ge2 prefetch"]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    gc.collect()
    assert not threads()


def until(condition):
    """Waits for what a thread does soon."""
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize("size", [1, 2, 50])
def test_all_items_come_in_order(size):
    items = [{"x": np.full(3, i), "n": i, "name": "a"} for i in range(20)]
    found = list(ge2.io.prefetch(iter(items), size, device="cpu"))
    assert found == items
    assert list(ge2.io.prefetch([], size)) == []


def test_no_more_than_the_size_is_made_ahead():
    made = []

    def source():
        for i in range(10):
            made.append(i)
            yield i

    ahead = ge2.io.prefetch(source(), size=3)
    until(lambda: len(made) == 3)
    time.sleep(0.01)
    assert len(made) == 3
    assert repr(ahead) == "<prefetch: 3 of 3 ahead>"
    assert next(ahead) == 0
    until(lambda: len(made) == 4)
    assert list(ahead) == list(range(1, 10))
    assert next(ahead, None) is None


def test_an_error_is_raised_where_its_item_is_asked_for():
    def source():
        yield 1
        yield 2
        raise KeyError("three")

    ahead = ge2.io.prefetch(source(), size=10)
    assert [next(ahead), next(ahead)] == [1, 2]
    with pytest.raises(KeyError, match="three") as error:
        next(ahead)
    assert "in source" in "".join(traceback.format_tb(error.tb))
    assert next(ahead, None) is None


def endless(ended):
    try:
        while True:
            yield np.zeros(3)
    finally:
        ended.append(threading.current_thread().name)


@pytest.mark.parametrize("how", ["break", "close", "with", "error", "forgotten"])
def test_a_loop_that_ends_early_leaves_no_thread(how):
    ended = []
    ahead = ge2.io.prefetch(endless(ended), device="cpu")
    try:
        if how == "with":
            with ahead:
                next(ahead)
        elif how != "forgotten":
            for _ in ahead:
                if how == "break":
                    break
                if how == "close":
                    ahead.close()
                if how == "error":
                    raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    del ahead
    gc.collect()
    until(lambda: ended == ["ge2 prefetch"])


def test_settings_hold_in_the_thread():
    with config.using(threads=3):
        ahead = ge2.io.prefetch(config.threads for _ in range(1))
    assert list(ahead) == [3]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:os.fork:RuntimeWarning")
def test_a_forked_child_ends_instead_of_waiting():
    if not hasattr(os, "fork"):
        pytest.skip("no processes to fork")
    gate = threading.Event()
    ahead = ge2.io.prefetch((gate.wait() for _ in range(1)), device="cpu")
    pid = os.fork()
    if pid == 0:
        os._exit(0 if next(ahead, "end") == "end" else 1)
    gate.set()
    assert os.waitpid(pid, 0)[1] == 0
    assert list(ahead) == [True]


class Stream:
    """A stream of CuPy's that notes what it is asked."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def __enter__(self):
        self.log.append(f"enter {self.name}")

    def __exit__(self, *_):
        self.log.append(f"leave {self.name}")

    def record(self):
        self.log.append(f"record {self.name}")
        return "event"

    def wait_event(self, event):
        self.log.append(f"{self.name} waits for {event}")

    def synchronize(self):
        self.log.append(f"synchronize {self.name}")


def test_uploads_allocate_on_the_stream_of_use_and_copy_after_what_is_on_it(monkeypatch):
    log = []
    with stand_in(monkeypatch) as cupy:
        cupy.cuda.Stream = lambda non_blocking: Stream("copies", log)
        gpu = cuda.current_gpu()
        monkeypatch.setattr(module, "current_gpu", lambda: gpu)
        monkeypatch.setattr(type(gpu), "stream", lambda self: Stream("main", log))
        monkeypatch.setattr(cupy.ndarray, "set", noting(cupy.ndarray.set, log))
        items = [{"x": np.arange(6.0)[::2], "half": np.ones(2, ge2.bfloat16), "n": 3, "s": "a"}]
        (found,) = ge2.io.prefetch(items, device="cuda")
    assert log == [
        "enter main", "leave main", "record main", "copies waits for event", "set", "set", "synchronize copies",
    ]  # fmt: skip
    assert found["x"].get().tolist() == [0.0, 2.0, 4.0]
    assert found["half"].dtype == ge2.bfloat16
    assert (found["n"], found["s"]) == (3, "a")


def noting(function, log):
    def called(self, values, stream=None):
        log.append("set")
        assert stream.name == "copies"
        function(self, values)

    return called


def test_wrong_arguments():
    for bad in ({"size": 0}, {"size": 1.5}, {"device": "tpu"}):
        with pytest.raises(ArgumentError, match="prefetch takes a size of 1 or more"):
            ge2.io.prefetch([], **bad)
    with pytest.raises(InputError, match="takes an iterable; got 3"):
        ge2.io.prefetch(3)


@pytest.mark.skipif(module.usable(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_an_error():
    with pytest.raises(DeviceError):
        ge2.io.prefetch([], device="cuda")
