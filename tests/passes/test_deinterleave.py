"""Work on interleaved parts is done to the parts, and arrays that alternate move by whole accesses."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ge2
from ge2.base.config import config
from ge2.compile import compile_graph
from ge2.compile.catalog import interpret
from ge2.ops.shape import Concatenate, Reshape
from ge2.passes import TIDY
from ge2.passes.context import run
from ge2.passes.loops.parts import deinterleave
from ge2.targets.cuda.emulator import OfflineDevice, limits_of
from tests.together import needs_compiler

Function = Callable[..., Any]


def woven(*parts: Any) -> Any:
    return np.stack(parts, -1).reshape(*parts[0].shape[:-1], -1)


def haar(x: Any) -> Any:
    low, parts = x, []
    for _ in range(3):
        a, b = low[:, ::2], low[:, 1::2]
        parts.append(np.abs(a - b))
        low = a + b
    for d in parts[::-1]:
        low = woven(low + d, low - d)
    return low


def written(x: Any) -> Any:
    y = np.empty_like(x)
    y[:, ::2], y[:, 1::2] = x[:, 1::2] * 2, x[:, ::2] - 1
    return np.tanh(y) + x


def blocks(x: Any) -> Any:
    """Of images by 2 x 2."""
    a, b, c, d = x[::2, ::2], x[::2, 1::2], x[1::2, ::2], x[1::2, 1::2]
    return np.stack([woven(a * 2, b + c), woven(b - c, d * 3)], 1).reshape(x.shape)


SPLIT: dict[str, Function] = {
    "levels": haar,
    "another array": lambda x: np.tanh(woven(x[:, ::2] * 2, x[:, 1::2])) + x,
    "a row": lambda x: woven(x[:, ::2] - 1, x[:, 1::2] * 2) * x[0],
    "parts": lambda x: np.abs(woven(*(y := (x[:, ::2] * 2, x[:, 1::2] + 1))) - woven(*y[::-1])),
    "threes": lambda x: np.abs(woven(x[:, ::3] * 2, x[:, 1::3] + 1, x[:, 2::3])) * x,
    "rows": lambda x: np.abs(np.stack([x[::2] + x[1::2], x[::2] - x[1::2]], 1).reshape(x.shape)),
    "slices": lambda x: (y := woven(x[:, ::2] * 2, x[:, 1::2] + 1))[:, 2::4] - y[:, 1::4],
    "written": written,
}
LEFT: dict[str, Function] = {
    "a result": lambda x: ((y := woven(x[:, ::2] * 2, x[:, 1::2])), np.abs(y)),
    "a sum": lambda x: (y := woven(x[:, ::2] * 2, x[:, 1::2])) - y.sum(1, keepdims=True),
    "wider": lambda x: woven(x[:, ::2] * 2, x[:, 1::2]).astype(np.float64),
    "many": lambda x: np.abs(woven(*(x[:, i::6] * i for i in range(6)))),
    "used whole": lambda x: (
        woven(x[:, ::2] * 2, x[:, 1::2]) + (z := np.exp(x)),
        z.sum(1),
    ),
}
X = np.random.default_rng(5).standard_normal((8, 48)).astype(np.float32)


def graph_of(function: Function, *xs: Any) -> Any:
    return run(TIDY, ge2.make_jaxpr(function)(*xs).graph)


@pytest.mark.parametrize("name", SPLIT)
def test_work_on_parts_is_before_joins(name: str) -> None:
    graph = graph_of(SPLIT[name], X)
    found = deinterleave(graph)
    assert found != graph
    joined = set[Any]()
    for e in found.eqns:
        if isinstance(e.op, Concatenate) or not joined.isdisjoint(e.inputs):
            assert isinstance(e.op, Concatenate | Reshape)
            joined.update(e.outs)
    np.testing.assert_array_equal(interpret(found, [X])[0], interpret(graph, [X])[0])


@pytest.mark.parametrize("name", LEFT)
def test_others_are_left(name: str) -> None:
    graph = graph_of(LEFT[name], X)
    assert deinterleave(graph) == graph


@st.composite
def programs(draw: Any) -> list[tuple[str, int, int]]:
    """Steps of a function, each with two numbers."""
    kinds = st.sampled_from(["weave", "weave", "weave", "add", "abs", "keep", "slice", "rows"])
    number = st.integers(0, 3)
    return draw(st.lists(st.tuples(kinds, number, number), min_size=2, max_size=7))


def done(steps: Sequence[tuple[str, int, int]], x: Any) -> Any:
    """A function of these steps, which takes parts, and joins others."""
    kept, others = x, [x]
    for kind, i, j in steps:
        n = 2 + i % 3
        if kind == "weave" and x.shape[1] % n == 0:
            parts = [x[:, k::n] for k in range(n)]
            x = woven(*(parts[k] * (k + 1) - parts[(k + j) % n] for k in range(n)))
        elif kind == "rows" and x.shape[0] % 2 == 0:
            x = np.stack([x[::2] + x[1::2], x[1::2] - i], 1).reshape(x.shape)
        elif kind == "add":
            x = x + kept if x.shape == kept.shape else x + 1
        elif kind == "abs":
            x = np.abs(x) - j
        elif kind == "keep":
            kept, others = x, [*others, x * 2][-2:]
        elif kind == "slice" and x.shape[1] >= 8:
            x = x[:, i :: j + 1]
    return [x, *others]


@given(programs(), st.sampled_from([24, 32, 36]))
def test_the_pass_keeps_the_meaning(steps: list[tuple[str, int, int]], n: int) -> None:
    x = np.arange(4.0 * n).reshape(4, n) % 7
    graph = graph_of(lambda x: done(steps, x), x)
    for found, wanted in zip(interpret(deinterleave(graph), [x]), done(steps, x), strict=True):
        np.testing.assert_array_equal(found, wanted)


@needs_compiler
@settings(max_examples=10)
@given(
    programs(), st.sampled_from([24, 32, 36]), st.sampled_from([np.float32, np.int8, np.float64])
)
def test_kernels_keep_the_meaning(steps: list[tuple[str, int, int]], n: int, dtype: Any) -> None:
    x = (np.arange(4 * n).reshape(4, n) % 7).astype(dtype)
    with config.using(executor="emulator"):
        found = ge2.jit(lambda x: done(steps, x))(x)
    for y, wanted in zip(found, done(steps, x), strict=True):
        np.testing.assert_array_equal(y, wanted)


# ------------------------------------------------------------- accesses of arrays that alternate


def on_gpu(function: Function, *xs: Any) -> list[str]:
    """The kernels of a program for an H200."""
    specs = [ge2.ShapeDtypeStruct(x.shape, x.dtype) for x in xs]
    graph = ge2.make_jaxpr(function)(*specs).graph
    made = compile_graph(graph, name="f", device=OfflineDevice(limits_of("sm_90a")))
    return [str(k) for k in made.kernels]


def array(shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    return np.zeros(shape, dtype)


def turned(x: Any) -> Any:
    a, b = x[:, ::2], x[:, 1::2]
    return woven(a - b, a + b)


def twice(x: Any) -> Any:
    """Work for which a kernel of its own read what another had written."""
    return turned(x) * 2 + x


ACCESSES: dict[str, tuple[Function, tuple[int, ...], Any, str]] = {
    "pairs": (turned, (64, 4096), np.float32, "PACK * 2, 4"),
    "pairs of halves": (turned, (64, 4096), ml_dtypes.bfloat16, "PACK * 2, 8"),
    "pairs of doubles": (turned, (64, 4096), np.float64, "PACK * 2, 2"),
    "eights": (haar, (64, 4096), np.float32, "PACK * 8, 4"),
    "images": (blocks, (512, 512), np.float32, "PACK * 2, 4"),
    "and work on it": (twice, (64, 4096), np.float32, "PACK * 2, 4"),
    "written": (written, (64, 4096), np.float32, "PACK * 2, 4"),
}


@pytest.mark.parametrize("name", ACCESSES)
def test_arrays_that_alternate_are_moved_together(name: str) -> None:
    function, shape, dtype, how = ACCESSES[name]
    (kernel,) = on_gpu(function, array(shape, dtype))
    assert f"ge2_read<{how}>" in kernel
    assert f"ge2_write<{how}>" in kernel
    assert not re.search(r"\w\[i\b", kernel)  # no element is read or written by itself


def test_rows_that_begin_at_no_whole_accesses() -> None:
    def some(x: Any) -> Any:
        return turned(x[:, 2:])

    (kernel,) = on_gpu(some, array((64, 4098)))
    assert "ge2_read<PACK * 2, 2>" in kernel
    assert "ge2_write<PACK * 2, 4>" in kernel


def test_part_of_the_alternating_arrays_is_written_by_itself() -> None:
    def some(x: Any) -> Any:
        y = np.zeros_like(x)
        y[:, ::2] = x[:, ::2] * 2 + x[:, 1::2]
        return y

    assert not any("ge2_write<PACK * 2" in k for k in on_gpu(some, array((64, 4096))))


def test_a_vector_of_every_second_place_does_not_turn_the_lane() -> None:
    """Threads beside each other have columns, though a strided vector has none side by side."""
    (kernel,) = on_gpu(lambda x, g: turned(x) * g, array((64, 4096)), array((4096,)))
    assert kernel.count("ge2_read<PACK * 2, 4>") == 2


def test_columns_of_points_are_no_alternating_elements() -> None:
    """Threads that have points would read each coordinate eight elements apart; those of a row share it."""

    def nearest(x: Any, centres: Any) -> Any:
        far = ((x[:, None] - centres) ** 2).sum(-1)
        own = far.argmin(1)[:, None] == np.arange(16)
        return own.sum(0), own.T.astype(x.dtype) @ x

    kernels = on_gpu(nearest, array((20000, 8), np.float64), array((16, 8), np.float64))
    assert "threads a row" in kernels[0]


def sums(x: Any) -> Any:
    """Of rows, and of columns, with work of the parts beside."""
    a, b = x[:, ::2], x[:, 1::2]
    return (a * b).sum(0), (a - b).sum(1), np.maximum(a, b), (a + b).max(0)


@needs_compiler
@pytest.mark.exhaustive("shape", "dtype", table="sums of every other element")
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("shape", [(2, 16), (67, 10), (300, 24), (5, 258), (33, 32)])
def test_folds_equal_numpy(shape: tuple[int, int], dtype: Any) -> None:
    x = (np.arange(shape[0] * shape[1]).reshape(shape) % 5).astype(dtype)
    with config.using(executor="emulator"):
        found = ge2.jit(sums)(x)
    for y, wanted in zip(found, sums(x), strict=True):
        np.testing.assert_array_equal(y, wanted)


@needs_compiler
@pytest.mark.exhaustive("shape", "dtype", table="every other element")
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.float16])
@pytest.mark.parametrize("shape", [(2, 16), (3, 10), (4, 24), (1, 2), (2, 96), (34, 32)])
def test_kernels_equal_numpy(shape: tuple[int, int], dtype: Any) -> None:
    x = (np.arange(shape[0] * shape[1]).reshape(shape) % 5).astype(dtype)
    cases = [turned, twice]
    cases += [haar] if shape[1] % 8 == 0 else []
    cases += [blocks] if shape[0] % 2 == 0 else []
    with config.using(executor="emulator"):
        found = ge2.jit(lambda x: [f(x) for f in cases])(x)
    for y, f in zip(found, cases, strict=True):
        np.testing.assert_array_equal(y, f(x))
