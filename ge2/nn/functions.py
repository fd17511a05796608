"""Activations, softmaxes and losses, as plain NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, TypeVar

import numpy as np

from ge2.base.arrays import COMPLEX, FLOATS, HALF, INTEGERS, known, short
from ge2.base.errors import ArgumentError, InputError, ShapeError
from ge2.base.source import here
from ge2.numpy.rare.special import erf, expit, xlogy
from ge2.transforms.branches import stop_gradient

# -------- The helpers of this package: dtypes, and checks of arguments.


F = TypeVar("F", bound=Callable[..., Any])
Axes = int | tuple[int, ...] | None


def array(x: Any) -> Any:
    """The argument itself if it is an array (traced, NumPy's or CuPy's), else NumPy's array of it."""
    return x if hasattr(x, "dtype") else np.asarray(x)


def floats(x: Any) -> Any:
    """The argument as an array of floats: integers and bools become float64, as in `np.exp`."""
    x = array(x)
    return x if x.dtype in FLOATS or x.dtype in COMPLEX else x.astype(np.float64)


def wide(x: Any) -> Any:
    """The values in which a function of x is computed: float32 for half types, float64 for integers."""
    x = floats(x)
    return x.astype(np.float32) if x.dtype in HALF else x


def wide_like(x: Any, y: Any) -> tuple[Any, Any]:
    """Both arrays as `wide` has them; integers of y take the dtype of x, so that labels widen nothing."""
    x, y = wide(x), array(y)
    return x, wide(y) if y.dtype in FLOATS or y.dtype in COMPLEX else y.astype(x.dtype)


def rounds_once(f: F) -> F:
    """A function of one array that computes half types in float32 and rounds once, at the end."""

    @wraps(f)
    def function(x: Any, *args: Any, **kwargs: Any) -> Any:
        x = floats(x)
        if x.dtype not in HALF:
            return f(x, *args, **kwargs)
        return f(x.astype(np.float32), *args, **kwargs).astype(x.dtype)

    return function  # type: ignore[return-value]


def described(x: Any) -> str:
    """The type of an array as in a graph's text, f32[2,3].

    >>> described(np.ones((2, 3), np.float32))
    'f32[2,3]'
    """
    x = array(x)
    return f"{short(x.dtype) if known(x.dtype) else x.dtype}[{','.join(map(str, x.shape))}]"


def check_floats(name: str, **arrays: Any) -> None:
    """InputError for an argument that has no floats."""
    for role, x in arrays.items():
        if array(x).dtype not in FLOATS | COMPLEX:
            what = f"{name}: {role} holds floats; got {described(x)}"
            raise InputError(what, where=here(), fix=f"{role}.astype(np.float32)")


def check_same_shape(name: str, a: Any, b: Any, roles: tuple[str, str]) -> None:
    """ShapeError for two arrays of which one would be repeated in silence."""
    if array(a).shape != array(b).shape:
        what = (
            f"{name}: {roles[0]} and {roles[1]} have one shape; got {described(a)}, {described(b)}"
        )
        as_many = array(a).size == array(b).size
        fix = f"{roles[1]}.reshape({roles[0]}.shape)"
        fix = fix if as_many else f"np.broadcast_to({roles[1]}, {roles[0]}.shape), if that is meant"
        raise ShapeError(what, where=here(), fix=fix)


def check_last(module: Any, x: Any, weight: Any, axis: int = 0, method: str = "") -> None:
    """ShapeError for an array whose last axis has another size than that axis of a weight."""
    shape, size, name = (
        array(x).shape,
        size_of(module, weight, axis),
        type(module).__name__ + method,
    )
    if not shape or shape[-1] != size:
        got = described(x)
        what = f"{name} takes arrays whose last axis has {size} elements; got {got}"
        raise ShapeError(what, where=here(), fix=f"an input of shape (..., {size})")


