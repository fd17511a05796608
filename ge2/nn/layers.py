"""Layers: dataclasses of arrays, each with an `init`; norms and attention among them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ge2 import random
from ge2.base.arrays import INTEGERS
from ge2.base.errors import ArgumentError, InputError, ShapeError
from ge2.base.source import here
from ge2.nn import initializers
from ge2.nn.functions import (
    array,
    check_last,
    check_rate,
    described,
    floats,
    relu,
    silu,
    size_of,
    wide,
)
from ge2.nn.module import Module, Window, applied, attention, state, static
from ge2.numpy import take
from ge2.transforms.branches import stop_gradient

# -------- Layers: dataclasses of arrays, each with an `init` that makes one from a key.


Bias = str | bool | tuple[int, ...] | None
KINDS = ("row", "scalar", "none")


class Linear(Module):
    """x[..., ins] @ weight[ins, outs] + bias.

    `init` makes a bias of zeros: "row", or True, is one number for each output; "scalar" one for
    all; "none", or False, is none; a shape is one that broadcasts with the result, as (rows, 1) for
    a number for each row, or (rows, outs) for one for each element.

    >>> layer = Linear.init(random.key(0), 3, 2)
    >>> layer, layer(np.zeros((4, 3), np.float32)).shape
    (Linear(weight=f32[3,2], bias=f32[2]), (4, 2))
    """

    weight: Any
    bias: Any = None

    @classmethod
    def init(
        cls,
        key: Any,
        ins: int,
        outs: int,
        *,
        bias: Bias = "row",
        initializer: initializers.Initializer | None = None,
        dtype: Any = np.float32,
    ) -> Linear:
        """A layer whose weight is made by `initializer`, `lecun_normal` unless given."""
        weight = (initializer or initializers.lecun_normal())(key, (ins, outs), dtype)
        shape = bias_shape(bias, outs)
        return cls(weight, None if shape is None else initializers.zeros(key, shape, dtype))

    def __call__(self, x: Any) -> Any:
        check_last(self, x, self.weight)
        y = x @ self.weight
        return y if self.bias is None else y + self.bias


def bias_shape(bias: Bias, outs: int) -> tuple[int, ...] | None:
    """The shape of a bias of that kind; None for none."""
    if bias is None or bias is False or bias == "none":
        return None
    if bias is True or bias == "row":
        return (outs,)
    if isinstance(bias, tuple):
        return bias
    if bias != "scalar":
        what = f"a bias is one of {', '.join(map(repr, KINDS))}, or a shape; got {bias!r:.60}"
        raise ArgumentError(what, where=here(), fix="bias='row'")
    return ()


class Embedding(Module):
    """Rows of weight[count, width], by integers of any shape.

    >>> table = Embedding.init(random.key(0), 10, 4)
    >>> table(np.array([[1, 2, 3]])).shape
    (1, 3, 4)
    """

    weight: Any

    @classmethod
    def init(
        cls, key: Any, count: int, width: int, *, stddev: float = 0.02, dtype: Any = np.float32
    ) -> Embedding:
        return cls(initializers.normal(stddev)(key, (count, width), dtype))

    def __call__(self, ids: Any) -> Any:
        size_of(self, self.weight)
        if array(ids).dtype not in INTEGERS:
            what = f"Embedding takes integers; got {described(ids)}"
            raise InputError(what, where=here(), fix="ids.astype(np.int32)")
        return take(self.weight, ids, axis=0)  # NumPy's own asks the indices for no function

    def attend(self, x: Any) -> Any:
        """x[..., width] @ weight.T: the scores of all rows, as a last layer that shares weights."""
        check_last(self, x, self.weight, 1, ".attend")
        return x @ np.swapaxes(self.weight, 0, 1)


def dropout(x: Any, rate: float, key: Any) -> Any:
    """x, of which the part `rate` is set to 0 by a key and the rest is divided by 1 - rate.

    Srivastava and others, "Dropout", 2014. Raises InputError without a key.

    >>> dropout(np.ones(6), 0.5, random.key(1))
    array([..., ...])
    """
    x = floats(x)
    check_rate("dropout", rate, key)
    if rate == 0:
        return x
    return np.where(random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0).astype(x.dtype)


class Dropout(Module):
    """`dropout` of a rate, or nothing where `training` is False.

    >>> Dropout(0.5)(np.ones(3), training=False)
    array([1., 1., 1.])
    """

    rate: float = static()

    def __call__(self, x: Any, *, key: Any = None, training: bool = True) -> Any:
        return dropout(x, self.rate, key) if training else x


class MLP(Module):
    """Linear layers with an activation, and dropout if wanted, between them.

    >>> MLP.init(random.key(0), (4, 8, 8, 2))
    MLP(layers=[3 x Linear], activation=relu, rate=0.0)
    """

    layers: tuple[Linear, ...]
    activation: Callable[[Any], Any] = static(default=relu)
    rate: float = static(default=0.0)

    @classmethod
    def init(
        cls,
        key: Any,
        widths: Sequence[int],
        *,
        activation: Callable[[Any], Any] = relu,
        rate: float = 0.0,
        **options: Any,
    ) -> MLP:
        """`widths` are those of the input, of all between, and of the output; options are
        `Linear.init`'s.
        """
        keys = random.split(key, len(widths) - 1)
        pairs = zip(keys, pairwise(widths), strict=True)
        layers = (Linear.init(k, ins, outs, **options) for k, (ins, outs) in pairs)
        return cls(tuple(layers), activation, rate)

    def __call__(self, x: Any, *, key: Any = None, training: bool = True) -> Any:
        for i, layer in enumerate(self.layers[:-1]):
            x = self.activation(layer(x))
            if self.rate and training:
                x = dropout(x, self.rate, None if key is None else random.fold_in(key, i))
        return self.layers[-1](x)


class GatedMLP(Module):
    """down(activation(gate(x)) * up(x)): SwiGLU for `silu`. Shazeer, "GLU Variants", 2020.

    >>> GatedMLP.init(random.key(0), 4, 8)(np.ones((2, 4), np.float32)).shape
    (2, 4)
    """

    gate: Linear
    up: Linear
    down: Linear
    activation: Callable[[Any], Any] = static(default=silu)

    @classmethod
    def init(
        cls,
        key: Any,
        width: int,
        hidden: int,
        *,
        activation: Callable[[Any], Any] = silu,
        bias: Bias = "none",
        **options: Any,
    ) -> GatedMLP:
        keys = random.split(key, 3)
        shapes = ((width, hidden), (width, hidden), (hidden, width))
        gate, up, down = (
            Linear.init(k, *s, bias=bias, **options) for k, s in zip(keys, shapes, strict=True)
        )
        return cls(gate, up, down, activation)

    def __call__(self, x: Any) -> Any:
        return self.down(self.activation(self.gate(x)) * self.up(x))


class Sequential(Module):
    """Modules and functions, one after another; `of` makes one.

    `key` is split among the modules that take one, and `training` is passed to those.

    >>> model = Sequential.of(Linear.init(random.key(0), 3, 4), np.tanh, Dropout(0.1))
    >>> model, model(np.ones((2, 3), np.float32), training=False).shape
    (Sequential(modules=[Linear, Dropout], steps=[None, tanh, None]), (2, 4))
    """

    modules: tuple[Module, ...]
    steps: tuple[Callable[[Any], Any] | None, ...] = static(default=())  # None: the next module

    @classmethod
    def of(cls, *parts: Any) -> Sequential:
        """Of modules and functions of an array. InputError for what is neither."""
        if odd := [p for p in parts if not callable(p)]:
            what = f"Sequential is made of modules and functions; got {odd[0]!r:.60}"
            raise InputError(what, where=here(), fix="Sequential.of(first, second, ...)")
        modules = tuple(p for p in parts if isinstance(p, Module))
        return cls(modules, tuple(None if isinstance(p, Module) else p for p in parts))

    def __call__(self, x: Any, *, key: Any = None, training: bool = True) -> Any:
        parts: Any = self.modules
        if not isinstance(parts, tuple) or self.steps.count(None) != len(self.modules):
            what = "Sequential(modules, steps) is what `of` makes, and was not made by it"
            raise InputError(what, where=here(), fix="Sequential.of(first, second, ...)")
        modules = iter(self.modules)
        for i, step in enumerate(self.steps):
            part: Any = next(modules) if step is None else step
            x = applied(part, x, None if key is None else random.fold_in(key, i), training)
            if isinstance(x, tuple):
                what = f"Sequential: {type(part).__name__} returns {len(x)} values, of which the next part takes one"
                raise InputError(what, where=here(), fix="a module of your own, which returns both")
        return x


# -------- Norms: functions of arrays as plain NumPy, and modules that hold their parameters.
# Channels are along the last axis. Half types are computed in float32 inside and rounded once.


def scaled(y: Any, weight: Any, bias: Any, x: Any) -> Any:
    """y times a weight, plus a bias, if there are, in the dtype of x."""
    y = y if weight is None else y * wide(weight)
    y = y if bias is None else y + wide(bias)
    return y.astype(x.dtype)


def standard(x: Any, axis: Any, eps: float) -> Any:
    """x less its mean over its standard deviation along an axis."""
    away = x - np.mean(x, axis, keepdims=True)
    return away / np.sqrt(np.mean(away * away, axis, keepdims=True) + eps)


def layer_norm(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """x[..., n] less its mean over its standard deviation along the last axis, times weight[n],
    plus bias[n]. Ba, Kiros and Hinton, "Layer Normalization", 2016.

    >>> layer_norm(np.array([1.0, 3.0]), eps=0.0)
    array([-1.,  1.])
    """
    x = floats(x)
    return scaled(standard(wide(x), -1, eps), weight, bias, x)


def rms_norm(x: Any, weight: Any = None, eps: float = 1e-5) -> Any:
    """x[..., n] over the root of its mean square along the last axis, times weight[n].

    Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.

    >>> rms_norm(np.array([3.0, 3.0, 3.0]), eps=0.0)
    array([1., 1., 1.])
    """
    x = floats(x)
    z = wide(x)
    return scaled(z / np.sqrt(np.mean(z * z, -1, keepdims=True) + eps), weight, None, x)


def group_norm(x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """`layer_norm` of each group of channels of x[n, ..., channels], over all axes but the first.

    Wu and He, "Group Normalization", 2018. Raises ShapeError for groups that do not divide.

    >>> group_norm(np.array([[1.0, 3.0, 10.0, 30.0]]), 2, eps=0.0)
    array([[-1.,  1., -1.,  1.]])
    """
    x = floats(x)
    if x.ndim < 2 or groups < 1 or x.shape[-1] % groups:
        what = f"group_norm: {groups} groups do not divide the channels of {described(x)}"
        raise ShapeError(what, where=here(), fix="groups that divide the last axis")
    parts = wide(x).reshape(*x.shape[:-1], groups, x.shape[-1] // groups)
    axes = (*range(1, x.ndim - 1), x.ndim)
    return scaled(standard(parts, axes, eps).reshape(x.shape), weight, bias, x)


class LayerNorm(Module):
    """`layer_norm` with parameters.

    >>> LayerNorm.init(8)
    LayerNorm(weight=f32[8], bias=f32[8], eps=1e-05)
    """

    weight: Any
    bias: Any
    eps: float = static(default=1e-5)

    @classmethod
    def init(
        cls, width: int, *, bias: bool = True, eps: float = 1e-5, dtype: Any = np.float32
    ) -> LayerNorm:
        return cls(np.ones(width, dtype), np.zeros(width, dtype) if bias else None, eps)

    def __call__(self, x: Any) -> Any:
        check_last(self, x, self.weight)
        return layer_norm(x, self.weight, self.bias, self.eps)


class RMSNorm(Module):
    """`rms_norm` with a weight.

    >>> RMSNorm.init(8)
    RMSNorm(weight=f32[8], eps=1e-05)
    """

    weight: Any
    eps: float = static(default=1e-5)

    @classmethod
    def init(cls, width: int, *, eps: float = 1e-5, dtype: Any = np.float32) -> RMSNorm:
        return cls(np.ones(width, dtype), eps)

    def __call__(self, x: Any) -> Any:
        check_last(self, x, self.weight)
        return rms_norm(x, self.weight, self.eps)


class GroupNorm(Module):
    """`group_norm` with parameters for each channel.

    >>> GroupNorm.init(8, groups=2)(np.ones((1, 5, 5, 8), np.float32)).shape
    (1, 5, 5, 8)
    """

    weight: Any
    bias: Any
    groups: int = static()
    eps: float = static(default=1e-5)

    @classmethod
    def init(
        cls, channels: int, groups: int, *, eps: float = 1e-5, dtype: Any = np.float32
    ) -> GroupNorm:
        return cls(np.ones(channels, dtype), np.zeros(channels, dtype), groups, eps)

    def __call__(self, x: Any) -> Any:
        check_last(self, x, self.weight)
        return group_norm(x, self.groups, self.weight, self.bias, self.eps)


class BatchNorm(Module):
    """x[..., channels] less its mean over its deviation, over all axes but the last.

    A call gives the result and the module's successor, whose `mean` and `var` have moved by
    `momentum` towards those of x; no derivative flows through them. Without `training` they are
    used instead, and the successor is the module itself. Ioffe and Szegedy, 2015; the variance that
    is kept is the unbiased one, as in torch. In training a channel has several values: of one the
    result would be the bias, whatever x is, so that is an InputError.

    >>> norm = BatchNorm.init(3)
    >>> y, norm = norm(np.array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]], np.float32))
    >>> y.round(2), norm.mean.round(2)
    (array([[-1.,  0.,  1.],
           [ 1.,  0., -1.]], dtype=float32), array([0.2, 0.2, 0.2], dtype=float32))
    """

    weight: Any
    bias: Any
    mean: Any = state()
    var: Any = state()
    momentum: float = static(default=0.1)
    eps: float = static(default=1e-5)

    @classmethod
    def init(
        cls, channels: int, *, momentum: float = 0.1, eps: float = 1e-5, dtype: Any = np.float32
    ) -> BatchNorm:
        one, zero = np.ones(channels, dtype), np.zeros(channels, dtype)
        kept = np.float32 if dtype != np.float64 else dtype
        return cls(one, zero, zero.astype(kept), one.astype(kept), momentum, eps)

    def __call__(self, x: Any, training: bool = True) -> tuple[Any, BatchNorm]:
        x = floats(x)
        check_last(self, x, self.weight)
        if not training:
            mean, var = stop_gradient(self.mean), stop_gradient(self.var)
            y = (wide(x) - mean) / np.sqrt(var + self.eps)
            return scaled(y, self.weight, self.bias, x), self
        count = math.prod(x.shape[:-1])
        if count < 2:
            what = f"BatchNorm in training takes several values of a channel; got {described(x)}"
            raise InputError(what, where=here(), fix="training=False, or a larger batch")
        axes, z = tuple(range(x.ndim - 1)), wide(x)
        mean = np.mean(z, axes)
        away = z - mean
        var = np.mean(away * away, axes)
        y = scaled(away / np.sqrt(var + self.eps), self.weight, self.bias, x)
        return y, self.moved(mean, var * (count / (count - 1)))

    def moved(self, mean: Any, var: Any) -> BatchNorm:
        """The module whose mean and variance are nearer to these."""
        pairs = ((self.mean, mean), (self.var, var))
        mean, var = (
            stop_gradient(old + self.momentum * (new - old)).astype(old.dtype) for old, new in pairs
        )
        return self.replace(mean=mean, var=var)  # type: ignore[no-any-return]


# -------- Attention with parameters.


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
