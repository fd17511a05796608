"""Elementwise work and reductions on both sides of a reshape have the axes of both."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.compile import compile_graph
from ge2.ir import Graph, verify
from ge2.ops.graphs.region import Region
from ge2.ops.shape import blocks
from ge2.passes import TIDY
from ge2.passes.context import run
from ge2.passes.fuse import fuse
from ge2.passes.take_to_mask import is_cut, same_axes
from ge2.targets.cuda.emulator import OfflineDevice, limits_of
from tests.together import needs_compiler

F32 = np.float32


def groups(x: Any, w: Any, b: Any, count: int = 3) -> Any:
    """A normalisation of groups of channels."""
    y = x.reshape(x.shape[0], count, -1)
    c = y - y.mean(-1, keepdims=True)
    y = c / np.sqrt((c * c).mean(-1, keepdims=True) + 1e-5)
    return y.reshape(x.shape) * w[:, None, None] + b[:, None, None]


def patches(x: Any) -> Any:
    """Sums of squares, and their largest, along parts of rows."""
    y = np.tanh(x).reshape(x.shape[0], 4, -1)
    z = (y - y.max(axis=(0, 2), keepdims=True)).transpose(2, 0, 1)
    return np.exp(z).reshape(-1, 2, x.shape[0], 2, 2).sum(axis=(1, 3)), y.sum(1)


def flat(x: Any, y: Any) -> Any:
    """A loss of pictures, which reads one array in both shapes."""
    p, u = (1 / (1 + np.exp(-x))).reshape(len(x), -1), y.reshape(len(y), -1)
    return (p * u).sum(-1) / (p.sum(-1) + u.sum(-1))


def across(x: Any) -> Any:
    """Six elements are cut into two and three on the one side, three and two on the other."""
    return np.tanh(np.exp(x).reshape(2, 3) * 2.0).reshape(3, 2).sum(1)


def both(x: Any) -> Any:
    y = np.exp(x).reshape(2, 3)
    return (y.sum(0), (y * 2.0).reshape(6), (np.exp(y.reshape(3, 2)) + 1.0).sum(1))


def normal(*shape: int) -> Any:
    return np.random.default_rng(shape).normal(size=shape)


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "groups": (groups, (normal(2, 6, 4, 5), normal(6), normal(6))),
    "patches": (patches, (normal(3, 16),)),
    "flat": (flat, (normal(3, 2, 4, 5), normal(3, 2, 4, 5))),
    "across": (across, (normal(6),)),
    "both": (both, (normal(6),)),
    "gradient": (
        lambda *xs: ge2.grad(lambda *ys: (groups(*ys) ** 2).sum(), (0, 1, 2))(*xs),
        (normal(2, 6, 4, 5), normal(6), normal(6)),
    ),
    "one row": (groups, (normal(1, 6, 1, 5), normal(6), normal(6))),
    "none": (lambda x: np.exp(np.tanh(x).reshape(2, 3, 0)) * 2.0, (normal(2, 6, 0),)),
}


def rewritten(f: Callable[..., Any], xs: tuple[Any, ...]) -> tuple[Graph, Graph, list[Any]]:
    closed = ge2.make_jaxpr(f)(*xs)
    before = run(TIDY, closed.graph)
    return before, same_axes(before), [*closed.captured, *xs]


@pytest.mark.parametrize("name", CASES)
def test_the_values_are_the_same(name: str) -> None:
    before, after, given = rewritten(*CASES[name])
    verify(after)
    for found, wanted in zip(after(*given), before(*given), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize(("name", "regions"), [("groups", 1), ("flat", 1), ("across", 2)])
def test_there_is_one_region(name: str, regions: int) -> None:
    """But for shapes that cannot be cut into the same axes."""
    _, after, _ = rewritten(*CASES[name])
    assert sum(isinstance(e.op, Region) for e in fuse(after).eqns) == regions


def test_what_follows_a_product_stays_with_it() -> None:
    """Its kernel adds the bias; the reshape is of what it leaves."""

    def f(x: Any, w: Any, b: Any) -> Any:
        y = (x @ w + b).reshape(len(x), 4, -1)
        return (y - y.mean(-1, keepdims=True)).reshape(len(x), -1) * 2.0

    _, after, _ = rewritten(f, (normal(5, 3), normal(3, 8), normal(8)))
    product, *_ = (e for e in after.eqns if e.op.name == "dot_general")
    (reader,) = (e for e in after.eqns if product.outs[0] in e.inputs)
    assert reader.op.name == "add" and reader.outs[0].type.shape == (5, 8)
    assert sum(is_cut(e) for e in after.eqns if e.op.name == "reshape") == 2


def test_a_reshape_before_a_product_stays() -> None:
    def f(x: Any, w: Any) -> Any:
        return np.tanh(x).reshape(-1, 4) @ w

    before, after, _ = rewritten(f, (normal(2, 3, 4), normal(4, 5)))
    assert after is before


def test_blocks_have_the_same_elements() -> None:
    """An axis of size 1 belongs to none."""
    shapes = (2, 1, 6, 4), (2, 3, 8, 1)
    found = list(blocks(*shapes))
    assert found == [((0,), (0,)), ((2, 3), (1, 2))]
    for sides in found:
        each = [math.prod(s[d] for d in axes) for s, axes in zip(shapes, sides, strict=True)]
        assert each[0] == each[1]


def test_a_group_norm_reads_its_array_twice() -> None:
    """Once for the rows, in shared memory, and once for the sums over all of them."""
    shapes = (8, 512, 64, 64), (512,), (512,)
    xs = [ge2.ShapeDtypeStruct(s, "float32") for s in shapes]

    def f(x: Any, w: Any, b: Any) -> Any:
        y, pull = ge2.vjp(lambda *ys: groups(*ys, count=32), x, w, b)
        return (y, *pull(y))

    made = compile_graph(ge2.make_jaxpr(f)(*xs).graph, device=OfflineDevice(limits_of("sm_90a")))
    large = sum(k.cost.read + k.cost.written for k in made.kernels)
    assert large < 1.01 * 3 * 4 * math.prod(shapes[0])  # x is read, y and its slope are written
    assert [k.name for k in made.kernels] == ["rowwise_0"]


@needs_compiler
@pytest.mark.parametrize("dtype", [F32, ml_dtypes.bfloat16])
def test_rows_along_two_axes_in_the_emulator(dtype: Any) -> None:
    """Packs lie along the last of them, in registers and in shared memory."""
    x, w, b = (normal(*s).astype(dtype) for s in ((2, 6, 8, 16), (6,), (6,)))
    with config.using(executor="emulator"):
        found = ge2.jit(groups)(x, w, b)
    wanted = groups(*(a.astype(np.float64) for a in (x, w, b)))
    np.testing.assert_allclose(
        found.astype(np.float64), wanted, atol=1e-5 if dtype == F32 else 0.05
    )


@needs_compiler
def test_rows_of_half_types_in_shared_memory() -> None:
    """They were taken for rows of float32 where no row was read ahead: of bfloat16 the softmax of
    60,000 elements was NaN.
    """

    def softmax(x: Any) -> Any:
        h = x.astype(F32)
        e = np.exp(h - h.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    x = normal(1, 60_000).astype(ml_dtypes.bfloat16)
    with config.using(executor="emulator"):
        np.testing.assert_allclose(ge2.jit(softmax)(x), softmax(x), rtol=1e-5)


def test_what_is_rolled_before_keeps_its_axes() -> None:
    """A kernel reads its parts where they are, which it could not along axes that are cut."""

    def f(u: Any) -> Any:
        u = u + 0.2 * (np.roll(u, 1, 0) + np.roll(u, -1, 1) - 2 * u)
        rest = u - np.roll(u, 1, 0)
        return u, rest.reshape(3, 2, 4, 2).mean(axis=(1, 3))

    before, after, _ = rewritten(f, (normal(6, 8),))
    assert after is before or all(
        len(e.outs[0].type.shape) <= 2 for e in after.eqns if e.op.name in ("sub", "add", "mul")
    )
