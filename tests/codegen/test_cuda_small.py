"""Small folds on a GPU: over rows by blocks a sector wide, and of rows and
columns by a single block.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.targets.cuda.load.nvrtc import Order, compile_all
from tests.codegen.texts import kernels
from tests.nvrtc import needs_nvrtc
from tests.together import needs_compiler

BF16 = ml_dtypes.bfloat16
FLOATS = (np.float32, np.float64, np.float16, BF16)
LOOSE = {np.dtype(np.float16): 4e-3, np.dtype(BF16): 3e-2, np.dtype(np.float64): 1e-12}


def on_shim(f: Any, *xs: Any, watch: bool = False) -> Any:
    """The results, of which a second call has the same bits; `watch`: accesses to memory that no
    barrier sets apart are errors.
    """
    with config.using(executor="shim", shim_watch=watch):
        compiled = ge2.jit(f)
        found, again = ([np.asarray(y) for y in ge2.tree.leaves(compiled(*xs))] for _ in range(2))
    assert [y.tobytes() for y in found] == [y.tobytes() for y in again]
    return found


def agree(f: Any, *xs: Any) -> None:
    """As NumPy in float64, or exactly where numbers are whole."""
    wide = [x.astype(np.float64) if x.dtype in map(np.dtype, FLOATS) else x for x in xs]
    for y, w in zip(on_shim(f, *xs), ge2.tree.leaves(f(*wide)), strict=True):
        loose = LOOSE.get(y.dtype, 2e-5) if y.dtype in map(np.dtype, FLOATS) else 0
        scale = float(np.abs(np.asarray(w, np.float64)).max(initial=1))
        np.testing.assert_allclose(y.astype(np.float64), w, rtol=loose, atol=loose * scale)


# --------------------------------------------------------------------------------- folds over rows


def masked(x: Any, m: Any) -> Any:
    y = x * m
    return y, y.sum(0)


def with_state(x: Any, m: Any) -> Any:
    """What is folded is read again, with something of the columns' own."""
    y = x * m
    s = y.sum(0)
    return y, 0.5 * x[0] + s * s, s.max()


def standardised(x: Any, m: Any) -> Any:
    """Rows are gone through twice, the second time with what the first has found."""
    d = x - x.mean(0)
    return d / (abs(d).max(0) + 1), m.sum(0)


def several(x: Any, m: Any) -> Any:
    return x.sum(0), x.max(0), np.argmin(x, 0), (x > m).any(0), (x * m).sum(0)


def by_rows(x: Any, m: Any) -> Any:
    """Numbers of the rows' own are read among theirs."""
    return (x * m[:, :1]).sum(0), x + np.tanh(m[:, :1])


SHAPES = [(16, 1), (33, 40), (300, 77), (2100, 5)]  # rows at once, and in several rounds


@pytest.mark.exhaustive
@needs_compiler
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("f", [masked, with_state, standardised, several, by_rows])
def test_folds_over_rows(f: Any, shape: tuple[int, int], rng: np.random.Generator) -> None:
    agree(f, *(rng.normal(size=shape).astype(np.float32) for _ in range(2)))


@pytest.mark.exhaustive
@needs_compiler
@pytest.mark.parametrize("dtype", [*FLOATS[1:], np.int8, np.uint64], ids=lambda d: d.__name__)
def test_folds_over_rows_of_other_dtypes(dtype: Any, rng: np.random.Generator) -> None:
    x, m = (rng.integers(0, 5, (150, 37)).astype(dtype) for _ in range(2))
    agree(masked, x, m)
    agree(lambda x, m: (x.max(0), np.argmax(x, 0), (x == m).sum(0)), x, m)


@needs_compiler
def test_folds_over_several_axes(rng: np.random.Generator) -> None:
    x, s = (
        rng.normal(size=(6, 20, 9)).astype(np.float32),
        rng.normal(size=(20, 1)).astype(np.float32),
    )
    agree(lambda x, s: ((x * s).sum((0, 1)), (x + s).max(1)), x, s)
    agree(lambda x, s: (x * s).transpose(1, 0, 2).sum(0) + 1, x, s)
    agree(lambda x, s: (x * s * x.sum((0, 1))).sum((0, 1)), x, s)


