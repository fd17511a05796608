"""Fourier transforms by a library's calls: where their lines lie, and what is left to CuPy."""

from __future__ import annotations

from itertools import combinations
from math import prod

import numpy as np
import pytest

import ge2
from ge2.base.errors import DeviceError
from ge2.choice import Problem
from ge2.compile.catalog import select
from ge2.ir import ArrayType
from ge2.ops.dot import Fft, Irfft, Rfft
from ge2.targets.cuda.load import fourier
from ge2.targets.cuda.load.fourier import transforms_of
from tests.kernels.transform_cases import CASES, close, drawn


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_transforms_are_numpys(name: str) -> None:
    f, shape, dtype = CASES[name]
    x = drawn(shape, dtype)
    kept = x.copy()
    with ge2.config.using(executor="shim"):
        y = ge2.jit(f)(x)
    close(y, f(x), dtype)
    np.testing.assert_array_equal(x, kept)


def test_each_element_is_transformed_once() -> None:
    """Of all axes of a shape: the lines of the calls of a transform are those of the array, each once."""
    shape = 2, 3, 1, 4, 5
    t = ArrayType(shape, np.dtype("c8"))
    for count in range(1, 6):
        for axes in combinations(range(5), count):
            wanted = transforms_of(Problem(Fft(axes), (t,), (t,), "cuda"))
            transformed = 1
            for each in wanted.transforms:
                steps = np.array(each.given.steps())
                places = np.indices((each.count, *each.given.sizes)).reshape(len(steps), -1)
                found = np.concatenate([steps @ places + begin for begin, _ in each.starts])
                np.testing.assert_array_equal(np.sort(found), np.arange(t.size))
                transformed *= prod(each.places)
            assert transformed == prod(shape[a] for a in axes)


@pytest.mark.parametrize(
    ("op", "shape", "dtype", "why"),
    [
        (Fft((1,)), (64, 5, 70), "c8", ""), (Fft((1,)), (65, 5, 70), "c8", "it takes 65 calls"),
        (Fft((1,)), (0, 5), "c8", "nothing to transform"), (Fft(()), (4,), "c8", "no axis"),
        (Fft((0, 0)), (4,), "c8", "one twice"), (Rfft(1), (3, 5, 3), "f4", "begin where no complex"),
        (Irfft(1, 5), (3, 3, 3), "c8", "begin where no complex"), (Rfft(1), (3, 5, 4), "f4", ""),
    ],
)  # fmt: skip
def test_what_is_left_to_cupy(op: Fft, shape: tuple[int, ...], dtype: str, why: str) -> None:
    x = ArrayType(shape, np.dtype(dtype))
    choice = str(select(Problem(op, (x,), op.infer(x), "cuda")))
    assert ("not transform by cuFFT" in choice) == bool(why) and why in choice


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fourier, "library_path", lambda *_: "")
    monkeypatch.setattr(fourier, "NAMES", ("libnot-there.so",))
    fourier.library.cache_clear()
    with pytest.raises(DeviceError, match="need cuFFT, which cannot be loaded") as found:
        fourier.library()
    assert "nvidia-cufft" in str(found.value)
    fourier.library.cache_clear()
