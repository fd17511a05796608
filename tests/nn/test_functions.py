"""Activations, losses, attention and initial values against SciPy and formulas in float64."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from scipy import special

import ge2
from ge2 import nn
from ge2.base.config import config
from ge2.test_util import check_grads
from tests.fake_cupy import stand_in
from tests.together import needs_compiler

BF16 = np.dtype(ml_dtypes.bfloat16)
RNG = np.random.default_rng(0)
X = np.array(
    [-1e4, -90.0, -20.0, -3.5, -3.0, -1.0, -1e-3, 0.0, 1e-3, 0.7, 3.0, 3.5, 20.0, 90.0, 1e4]
)
SCALE, ALPHA = 1.0507009873554805, 1.6732632423543772


def below(x):
    return np.minimum(x, 0)


ACTIVATIONS = {
    "relu": (nn.relu, lambda x: np.maximum(x, 0)),
    "leaky_relu": (nn.leaky_relu, lambda x: np.where(x > 0, x, 0.01 * x)),
    "sigmoid": (nn.sigmoid, special.expit),
    "tanh": (nn.tanh, np.tanh),
    "silu": (nn.silu, lambda x: x * special.expit(x)),
    "gelu": (nn.gelu, lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
    "gelu_erf": (lambda x: nn.gelu(x, approximate=False), lambda x: x * special.ndtr(x)),
    "softplus": (nn.softplus, lambda x: np.logaddexp(x, 0)),
    "elu": (nn.elu, lambda x: np.where(x > 0, x, np.expm1(below(x)))),
    "selu": (nn.selu, lambda x: SCALE * np.where(x > 0, x, ALPHA * np.expm1(below(x)))),
    "hardswish": (nn.hardswish, lambda x: x * np.clip(x + 3, 0, 6) / 6),
    "mish": (nn.mish, lambda x: x * np.tanh(np.logaddexp(x, 0))),
}  # fmt: skip
ALONG = {
    "softmax": (nn.softmax, lambda x: special.softmax(x, -1)),
    "log_softmax": (nn.log_softmax, lambda x: special.log_softmax(x, -1)),
    "logsumexp": (lambda x: nn.logsumexp(x, -1), lambda x: special.logsumexp(x, -1)),
    "glu": (nn.glu, lambda x: x[..., : x.shape[-1] // 2] * special.expit(x[..., x.shape[-1] // 2 :])),
}  # fmt: skip
ROWS = np.stack([np.full(6, -1e4), np.linspace(-3, 3, 6), np.array([1e4, 0, 1e4, -1e4, 3, 2])])


def close(found, wanted, dtype):
    assert found.dtype == dtype
    bound = {np.dtype("f8"): 1e-13, np.dtype("f4"): 4e-6, np.dtype("f2"): 1e-3, BF16: 8e-3}[dtype]
    np.testing.assert_allclose(found.astype("f8"), wanted, rtol=bound, atol=bound)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [np.dtype("f8"), np.dtype("f4"), np.dtype("f2"), BF16], ids=str)
def test_values_and_dtypes_at_all_sizes_untraced_and_compiled(dtype):
    x, rows = X.astype(dtype), ROWS.astype(dtype)
    with np.errstate(over="ignore", under="ignore"):
        found = [f(x) for f, _ in ACTIVATIONS.values()] + [f(rows) for f, _ in ALONG.values()]
        if dtype in (np.float32, BF16):
            compiled = ge2.jit(
                lambda x, rows: (
                    [f(x) for f, _ in ACTIVATIONS.values()] + [f(rows) for f, _ in ALONG.values()]
                )
            )(x, rows)
        else:
            compiled = found
        wanted = [f(x.astype("f8")) for _, f in ACTIVATIONS.values()]
        wanted += [f(rows.astype("f8")) for _, f in ALONG.values()]
    for each in (found, compiled):
        for y, z in zip(each, wanted, strict=True):
            close(y, z, dtype)


@pytest.mark.parametrize("name", [*ACTIVATIONS, *ALONG])
def test_derivatives_are_those_of_differences_and_finite_everywhere(name):
    f, _ = (ACTIVATIONS | ALONG)[name]
    x = ROWS if name in ALONG else X
    away = RNG.normal(size=(2, 6)) * 2  # from the corners of relu and its relatives
    check_grads(f, (away,), order=2, eps=1e-4, atol=1e-5, rtol=1e-5)
    for dtype in (np.float32, np.float64):
        assert np.all(np.isfinite(ge2.grad(lambda x: np.sum(f(x)))(x.astype(dtype))))


def test_they_run_on_arrays_of_cupys_untraced(monkeypatch):
    with stand_in(monkeypatch) as cupy:
        for name, (f, wanted) in ACTIVATIONS.items():
            y = f(cupy.asarray(X))
            assert isinstance(y, cupy.ndarray), name
            np.testing.assert_allclose(y.get(), wanted(X), rtol=1e-12, atol=1e-12)
        y = nn.attention(*(cupy.asarray(np.ones((2, 3, 4))) for _ in range(3)), causal=True)
        np.testing.assert_allclose(y.get(), 1.0)
        loss = nn.cross_entropy(cupy.asarray(ROWS), cupy.asarray([0, 1, -1]), ignore=-1)
        np.testing.assert_allclose(
            loss.get(), nn.cross_entropy(ROWS, np.array([0, 1, -1]), ignore=-1)
        )


def test_relu_has_no_slope_at_zero_and_keeps_nan_and_integers():
    assert ge2.grad(nn.relu)(0.0) == 0
    assert np.isnan(nn.relu(np.nan))
    assert nn.relu(np.array([-1, 2])).dtype == np.int64


@pytest.mark.parametrize("axis", [-1, 0, (0, 1)])
def test_softmax_and_its_relatives_along_any_axis_and_where(axis):
    x, keep = RNG.normal(size=(3, 4)), RNG.random((3, 4)) > 0.3
    keep[0], keep[:, 0] = True, True
    hidden = np.where(keep, x, -np.inf)
    np.testing.assert_allclose(nn.softmax(x, axis, keep), special.softmax(hidden, axis))
    np.testing.assert_allclose(nn.logsumexp(x, axis, where=keep), special.logsumexp(hidden, axis))
    found = nn.log_softmax(x, axis, keep)
    np.testing.assert_allclose(found[keep], special.log_softmax(hidden, axis)[keep])
    b = RNG.random((3, 4))
    np.testing.assert_allclose(
        nn.logsumexp(x, axis, b, keepdims=True), special.logsumexp(x, axis, b, keepdims=True)
    )
    assert nn.logsumexp(np.full(3, -np.inf)) == -np.inf


def test_one_hot_is_rows_of_the_identity_along_any_axis():
    labels = np.array([[0, 2], [1, 3]], np.uint8)
    np.testing.assert_array_equal(nn.one_hot(labels, 4), np.eye(4, dtype="f4")[labels])
    assert nn.one_hot(labels, 300, bool, axis=0).shape == (300, 2, 2)
    with pytest.raises(
        ge2.errors.InputError, match=r"takes integers; got f64\[1\][^$]*try  x.astype"
    ):
        nn.one_hot(np.ones(1), 4)


# ------------------------------------------------------------------------------------------- losses

LOGITS, LABELS = RNG.normal(size=(5, 7)) * 3, np.array([0, 6, 3, 3, 1])
P, Q = special.softmax(LOGITS, -1), special.softmax(RNG.normal(size=(5, 7)), -1)
A, B, C = RNG.normal(size=(3, 5, 7))


def entropy(logits, p):
    return -(p * special.log_softmax(logits, -1)).sum(-1)


SMOOTH = np.eye(7)[LABELS] * 0.9 + 0.1 / 7
DISTANCE = [np.linalg.norm(A - B, axis=-1), np.linalg.norm(A - C, axis=-1)]
COSINE = (A * B).sum(-1) / np.linalg.norm(A, axis=-1) / np.linalg.norm(B, axis=-1)
SIGNS = np.array([1, -1, 1, -1, -1])
LOSSES = {
    "mse": (nn.mse, (A, B), (A - B) ** 2),
    "mae": (nn.mae, (A, B), np.abs(A - B)),
    "huber": (lambda a, b, **k: nn.huber(a, b, 0.7, **k), (A, B), special.huber(0.7, A - B)),
    "labels": (nn.cross_entropy, (LOGITS, LABELS), entropy(LOGITS, np.eye(7)[LABELS])),
    "smoothing": (
        lambda x, y, **k: nn.cross_entropy(x, y, smoothing=0.1, **k), (LOGITS, LABELS), entropy(LOGITS, SMOOTH),
    ),
    "probabilities": (
        lambda x, y, **k: nn.cross_entropy(x, y, smoothing=0.1, **k), (LOGITS, Q), entropy(LOGITS, Q * 0.9 + 0.1 / 7),
    ),
    "logits": (
        lambda x, y, **k: nn.binary_cross_entropy(x, y, with_logits=True, **k), (LOGITS, P),
        -(P * special.log_expit(LOGITS) + (1 - P) * special.log_expit(-LOGITS)),
    ),
    "binary": (nn.binary_cross_entropy, (Q, P), -(P * np.log(Q) + (1 - P) * np.log1p(-Q))),
    "kl": (nn.kl_div, (np.log(Q), P), special.rel_entr(P, Q).sum(-1)),
    "kl_logs": (
        lambda q, p, **k: nn.kl_div(q, p, log_targets=True, **k), (np.log(Q), np.log(P)),
        special.rel_entr(P, Q).sum(-1),
    ),
    "cosine": (
        lambda a, b, **k: nn.cosine_loss(a, b, SIGNS, margin=0.1, **k), (A, B),
        np.where(SIGNS > 0, 1 - COSINE, np.maximum(0, COSINE - 0.1)),
    ),
    "triplet": (nn.triplet_loss, (A, B, C), np.maximum(DISTANCE[0] - DISTANCE[1] + 1, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_losses_by_their_formulas_and_their_gradients_by_differences(name):
    f, args, wanted = LOSSES[name]
    np.testing.assert_allclose(f(*args, reduction="none"), wanted, rtol=1e-12)
    np.testing.assert_allclose(f(*args), wanted.mean(), rtol=1e-12)
    np.testing.assert_allclose(f(*args, reduction="sum"), wanted.sum(), rtol=1e-12)
    check_grads(lambda x: f(x, *args[1:]), args[:1], order=1, atol=1e-5, rtol=1e-5)
    half = [a.astype(BF16) if a.dtype == np.float64 else a for a in args]
    assert f(*half).dtype == np.float32
    assert abs(f(*half) - wanted.mean()) < 0.05


def test_ignored_labels_count_for_nothing():
    labels = np.where(LABELS == 3, -100, LABELS)
    keep = LABELS != 3
    loss = lambda x: nn.cross_entropy(x, labels, ignore=-100)  # noqa: E731
    np.testing.assert_allclose(loss(LOGITS), nn.cross_entropy(LOGITS[keep], labels[keep]))
    gradient = ge2.grad(loss)(LOGITS)
    assert np.all(gradient[~keep] == 0)
    assert np.all(gradient[keep] != 0)
    assert nn.cross_entropy(LOGITS, np.full(5, -1), ignore=-1) == 0
    images = np.moveaxis(LOGITS, -1, 0)  # classes in another axis
    np.testing.assert_allclose(
        nn.cross_entropy(images, labels, axis=0, ignore=-100, smoothing=0.2, reduction="none"),
        nn.cross_entropy(LOGITS, labels, ignore=-100, smoothing=0.2, reduction="none"),
    )


@needs_compiler
@pytest.mark.parametrize("run", [lambda f: f, ge2.jit], ids=["eager", "jit"])
def test_a_label_that_is_no_class_is_never_taken_for_another(run):
    for label in (-1, -7):  # as indices these would be classes
        labels = LABELS.copy()
        labels[2] = label
        losses = run(lambda x, y: nn.cross_entropy(x, y, reduction="none"))(LOGITS, labels)
        assert np.isnan(losses).tolist() == [False, False, True, False, False]
        assert np.isnan(run(lambda x, y: nn.cross_entropy(x, y, smoothing=0.1))(LOGITS, labels))
    with pytest.raises(IndexError):
        run(nn.cross_entropy)(LOGITS, LABELS + 7)
    with config.using(executor="shim"):  # a GPU reads the last class in its place
        assert np.isnan(ge2.jit(nn.cross_entropy)(LOGITS, np.array([0, 1, 7, 3, 4])))


def test_losses_of_certain_and_of_impossible_predictions_are_finite_and_so_are_their_slopes():
    far = np.array([[1e4, -1e4, 0.0]], np.float32)
    assert nn.cross_entropy(far, np.array([1])) == 20000
    p, t = np.array([0.0, 1.0, 0.0, 1.0], np.float32), np.array([0, 0, 1, 1], np.float32)
    one_hots = np.eye(3, dtype="f4")
    for f, *args in (
        (nn.cross_entropy, far, np.array([1])),
        (nn.binary_cross_entropy, p, t),
        (lambda x, t: nn.binary_cross_entropy(x, t, with_logits=True), 1e4 * (2 * p - 1), t),
        (lambda x: nn.kl_div(nn.log_softmax(x), one_hots), far.repeat(3, 0)),
        (lambda x: nn.triplet_loss(x, one_hots, one_hots), one_hots),
        (lambda x: nn.cosine_similarity(x, one_hots).sum(), 0 * one_hots),
    ):
        value, slope = ge2.value_and_grad(f)(*args)
        assert np.isfinite(value)
        assert np.all(np.isfinite(slope))


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (lambda: nn.cross_entropy(LOGITS, LABELS * 1.0), r"integers[^$]*got f64\[5\][^$]*at [^$]*try  labels.astype"),
        (lambda: nn.cross_entropy(LOGITS, LABELS[:, None]), r"shape \(5,\); got i64\[5,1\][^$]*try  labels.reshape"),
        (lambda: nn.cross_entropy(LOGITS, np.eye(7, dtype=int)[LABELS]), r"[^$]*try  labels.argmax\(-1\)"),
        (lambda: nn.cross_entropy(LOGITS, LABELS[:4]), r"got i64\[4\][^$]*try  as many labels"),
        (lambda: nn.mse(A, 1.0), r"got f64\[5,7\], f64\[\][^$]*try  np.broadcast_to\(targets, predictions.shape\)"),
        (lambda: nn.cross_entropy(LABELS, LABELS), r"logits holds floats; got i64\[5\]"),
        (lambda: nn.mse(A[:, :1], A), r"predictions and targets have one shape; got f64\[5,1\], f64\[5,7\]"),
        (lambda: nn.mae(A, A, reduction="avg"), r"reduction is one of 'mean', 'sum', 'none'; got 'avg'"),
        (lambda: nn.glu(np.ones(3)), r"glu halves axis -1, which has 3 elements"),
        (lambda: nn.initializers.he_normal()(ge2.random.key(0), (3,)), r"its two axes of inputs and outputs"),
        (lambda: nn.initializers.variance_scaling(1.0, "fan", "normal"), r"mode is one of 'fan_in'"),
        (lambda: nn.attention(A, A, A, dropout=0.1), r"was given no key[^$]*try  key=ge2.random.fold_in"),
        (lambda: nn.attention(A, A, A, np.ones((5, 5))), r"a mask is of bool[^$]*try  bias=mask"),
        (lambda: nn.attention(np.ones((3, 2, 4)), *np.ones((2, 2, 2, 4))), "3 heads of queries are no multiple of 2"),
        (lambda: nn.attention(A, A[:, :3], A), r"takes q\[..., n, s, d\][^$]*got f64\[5,7\], f64\[5,3\]"),
        (lambda: nn.attention(A, A, A[:3]), r"takes q\[..., n, s, d\]"),
        (lambda: nn.attention(A, A, A, np.ones(3, bool)), r"a mask broadcasts to the scores[^$]*got bool\[3\]"),
        (lambda: nn.attention(A, A, A, bias=np.ones(3)), r"a bias broadcasts to the scores"),
        (lambda: nn.attention(A, A, A, window=(1, 2, 3)), r"one number, or a pair \(left, right\)"),
        (lambda: nn.attention(A, A, A, window=-2), r"one number, or a pair \(left, right\); got -2"),
        (lambda: nn.attention(A, A, A, window=2.5), r"one number, or a pair \(left, right\); got 2.5"),
        (lambda: nn.cross_entropy(LOGITS, LABELS, smoothing=1.5), r"smoothing is in \[0, 1\]; got 1.5"),
        (lambda: nn.huber(A, A, -1.0), r"delta is 0 or more; got -1.0"),
        (lambda: nn.group_norm(A, 0), r"0 groups do not divide the channels"),
        (lambda: nn.attention(A, A, A, dropout=1.5, key=ge2.random.key(0)), r"a rate is in \[0, 1\)"),
        (lambda: nn.dot_product_attention(*np.ones((3, 2, 3, 4, 5, 6))), r"takes query\[B, T, N, H\]"),
    ],
)  # fmt: skip
def test_mistakes_name_what_where_and_a_way_out(f, message):
    with pytest.raises(ge2.errors.Ge2Error, match=message) as found:
        f()
    assert "at   " in str(found.value)


# ---------------------------------------------------------------------------------------- attention


def looped(q, k, v, allowed, bias, scale):
    """Attention of one head, a row at a time."""
    y = np.zeros((len(q), v.shape[-1]))
    for i in range(len(q)):
        s = np.where(allowed[i], q[i] @ k.T * scale + bias[i], -np.inf)
        y[i] = special.softmax(s) @ v
    return y


def heads(n, *shape):
    return [RNG.normal(size=(2, *s)) for s in shape[:n]]


@pytest.mark.parametrize("groups", [1, 2])
def test_attention_is_the_loop_over_rows_and_heads(groups):
    q, k, v = RNG.normal(size=(4, 3, 5)), *RNG.normal(size=(2, 4 // groups, 6, 5))
    i, j = np.arange(3)[:, None] + 3, np.arange(6)
    mask, bias = (RNG.random((4, 3, 6)) > 0.3) | (j == 1), RNG.normal(size=(4, 3, 6))
    for options, allowed in (
        ({}, mask),
        ({"causal": True}, mask & (i >= j)),
        ({"window": (4, 1)}, mask & (i - 4 <= j) & (j <= i + 1)),
        ({"causal": True, "window": 4}, mask & (i >= j) & (i - 4 <= j)),
    ):
        found = nn.attention(q, k, v, mask, bias=bias, scale=0.3, **options)
        rows = zip(q, np.repeat(k, groups, 0), np.repeat(v, groups, 0), allowed, bias, strict=True)
        np.testing.assert_allclose(found, np.stack([looped(*r, 0.3) for r in rows]), rtol=1e-12)
    half = [x.astype(BF16) for x in (q, k, v)]
    assert nn.attention(*half).dtype == BF16
    check_grads(lambda *x: nn.attention(*x, causal=True), (q, k, v), order=1, atol=1e-5, rtol=1e-5)


def test_attention_drops_weights_by_its_key():
    q, key = np.zeros((1, 8, 4)), ge2.random.key(3)
    y = nn.attention(q, q, np.broadcast_to(np.eye(8), (1, 8, 8)), dropout=0.5, key=key)
    assert set(np.unique(y)) == {0.0, 0.25}
    np.testing.assert_array_equal(y, nn.attention(q, q, np.eye(8)[None], dropout=0.5, key=key))
    with np.errstate(invalid="ignore"):  # rows that read nothing
        assert np.isnan(nn.attention(q, q, q, np.zeros((8, 8), bool))).all()


@pytest.mark.parametrize("case", range(3))
def test_dot_product_attention_has_the_signature_and_the_values_of_jax(case):
    jax = pytest.importorskip("jax")
    q, k, v = (RNG.normal(size=(2, n, m, 4)).astype("f4") for n, m in ((5, 4), (6, 2), (6, 2)))
    bias, mask = RNG.normal(size=(2, 4, 5, 6)).astype("f4"), RNG.random((1, 1, 5, 6)) > 0.4
    mask[..., 0] = True
    options = (
        {},
        {"bias": bias, "mask": mask, "scale": 0.7, "local_window_size": 4},
        {
            "local_window_size": (2, 1), "is_causal": True, "query_seq_lengths": np.array([3, 5]),
            "key_value_seq_lengths": np.array([6, 4]),
        },
    )[case]  # fmt: skip
    wanted = np.asarray(jax.nn.dot_product_attention(q, k, v, **options))
    found = nn.dot_product_attention(q, k, v, **options)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)
    if not options:
        np.testing.assert_array_equal(nn.dot_product_attention(q[0], k[0], v[0]), found[0])


# ----------------------------------------------------------------------------------- initial values


@pytest.mark.parametrize(
    ("name", "variance", "bound"),
    [
        ("glorot_uniform", 2 / 400, math.sqrt(6 / 400)), ("glorot_normal", 2 / 400, None),
        ("xavier_uniform", 2 / 400, math.sqrt(6 / 400)), ("he_uniform", 2 / 300, math.sqrt(6 / 300)),
        ("kaiming_normal", 2 / 300, None), ("lecun_uniform", 1 / 300, math.sqrt(3 / 300)),
        ("lecun_normal", 1 / 300, None),
    ],
)  # fmt: skip
def test_initial_weights_have_the_variance_of_their_formula(name, variance, bound):
    init = getattr(nn.initializers, name)()
    w = init(ge2.random.key(1), (300, 100))
    assert w.dtype == np.float32
    assert abs(w.var() / variance - 1) < 0.03
    assert abs(w.mean()) < 0.03 * math.sqrt(variance)
    bound = bound or 2 * math.sqrt(variance) / 0.87962566
    assert 0.97 * bound < np.abs(w).max() <= bound * (1 + 1e-6)
    assert init(ge2.random.key(1), (3, 3, 4, 8), BF16).dtype == BF16
    w = init(ge2.random.key(1), (3, 3, 100, 60))  # axes before those two are a receptive field
    fan = 1440 / 2 if variance == 2 / 400 else 900
    assert abs(w.var() * fan / round(variance * (200 if variance == 2 / 400 else 300)) - 1) < 0.05


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (2, 3, 4)])
def test_orthogonal_columns_or_rows(shape):
    q = nn.initializers.orthogonal(2.0)(ge2.random.key(0), shape).reshape(-1, shape[-1]) / 2
    gram = q.T @ q if q.shape[0] >= q.shape[1] else q @ q.T
    np.testing.assert_allclose(gram, np.eye(min(q.shape)), atol=1e-6)


WHOLE = {
    "uint8": np.array([[250, 3, 7, 0], [1, 255, 2, 9]], np.uint8),
    "int8": np.array([[100, -100, 7, 0], [1, 127, -128, 9]], np.int8),
    "bool": np.array([[True, False, True, True], [False, True, False, False]]),
    "int64": np.array([[3000, -5, 0, 2], [1, 2, 3, 4]]),
}
OF_ONE = {
    name: f
    for name, f in vars(nn).items()
    if name in (*ACTIVATIONS, *ALONG, "layer_norm", "rms_norm") and name != "relu"
} | {"group_norm": lambda x: nn.group_norm(x, 2), "attention": lambda x: nn.attention(x, x, x)}
OF_ONE["dropout"] = lambda x: nn.dropout(x, 0.3, ge2.random.key(3))
OF_TWO = {
    name: getattr(nn, name)
    for name in ("mse", "mae", "huber", "cosine_similarity", "cosine_loss", "kl_div")
} | {
    "triplet_loss": lambda x, y: nn.triplet_loss(x, y, x[::-1]),
    "binary_cross_entropy": lambda x, y: nn.binary_cross_entropy(x, y, with_logits=True),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("run", [lambda f: f, ge2.jit], ids=["eager", "jit"])
def test_integers_and_bools_are_computed_as_float64_and_never_wrap_nor_are_cut(kind, run):
    x = WHOLE[kind]

    def every(x, y):
        found = {name: f(x) for name, f in OF_ONE.items()}
        return found | {name: f(x, y) for name, f in OF_TWO.items()}

    got, wide = run(every)(x, np.ascontiguousarray(x[::-1])), x.astype("f8")
    for name, want in every(wide, wide[::-1]).items():
        assert got[name].dtype == np.float64, name
        np.testing.assert_allclose(got[name], want, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("name", OF_TWO)
def test_targets_of_integers_or_bools_widen_no_loss(name):
    x = np.linspace(0.1, 0.9, 8, dtype=np.float32).reshape(2, 4)
    for targets in (x > 0.5, (x > 0.5).astype(np.int64)):
        got = OF_TWO[name](x, targets)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, OF_TWO[name](x, targets.astype("f4")), rtol=1e-6)


def test_a_window_may_be_a_number_of_numpys():
    want = nn.attention(A, A, A, window=1)
    np.testing.assert_array_equal(nn.attention(A, A, A, window=np.int64(1)), want)


@pytest.mark.parametrize("run", [lambda f: f, ge2.jit], ids=["eager", "jit"])
def test_rows_and_arrays_without_elements_have_softmaxes(run):
    for shape in ((0,), (3, 0), (0, 4)):
        for f in (nn.softmax, nn.log_softmax):
            assert run(f)(np.zeros(shape)).shape == shape
    assert run(nn.logsumexp)(np.zeros(0)) == -np.inf
    assert run(lambda x: nn.logsumexp(x, -1))(np.zeros((2, 0))).tolist() == [-np.inf] * 2
    assert run(lambda x: nn.group_norm(x, 2))(np.zeros((0, 4))).shape == (0, 4)
