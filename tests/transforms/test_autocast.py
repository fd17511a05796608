"""Mixed precision: which products are low, what is rounded and how often, under every transform."""

from __future__ import annotations

from collections import Counter

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2 import lax
from ge2.base.config import config
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import ConvertElementType

BF16, F16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
RNG = np.random.default_rng(0)
X, W, V = (RNG.normal(size=s).astype("f4") for s in ((5, 4), (4, 3), (3, 3)))


def equations(graph):
    """Those of a graph and of the graphs in them."""
    for eqn in graph.eqns:
        yield eqn
        for inner in getattr(eqn.op, "graphs", tuple)():
            yield from equations(inner)


def products(f, *args):
    """How many products there are of which dtypes: of operands, to results."""
    graph = ge2.make_jaxpr(f)(*args).graph
    return Counter(
        (e.inputs[0].type.dtype.name, e.outs[0].type.dtype.name)
        for e in equations(graph)
        if isinstance(e.op, DotGeneral)
    )


def mlp(w, v, x):
    return np.sum(np.tanh(np.tanh(x @ w) @ v) ** 2)


def rounded(x, dtype=BF16):
    return x.astype(dtype).astype("f4")


def test_products_round_their_operands_alone_and_all_else_is_float32():
    found = ge2.autocast(lambda w, x: np.exp(x @ w))(W, X)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.exp(rounded(X) @ rounded(W)), rtol=1e-6)
    assert np.abs(found - np.exp(X @ W)).max() > 1e-4


@pytest.mark.parametrize("policy", ["bf16", "f16"])
def test_gradients_are_float32_their_products_low_and_each_weight_is_rounded_once(policy):
    low = {"bf16": "bfloat16", "f16": "float16"}[policy]
    step = ge2.grad(ge2.autocast(mlp, policy), (0, 1))
    assert products(step, W, V, X) == {(low, "float32"): 2, (low, low): 3}
    graph = ge2.make_jaxpr(step)(W, V, X).graph
    casts = Counter(
        e.inputs[0] for e in graph.eqns
        if isinstance(e.op, ConvertElementType) and e.inputs[0] in graph.inputs
    )  # fmt: skip
    assert casts == dict.fromkeys(graph.inputs, 1)
    for found, wanted in zip(step(W, V, X), ge2.grad(mlp, (0, 1))(W, V, X), strict=True):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, wanted, atol=0.05, rtol=0.05)
        assert not np.array_equal(found, wanted)


def test_what_is_read_rounded_alone_is_stored_so():
    f = ge2.autocast(lambda x, w, v: (x @ w).reshape(3, 5).T @ v)
    assert products(f, X, W, V) == {("bfloat16", "bfloat16"): 1, ("bfloat16", "float32"): 1}
    first = rounded(rounded(X) @ rounded(W)).reshape(3, 5).T
    np.testing.assert_allclose(f(X, W, V), first @ rounded(V), rtol=1e-6)


def scanned(w, v, x):
    return lax.scan(lambda h, _: (np.tanh(h @ v), h @ v), x @ w, None, length=3)[0].sum()


def chosen(w, v, x):
    return lax.cond(x[0, 0] > 0, lambda y: y @ v, lambda y: y @ v.T, x @ w).sum()


def looped(w, v, x):
    return lax.fori_loop(0, 2, lambda i, y: np.tanh(y @ v), x @ w).sum()


def batched(w, v, x):
    return ge2.vmap(lambda row: np.tanh(row @ w) @ v)(x).sum()


def ended(w, v, x):
    return lax.while_loop(lambda y: y[0, 0] < -1e9, lambda y: y @ v, x @ w).sum()


@ge2.custom_vjp
def own(x, w):
    return x @ w


