"""jacfwd, jacrev and hessian: pytrees in and out, sizes, and errors."""

from __future__ import annotations

import numpy as np
import pytest

import ge2
from ge2.base.errors import GradientError, InputError
from ge2.transforms import grad, hessian, jacfwd, jacobian, jacrev, jvp, vmap
from tests.transforms.functions import close

both = pytest.mark.parametrize("jac", [jacfwd, jacrev])


@both
def test_result_axes_come_first(jac):
    x = np.arange(1.0, 7.0).reshape(2, 3)
    found = jac(
        lambda x: np.stack([np.sum(x * x), np.prod(x[0]), x[1, 2], 0.0 * x[0, 0]]).reshape(2, 2)
    )(x)
    assert found.shape == (2, 2, 2, 3)
    close(found[0, 0], 2 * x)
    close(found[1, 0], [[0, 0, 0], [0, 0, 1]])


@both
def test_trees_in_and_out(jac):
    f = lambda t, s: {"p": t["a"] * s, "q": (np.sum(t["b"]), t["a"][0])}  # noqa: E731
    tree = {"a": np.array([1.0, 2.0]), "b": np.ones((2, 2))}
    found = jac(f)(tree, 3.0)
    close(found["p"]["a"], 3 * np.eye(2))
    assert found["p"]["b"].shape == (2, 2, 2) and not found["p"]["b"].any()
    close(found["q"][0]["b"], np.ones((2, 2)))
    close(found["q"][1]["a"], [1.0, 0.0])
    found = jac(f, argnums=(1, 0))(tree, 3.0)
    close(found["p"][0], [1.0, 2.0])
    close(found["p"][1]["a"], 3 * np.eye(2))


@both
def test_has_aux_dtypes_and_negative_argnums(jac):
    found, aux = jac(lambda n, x: (x * n, {"n": n}), argnums=-1, has_aux=True)(
        2, np.ones(2, np.float32)
    )
    assert found.dtype == np.float32 and aux == {"n": 2}
    close(found, 2 * np.eye(2))


@both
def test_numbers_and_nothing(jac):
    assert jac(lambda x: x * x)(3.0) == 6.0
    assert jac(lambda x: x * 2)(np.zeros((0, 2))).shape == (0, 2, 0, 2)
    assert jac(lambda x: np.sum(x))(np.zeros(0)).shape == (0,)
    assert jac(lambda x: np.zeros((3, 0)) * x)(1.0).shape == (3, 0)


@both
def test_inside_other_transforms(jac):
    f = lambda x: np.sin(x) * x[0]  # noqa: E731
    xs = np.arange(6.0).reshape(3, 2)
    close(vmap(jac(f))(xs), np.stack([jac(f)(x) for x in xs]))
    close(
        grad(lambda x: np.sum(jac(f)(x) ** 2))(xs[1]),
        jacrev(lambda x: np.sum(jacfwd(f)(x) ** 2))(xs[1]),
    )
    close(jac(jac(f))(xs[1]), jacfwd(jacrev(f))(xs[1]))


def test_hessian_of_a_tree():
    f = lambda p: np.sum(np.tanh(p["w"] * p["b"]) ** 2)  # noqa: E731
    p = {"w": np.array([0.3, -0.5, 1.0]), "b": 0.7}
    found = hessian(f)(p)
    assert (
        found["w"]["w"].shape == (3, 3)
        and found["w"]["b"].shape == (3,)
        and np.shape(found["b"]["b"]) == ()
    )
    close(found["w"]["b"], found["b"]["w"])
    step = 1e-4
    slope = lambda b: grad(f)({"w": p["w"], "b": b})  # noqa: E731
    close(found["b"]["w"], (slope(0.7 + step)["w"] - slope(0.7 - step)["w"]) / (2 * step), 1e-6)
    close(found["b"]["b"], (slope(0.7 + step)["b"] - slope(0.7 - step)["b"]) / (2 * step), 1e-6)


def test_hessian_of_a_small_network(rng):
    w = {"w1": rng.normal(size=(3, 4)), "b1": rng.normal(size=4), "w2": rng.normal(size=4)}
    x, y = rng.normal(size=(6, 3)), rng.normal(size=6)

    def loss(w):
        return np.mean((np.tanh(x @ w["w1"] + w["b1"]) @ w["w2"] - y) ** 2)

    h, t = hessian(loss)(w), {k: rng.normal(size=v.shape) for k, v in w.items()}
    product = {k: sum(np.tensordot(h[k][j], t[j], t[j].ndim) for j in w) for k in w}
    at = lambda s: grad(loss)({k: w[k] + s * t[k] for k in w})  # noqa: E731
    ahead, behind = at(1e-5), at(-1e-5)
    for k in w:
        close(product[k], jvp(grad(loss), (w,), (t,))[1][k])
        close(product[k], (ahead[k] - behind[k]) / 2e-5, 1e-7)


