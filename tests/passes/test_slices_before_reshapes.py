"""Slices and work on both sides of reshapes that split or merge axes are one kernel."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ge2
from ge2.base.config import config
from ge2.compile import compile_graph
from ge2.ir import ArrayType
from ge2.ops.shape import Slice, slice_before_reshape
from ge2.targets.cuda.emulator import OfflineDevice, limits_of
from tests.together import needs_compiler

F32 = np.float32


def axes(size: int, draw: random.Random) -> tuple[int, ...]:
    """Axes of so many elements in all, some of size 1."""
    found = []
    while size > 1:
        n = draw.choice([n for n in range(1, size + 1) if size % n == 0])
        found.append(n)
        size //= n
    return tuple(found) or (1,)


def sliced(n: int, draw: random.Random) -> tuple[int, int, int]:
    start = draw.randrange(n)
    return draw.choice([(0, n, 1), (start, draw.randint(start + 1, n), draw.randint(1, 3))])


@given(st.integers(0, 1 << 30))
def test_a_slice_has_the_elements_of_one_of_the_reshape(seed: int) -> None:
    draw = random.Random(seed)
    size = draw.choice([6, 8, 12, 16, 24, 36])
    before, after = axes(size, draw), axes(size, draw)
    op = Slice(*zip(*(sliced(n, draw) for n in after), strict=True))
    x = np.arange(size).reshape(before)
    wanted, inner = op.reference(x.reshape(after)).ravel(), slice_before_reshape(op, before, after)
    if inner is not None:
        inner.infer(ArrayType(before, x.dtype))
        np.testing.assert_array_equal(inner.reference(x).ravel(), wanted)
    elif len(before) == 1:  # of a line it has what is equally far apart
        assert len({*np.diff(wanted)}) > 1


@pytest.mark.parametrize(
    ("op", "before", "after"),
    [
        (Slice((0,), (0,), (1,)), (0,), (0,)),
        (Slice((0, 0), (2, 2), (1, 1)), (6,), (2, 3)),
        (Slice((1,), (5,), (1,)), (2, 3), (6,)),
        (Slice((0,), (6,), (4,)), (2, 3), (6,)),
    ],
)
def test_others_have_none(op: Slice, before: Any, after: Any) -> None:
    assert slice_before_reshape(op, before, after) is None


def overlapped(x: Any) -> Any:
    """Windowed frames, four of which cover each sample."""
    b, n, k = x.shape
    p = (x * np.linspace(0, 1, k, dtype=x.dtype)).reshape(b, n, 4, k // 4)
    out = np.zeros((b, n + 3, k // 4), x.dtype)
    for i in range(4):
        out[:, i : i + n] += p[:, :, i]
    return out.reshape(b, -1) / 1.5


def thirds(x: Any) -> Any:
    y = np.tanh(x).reshape(len(x), 3, -1)
    return y[:, 1] + y[:, 0] * y[:, 2]


def corners(x: Any) -> Any:
    y = np.tanh(x).reshape(len(x) // 2, 3, -1)
    return y[1:3, 0, 1:] - y[2:4, 2, :-1]


def framed(x: Any) -> Any:
    return np.pad(np.exp(x), ((1, 2), (0, 0))).reshape(-1) * 2 + 1


def framed_rows(x: Any) -> Any:
    return np.concatenate([x[:1], np.exp(x), x[-1:]]).reshape(-1) * 2 + 1


ONE: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]] = {
    "overlapped": (overlapped, (2, 5, 12), (4, 512, 1024)),
    "thirds": (thirds, (8, 12), (512, 3072)),
    "corners": (corners, (8, 6), (512, 768)),
    "framed": (framed, (3, 4), (512, 1024)),
}
OTHERS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "framed rows": (framed_rows, (3, 4)),
    "one frame": (overlapped, (1, 1, 4)),
    "no frames": (overlapped, (2, 0, 8)),
    "a line": (lambda x: (y := np.tanh(x).reshape(-1))[8:20] * 2 + y[4:16], (8, 4)),
    "a stack": (lambda x: np.stack([x * 2, x + 1], -1).reshape(8, -1) * 3 - 1, (8, 6)),
    "a sum": (lambda x: np.concatenate([x * 2, x + 1], 1).reshape(3, 4, 2).sum(1), (3, 4)),
    "turns": (lambda x: (y := np.tanh(x).reshape(-1))[::2] - y[1::2], (8, 4)),
    "in both": (lambda x: (y := np.pad(x * 2, 1)) * y.reshape(-1, 6).sum(1)[0], (4, 3)),
}


@pytest.mark.parametrize("name", ONE)
def test_it_is_one_kernel(name: str) -> None:
    function, _, shape = ONE[name]
    graph = ge2.make_jaxpr(function)(ge2.ShapeDtypeStruct(shape, F32)).graph
    made = compile_graph(graph, name="f", device=OfflineDevice(limits_of("sm_90a")))
    assert len(made.kernels) == 1


@needs_compiler
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_it_means_the_same(dtype: Any) -> None:
    cases = [*[case[:2] for case in ONE.values()], *OTHERS.values()]
    arrays = [np.random.default_rng(3).normal(size=shape).astype(dtype) for _, shape in cases]

    @ge2.jit
    def together(xs: Any) -> Any:
        return [f(x) for (f, _), x in zip(cases, xs, strict=True)]

    with config.using(executor="emulator"):
        found = together(arrays)
    for (f, _), x, y in zip(cases, arrays, found, strict=True):
        np.testing.assert_allclose(y, f(x), 1e-5, 1e-6)
