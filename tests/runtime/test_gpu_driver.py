"""A program for a GPU is made under the settings of whoever asks, also where
threads compile its kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.arrays import SHORT
from ge2.base.cache import cache
from ge2.base.config import config
from ge2.base.errors import CompilerTrouble
from ge2.compile import compile_graph
from ge2.ir import Graph
from ge2.targets.cuda.emulator import OfflineDevice, ShimDevice, limits_of
from ge2.targets.cuda.load import nvrtc
from tests.nvrtc import needs_nvrtc
from tests.together import needs_compiler


def graph() -> Graph:
    """Two kernels: a sum over columns that many blocks share, and the merging
    of what they leave.
    """
    x = ge2.ShapeDtypeStruct((1 << 16, 64), np.dtype(np.float32))
    found: Graph = ge2.jit(lambda x: np.tanh(x * 3.25).sum(axis=0)).trace(x).jaxpr
    return found


@needs_nvrtc
def test_kernels_are_kept_in_the_cache_of_the_settings(tmp_path):
    nvrtc._binaries.clear()
    with config.using(cache_dir=str(tmp_path / "cache"), threads=3):
        compile_graph(graph(), device=OfflineDevice(limits_of("sm_90a"))).build()
        names = sorted(
            entry.about["name"] for entry in cache().entries() if "options" in entry.about
        )
    assert [name for name in names if name.endswith(".cu")] == ["finish.cu", "reduce.cu"]


def test_no_compiler_means_none():
    with (
        config.using(nvrtc="none"),
        pytest.raises(CompilerTrouble, match="asks for no CUDA compiler"),
    ):
        compile_graph(graph(), device=OfflineDevice(limits_of("sm_90a"))).build()


def sent(f: Any, *args: Any) -> tuple[Any, int]:
    """What a program gives on a device, and how many arrays it sends there at each call."""
    graph: Graph = ge2.jit(f).trace(*args).jaxpr
    made = compile_graph(graph, device=ShimDevice())
    found = made(*args)
    return found, made.assembler.texts["python"].count("upload(")


@pytest.mark.exhaustive
@needs_compiler
@pytest.mark.parametrize("dtype", [d for d in SHORT if d.kind != "b"], ids=str)
def test_numbers_that_kernels_read_are_not_sent_as_arrays(dtype: np.dtype) -> None:
    x, number = np.arange(1, 5).astype(dtype), 2
    (found,), arrays = sent(lambda x, n: x * (n + 1), x, number)
    assert arrays == 0 and found.tobytes() == (x * np.asarray(3, dtype)).tobytes()


@needs_compiler
def test_numbers_that_something_else_reads_are_arrays() -> None:
    def returned(x: Any, n: Any) -> Any:
        y = ge2.numpy.astype(n * 2, np.float32)
        return x + y, y

    def shaped(x: Any, n: Any) -> Any:
        return ge2.numpy.sort(ge2.numpy.astype(n * 2, np.float32).reshape(1)), x

    def looped(x: Any, n: Any) -> Any:
        return ge2.lax.scan(lambda c, v: (c + v, c), ge2.numpy.astype(n * 2, np.float32), x)

    x = np.arange(4, dtype=np.float32)
    (total, twice), arrays = sent(returned, x, 3)
    assert arrays == 1 and twice == 6 and total.tolist() == [6.0, 7.0, 8.0, 9.0]
    (line, _), _ = sent(shaped, x, 3)
    assert line.tolist() == [6.0]
    (last, each), _ = sent(looped, x, 3)
    assert last == 12 and each.tolist() == [6.0, 6.0, 7.0, 9.0]
