"""Associative scans of several arrays in CUDA against their reference, on the CPU, a fiber a thread."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.arrays import BFLOAT16, HALF
from ge2.base.config import config
from ge2.choice import Pin
from ge2.compile import compile_graph
from ge2.ir import ArrayType, Eqn, Graph, Var
from ge2.ops.graphs.associative import AssociativeScan
from ge2.targets.cuda.emulator import EMULATED, ShimDevice
from tests.exhaustive import sampled
from tests.kernels.programs import needs_compiler

pytestmark = needs_compiler
F32, F64, F16, C64, BOOL, I32 = (np.dtype(each) for each in ("f4", "f8", "f2", "c8", "?", "i4"))


def following(a: Any, b: Any, c: Any, d: Any) -> list[Any]:
    """Two steps of h = a h + b as one."""
    return [a * c, c * b + d]


def online(m: Any, s: Any, o: Any, n: Any, t: Any, p: Any) -> list[Any]:
    """A softmax's largest, its sum and what it weighs."""
    most = np.maximum(m, n)
    x, y = np.exp(m - most), np.exp(n - most)
    return [most, s * x + t * y, o * x + p * y]


def in_segments(begins: Any, x: Any, starts: Any, y: Any) -> list[Any]:
    return [begins | starts, np.where(starts, y, x + y)]


def scaled(s: Any, x: Any, t: Any, y: Any) -> list[Any]:
    """Numbers times what a half type tells."""
    return [s * t, x * t.astype(np.float32) + y]


def last_of(n: Any, x: Any, m: Any, y: Any) -> list[Any]:
    """Counts elements, and keeps the last that is not 0; the result that nothing is made of is a number."""
    return [n + m, np.where(y == 0, x, y)]


PAIRS: dict[str, tuple[Any, tuple[np.dtype, ...]]] = {
    "following": (following, (F32, F32)),
    "following in double": (following, (F64, F64)),
    "following in half": (following, (F16, F16)),
    "following in bfloat16": (following, (BFLOAT16, BFLOAT16)),
    "scaled in half": (scaled, (F16, F32)),
    "following in the plane": (following, (C64, C64)),
    "online": (online, (F32, F32, F32)),
    "segments": (in_segments, (BOOL, F32)),
    "last": (last_of, (I32, F64)),
}
SHAPES = (
    ((1,), 0), ((33,), 0), ((4099,), 0), ((40_000,), 0), ((3, 9001), 1), ((300, 5), 1), ((70, 64), 1), ((5, 12, 1), 1),
    ((97, 3), 0), ((64, 130), 0), ((2, 600, 8), 1), ((3, 2, 40, 4), 2), ((0, 3), 0), ((3, 0), 0),
)  # fmt: skip


def pair_of(name: str) -> Graph:
    fn, dtypes = PAIRS[name]
    return ge2.make_jaxpr(fn)(*(np.zeros((), d)[()] for d in dtypes * 2)).graph


def arrays_of(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> list[Any]:
    def drawn(dtype: np.dtype) -> Any:
        if dtype.kind == "c":
            return np.exp(1j * rng.standard_normal(shape)).astype(dtype) * dtype.type(0.9)
        if dtype.kind == "f" or dtype == BFLOAT16:
            return np.tanh(rng.standard_normal(shape)).astype(dtype)
        return (rng.integers(0, 9, shape) == 0).astype(dtype)

    return [drawn(dtype) for dtype in PAIRS[name][1]]


def made(op: AssociativeScan, arrays: list[Any], kept: list[int], seed: int) -> list[Any]:
    """Some of its results on the shim: the same bits in another order of the threads."""
    inputs = tuple(Var(ArrayType(x.shape, x.dtype)) for x in arrays)
    outs = tuple(Var(v.type) for v in inputs)
    graph = Graph(inputs, (Eqn(op, inputs, outs),), tuple(outs[i] for i in kept))
    found = [
        compile_graph(graph, device=ShimDevice(config.tuned(EMULATED), s))(*arrays)
        for s in (seed, seed + 100)
    ]
    assert [x.tobytes() for x in found[0]] == [x.tobytes() for x in found[1]]
    return list(found[0])


@pytest.mark.parametrize(
    ("name", "where", "reverse", "way"),
    sampled(product(PAIRS, SHAPES, (False, True), ("", "whole lines", "blocks share lines"))),
)
def test_prefixes_in_cuda(name, where, reverse, way):
    (shape, axis), rng = where, np.random.default_rng(len(name))
    op = AssociativeScan(pair_of(name), axis, reverse)
    arrays = arrays_of(name, shape, rng)
    kept = [len(arrays) - 1] if reverse else list(range(len(arrays)))
    pins = (Pin("associative scan in CUDA", way),) if way else ()
    with config.using(pins=pins):
        found = made(op, arrays, kept, seed=len(way))
    want = op.reference(*arrays)
    for i, y in zip(kept, found, strict=True):
        assert y.dtype == want[i].dtype
        # the reference rounds each product and sum of halves
        half = any(x.dtype in HALF for x in arrays)
        close = 0.05 if half else 1e-10 if y.dtype == F64 else 2e-4
        y = y.astype(np.float32) if y.dtype in HALF else y
        np.testing.assert_allclose(y, want[i].astype(y.dtype), rtol=close, atol=close)


def test_a_scan_is_one_kernel_and_what_clears_its_words():
    op = AssociativeScan(pair_of("following"), 0)
    x = Var(ArrayType((100_000,), F32))
    outs = Var(x.type), Var(x.type)
    graph = Graph((x,), (Eqn(op, (x, x), outs),), outs[1:])
    kernels = compile_graph(graph, device=ShimDevice(config.tuned(EMULATED))).kernels
    assert len(kernels) == 1
    assert kernels[0].written < 1.2 * x.type.nbytes  # the product is not stored
