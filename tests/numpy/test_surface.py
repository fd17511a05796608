"""Programs of what NumPy cannot be handed while tracing, with `ge2.numpy`:
plain, traced, differentiated.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import ge2
import ge2.numpy as gnp
from ge2 import errors
from ge2.test_util import check_grads
from tests.numpy.agreement import compare, quietly

X = np.array([1.5, 2.0, 0.5, 3.0])
I = np.array([0, 2, 0, -1])  # noqa: E741 it meets itself


def alike(f: Callable[..., Any], *args: Any, exact: bool = False) -> None:
    """`f(np, *args)` gives the same of NumPy, of `ge2.numpy` plainly, and of it traced."""

    def listed(y: Any) -> list[Any]:
        return list(y) if isinstance(y, tuple | list) else [y]

    own = lambda: [np.array(x) for x in args]  # noqa: E731 some write into them
    want = listed(quietly(f, np, *own()))
    compare(want, listed(quietly(f, gnp, *own())), exact, "plainly")
    closed = ge2.make_jaxpr(lambda *xs: listed(f(gnp, *map(gnp.array, xs))))(*args)
    compare(want, quietly(closed, *args), exact, "traced")


def written(np: Any, x: Any, i: Any) -> Any:
    y = np.zeros(3)
    y[i[1]] = x[0]
    y[0] += x[1]
    z = np.array([1.0, 2.0, 3.0])
    z[1:] = x[:2]
    one = np.empty(())
    one[...] = x[0]
    return y, z, one, np.ones((2, 2))[:, i[2]]


def constants(np: Any, x: Any, i: Any) -> Any:
    table = np.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    return (
        table[i[1]], table.T[0][i], np.take(table, i[:2], 0), np.arange(5)[i],
        np.ravel(np.eye(3))[i],
    )  # fmt: skip


PROGRAMS: dict[str, Callable[..., Any]] = {
    "written": written,
    "constants": constants,
    "array": lambda np, x, i: (np.array([[x[0], 1], [2, x[1]]]), np.asarray([x[0], i[0]]), np.stack([x, x])),
    "r_": lambda np, x, i: (np.r_[x, 1, x[0]], np.r_["1,2,0", x, x], np.r_[0:3, i], np.r_["0,2", x, x]),
    "c_": lambda np, x, i: (np.c_[x, i], np.c_[x[:, None], x, x]),
    "mgrid": lambda np, x, i: (np.mgrid[0 : x[1] : 5j, 0:3:2j], np.mgrid[0 : x[1] : 3j], np.mgrid[0:2, 0:3]),
    "ogrid": lambda np, x, i: np.ogrid[0 : x[1] : 5j, 0:3:2j],
    "ndenumerate": lambda np, x, i: np.stack([v * k[0] for k, v in np.ndenumerate(x)]),
    "reduce": lambda np, x, i: [
        *(getattr(np, f).reduce(x) for f in ("add", "multiply", "maximum", "hypot", "subtract", "divide")),
        *(getattr(np, f).reduce(i) for f in ("bitwise_or", "gcd", "logical_xor", "left_shift", "lcm")),
        np.power.reduce(x), np.logaddexp.reduce(x), np.equal.reduce(x > 1), np.logical_and.reduce(x),
        np.hypot.reduce(np.outer(x, x), axis=(0, 1), keepdims=True), np.fmax.reduce(np.outer(x, x), axis=1),
        np.maximum.reduce(x, where=x > 1, initial=-1.0), np.add.reduce(x, dtype="f4", initial=2),
        np.bitwise_or.reduce(i, where=i > 0), np.multiply.reduce(i[:0]), np.gcd.reduce(i, initial=4),
        np.add.reduce(x[0]),
    ],
    "accumulate": lambda np, x, i: [
        *(getattr(np, f).accumulate(x) for f in ("add", "maximum", "hypot", "subtract", "divide", "power")),
        np.gcd.accumulate(i), np.fmin.accumulate(np.outer(x, x), axis=1), np.add.accumulate(i, dtype="f4"),
    ],
    "reduceat": lambda np, x, i: [
        *(getattr(np, f).reduceat(x, [0, 2, 1, 3]) for f in ("add", "maximum", "multiply", "hypot")),
        np.add.reduceat(np.outer(x, x), [0, 2], axis=1), np.add.reduceat(np.asarray(i, np.int8), [1, 3]),
    ],
    "outer": lambda np, x, i: (np.add.outer(x, i), np.hypot.outer(x, np.outer(x, x))),
    "described": lambda np, x, i: (x * np.add.nin, x + np.multiply.identity, x * len(np.sin.types)),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    alike(PROGRAMS[name], X, I)


# -------------------------------------------------------------------------------- indices that meet

AT = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "fmax", "hypot", "logaddexp")


def at(name: str, x: Any, key: Any, *v: Any, numpy: Any = gnp) -> Any:
    y = numpy.array(x)
    getattr(numpy, name).at(y, key, *v)
    return y


@pytest.mark.parametrize("name", AT)
def test_every_value_that_falls_to_an_element_counts(name: str) -> None:
    m, v = np.arange(12.0).reshape(3, 4) + 0.5, np.array([0.25, 2.0, 5.0, 0.75])
    j = np.array([1, 1, 1, 0])

    def f(np: Any, x: Any, m: Any, v: Any, i: Any, j: Any) -> Any:
        found = [
            at(name, x, i, v, numpy=np),
            at(name, m, (j, i), v, numpy=np),
            at(name, m, j, v, numpy=np),
        ]
        found += [at(name, m, (slice(1, None), i), 2.0, numpy=np), at(name, x, i[0], 3.0, numpy=np)]
        return [
            *found,
            at(name, x, slice(1, 3), v[:2], numpy=np),
            at(name, x, x > 1, 2.0, numpy=np),
        ]

    alike(f, X, m, v, I, j)


def test_others_are_applied_in_turn_where_indices_are_known() -> None:
    key = [0, 2, 0, -1]
    alike(lambda np, x: (at("power", x, key, 2.0, numpy=np), at("negative", x, key, numpy=np)), X)
    alike(lambda np, n: at("bitwise_xor", n, key, 5, numpy=np), np.arange(9, 13))
    alike(lambda np, n: at("floor_divide", n, key, [2, 3, 4, 5], numpy=np), np.arange(9, 13))
    with pytest.raises(
        errors.NoRuleError, match=r"power.at where indices may meet(.|\n)*fori_loop"
    ):
        ge2.make_jaxpr(lambda x, i: at("power", x, i, 2.0))(X, I)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["i8", "f4", "i1", "u1", "?", "c8"])
def test_at_casts_as_numpy_after_each_value(dtype: str) -> None:
    x = np.array([3, 1, 2, 4]).astype(dtype)
    values = (0.5, np.array([0.5, 1.0, 2.7, 3.0]), 300, np.array([2, 3, 4, 5], "f4"), True)
    cases = list(product(("add", "multiply", "maximum", "divide", "logical_or"), values))
    want = [quietly(at, name, x, I, v, numpy=np) for name, v in cases]
    closed = ge2.make_jaxpr(lambda x: [at(name, x, [0, 2, 0, -1], v) for name, v in cases])(x)
    compare(want, quietly(closed, x), False, dtype)
    if dtype in "i8 i1 u1 ?":
        with pytest.raises(errors.NoRuleError, match="each result cast to"):
            ge2.make_jaxpr(lambda x, i: at("divide", x, i, 0.5))(x, I)


def test_at_of_jax() -> None:
    def f(x: Any, i: Any) -> Any:
        spot = x.at[i]
        return (spot.get(), spot.set(0.5), spot.add(1.0), spot.multiply(x), spot.max(2.0), spot.min(x),
                spot.apply(np.sqrt), x.at[x > 1].add(10.0), x.at[1:].divide(2.0), x.at[0].power(2.0),
                x.at[x > 1].apply(np.sqrt), spot.subtract(x), gnp.at(X)[i].add(x))  # fmt: skip

    want = [X[I], *(X.copy() for _ in range(12))]
    want[1][I] = 0.5
    for k, (name, v) in {2: ("add", 1.0), 3: ("multiply", X), 4: ("maximum", 2.0), 5: ("minimum", X),
                         11: ("subtract", X), 12: ("add", X)}.items():  # fmt: skip
        want[k] = at(name, X, I, v, numpy=np)
    want[6][I], want[7][X > 1], want[8][1:] = np.sqrt(X[I]), X[X > 1] + 10, X[1:] / 2
    want[9][0], want[10][X > 1] = X[0] ** 2, np.sqrt(X[X > 1])
    compare(want, list(ge2.jit(f)(X, I)), False, "jit")
    compare(want[:1], [gnp.at(X)[I].get()], True, "plainly")


def test_derivatives_where_indices_meet() -> None:
    for name in ("add", "multiply", "divide", "hypot", "maximum"):
        check_grads(
            lambda x, v, name=name: at(name, gnp.array(x), I, v, numpy=gnp),
            (X, X[::-1] + 0.1),
            order=1,
        )
    check_grads(lambda x: np.hypot.reduce(x) + np.divide.reduce(x), (X,), order=1)


# -------------------------------------------------------------------------------------- masks, flat


def masked(np: Any, x: Any, i: Any) -> Any:
    x = np.array(x)
    x[x > 2] += 1
    m = x > 1
    x[m] = np.sqrt(x[m]) * 2 - x[m]
    x[m] *= np.array([1.0, 2.0, 3.0])
    x[(x > 2) & (x < 9)] = x[(x > 2) & (x < 9)] ** 2  # two masks, computed alike
    x[m] = np.where(x[m] > 2, np.power(x[m], 2.0), np.maximum(x[m], 1.5)) * np.clip(x[m], 0, 3)
    rows = np.outer(x, x)
    rows[x > 0.5] -= x
    n = np.array(i)
    n[n > 0] //= 2
    return x, rows, n


def flat(np: Any, x: Any, i: Any) -> Any:
    x = np.reshape(np.array(x), (2, 2))
    x.flat[1] = x.flat[2] + 1
    x.flat[[0, 3]] = [7.0, 5.0]
    x.flat[1:] = np.array([5.0, 6.0])
    y = np.array(list(x.flat))
    x.flat = np.array([1.0, 2.0])
    return x, y, x.flat[i[1]], np.zeros(len(x.flat))


def test_masked_and_flat_programs() -> None:
    alike(masked, X, I)
    alike(flat, X, I)


def test_what_a_mask_does_not_choose_reaches_no_derivative() -> None:
    def f(x: Any) -> Any:
        y = x.copy()
        m = y > 0
        y[m] = np.log(y[m])
        return y.sum()

    np.testing.assert_array_equal(ge2.grad(ge2.jit(f))(np.array([-1.0, 2.0, 0.0])), [1.0, 0.5, 1.0])


@pytest.mark.parametrize(
    "f",
    [lambda x: x[x > 1], lambda x: x[x > 1].cumsum(), lambda x: np.sort(x[x > 1]), lambda x: len(x[x > 1]),
     lambda x: x[x > 1].sum(keepdims=True), lambda x: np.average(x[x > 1], weights=x[x > 1]),
     lambda x: np.stack([x[x > 1]]), lambda x: x[x > 1][1], lambda x: np.sin(x[x > 1]) + x[x < 1],
     lambda x: np.sin(x[x > 1]) + x[x > 2]],
)  # fmt: skip
def test_what_a_traced_mask_chooses_cannot_leave_its_place(f: Any) -> None:
    with pytest.raises(
        errors.ConcretizationTypeError, match=r"depends on the values of mask(.|\n)*np.where"
    ):
        ge2.make_jaxpr(f)(X)


def test_an_array_from_outside_is_not_written() -> None:
    given = np.arange(6.0)
    for f in (gnp.asarray, gnp.ravel, lambda x: gnp.reshape(x, (2, 3)), gnp.atleast_2d):
        with pytest.raises(errors.InPlaceError, match="an array from outside"):
            ge2.make_jaxpr(lambda x, f=f: f(given).__setitem__(0, x))(2.0)
    np.testing.assert_array_equal(given, np.arange(6.0))


def test_names_that_are_absent_say_so() -> None:
    for name, fix in (
        ("nonsense", "pure_callback"),
        ("trapz", "np.trapezoid"),
        ("zeroes", "np.zeros"),
    ):
        with pytest.raises(AttributeError, match=rf"has no attribute '{name}'(.|\n)*try .*{fix}"):
            getattr(gnp, name)
    assert {"r_", "errstate", "add", "fft"} <= set(dir(gnp)) and gnp.s_[1:2] == slice(1, 2)
    assert {n for n in dir(gnp) if n[0] != "_"} <= {*gnp.__all__, "fft", "linalg"}
    for call, fix in ((lambda x: x.exp(), "np.exp"), (lambda x: x.tranpose(), "x.transpose"),
                      (lambda x: x.iloc, r"x\[i\]"), (lambda x: x.numpy(), "x itself")):  # fmt: skip
        with pytest.raises(AttributeError, match=rf"at .*test_surface.py(.|\n)*try .*{fix}"):
            ge2.make_jaxpr(call)(X)


HINTS = {"cumsum": None, "erf": "special", "rsqrt": 1 / np.sqrt(X), "cummax": np.maximum.accumulate(X),
         "is_finite": np.isfinite(X), "neg": -X, "shift_left": None}  # fmt: skip


@pytest.mark.parametrize("name", HINTS)
def test_names_of_jax_have_numpys_in_their_place(name: str) -> None:
    """What the hint says is NumPy's, is traced, and does what JAX's function does."""
    with pytest.raises(AttributeError, match=rf"'ge2.lax' has no attribute '{name}'") as caught:
        getattr(ge2.lax, name)
    fix = str(caught.value).partition("try  ")[2].partition(",")[0]
    wanted = HINTS[name]
    if isinstance(wanted, np.ndarray):
        np.testing.assert_allclose(ge2.jit(eval(f"lambda x: {fix}", {"np": np}))(X), wanted)
    else:
        assert fix in (f"np.{name}", f"ge2.scipy.{wanted}.{name}", "x << n")


def test_a_vector_of_a_tree_is_found_by_jaxs_name() -> None:
    for module, name, fix in ((ge2.tree_util, "ravel_pytree", "ge2.tree.ravel"),
                              (ge2.random, "rademacher", "bernoulli"), (ge2.lax, "psum", "vmap")):  # fmt: skip
        with pytest.raises(AttributeError, match=f"{name}(.|\n)*try .*{fix}"):
            getattr(module, name)


def counts(x: Any, w: Any, i: Any) -> Any:
    edges = np.array([-2.0, -0.5, 0.0, 2.0])
    return (np.bincount(i, w, minlength=6), np.bincount(i, minlength=6), np.histogram(x, 4, (-2, 2))[0],
            np.histogram(x, edges, weights=w)[0], np.histogram2d(x, w, 3, ((-2, 2), (0, 1)))[0],
            np.digitize(x, edges))  # fmt: skip


def windows(x: Any, w: Any, i: Any) -> Any:
    rows = np.lib.stride_tricks.sliding_window_view(np.reshape(x, (3, 4)), (2, 2))
    return rows.max((-1, -2)), np.lib.stride_tricks.sliding_window_view(x, 3) @ w[:3]


def masks(x: Any, w: Any, i: Any) -> Any:
    y, z = x.copy(), np.reshape(x, (3, 4)).copy()
    y[y > 0] *= 2
    y[y < -1] += w[0]
    z.flat[3] = 7.0
    z.flat[::2] = z.flat[1]
    return y, z, z.flat[1:7]


def methods(x: Any, w: Any, i: Any) -> Any:
    ys = [x * 1 for _ in range(4)]
    for f, y in zip((np.add, np.subtract, np.multiply, np.maximum), ys, strict=True):
        f.at(y, i, w)
    z = np.reshape(x, (3, 4))
    return (*ys, np.add.reduceat(x, [0, 4, 2, 7]), np.maximum.reduceat(z, [0, 2, 1], axis=1),
            np.subtract.accumulate(z, 1), np.multiply.accumulate(z), np.logaddexp.reduce(z, 1))  # fmt: skip


HALVES = {"c": (counts, methods), "shim": (windows, masks)}  # compilers take long: half each


@pytest.mark.exhaustive
@pytest.mark.parametrize("executor", ["c", "blocked", "shim", "vmap"])
def test_in_every_executor_and_in_batches(executor: str) -> None:
    programs = HALVES.get(executor, (counts, windows, masks, methods))
    rng = np.random.default_rng(5)
    args = rng.standard_normal((2, 12)), rng.random((2, 12)), rng.integers(0, 5, (2, 12))

    def f(x: Any, w: Any, i: Any) -> list[Any]:
        return [y for g in programs for y in g(x, w, i)]

    want = [f(*(a[k] for a in args)) for k in range(2)]
    if executor == "vmap":
        compare(
            [np.stack(pair) for pair in zip(*want, strict=True)], ge2.vmap(f)(*args), False, "vmap"
        )
        return
    with ge2.config.using(executor=executor):
        compare(want[0], ge2.jit(f)(*(a[0] for a in args)), False, executor)
