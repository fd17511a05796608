"""Clocks of devices, and the kernels that measure what a device can do: tried without one."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ge2.program.assembler import HostClock, best, seconds
from ge2.targets.cuda import load as driver_module
from ge2.targets.cuda.emulator import ShimDevice
from ge2.targets.cuda.limits import B200, H200
from ge2.targets.cuda.load import resident_blocks
from ge2.targets.cuda.load.gpu import (
    COPIED,
    CYCLES,
    FUSED,
    OPERATIONS,
    EventClock,
    Load,
    ceilings,
    load_of,
    probe,
)
from ge2.targets.cuda.load.nvrtc import Order, compile_all
from tests.nvrtc import needs_nvrtc
from tests.together import needs_compiler


class Gpu:
    """A device whose events tell in what order they and its kernels came; each takes a second."""

    def __init__(self) -> None:
        self.limits, self.said = H200, list[str]()
        memory = SimpleNamespace(memset_async=lambda value, nbytes: self.said.append("flush"))
        empty = lambda nbytes, dtype: SimpleNamespace(data=memory, nbytes=nbytes)  # noqa: E731
        self.xp = SimpleNamespace(
            cuda=SimpleNamespace(
                Event=self.event, get_elapsed_time=lambda a, b: 1e3 * (b.at - a.at)
            ),
            empty=empty,
        )

    def event(self) -> Any:
        event = SimpleNamespace(at=0)

        def record() -> None:
            self.said.append("event")
            event.at = len(self.said)

        event.record = record
        return event

    def here(self) -> Any:
        return nullcontext()

    def module(self, source: str) -> Any:
        def hold(grid: Any, block: Any, args: Any) -> None:
            self.said.append("hold" if args[0] == CYCLES else "nothing")

        return SimpleNamespace(get_function={"hold": hold}.__getitem__)

    def stream(self) -> Any:
        return SimpleNamespace(synchronize=lambda: self.said.append("wait"))


def test_a_launch_lies_between_two_events_while_the_gpu_is_busy() -> None:
    gpu: Any = Gpu()
    clock = EventClock(gpu)
    assert seconds(clock, lambda: gpu.said.append("launch")) == 2.0
    assert gpu.said == ["hold", "event", "launch", "event", "wait"]
    gpu.said.clear()
    assert clock.nothing() == 2.0
    assert gpu.said[:4] == ["hold", "event", "nothing", "event"]


def test_a_cold_clock_overwrites_the_cache_first() -> None:
    gpu: Any = Gpu()
    clock = EventClock(gpu, cold=True)
    assert clock.spoiler.nbytes == 2 * H200.l2
    seconds(clock, lambda: None)
    assert gpu.said[:3] == ["flush", "hold", "event"]


def test_the_hosts_clock() -> None:
    clock = HostClock()
    assert 0 <= clock.nothing() < 0.1
    assert seconds(clock, lambda: sum(range(100_000))) > 100 * 1e-9
    calls: list[int] = []
    assert best(clock, lambda: calls.append(1)) >= 0
    assert len(calls) > 2
    cold = HostClock(1 << 10)
    cold.ready()
    assert cold.spoiler is not None
    assert (cold.spoiler == 2).all()


@needs_compiler
def test_the_kernels_do_what_is_counted() -> None:
    device = ShimDevice()
    a = np.arange(2 * COPIED, dtype=np.uint16).view(np.uint8)[: 2 * COPIED].copy()
    b = np.zeros_like(a)
    device.module(probe("copy")).get_function("copy")((2,), (256,), (a, b))
    np.testing.assert_array_equal(a, b)
    for kind, (fused, dtype) in FUSED.items():
        source = f"#define TYPE {kind}\n#define FMA {fused}\n{probe('multiply_add')}"
        kernel = device.module(source).get_function("multiply_add")
        sums = np.zeros(512, dtype)
        kernel((2,), (256,), (sums, dtype(1), dtype(1), np.int32(3)))
        added = 3 * OPERATIONS // 2  # one by each multiply-add
        np.testing.assert_array_equal(sums[:256], 8 * np.arange(256) + 28 + added)
    device.module(probe("hold")).get_function("hold")((1,), (1,), (np.int64(1000),))


@needs_compiler
def test_ceilings() -> None:
    found = ceilings(ShimDevice(), HostClock(), double=True)
    assert found.moved > 0
    assert found.single > 0
    assert found.double > 0
    assert ceilings(ShimDevice(), HostClock(), double=False).double == 0


def test_a_gpu_copies_more_than_its_caches_hold() -> None:
    for limits in (H200, B200):
        gpu: Any = Gpu()
        gpu.limits = limits
        load = load_of(gpu, EventClock(gpu))
        assert load.copied % COPIED == 0
        assert load.copied >= 4 * limits.l2
        assert load.blocks * 256 == limits.threads
    assert load_of(gpu, HostClock()) == Load(4 * COPIED, 2, 1)


@pytest.mark.exhaustive
@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100"])
def test_they_compile_and_spill_nothing(arch: str) -> None:
    adds = [
        f"#define TYPE {kind}\n#define FMA {fused}\n{probe('multiply_add')}"
        for kind, (fused, _) in FUSED.items()
    ]
    for binary in compile_all(
        [Order(source, arch) for source in (probe("hold"), probe("copy"), *adds)]
    ):
        (usage,) = binary.kernels
        assert (usage.spills, usage.stack) == (0, 0)


@needs_compiler
def test_the_driver_tells_how_many_blocks_fit(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import subprocess

    source, path = tmp_path / "cuda.c", tmp_path / "libcuda.so.1"
    source.write_text("""
    #include <stddef.h>
    int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, void *f, int threads, size_t shared) {
        if (!f) return 400;
        *n = f == (void *)0x7fff00000010 && threads == 256 && shared == 5000000000 ? 7 : -1;
        return 0;
    }""")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source], check=True)
    monkeypatch.setattr(driver_module, "LIBRARY", str(path))
    assert resident_blocks(0x7FFF00000010, 256, 5_000_000_000) == 7
    assert resident_blocks(0, 256, 0) == 0
