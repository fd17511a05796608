"""Each keyword of each function does what NumPy's does, or is refused: none is read past.

The candidates of a keyword are tried on every function that takes it; a function with a keyword
that has no candidates fails, as does one that answers where NumPy raises.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import ge2
import ge2.numpy as gnp
from ge2.base.errors import Ge2Error, InPlaceError
from ge2.numpy.rare.applying import REASONS
from tests.numpy.agreement import NEWEST, quietly

X = np.arange(12.0).reshape(3, 4) / 4 + 0.25
V, I, M = X[0], np.array([0, 2, 1, 2]), np.array([True, False, True, False])  # noqa: E741 indices
# fmt: off
CANDIDATES: dict[str, list[Any]] = {
    "axis": [0, -1, 1, (0, 1), None, 7, "x"], "axes": [(1, 0), None, (0, 0)], "dtype": ["f4", "i8", "c16"],
    "keepdims": [True, np.True_], "out": [X], "where": [M, M[:3, None]], "initial": [2, -3.5, None],
    "order": ["F", "C", "A", "K", "Z"], "casting": ["no", "equiv", "safe", "same_kind", "unsafe", "bogus"],
    "subok": [True, False], "kind": ["mergesort", "heapsort", "bogus"], "stable": [True, False],
    "mode": ["wrap", "clip", "raise", "valid", "same", "full", "edge", "bogus"], "ddof": [1, 0.5],
    "correction": [1], "mean": [np.array(1.5)], "method": ["linear", "lower", "bogus"], "weights": [V, X],
    "overwrite_input": [True], "copy": [True, False, None], "device": ["cpu", "gpu"], "like": [X],
    "offset": [1, -1], "k": [1, -1], "axis1": [1], "axis2": [0, 1], "decimals": [2, -1], "nan": [7.0],
    "posinf": [9.0], "neginf": [-9.0], "equal_nan": [True], "rtol": [0.5], "atol": [0.5],
    "side": ["right", "bogus"], "sorter": [[0, 1, 2, 3], [3, 2, 1, 0]], "right": [True], "prepend": [0.0],
    "append": [0.0], "n": [2, 0, -1], "dx": [2.0], "edge_order": [2, 3], "x": [V],
    "discont": [1.0], "period": [4.0], "left": [-1.0],
    "returned": [True], "rowvar": [False], "bias": [True], "fweights": [I], "aweights": [V],
    "assume_unique": [True], "invert": [True], "indexing": ["ij", "bogus"], "sparse": [True],
    "endpoint": [False], "retstep": [True], "base": [2.0], "num": [4, -1], "N": [2], "increasing": [True],
    "wrap": [True], "include_initial": [True], "ndmin": [3], "optimize": [True], "min": [1.0], "max": [2.0],
    "shape": [(2, 6)], "M": [2], "to_end": [1.0], "to_begin": [2.0], "deg": [True], "stop": [5], "step": [2],
    "axisa": [0], "axisb": [0], "axisc": [0], "y": [X], "minlength": [7, -1], "density": [True],
    "beta": [2.5, 0],
    "bins": [3, 0, [0.0, 0.5, 1.0]], "range": [(0, 1), (1, 0), [(0, 1), (0, 2)]],
    "bitorder": ["little", "bogus"], "count": [3, -2, 99], "m": [2, -1],
    "cov": [True, "unscaled"], "full": [True],
    "rcond": [0.5], "w": [V], "tol": [3], "requirements": ["C", "F"], "start": [1, 9], "size": [4],
}
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "append": (X, X), "apply_along_axis": (np.cumsum, 1, X),
    "apply_over_axes": (np.sum, X, 0), "arange": (3,),
    "array_split": (X, 2), "astype": (X, "f4"), "block": ([X, X],), "broadcast_to": (V, (2, 4)),
    "choose": (I[:2], [V[:2], V[1:3], V[2:]]), "clip": (X, 1, 2), "compress": (M, X), "convolve": (V, V),
    "correlate": (V, V), "cross": (X[:, :3], X[:, :3]), "cumulative_prod": (V,), "cumulative_sum": (V,),
    "delete": (X, 1), "digitize": (V, V), "dot": (X, X.T), "dsplit": (X[None], 2), "expand_dims": (X, 0),
    "extract": (M, V), "einsum": ("ij->j", X), "eye": (3,), "fromfunction": (np.add, (2, 3)),
    "full": ((3,), 2.0), "full_like": (X, 3),
    "histogram2d": (V, V), "hsplit": (X, 2), "identity": (3,), "indices": ((2, 3),), "inner": (X, X),
    "insert": (X, 1, 2.0), "interp": (V, V, V), "isin": (V, V[:2]), "ix_": (I,), "kron": (X, X),
    "lexsort": ((V, V),), "linspace": (V, V + 2), "logspace": (V, V + 2), "geomspace": (V, V + 2),
    "meshgrid": (V, V[:2]), "moveaxis": (X, 0, 1), "nanpercentile": (X, 30), "nanquantile": (X, 0.3),
    "ones": ((3,),), "outer": (V, V), "packbits": (I,), "pad": (X, 1), "percentile": (X, 30),
    "piecewise": (V, [V > 1], [2.0]), "poly": (V,), "polyadd": (V, V), "polyder": (V,), "polydiv": (V, V[:2]),
    "polyfit": (V, V * V, 1), "polyint": (V,), "polymul": (V, V), "polysub": (V, V), "polyval": (V, X), "roots": (V,),
    "quantile": (X, 0.3), "ravel_multi_index": ((I, I), (3, 3)), "repeat": (X, 2), "reshape": (X, (4, 3)),
    "resize": (X, 5), "roll": (X, 1), "rollaxis": (X, 1), "searchsorted": (V, X),
    "select": ([V > 1], [V], 0), "split": (X, 3), "swapaxes": (X, 0, 1), "take": (X, I),
    "take_along_axis": (X, I[:3, None], 1), "tensordot": (X, X.T, 1), "tile": (X, 2), "tri": (3,),
    "unpackbits": (I.astype("u1"),), "unravel_index": (I, (2, 3)), "unwrap": (V * 9,), "vander": (V,),
    "vdot": (X, X), "vsplit": (X, 3), "where": (M, V, V * 2), "zeros": ((3,),), "argpartition": (X, 2),
    "partition": (X, 2), "isclose": (X, X + 0.1), "allclose": (X, X + 0.1), "array_equal": (X, X),
    "array_equiv": (X, X), "bincount": (I,), "histogram": (V,),
    "histogram_bin_edges": (V,), "sort_complex": (V,),
    "broadcast_arrays": (V, X), "concatenate": ([X, X],), "concat": ([X, X],), "stack": ([X, X],),
    "hstack": ([X, X],), "vstack": ([X, X],), "dstack": ([X, X],), "column_stack": ([X, X],),
    "array2string": (X,), "empty": ((3,),), "diag_indices_from": (X[:3, :3],),
}
UFUNCS = ("add", "sin", "maximum", "power", "equal", "isnan", "divmod", "matmul", "vecdot", "logical_not")
NONE = (  # undefined, in place, or of dtypes
    "can_cast", "common_type", "copyto", "einsum_path", "empty", "empty_like", "fill_diagonal", "isdtype",
    "issubdtype", "min_scalar_type", "place", "promote_types", "put", "put_along_axis", "putmask",
    "result_type", "size",
)
# fmt: on
NAMES = sorted(
    n
    for n in {*gnp.__all__} - {*REASONS, *NONE}
    if inspect.isroutine(getattr(np, n, None)) and getattr(gnp, n) is not getattr(np, n)
)


def keywords(name: str) -> list[str]:
    f = getattr(np, name)
    if isinstance(f, np.ufunc):
        return ["casting", "dtype", "order", "out", "subok", "where"]
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except ValueError:
        return ["axis"]  # this version of NumPy does not tell
    given = len(ARGUMENTS.get(name, (X,)))
    named = [
        p.name for p in parameters[given:] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    return [n for n in named if n != "ndmax"]


def called(module: Any, name: str, args: tuple[Any, ...], more: dict[str, Any]) -> Any:
    """The results, in a list; or the error."""
    f = getattr(module, name)
    # the others are NumPy's own until something is
    traced = module is gnp and gnp.rare.HOME.get(name)
    own = [i for i, x in enumerate(args) if isinstance(x, np.ndarray)]

    def call(*xs: Any) -> Any:
        places = dict(zip(own, xs, strict=True))
        return f(*[places.get(i, x) for i, x in enumerate(args)], **more)

    try:
        xs = [args[i] for i in own]
        return leaves(quietly(ge2.make_jaxpr(call), *xs)(*xs) if traced else quietly(call, *xs))
    except Exception as error:  # noqa: BLE001 whatever it is, both must raise
        return error


def leaves(y: Any) -> list[Any]:
    return [z for x in y for z in leaves(x)] if isinstance(y, list | tuple) else [np.asarray(y)]


def compared(want: Any, got: Any, text: str) -> None:
    if isinstance(got, Exception):
        ours = isinstance(got, Ge2Error | TypeError | OverflowError)
        assert ours or type(got) is type(want), f"{text}: {got!r}"
        return
    assert not isinstance(want, Exception), f"{text}: NumPy raises {want!r}"
    assert [(x.dtype, x.shape) for x in got] == [(x.dtype, x.shape) for x in want], text
    for x, y in zip(want, got, strict=True):
        resolution = 8 * np.finfo(x.dtype).eps if x.dtype.kind in "fc" else 0
        np.testing.assert_allclose(y, x, rtol=resolution, atol=resolution, err_msg=text)


@pytest.mark.skipif(not NEWEST, reason="keywords are those of NumPy 2.4")
@pytest.mark.parametrize("name", [*NAMES, *UFUNCS])
def test_each_keyword_is_honoured_or_refused(name: str) -> None:
    args = (
        (X,) * getattr(getattr(np, name), "nin", 1) if name in UFUNCS else ARGUMENTS.get(name, (X,))
    )
    args = (X, X.T) if name == "matmul" else args
    for keyword in keywords(name):
        for value in CANDIDATES[keyword]:
            more = {
                keyword: value,
                **({"dtype": "f4"} if name in UFUNCS and keyword == "casting" else {}),
            }
            if keyword == "where" and name in UFUNCS:  # leaves elements undefined
                assert isinstance(called(gnp, name, args, more), Ge2Error)
                continue
            want = called(np, name, args, more)
            compared(want, called(gnp, name, args, more), f"{name}({keyword}={value})")


@pytest.mark.parametrize(
    "f", [np.add, np.hypot, np.floor_divide, np.equal, np.logical_and, np.divmod]
)
@pytest.mark.parametrize("dtype", [np.int64, np.float64, np.uint8, np.bool_, np.complex64])
def test_an_unsafe_cast_is_one_of_the_operands_first(f: np.ufunc, dtype: Any) -> None:
    for x in (V * 1.9, V + 1j, np.array([1, 300, 3, 4]), 2.5):
        for casting in ("unsafe", "same_kind", "safe"):
            args, more = (x, V[::-1] + 1), {"dtype": dtype, "casting": casting}
            want = called(np, f.__name__, args, more)
            traced = called(gnp, f.__name__, args, more)
            compared(want, traced, f"{f.__name__}({more})")
            if not isinstance(want, Exception):
                assert not isinstance(traced, Exception), f"{f.__name__}({more}): {traced!r}"


WRITTEN: dict[str, tuple[Any, ...]] = {  # arguments up to `out`, where None would not do
    "around": (X, 1), "concat": ([X, X], 0), "concatenate": ([X, X], 0), "matmul": (X, X.T),
    "round": (X, 1), "stack": ([X, X], 0), "trace": (X, 0, 0, 1, None), "matvec": (X, V), "vecmat": (V, X.T),
}  # fmt: skip


@pytest.mark.skipif(not NEWEST, reason="keywords are those of NumPy 2.4")
@pytest.mark.parametrize("name", [*gnp.rare.OUT_AT, "sin", "add", "maximum"])
def test_out_is_written_by_keyword_and_by_position(name: str) -> None:
    """Of ge2.numpy as of NumPy: both ask the traced array that is to be written."""
    f: Any = getattr(np, name)
    nin = getattr(f, "nin", 1)
    args = WRITTEN.get(name) or ARGUMENTS.get(name, (X,) * nin)
    want = leaves(quietly(f, *args))
    between = (None,) * (gnp.rare.OUT_AT.get(name, nin) - len(args) if name != "einsum" else 0)

    def written(module: Any, *ys: Any) -> Any:
        out = ys if len(ys) > 1 else ys[0]
        getattr(module, name)(*args, out=out)
        if name != "einsum" and "cumulative" not in name:
            for y in ys:
                y[...] = 1
            getattr(module, name)(*args, *between, *(ys if isinstance(f, np.ufunc) else (out,)))
        return [y.copy() for y in ys]

    given = [np.zeros_like(w) for w in want]
    for module in (gnp, np):
        traced = quietly(ge2.make_jaxpr(partial(written, module)), *given)
        compared(want, leaves(quietly(traced, *given))[: len(given)], name)


OUTS: dict[str, Callable[[Any, Any], Any]] = {
    "all": lambda x, out: np.all(x > 0, axis=0, out=out),
    "any": lambda x, out: (x > 0).any(axis=0, out=out),
    "logical_and.reduce": lambda x, out: np.logical_and.reduce(x, axis=0, out=out),
    "mean": lambda x, out: np.mean(x, axis=0, out=out),
    "std": lambda x, out: x.std(axis=0, out=out),
    "max": lambda x, out: np.max(x, axis=0, out=out),
    "cumsum": lambda x, out: x[0].cumsum(out=out),
    "nansum": lambda x, out: np.nansum(x, axis=0, out=out),
    "median": lambda x, out: np.median(x, axis=0, out=out),
    "clip": lambda x, out: np.clip(x[0], 0, 2, out=out),
    "round": lambda x, out: np.round(x[0], 1, out=out),
    "concatenate": lambda x, out: np.concatenate([x[0, :2], x[1, :1]], out=out),
}


@pytest.mark.any_executor
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c16"])
@pytest.mark.parametrize("f", OUTS.values(), ids=OUTS)
def test_out_takes_what_is_cast_to_its_kind(f: Callable[[Any, Any], Any], dtype: str) -> None:
    def g(x: Any) -> Any:
        out = np.zeros_like(x[0], dtype)
        f(x, out)
        return out

    x = np.array([[1.5, -2.0, 0.25], [3.0, 4.0, -1.0]])
    got, want = ge2.jit(g)(x), g(x)
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=2e-3 if dtype == "f2" else 1e-6)


def test_out_of_a_product_is_of_its_dtype() -> None:
    with pytest.raises(InPlaceError, match="cannot be cast to the dtype of out"):
        ge2.jit(lambda x: np.dot(x, x, out=np.zeros_like(x, np.float32)))(np.eye(2))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", ["divmod", "modf", "frexp"])
def test_of_two_results_one_may_be_written_to(name: str, first: bool) -> None:
    def f(x: Any) -> Any:
        out = np.zeros_like(x, np.float64 if first or name != "frexp" else np.int32)
        given = (x, np.float64(2.0)) if name == "divmod" else (x,)
        found = getattr(np, name)(*given, out=(out, None) if first else (None, out))
        return (*found, out)

    x = np.array([5.5, -3.25, 8.0])
    for got, want in zip(ge2.jit(f)(x), f(x), strict=True):
        np.testing.assert_array_equal(got, want)
        assert got.dtype == want.dtype
