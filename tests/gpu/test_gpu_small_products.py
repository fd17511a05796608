"""Small products on a GPU: by a kernel of ours, beside float64 and beside the library."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from benchmarks.cuda.small_products import SHAPES
from ge2.base.arrays import HALF
from ge2.base.config import config
from ge2.cli import demo as digits
from ge2.compile import compile_graph
from ge2.ops.dot import DotGeneral
from ge2.targets.cuda.load.gpu import CudaDevice, current_gpu
from ge2.test_util.laws import graph_of, types_of
from tests.gpu.test_gpu_products import drawn
from tests.kernels.product_cases import DTYPES, F32, judge


@pytest.fixture
def device() -> CudaDevice:
    return current_gpu()


def small(device: CudaDevice, op: DotGeneral, a: Any, b: Any) -> Any:
    """The product, by our kernel, and with the same bits again."""
    run = compile_graph(graph_of(op, types_of([a, b])), device=device)
    assert [k.kind for k in run.kernels] == ["small product"]
    xs = [device.xp.asarray(x) for x in (a, b)]
    found, again = (run(*xs)[0].get() for _ in range(2))
    assert found.tobytes() == again.tobytes(), "other bits again"
    return found


def turned(a: Any, b: Any, turn: str) -> tuple[DotGeneral, Any, Any]:
    """The operation and the operands as they lie, so that it is a @ b."""
    contract = ((0 if "a" in turn else 1,), (1 if "b" in turn else 0,))
    x, y = (z.T.copy() if role in turn else z for role, z in (("a", a), ("b", b)))
    return DotGeneral(contract), x, y


@pytest.mark.parametrize("name", SHAPES)
def test_the_shapes_of_networks(device: CudaDevice, name: str, rng: np.random.Generator) -> None:
    m, k, n, turn, _ = SHAPES[name]
    a, b = drawn(rng, F32, m, k), drawn(rng, F32, k, n)
    judge(small(device, *turned(a, b, turn)), a, b, F32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("turn", ["", "a", "b", "ab"])
def test_every_dtype_and_turn(
    device: CudaDevice, dtype: np.dtype, turn: str, rng: np.random.Generator
) -> None:
    for m, n, k in (
        (16, 16, 64), (1, 65, 33), (65, 1, 33), (17, 31, 65), (30, 127, 700), (1000, 18, 12),
    ):  # fmt: skip
        a, b = drawn(rng, dtype, m, k), drawn(rng, dtype, k, n)
        judge(small(device, *turned(a, b, turn)), a, b, dtype)


def test_every_size(device: CudaDevice, rng: np.random.Generator) -> None:
    """Rows whose lengths are no multiple of what one access moves."""
    for n in range(1, 70, 3):
        a, b = drawn(rng, F32, n, n + 1), drawn(rng, F32, n + 1, n + 2)
        judge(small(device, DotGeneral(((1,), (0,))), a, b), a, b, F32)


def test_batches(device: CudaDevice, rng: np.random.Generator) -> None:
    q, k = drawn(rng, F32, 2, 33, 3, 16), drawn(rng, F32, 2, 17, 3, 16)
    found = small(device, DotGeneral(((3,), (3,)), ((0, 2), (0, 2))), q, k)
    for i in range(2):
        for j in range(3):
            judge(found[i, j], q[i, :, j], k[i, :, j].T, F32)


def test_parts_of_arrays(device: CudaDevice, rng: np.random.Generator) -> None:
    xp, a, b = device.xp, drawn(rng, F32, 34, 22), drawn(rng, F32, 22, 19)
    cut = ge2.jit(lambda a, b: a[1:, 1:] @ b[1:, 1:])
    judge(cut(xp.asarray(a), xp.asarray(b)).get(), a[1:, 1:], b[1:, 1:], F32)


def test_a_thousand_replays_give_the_same_bits(
    device: CudaDevice, rng: np.random.Generator
) -> None:
    """Products that read what those before them wrote, launched as a graph."""
    xp = device.xp
    w = [xp.asarray(drawn(rng, F32, 256, 256) / 16) for _ in range(4)]
    f = ge2.jit(lambda x, w: np.tanh(np.tanh(np.tanh(x @ w[0]) @ w[1]) @ w[2].T).T @ w[3][:128])
    x = xp.asarray(drawn(rng, F32, 128, 256))
    first = f(x, w).get()
    for _ in range(1000):
        found = f(x, w)
    assert found.get().tobytes() == first.tobytes()


def test_the_library_agrees(device: CudaDevice, rng: np.random.Generator) -> None:
    xp = device.xp
    f, g = (ge2.jit(lambda a, b: a @ b) for _ in range(2))
    a, b = (xp.asarray(drawn(rng, F32, *s)) for s in ((128, 256), (256, 256)))
    with config.using(passes_off=("small_products",)):
        wanted = f(a, b).get()
    np.testing.assert_allclose(g(a, b).get(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_done_to_the_elements(
    device: CudaDevice, dtype: np.dtype, rng: np.random.Generator
) -> None:
    """The same bits as by a kernel for the product and one for the rest, but for a sum, which takes
    in what was rounded when it was stored; state stays where it is.
    """
    xp = device.xp

    def step(w: Any, x: Any, b: Any, mask: Any) -> Any:
        y = np.tanh(x @ w + b) * mask
        return w - (x.T @ y) * dtype.type(0.125), y, y.sum(0)

    x, w, b = drawn(rng, dtype, 130, 24), drawn(rng, dtype, 24, 90), drawn(rng, dtype, 90)
    xs = [xp.asarray(z) for z in (w, x, b, rng.random((130, 90)) < 0.5)]
    f, g = (ge2.jit(step) for _ in range(2))
    small = ("small product and region in CUDA",)  # tensor cores add up in another order
    with config.using(passes_off=("epilogue",)):
        wanted = [y.get() for y in f(*xs)]
    with config.using(prefer=small):
        found = [y.get() for y in g(*xs)]
        kinds = [k.kind for k in g.lower(*xs).executable.kernels]
    assert kinds.count("contraction") == 2
    assert [y.tobytes() for y in found[:2]] == [y.tobytes() for y in wanted[:2]]
    close = 2e-2 if dtype in HALF else 1e-5
    np.testing.assert_allclose(
        found[2].astype("f8"), wanted[2].astype("f8"), rtol=close, atol=close
    )
    donated = ge2.jit(step, donate_argnums=0)
    given = xs[0].copy()
    place = given.data.ptr
    with config.using(prefer=small):
        again = donated(given, *xs[1:])
    assert again[0].get().tobytes() == found[0].tobytes() and again[0].data.ptr == place


def test_the_digits_learn_the_same(device: CudaDevice) -> None:
    """Steps of the demo with a donated state, by our products and by the library's."""
    state = ge2.tree.map(
        lambda a: device.xp.asarray(a) if isinstance(a, np.ndarray) else a, digits.start()
    )
    rng = np.random.default_rng(0)
    x = device.xp.asarray(rng.random((128, 64), np.float32))
    y = device.xp.asarray(rng.integers(0, 10, 128))

    def losses(off: tuple[str, ...]) -> list[float]:
        with config.using(passes_off=off):
            f = ge2.jit(digits.train_step, donate_argnums=0)
            now, found = ge2.tree.map(lambda a: a.copy() if hasattr(a, "copy") else a, state), []
            for _ in range(20):
                now, loss = f(now, x, y)
                found.append(float(loss))
        return found

    np.testing.assert_allclose(losses(()), losses(("small_products",)), rtol=1e-3)


