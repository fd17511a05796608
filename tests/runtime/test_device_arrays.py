"""CuPy's arrays in, CuPy's arrays out, on machines without a GPU: through a stand-in as strict as CuPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.fake_cupy import stand_in
from tests.together import needs_compiler

pytestmark = needs_compiler

from tests.gpu.test_gpu_arrays import *  # noqa: E402, F403 - all that holds on a GPU
from tests.gpu.test_gpu_arrays import test_large_arrays_have_wide_places as _slow  # noqa: E402

del _slow, globals()["test_large_arrays_have_wide_places"], globals()["test_the_current_stream"]


@pytest.fixture
def cp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with stand_in(monkeypatch) as xp:
        yield xp
