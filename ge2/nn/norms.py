"""Norms: functions of arrays as plain NumPy, and modules that hold their parameters.

Channels are along the last axis. Half types are computed in float32 inside and rounded once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ge2.base.errors import ShapeError
from ge2.base.source import here
from ge2.nn.module import Module, state, static
from ge2.nn.values import array, check_last, described, wide
from ge2.transforms.control.branches import stop_gradient


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
    x = array(x)
    return scaled(standard(wide(x), -1, eps), weight, bias, x)


def rms_norm(x: Any, weight: Any = None, eps: float = 1e-5) -> Any:
    """x[..., n] over the root of its mean square along the last axis, times weight[n].

    Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.

    >>> rms_norm(np.array([3.0, 3.0, 3.0]), eps=0.0)
    array([1., 1., 1.])
    """
    x = array(x)
    z = wide(x)
    return scaled(z / np.sqrt(np.mean(z * z, -1, keepdims=True) + eps), weight, None, x)


def group_norm(x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """`layer_norm` of each group of channels of x[n, ..., channels], over all axes but the first.

    Wu and He, "Group Normalization", 2018. Raises ShapeError for groups that do not divide.

    >>> group_norm(np.array([[1.0, 3.0, 10.0, 30.0]]), 2, eps=0.0)
    array([[-1.,  1., -1.,  1.]])
    """
    x = array(x)
    if x.ndim < 2 or x.shape[-1] % groups:
        what = f"group_norm: {groups} groups do not divide the channels of {described(x)}"
        raise ShapeError(what, where=here(), fix="groups that divide the last axis")
    parts = wide(x).reshape(*x.shape[:-1], groups, -1)
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
    is kept is the unbiased one, as in torch.

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
        x = array(x)
        check_last(self, x, self.weight)
        if not training:
            mean, var = stop_gradient(self.mean), stop_gradient(self.var)
            y = (wide(x) - mean) / np.sqrt(var + self.eps)
            return scaled(y, self.weight, self.bias, x), self
        axes, z = tuple(range(x.ndim - 1)), wide(x)
        mean = np.mean(z, axes)
        away = z - mean
        var = np.mean(away * away, axes)
        y = scaled(away / np.sqrt(var + self.eps), self.weight, self.bias, x)
        count = x.size // x.shape[-1]
        return y, self.moved(mean, var * (count / max(count - 1, 1)))

    def moved(self, mean: Any, var: Any) -> BatchNorm:
        """The module whose mean and variance are nearer to these."""
        pairs = ((self.mean, mean), (self.var, var))
        mean, var = (
            stop_gradient(old + self.momentum * (new - old)).astype(old.dtype) for old, new in pairs
        )
        return self.replace(mean=mean, var=var)  # type: ignore[no-any-return]