def test_hessian_options():
    h = hessian(lambda a, b: np.sum(a * a * b), argnums=(0, 1))(np.ones(2), np.full(2, 3.0))
    close(h[0][0], 6 * np.eye(2))
    close(h[0][1], 2 * np.eye(2))
    close(h[1][1], np.zeros((2, 2)))
    found, aux = hessian(lambda x: (np.sum(x**3), x[0]), has_aux=True)(np.array([1.0, 2.0]))
    close(found, np.diag([6.0, 12.0]))
    assert aux == 1.0
    assert jacobian is jacrev


@both
def test_errors(jac):
    with pytest.raises(GradientError, match="i64") as error:
        jac(lambda x: x)(np.arange(3))
    assert "test_jacobians.py" in str(error.value)
    with pytest.raises(GradientError, match="real|complex"):
        jac(lambda x: x, holomorphic=True)(np.ones(3))
    with pytest.raises(InputError, match="argument 1"):
        jac(lambda x: x, argnums=1)(np.ones(3))


def test_jacrev_takes_real_results_and_jacfwd_real_arguments():
    with pytest.raises(GradientError, match="results.*c128"):
        jacrev(lambda x: x * 1j)(np.ones(2))
    with pytest.raises(GradientError, match="arguments.*c128"):
        jacfwd(lambda x: np.real(x))(np.ones(2) * 1j)
    with pytest.raises(GradientError, match="results.*i64"):
        jacrev(lambda x: np.argmax(x))(np.ones(2))
    close(jacfwd(lambda x: x * 1j)(np.ones(2)), 1j * np.eye(2))


# ----------------------------------------------------------------------------------------- integers


def test_derivatives_by_integers_through_every_transform():
    p = {"w": np.ones(3), "n": np.arange(3)}
    loss = lambda p: (p["w"] * p["n"]).sum()  # noqa: E731
    for f in (ge2.grad(loss, allow_int=True), ge2.jit(ge2.grad(loss, allow_int=True))):
        for _ in range(3):
            found = f(p)
            assert found["n"].dtype == ge2.float0 and found["n"].shape == (3,)
            np.testing.assert_array_equal(found["w"], p["n"])
    two = {"w": np.ones((2, 3)), "n": np.ones((2, 3), int)}
    assert ge2.jit(ge2.vmap(f))(two)["n"].shape == (2, 3)
    alone = ge2.jit(ge2.grad(lambda n: (n * 2.0).sum(), allow_int=True))(np.arange(4))
    assert alone.shape == (4,) and alone.dtype == ge2.float0


def test_float0_is_handed_on_by_jit_and_vmap():
    none = np.zeros(3, ge2.float0)
    push = ge2.linearize(lambda x, n: (x * n).sum(), np.ones(3), np.arange(3))[1]
    pull = ge2.vjp(lambda x: (x, np.arange(3)), 2.0)[1]
    assert ge2.jit(push)(np.ones(3), none) == 3.0
    np.testing.assert_array_equal(ge2.vmap(push, (0, None))(np.eye(3), none), [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(ge2.vmap(pull, ((0, None),))((np.ones(2), none))[0], [1.0, 1.0])
    with pytest.raises(GradientError, match="is float0, which belongs to integers"):
        ge2.jvp(np.sin, (np.ones(3),), (none,))


def test_jacrev_allows_integers():
    p = {"w": np.ones(2), "n": np.arange(3)}
    found = ge2.jit(ge2.jacrev(lambda p: p["w"] * p["n"].sum(), allow_int=True))(p)
    np.testing.assert_array_equal(found["w"], 3 * np.eye(2))
    assert found["n"].shape == (2, 3) and found["n"].dtype == ge2.float0
    with pytest.raises(GradientError):
        ge2.jacrev(lambda p: p["w"] * p["n"].sum())(p)


# ------------------------------------------------------------------------ products with the Hessian


def test_hessian_vector_products_by_composition(rng):
    f = lambda p: np.sum(np.sin(p["w"]) ** 3) * p["b"]  # noqa: E731
    p = {"w": rng.normal(size=3), "b": np.float64(1.5)}
    v = {"w": rng.normal(size=3), "b": np.float64(0.5)}
    dot = lambda a, b: np.sum(a["w"] * b["w"]) + a["b"] * b["b"]  # noqa: E731
    h = hessian(f)(p)
    want = {k: h[k]["w"] @ v["w"] + h[k]["b"] * v["b"] for k in p}
    products = (
        lambda p: jvp(grad(f), (p,), (v,))[1],
        lambda p: grad(lambda p: jvp(f, (p,), (v,))[1])(p),
        lambda p: grad(lambda p: dot(grad(f)(p), v))(p),
        lambda p: ge2.vjp(grad(f), p)[1](v)[0],
        lambda p: ge2.linearize(grad(f), p)[1](v),
    )
    for product in (*products, *map(ge2.jit, products)):
        found = product(p)
        close(found["w"], want["w"])
        close(found["b"], want["b"])
