"""The rest of NumPy's names in `ge2.numpy`: they give NumPy's values, are
NumPy's own, or say why not.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ge2
import ge2.numpy as gnp
from ge2 import errors
from ge2.numpy.rare import applying
from ge2.test_util import check_grads
from tests.numpy.agreement import attempt, compare

RNG = np.random.default_rng(3)
X = RNG.integers(-9, 9, (3, 4)) / 4 + 0.125
N = np.where(X > 1, np.nan, X)
B = RNG.integers(0, 256, (3, 5)).astype(np.uint8)
K = np.array([0, 2, 1, 2])
W = np.array([0.5, 1.5, 2.0, 0.25])

# fmt: off
CALLS: dict[str, tuple[Any, list[Callable[[Any, Any], Any]]]] = {
    "places": (X, [
        lambda np, x: np.delete(x, 1), lambda np, x: np.delete(x, [0, -1], 1),
        lambda np, x: np.delete(x, slice(0, 2), 0), lambda np, x: np.delete(x, 99),
        lambda np, x: np.delete(x, []), lambda np, x: np.delete(x, (), 1), lambda np, x: np.delete(x, [1.0]),
        lambda np, x: np.insert(x, [], []), lambda np, x: np.insert(x, [], 1.0, axis=1),
        lambda np, x: np.insert(x, 1, 7), lambda np, x: np.insert(x, 1, [1, 2, 3], axis=1),
        lambda np, x: np.insert(x, [1, 3], [[7], [8], [9]], axis=1),
        lambda np, x: np.insert(x, [0, 2, 2], 5.0, axis=0), lambda np, x: np.insert(x, 1, x[0], axis=0),
        lambda np, x: np.insert(x, slice(0, 2), 9, axis=0), lambda np, x: np.insert(x, 99, 1.0),
        lambda np, x: np.insert(x, 0, [1.0, 2.0], axis=1), lambda np, x: np.resize(x, (5, 3)),
        lambda np, x: np.resize(x, (0, 3)), lambda np, x: np.resize(x, 20),
    ]),
    "functions": (X, [
        lambda np, x: np.apply_along_axis(lambda v: v.sum(), 1, x),
        lambda np, x: np.apply_along_axis(lambda v: v[:2] * 2, 0, x),
        lambda np, x: np.apply_along_axis(lambda v, s: v[:, None] * v + s, 1, x, 3.0),
        lambda np, x: np.apply_over_axes(np.sum, x, [0, 1]),
        lambda np, x: np.piecewise(x, [x < 0, x > 0.5], [-1.0, lambda t: t**0.5, 5]),
        lambda np, x: np.piecewise(x, [x < 0, x >= 0], [lambda t, s: -t * s, lambda t, s: t + s], 2.0),
        lambda np, x: np.piecewise(x[0], x[0] < 0, [1.0, 2.0]), lambda np, x: np.piecewise(x,
        x < 0, [1.0, 2.0]),
        lambda np, x: np.lexsort((x[0], x[1])), lambda np, x: np.lexsort((x[0] > 0, x[1] > 0, x[2])),
        lambda np, x: np.lexsort(x, axis=0), lambda np, x: np.sort_complex(x[0]),
        lambda np, x: np.real_if_close(x), lambda np, x: np.zeros(len(np.einsum_path("ij,ik->jk", x, x)[0])),
        lambda np, x: np.zeros(2, np.common_type(x, x[0])), lambda np, x: np.zeros(2, np.min_scalar_type(x)),
    ]),
    "polynomials": (X, [
        lambda np, x: np.polyadd(x[0], [1, 2]), lambda np, x: np.polysub([1, 2], x[0]),
        lambda np, x: np.polymul(x[0], x[1]), lambda np, x: np.polydiv(x[0], x[1, :2]),
        lambda np, x: np.polyder(x[0], 2), lambda np, x: np.polyint(x[0], 2, [1, 2]),
        lambda np, x: np.polyint(x[0]), lambda np, x: np.poly(x[0]), lambda np, x: np.polyder(x[0], -1),
        lambda np, x: np.polydiv(x[1, :2], x[0]),
        lambda np, x: np.polyfit(x[0] ** 3, x.T, 1, cov="unscaled"),
        lambda np, x: np.polyfit(x[0], x[1], 2, w=x[2] + 9),
        lambda np, x: np.polyfit(x[0], x[1], 1, cov=True),
        lambda np, x: np.polyfit(x[0], x[1], -1), lambda np, x: np.polyfit(x[0], x, 1),
    ]),
    "quantiles": (N, [
        lambda np, x: np.nanmedian(x), lambda np, x: np.nanmedian(x, 1),
        lambda np, x: np.nanmedian(x, 0, keepdims=True), lambda np, x: np.nanquantile(x, [0.1, 0.7], 1),
        lambda np, x: np.nanpercentile(x, 30, (0, 1), keepdims=True), lambda np, x: np.nanquantile(x, 0.3, 0),
        lambda np, x: np.nanquantile(x.astype("f4"), 0.25, 0), lambda np, x: np.nanmedian(x * np.nan, 0),
        lambda np, x: np.nanpercentile(x, 120),
    ]),
    "bits": (B, [
        lambda np, b: np.unpackbits(b), lambda np, b: np.unpackbits(b, axis=1),
        lambda np, b: np.unpackbits(b, axis=0, count=5, bitorder="little"),
        lambda np, b: np.unpackbits(b, count=-3), lambda np, b: np.unpackbits(b, axis=0, count=30),
        lambda np, b: np.packbits(b > 99), lambda np, b: np.packbits(b, axis=0),
        lambda np, b: np.packbits(b, axis=1, bitorder="little"), lambda np, b: np.packbits(b / 2),
        lambda np, b: np.packbits(b, bitorder="middle"), lambda np, b: np.nanmedian(b, 0),
        lambda np, b: np.insert(b, 0, 300), lambda np, b: np.poly(b[0]), lambda np, b: np.polyint(b[0]),
        lambda np, b: np.sort_complex(b[0]), lambda np, b: np.piecewise(b, [b > 100], [2.7]),
    ]),
    "counts": (K, [
        lambda np, k: np.bincount(k, minlength=5), lambda np, k: np.bincount(k, W, minlength=3),
        lambda np, k: np.bincount(k.astype("u1"), W > 1, minlength=4),
        lambda np, k: np.bincount(k.astype("u8"), minlength=4), lambda np, k: np.bincount(k / 2, minlength=4),
        lambda np, k: np.bincount(k, W[:2], minlength=4), lambda np, k: np.bincount(k, minlength=-1),
        lambda np, k: np.bincount(k, W * 1j, minlength=3),
        lambda np, k: np.bincount(k.reshape(2, 2), minlength=3),
        lambda np, k: np.histogram(k), lambda np, k: np.histogram(k, [0, 1, 3]),
        lambda np, k: np.ravel_multi_index((k, k), (4, 5)),
        lambda np, k: np.ravel_multi_index((k, k), (2, 5), mode="wrap"),
        lambda np, k: np.ravel_multi_index((k, k), (2, 5), mode=("clip", "raise"), order="F"),
        lambda np, k: np.ravel_multi_index((k, k), (3,)),
    ]),
    "histograms": (X, [
        lambda np, x: np.histogram(x), lambda np, x: np.histogram(x, 4, (-1, 1)),
        lambda np, x: np.histogram(x, density=True), lambda np, x: np.histogram(x, 3, weights=x * 2),
        lambda np, x: np.histogram(x, [-1, 0, 0.125, 2], density=True, weights=(x > 0) * 2),
        lambda np, x: np.histogram(x.astype("f4"), weights=x.astype("f4")), lambda np, x: np.histogram(x > 0),
        lambda np, x: np.histogram(x[:0]), lambda np, x: np.histogram(x * 0 + 2, 3),
        lambda np, x: np.histogram(x, 0), lambda np, x: np.histogram(x, 3, (1, 0)),
        lambda np, x: np.histogram(x, [2, 1]), lambda np, x: np.histogram(x, weights=x[0]),
        lambda np, x: np.histogram_bin_edges(x, 6), lambda np, x: np.histogram(x * np.nan, [0.0, 1.0]),
        lambda np, x: np.histogram2d(x[0], x[1]), lambda np, x: np.histogram2d(x[0], x[1], [0.0, 1.0, 2.0]),
        lambda np, x: np.histogram2d(x[0], x[1], [3, 4], [[-1, 1], [0, 3]], density=True, weights=x[2] ** 2),
        lambda np, x: [*np.histogramdd(x.T, (2, 3, 2))[:1], *np.histogramdd(x.T, (2, 3, 2))[1]],
    ]),
}
# fmt: on


@pytest.mark.parametrize("name", CALLS)
def test_values_dtypes_and_errors_are_numpys(name: str) -> None:
    x, calls = CALLS[name]
    for call in calls:
        want = attempt(call, np, x)
        for module in (np, gnp):
            f = lambda x, call=call, module=module: call(module, x)  # noqa: E731
            got = attempt(lambda f=f: ge2.make_jaxpr(f)(x)(x))
            compare(want, got, False, inspect.getsource(call).strip())


def test_windows_are_numpys() -> None:
    view = np.lib.stride_tricks.sliding_window_view
    for args in ((2, 0), (3, 1), ((2, 3),), ((2, 2), (1, 1)), (0, 0), (5, 0), ((2, 2, 2),)):
        want = attempt(view, X, *args)
        compare(
            want,
            attempt(lambda a=args: ge2.make_jaxpr(lambda x: view(x, *a))(X)(X)),
            True,
            str(args),
        )
    with pytest.raises(errors.InputError, match="cannot be written"):
        ge2.make_jaxpr(lambda x: view(x, 2, 0, writeable=True))(X)


def test_written_in_turn() -> None:
    for value in ([1.0, 2.0, 3.0], 5, [7.0]):

        def f(x: Any, value: Any = value) -> Any:
            y = x.copy()
            np.place(y, y > 0, value)
            z = x.copy()
            np.putmask(z, z < 0, value)
            return y, z

        compare(list(f(X)), list(ge2.make_jaxpr(f)(X)(X)), True, str(value))
    with pytest.raises(errors.InputError, match="rule 'safe'"):
        ge2.make_jaxpr(lambda k: np.putmask(k.copy(), k > 1, W))(K)
    for write in (np.putmask, np.place):
        with pytest.raises(OverflowError, match="300 out of bounds"):
            ge2.make_jaxpr(lambda k, write=write: write(k.copy(), k > 1, [300]))(K.astype("u1"))


def test_what_runs_when_it_should() -> None:
    for bad in ([0, 5], [-1, 2]):
        with pytest.raises(IndexError, match="out of bounds"):
            ge2.make_jaxpr(lambda k: np.bincount(k, minlength=5))(K[:2])(np.array(bad))
        with pytest.raises(IndexError, match="out of bounds"):
            ge2.make_jaxpr(lambda k: np.ravel_multi_index((k, k), (5, 6)))(K[:2])(np.array(bad))


def test_derivatives() -> None:
    check_grads(lambda w: np.bincount(K, w) ** 2, (W,), order=1)
    check_grads(lambda w: np.histogram(X[0], 3, weights=w)[0], (W,), order=1)
    check_grads(lambda x: np.lib.stride_tricks.sliding_window_view(x, 2, 0) ** 2, (X,), order=1)
    check_grads(lambda x: np.polydiv(x[0], x[1, :2] + 9)[0] + np.nanmedian(x, 1)[:3], (X,), order=1)
    g = ge2.grad(lambda x: np.piecewise(x, [x > 0], [np.log, 0.0]).sum())(X)
    np.testing.assert_allclose(g, np.where(X > 0, 1 / X, 0))


def test_vmap() -> None:
    got = ge2.vmap(lambda k: np.bincount(k, minlength=4))(np.stack([K, K[::-1] * 0]))
    np.testing.assert_array_equal(got, [np.bincount(K, minlength=4), [4, 0, 0, 0]])


# -------------------------------------------------------------------------------------------- names


def test_every_name_of_numpy_is_here_or_has_a_reason() -> None:
    refused = gnp.rare.REFUSED
    assert set(np.__all__) - {"dtypes"} <= set(gnp.__all__) | set(refused)
    assert not set(gnp.__all__) & set(refused)
    assert set(applying.REASONS) <= set(gnp.rare.MODULES["rare.applying"])
    for name, (reason, fix) in refused.items():
        with pytest.raises(AttributeError) as caught:
            getattr(gnp, name)
        assert f"no {name}: {reason}" in str(caught.value) and fix in str(caught.value)


CALLED: dict[str, tuple[Any, ...]] = {
    "array2string": (X,), "array_repr": (X,), "array_str": (X,), "asarray_chkfinite": (X,),
    "bartlett": (K[1],),
    "blackman": (K[1],), "diag_indices": (K[1],), "fromiter": ([X[0, 0]], float), "hamming": (K[1],),
    "hanning": (K[1],), "intersect1d": (K, K), "isfortran": (X,), "mask_indices": (K[1], np.triu),
    "may_share_memory": (X, X), "save": ("/dev/null", X), "savetxt": ("/dev/null", X),
    "savez": ("/dev/null", X), "savez_compressed": ("/dev/null", X), "setdiff1d": (K, K), "setxor1d": (K, K),
    "shares_memory": (X, X), "tril_indices": (K[1],), "trim_zeros": (K,), "triu_indices": (K[1],),
    "union1d": (K, K), "unique": (K,), "unique_all": (K,), "unique_counts": (K,), "unique_inverse": (K,),
    "unique_values": (K,),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLED)
def test_what_a_trace_cannot_hold_says_so(name: str) -> None:
    places = [
        i for i, x in enumerate(CALLED[name]) if isinstance(x, np.ndarray | np.generic | list)
    ]
    f = ge2.jit(
        getattr(gnp, name), static_argnums=tuple(set(range(len(CALLED[name]))) - set(places))
    )
    with pytest.raises(errors.ConcretizationTypeError) as caught:
        f(*CALLED[name])
    reason, fix = applying.REASONS[name]
    assert reason in str(caught.value) and f"try  {fix}" in str(caught.value)


def test_known_elements_are_numpys_business() -> None:
    def f(x: Any, k: Any) -> Any:
        assert type(gnp.tril_indices(3)[0]) is np.ndarray
        return (x[:, np.unique(k)] ** 2).sum() + gnp.hanning(4)[k[0]]  # as grad knows k

    np.testing.assert_allclose(ge2.grad(f)(X, K), np.where(np.arange(4) < 3, 2 * X, 0))


ALIASES: dict[str, Callable[[Any, Any], Any]] = {
    "nan_to_num": lambda np, x: np.nan_to_num(x, copy=False),
    "nan_to_num(x=)": lambda np, x: np.nan_to_num(x=x, copy=False),
    "a copy of nan_to_num": lambda np, x: np.nan_to_num(x),
    "astype": lambda np, x: np.astype(x, float, copy=False),
    "a copy of astype": lambda np, x: np.astype(x, float),
    "real_if_close": lambda np, x: np.real_if_close(x),
    "linalg.matrix_transpose": lambda np, x: np.linalg.matrix_transpose(x),
    "linalg.diagonal": lambda np, x: np.linalg.diagonal(x),
    "linalg.matrix_power": lambda np, x: np.linalg.matrix_power(x, 1),
    "sliding_window_view": lambda np, x: np.lib.stride_tricks.sliding_window_view(x, 2, 1),
}


@pytest.mark.parametrize("alias", ALIASES.values(), ids=ALIASES)
def test_memory_is_shared_as_in_numpy_by_either_spelling(alias: Any) -> None:
    given = np.array([[np.nan, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 7.0, 8.0]])
    writable = alias(np, given.copy()).flags.writeable

    def seen(spelling: Any, x: Any) -> tuple[Any, Any, Any]:
        x = x * 1.0
        y = alias(spelling, x)
        x[...] = 5
        later = y * 1.0
        if writable:
            y[...] = 7
        return x, y, later

    for spelling in (gnp, np):
        got = ge2.jit(lambda x, spelling=spelling: seen(spelling, x))(given)
        for y, w in zip(got, seen(np, given), strict=True):
            np.testing.assert_array_equal(y, w)
