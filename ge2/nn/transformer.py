"""Attention with parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from ge2 import random
from ge2.base.errors import ArgumentError
from ge2.base.source import here
from ge2.nn.attend import Window, attention
from ge2.nn.layers import Linear
from ge2.nn.module import Module, static


class MultiHeadAttention(Module):
    """`attention` of x[..., s, width] to itself, or to context[..., t, width], in several heads.

    `kv_heads` divides `heads`: so many heads of keys and values are shared by all. The result is
    [..., s, width]. Vaswani and others, 2017; Ainslie and others, 2023.

    >>> layer = MultiHeadAttention.init(random.key(0), 8, heads=4, kv_heads=2)
    >>> layer(np.ones((2, 5, 8), np.float32), causal=True).shape
    (2, 5, 8)
    """

    query: Linear
    key: Linear
    value: Linear
    out: Linear
    heads: int = static()
    kv_heads: int = static()
    rate: float = static(default=0.0)

    @classmethod
    def init(
        cls,
        key: Any,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        rate: float = 0.0,
        **options: Any,
    ) -> MultiHeadAttention:
        """`rate` is that of the dropout of weights; options are `Linear.init`'s.

        Raises ArgumentError for heads that do not divide the width, or one another.
        """
        kv_heads = heads if kv_heads is None else kv_heads
        if width % heads or heads % kv_heads:
            which, n, of = (
                ("heads", heads, width) if width % heads else ("kv_heads", kv_heads, heads)
            )
            whole = "the width" if width % heads else "the heads of queries"
            what = f"MultiHeadAttention: {which}={n} does not divide {whole}, {of}"
            nearest = next(d for d in range(min(n, of), 0, -1) if of % d == 0)
            raise ArgumentError(what, where=here(), fix=f"{which}={nearest}")
        keys, narrow = random.split(key, 4), width // heads * kv_heads
        outs = (width, narrow, narrow, width)
        q, k, v, out = (
            Linear.init(each, width, n, **options) for each, n in zip(keys, outs, strict=True)
        )
        return cls(q, k, v, out, heads, kv_heads, rate)

    def __call__(
        self,
        x: Any,
        context: Any = None,
        mask: Any = None,
        *,
        bias: Any = None,
        causal: bool = False,
        window: Window | None = None,
        key: Any = None,
        training: bool = True,
    ) -> Any:
        source = x if context is None else context
        q = split(self.query(x), self.heads)
        k, v = split(self.key(source), self.kv_heads), split(self.value(source), self.kv_heads)
        rate = self.rate if training else 0.0
        y = attention(q, k, v, mask, bias=bias, causal=causal, window=window, dropout=rate, key=key)
        y = np.swapaxes(y, -2, -3)
        return self.out(y.reshape(*y.shape[:-2], -1))


def split(x: Any, heads: int) -> Any:
    """x[..., s, heads * d] as [..., heads, s, d]."""
    return np.swapaxes(x.reshape(*x.shape[:-1], heads, -1), -2, -3)