@needs_compiler
def test_numbers_that_are_none(rng: np.random.Generator) -> None:
    x = rng.normal(size=(40, 6)).astype(np.float32)
    x[3, 0], x[39, 1], x[:, 2], x[5, 3] = np.nan, np.inf, -0.0, -np.inf
    with np.errstate(all="ignore"):
        for y, w in zip(
            on_shim(lambda x: (x.max(0), x.sum(0)), x), (x.max(0), x.sum(0)), strict=True
        ):
            np.testing.assert_allclose(y, w, rtol=1e-5)
            np.testing.assert_array_equal(np.isnan(y), np.isnan(w))


@pytest.mark.parametrize(
    ("shape", "blocks", "threads"),
    [
        ((128, 256), 32, 512),
        ((64, 256), 32, 512),
        ((192, 1024), 128, 512),
        ((256, 1024), 128, 512),
        ((512, 1024), 128, 512),
        ((1024, 1024), 128, 1024),
        ((256, 4096), 256, 1024),
        ((128, 10), 2, 512),
    ],
)
def test_a_small_sum_is_one_kernel_of_many_blocks(shape: Any, blocks: int, threads: int) -> None:
    for f in (masked, lambda x, m: (x * m).sum(0)):
        ((kernel, text),) = kernels(f, *(np.zeros(shape, np.float32) for _ in range(2)))
        assert (kernel.grid, kernel.block) == ((blocks, 1), threads)
        assert "[AT_ONCE]" in text


def test_blocks_share_the_rows_of_large_sums() -> None:
    """There, blocks are 128 columns wide."""
    for shape in ((16384, 8192), (4096, 1024), (512, 8192), (8, 1000)):
        (kernel, text), *_ = kernels(lambda x: x.sum(0), np.broadcast_to(np.float32(0), shape))
        assert "AT_ONCE" not in text and kernel.block == 256


def test_rows_that_no_other_block_may_share_are_read_by_many_blocks() -> None:
    """Unless they are so many that others had better share them."""
    for shape, blocks in (((1100, 1024), 128), ((1020, 4096), 256)):
        x, m = (np.broadcast_to(np.float32(0), s) for s in (shape, shape[1:]))
        ((kernel, _),) = kernels(lambda x, m: x / (x.sum(0) + m), x, m)
        assert kernel.grid == (blocks, 1)
    for shape in ((16384, 4096), (4096, 256)):
        found = kernels(lambda x: x / x.sum(0), np.broadcast_to(np.float32(0), shape))
        assert [kernel.kind for kernel, _ in found] == ["reduce", "finish", "pointwise"]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_few_columns_of_many_rows_are_shared_and_what_follows_is_a_kernel_of_its_own(
    dtype: Any,
) -> None:
    x, m = np.broadcast_to(np.zeros((), dtype), (32768, 256)), np.zeros(256, np.float32)
    (first, _), *rest = kernels(lambda x, m: (x.astype("f4").sum(0) + m) * m, x, m)
    assert first.grid[0] * first.grid[1] >= 132
    assert [kernel.kind for kernel, _ in rest] == ["finish", "pointwise"]


# --------------------------------------------------------------------- rows and columns of a block


def cross_entropy(z: Any, b: Any, y: Any) -> Any:
    z = z.astype(np.float64 if z.dtype == np.float64 else np.float32) + b
    z = z - z.max(-1, keepdims=True)
    log_p = z - np.log(np.exp(z).sum(-1, keepdims=True))
    return -np.take_along_axis(log_p, y[:, None], -1).mean()


def trained(z: Any, b: Any, y: Any) -> Any:
    """The gradients by rows and by columns, and what an optimiser makes of the latter at once."""
    loss, (dz, db) = ge2.value_and_grad(cross_entropy, (0, 1))(z, b, y)
    return loss, dz, 0.9 * b + 0.1 * db, db * db


