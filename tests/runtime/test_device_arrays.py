"""CuPy's arrays in, CuPy's arrays out, on machines without a GPU: through a
stand-in as strict as CuPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.source import Ge2Warning
from ge2.ops.elementwise import BY_NAME
from ge2.targets.cuda.load import gpu
from ge2.test_util.laws import evaluate, graph_of, types_of
from tests.fake_cupy import MemoryPointer, stand_in
from tests.laws.samples import SAMPLES
from tests.laws.test_cuda import run
from tests.laws.test_targets import Case, chosen, named
from tests.together import needs_compiler
from tests.together_in_cuda import together_in_cuda

pytestmark = [needs_compiler, pytest.mark.any_executor]  # beside the device's

from tests.gpu.test_gpu_arrays import *  # noqa: E402, F403 - all that holds on a GPU
from tests.gpu.test_gpu_arrays import test_large_arrays_have_wide_places as _slow  # noqa: E402
from tests.gpu.test_gpu_footguns import *  # noqa: E402, F403

del _slow, globals()["test_large_arrays_have_wide_places"], globals()["test_the_current_stream"]


def test_every_operation(cp: Any, rng: np.random.Generator) -> None:
    """A few samples of each; tests/laws/test_cuda.py has all, on NumPy's arrays."""
    names = [name for name in SAMPLES if name not in BY_NAME]
    drawn = [(name, *case) for name in names for case in islice(chosen(name, rng), 1)]
    cases = [
        Case(named(sample.op, xs), graph_of(sample.op, types_of(xs)), xs, evaluate(sample.op, xs))
        for _, sample, xs in drawn
    ]
    with together_in_cuda():
        errors = run(cases, gpu.current_gpu())
    assert not [*filter(None, errors)]


@pytest.mark.parametrize("name", ["UnownedMemory", "DLPackMemory"])
def test_memory_of_another_library_is_not_donated(
    cp: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Torch's, say, which sees what is written there."""
    monkeypatch.setattr(MemoryPointer, "mem", property(lambda self: type(name, (), {})()))
    x = cp.ones(3, np.float32)
    with pytest.warns(Ge2Warning, match="its memory is another library's"):
        y = ge2.jit(lambda x: x + 1, donate_argnums=0)(x)
    assert x.get().tolist() == [1.0] * 3 and y.get().tolist() == [2.0] * 3


@pytest.fixture
def cp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with stand_in(monkeypatch) as xp:
        yield xp


OFFSETS = np.array([0, 1, -1])


def test_numbers_of_an_array_that_a_function_closes_over_may_be_on_the_cpu(cp: Any) -> None:
    """They are read while it is traced; a change of the array is seen."""
    f = ge2.jit(lambda x: sum(np.roll(x, int(k)) for k in OFFSETS))
    x = np.arange(5.0, dtype=np.float32)
    np.testing.assert_array_equal(f(cp.asarray(x)).get(), x + np.roll(x, 1) + np.roll(x, -1))
    OFFSETS[1] = 2
    try:
        np.testing.assert_array_equal(f(cp.asarray(x)).get(), x + np.roll(x, 2) + np.roll(x, -1))
    finally:
        OFFSETS[1] = 1
