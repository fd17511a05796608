"""Modules, their parameters as a table; attention, and recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, Self, dataclass_transform

import numpy as np

from ge2 import random
from ge2.base.errors import INSIDE, FrozenError, InputError, ShapeError
from ge2.base.pytree import flatten_with_path, keystr, leaves
from ge2.base.source import here
from ge2.nn.functions import (
    array,
    check_last,
    check_rate,
    described,
    floats,
    sigmoid,
    softmax,
    wide,
)
from ge2.transforms.arguments import eval_shape
from ge2.transforms.loops import scan

# -------- A module: a frozen dataclass, and so a pytree of the arrays that its fields hold.


def static(**options: Any) -> Any:
    """A field that is no array: a number, a word or a function, and part of a signature.

    Options are those of `dataclasses.field`.

    >>> class Scale(Module):
    ...     by: Any
    ...     power: int = static(default=1)
    ...     def __call__(self, x):
    ...         return self.by * x**self.power
    >>> import numpy as np, ge2
    >>> ge2.tree.leaves(Scale(np.float64(3.0), power=2))
    [np.float64(3.0)]
    >>> ge2.grad(lambda model: model(2.0))(Scale(3.0, power=2))
    Scale(by=4.0, power=2)
    """
    return field(metadata={"static": True}, **options)


def state(**options: Any) -> Any:
    """A field of arrays that calls change and no optimiser does: its gradient is zero, and weight
    decay without a mask leaves it out. Options are those of `dataclasses.field`.

    >>> class Counted(Module):
    ...     weight: Any
    ...     mean: Any = state()
    >>> import numpy as np
    >>> from ge2 import optim
    >>> model = Counted(np.ones(2), np.ones(2))
    >>> optimizer = optim.sgd(0.1, decay=0.5)
    >>> model, _ = optimizer.update(Counted(np.zeros(2), np.zeros(2)), optimizer.init(model), model)
    >>> model.weight, model.mean
    (array([0.95, 0.95]), array([1., 1.]))
    """
    return field(metadata={"state": True}, **options)


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(static, state, field))
class Module:
    """A base class whose subclasses are frozen dataclasses with a `repr` of one line.

    There is nothing else in it: parameters are the arrays that fields hold, alone or in lists,
    tuples, dicts and modules; fields made by `static` are no parameters. A dataclass of yours needs
    no base to be a module, and a dict of arrays with a function does all that a module does.

    >>> class Affine(Module):
    ...     weight: Any
    ...     bias: Any = None
    >>> import numpy as np
    >>> Affine(np.ones((2, 3), np.float32))
    Affine(weight=f32[2,3])
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(frozen=True, eq=False, repr=False)(cls)
        cls.__setattr__ = refused  # type: ignore[method-assign]

    def __repr__(self) -> str:
        shown = ((f.name, getattr(self, f.name)) for f in fields(self))  # type: ignore[arg-type]
        inside = ", ".join(f"{name}={text(x)}" for name, x in shown if x is not None)
        return f"{type(self).__name__}({inside})"

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            fix = INSIDE["a module"].get(name)
            text = f"a {type(self).__name__} has no attribute {name!r}"
            raise AttributeError(f"{text}\n  try  {fix}" if fix else text, name=name, obj=self)

    def replace(self, **changes: Any) -> Any:
        """The same module with other values of some fields.

        >>> class Affine(Module):
        ...     weight: Any
        >>> Affine(1.0).replace(weight=2.0)
        Affine(weight=2.0)
        """
        return replace(self, **changes)  # type: ignore[type-var]


def refused(module: Any, name: str, value: Any) -> None:
    """Assignment to an attribute of a module: FrozenError, which says what to write instead."""
    kind = type(module).__name__
    if name in (f.name for f in fields(module)):
        what = f"modules are values: the field {name!r} of a {kind} cannot be assigned to"
        raise FrozenError(what, where=here(), fix=f"model = model.replace({name}=...)")
    what = f"{name!r} is no field of the module {kind}, and cannot be assigned"
    fix = f"the field `{name}: Any` in the class, and a classmethod `init` that makes {kind}({name}=...)"
    raise FrozenError(what, where=here(), fix=fix)


def text(x: Any) -> str:
    """A field's value in a few words: an array by its type, a function by its name."""
    if hasattr(x, "dtype"):
        return described(x)
    if isinstance(x, Module):
        return type(x).__name__
    if isinstance(x, list | tuple):
        return f"[{', '.join(counted([text(y) for y in x]))}]"
    if isinstance(x, dict):
        return f"{{{', '.join(f'{k}: {text(y)}' for k, y in x.items())}}}"
    return str(getattr(x, "__name__", repr(x)))


def counted(words: list[str]) -> Iterator[str]:
    """The words, those that follow their like as a number of them."""
    while words:
        n = next((i for i, word in enumerate(words) if word != words[0]), len(words))
        yield words[0] if n == 1 else f"{n} x {words[0]}"
        words = words[n:]