def worked_out(z: Any, b: Any, y: Any) -> Any:
    wide, rows = z.astype(np.float64) + b, np.arange(len(y))
    e = np.exp(wide - wide.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    loss = -np.log(p[rows, y]).mean()
    p[rows, y] -= 1
    dz, db = p / len(y), p.sum(0) / len(y)
    return loss, dz, 0.9 * b + 0.1 * db, db * db


LABELLED = [(1, 2), (5, 3), (128, 10), (257, 10), (1000, 10), (70, 64)]
OTHERS = [
    ((130, 10), np.float64),
    ((130, 10), BF16),
    ((40, 33), np.float16),
    ((40, 33), np.float64),
]


@pytest.mark.exhaustive("dtype")
@needs_compiler
@pytest.mark.parametrize(
    ("shape", "dtype"), [*((shape, np.float32) for shape in LABELLED), *OTHERS]
)
def test_a_loss_and_its_gradients(
    shape: tuple[int, int], dtype: Any, rng: np.random.Generator
) -> None:
    z, b = rng.normal(size=shape).astype(dtype), rng.normal(size=shape[1]).astype(np.float32)
    b, y = b.astype(dtype) if dtype == np.float64 else b, rng.integers(0, shape[1], shape[0])
    loose = {np.float64: 1e-12, np.float32: 2e-6, np.float16: 2e-3, BF16: 1e-2}[dtype]
    for i, (x, w) in enumerate(zip(on_shim(trained, z, b, y), worked_out(z, b, y), strict=True)):
        rtol = loose if i == 1 else 1e-12 if dtype == np.float64 else 2e-5
        np.testing.assert_allclose(x.astype(np.float64), w, rtol=rtol, atol=2e-7)


def normal_columns(x: Any) -> Any:
    """A largest element of all, sums of rows and of columns, and what is made of each."""
    scaled = x / x.sum(1, keepdims=True)
    return scaled, np.exp(scaled.sum(0)), scaled.max() * 2, x.max(1)


@pytest.mark.exhaustive
@needs_compiler
@pytest.mark.parametrize("shape", [(2, 2), (31, 7), (64, 16), (129, 20), (33, 100)])
def test_sums_of_rows_and_columns_that_are_read_again(shape: Any, rng: np.random.Generator) -> None:
    agree(normal_columns, (rng.random(shape) + 0.5).astype(np.float32))


def many_sums(x: Any) -> Any:
    d = x - x.mean(1, keepdims=True)
    return tuple(((d + i) * d).sum(0) * 0.5 for i in range(4))


@needs_compiler
def test_many_sums_find_room_to_meet(rng: np.random.Generator) -> None:
    agree(many_sums, rng.normal(size=(20, 200)).astype(np.float32))


@pytest.mark.exhaustive
@pytest.mark.parametrize("batch", [1, 29, 128, 192, 256, 512, 1024])
def test_a_loss_is_one_kernel_of_one_block(batch: int) -> None:
    z, b, y = np.zeros((batch, 10), np.float32), np.zeros(10, np.float32), np.zeros(batch, np.int64)
    for f in (trained, lambda z, b, y: ge2.value_and_grad(cross_entropy)(z, b, y)):
        ((kernel, _),) = kernels(f, z, b, y)
        assert kernel.grid == (1, 1) or batch == 1


def test_larger_ones_are_shared_by_blocks() -> None:
    z, b, y = np.zeros((8192, 10), np.float32), np.zeros(10, np.float32), np.zeros(8192, np.int64)
    assert any(max(k.grid) > 8 for k, _ in kernels(trained, z, b, y))


@needs_compiler
def test_threads_meet_before_they_read_what_others_have(rng: np.random.Generator) -> None:
    x = (rng.random((20, 10)) + 0.5).astype(np.float32)
    for f, xs in ((with_state, (x, x)), (standardised, (x, x)), (normal_columns, (x,))):
        for y, w in zip(on_shim(f, *xs, watch=True), ge2.tree.leaves(f(*xs)), strict=True):
            np.testing.assert_allclose(y, w, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------------------------- compiled


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


@needs_nvrtc
def test_they_compile_without_spills() -> None:
    x, z, b, y = zeros(256, 1024), zeros(256, 10), zeros(10), np.zeros(256, np.int32)
    works: dict[str, list[tuple[Any, ...]]] = {
        "sm_80": [(with_state, x, x), (trained, z, b, y)],
        "sm_90a": [(several, x, x), (trained, z.astype(np.float64), b, y)],
        "sm_100": [(many_sums, zeros(20, 200)), (trained, z, b, y)],
    }
    for architecture, asked in works.items():
        texts = [text for f, *xs in asked for _, text in kernels(f, *xs, arch=architecture)]
        for made in compile_all([Order(text, architecture) for text in texts]):
            assert not any(usage.spills for usage in made.kernels), (architecture, made.kernels)