def size_of(module: Any, weight: Any, axis: int = 0) -> int:
    """The size of a weight along an axis. InputError for a module that was made of numbers, as in
    torch, where it takes arrays.
    """
    try:
        return int(weight.shape[axis])
    except (AttributeError, IndexError):
        what = f"{type(module).__name__} is made of arrays, and was given {weight!r:.60}"
        raise InputError(what, where=here(), fix=by_init(type(module))) from None


def by_init(kind: Any) -> str:
    """The call that makes a module of that kind, with the names of what it needs."""
    needed = (p.name for p in signature(kind.init).parameters.values() if p.default is p.empty)
    return f"{kind.__name__}.init({', '.join(n for n in needed if n != 'options')})"


def check_rate(name: str, rate: float, key: Any) -> None:
    """ArgumentError for a rate of dropout that is none, InputError for one without a key."""
    if not 0 <= rate < 1:
        what = f"{name}: a rate is in [0, 1); got {rate!r:.60}"
        raise ArgumentError(what, where=here(), fix="rate=0.1")
    if rate and key is None:
        what = f"{name} of rate {rate} is random, and was given no key"
        fix = "key=ge2.random.fold_in(key, step), or training=False"
        raise InputError(what, where=here(), fix=fix)


def check_between(name: str, value: Any, least: float, most: float = math.inf) -> None:
    """ArgumentError for a number that is NaN or out of its bounds; arrays are taken as they are."""
    if issubclass(type(value), int | float) and not least <= value <= most:
        bounds = f"{least:g} or more" if most == math.inf else f"in [{least:g}, {most:g}]"
        what = f"{name} is {bounds}; got {value!r:.60}"
        raise ArgumentError(what, where=here(), fix=f"{name}={least:g}")


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """ArgumentError for a word that is not one of those that there are."""
    if value not in choices:
        what = f"{name} is one of {', '.join(map(repr, choices))}; got {value!r:.60}"
        raise ArgumentError(what, where=here(), fix=repr(choices[0]))


# -------- Activations, as plain NumPy: of traced values, of NumPy's arrays and of CuPy's.
# A result has the dtype of its argument; half types are computed in float32 inside and rounded
# once. Integers become float64, as in NumPy, but for `relu`, which keeps them.


SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772


def relu(x: Any) -> Any:
    """max(x, 0), elementwise; its derivative at 0 is 0.

    >>> relu(np.array([-1.0, 0.0, 2.0]))
    array([0., 0., 2.])
    """
    x = array(x)
    return np.where(x <= 0, 0, x)


@rounds_once
def leaky_relu(x: Any, slope: Any = 0.01) -> Any:
    """x where it is positive, else `slope` times x. Maas, Hannun and Ng, 2013.

    >>> leaky_relu(np.array([-1.0, 2.0]))
    array([-0.01,  2.  ])
    """
    return np.where(x > 0, x, slope * x)


