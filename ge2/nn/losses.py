"""Losses, as plain NumPy: the mean over all examples unless `reduction` says otherwise.

Each takes predictions before targets, and computes and returns half types in float32. `reduction`
is "mean", "sum" or "none", which gives a value for each example.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ge2.base.dtypes import FLOATS, INTEGERS
from ge2.base.errors import InputError, ShapeError
from ge2.base.source import here
from ge2.nn.softmaxes import log_softmax
from ge2.nn.values import (
    array,
    check_choice,
    check_floats,
    check_same_shape,
    described,
    wide,
)
from ge2.numpy.rare.special import xlogy

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
    return wide(predictions) - wide(targets)


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
    others. Labels that are no class raise IndexError on the CPU.

    Raises InputError for labels that are neither, ShapeError for shapes that do not fit.

    >>> logits = np.array([[2.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    >>> cross_entropy(logits, np.array([0, 2]), reduction="none").round(4)
    array([0.2395, 1.0986])
    >>> cross_entropy(logits, np.array([0, -100]), ignore=-100).round(4)
    np.float64(0.2395)
    """
    check_floats("cross_entropy", logits=logits)
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
    p, t = wide(predictions), wide(targets)
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
    q, t = wide(log_predictions), wide(targets)
    if log_targets:
        return reduced(np.sum(np.exp(t) * (t - q), axis), reduction)
    return reduced(np.sum(xlogy(t, t) - np.where(t == 0, 0, t * q), axis), reduction)


def cosine_similarity(x: Any, y: Any, *, axis: int = -1, eps: float = 1e-8) -> Any:
    """The product of x and y along `axis` by that of their lengths, which are `eps` at least.

    >>> cosine_similarity(np.array([1.0, 0.0]), np.array([3.0, 3.0])).round(4)
    np.float64(0.7071)
    """
    check_same_shape("cosine_similarity", x, y, ("x", "y"))
    x, y = wide(x), wide(y)
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
    near, far = (wide(anchor) - wide(z) for z in (positive, negative))
    lengths = [np.sqrt(np.sum(z * z, axis)) for z in (near, far)]
    return reduced(np.maximum(lengths[0] - lengths[1] + margin, 0), reduction)
