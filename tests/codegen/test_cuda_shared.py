"""Shared memory of kernels with many reductions: one array for all of them, in each block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from ge2 import make_jaxpr
from ge2.cli.show import assemblers
from ge2.compile import compile_graph
from ge2.targets.cuda.emulator import OfflineDevice, limits_of
from ge2.targets.cuda.load.nvrtc import Order, compile_all, fault
from tests.nvrtc import needs_nvrtc

LEAST = 48 << 10  # bytes of a block that a kernel has without asking for more, on any GPU


def of_columns(*reductions: Callable[..., Any]) -> Callable[[Any], list[Any]]:
    """Thrice each reduction along the first axis, all of them one kernel's."""
    return lambda x: [f(x * k, axis=0) for k in (1.5, 2.5, 3.5) for f in reductions]


EXTREMES = of_columns(np.sum, np.max, np.min, np.prod)
PLACES = of_columns(np.argmax, np.argmin, np.sum)


@needs_nvrtc
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("f", "shape", "dtype"),
    [(EXTREMES, (5000, 700), "f8"), (PLACES, (20000, 64), "f4"), (PLACES, (200, 33), "f2")],
    ids=["two stages", "places", "one block"],
)
def test_reductions_share_the_memory_of_a_block(
    f: Callable[..., Any], shape: Sequence[int], dtype: str
) -> None:
    graph = make_jaxpr(f)(np.zeros(shape, dtype)).graph
    texts = [
        source.text()
        for assembler in assemblers(compile_graph(graph, device=OfflineDevice(limits_of("sm_80"))))
        for source in assembler.kernels.sources.values()
    ]
    found = compile_all([Order(text, "sm_80") for text in texts])
    assert all(0 <= each.shared <= LEAST for binary in found for each in binary.kernels)
    assert any(each.shared for binary in found for each in binary.kernels)


def test_the_assembler_s_reason_is_read() -> None:
    """It is appended to a log that ends with a character of value 0."""
    reason = "Entry function 'finish' uses too much shared data (0xe000 bytes, 0xc000 max)"
    log = f"ptxas info    : Used 50 registers, used 1 barriers\n\0ptxas error   : {reason}"
    assert fault(log, {}).words == reason
