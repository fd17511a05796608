"""Modules: their formulas, their derivatives as modules, and what they are as containers."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy import special

import ge2
from ge2 import nn
from ge2.random import key

RNG = np.random.default_rng(1)
X = RNG.normal(size=(4, 3)).astype("f4")


def near(found, wanted, bound=2e-6):
    np.testing.assert_allclose(found, wanted, rtol=bound, atol=bound)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [("row", (2,)), (True, (2,)), ("scalar", ()), ((4, 1), (4, 1)), ((4, 2), (4, 2))],
)
def test_linear_has_every_kind_of_bias_and_its_gradient_is_a_linear(kind, shape):
    layer = nn.Linear.init(key(0), 3, 2, bias=kind)
    layer = layer.replace(bias=RNG.normal(size=shape).astype("f4"))
    near(layer(X), X @ layer.weight + layer.bias)
    slope = ge2.grad(lambda m: m(X).sum())(layer)
    assert isinstance(slope, nn.Linear)
    assert slope.bias.shape == shape
    np.testing.assert_allclose(slope.bias.sum(), 8)
    for none in ("none", None, False):
        assert nn.Linear.init(key(0), 3, 2, bias=none).bias is None


def test_norms_are_their_formulas():
    x, w, b = RNG.normal(size=(2, 5, 6)) * 3 + 1, *RNG.normal(size=(2, 6))
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    near(nn.LayerNorm(w, b)(x), (x - mean) / np.sqrt(var + 1e-5) * w + b)
    near(nn.RMSNorm(w)(x), x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w)
    parts = x.reshape(2, 5, 3, 2)
    mean, var = (f(parts, (1, 3), keepdims=True) for f in (np.mean, np.var))
    wanted = ((parts - mean) / np.sqrt(var + 1e-5)).reshape(x.shape) * w + b
    near(nn.GroupNorm(w, b, 3)(x), wanted)
    half = nn.LayerNorm.init(6, dtype=ml_dtypes.bfloat16)(x.astype(ml_dtypes.bfloat16))
    assert half.dtype == ml_dtypes.bfloat16


def test_batch_norm_returns_its_successor_and_uses_what_it_kept():
    x = RNG.normal(size=(8, 2, 3)) * 2 + 1
    norm = nn.BatchNorm(*RNG.normal(size=(3, 3)), np.full(3, 2.0), momentum=0.25)
    y, after = ge2.jit(lambda norm, x: norm(x))(norm, x)
    mean, var = x.mean((0, 1)), x.var((0, 1))
    near(y, (x - mean) / np.sqrt(var + 1e-5) * norm.weight + norm.bias)
    near(after.mean, 0.75 * norm.mean + 0.25 * mean)
    near(after.var, 0.75 * 2 + 0.25 * x.reshape(-1, 3).var(0, ddof=1))
    y, same = after(x, training=False)
    near(y, (x - after.mean) / np.sqrt(after.var + 1e-5) * norm.weight + norm.bias)
    assert same is after
    slope = ge2.grad(lambda norm: (norm(x)[0] ** 2).sum() + norm(x)[1].mean.sum())(norm)
    assert np.all(slope.mean == 0)  # no derivative flows through what is kept
    assert np.any(slope.weight != 0)


def test_rows_of_a_table_by_integers_known_or_traced_and_its_scores():
    table, ids = nn.Embedding.init(key(0), 6, 4), np.array([[1, 5], [0, 1]])
    near(table(ids), table.weight[ids], 0)
    near(ge2.jit(lambda ids: table(ids))(ids), table.weight[ids], 0)
    near(table.attend(table.weight), table.weight @ table.weight.T)
    slope = ge2.grad(lambda table: table(ids).sum())(table)
    np.testing.assert_array_equal(slope.weight.sum(-1), [4, 8, 0, 0, 0, 4])


def test_dropout_is_by_its_key_keeps_the_mean_and_is_off_when_not_training():
    x = np.ones(4000, np.float32)
    y = nn.Dropout(0.25)(x, key=key(1))
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs(y.mean() - 1) < 0.05
    np.testing.assert_array_equal(y, ge2.jit(lambda x, k: nn.Dropout(0.25)(x, key=k))(x, key(1)))
    assert nn.Dropout(0.25)(x, training=False) is x
    np.testing.assert_array_equal(ge2.grad(lambda x: nn.dropout(x, 0.25, key(1)).sum())(x), y)


def test_multi_head_attention_is_that_of_each_head():
    layer = nn.MultiHeadAttention.init(key(0), 8, heads=4, kv_heads=2, bias="row")
    x, source = RNG.normal(size=(2, 3, 8)), RNG.normal(size=(2, 5, 8))
    y = np.zeros((2, 3, 8))
    q, k, v = layer.query(x), layer.key(source), layer.value(source)
    for h in range(4):
        a, b = slice(2 * h, 2 * h + 2), slice(h // 2 * 2, h // 2 * 2 + 2)
        scores = q[..., a] @ k[..., b].swapaxes(-1, -2) / np.sqrt(2)
        y[..., a] = special.softmax(scores, -1) @ v[..., b]
    near(layer(x, source), layer.out(y))
    changed = x.copy()
    changed[:, 2] += 1
    same = layer(x, causal=True)[:, :2], layer(changed, causal=True)[:, :2]
    near(*same)


def sigmoid(x):
    return special.expit(x)


def elman(layer, a, b, h):
    return np.tanh(a + b), None


def gru(layer, a, b, h):
    (r, z, n), (hr, hz, hn) = np.split(a, 3, -1), np.split(b, 3, -1)
    z = sigmoid(z + hz)
    return (1 - z) * np.tanh(n + sigmoid(r + hr) * hn) + z * h, None


def lstm(layer, a, b, h):
    global cell
    i, f, g, o = np.split(a + b, 4, -1)
    cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(cell), cell


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "formula"), [(nn.RNN, elman), (nn.GRU, gru), (nn.LSTM, lstm)])
def test_recurrent_layers_are_loops_over_time(kind, formula):
    global cell
    layer, x = kind.init(key(0), 3, 5), RNG.normal(size=(6, 2, 3)).astype("f4")
    cell, h, wanted = np.zeros((2, 5)), np.zeros((2, 5)), []
    for t in range(6):
        a = x[t] @ layer.weight_in + layer.bias_in
        h, _ = formula(layer, a, h @ layer.weight_state + layer.bias_state, h)
        wanted.append(h)
    ys, last = ge2.jit(lambda m, x: m(x))(layer, x)
    near(ys, np.stack(wanted), 1e-5)
    near(last[0] if kind is nn.LSTM else last, h, 1e-5)
    state = layer(x[:4])[1]
    near(layer(x[4:], state)[0], ys[4:], 1e-5)  # which goes on from a state
    slope = ge2.grad(lambda m: (m(x)[0] ** 2).sum())(layer)
    assert isinstance(slope, kind)
    assert all(np.isfinite(g).all() and g.any() for g in ge2.tree.leaves(slope))


# -------------------------------------------------------------------------------- as containers


def test_a_model_is_a_container_of_arrays_alone():
    model = nn.MLP.init(key(0), (3, 4, 2), activation=nn.gelu)
    paths = [ge2.tree_util.keystr(path) for path, _ in ge2.tree.leaves_with_path(model)]
    assert paths == [f".layers[{i}].{name}" for i in (0, 1) for name in ("weight", "bias")]
    step = ge2.jit(lambda m, x: ge2.value_and_grad(lambda m: (m(x) ** 2).mean())(m))
    value, slope = step(model, X)
    assert isinstance(slope, nn.MLP)
    assert slope.activation is nn.gelu
    near(value, (model.layers[1](nn.gelu(model.layers[0](X))) ** 2).mean())
    for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        near(same(X), model(X), 0)
    members = ge2.vmap(lambda k: nn.MLP.init(k, (3, 4, 2)))(ge2.random.split(key(0), 5))
    assert ge2.vmap(lambda m: m(X))(members).shape == (5, 4, 2)  # an ensemble
    with pytest.raises(AttributeError):
        model.rate = 0.5


class Residual(nn.Module):
    """A module of a user's."""

    inner: nn.Linear
    by: Any
    norm: nn.LayerNorm | None = None
    power: int = nn.static(default=2)

    def __call__(self, x, *, training=True):
        return x + self.by * self.inner(x) ** self.power if training else x


