"""Softmax and its relatives, as plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from ge2.base.dtypes import INTEGERS
from ge2.base.errors import InputError
from ge2.base.source import here
from ge2.nn.values import Axes, array, described, rounds_once
from ge2.transforms.control.branches import stop_gradient


@rounds_once
def softmax(x: Any, axis: Axes = -1, where: Any = None) -> Any:
    """exp(x) by its sum along `axis`, of the shape and dtype of x; 0 where `where` is False.

    Half types are computed in float32 and rounded once. A row that is -inf alone is NaN.

    >>> softmax(np.array([[0.0, 0.0], [1000.0, 0.0]]))
    array([[0.5, 0.5],
           [1. , 0. ]])
    """
    x = x if where is None else np.where(where, x, -np.inf)
    y = np.exp(x - stop_gradient(np.max(x, axis, keepdims=True)))
    return y / np.sum(y, axis, keepdims=True)


@rounds_once
def log_softmax(x: Any, axis: Axes = -1, where: Any = None) -> Any:
    """The logarithm of `softmax`, finite where that is 0.

    >>> log_softmax(np.array([1000.0, 0.0]))
    array([    0., -1000.])
    """
    x = x if where is None else np.where(where, x, -np.inf)
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
    high = stop_gradient(np.max(a, axis, keepdims=True))
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
