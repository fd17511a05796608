"""The package beside NumPy: names, signatures, docstrings, dtypes."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import ge2.numpy as gnp
from ge2.base.errors import ArgumentError, InputError
from tests.numpy.agreement import NEWEST

EXTRA = {"precision", "ndmax", "kwargs"}  # ours alone, of NumPy 2.4 on, or spelled out here
PARTS = [
    getattr(theirs, name)
    for ours, theirs in ((gnp.linalg, np.linalg), (gnp.fft, np.fft))
    for name in ours.__all__
    if inspect.isfunction(getattr(ours, name))
]
FUNCTIONS = [*gnp.FUNCTIONS, *PARTS]
RENAMED = {
    np.tensordot, np.linalg.tensordot, np.arange, np.array, np.clip, np.einsum, np.linalg.vecdot,
}  # fmt: skip


def test_all_is_all() -> None:
    assert len(set(gnp.__all__)) == len(gnp.__all__)
    for name in gnp.__all__:
        assert hasattr(gnp, name), name


def test_every_function_has_a_docstring() -> None:
    functions = {n: f for n in gnp.__all__ if inspect.isfunction(f := getattr(gnp, n))}
    first = {name: (inspect.getdoc(f) or "").split("\n\n")[0] for name, f in functions.items()}
    assert len(first) > 300
    assert not [name for name, line in first.items() if len(line) <= 15]


def test_every_function_of_that_name_is_reached_from_numpys() -> None:
    for name in gnp.__all__:
        theirs = getattr(np, name, None)
        if callable(theirs) and not isinstance(theirs, type) and getattr(gnp, name) is not theirs:
            table: Any = gnp.UFUNCS if isinstance(theirs, np.ufunc) else gnp.FUNCTIONS
            assert table.get(theirs) or gnp.rare.ours_of(theirs), name


@pytest.mark.skipif(not NEWEST, reason="arguments are those of NumPy 2.4")
@pytest.mark.parametrize(
    "theirs", [f for f in FUNCTIONS if f not in RENAMED], ids=lambda f: f.__name__
)
def test_arguments_are_numpys(theirs: Any) -> None:
    try:
        want = inspect.signature(theirs).parameters
    except ValueError:
        pytest.skip("this version of NumPy does not tell")
    got = inspect.signature(gnp.FUNCTIONS[theirs]).parameters
    named = {n.rstrip("_"): p for n, p in got.items() if n not in EXTRA}
    variable = any(p.kind is p.VAR_KEYWORD for p in got.values())
    for (name, p), n in zip(want.items(), list(named) + [""] * len(want), strict=False):
        if n == "more" or (variable and name not in named) or name in EXTRA:
            continue
        assert name.rstrip("_") == n, f"{theirs.__name__}: {list(want)}, not {list(named)}"
        ours = named[n]
        if p.default not in (p.empty, np._NoValue) and ours.default is not ours.empty:
            assert repr(p.default) == repr(ours.default), (
                f"{theirs.__name__}: {name}={p.default!r}, not {ours.default!r}"
            )
        assert p.kind == ours.kind or ours.kind is p.POSITIONAL_OR_KEYWORD, (
            f"{theirs.__name__}: {name}"
        )


def test_dtypes_and_constants() -> None:
    assert gnp.float32 is np.float32 and gnp.newaxis is None and gnp.pi == np.pi
    assert gnp.finfo(gnp.bfloat16).max > 3e38 and gnp.finfo("f4").eps == np.finfo("f4").eps
    assert gnp.finfo(np.ones(2, "f4")).dtype == np.float32
    assert gnp.iinfo("i1").max == gnp.iinfo(np.int8(3)).max == 127
    assert (
        gnp.result_type(np.float32, 1.0) == np.float32 and gnp.result_type("i4", "f4") == np.float64
    )
    assert gnp.result_type(np.ones(2, "i1"), 3) == np.int8 and gnp.result_type(1, 2.5) == np.float64
    assert gnp.promote_types("i4", "u4") == np.int64
    assert gnp.issubdtype(gnp.bfloat16, np.floating) and gnp.issubdtype(
        np.dtype(gnp.bfloat16), np.inexact
    )
    assert gnp.issubdtype("f4", np.floating) and not gnp.issubdtype("i4", np.floating)
    assert not gnp.issubdtype(gnp.bfloat16, np.integer)
    for x in (3, np.ones((2, 3)), [[1, 2]]):
        assert (gnp.shape(x), gnp.ndim(x), gnp.size(x)) == (np.shape(x), np.ndim(x), np.size(x))
    with pytest.raises(InputError, match="not supported"):
        gnp.zeros(3, object)


@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "f2", "f8", "c8"])
def test_kinds_of_dtypes(dtype: str) -> None:
    for kind in (
        "bool", "signed integer", "unsigned integer", "integral", "real floating",
        "complex floating", "numeric",
    ):  # fmt: skip
        assert gnp.isdtype(np.dtype(dtype), kind) == np.isdtype(np.dtype(dtype), kind)
    assert gnp.isdtype(np.dtype(dtype), ("bool", np.dtype(dtype)))
    assert gnp.isdtype(gnp.bfloat16, "real floating")
    with pytest.raises(ArgumentError, match="not a known kind"):
        gnp.isdtype(np.float32, "floating")