@rounds_once
def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)), the logistic function, elementwise.

    >>> sigmoid(np.array([0.0, 1000.0, -1000.0]))
    array([0.5, 1. , 0. ])
    """
    return expit(x)


@rounds_once
def tanh(x: Any) -> Any:
    """The hyperbolic tangent, elementwise.

    >>> tanh(np.array([0.0, 1000.0]))
    array([0., 1.])
    """
    return np.tanh(x)


@rounds_once
def silu(x: Any) -> Any:
    """x sigmoid(x), also known as swish. Elfwing, Uchibe and Doya, 2017.

    >>> silu(np.array([0.0, 1000.0]))
    array([   0., 1000.])
    """
    return x * expit(x)


@rounds_once
def gelu(x: Any, approximate: bool = True) -> Any:
    """x times the normal distribution function of x: by tanh, or by erf if not `approximate`.

    Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.

    >>> gelu(np.array([0.0, 1.0])).round(4), gelu(1.0, approximate=False).round(4)
    (array([0.    , 0.8412]), np.float64(0.8413))
    """
    if approximate:
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * (x * (x * x)))
        return 0.5 * x * (1.0 + np.tanh(inner))
    return 0.5 * x * (1.0 + erf(x * math.sqrt(0.5)))


@rounds_once
def softplus(x: Any) -> Any:
    """log(1 + exp(x)), without overflow.

    >>> softplus(np.array([0.0, 1000.0])).round(4)
    array([6.931e-01, 1.000e+03])
    """
    return np.logaddexp(x, 0)


@rounds_once
def elu(x: Any, alpha: Any = 1.0) -> Any:
    """x where it is positive, else alpha (exp(x) - 1). Clevert, Unterthiner and Hochreiter, 2015.

    >>> elu(np.array([-1000.0, 2.0]))
    array([-1.,  2.])
    """
    below = np.where(x > 0, 0, x)  # exp of what is above could overflow, and spoil a derivative
    return np.where(x > 0, x, alpha * np.expm1(below))


@rounds_once
def selu(x: Any) -> Any:
    """`elu` of such a scale that layers keep mean 0 and variance 1. Klambauer and others, 2017.

    >>> selu(np.array([-1000.0, 1.0])).round(4)
    array([-1.7581,  1.0507])
    """
    return SELU_SCALE * elu(x, SELU_ALPHA)


@rounds_once
def hardswish(x: Any) -> Any:
    """x clip(x + 3, 0, 6) / 6. Howard and others, "Searching for MobileNetV3", 2019.

    >>> hardswish(np.array([-4.0, 0.0, 4.0]))
    array([-0.,  0.,  4.])
    """
    return x * (np.clip(x + 3.0, 0.0, 6.0) * (1 / 6))


@rounds_once
def mish(x: Any) -> Any:
    """x tanh(softplus(x)). Misra, 2019.

    >>> mish(np.array([0.0, 1000.0]))
    array([   0., 1000.])
    """
    return x * np.tanh(np.logaddexp(x, 0))


def glu(x: Any, axis: int = -1) -> Any:
    """The first half along an axis times the sigmoid of the second. Dauphin and others, 2016.

    Raises ShapeError for an axis of an odd size.

    >>> glu(np.array([2.0, 4.0, 0.0, 0.0]))
    array([1., 2.])
    """
    x = floats(x)
    size = x.shape[axis]
    if size % 2:
        what = f"glu halves axis {axis}, which has {size} elements; got {described(x)}"
        raise ShapeError(what, where=here(), fix="an axis of an even size")
    a, b = np.split(wide(x), 2, axis)
    return (a * expit(b)).astype(x.dtype)


# -------- Softmax and its relatives, as plain NumPy.


@rounds_once
def softmax(x: Any, axis: Axes = -1, where: Any = None) -> Any:
    """exp(x) by its sum along `axis`, of the shape and dtype of x; 0 where `where` is False.

    Half types are computed in float32 and rounded once. A row that is -inf alone is NaN.

    >>> softmax(np.array([[0.0, 0.0], [1000.0, 0.0]]))
    array([[0.5, 0.5],
           [1. , 0. ]])
    """
    x = x if where is None else np.where(where, x, -np.inf)
    if not x.size:
        return x
    y = np.exp(x - stop_gradient(np.max(x, axis, keepdims=True)))
    return y / np.sum(y, axis, keepdims=True)


@rounds_once
def log_softmax(x: Any, axis: Axes = -1, where: Any = None) -> Any:
    """The logarithm of `softmax`, finite where that is 0.

    >>> log_softmax(np.array([1000.0, 0.0]))
    array([    0., -1000.])
    """
    x = x if where is None else np.where(where, x, -np.inf)
    if not x.size:
        return x
    away = x - stop_gradient(np.max(x, axis, keepdims=True))
    return away - np.log(np.sum(np.exp(away), axis, keepdims=True))


@rounds_once
def logsumexp(
    a: Any, axis: Axes = None, b: Any = None, keepdims: bool = False, where: Any = None
) -> Any:
    """log(sum(b exp(a))) along `axis` without overflow; over all axes unless one is given.

    -inf where every element is -inf.

    >>> logsumexp(np.array([1000.0, 1000.0])).round(3)
    np.float64(1000.693)
    """
    a = a if where is None else np.where(where, a, -np.inf)
    least: dict[str, Any] = {} if a.size else {"initial": -np.inf}
    high = stop_gradient(np.max(a, axis, keepdims=True, **least))
    high = np.where(np.isfinite(high), high, 0)
    terms = np.exp(a - high) if b is None else b * np.exp(a - high)
    total = np.sum(terms, axis, keepdims=True)
    some = total != 0
    y = np.where(some, np.log(np.where(some, total, 1)) + high, -np.inf).astype(total.dtype)
    return y if keepdims else np.squeeze(y, axis)


def one_hot(x: Any, num_classes: int, dtype: Any = np.float32, axis: int = -1) -> Any:
    """1 at the place that each integer of x names, else 0: of the shape of x, with an axis of
    `num_classes` more. An integer that is no class gives zeros.

    Raises InputError for an x that has no integers.

    >>> one_hot(np.array([0, 2, -1]), 3)
    array([[1., 0., 0.],
           [0., 0., 1.],
           [0., 0., 0.]], dtype=float32)
    """
    x = array(x)
    if x.dtype not in INTEGERS:
        what = f"one_hot takes integers; got {described(x)}"
        raise InputError(what, where=here(), fix="x.astype(np.int32)")
    at = axis % (x.ndim + 1)
    classes = np.arange(num_classes).reshape(-1, *(1 for _ in range(x.ndim - at)))
    return (np.expand_dims(x, at) == classes).astype(dtype)


# -------- Losses, as plain NumPy: the mean over all examples unless `reduction` says otherwise.
# Each takes predictions before targets, and computes and returns half types in float32. `reduction`
# is "mean", "sum" or "none", which gives a value for each example.


REDUCTIONS = ("mean", "sum", "none")
PAIR = ("predictions", "targets")


def reduced(losses: Any, reduction: str) -> Any:
    """The losses, or their mean or sum."""
    check_choice("reduction", reduction, REDUCTIONS)
    if reduction == "none":
        return losses
    return np.mean(losses) if reduction == "mean" else np.sum(losses)


def difference(name: str, predictions: Any, targets: Any) -> Any:
    check_same_shape(name, predictions, targets, PAIR)
    predictions, targets = wide_like(predictions, targets)
    return predictions - targets


def mse(predictions: Any, targets: Any, *, reduction: str = "mean") -> Any:
    """The square of predictions[...] - targets[...].

    Raises ShapeError for arrays of two shapes, of which one would be repeated.

    >>> mse(np.array([1.0, 2.0]), np.array([1.0, 4.0]))
    np.float64(2.0)
    """
    return reduced(difference("mse", predictions, targets) ** 2, reduction)


def mae(predictions: Any, targets: Any, *, reduction: str = "mean") -> Any:
    """The absolute value of predictions[...] - targets[...].

    >>> mae(np.array([1.0, 2.0]), np.array([1.0, 4.0]))
    np.float64(1.0)
    """
    return reduced(np.abs(difference("mae", predictions, targets)), reduction)


def huber(predictions: Any, targets: Any, delta: float = 1.0, *, reduction: str = "mean") -> Any:
    """Half the square of a difference up to `delta`, from there on a line. Huber, 1964.

    >>> huber(np.array([0.0, 0.0]), np.array([1.0, 4.0]), reduction="none")
    array([0.5, 3.5])
    """
    check_between("delta", delta, 0)
    size = np.abs(difference("huber", predictions, targets))
    near = np.minimum(size, delta)
    return reduced(near * (size - 0.5 * near), reduction)


def cross_entropy(
    logits: Any,
    labels: Any,
    *,
    axis: int = -1,
    smoothing: float = 0.0,
    ignore: int | None = None,
    reduction: str = "mean",
) -> Any:
    """The cross entropy of softmax(logits) along `axis` against labels.

    `labels`: integers of the shape of logits without `axis`; or probabilities, floats of the shape
    of logits. `smoothing` is the part of a label's probability that is shared by all classes
    (Szegedy and others, 2015). Where a label is `ignore` the loss is 0, and the mean is over the
    others. Where a label is no class the loss is NaN, or on the CPU, if it is too large, an IndexError.

    Raises InputError for labels that are neither, ShapeError for shapes that do not fit.

    >>> logits = np.array([[2.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    >>> cross_entropy(logits, np.array([0, 2]), reduction="none").round(4)
    array([0.2395, 1.0986])
    >>> cross_entropy(logits, np.array([0, -100]), ignore=-100).round(4)
    np.float64(0.2395)
    """
    check_floats("cross_entropy", logits=logits)
    check_between("smoothing", smoothing, 0, 1)
    labels, logs = array(labels), log_softmax(wide(logits), axis)
    check_labels(logits, labels, axis)
    if labels.dtype in FLOATS:
        losses, counted = -np.sum(smoothed(wide(labels), axis, smoothing) * logs, axis), None
    else:
        counted = None if ignore is None else labels != ignore
        safe = labels if counted is None else np.where(counted, labels, 0)
        losses = -np.squeeze(np.take_along_axis(logs, np.expand_dims(safe, axis), axis), axis)
        if smoothing:
            losses = (1 - smoothing) * losses - smoothing * np.mean(logs, axis)
        # no class, though an index: -1 would be the last, and beyond the last a GPU reads it, too
        losses = np.where((safe >= 0) & (safe < logs.shape[axis]), losses, np.nan)
    if counted is None:
        return reduced(losses, reduction)
    losses = np.where(counted, losses, 0)
    if reduction == "mean":
        return np.sum(losses) / np.maximum(np.sum(counted), 1).astype(losses.dtype)
    return reduced(losses, reduction)


def smoothed(probabilities: Any, axis: int, smoothing: float) -> Any:
    """The probabilities, a part of them shared by all classes."""
    if not smoothing:
        return probabilities
    return (1 - smoothing) * probabilities + smoothing / probabilities.shape[axis]


def check_labels(logits: Any, labels: Any, axis: int) -> None:
    """An error for labels that are neither integers nor probabilities of the right shape."""
    shape = list(array(logits).shape)
    floats = labels.dtype in FLOATS and labels.shape == tuple(shape)
    if not floats and labels.dtype not in INTEGERS:
        what = f"cross_entropy: labels are integers, or probabilities of the shape of logits; got {described(labels)}"
        raise InputError(what, where=here(), fix="labels.astype(np.int32)")
    del shape[axis]
    if not floats and labels.shape != tuple(shape):
        what = f"cross_entropy: labels of {described(logits)} have the shape {tuple(shape)}; got {described(labels)}"
        raise ShapeError(what, where=here(), fix=labels_fix(array(logits), labels, axis, shape))


def labels_fix(logits: Any, labels: Any, axis: int, shape: list[int]) -> str:
    """Returns the fix for integer labels of a wrong shape; one-hot labels become class indices."""
    if labels.shape == logits.shape:
        return f"labels.argmax({axis}), or labels.astype(np.float32) for probabilities"
    if labels.size == math.prod(shape):
        return f"labels.reshape({tuple(shape)})"
    return f"as many labels as there are rows of logits along axis {axis}"


def binary_cross_entropy(
    predictions: Any, targets: Any, *, with_logits: bool = False, reduction: str = "mean"
) -> Any:
    """-(t log p + (1 - t) log(1 - p)) of probabilities p and targets t in [0, 1].

    `with_logits` says that predictions are the x of p = sigmoid(x), for which nothing overflows.
    Logarithms of probabilities are held at -100, so that 0 and 1 have finite losses.

    >>> binary_cross_entropy(np.array([0.0, 800.0]), np.array([1.0, 0.0]), with_logits=True, reduction="none").round(4)
    array([6.931e-01, 8.000e+02])
    >>> binary_cross_entropy(np.array([0.5, 1.0]), np.array([1.0, 0.0]), reduction="none").round(4)
    array([  0.6931, 100.    ])
    """
    check_same_shape("binary_cross_entropy", predictions, targets, PAIR)
    p, t = wide_like(predictions, targets)
    if with_logits:
        return reduced(np.logaddexp(p, 0) - p * t, reduction)
    return reduced(-(t * held_log(p) + (1 - t) * held_log(1 - p)), reduction)


def held_log(p: Any) -> Any:
    """log(p), -100 at least."""
    least = np.exp(-100.0) if p.dtype == np.float64 else np.float32(1e-43)
    return np.where(p > least, np.log(np.where(p > least, p, 1)), -100.0).astype(p.dtype)


def kl_div(
    log_predictions: Any,
    targets: Any,
    *,
    axis: int = -1,
    log_targets: bool = False,
    reduction: str = "mean",
) -> Any:
    """The sum over `axis` of t (log t - log p): how far p is from the probabilities t.

    Predictions are logarithms, as of `log_softmax`; targets too with `log_targets`. Where t is 0 it
    adds nothing. The mean is over distributions, not over their elements.

    >>> kl_div(np.log(np.array([0.5, 0.5])), np.array([1.0, 0.0])).round(4)
    np.float64(0.6931)
    """
    check_same_shape("kl_div", log_predictions, targets, ("log_predictions", "targets"))
    q, t = wide_like(log_predictions, targets)
    if log_targets:
        return reduced(np.sum(np.exp(t) * (t - q), axis), reduction)
    return reduced(np.sum(xlogy(t, t) - np.where(t == 0, 0, t * q), axis), reduction)


def cosine_similarity(x: Any, y: Any, *, axis: int = -1, eps: float = 1e-8) -> Any:
    """The product of x and y along `axis` by that of their lengths, which are `eps` at least.

    >>> cosine_similarity(np.array([1.0, 0.0]), np.array([3.0, 3.0])).round(4)
    np.float64(0.7071)
    """
    check_same_shape("cosine_similarity", x, y, ("x", "y"))
    x, y = wide_like(x, y)
    lengths = [np.maximum(np.sqrt(np.sum(z * z, axis)), eps) for z in (x, y)]
    return np.sum(x * y, axis) / (lengths[0] * lengths[1])


def cosine_loss(
    x: Any,
    y: Any,
    targets: Any = 1,
    *,
    margin: float = 0.0,
    axis: int = -1,
    reduction: str = "mean",
) -> Any:
    """1 - cosine_similarity where the target is 1; where it is -1, what that exceeds `margin` by.

    >>> cosine_loss(np.eye(2), np.eye(2), np.array([1, -1]), reduction="none")
    array([0., 1.])
    """
    similar = cosine_similarity(x, y, axis=axis)
    apart = np.maximum(similar - margin, 0)
    return reduced(np.where(array(targets) > 0, 1 - similar, apart), reduction)


def triplet_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    *,
    margin: float = 1.0,
    axis: int = -1,
    reduction: str = "mean",
) -> Any:
    """max(0, |anchor - positive| - |anchor - negative| + margin), lengths along `axis`.

    Schroff, Kalenichenko and Philbin, "FaceNet", 2015, without their squares.

    >>> triplet_loss(np.zeros(2), np.array([3.0, 4.0]), np.array([0.0, 2.0]))
    np.float64(4.0)
    """
    check_same_shape("triplet_loss", anchor, positive, ("anchor", "positive"))
    check_same_shape("triplet_loss", anchor, negative, ("anchor", "negative"))
    near, far = (difference("triplet_loss", anchor, z) for z in (positive, negative))
    lengths = [np.sqrt(np.sum(z * z, axis)) for z in (near, far)]
    return reduced(np.maximum(lengths[0] - lengths[1] + margin, 0), reduction)