own.defvjp(lambda x, w: (x @ w, (x, w)), lambda saved, ct: (ct @ saved[1].T, saved[0].T @ ct))
FUNCTIONS = {
    "scan": scanned, "cond": chosen, "fori_loop": looped, "vmap": batched, "while": ended,
    "jit": lambda w, v, x: ge2.jit(mlp)(w, v, x), "checkpoint": ge2.checkpoint(mlp),
    "custom_vjp": lambda w, v, x: own(x, w).sum(),
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FUNCTIONS)
def test_products_are_low_inside_of_whatever_holds_them(name):
    f = FUNCTIONS[name]
    cast = ge2.autocast(f)
    batched, stack = ge2.vmap(cast, (None, None, 0)), np.stack([X, 2 * X])
    cases = [(cast, X), (batched, stack)]
    if name != "while":
        cases += [(ge2.grad(cast), X), (ge2.autocast(ge2.grad(f)), X)]
    for g, x in cases:
        assert {dtype for dtype, _ in products(g, W, V, x)} == {"bfloat16"}
    with config.using(executor="blocked"):
        np.testing.assert_allclose(cast(W, V, X), f(W, V, X), rtol=0.05, atol=0.1)
        found = ge2.jit(batched)(W, V, stack)
        np.testing.assert_allclose(found, [cast(W, V, X), cast(W, V, 2 * X)], rtol=1e-3, atol=1e-3)
        if name != "while":
            wanted = ge2.grad(f)(W, V, X)
            for g in (ge2.grad(cast), ge2.autocast(ge2.grad(f))):
                found = ge2.jit(g)(W, V, X)
                assert found.dtype == np.float32
                np.testing.assert_allclose(found, wanted, rtol=0.1, atol=0.1)


def test_forward_mode_and_second_order():
    cast = ge2.autocast(mlp)
    primals, tangents = (W, V, X), tuple(RNG.normal(size=a.shape).astype("f4") for a in (W, V, X))
    for g in (lambda f: ge2.jvp(f, primals, tangents)[1], lambda f: ge2.hessian(f)(*primals)):
        found, wanted = g(cast), g(mlp)
        np.testing.assert_allclose(found, wanted, rtol=0.1, atol=0.3)


def test_policies_inside_of_each_other():
    def f(x):
        inner = ge2.autocast(lambda y: y @ V, "f16")(x @ W)
        return ge2.autocast(lambda y: y @ V, None)(inner)

    assert products(ge2.autocast(f, "bf16"), X) == {
        ("bfloat16", "float32"): 1, ("float16", "float32"): 1, ("float32", "float32"): 1,
    }  # fmt: skip
    assert products(f, X) == {("float32", "float32"): 2, ("float16", "float32"): 1}


def test_tf32_leaves_types_and_what_is_exact_alone():
    def f(x):
        return ge2.numpy.matmul(x @ W, V, precision="highest"), x.astype("f8") @ W.astype("f8")

    graph = ge2.make_jaxpr(ge2.autocast(f, "tf32"))(X).graph
    found = [e.op.precision for e in graph.eqns if isinstance(e.op, DotGeneral)]
    assert sorted(map(str, found)) == ["None", "highest", "tf32"]
    assert products(ge2.autocast(f), X) == {
        ("bfloat16", "float32"): 1, ("float32", "float32"): 1, ("float64", "float64"): 1,
    }  # fmt: skip
    solve = lambda x: np.linalg.solve(V, x.T)  # noqa: E731
    np.testing.assert_array_equal(ge2.autocast(solve)(X[:, :3]), solve(X[:, :3]))


def test_what_is_computed_of_half_types_is_rounded_where_it_is_stored():
    x = X.astype(BF16)
    f = lambda x: np.sum(np.exp(x) * np.exp(-x) - 1, -1)  # noqa: E731
    found, plain = ge2.autocast(f)(x), f(x)
    assert found.dtype == BF16
    assert np.abs(found.astype("f4")).max() < 1e-5 < np.abs(plain.astype("f4")).max()
    kept = ge2.autocast(f, ge2.Policy(chains=False))(x)
    assert np.abs(kept.astype("f4")).max() > 1e-5
    both = ge2.autocast(lambda x, w: np.maximum(x @ w, 0) @ V.astype(BF16))
    assert both(x, W.astype(BF16)).dtype == BF16
    assert products(both, x, W.astype(BF16)) == {
        ("bfloat16", "float32"): 1, ("bfloat16", "bfloat16"): 1,
    }  # fmt: skip
    slope = ge2.grad(lambda w: both(x, w).astype("f4").sum())(W.astype(BF16))
    assert slope.dtype == BF16


