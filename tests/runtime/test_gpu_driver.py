"""A program for a GPU is made under the settings of whoever asks, also where threads compile its kernels."""

from __future__ import annotations

import numpy as np
import pytest

import ge2
from ge2.backends.cuda import nvrtc
from ge2.backends.cuda.offline import OfflineDevice, limits_of
from ge2.backends.cuda.toolkit import place
from ge2.base.cache import cache
from ge2.base.config import config
from ge2.base.errors import CompilerTrouble
from ge2.ir import Graph
from ge2.runtime.compile import compile_graph


def has_nvrtc() -> bool:
    try:
        return bool(place().path)
    except CompilerTrouble:
        return False


def graph() -> Graph:
    """Two kernels: a sum over columns that many blocks share, and the merging of what they leave."""
    x = ge2.ShapeDtypeStruct((1 << 16, 64), np.dtype(np.float32))
    found: Graph = ge2.jit(lambda x: np.tanh(x * 3.25).sum(axis=0)).trace(x).jaxpr
    return found


@pytest.mark.skipif(not has_nvrtc(), reason="no NVRTC")
def test_kernels_are_kept_in_the_cache_of_the_settings(tmp_path):
    nvrtc._binaries.clear()
    with config.using(cache_dir=str(tmp_path / "cache"), threads=3):
        compile_graph(graph(), device=OfflineDevice(limits_of("sm_90a"))).build()
        names = sorted(entry.about["name"] for entry in cache().entries() if "options" in entry.about)
    assert [name for name in names if name.endswith(".cu")] == ["finish.cu", "reduce.cu"]


def test_no_compiler_means_none():
    with config.using(nvrtc="none"), pytest.raises(CompilerTrouble, match="asks for no CUDA compiler"):
        compile_graph(graph(), device=OfflineDevice(limits_of("sm_90a"))).build()
