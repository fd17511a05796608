"""Random networks: a seed gives the same training step in the float
type asked for, as users write it.

Layers, norms, attention, gathers, residuals, a loss, its gradient, a step of an
optimiser. What jumps is left to `programs.py`: activations are smooth, so that a run in
float64 tells how large an error is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import ml_dtypes
import numpy as np

import ge2
from ge2.base.config import config
from ge2.ir import Graph

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16, np.float64)
Layer = Callable[[Any, list[Any]], Any]  # of activations and of all parameters


@dataclass(frozen=True)
class Step:
    """A training step as it was traced, the inputs of its graph, and the type of its floats."""

    graph: Graph
    arrays: list[Any]
    dtype: Any


def build(seed: int, dtype: Any = None) -> Step:
    """The step of a seed, in its own type or in another; the numbers are those of its own."""
    network = Network(seed, dtype)
    step, arrays = network.step()
    with config.using(executor="blocked"):  # which waits for no compiler
        entry = ge2.jit(step).trace(*arrays).entry
    return Step(entry.graph, [*entry.captured, *leaves(arrays)], network.dtype)


def leaves(arrays: Any) -> list[Any]:
    return (
        [x for each in arrays for x in leaves(each)]
        if isinstance(arrays, list | tuple)
        else [arrays]
    )


@final
class Network:
    """`own`: the type in which the parameters were sampled; `dtype`: the type
    in which they are given.
    """

    def __init__(self, seed: int, dtype: Any = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.own = DTYPES[seed % len(DTYPES)]
        self.dtype = np.dtype(self.own if dtype is None else dtype)
        self.batch, self.length = int(self.rng.integers(1, 4)), int(self.rng.integers(2, 20))
        self.heads = int(self.rng.integers(1, 4))
        self.width = self.heads * int(self.rng.integers(3, 17))
        self.parameters: list[Any] = []

    # -- numbers

    def floats(self, *shape: int, scale: float = 1.0, around: float = 0.0) -> Any:
        x = around + scale * self.rng.standard_normal(shape)
        return np.asarray(x.astype(self.own).astype(self.dtype))

    def parameter(self, *shape: int, scale: float = 0.0, around: float = 0.0) -> int:
        """The number of a new parameter."""
        self.parameters.append(self.floats(*shape, scale=scale or shape[0] ** -0.5, around=around))
        return len(self.parameters) - 1

    def one_of(self, *choices: Any) -> Any:
        return choices[self.rng.integers(len(choices))]

    # -- layers

    def layers(self) -> list[Layer]:
        kinds = (self.dense, self.attention, self.attention, self.norm, self.gate, self.mixer)
        found: list[Layer] = []
        for _ in range(self.rng.integers(1, 4)):
            layer, residual = self.one_of(*kinds)(), self.rng.random() < 0.6
            before = self.norm() if self.rng.random() < 0.6 else None
            found.append(joined(layer, before, residual))
        return found

    def dense(self) -> Layer:
        hidden = int(self.rng.integers(4, 40))
        a, b = self.parameter(self.width, hidden), self.parameter(hidden, scale=0.1)
        c = self.parameter(hidden, self.width)
        act = self.one_of(np.tanh, gelu, silu, softplus)
        return lambda x, p: act(x @ p[a] + p[b]) @ p[c]

    def norm(self) -> Layer:
        g, b = (
            self.parameter(self.width, scale=0.1, around=1.0),
            self.parameter(self.width, scale=0.1),
        )
        kind = self.one_of("layer", "rms", "sum")
        if kind == "layer":
            return lambda x, p: p[g] * centred(x) / np.sqrt(x.var(-1, keepdims=True) + 1e-2) + p[b]
        if kind == "rms":
            return lambda x, p: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-2) * p[g]
        return lambda x, p: x / (1 + np.abs(x).sum(-1, keepdims=True)) * p[g] + p[b]

    def attention(self) -> Layer:
        q, k, v, o = (self.parameter(self.width, self.width) for _ in range(4))
        mask, cut = self.one_of("none", "where", "add"), self.one_of(True, False)
        heads, scale = self.heads, float(np.float16(math.sqrt(self.heads / self.width)))

        def layer(x: Any, p: list[Any]) -> Any:
            queries, keys, values = (split(x @ p[each], heads) for each in (q, k, v))
            scores = queries @ np.swapaxes(keys, -1, -2) * scale
            y = softmax(masked(scores, mask), cut) @ values
            return np.swapaxes(y, -2, -3).reshape(x.shape) @ p[o]

        return layer

    def gate(self) -> Layer:
        w = self.parameter(self.width, self.width)
        return lambda x, p: (
            x * softmax(x @ p[w], True) * x.shape[-1] / (1 + np.square(x).sum(-1, keepdims=True))
        )

    def mixer(self) -> Layer:
        w = self.parameter(self.length, self.length)
        return lambda x, p: np.tanh(np.swapaxes(np.swapaxes(x, -1, -2) @ p[w], -1, -2))

    # -- what goes in, and what comes out

    def inputs(self) -> tuple[Layer, Any]:
        """Numbers, or tokens that are looked up, with positions."""
        shape = (self.batch, self.length)
        if self.rng.random() < 0.4:
            return (lambda x, p: x), self.floats(*shape, self.width)
        words = int(self.rng.integers(5, 40))
        e, at = (
            self.parameter(words, self.width, scale=0.5),
            self.parameter(self.length, self.width, scale=0.1),
        )
        tokens = self.rng.integers(0, words, shape)
        return (lambda x, p: p[e][x] + p[at]), tokens

    def loss(self) -> tuple[Callable[..., Any], Any]:
        """Mean squares, or a cross-entropy in one of the ways in which people write it."""
        classes = int(self.rng.integers(3, 50))
        w = self.parameter(self.width, classes)
        if self.rng.random() < 0.3:
            target = self.floats(self.batch, self.length, classes)
            return (lambda x, y, p: np.square(x @ p[w] - y).mean()), target
        target = self.rng.integers(0, classes, (self.batch, self.length))
        kind = int(self.rng.integers(3))
        return (lambda x, y, p: entropy(x @ p[w], y, kind)), target

    def step(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        begin, x = self.inputs()
        middle = self.layers()
        end, y = self.loss()
        update, state = self.optimiser()

        def loss(p: list[Any], x: Any, y: Any) -> Any:
            h = begin(x, p)
            for layer in middle:
                h = layer(h, p)
            return end(h, y, p)

        def step(p: list[Any], state: list[Any], x: Any, y: Any) -> Any:
            value, gradient = ge2.value_and_grad(loss)(p, x, y)
            return (
                value,
                gradient,
                [update(*each) for each in zip(p, gradient, *state, strict=True)],
            )

        return step, (self.parameters, state, x, y)

    def optimiser(self) -> tuple[Callable[..., Any], list[Any]]:
        kind = self.one_of("sgd", "momentum", "adam")
        count = {"sgd": 0, "momentum": 1, "adam": 2}[kind]
        state = [[self.floats(*p.shape, scale=0.1) for p in self.parameters] for _ in range(count)]
        state[1:] = [
            [np.square(m) + np.asarray(0.25, self.dtype) for m in each] for each in state[1:]
        ]
        return {"sgd": sgd, "momentum": momentum, "adam": adam}[kind], state


def joined(layer: Layer, before: Layer | None, residual: bool) -> Layer:
    def found(x: Any, p: list[Any]) -> Any:
        y = layer(x if before is None else before(x, p), p)
        return x + y if residual else y

    return found


def split(x: Any, heads: int) -> Any:
    return np.swapaxes(x.reshape(*x.shape[:-1], heads, -1), -2, -3)


def masked(scores: Any, kind: str) -> Any:
    if kind == "none":
        return scores
    n = scores.shape[-1]
    seen = np.tril(np.ones((n, n), bool))
    if kind == "where":
        return np.where(seen, scores, -np.inf)
    return scores + np.where(seen, 0.0, -np.inf).astype(scores.dtype)


def softmax(x: Any, cut: bool) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True) if cut else x)
    return e / e.sum(-1, keepdims=True)


def entropy(z: Any, y: Any, kind: int) -> Any:
    z = z - z.max(-1, keepdims=True)
    logs = z - np.log(np.exp(z).sum(-1, keepdims=True))
    if kind == 0:
        return -np.take_along_axis(logs, y[..., None], -1).mean()
    if kind == 1:
        b, s = y.shape
        return -logs.reshape(b * s, -1)[np.arange(b * s), y.reshape(-1)].mean()
    return -(np.where(np.arange(z.shape[-1]) == y[..., None], logs, 0)).sum(-1).mean()


def centred(x: Any) -> Any:
    return x - x.mean(-1, keepdims=True)


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(0.8 * (x + 0.045 * x**3)))


def silu(x: Any) -> Any:
    return x / (1 + np.exp(-x))


def softplus(x: Any) -> Any:
    return np.log1p(np.exp(x))


def sgd(p: Any, g: Any) -> Any:
    return p - 0.05 * g


def momentum(p: Any, g: Any, m: Any) -> Any:
    m = 0.9 * m + g
    return p - 0.05 * m, m


def adam(p: Any, g: Any, m: Any, v: Any) -> Any:
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return p - 0.01 * (m / 0.19) / (np.sqrt(v / 0.02) + 1e-3), m, v
