"""Two products and the region that reads both as one kernel, on a GPU: against NumPy in float64, the
same bits each run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ge2.base.config import config
from ge2.choice import Pin
from ge2.targets.cuda.load.gpu import current_gpu
from tests.kernels.pair_cases import FAMILIES, GATES, LAYERS, TILES, gated, gradients
from tests.kernels.wgmma_cases import BF16, F16, drawn, exactly, odd, on_gpu, silu

SHAPES = [(64, 64, 64), (200, 264, 72), (456, 776, 328), (1000, 2056, 520), (2048, 2048, 2048)]


@pytest.fixture(autouse=True, params=[*FAMILIES])
def kind(request: Any) -> Any:
    generation = current_gpu().limits.generation
    if generation < 80 or (request.param == "wgmma" and generation != 90):
        pytest.skip("the GPU does not have the instructions of these kernels")
    with config.using(prefer=(FAMILIES[request.param],)):
        yield request.param


@pytest.fixture
def xp() -> Any:
    return current_gpu().xp


def slope_of(x: Any, w: Any, v: Any) -> Any:
    """How far f(x @ w) g(x @ v) moves, at most, with either sum: no f or g here is steeper than 1.1,
    or larger than what it is of, or 1.
    """
    a, b = exactly(lambda x, w, v: (x @ w, x @ v), x, w, v)
    return 1.1 * (np.maximum(np.abs(a), 1) + np.maximum(np.abs(b), 1))


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("gate", GATES)
def test_gates(xp: Any, kind: str, gate: str, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    shapes = (456, 328), (328, 776), (328, 776)
    if kind == "mma":
        shapes = tuple(map(odd, shapes))  # type: ignore[assignment]
    xs = [drawn(rng, s, dtype) for s in shapes]
    on_gpu(xp, gated(gate), xs, FAMILIES[kind], 328, slope=slope_of(*xs))


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(xp: Any, kind: str, name: str, dtype: Any) -> None:
    function, shapes = LAYERS[name]
    rng = np.random.default_rng(1)
    through = {"through": dtype} if name == "an array in float32" else {}
    on_gpu(xp, function, [drawn(rng, s, dtype) for s in shapes], FAMILIES[kind], 72, **through)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("number", range(5))
def test_tiles(xp: Any, kind: str, number: int, shape: tuple[int, int, int], turned: bool) -> None:
    if number >= len(TILES[kind]):
        pytest.skip("there are no more tiles")
    m, n, k = shape
    rng, one = np.random.default_rng(2), (n, k) if turned else (k, n)
    x, w, v = (drawn(rng, s, BF16) for s in ((m, k), one, one))

    def function(x: Any, w: Any, v: Any) -> Any:
        return silu(x @ (w.T if turned else w)) * np.tanh(x @ (v.T if turned else v))

    with config.using(pins=(Pin(FAMILIES[kind], TILES[kind][number]),)):
        slope = slope_of(x, w.T if turned else w, v.T if turned else v)
        on_gpu(xp, function, (x, w, v), FAMILIES[kind], k, slope=slope)


def test_forward_and_backward_of_a_gated_unit(xp: Any, kind: str) -> None:
    """A result is made of rounded ones no more than once: no product is stored."""
    import ge2
    from tests.kernels.wgmma_cases import kinds

    rng = np.random.default_rng(3)
    xs = [drawn(rng, s, BF16) for s in ((520, 328), (328, 776), (328, 776), (520, 776))]
    given = [xp.asarray(x) for x in xs]
    compiled = ge2.jit(gradients)
    assert kinds(compiled, *given) == [FAMILIES[kind]]
    found = [xp.asnumpy(y).astype("f8") for y in compiled(*given)]
    x, w, v, ct = (np.asarray(each, np.float64) for each in xs)
    a, b = x @ w, x @ v
    s = 1 / (1 + np.exp(-a))
    wanted = a * s * b, ct * b * (s + a * s * (1 - s)), ct * a * s
    for y, exact in zip(found, wanted, strict=True):
        size = np.maximum(np.abs(exact), 328**0.5)
        assert (np.abs(y - exact) / size).max() < 4 * 2.0**-8