@pytest.mark.parametrize("dtype", [F32, np.dtype("f8")], ids=str)
@pytest.mark.parametrize("sides", [(16, 16, 16), (9, 13, 27)])
def test_many_and_what_follows(
    device: CudaDevice, dtype: np.dtype, sides: tuple[int, int, int], rng: np.random.Generator
) -> None:
    m, n, k = sides
    a, b = drawn(rng, dtype, 5000, m, k), drawn(rng, dtype, 5000, k, n)
    bias = drawn(rng, dtype, n)
    f = ge2.jit(lambda a, b, bias: np.maximum(a @ b + bias, 0))
    xs = [device.xp.asarray(x) for x in (a, b, bias)]
    assert [x.kind for x in f.lower(*xs).executable.kernels] == ["contraction"]
    want = np.maximum(a.astype("f8") @ b.astype("f8") + bias, 0)
    np.testing.assert_allclose(f(*xs).get(), want, rtol=0, atol=1e-4 if dtype == F32 else 1e-12)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lead", [(5,), (2, 70)])
def test_tiles_of_many_and_what_follows(
    device: CudaDevice, dtype: np.dtype, lead: tuple[int, ...], rng: np.random.Generator
) -> None:
    m, n, k = 50, 36, 70
    a, b = (drawn(rng, dtype, *lead, *each) for each in ((m, k), (k, n)))
    bias = drawn(rng, dtype, *lead, 1, n)
    f = ge2.jit(lambda a, b, bias: np.maximum(a @ b + bias, 0))
    xs = [device.xp.asarray(x) for x in (a, b, bias)]
    found = f(*xs).get().astype("f8")
    wide = [x.astype("f8") for x in (a, b, bias)]
    want, size = np.maximum(wide[0] @ wide[1] + wide[2], 0), abs(wide[0]) @ abs(wide[1])
    assert (abs(found - want) <= 4 * float(ml_dtypes.finfo(dtype).eps) * (size + 1)).all()


@pytest.mark.parametrize("dtype", [np.dtype("f4"), np.dtype("f8")], ids=str)
@pytest.mark.parametrize("rows", [100_000, 65_537, 40_001])
def test_long_sums_of_few_elements(
    device: CudaDevice, dtype: np.dtype, rows: int, rng: np.random.Generator
) -> None:
    a, b = drawn(rng, dtype, rows, 30), drawn(rng, dtype, rows, 27)
    f = ge2.jit(lambda a, b: a.T @ b / len(a))
    xs = [device.xp.asarray(x) for x in (a, b)]
    found, again = f(*xs).get(), f(*xs).get()
    want = a.T.astype("f8") @ b.astype("f8") / rows
    scale = abs(a.T).astype("f8") @ abs(b).astype("f8") / rows
    assert found.tobytes() == again.tobytes()
    assert (abs(found - want) <= 40 * np.finfo(dtype).eps * scale).all()
