"""Rows too short for a vector: vectors go along the longer axis, and write the rows out."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from tests.compared import all_close, all_equal
from tests.together import needs_compiler

pytestmark = needs_compiler


def programs(image, planes, pairs, bits, numbers):
    channels = np.arange(3, dtype=np.float32)
    return (
        np.transpose(image.astype(np.float32) - channels, (0, 3, 1, 2)).copy(),
        image[:, ::-1, :, ::-1].astype(np.float32) * np.float32(0.5),
        (np.transpose(planes, (0, 2, 3, 1)) * np.float32(9)).astype(np.uint8),
        image[..., :2].astype(np.float32) * image[..., 2:].astype(np.float32),
        (bits[:, None] >> np.arange(8, dtype=np.uint8)) & np.uint8(1),
        pairs[:, 0] * pairs[:, 1] + pairs[::-1, 1],
        *(
            np.packbits(numbers, axis, order)
            for axis in (0, 1, None)
            for order in ("big", "little")
        ),
        *(np.unpackbits(numbers, axis, n) for axis in (0, 1) for n in (None, 5, -3, 2000)),
    )


def test_rows_of_a_few_elements_are_written_out_within_vectors(rng):
    image = rng.integers(0, 256, (2, 5, 37, 3)).astype(np.uint8)
    planes = rng.random((2, 3, 6, 41)).astype(np.float32)
    pairs = rng.standard_normal((130, 2)).astype(np.float32)
    bits = rng.integers(0, 256, 77).astype(np.uint8)
    numbers = rng.integers(0, 3, (67, 45)).astype(np.uint8)
    args = image, planes, pairs, bits, numbers
    compiled = ge2.jit(programs)
    text = "".join(map(str, compiled.lower(*args).kernels))
    assert re.search(r"omp simd\n +for .*\n +#pragma GCC unroll 3\n +for ", text)
    for ours, wanted in zip(compiled(*args), programs(*args), strict=True):
        assert ours.dtype == wanted.dtype
        np.testing.assert_array_equal(ours, wanted)


def folds(p, q):
    apart = p[:, None] - q[None]
    far = np.abs(apart).max(-1)
    near = np.exp(-(apart * apart).sum(-1))
    top = p.argmax(-1)
    return (
        far.min(1), far.max(1), (far < 1).sum(1), (far < 1).any(1), near.sum(1), near.prod(1),
        np.log(np.exp(p).sum(-1)).mean(), top, p.argmin(-1), top.sum(), p.max(-1).min(),
    )  # fmt: skip


def test_what_is_made_of_short_rows_is_folded_along_vectors(rng):
    """Extremes, counts and sums of what a few coordinates make: the fold is no obstacle."""
    for dtype in (np.float32, np.float64):
        p, q = (rng.standard_normal((n, 3)).astype(dtype) for n in (300, 170))
        p[rng.random(p.shape) < 0.05] = np.nan
        q[3], p[5] = np.inf, -np.inf
        compiled = ge2.jit(folds)
        with np.errstate(invalid="ignore", divide="ignore"):
            wanted = folds(p, q)
        all_close(compiled(p, q), wanted, rtol=1e-5 if dtype == np.float32 else 1e-12)
        text = "".join(map(str, compiled.lower(p, q).kernels))
        simd = r"omp simd[^\n]*\n +for[^#]*#pragma GCC unroll 3"
        assert len(re.findall(simd, text)) > 1


def test_first_places_of_extremes_in_short_rows(rng):
    for dtype in (np.float32, np.float64, np.int8, np.int64):
        for n in (2, 3, 5, 7, 8):
            x = rng.integers(-2, 3, (900, n)).astype(dtype)
            if x.dtype.kind == "f":
                for value in (np.nan, np.inf, -np.inf, -0.0):
                    x[rng.random(x.shape) < 0.15] = value
            found = ge2.jit(lambda x: (x.argmax(-1), x.argmin(-1), (x * 2).argmax(-1) + 1))(x)
            all_equal(found, (x.argmax(-1), x.argmin(-1), (x * 2).argmax(-1) + 1))


def slabs(low, high, d):
    first, last = low[None] * d[:, None], high[None] * d[:, None]
    near, far = np.minimum(first, last).max(-1), np.maximum(first, last).min(-1)
    hit = (near <= far) & (far > 0)
    return np.where(hit, near, np.inf).min(1), hit.sum(1)


def test_states_are_read_within_their_bounds(rng):
    """gcc 12 loads the lanes of a state under a mask, and then beyond their end, where an iteration
    leaves it as it is: here NaN was found where there was none, by what lay on the stack.
    """
    compiled = ge2.jit(slabs)
    for n in (500, 496, 504):
        low, d = rng.random((n, 3)), rng.standard_normal((400, 3))
        all_equal(compiled(low, low + 0.2, d), slabs(low, low + 0.2, d))


def costly(x, y, labels):
    e = np.exp(x - x.max(-1, keepdims=True))
    rows = x - np.log(np.exp(x).sum(-1, keepdims=True))
    apart = np.sin(y[:, None] * x[0, :7, None])
    return (
        e / e.sum(-1, keepdims=True), np.take_along_axis(rows, labels[:, None], -1),
        np.log1p(x * x).mean(-1), apart, apart.sum(-1), np.tanh(y + y[0]),
        (x * x).sum(-1) * np.exp(-x[:, 0]), np.exp(np.cos(x[:, :1]) * x),
        np.exp(x).argmax(-1), np.exp(x[:60].reshape(3, 20, -1)).sum((0, -1)),
    )  # fmt: skip


def test_vectors_go_across_rows_whose_elements_are_costly(rng):
    """Rows of 4 to 63 elements of four bytes: a loop over a row would end in scalars, or be one."""
    for dtype, tolerance in ((np.float32, 3e-6), (np.float64, 1e-14), (np.float16, 4e-3)):
        for n in (9, 20, 31):
            x = rng.standard_normal((83, n)).astype(dtype)
            x[5, 2], x[40, 1], x[82, n - 1] = np.nan, np.inf, -np.inf
            args = x, rng.standard_normal((70, 3)).astype(dtype), rng.integers(0, n, 83)
            compiled = ge2.jit(costly)
            with np.errstate(all="ignore"):
                wanted = costly(*args)
            for ours, expected in zip(compiled(*args), wanted, strict=True):
                assert ours.dtype == expected.dtype
                np.testing.assert_allclose(ours, expected, tolerance, tolerance)
            text = "".join(map(str, compiled.lower(*args).kernels))
            inner = r"for \(int64_t (.) = 0; \1 < n_\1; \1\+\+\) \{\n +#pragma omp simd\n +for .*_width;"
            assert len(re.findall(inner, text)) > 4


def decayed(x, y, z):
    kept = np.exp(x * y) * z
    return kept, kept.sum(-1)


def test_rows_of_full_vectors_that_several_arrays_have_are_not_gathered(rng):
    """A row is a vector as it lies: of 16 float32, and of 8 or 16 float64; others are gathered."""
    inner = r"for \(int64_t (.) = 0; \1 < n_\1; \1\+\+\) \{\n +#pragma omp simd\n +for .*_width;"
    for dtype, n, gathered in (
        (np.float32, 16, False), (np.float64, 8, False), (np.float64, 16, False),
        (np.float32, 24, True), (np.float64, 12, True),
    ):  # fmt: skip
        args = [rng.standard_normal((83, n)).astype(dtype) for _ in range(3)]
        compiled = ge2.jit(decayed)
        all_close(compiled(*args), decayed(*args), rtol=1e-5 if dtype == np.float32 else 1e-13)
        (kernel,) = compiled.lower(*args).kernels
        assert bool(re.search(inner, str(kernel))) == gathered


def mean_of_short_rows(p):
    e = np.exp(p - p.max(-1, keepdims=True))
    return -np.mean(p.max(-1) + np.log(e.sum(-1)))


def test_single_numbers_made_of_short_rows_leave_vectors_along_the_others(rng):
    """The division of a mean comes after the loop: no reason to go row by row in it."""
    p = rng.standard_normal((500, 5))
    compiled = ge2.jit(mean_of_short_rows)
    np.testing.assert_allclose(compiled(p), mean_of_short_rows(p), rtol=1e-12)
    (kernel,) = compiled.lower(p).kernels
    assert re.search(r"omp simd[^\n]*\n +for \(int64_t i = 0; i < i_width", str(kernel))
    assert "int threads" in str(kernel)


def test_rows_that_are_folded_are_written_out_in_sums_over_rows_too(rng):
    for dtype in (np.float32, np.float64):
        p = rng.standard_normal((300, 2)).astype(dtype)
        wanted = np.log(np.exp(p).sum(-1)).sum()
        compiled = ge2.jit(lambda p: np.log(np.exp(p).sum(-1)).sum())
        np.testing.assert_allclose(compiled(p), wanted, rtol=1e-5)
        simd = r"omp simd reduction[^\n]*\n +for[^#]*#pragma GCC unroll 2"
        assert re.search(simd, str(compiled.lower(p).kernels[0]))


@pytest.mark.parametrize("width", [2, 3, 9])
def test_columns_of_points_are_folded_in_panels_of_a_longer_axis(width: int, rng: Any) -> None:
    """What waits for a sum over the first axis goes through memory as it lies, not down columns."""

    def f(x: Any, d: Any) -> Any:
        share = x / x.sum(0)
        parts = share[..., None] * d
        return parts.sum(0), parts.sum(1)

    x, d = rng.random((50, 70)), rng.random((50, 70, width))
    for threads in (1, 2):
        with config.using(threads=threads, executor="c"):
            low = ge2.jit(f).lower(x, d)
            for found, wanted in zip(low.executable(x, d), f(x, d), strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-12)
    text = "".join(map(str, low.kernels))
    assert ("(i0 + i)" in text) == (width <= 8)


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8], ids=str)
def test_rows_of_very_few_are_written_out_though_all_arrays_have_them(dtype, width, rng):
    """With more arrays than gcc looks at, it made no vectors: it cannot tell that none overlap."""

    def weighted(xs, ws):
        return sum(x.astype(np.float32) * w[:, None] for x, w in zip(xs, ws, strict=True))

    xs = [(rng.random((300, width)) * 9).astype(dtype) for _ in range(12)]
    ws = [rng.random(300).astype(np.float32) for _ in range(12)]
    compiled = ge2.jit(weighted)
    all_close(compiled(xs, ws), weighted(xs, ws), rtol=1e-6)
    (kernel,) = compiled.lower(xs, ws).kernels
    simd = rf"omp simd[^\n]*\n +for \(int64_t i [^#]*#pragma GCC unroll {width}\n"
    assert re.search(simd, str(kernel))


def test_single_columns_of_points_are_read_by_strides_that_gcc_does_not_know(rng):
    """Of a step of 2 that it knows it reads all between and shuffles, 1.4 times as slow with many arrays."""

    def moved(p, v):
        c = np.floor(p[:, 0] * 9) + np.floor(p[:, 1] * 9) * 9
        return c, v + 0.1 * c[:, None]

    p, v = rng.random((300, 2)), rng.random((300, 2))
    compiled = ge2.jit(moved)
    all_close(compiled(p, v), moved(p, v), rtol=1e-12)
    (kernel,) = compiled.lower(p, v).kernels
    assert "GCC unroll" not in str(kernel)


def warped(x: Any, h: Any) -> Any:
    """Pixels of another view, at places that take many operations each."""
    i, j = np.arange(40, dtype=np.float32)[:, None], np.arange(300, dtype=np.float32)
    w = h[0] * j + h[1] * i + 1
    u, v = (h[2] * j + i) / w, (h[3] * i + j) / w
    rows, columns = np.round(u).astype(np.int32), np.round(v).astype(np.int32)
    inside = (rows >= 0) & (rows < x.shape[0]) & (columns >= 0) & (columns < x.shape[1])
    y = x[np.clip(rows, 0, x.shape[0] - 1), np.clip(columns, 0, x.shape[1] - 1)]
    return np.where(inside[..., None], y, 0), np.sqrt(u * u + v * v + 1), y


@pytest.mark.parametrize("dtype", ["u1", "f4", "f8", "c8", "?"])
@pytest.mark.parametrize("width", [2, 3, 4, 16])
def test_places_of_short_rows_are_found_by_vectors(width: int, dtype: str, rng: Any) -> None:
    x = (9 * rng.normal(size=(50, 310, width))).astype(dtype)
    h = np.array([1e-3, 2e-3, 0.01, 0.02], np.float32)
    compiled = ge2.jit(warped)
    for found, wanted in zip(compiled(x, h), warped(x, h), strict=True):
        assert found.dtype == wanted.dtype
        all_close(found, wanted, rtol=1e-6)
    text = "".join(map(str, compiled.lower(x, h).kernels))
    block = r"_at\[128\];\n(?: +\w+ \w+\[128\];\n)* +#pragma omp simd\n +for .*_width;"
    assert re.search(block, text)


def test_an_index_beyond_is_an_error_within_a_block(rng: Any) -> None:
    x, place = rng.normal(size=(500, 3)), rng.normal(size=1000)

    def picked(x: Any, place: Any) -> Any:
        return x[np.round(249 * np.tanh(np.exp(place) * place)).astype(int)] * 2

    compiled = ge2.jit(picked)
    all_close(compiled(x, place), picked(x, place))  # some are negative
    with pytest.raises(IndexError, match="out of bounds for axis 0 with size 200"):
        compiled(x[:200], place)


def scaled_rows(x: Any) -> Any:
    """Functions of rows between reductions of these, and results of both."""
    scale = np.exp2(np.floor(np.log2(np.abs(x).max(-1) + 0.5)))
    y = np.abs(x) / scale[..., None]
    norm = np.log1p(np.exp(y.sum(-1)) / (1 + scale * scale))
    return y * norm[..., None] + x * x, norm, (x * x + y).sum(-1) * scale, y


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("shape", [(1000, 3), (257, 16), (33, 20), (40, 70, 32), (3, 90, 5)])
def test_functions_of_short_rows_are_taken_by_vectors(shape: Any, dtype: str, rng: Any) -> None:
    x = rng.normal(size=shape).astype(dtype)
    compiled, over = ge2.jit(scaled_rows), ge2.jit(scaled_rows, donate_argnums=0)
    wanted = scaled_rows(x)
    for found in (compiled(x), over(x.copy())):
        for ours, theirs in zip(found, wanted, strict=True):
            all_close(ours, theirs, rtol=3e-5 if dtype == "f4" else 1e-12)
    if dtype == "f4" and shape[-1] == 32:
        text = "".join(map(str, compiled.lower(x).kernels))
        assert re.search(r"#pragma omp simd\n +for .*_width; \w\+\+\) \{\n[^}]*ge2_log2_f32", text)
