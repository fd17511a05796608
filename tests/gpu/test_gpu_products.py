"""Matrix products on a GPU: cuBLASLt for operands as they lie, tiles in CUDA for the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.compile import compile_graph
from ge2.ir import ArrayType
from ge2.ops.dot import DotGeneral
from ge2.targets.cuda.device import Device
from ge2.targets.cuda.launch.library_call import Wanted
from ge2.targets.cuda.load.gpu import CudaDevice, current_gpu
from ge2.targets.cuda.products import by_blas, tight
from ge2.test_util.laws import graph_of, types_of
from tests.kernels.product_cases import BF16, judge, wide

FLOATING = [BF16, *map(np.dtype, ("f2", "f4", "f8", "c8", "c16"))]
EXACT = [np.dtype(t) for t in ["i1", "u2", "i4", "i8", "u8", "?"]]
PLAIN = DotGeneral(((1,), (0,)))


@pytest.fixture
def device() -> CudaDevice:
    return current_gpu()


def drawn(rng: np.random.Generator, dtype: np.dtype, *shape: int) -> Any:
    if dtype.kind == "b":
        return rng.random(shape) < 0.2
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if dtype.kind == "c" else x).astype(dtype)


def on(device: Any, op: DotGeneral, a: Any, b: Any) -> Any:
    run = compile_graph(graph_of(op, types_of([a, b])), device=device)
    found = run(device.xp.asarray(a), device.xp.asarray(b))[0]
    again = run(device.xp.asarray(a), device.xp.asarray(b))[0]
    assert found.get().tobytes() == again.get().tobytes(), "other bits again"
    return found.get()


@pytest.mark.parametrize("dtype", [*FLOATING, *EXACT], ids=str)
def test_every_dtype_at_odd_sizes(
    device: CudaDevice, dtype: np.dtype, rng: np.random.Generator
) -> None:
    for m, n, k in (
        (1, 1, 1), (1, 65, 33), (65, 1, 33), (7, 5, 1), (17, 33, 65), (64, 64, 64), (3, 2, 127),
    ):  # fmt: skip
        a, b = drawn(rng, dtype, m, k), drawn(rng, dtype, k, n)
        judge(on(device, PLAIN, a, b), a, b, dtype)


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_every_size(device: CudaDevice, dtype: np.dtype, rng: np.random.Generator) -> None:
    """Rows whose lengths are no multiple of what one access moves."""
    for n in range(1, 66, 2 if dtype.itemsize < 8 else 8):
        a, b = drawn(rng, dtype, n, n + 1), drawn(rng, dtype, n + 1, n + 2)
        judge(on(device, PLAIN, a, b), a, b, dtype)


@pytest.mark.parametrize("dtype", [BF16, *map(np.dtype, ("f2", "f4", "f8", "i4"))], ids=str)
def test_large(device: CudaDevice, dtype: np.dtype, rng: np.random.Generator) -> None:
    a, b = drawn(rng, dtype, 1000, 1537), drawn(rng, dtype, 1537, 771)
    judge(on(device, PLAIN, a, b), a, b, dtype)


@pytest.mark.parametrize("dtype", [BF16, np.dtype("f2")], ids=str)
def test_half_types_give_float32_unrounded(
    device: CudaDevice, dtype: np.dtype, rng: np.random.Generator
) -> None:
    op = DotGeneral(((1,), (0,)), out=np.dtype(np.float32))
    for m, n, k in ((17, 33, 65), (128, 256, 512), (1, 7, 4097)):
        a, b = drawn(rng, dtype, m, k), drawn(rng, dtype, k, n)
        judge(on(device, op, a, b), a, b, np.dtype(np.float32))


def test_long_sums_of_half_types_are_rounded_once(
    device: CudaDevice, rng: np.random.Generator
) -> None:
    """Parts of a sum are added in float32: many ones, and a result that float16 holds exactly."""
    a = np.ones((8, 32768), np.float16)
    b = np.full((32768, 8), 2.0**-4, np.float16)
    np.testing.assert_array_equal(on(device, PLAIN, a, b), np.full((8, 8), 2048.0, np.float16))


@pytest.mark.parametrize("dtype", [BF16, np.dtype("f4"), np.dtype("c16"), np.dtype("i4")], ids=str)
def test_turned_operands_are_not_copied(
    device: CudaDevice, dtype: np.dtype, rng: np.random.Generator
) -> None:
    xp = device.xp
    a, b = drawn(rng, dtype, 33, 20), drawn(rng, dtype, 20, 18)
    turns = {
        "as they are": (lambda x, y: x @ y, a, b),
        "the first": (lambda x, y: x.T @ y, a.T.copy(), b),
        "the second": (lambda x, y: x @ y.T, a, b.T.copy()),
        "both": (lambda x, y: x.T @ y.T, a.T.copy(), b.T.copy()),
    }
    for f, x, y in turns.values():
        run = ge2.jit(f)
        judge(run(xp.asarray(x), xp.asarray(y)).get(), a, b, dtype)
        kernels = run.lower(xp.asarray(x), xp.asarray(y)).executable.kernels
        assert [k.kind for k in kernels if "product" not in k.kind] == []


@pytest.mark.parametrize("dtype", [BF16, np.dtype("f4"), np.dtype("f8"), np.dtype("i4")], ids=str)
def test_batches(device: CudaDevice, dtype: np.dtype, rng: np.random.Generator) -> None:
    q, k = drawn(rng, dtype, 2, 33, 3, 16), drawn(rng, dtype, 2, 17, 3, 16)
    op = DotGeneral(((3,), (3,)), ((0, 2), (0, 2)))
    found = on(device, op, q, k)
    for i in range(2):
        for j in range(3):
            judge(found[i, j], q[i, :, j], k[i, :, j].T, dtype)
    a, b = drawn(rng, dtype, 300, 5, 7), drawn(rng, dtype, 300, 7, 3)
    found = on(device, DotGeneral(((2,), (1,)), ((0,), (0,))), a, b)
    for i in range(0, 300, 37):
        judge(found[i], a[i], b[i], dtype)


def test_sums_over_nothing(device: CudaDevice) -> None:
    for dtype in ("f4", "f2", "i4"):
        found = on(device, PLAIN, np.ones((3, 0), dtype), np.ones((0, 4), dtype))
        np.testing.assert_array_equal(found, np.zeros((3, 4), dtype))
        assert on(device, PLAIN, np.ones((0, 3), dtype), np.ones((3, 4), dtype)).shape == (0, 4)


@pytest.mark.parametrize("dtype", [BF16, np.dtype("f2"), np.dtype("f4"), np.dtype("f8")], ids=str)
def test_places_that_are_hardly_aligned(
    device: CudaDevice, dtype: np.dtype, rng: np.random.Generator
) -> None:
    """Operands and results of a loop lie among the elements of stacks, a few bytes apart."""
    xp, x, w = device.xp, drawn(rng, dtype, 5, 7), drawn(rng, dtype, 7, 7)
    run = ge2.jit(lambda w, x: ge2.lax.map(lambda r: r @ w, x))
    found = run(xp.asarray(w), xp.asarray(x)).get()
    for row, r in zip(found, x, strict=True):
        judge(row[None], r[None], w, dtype)
    cut = ge2.jit(lambda a, b: a[1:, 1:] @ b[1:, 1:])
    a, b = drawn(rng, dtype, 34, 22), drawn(rng, dtype, 22, 19)
    judge(cut(xp.asarray(a), xp.asarray(b)).get(), a[1:, 1:], b[1:, 1:], dtype)


def test_float32_is_ieee_unless_asked(device: CudaDevice, rng: np.random.Generator) -> None:
    a, b = (drawn(rng, np.dtype("f4"), 512, 512) for _ in range(2))
    exact, most = wide(a) @ wide(b), abs(wide(a)) @ abs(wide(b))

    def error(precision: str | None) -> float:
        found = on(device, DotGeneral(((1,), (0,)), precision=precision), a, b)
        return float((abs(found - exact) / most).max())

    assert error(None) < 2.0**-21 and error("highest") < 2.0**-21
    assert 2.0**-21 < error("tf32") < 2.0**-11
    assert error("bf16") < 2.0**-8


def test_the_current_stream(device: CudaDevice, rng: np.random.Generator) -> None:
    xp, run = device.xp, ge2.jit(lambda a, b: (a @ b) @ b)
    a, b = (drawn(rng, np.dtype("f8"), 700, 700) for _ in range(2))
    x, y = xp.asarray(a), xp.asarray(b)
    xp.cuda.Device().synchronize()
    stream = xp.cuda.Stream(non_blocking=True)
    with stream:
        found = run(x, y)
    stream.synchronize()
    np.testing.assert_allclose(found.get(), a @ b @ b, rtol=1e-9, atol=1e-9)


def wanted_of(dtype: np.dtype, m: int, n: int, k: int) -> Wanted:
    types = ArrayType((m, k), dtype), ArrayType((k, n), dtype)
    shapes = (m, k), (k, n), (m, n)
    found = by_blas(PLAIN, *types, tuple(tight(s, (0, 1)) for s in shapes), 16)  # type: ignore[arg-type]
    assert found is not None
    return Wanted(found[1], dtype, dtype)


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_a_capture(device: CudaDevice, dtype: np.dtype, rng: np.random.Generator) -> None:
    """A product that allocates nothing and waits for nothing stands in
    a graph, and is launched again.
    """
    xp = device.xp
    a, b = drawn(rng, dtype, 96, 4096), drawn(rng, dtype, 4096, 33)
    product = device.product(wanted_of(dtype, 96, 33, 4096))
    assert product is not None and product.workspace <= 32 << 20
    x, y, z = xp.asarray(a), xp.asarray(b), xp.zeros((96, 33), dtype)
    scratch = xp.empty(max(product.workspace, 1), np.uint8)
    # its kernel is loaded by the first call
    product(0, y.data.ptr, x.data.ptr, z.data.ptr, scratch.data.ptr)
    xp.cuda.Device().synchronize()
    stream = xp.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        product(stream.ptr, y.data.ptr, x.data.ptr, z.data.ptr, scratch.data.ptr)
        graph = stream.end_capture()
        for _ in range(2):
            z[...] = 0
            graph.launch(stream=stream)
            stream.synchronize()
            judge(z.get(), a, b, dtype)


def test_products_are_remembered(device: CudaDevice) -> None:
    wanted = wanted_of(np.dtype("f4"), 31, 17, 9)
    assert device.product(wanted) is device.product(wanted_of(np.dtype("f4"), 31, 17, 9))


class WithoutBlas(Device):
    """A device whose library multiplies nothing."""

    limits: Any = None
    xp: Any = None

    def __init__(self, device: Any) -> None:
        self.limits, self.xp, self.launches = device.limits, device.xp, device.launches
        self.prepare, self.module, self.stream = device.prepare, device.module, device.stream

    def product(self, wanted: Wanted) -> None:
        return None


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_what_no_library_multiplies(device: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
    for m, n, k in ((1, 1, 1), (17, 33, 65), (64, 3, 127)):
        a, b = drawn(rng, dtype, m, k), drawn(rng, dtype, k, n)
        with config.using(passes_off=("small_products",)):
            found = on(WithoutBlas(device), PLAIN, a, b)
        judge(found, a, b, dtype)


def test_the_derivative_of_a_layer(device: CudaDevice, rng: np.random.Generator) -> None:
    xp = device.xp
    x, w, b = (drawn(rng, np.dtype("f4"), *s) for s in ((128, 64), (64, 256), (256,)))
    f = ge2.grad(lambda x, w, b: (np.tanh(x @ w + b) ** 2).mean(), (0, 1, 2))
    for y, want in zip(ge2.jit(f)(*map(xp.asarray, (x, w, b))), f(x, w, b), strict=True):
        np.testing.assert_allclose(y.get(), want, rtol=1e-4, atol=1e-7)
