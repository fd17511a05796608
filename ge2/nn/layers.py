"""Layers: dataclasses of arrays, each with an `init` that makes one from a key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ge2 import random
from ge2.base.dtypes import INTEGERS
from ge2.base.errors import ArgumentError, InputError
from ge2.base.source import here
from ge2.nn import initializers
from ge2.nn.activations import relu, silu
from ge2.nn.module import Module, applied, static
from ge2.nn.values import array, check_last, check_rate, described, size_of
from ge2.numpy import take

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
    x = array(x)
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
