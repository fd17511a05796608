"""What a first call on a GPU spends is counted; kernels compile side by side,
another size compiles none.
"""

from __future__ import annotations

import logging
import threading
from contextvars import copy_context

import numpy as np
import pytest

import ge2
from benchmarks.cuda.programs import BATCH, WIDTHS, adamw, start
from ge2.base.config import config
from ge2.dispatch import cache
from ge2.targets.cuda.launch import library_call
from ge2.targets.cuda.load import gpu as devices
from ge2.targets.cuda.load import nvrtc


@pytest.fixture(autouse=True)
def anew():
    """Equal graphs of other tests are forgotten, and the extension is there
    from the first call on.
    """
    library_call.made_now()
    cache.forget()
    yield
    cache.forget()


def step():
    return ge2.jit(lambda *args: adamw(ge2, np, *args), donate_argnums=0)


def data(xp, batch):
    rng = np.random.default_rng(batch)
    x, y = (
        rng.standard_normal((batch, WIDTHS[0])).astype(np.float32),
        rng.integers(0, WIDTHS[-1], batch),
    )
    return xp.asarray(x), xp.asarray(y)


def test_another_batch_of_a_training_step_compiles_nothing(xp):
    f, state = step(), start(np.random.default_rng(0), xp.asarray)
    state, _ = f(state, *data(xp, BATCH))
    first = f.report()
    state, loss = f(state, *data(xp, 192))
    other = f.report()
    assert np.isfinite(float(loss))
    assert first.traced and len(first.bill.kernels) >= 5
    assert other.traced and not other.compiled, other.how
    assert other.bill.count("memory") == len(other.bill.kernels) == len(first.bill.kernels), str(
        other.bill
    )
    assert "nothing compiled" in other.how and "0 compiled" in other.how


def test_the_bill_of_a_first_call(xp, tmp_path):
    nvrtc._binaries.clear()
    with config.using(cache_dir=str(tmp_path / "cache")):
        f, state = step(), start(np.random.default_rng(0), xp.asarray)
        state, _ = f(state, *data(xp, 64))
        bill = f.report().bill
        assert bill.count("compiled") + bill.count("memory") == len(bill.kernels), str(bill)
        assert {"trace", "passes", "schedule", "render", "compile", "load"} <= set(
            dict(bill.stages)
        ), str(bill)
        assert all(each.seconds > 0 for each in bill.kernels if each.how == "compiled")
        assert bill.capture == 0
        for _ in range(2):
            state, _ = f(state, *data(xp, 64))
        after = f.report()
    assert 0 < after.bill.capture < 5, (after.launches, str(after.bill))
    assert after.bill.stages == bill.stages and not after.traced


def test_a_graph_is_told_where_compilations_are(xp, caplog):
    x = xp.ones((64, 64), np.float32)
    with caplog.at_level(logging.WARNING, "ge2"), config.using(log_compiles=True, capture="on"):
        f = ge2.jit(lambda x: np.cumsum(np.cumsum(x * 1.375, 0), 1))
        for _ in range(3):
            f(x)
    assert any("are a graph now" in text for text in caplog.messages), caplog.messages
    assert any(text.startswith("<lambda>: ready in ") for text in caplog.messages)


def test_several_threads_compile_at_once(monkeypatch, tmp_path):
    """Nothing of the device's holds one back while another is with the compiler."""
    gpu, met, asked = devices.current_gpu(), threading.Barrier(2, timeout=60), nvrtc._asked

    def slowly(tools, order):
        met.wait()  # each waits for the other to be here too
        return asked(tools, order)

    monkeypatch.setattr(nvrtc, "_asked", slowly)
    source = 'extern "C" __global__ void at_once(float *a) { a[threadIdx.x] *= %d.125f; }'
    found = []

    def ask(n):
        found.append(gpu.module(source % n))

    with config.using(cache_dir=str(tmp_path / "cache")):
        threads = [threading.Thread(target=copy_context().run, args=(ask, n)) for n in (71, 72)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(120)
    assert len(found) == 2


def test_sources_that_differ_in_comments_are_one_module():
    gpu = devices.current_gpu()
    source = 'extern "C" __global__ void commented(float *a) { a[threadIdx.x] *= 2.625f; } /* %s */'
    assert gpu.module(source % "one") is gpu.module(source % "other")
