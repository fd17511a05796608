"""Recurrent layers, by scan over the first axis.

What does not depend on the state is one product for all of time, before the scan. Gates and
formulas are torch's, so that weights carry over (transposed).
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Self

import numpy as np

from ge2 import random
from ge2.base.errors import InputError
from ge2.base.source import here
from ge2.nn.activations import sigmoid
from ge2.nn.module import Module
from ge2.nn.values import array, check_last, described
from ge2.transforms.control.loops import scan


class Recurrent(Module):
    """Parameters of a recurrent layer of so many gates: weight_in[ins, gates * hidden],
    weight_state[hidden, gates * hidden], and a bias for each product.

    Called with x[time, ..., ins] and, if it goes on from somewhere, a state, it returns the outputs
    [time, ..., hidden] and the last state.
    """

    gates: ClassVar[int]
    weight_in: Any
    weight_state: Any
    bias_in: Any
    bias_state: Any

    @classmethod
    def init(cls, key: Any, ins: int, hidden: int, *, dtype: Any = np.float32) -> Self:
        """All parameters uniform within 1 / sqrt(hidden), as torch's."""
        end = 1 / math.sqrt(hidden)
        keys, wide = random.split(key, 4), cls.gates * hidden
        shapes: tuple[tuple[int, ...], ...] = ((ins, wide), (hidden, wide), (wide,), (wide,))
        drawn = (random.uniform(k, s, dtype, -end, end) for k, s in zip(keys, shapes, strict=True))
        return cls(*drawn)

    @property
    def hidden(self) -> int:
        """The number of elements of a state."""
        return int(self.weight_state.shape[0])

    def __call__(self, x: Any, state: Any = None) -> tuple[Any, Any]:
        x = array(x)
        check_last(self, x, self.weight_in)
        inputs = x @ self.weight_in + self.bias_in
        state = self.start(inputs) if state is None else self.known(state)
        state, ys = scan(lambda s, a: self.step(s, a), state, inputs)
        return ys, state

    def zeros(self, inputs: Any) -> Any:
        return np.zeros_like(inputs, shape=(*inputs.shape[1:-1], self.hidden))

    def start(self, inputs: Any) -> Any:
        """The state before anything was seen, of the dtype that x and the parameters have together."""
        return self.zeros(inputs)

    def known(self, state: Any) -> Any:
        """A state to go on from, once it is checked."""
        return state

    def step(self, state: Any, inputs: Any) -> tuple[Any, Any]:
        """The next state, and what is returned at this time."""
        raise NotImplementedError  # abstract: RNN, GRU and LSTM define it, and nobody makes a Recurrent

    def projected(self, h: Any) -> Any:
        return h @ self.weight_state + self.bias_state


class RNN(Recurrent):
    """h = tanh(x weight_in + bias_in + h weight_state + bias_state). Elman, 1990.

    >>> ys, h = RNN.init(random.key(0), 3, 5)(np.ones((7, 2, 3), np.float32))
    >>> ys.shape, h.shape
    ((7, 2, 5), (2, 5))
    """

    gates = 1

    def step(self, state: Any, inputs: Any) -> tuple[Any, Any]:
        h = np.tanh(inputs + self.projected(state))
        return h, h


class GRU(Recurrent):
    """h = (1 - z) tanh(n + r hn) + z h, gates in the order r, z, n. Cho and others, 2014.

    >>> ys, h = GRU.init(random.key(0), 3, 5)(np.ones((7, 2, 3), np.float32))
    >>> ys.shape, h.shape
    ((7, 2, 5), (2, 5))
    """

    gates = 3

    def step(self, state: Any, inputs: Any) -> tuple[Any, Any]:
        (r, z, n), (hr, hz, hn) = thirds(inputs), thirds(self.projected(state))
        z = sigmoid(z + hz)
        h = (1 - z) * np.tanh(n + sigmoid(r + hr) * hn) + z * state
        return h, h


def thirds(x: Any) -> Any:
    return np.split(x, 3, -1)


class LSTM(Recurrent):
    """c = f c + i g and h = o tanh(c), gates in the order i, f, g, o. Hochreiter and Schmidhuber,
    1997. Its state is the pair (h, c).

    >>> ys, (h, c) = LSTM.init(random.key(0), 3, 5)(np.ones((7, 2, 3), np.float32))
    >>> ys.shape, h.shape, c.shape
    ((7, 2, 5), (2, 5), (2, 5))
    """

    gates = 4

    def start(self, inputs: Any) -> Any:
        return self.zeros(inputs), self.zeros(inputs)

    def known(self, state: Any) -> Any:
        if not isinstance(state, tuple | list) or len(state) != 2:
            got = f"{len(state)} values" if isinstance(state, tuple | list) else described(state)
            what = f"LSTM: a state is the pair (h, c); got {got}"
            raise InputError(what, where=here(), fix="(h, np.zeros_like(h))")
        h, c = state
        return h, c

    def step(self, state: Any, inputs: Any) -> tuple[Any, Any]:
        h, c = state
        i, f, g, o = np.split(inputs + self.projected(h), 4, -1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        return (h, c), h
