"""The demo's training step on a GPU: it is launched, and nothing of it waits for the device."""

from __future__ import annotations

import numpy as np
import pytest

import ge2
from ge2.cli import demo
from ge2.cli import demo as digits
from ge2.targets.cuda.load.gpu import current_gpu

SPIN = """
extern "C" __global__ void spin(long long cycles) {
    const long long began = clock64();
    while (clock64() - began < cycles) {
    }
}
"""


def test_a_step_returns_before_the_device_has_begun_it() -> None:
    pytest.importorskip("sklearn")
    device, at = current_gpu(), demo.place("cuda")
    data, state = at.digits(digits.load()), at.tree(digits.start())
    step, xp = ge2.jit(digits.train_step), device.xp
    x, y = data.train_x[:128], data.train_y[:128]
    for _ in range(2):  # compiled, and CuPy's pool has the memory
        state, loss = step(state, x, y)
    at.wait()
    with device.here():
        module = device.module(SPIN)  # which is not to be unloaded meanwhile
        module.get_function("spin")((1,), (1,), (np.int64(2_000_000_000),))  # about a second
        event = xp.cuda.Event()
        event.record()
        state, loss = step(state, x, y)
        assert not event.done, "the step waited for what was launched before it"
    at.wait()
    assert state.steps == 3 and 0 < float(loss) < 3


def test_the_steps_kernels() -> None:
    pytest.importorskip("sklearn")
    at = demo.place("cuda")
    data, state = at.digits(digits.load()), at.tree(digits.start())
    low = ge2.jit(digits.train_step).lower(state, data.train_x[:128], data.train_y[:128])
    assert low.executable.program.count("library") == 0
    assert "upload(" not in low.compile().as_text("python")
