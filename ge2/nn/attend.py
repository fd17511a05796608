"""Attention, as plain NumPy: products, a mask and a softmax.

Nothing here asks for a kernel: a target that has one for attention finds this in the graph, as it
finds the same lines in a program that does not import this module.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ge2 import random
from ge2.base.errors import InputError, ShapeError
from ge2.base.source import here
from ge2.nn.softmaxes import softmax
from ge2.nn.values import array, check_rate, described, wide

Window = int | tuple[int, int]


def attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    *,
    bias: Any = None,
    causal: bool = False,
    scale: float | None = None,
    window: Window | None = None,
    dropout: float = 0.0,
    key: Any = None,
) -> Any:
    """softmax(q k^T scale + bias) v of q[..., n, s, d], k[..., m, t, d] and v[..., m, t, e]: an
    array of the shape [..., n, s, e], in the dtype of v.

    m divides n: each head of k and v serves n / m of q. `mask` and `bias` broadcast to
    [..., n, s, t]; where `mask` is False nothing is read. With `causal`, row i reads columns up to
    i + t - s; with `window` (left, right) those from i - left to i + right. `scale` is 1 / sqrt(d)
    unless given. Scores of half types are float32. A row that reads nothing is NaN. `dropout` is
    the part of the weights that is set to 0, by a `key`. Vaswani and others, 2017.

    Raises ShapeError for heads that do not divide, InputError for dropout without a key and for
    a mask that is not of bool.

    >>> q = k = v = np.eye(2)[None]
    >>> attention(q, k, v, causal=True).round(3)
    array([[[1.  , 0.  ],
            [0.33, 0.67]]])
    """
    q, k, v = array(q), array(k), array(v)
    check_operands(q, k, v)
    check_rate("attention with dropout", dropout, key)
    k, v = (repeated(q, x) for x in (k, v))
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = wide(q @ np.swapaxes(k, -1, -2)) * scale
    if bias is not None:
        check_fits("bias", bias, scores)
        scores = scores + wide(bias)
    if causal or window is not None:
        scores = np.where(band(scores, causal, window), scores, -np.inf)
    if mask is not None:
        check_mask(mask)
        check_fits("mask", mask, scores)
        scores = np.where(mask, scores, -np.inf)
    weights = softmax(scores)
    if dropout:
        kept = random.bernoulli(key, 1 - dropout, weights.shape)
        weights = np.where(kept, weights / (1 - dropout), 0)
    return (weights.astype(v.dtype) @ v).astype(v.dtype)


def repeated(q: Any, x: Any) -> Any:
    """Keys or values, a head for each of those of q."""
    if x.ndim < 3 or q.ndim < 3 or x.shape[-3] == q.shape[-3]:
        return x
    heads, given = q.shape[-3], x.shape[-3]
    if heads % given:
        got = f"{described(q)}, {described(x)}"
        what = f"attention: {heads} heads of queries are no multiple of {given} of keys; got {got}"
        raise ShapeError(what, where=here(), fix="heads in the axis before positions")
    return np.repeat(x, heads // given, axis=-3)


def check_operands(q: Any, k: Any, v: Any) -> None:
    """ShapeError unless the arrays are q[..., s, d], k[..., t, d] and v[..., t, e]."""
    fits = (
        min(q.ndim, k.ndim, v.ndim) > 1
        and q.shape[-1] == k.shape[-1]
        and k.shape[-2] == v.shape[-2]
    )
    if not fits:
        got = ", ".join(map(described, (q, k, v)))
        what = f"attention takes q[..., n, s, d], k[..., m, t, d] and v[..., m, t, e]; got {got}"
        raise ShapeError(what, where=here(), fix="np.swapaxes of positions and heads")


def check_fits(role: str, x: Any, scores: Any) -> None:
    """ShapeError for a mask or a bias that does not broadcast with the scores."""
    try:
        np.broadcast_shapes(array(x).shape, scores.shape)
    except ValueError:
        what = f"attention: a {role} broadcasts to the scores [..., n, s, t], {described(scores)}; got {described(x)}"
        fix = f"{role}[:, None, None, :] for one of keys, [batch, t]"
        raise ShapeError(what, where=here(), fix=fix) from None


def check_mask(mask: Any) -> None:
    if array(mask).dtype != np.bool_:
        what = f"attention: a mask is of bool, True where a key is read; got {described(mask)}"
        raise InputError(what, where=here(), fix="bias=mask, which is added to the scores")


def band(scores: Any, causal: bool, window: Window | None) -> Any:
    """True for the keys near enough to each query, by their positions: bool[s, t]."""
    s, t = scores.shape[-2:]
    rows = np.arange(t - s, t, like=scores)[:, None]
    columns = np.arange(t, like=scores)
    if window is None:
        return rows >= columns
    near = within(rows, columns, window)
    return near & (rows >= columns) if causal else near


def within(rows: Any, columns: Any, window: Window) -> Any:
    """True where a column is within the window around a row."""
    pair: Any = (window, window) if isinstance(window, int) else window
    if len(pair) != 2:
        what = f"a window is one number, or a pair (left, right); got {window!r:.60}"
        raise InputError(what, where=here(), fix="(256, 0)")
    left, right = pair
    return (rows - left <= columns) & (columns <= rows + right)


def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: Window | None = None,
) -> Any:
    """`attention` under the signature of `jax.nn.dot_product_attention`: query[B, T, N, H],
    key[B, S, K, H] and value[B, S, K, H], or each without B, give an array of the query's shape.

    `bias` and `mask` broadcast to [B, N, T, S]. `query_seq_lengths` and `key_value_seq_lengths`,
    integers [B], say how many positions count: the others' results are 0, and nobody reads them.
    `local_window_size` is (left, right) or one number for both. As in JAX, positions of queries and
    keys are counted from the first of each.

    Unlike JAX's, a row that reads nothing is NaN, and not a mean of all values.

    >>> x = np.ones((1, 4, 2, 8), np.float32)
    >>> dot_product_attention(x, x, x, is_causal=True).shape
    (1, 4, 2, 8)
    """
    query, key, value = array(query), array(key), array(value)
    if query.ndim == 3:
        batched = [None if x is None else array(x)[None] for x in (query, key, value, bias, mask)]
        return dot_product_attention(
            *batched, scale=scale, is_causal=is_causal, query_seq_lengths=query_seq_lengths,
            key_value_seq_lengths=key_value_seq_lengths, local_window_size=local_window_size,
        )[0]  # fmt: skip
    check_layout(query, key, value)
    rows = np.arange(query.shape[1], like=query)[:, None]
    columns = np.arange(key.shape[1], like=query)
    masks = [] if mask is None else [array(mask)]
    if is_causal:
        masks.append(rows >= columns)
    if local_window_size is not None:
        masks.append(within(rows, columns, local_window_size))
    if key_value_seq_lengths is not None:
        masks.append(columns < array(key_value_seq_lengths)[:, None, None, None])
    for each in masks[1:]:
        masks[0] = masks[0] & each
    q, k, v = (np.swapaxes(x, 1, 2) for x in (query, key, value))
    y = attention(q, k, v, masks[0] if masks else None, bias=bias, scale=scale)
    y = np.swapaxes(y, 1, 2)
    if query_seq_lengths is None:
        return y
    counted = rows[:, :, None] < array(query_seq_lengths)[:, None, None, None]
    return np.where(counted, y, 0)


def check_layout(query: Any, key: Any, value: Any) -> None:
    """ShapeError unless the arrays are [B, T, N, H], [B, S, K, H] and [B, S, K, H]."""
    b, _, n, h = query.shape if query.ndim == 4 else (0, 0, 0, 0)
    fits = key.ndim == 4 and key.shape[0] == b and key.shape[3] == h and not n % key.shape[2]
    if not fits or value.shape[:3] != key.shape[:3]:
        got = ", ".join(map(described, (query, key, value)))
        what = f"dot_product_attention takes query[B, T, N, H], key[B, S, K, H] and value[B, S, K, H]; got {got}"
        raise ShapeError(what, where=here(), fix="np.swapaxes of positions and heads")