def test_modules_of_users_and_reprs_of_a_line():
    model = Residual(nn.Linear.init(key(0), 3, 3), np.float32(0.5))
    assert repr(model) == "Residual(inner=Linear, by=f32[], power=2)"
    gated = nn.GatedMLP.init(key(0), 3, 5)
    assert repr(gated) == "GatedMLP(gate=Linear, up=Linear, down=Linear, activation=silu)"
    near(gated(X), gated.down(nn.silu(gated.gate(X)) * gated.up(X)))
    chain = nn.Sequential.of(model, np.tanh, nn.Dropout(0.5), gated)
    assert repr(chain.modules[1]) == "Dropout(rate=0.5)"
    near(chain(X, training=False), gated(np.tanh(X)))
    dropped = nn.dropout(np.tanh(model(X)), 0.5, ge2.random.fold_in(key(5), 2))
    near(chain(X, key=key(5)), gated(dropped))


def test_the_table_of_a_model():
    model = {"body": nn.MLP.init(key(0), (3, 4, 2)), "scale": np.ones(2), "none": None}
    lines = nn.summary(model).splitlines()
    assert [line.split() for line in lines] == [
        ["part", "of", "arrays", "parameters", "bytes"],
        ["['body'].layers[0]", "Linear", "weight=f32[3,4],", "bias=f32[4]", "16", "64"],
        ["['body'].layers[1]", "Linear", "weight=f32[4,2],", "bias=f32[2]", "10", "40"],
        ["['scale']", "f64[2]", "2", "16"],
        ["total", "dict", "28", "120"],
    ]
    random = nn.Sequential.of(model["body"], nn.Dropout(0.5))
    for more in (
        {},
        {"training": False},
        {"training": True, "key": ge2.ShapeDtypeStruct((2,), "u4")},
    ):
        assert nn.summary(random, X, **more).splitlines()[-1].split() == ["result", "f32[4,2]"]
    like = ge2.ShapeDtypeStruct((7, 3), np.float32)
    assert nn.summary(model["body"], like).splitlines()[-1].split() == ["result", "f32[7,2]"]


