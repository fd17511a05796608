"""Attention in C, in blocks of scores that stay in caches: against NumPy in float64."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

import ge2
from ge2 import nn
from ge2.base.config import config
from tests.kernels.attention_cases import (
    DERIVED,
    DERIVED_SCORES,
    LAYOUTS,
    SCORES,
    SPELLINGS,
    Attention,
    biased,
    drawn,
    exactly,
    judge,
    judge_slopes,
    masked,
    more,
    plain,
    slopes,
    slopes_of_scores,
)
from tests.kernels.families import families_of, kinds

FAMILIES = "attention in C", "attention backward in C"
F32, F64 = np.dtype("f4"), np.dtype("f8")
BOUNDS = {F32: 2.0**-19, F64: 2.0**-48}
SLOPE_BOUNDS = {F32: 2.0**-18, F64: 2.0**-47}
DROPPED = "dropout", "dropout and bias"  # whose bits C makes in rows
OF_SEVERAL = "bias of each head", "bias of all heads"  # whose cotangents are sums over heads
types = pytest.mark.parametrize("dtype", [F32, F64], ids=str)


def checked(function: Attention, xs: Sequence[Any]) -> None:
    """Runs a function by the kernel, whose result is that of NumPy."""
    with config.using(executor="c", prefer=FAMILIES):
        compiled = ge2.jit(function)
        assert FAMILIES[0] in kinds(compiled, *xs)
        judge(compiled(*xs), exactly(function, *xs), BOUNDS[xs[0].dtype])


def checked_back(function: Attention, xs: Sequence[Any], wanted: Any = (0, 1, 2)) -> None:
    """Runs the gradient by kernels, which is that of NumPy, with any number of threads the same."""
    found = []
    for threads in (1, 2):
        with config.using(executor="c", prefer=FAMILIES, threads=threads):
            compiled = ge2.jit(slopes(function, wanted))
            assert {*FAMILIES} <= {*kinds(compiled, *xs)}
            found.append(compiled(*xs))
    judge_slopes(found[0], exactly(slopes(function, wanted), *xs), SLOPE_BOUNDS[xs[0].dtype])
    for y, w in zip(*found, strict=True):
        np.testing.assert_array_equal(y, w)


@pytest.mark.exhaustive("dtype", table="attention in C")
@types
@pytest.mark.parametrize("function", SPELLINGS, ids=lambda f: f.__name__)
def test_spellings(function: Attention, dtype: Any) -> None:
    shape = (1, 2, 72, 20)
    checked(function, drawn(np.random.default_rng(0), shape, shape, dtype))


@types
@pytest.mark.exhaustive("dtype", table="attention in C")
@pytest.mark.parametrize("name", [name for name in SCORES if name not in DROPPED])
def test_scores(name: str, dtype: Any) -> None:
    rng, shape = np.random.default_rng(1), (2, 2, 150, 12)
    checked(SCORES[name][0], drawn(rng, shape, shape, dtype) + more(rng, name, shape, shape, dtype))


@pytest.mark.exhaustive(table="attention in C")
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str) -> None:
    function, q, k = LAYOUTS[name]
    checked(function, drawn(np.random.default_rng(2), q, k, F32))


@pytest.mark.exhaustive
@pytest.mark.parametrize("lengths", [(1, 129), (64, 64), (130, 257), (3, 5)])
def test_lengths(lengths: tuple[int, int]) -> None:
    q, k = ((2, n, 9) for n in lengths)
    checked(plain, drawn(np.random.default_rng(3), q, k, F32))


@types
@pytest.mark.exhaustive
def test_queries_that_see_no_key_are_not_numbers(dtype: Any) -> None:
    """The first 100 of 150; one block of queries sees none, another has some that do."""
    shape = (1, 150, 8)
    xs = drawn(np.random.default_rng(4), shape, shape, dtype)
    checked(masked(100), xs)
    checked(masked(100, None, -1e9), xs)  # they see all alike
    lowest = float(np.finfo(dtype).min)
    with np.errstate(over="ignore"):
        checked(masked(0, None, lowest), xs)


@pytest.mark.exhaustive("dtype", table="attention in C")
@types
@pytest.mark.parametrize("name", DERIVED)
def test_gradients(name: str, dtype: Any) -> None:
    function, q, k = DERIVED[name]
    checked_back(function, drawn(np.random.default_rng(5), q, k, dtype))


@pytest.mark.exhaustive(table="attention in C")
@pytest.mark.parametrize("name", [n for n in DERIVED_SCORES if n not in (*DROPPED, *OF_SEVERAL)])
def test_gradients_of_scores(name: str) -> None:
    """By what scores are made of, too."""
    wanted, xs = slopes_of_scores(np.random.default_rng(6), name, (2, 2, 72, 12), F32)
    checked_back(SCORES[name][0], xs, wanted)


def test_a_head_in_parts() -> None:
    """Threads share its keys, and cotangents of queries are those of the parts, in order."""
    shape = (1, 600, 4)
    checked_back(masked(0, 300), drawn(np.random.default_rng(8), shape, shape, F32))


@pytest.mark.exhaustive
@pytest.mark.parametrize("width", [4, 7, 16, 80, 256])
def test_widths(width: int) -> None:
    shape = (1, 72, width)
    checked_back(masked(0), drawn(np.random.default_rng(8), shape, shape, F32))


def test_what_is_no_number_stays_none() -> None:
    """Where the bias of a query is not a number, neither are its result and its slope, nor those of all keys."""
    shape = (1, 72, 12)
    xs, bias = drawn(np.random.default_rng(7), shape, shape, F32), np.zeros((1, 72, 72), F32)
    bias[0, 5] = np.nan
    with config.using(executor="c", prefer=FAMILIES):
        found = ge2.jit(slopes(biased))(*xs, bias)
    for y, w in zip(found, exactly(slopes(biased), *xs, bias), strict=True):
        assert np.array_equal(np.isnan(y), np.isnan(w))


def test_memory_is_linear_in_length() -> None:
    """Scores of 4096 queries and keys would be 64 MiB."""
    x = np.zeros((1, 4096, 16), F32)
    with config.using(executor="c"):
        low = ge2.jit(slopes(partial(nn.attention, causal=True))).lower(x, x, x)
    assert {*FAMILIES} <= {*families_of(low)}
    assert low.memory_analysis().peak < 4 << 20


@pytest.mark.parametrize(("queries", "fused"), [(1, False), (64, True)])
def test_one_query_a_head_is_a_matter_of_memory(queries: int, fused: bool) -> None:
    """Keys and values are read once, which the plain graph's products do as well."""
    q, k = np.zeros((64, queries, 64), F32), np.zeros((64, 1024, 64), F32)
    with config.using(executor="c"):
        low = ge2.jit(plain).lower(q, k, k)
    assert (FAMILIES[0] in families_of(low)) == fused


