"""Regions write results that are rolled where their elements belong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.compile import compile_graph
from ge2.compile.catalog import interpret
from ge2.compile.steps import rolled_results
from ge2.ir import ArrayType, verify
from ge2.ops.graphs import Rolled, rolled
from ge2.passes import TIDY
from ge2.passes.context import run
from ge2.passes.fuse import fuse
from ge2.targets.cuda.emulator import OfflineDevice, limits_of
from tests.together import needs_compiler

Function = Callable[..., Any]
Case = tuple[tuple[int, ...], Any, Any, Any]

# shapes, dtypes, shifts and axes: negative, beyond the size, along axes of size 1, of nothing
CASES: list[Case] = [
    ((5, 7), np.float32, 1, 0),
    ((5, 7), np.float32, -1, 1),
    ((5, 7), np.float32, (12, -9), (0, 1)),
    ((5, 7), np.float32, (0, 7), (0, 1)),
    ((5, 7), np.bool_, 23, 1),
    ((5, 8), np.int8, (2, 3), (0, 1)),
    ((4, 256), np.int64, (0, 1), (0, 1)),
    ((16, 64), np.float16, (3, 0), (0, 1)),
    ((16, 64), np.float16, (3, 4), (0, 1)),
    ((33,), ml_dtypes.bfloat16, -5, 0),
    ((6, 5), np.complex64, (2, 3), (0, 1)),
    ((6, 5), np.complex128, 1, 0),
    ((3, 4, 5), np.float64, (1, 2, 3), (0, 1, 2)),
    ((2, 3, 1, 4), np.float32, (1, 1, 1, 1), (0, 1, 2, 3)),
    ((70, 130), np.float32, (-1, 1), (0, 1)),
    ((1, 5), np.float32, 2, 0),
    ((5, 1), np.float32, (2, 3), (0, 1)),
    ((0, 5), np.float32, 2, 0),
    ((0, 5), np.float32, 2, 1),
    ((13,), np.float32, 27, None),
]


def drawn(shape: tuple[int, ...], dtype: Any) -> Any:
    found = np.random.default_rng(7).integers(0, 9, shape)
    return (found * (1 + 1j) if np.dtype(dtype).kind == "c" else found).astype(dtype)


def work(x: Any) -> Any:
    return ~x if x.dtype == np.bool_ else x * x + x


def shift(case: Case, x: Any) -> Any:
    return np.roll(work(x), *case[2:])


PROGRAMS: dict[str, Function] = {
    "halves": lambda x, y: np.fft.fftshift(np.abs(x) + y),
    "several": lambda x, y: np.stack([np.roll(x * y, i, 1) for i in range(-2, 3)]),
    "of each": lambda x, y: [np.roll(x - y * i, (i, -i), (0, 1)) for i in range(3)],
    "and itself": lambda x, y: (np.roll(x * y, 2, 1), x * y, np.roll(x * y, 1, 0)),
    "and joined": lambda x, y: ((r := np.roll(x * y, 2, 1)), np.concatenate([r, y])),
    "parts": lambda x, y: np.concatenate([np.roll(x * y, 1, 0), y, np.roll(x - y, 1, 1)], 1),
    "repeated": lambda x, y: np.roll((x[:1] * 2) * np.ones_like(y), 2, 1),
    "turned": lambda x, y: np.roll((x * y).T, (2, 1), (0, 1)),
    "of a roll": lambda x, y: np.roll(np.roll(x * y, 3, 1) * 2 + y, 1, 0),
    "on and back": lambda x, y: np.roll(np.roll(x * y, 3, 1), -3, 1),
    "of rows": lambda x, y: np.roll(x - x.max(1, keepdims=True), (1, 2), (0, 1)),
    "counts": lambda x, y: np.roll(x * np.arange(10, dtype=x.dtype) + y, (1, 2), (0, 1)),
    "a cast": lambda x, y: np.roll((x * y).astype(np.float16), 3, 1),
    "sorted": lambda x, y: np.sort(np.roll(x * y, 3, 1), 1),
    "multiplied": lambda x, y: np.roll(x * y, 3, 1) @ y.T,
    "of a stencil": lambda x, y: np.roll(np.roll(x, 1, 0) + np.roll(x, -1, 1) - y, 1, 1),
}
X, Y = drawn((6, 10), np.float32), drawn((6, 10), np.float32)[::-1].copy()


@needs_compiler
def test_kernels_write_elements_where_they_belong() -> None:
    arrays = [drawn(*case[:2]) for case in CASES]

    @ge2.jit
    def together(xs: Any) -> Any:
        return [shift(case, x) for case, x in zip(CASES, xs, strict=True)]

    with config.using(executor="emulator"):
        found = together(arrays)
    for case, x, y in zip(CASES, arrays, found, strict=True):
        np.testing.assert_array_equal(y, shift(case, x), str(case))


@needs_compiler
def test_programs_mean_the_same() -> None:
    @ge2.jit
    def together(x: Any, y: Any) -> Any:
        return [function(x, y) for function in PROGRAMS.values()]

    with config.using(executor="emulator"):
        found = together(X, Y)
    for name, y in zip(PROGRAMS, found, strict=True):
        wanted = PROGRAMS[name](X, Y)
        several = isinstance(wanted, list | tuple)
        for a, b in zip(y if several else [y], wanted if several else [wanted], strict=True):
            np.testing.assert_array_equal(a, b, name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_graph_means_the_same(name: str) -> None:
    closed = ge2.make_jaxpr(PROGRAMS[name])(X, Y)
    graph = run((*TIDY, fuse), closed.graph)
    found = verify(rolled_results(graph))
    given = [*closed.captured, X, Y]
    for a, b in zip(interpret(found, given), interpret(graph, given), strict=True):
        np.testing.assert_array_equal(a, b)


def on_gpu(function: Function, *shapes: tuple[int, ...]) -> list[str]:
    """The kernels of a program for an H200."""
    specs = [ge2.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    graph = ge2.make_jaxpr(function)(*specs).graph
    made = compile_graph(graph, name="f", device=OfflineDevice(limits_of("sm_90a")))
    return [str(k) for k in made.kernels]


def streamed(f: Any) -> Any:
    """Populations that move on, each its own way."""
    w = f.mean(0)
    ways = [(0, 0), (1, 0), (0, 1), (-1, 1)]
    return np.stack([np.roll(f[i] + (w - f[i]) * 0.5, way, (0, 1)) for i, way in enumerate(ways)])


@pytest.mark.parametrize(
    "function", [PROGRAMS[n] for n in ("halves", "several", "of each", "and itself", "of a roll")]
)
def test_one_kernel_computes_and_moves(function: Function) -> None:
    (kernel,) = on_gpu(function, (512, 1024), (512, 1024))
    assert "rolled[" in kernel


def test_populations_are_read_and_written_once() -> None:
    (kernel,) = on_gpu(streamed, (4, 512, 1024))
    assert "rolled[" in kernel


def test_neighbours_that_stay_neighbours_are_written_together() -> None:
    (kernel,) = on_gpu(lambda x, y: np.roll(x * y, 3, 0), (512, 1024), (512, 1024))
    assert "ge2_write<PACK, 4>" in kernel
    (kernel,) = on_gpu(lambda x, y: np.roll(x * y, 3, 1), (512, 1024), (512, 1024))
    assert "PACK" not in kernel


def test_no_result_is_written_over_what_is_read_elsewhere() -> None:
    def step(x: Any) -> Any:
        return np.roll(x * 2, (1, 3), (0, 1))

    x = drawn((64, 64), np.float32)
    with config.using(executor="emulator"):
        found = ge2.jit(step, donate_argnums=0)(x.copy())
    np.testing.assert_array_equal(found, step(x))


@pytest.mark.parametrize(
    "join",
    [
        lambda z: np.concatenate([z[6:], z[3:6], z[:3]]),
        lambda z: np.concatenate([z[6:], z[:5]]),
        lambda z: np.concatenate([z[5:], z[:6]]),
        lambda z: np.concatenate([z[:6], z[6:]]),
        lambda z: np.concatenate([z[6:][::-1], z[:6]]),
        lambda z: np.concatenate([z[6:, 1:], z[:6, 1:]]),
        lambda z: np.concatenate([z[6:], (z * 2)[:6]]),
    ],
)
def test_other_joins_are_no_rolls(join: Function) -> None:
    x = np.arange(20.0).reshape(10, 2)
    graph = run(TIDY, ge2.make_jaxpr(lambda x: join(np.tanh(x)))(x).graph)
    assert not rolled(graph)


def test_shifts_are_within_the_size() -> None:
    t = ArrayType((4, 5), np.dtype(np.float32))
    assert Rolled((3, 0)).infer(t) == (t,)
    for wrong in ((4, 0), (-1, 0), (1,)):
        with pytest.raises(ge2.errors.TypeRuleError, match="not rolled"):
            Rolled(wrong).infer(t)
