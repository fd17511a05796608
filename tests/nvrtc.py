"""Tests that compile for GPUs are skipped where there is no NVRTC."""

from __future__ import annotations

import pytest

from ge2.base.errors import CompilerTrouble
from ge2.targets.cuda.load import place


def has_nvrtc() -> bool:
    try:
        return bool(place().path)
    except CompilerTrouble:
        return False


needs_nvrtc = pytest.mark.skipif(not has_nvrtc(), reason="no NVRTC")