def part(way: str, q: Any, k: Any, v: Any) -> Any:
    """Attention of operands, or with a cotangent, that no kernel reads as views."""
    if way == "reversed features":
        q, k = q[..., ::-1], k[..., ::-1]
    if way == "reversed rows":
        q, k, v = q[:, :, ::-1], k[:, :, ::-1], v[:, :, ::-1]
    y = plain(q, k, v)
    if way == "a number's cotangent":
        return np.sum(y) ** 2
    if way == "cotangents of rows":
        return np.sum(np.sum(y, axis=-1) ** 2)
    turned = np.concatenate([y[..., ::-1], v], axis=-1)
    return np.sum(np.sin(turned) * np.arange(turned.shape[-1], dtype=turned.dtype))


WAYS = (
    "reversed features", "reversed rows", "a number's cotangent", "cotangents of rows",
    "reversed cotangents",
)  # fmt: skip


@pytest.mark.exhaustive("executor")
@pytest.mark.parametrize("executor", ["c", "emulator"])
@pytest.mark.parametrize("way", WAYS)
def test_views_that_no_kernel_reads_are_copied(way: str, executor: str) -> None:
    xs = [x[:, :, :12] for x in drawn(np.random.default_rng(2), (1, 2, 12, 8), (1, 2, 12, 8), F32)]
    back = ge2.grad(partial(part, way), (0, 1, 2))
    with config.using(executor=executor):
        judge_slopes(ge2.jit(back)(*xs), exactly(back, *xs), SLOPE_BOUNDS[F32])
