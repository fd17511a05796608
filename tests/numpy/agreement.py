"""What a function of ge2.numpy must do: give NumPy's values, dtype and shape,
or an error of NumPy's class.

It is asked three times: on arrays, and under its NumPy name and its own while a function is traced.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import ge2.numpy as gnp
from ge2.base.arrays import FLOAT32, HALF, INEXACT, PYTHON, accumulator
from ge2.base.errors import Ge2Error
from ge2.ir import type_of
from ge2.trace import Input, run, stage

BOOLS = (np.dtype(bool),)
INTS = tuple(np.dtype(t) for t in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"))
FLOATS = tuple(np.dtype(t) for t in ("f2", "f4", "f8"))
COMPLEXES = tuple(np.dtype(t) for t in ("c8", "c16"))
DTYPES = BOOLS + INTS + FLOATS + COMPLEXES
FEW = tuple(np.dtype(t) for t in ("?", "i1", "i8", "u8", "f2", "f4", "f8", "c8", "c16"))
NEWEST = np.lib.NumpyVersion(np.__version__) >= "2.4.0"  # older versions differ in a few corners
CLASSES = (IndexError, OverflowError, ValueError, TypeError)


def draw(
    rng: np.random.Generator, dtype: Any, shape: tuple[int, ...] = (), low: int = -4, high: int = 5
) -> Any:
    """An array of small numbers: halves for floats, so that sums and products
    are exact in float32.
    """
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    low = 0 if dtype.kind == "u" else low
    x = rng.integers(low, high, shape)
    if dtype not in INEXACT:
        return np.asarray(x).astype(dtype)
    y = np.asarray(x / 2 + 0.25)
    return (
        (y + 1j * rng.integers(low, high, shape)).astype(dtype)
        if dtype.kind == "c"
        else y.astype(dtype)
    )


def quietly(f: Callable[..., Any], *args: Any, **more: Any) -> Any:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return f(*args, **more)


def is_value(x: Any) -> bool:
    return type(x) in (int, float, complex) or isinstance(x, np.ndarray | np.generic)


def traced(
    f: Callable[..., Any], *args: Any, only: Sequence[int] | None = None, **more: Any
) -> Any:
    """The function, traced for its array arguments (or those of the given places), and then run."""
    places = (
        [i for i, x in enumerate(args) if isinstance(x, np.ndarray | np.generic)]
        if only is None
        else only
    )
    single: list[bool] = []

    def flat(*tracers: Any) -> Sequence[Any]:
        given = list(args)
        for i, x in zip(places, tracers, strict=True):
            given[i] = x
        y = f(*given, **more)
        single.append(not isinstance(y, tuple | list))
        return [y] if single[-1] else y

    closed = stage(flat, [Input(type_of(args[i])) for i in places])
    ys = run(closed.graph, [*closed.captured, *(args[i] for i in places)])
    return ys[0] if single[-1] else ys


def attempt(f: Callable[..., Any], *args: Any, **more: Any) -> Any:
    """The results as a list, or the error."""
    try:
        y = quietly(f, *args, **more)
    except (*CLASSES, NotImplementedError) as error:  # NumPy and we say so of what neither does
        return error
    return list(y) if isinstance(y, tuple | list) else [y]


def agree(
    f: Callable[..., Any], *args: Any, exact: bool = False, ours: Callable[..., Any] | None = None,
    trace: bool = True, **more: Any,
) -> None:  # fmt: skip
    """That NumPy's function and ours do the same, and that ours does it while traced."""
    ours = ours or gnp.UFUNCS.get(f) or gnp.FUNCTIONS[f]
    want = attempt(f, *args, **more)
    compare(want, attempt(ours, *args, **more), exact, f"{f.__name__}{described(args, more)}")
    if trace and any(isinstance(x, np.ndarray | np.generic) for x in args):
        compare(
            want,
            attempt(traced, f, *args, **more),
            exact,
            f"traced {f.__name__}{described(args, more)}",
        )


def described(args: Any, more: Any) -> str:
    return f"({', '.join(str(type_of(x)) if is_value(x) else repr(x) for x in args)}, {more})"


def compare(want: Any, got: Any, exact: bool, what: str) -> None:
    if isinstance(want, Exception) or isinstance(got, Exception):
        assert isinstance(want, Exception), f"{what}: only ge2 fails: {got!r}" + blame(got)
        assert isinstance(got, Exception), f"{what}: only NumPy fails: {want!r}"
        expected = next(c for c in CLASSES if isinstance(want, c))
        assert isinstance(got, expected), f"{what}: {want!r} in NumPy, but {got!r}"
        assert isinstance(got, Ge2Error | OverflowError), f"{what}: not one of our errors: {got!r}"
        return
    assert len(want) == len(got), what
    for w, g in zip(want, got, strict=True):
        same(w, g, exact, what)


def blame(error: Any) -> str:
    import traceback

    return "\n" + "".join(traceback.format_exception(error)[-4:])


def same(want: Any, got: Any, exact: bool, what: str) -> None:
    assert np.shape(got) == np.shape(want), f"{what}: shape {np.shape(got)}, not {np.shape(want)}"
    assert type(got) not in PYTHON or type(want) in PYTHON, f"{what}: a Python number, {got!r}"
    want, got = np.asarray(want), np.asarray(got)
    assert got.dtype == want.dtype, f"{what}: dtype {got.dtype}, not {want.dtype}"
    if exact or want.dtype not in INEXACT:
        np.testing.assert_array_equal(got, want, err_msg=what)
        return
    scale = np.finfo(FLOAT32 if want.dtype in HALF else want.dtype).eps
    tolerance = 2e-3 if want.dtype in HALF else 32 * scale  # half types: one rounding apart
    wide = accumulator(want.dtype)
    np.testing.assert_allclose(
        got.astype(wide), want.astype(wide), rtol=tolerance, atol=tolerance, err_msg=what
    )
