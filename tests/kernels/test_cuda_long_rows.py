"""Rows in CUDA that lie along several axes, begin anywhere, or are gone through for an index: in the
emulator against NumPy, and how their loops read them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.targets.cuda.limits import H200
from ge2.targets.cuda.tuning import Tuning
from tests.codegen.texts import kernels
from tests.kernels.made_cases import softmax
from tests.kernels.wgmma_cases import BF16, F16, F32
from tests.nvrtc import needs_nvrtc
from tests.templates.cuda_harness import compiled
from tests.together import needs_compiler

F64: Final = np.dtype("f8")
BOUNDS: Final = {F32: 3e-5, F64: 1e-11, F16: 5e-3, BF16: 4e-2}


def norm(x: Any, axes: Any = -1) -> Any:
    mean = x.mean(axes, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + 1)


ROWS: Final = {
    "sum": lambda x, g: x.sum(-1),
    "largest": lambda x, g: x.max(-1),
    "share": lambda x, g: x / np.abs(x).mean(-1, keepdims=True),
    "softmax": lambda x, g: softmax(x),
    "norm": lambda x, g: norm(x) * g,
    "product": lambda x, g: (x * g).sum(-1),
    "places": lambda x, g: np.where(np.arange(x.shape[-1]) > 5, x, 0).sum(-1),
    "two results": lambda x, g: (x.sum(-1), x * 2 - x.sum(-1, keepdims=True)),
    "of four bytes": lambda x, g: softmax(x).astype(F32),
}


def tuning(held: bool, **changes: int) -> Tuning:
    """The numbers of a chip where rows of 4 packs begin at multiples; `held`: in registers."""
    few = {} if held else {"held": 4, "words": 2, "crowded": 2, "in_shared": 32}
    found = Tuning()
    return replace(found, rowwise=replace(found.rowwise, led=4, **few, **changes))


def agree(found: Any, wanted: Any, dtype: Any) -> None:
    for a, b in zip(ge2.tree.leaves(found), ge2.tree.leaves(wanted), strict=True):
        a, b = np.asarray(a).astype(F64), np.asarray(b, F64)
        bound = BOUNDS[np.dtype(dtype)]
        assert np.allclose(a, b, rtol=bound, atol=bound * max(1, np.abs(b).max(initial=0)))


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("held", [True, False], ids=["held", "read again"])
@pytest.mark.parametrize("size", [129, 513, 2051])
@pytest.mark.parametrize("dtype", [F32, F64, F16, BF16], ids=str)
@pytest.mark.parametrize("name", ROWS)
def test_rows_that_begin_anywhere(name: str, dtype: Any, size: int, held: bool) -> None:
    rng = np.random.default_rng(size)
    x = (rng.standard_normal((2, 3, size)) * 2).astype(dtype)
    g = rng.standard_normal(size).astype(dtype)
    with config.using(executor="shim", tuning=(tuning(held),)):
        agree(ge2.jit(ROWS[name])(x, g), ROWS[name](x.astype(F64), g.astype(F64)), dtype)


@pytest.mark.parametrize(
    ("rows", "columns", "function", "led"),
    [
        (8, 4097, lambda x: softmax(x), True),
        (8, 4096, lambda x: softmax(x), False),
        (8, 65535, lambda x: x / x.sum(-1, keepdims=True), True),
        (8, 33, lambda x: softmax(x), False),
    ],
)
def test_packs_begin_at_multiples(rows: int, columns: int, function: Any, led: bool) -> None:
    ((_, text),) = kernels(function, np.zeros((rows, columns), F32), arch="sm_90a")
    assert ("const int lead" in text) == led
    assert ("ge2_read<PACK, 4>" in text) == (columns > 33)


@pytest.mark.parametrize("begin", [0, 1])
def test_arrays_that_begin_at_other_places_are_read_one_by_one(begin: int) -> None:
    """Both arrays have rows of 4,097, but one begins an element later, or is a part of wider rows."""

    def function(x: Any, y: Any) -> Any:
        return softmax(x[:, begin : begin + 4097] + y)

    x, y = np.zeros((8, 4098), F32), np.zeros((8, 4097), F32)
    text = "".join(text for _, text in kernels(function, x, y, arch="sm_90a"))
    assert "const int lead" not in text


AXES: Final = {
    "channels": ((4, 3, 8, 12), (0, 2, 3)),
    "channels of odd planes": ((4, 3, 7, 5), (0, 2, 3)),
    "ends": ((6, 5, 16), (0, 2)),
    "all, beside a vector": ((64, 32), (0, 1)),
}


@needs_compiler
@pytest.mark.exhaustive("dtype")
@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
@pytest.mark.parametrize("name", AXES)
def test_rows_along_several_axes(name: str, dtype: Any) -> None:
    shape, axes = AXES[name]
    rng = np.random.default_rng(3)
    x = rng.standard_normal(shape).astype(dtype)
    g = rng.standard_normal(shape[-1]).astype(dtype)
    for function in (
        lambda x, g: (x * g).sum(axes),
        lambda x, g: norm(x, axes),
        lambda x, g: np.where(np.arange(shape[-1]) > 2, x, 0).max(axes),
    ):
        with config.using(executor="shim", tuning=(tuning(held=False),)):
            agree(ge2.jit(function)(x, g), function(x.astype(F64), g.astype(F64)), dtype)


def test_packs_along_the_last_of_several_axes() -> None:
    x, g = np.zeros((64, 8, 32, 64), F32), np.zeros(64, F32)
    found = kernels(lambda x, g: (x * g).sum((0, 2, 3)), x, g, arch="sm_90a")
    text = next(text for kernel, text in found if kernel.kind == "reduce")
    assert text.count("ge2_read<PACK, 4>") == 2


def gates(d: Any, e: Any) -> Any:
    """A sum of all and sums of channels, between which blocks go on from row to row."""
    s = 1 / (1 + np.exp(-d))
    y = d * s
    ct = e * (s + y * (1 - s))
    return (y * e).sum(), ct.sum((0, 2, 3)), (ct * d).sum((0, 2, 3))


def trades(at: Any, time: Any, price: Any, times: Any, prices: Any) -> Any:
    """Numbers of eight bytes, found at indices of eight bytes: a thread has few registers for them."""
    i = np.maximum(at - 1, 0)
    fine = (at > 0) & (time - times[i] < 8e-5)
    return np.where(fine, price - prices[i], np.float32(np.nan)), fine.sum()


@needs_nvrtc
@pytest.mark.parametrize(
    ("function", "shape", "dtypes"),
    [
        (gates, (16, 128, 64, 64), (F32, BF16)),
        (trades, (1 << 21,), (np.dtype("i8"), F64, F32, F64, F32)),
    ],
)
def test_a_loop_over_rows_is_written_out_as_registers_allow(
    function: Any, shape: tuple[int, ...], dtypes: tuple[Any, ...]
) -> None:
    """Rows of which nothing is kept were written out whole, 64 times, and loops of large rows four
    times, however much a thread reads each time.
    """
    xs = [
        np.broadcast_to(np.zeros((), t), shape if n < 3 else 1 << 18) for n, t in enumerate(dtypes)
    ]
    for kernel, text in kernels(function, *xs, arch="sm_90a"):
        assert not any(usage.spills for usage in compiled(text, "sm_90a").kernels), kernel.kind


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i4", "u1", "c8"])
def test_the_first_of_extremes(dtype: str) -> None:
    """NaN wins, the first of equals, infinities that are all there is; rows of one element."""
    rng = np.random.default_rng(5)
    small = replace(H200, multiprocessors=1)  # of which 70 rows are many
    for shape in ((3, 1), (70, 77)):
        x = (rng.standard_normal(shape) * 3).round().astype(dtype)
        rows = [x]
        if np.dtype(dtype).kind in "fc":
            some, none = x.copy(), x.copy()
            some[:, shape[1] // 2 :: 3] = np.nan
            none[...] = -np.inf
            rows += [some, none, -none]
        for each in rows:
            for f, axis in ((np.argmax, 0), (np.argmin, 1)):
                with config.using(executor="shim", tuning=(small,)):
                    y = ge2.jit(lambda x, f=f, axis=axis: f(x, axis=axis))(each)
                assert (y == f(each, axis=axis)).all()


@pytest.mark.parametrize(("rows", "team"), [(70, 32), (40, 64)])
def test_many_rows_have_a_warp_each(rows: int, team: int) -> None:
    small = replace(H200, multiprocessors=1)
    ((_, text),) = kernels(lambda x: x.argmax(1), np.zeros((rows, 770), F32), chip=small)
    assert re.findall(r"int TEAM +=\s+(\d+)", text) == [str(team)]