@lru_cache(256)
def options(kind: Any) -> frozenset[str]:
    """The names of what a call of a module takes."""
    return frozenset(signature(kind.__call__).parameters)


def applied(module: Any, x: Any, key: Any, training: bool) -> Any:
    """A module or a function of x; `key` and `training` are passed to one that takes them."""
    if not isinstance(module, Module):
        return module(x)
    call: Any = module
    given, takes = {"key": key, "training": training}, options(call.__class__)
    return call(x, **{name: value for name, value in given.items() if name in takes})


# -------- A model's parameters as a table.


Row = tuple[str, str, str, str, str]
HEAD: Row = ("part", "of", "arrays", "parameters", "bytes")


def summary(model: Any, *args: Any, **kwargs: Any) -> str:
    """A table of the modules in a model, what arrays they hold, and how many parameters and bytes.

    With arguments, arrays or `ge2.ShapeDtypeStruct`s, also the type of `model(*args)`, which is not
    computed; without `training` unless they say otherwise, so that dropout needs no key. A model is
    any container of arrays: of a dict each array is a row.

    >>> from ge2 import nn, random
    >>> import numpy as np
    >>> model = nn.MLP.init(random.key(0), (4, 8, 2))
    >>> print(summary(model, np.ones((10, 4), np.float32)))
    part        of      arrays                      parameters  bytes
    .layers[0]  Linear  weight=f32[4,8], bias=f32[8]        40    160
    .layers[1]  Linear  weight=f32[8,2], bias=f32[2]        18     72
    total       MLP                                         58    232
    result              f32[10,2]
    """
    rows = [row(path, name, held) for path, name, held in parts("", model)]
    found = leaves(model)
    total = ("total", type(model).__name__, "", *sizes(found))
    rows += [total]
    if args or kwargs:
        flags = {
            name: x
            for name, x in kwargs.items()
            if issubclass(type(x), bool | int | str | type(None))
        }
        arrays = {name: x for name, x in kwargs.items() if name not in flags}
        result = leaves(eval_shape(called(model, flags), *args, **arrays))
        rows.append(("result", "", ", ".join(map(described, result)), "", ""))
    return table([HEAD, *rows])


def called(model: Any, flags: dict[str, Any]) -> Callable[..., Any]:
    """The model as a function of arrays alone: flags are what they are, and not traced."""
    kind: Any = type(model)
    if isinstance(model, Module) and "training" in options(kind):
        flags = {"training": False, **flags}
    return lambda *args, **arrays: model(*args, **arrays, **flags)


def parts(path: str, x: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The path, class and arrays of each module, and of each array that is in none."""
    if not isinstance(x, Module):
        found, _ = flatten_with_path(x, is_leaf=lambda y: isinstance(y, Module))
        for keys, y in found:
            at = path + keystr(keys)
            yield from parts(at, y) if isinstance(y, Module) else [(at, "", {"": y})]
        return
    held = {f.name: getattr(x, f.name) for f in fields(x) if not f.metadata.get("static")}  # type: ignore[arg-type]
    arrays = {name: y for name, y in held.items() if hasattr(y, "dtype")}
    if arrays:
        yield path or "model", type(x).__name__, arrays
    for name, y in held.items():
        if name not in arrays and y is not None:
            yield from parts(f"{path}.{name}", y)


def row(path: str, name: str, held: dict[str, Any]) -> Row:
    shown = (f"{k}={text(y)}" if k else described(y) for k, y in held.items())
    return (path, name, ", ".join(shown), *sizes(list(held.values())))


def sizes(found: list[Any]) -> tuple[str, str]:
    """The numbers of elements and of bytes of arrays."""
    counts = [(math.prod(array(x).shape), array(x).dtype.itemsize) for x in found]
    return f"{sum(n for n, _ in counts):,}", f"{sum(n * size for n, size in counts):,}"


def table(rows: list[Row]) -> str:
    """Columns two spaces apart, numbers to the right."""
    widths = [max(len(r[i]) for r in rows) for i in range(5)]
    lines = [
        "  ".join(
            x.rjust(w) if i > 2 else x.ljust(w)
            for i, (x, w) in enumerate(zip(r, widths, strict=True))
        ).rstrip()
        for r in rows
    ]
    return "\n".join(lines)


# -------- Attention, as plain NumPy: products, a mask and a softmax.
# Nothing here asks for a kernel: a target that has one for attention finds this in the graph, as it
# finds the same lines in a program that does not import this module.


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
    q, k, v = floats(q), floats(k), floats(v)
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
    one = issubclass(type(window), int | np.integer)
    pair: Any = (window, window) if one else window
    if not isinstance(pair, tuple | list) or len(pair) != 2 or (one and pair[0] < 0):
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


# -------- Recurrent layers, by scan over the first axis.
# What does not depend on the state is one product for all of time, before the scan. Gates and
# formulas are torch's, so that weights carry over (transposed).


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