def test_arguments_that_are_written_containers_and_branches_on_values():
    def f(p, x):
        p["b"][:] = p["b"] + 1
        return {"y": x @ p["w"] if x[0, 0] > -100 else x}, 3

    p = {"w": W, "b": np.zeros(2, np.float32)}
    y, three = ge2.autocast(f)(p, X)
    assert three == 3
    np.testing.assert_array_equal(p["b"], 1)
    np.testing.assert_allclose(y["y"], rounded(X) @ rounded(W), rtol=1e-6)


def test_a_policy_that_there_is_not():
    with pytest.raises(
        ge2.errors.ArgumentError, match="products are of 'bf16', 'f16', 'tf32' or None; got 'fp8'"
    ):
        ge2.autocast(mlp, "fp8")


def test_parts_of_a_product_are_rounded_as_one():
    """Queries, keys and values, which products alone read: nothing of them is float32 in memory."""

    def f(x, w, b):
        q, k, v = np.split(x @ w + b, 3, axis=-1)
        return (q @ k.T) @ v

    x, w, b = np.ones((4, 8), np.float32), np.ones((8, 24), np.float32), np.ones(24, np.float32)
    graph = ge2.make_jaxpr(ge2.autocast(f, "bf16"))(x, w, b).graph
    cuts = [e.inputs[0] for e in graph.eqns if e.op.name == "slice"]
    assert len(cuts) == 3 and len(set(cuts)) == 1 and cuts[0].type.dtype == ge2.bfloat16
    np.testing.assert_allclose(ge2.autocast(f, "bf16")(x, w, b), f(x, w, b), rtol=2e-2)


def test_what_a_checkpoint_only_rounds_is_rounded_before_it_once():
    """Weights are not rounded again where their layers are computed again; the same bits."""

    def layer(y, w, v):
        return y @ v + np.tanh(y @ w) @ v

    def loss(layer):
        return lambda w, v, x: layer(layer(x, w, v), w, v).sum()

    square = RNG.normal(size=(3, 3)).astype("f4")
    args = square, V, X[:, :3].copy()
    plain, again = (ge2.autocast(loss(f)) for f in (layer, ge2.checkpoint(layer)))
    graph = ge2.make_jaxpr(again)(*args).graph
    for eqn in equations(graph):
        if eqn.op.name == "checkpoint":
            assert {v.type.dtype for v in eqn.op.jaxpr.inputs} == {BF16}
    whole = ge2.make_jaxpr(ge2.grad(again, argnums=(0, 1)))(*args).graph
    casts = [e for e in equations(whole) if isinstance(e.op, ConvertElementType)]
    for weight in whole.inputs[:2]:
        assert sum(weight in e.inputs for e in casts) == 1
    np.testing.assert_array_equal(again(*args), plain(*args))
    for y, w in zip(*(ge2.grad(f, argnums=(0, 1, 2))(*args) for f in (again, plain)), strict=True):
        np.testing.assert_allclose(y, w, rtol=2**-7, atol=2**-7)


def test_what_a_checkpoint_reads_otherwise_stays_as_it_is():
    def layer(y, w):
        return y + np.tanh(y @ w)

    cast = ge2.autocast(lambda x, w: ge2.checkpoint(layer)(x, w).sum())
    (inner,) = [
        e
        for e in equations(ge2.make_jaxpr(cast)(X[:, :3].copy(), V).graph)
        if e.op.name == "checkpoint"
    ]
    assert [v.type.dtype for v in inner.op.jaxpr.inputs] == [np.dtype("f4"), BF16]


def test_a_checkpoint_that_prints_has_equations_without_results(capsys):
    def layer(x, w):
        ge2.debug.print("rows {}", x.shape[0] + x.sum() * 0)
        return np.tanh(x @ w)

    cast = ge2.autocast(lambda x, w: ge2.checkpoint(layer)(x, w).sum())
    args = X[:, :3].copy(), V
    np.testing.assert_allclose(ge2.jit(cast)(*args), layer(*args).sum(), rtol=0.05, atol=0.05)
    assert "rows 5" in capsys.readouterr().out


def test_it_decorates_with_a_policy_alone():
    @ge2.autocast(policy="f16")
    def f(x, w):
        return x @ w

    @ge2.autocast()
    def g(x, w):
        return x @ w

    assert products(f, X, W) == {("float16", "float32"): 1}
    assert products(g, X, W) == {("bfloat16", "float32"): 1}
    with pytest.raises(ge2.errors.InputError, match="autocast takes a function; got"):
        ge2.autocast("bf16")
