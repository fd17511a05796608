"""Parts at starts that may be traced, and choices among values, under their names in `jax.lax`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import ge2
from ge2 import lax
from ge2.base.config import config
from ge2.test_util import check_grads
from tests.together import needs_compiler, together

X = np.arange(20.0).reshape(4, 5)
U = -np.arange(1.0, 7.0).reshape(2, 3)
STARTS = (-9, -2, 0, 1, 3, 9)


def part(x: Any, starts: Sequence[int], sizes: Sequence[int]) -> tuple[slice, ...]:
    """The slices of a part, clamped to lie inside; a negative start counts from the end."""
    found = [
        np.clip(s + n if s < 0 else s, 0, n - k)
        for s, n, k in zip(starts, x.shape, sizes, strict=True)
    ]
    return tuple(slice(s, s + k) for s, k in zip(found, sizes, strict=True))


def put(x: Any, u: Any, *starts: int) -> Any:
    y = x.copy()
    y[part(x, starts, u.shape)] = u
    return y


# fmt: off
# of x, u and a start: ours and NumPy's
PARTS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "slice": (
        lambda x, u, i: lax.dynamic_slice(x, (i, i), (2, 3)),
        lambda x, u, i: x[part(x, (i, i), (2, 3))]),
    "slice of a known and a whole axis": (
        lambda x, u, i: (lax.dynamic_slice(x, (1, i), (2, 2)), lax.dynamic_slice(x, (i, 0), (2, 5))),
        lambda x, u, i: (x[part(x, (1, i), (2, 2))], x[part(x, (i, 0), (2, 5))])),
    "slices in a dimension": (
        lambda x, u, i: (lax.dynamic_slice_in_dim(x, i, 3, 1), lax.dynamic_slice_in_dim(x, i, 0)),
        lambda x, u, i: (x[part(x, (0, i), (4, 3))], x[:0])),
    "update": (
        lambda x, u, i: lax.dynamic_update_slice(x, u, (i, i)),
        lambda x, u, i: put(x, u, i, i)),
    "update in a dimension": (
        lambda x, u, i: lax.dynamic_update_slice_in_dim(x, u[:1, :1] * x[:, :2], i, 1),
        lambda x, u, i: put(x, u[:1, :1] * x[:, :2], 0, i)),
    "index": (
        lambda x, u, i: (lax.dynamic_index_in_dim(x, i, 1), lax.dynamic_index_in_dim(x, i, keepdims=False)),
        lambda x, u, i: (x[part(x, (0, i), (4, 1))], x[part(x, (i, 0), (1, 5))][0])),
    "update of an index": (
        lambda x, u, i: (
            lax.dynamic_update_index_in_dim(x, x[0] * u[0, 0], i, 0),
            lax.dynamic_update_index_in_dim(x, u[0, 0] * x[:, :1], i, -1)),
        lambda x, u, i: (put(x, x[:1] * u[0, 0], i, 0), put(x, u[0, 0] * x[:, :1], 0, i))),
}
# fmt: on


def same(got: Any, want: Any) -> None:
    pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
    for g, w in pairs:
        assert (np.shape(g), np.asarray(g).dtype) == (w.shape, w.dtype)
        np.testing.assert_array_equal(g, w)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PARTS)
def test_parts(name: str) -> None:
    ours, plain = PARTS[name]
    compiled, batched = ge2.jit(ours), ge2.vmap(ours, (None, 0, 0))
    for i in STARTS:
        want = plain(X, U, i)
        same(ours(X, U, i), want)
        same(compiled(X, U, i), want)
    us = np.stack([U + k for k in range(len(STARTS))])
    got = batched(X, us, np.array(STARTS))
    loop = [plain(X, u, i) for u, i in zip(us, STARTS, strict=True)]
    same(
        got,
        tuple(map(np.stack, zip(*loop, strict=True)))
        if isinstance(loop[0], tuple)
        else np.stack(loop),
    )
    check_grads(lambda x, u: ours(x, u, 1), (X, U), order=2)
    check_grads(lambda x, u: ours(x, u, np.int64(9)), (X, U), order=1)


@pytest.mark.parametrize("executor", ["blocked", "shim"])
def test_all_parts_in_other_executors(executor: str) -> None:
    fs = list(PARTS.values())
    with ge2.config.using(executor=executor):
        got = ge2.jit(lambda x, u, i: [ours(x, u, i) for ours, _ in fs])(X, U, 3)
    for y, (_, plain) in zip(got, fs, strict=True):
        same(y, plain(X, U, 3))


def test_the_gradient_of_an_update_touches_what_the_update_does() -> None:
    f = lambda x, u, i: (lax.dynamic_update_slice(x, u, (i, i)) ** 2).sum()  # noqa: E731
    graph = ge2.make_jaxpr(ge2.grad(f, (0, 1)))(X, U, 1)
    assert "iota" not in str(graph) and str(graph).count("scatter") == 2


def test_known_places_and_choices() -> None:
    which, mask = np.array([[-1, 0, 1, 2, 7]] * 4), X % 3 == 0
    pairs: list[tuple[Callable[..., Any], Any]] = [
        (lambda x: lax.slice(x, (0, 1), (4, 5), (2, 3)), X[0:4:2, 1:5:3]),
        (lambda x: lax.slice_in_dim(x, -3, -1, 1, 1), X[:, -3:-1]),
        (lambda x: lax.index_in_dim(x, -1, 1), X[:, -1:]),
        (lambda x: lax.index_in_dim(x, 2, keepdims=False), X[2]),
        (lambda x: lax.select(x % 3 == 0, x, -x), np.where(mask, X, -X)),
        (lambda x: lax.select(x[0, 0] == 0, x, -x), X),
        (lambda x: lax.select_n(x % 3 == 0, x, -x), np.where(mask, -X, X)),
        (
            lambda x: lax.select_n(which, x, -x, x * 2),
            np.choose(np.clip(which, 0, 2), (X, -X, X * 2)),
        ),
        (lambda x: lax.select_n(x[0, 1].astype(int), x, -x, x * 2), -X),
        (lambda x: lax.clamp(3.0, x, 12), np.clip(X, 3.0, 12.0)),
        (lambda x: lax.clamp(x * 0 + 5, x, x * 0 + 2), np.full_like(X, 2.0)),
    ]
    got = ge2.jit(lambda x: [f(x) for f, _ in pairs])(X)
    for y, (f, want) in zip(got, pairs, strict=True):
        same(y, want)
        same(f(X), want)
    rows = ge2.vmap(lambda p, a: lax.select_n(p, a, -a))(np.array([0, 1, -1, 5]), X)
    same(rows, X * np.array([[1], [-1], [1], [-1]]))
    check_grads(
        lambda x: lax.select_n(which, x, -x, x * 2) * lax.clamp(3.5, x, 11.5), (X,), order=1
    )


@pytest.mark.parametrize(
    ("f", "error", "says"),
    [
        (lambda: lax.dynamic_slice(X, (0,), (1, 1)), ge2.errors.ShapeError, "a start and a size for each"),
        (lambda: lax.dynamic_slice(X, (0, 0), (5, 1)), ge2.errors.ShapeError, "do not fit"),
        (lambda: lax.dynamic_slice(X, (0.5, 0), (1, 1)), ge2.errors.TypeRuleError, "integer scalars"),
        (lambda: lax.dynamic_update_slice(X, U.astype("f4"), (0, 0)), ge2.errors.TypeRuleError, "one dtype"),
        (lambda: lax.select(X, X, X), ge2.errors.TypeRuleError, "takes bools"),
        (lambda: lax.select_n(X > 1, X, X, X), ge2.errors.TypeRuleError, "two cases at most"),
        (lambda: lax.select_n(1), ge2.errors.ArgumentError, "at least one case"),
        (lambda: lax.clamp(np.zeros(5), X, X), ge2.errors.TypeRuleError, "bounds of its type"),
        (lambda: lax.slice(X, (0, 0), (5, 5)), ge2.errors.ShapeError, "does not lie in"),
    ],
)  # fmt: skip
def test_what_is_refused(f: Callable[[], Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        f()


# -------- Indices that a traced mask chooses, and reductions between traced indices.

IMAGE = np.linspace(-1, 1, 30).reshape(5, 6)
ROWS, COLUMNS = np.array([[-2, 0, 4], [7, 2, 3]]), np.array([[5, -1, 0], [1, 6, 2]])
OUTSIDE = np.full((2, 3), -100)


def sampled(x: Any, i: Any, j: Any) -> Any:
    inside = (i >= 0) & (i < x.shape[0]) & (j >= 0) & (j < x.shape[1])
    y = np.zeros(i.shape)
    y[inside] += 2 * x[i[inside], j[inside]]
    return y


def rows(x: Any, i: Any, j: Any) -> Any:
    inside = (i >= 0) & (i < x.shape[0])
    y = np.zeros((*i.shape, x.shape[1]))
    y[inside] = np.sin(x[i[inside]])
    return y


def columns(x: Any, i: Any, j: Any) -> Any:
    inside = (j >= 0) & (j < x.shape[1])
    y = np.zeros((x.shape[0], *j.shape))
    y[..., inside] = x[:, j[inside]] * 3
    return y


def places(x: Any, i: Any, j: Any) -> Any:
    p, q = np.nonzero(x > 0)
    y = np.zeros_like(x)
    y[p, q] = x[0][q] + x[(p + 1) % 5, q]
    return y


def turned(x: Any, i: Any, j: Any) -> Any:
    """The elements at a wall, of other directions: as lattice Boltzmann programs have them."""
    f, wall = np.stack([x, x + 1, x + 2]), i[0, 0] * x > 0
    back = f[:, wall][[2, 0, 1]]
    g = 2 * f
    g[:, wall] = back
    g[1:, wall] -= f[:, wall][1:] / 2
    h = np.moveaxis(g, 0, -1).copy()
    h[wall, :] = h[wall, :][:, ::-1]
    return h


def counted(x: Any, i: Any, j: Any) -> Any:
    i = i.ravel()
    inside = (i >= 0) & (i < 5)
    y = np.zeros((5, 2))
    np.add.at(y, (i[inside], i[inside] % 2), x.ravel()[:6][inside])
    np.maximum.at(y, (i[inside], 0 * i[inside]), 0.25)
    return y


def put_at(x: Any, i: Any, j: Any) -> Any:
    i, y = i.ravel(), np.zeros((5, 2))
    inside = (i >= 0) & (i < 5)
    y[i[inside]] = np.stack([x, x + 1], -1).reshape(-1, 2)[:6][inside]
    y[i[inside]] += 1
    (p,) = np.nonzero(x[:, 0] > -0.5)
    y[p - 1, 0] = x[p, 0]
    return y


CHOSEN = (sampled, rows, columns, places, turned, counted, put_at)


@pytest.mark.any_executor
@pytest.mark.exhaustive
@pytest.mark.parametrize("at", [(ROWS, COLUMNS), (OUTSIDE, OUTSIDE)], ids=["some", "none"])
@pytest.mark.parametrize("f", CHOSEN, ids=lambda f: f.__name__)
def test_indices_that_a_mask_chooses(f: Any, at: Any) -> None:
    y = ge2.jit(f)(IMAGE, *at)
    np.testing.assert_allclose(y, f(IMAGE, *at), rtol=1e-15)
    check_grads(lambda x: np.sum(np.sin(f(x, *at))), (IMAGE,), order=1)


def test_an_index_outside_that_a_mask_chooses_is_outside() -> None:
    def f(x: Any, i: Any) -> Any:
        y = np.zeros(3)
        y[i[x > 0]] = 1
        return y

    with config.using(executor="c"), pytest.raises(IndexError):
        ge2.jit(f)(np.ones(2), np.array([0, 3]))


STARTING = ([0, 3, 3, 7], [2, 5, 11], [4, 4, 4], [*range(12)], [])


@pytest.mark.any_executor
@pytest.mark.exhaustive("ufunc")
@pytest.mark.parametrize("starts", STARTING, ids=str)
@pytest.mark.parametrize("ufunc", [np.add, np.maximum, np.multiply])
def test_slices_between_traced_indices_are_reduced(ufunc: np.ufunc, starts: list[int]) -> None:
    i, x = np.array(starts, np.int64), np.linspace(-1, 2, 48).reshape(4, 12)
    small = np.arange(12).astype(np.int8)
    for a, axis in ((x, 1), (x.T.copy(), 0), (small, 0)):
        y = ge2.jit(lambda a, i, n=axis: ufunc.reduceat(a, i, axis=n))(a, i)
        wanted = ufunc.reduceat(a, i, axis=axis)
        assert (y.shape, y.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(y, wanted, rtol=1e-14)
    if ufunc is not np.multiply:
        check_grads(lambda x: np.sum(np.sin(ufunc.reduceat(x, i, axis=1))), (x,), order=1)


@pytest.mark.parametrize("starts", [[3, 1], [-1, 2], [0, 12]], ids=str)
def test_traced_indices_of_slices_rise_and_are_inside(starts: list[int]) -> None:
    with config.using(executor="c"), pytest.raises(IndexError):
        ge2.jit(np.add.reduceat)(np.arange(12.0), np.array(starts))


KNOWN = (
    [0, 8, 16],
    [0, 8, 16, 20],
    [3, 6, 9],
    [5],
    [0, 1, 2],
    [23],
    [0, 5, 5, 9],
    [9, 3, 7],
    [1, 7, 8, 20],
    [0, 12],
)
REDUCED = [
    (dtype, ufunc)
    for dtype in ("f8", "f4", "i4", "u1", "?")
    for ufunc in (np.add, np.multiply, np.maximum, np.logical_or, np.subtract)
    if (dtype, ufunc) != ("?", np.subtract)  # which NumPy refuses
]


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize(("dtype", "ufunc"), REDUCED)
def test_reduceat_of_known_slices(ufunc, dtype, rng):
    """Slices of one length are rows of a matrix, the last one may be shorter; others are summed as
    they lie, or from wherever they begin.
    """
    pairs = []
    with together():
        for shape, axis in (((24,), 0), ((24, 3), 0), ((4, 24), 1)):
            x = (np.round(rng.normal(size=shape) * 12) / 4).astype(
                dtype
            )  # sums of floats are exact
            if dtype == "f8":
                x[rng.random(shape) < 0.1] = np.nan
            for starts in KNOWN:
                f = lambda x, i=starts, n=axis: ufunc.reduceat(x, np.array(i), axis=n)  # noqa: E731
                pairs.append((ge2.jit(f).lower(x).compile(), x, f(x)))
    for compiled, x, wanted in pairs:
        y = compiled(x)
        assert y.dtype == wanted.dtype
        np.testing.assert_allclose(y, wanted, rtol=1e-5)


def test_reduceat_of_equal_slices_is_one_kernel_without_indices(rng):
    x = rng.normal(size=4000)
    compiled = ge2.jit(lambda x: np.add.reduceat(x, np.arange(0, 4000, 8)))
    assert [k.name.split("_")[0] for k in compiled.lower(x).kernels] == ["reduce"]
    np.testing.assert_allclose(compiled(x), np.add.reduceat(x, np.arange(0, 4000, 8)), 1e-12)