@pytest.mark.exhaustive("kind")
@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("dtype", ["i4", "f2", "f4", "f8", ml_dtypes.bfloat16])
def test_recurrent_layers_begin_with_the_dtype_that_input_and_parameters_have_together(kind, dtype):
    layer, x = kind.init(key(0), 3, 2), np.ones((5, 3), dtype)
    wanted = layer(x.astype(np.result_type(dtype, np.float32)))
    for found in (layer(x), ge2.jit(lambda layer, x: layer(x))(layer, x)):
        ge2.tree.map(near, found, wanted)
    slope = ge2.grad(ge2.autocast(lambda layer: layer(x)[0].sum()))(layer)
    assert slope.weight_in.dtype == np.float32


class Torchlike(nn.Module):
    """A module written as torch's are."""

    def __init__(self):
        self.layer = nn.Linear(X)


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (lambda: nn.Linear.init(key(0), 4, 2)(X), r"Linear takes arrays whose last axis has 4 [^$]*got f32\[4,3\]"),
        (lambda: ge2.jit(lambda m, x: m(x))(nn.Linear.init(key(0), 4, 2), X), "last axis has 4 elements"),
        (lambda: nn.LayerNorm.init(4)(X), r"LayerNorm takes arrays whose last axis has 4"),
        (lambda: nn.GRU.init(key(0), 2, 4)(X), r"GRU takes arrays whose last axis has 2"),
        (lambda: nn.GroupNorm.init(3, 2)(X), r"2 groups do not divide the channels of f32\[4,3\]"),
        (lambda: nn.Embedding.init(key(0), 4, 2)(X), r"Embedding takes integers; got f32\[4,3\][^$]*try  ids.astype"),
        (lambda: nn.Dropout(0.1)(X), r"dropout of rate 0.1 is random, and was given no key[^$]*training=False"),
        (lambda: nn.MLP.init(key(0), (3, 4, 2), rate=0.1)(X), "was given no key"),
        (lambda: nn.dropout(X, 1.5, key(0)), r"a rate is in \[0, 1\); got 1.5"),
        (lambda: nn.Linear.init(key(0), 4, 2, bias="column"), r"a bias is one of 'row', 'scalar', 'none', or a shape"),
        (lambda: nn.MultiHeadAttention.init(key(0), 10, 4), r"heads=4 does not divide the width, 10[^$]*try  heads=2"),
        (lambda: nn.MultiHeadAttention.init(key(0), 8, 4, kv_heads=3), r"kv_heads=3 does not [^$]*try  kv_heads=2"),
        (lambda: nn.Linear(4, 2)(X), r"is made of arrays, and was given 4[^$]*try  Linear.init\(key, ins, outs\)"),
        (lambda: nn.RMSNorm(3)(X), r"RMSNorm is made of arrays[^$]*try  RMSNorm.init\(width\)"),
        (lambda: nn.Embedding(10)(X.astype(int)), r"made of arrays[^$]*try  Embedding.init\(key, count, width\)"),
        (lambda: nn.Sequential(nn.Linear.init(key(0), 3, 2), np.tanh)(X), r"try  Sequential.of\(first, second"),
        (lambda: nn.Sequential([nn.Linear.init(key(0), 3, 2), np.tanh])(X), r"try  Sequential.of\(first, second"),
        (lambda: nn.Sequential.of([nn.Linear.init(key(0), 3, 2), np.tanh]), r"modules and functions; got \["),
        (lambda: nn.LSTM.init(key(0), 3, 2)(X, X), r"a state is the pair \(h, c\); got f32\[4,3\]"),
        (lambda: setattr(nn.Linear(X), "bias", 0), r"the field 'bias' of a Linear[^$]*try  model = model.replace"),
        (lambda: Torchlike(), r"'layer' is no field of the module Torchlike[^$]*try  the field"),
        (lambda: nn.Sequential.of(nn.BatchNorm.init(3), np.tanh)(X), r"BatchNorm returns 2 values"),
        (lambda: nn.BatchNorm.init(3)(X[:1]), r"BatchNorm in training takes several values[^$]*f32\[1,3\]"),
        (lambda: nn.BatchNorm.init(3)(X[:0]), r"BatchNorm in training takes several values[^$]*training=False"),
    ],
)  # fmt: skip
def test_mistakes_name_what_where_and_a_way_out(f, message):
    with pytest.raises(ge2.errors.Ge2Error, match=message) as found:
        f()
    assert "  at   test_modules.py" in str(found.value)
    assert "  try  " in str(found.value)
