"""Attention as people write it in NumPy; on a GPU and in the emulator alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import ml_dtypes
import numpy as np

import ge2
import ge2.numpy as gnp
from ge2 import random
from ge2.base.config import config
from ge2.numpy import logsumexp
from ge2.random import bernoulli

BF16, F16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype("f2"), np.dtype("f4")
FAMILY: Final = "wgmma attention"
BACKWARD: Final = "wgmma attention backward"
MMA: Final = "mma attention"
BY_KEYS: Final = "attention by keys"
# rounding of weights, of the result, and of values between in the program of NumPy's own order
BOUNDS: Final = {BF16: 2.0**-7, F16: 2.0**-9, F32: 2.0**-19}
TF32: Final = 2.0**-8  # that of float32 whose factors lose 13 bits
Attention = Callable[..., Any]
Shape = tuple[int, ...]


class Kind(NamedTuple):
    """A family of kernels, the type of its operands, and whether float32 may be rounded to tf32."""

    family: str
    dtype: Any
    rounded: bool = False

    @property
    def families(self) -> tuple[str, str]:
        """Forward, and backward."""
        return self.family, f"{self.family} backward"

    @property
    def bound(self) -> float:
        return TF32 if self.rounded else BOUNDS[self.dtype]

    @property
    def slope_bound(self) -> float:
        """Of cotangents, of which some parts are rounded on the way."""
        return 2.0**-6 if self.dtype != F32 else 2.0**-7 if self.rounded else 2.0**-18

    def of(self, function: Attention) -> Attention:
        """The function as this family takes it."""
        return ge2.autocast(function, "tf32") if self.rounded else function


WGMMA: Final = {"wgmma bf16": Kind(FAMILY, BF16), "wgmma f16": Kind(FAMILY, F16)}
WARPS: Final = {
    "mma bf16": Kind(MMA, BF16), "mma f16": Kind(MMA, F16), "mma f32": Kind(MMA, F32),
    "mma tf32": Kind(MMA, F32, True),
}  # fmt: skip
FORWARD: Final = {**WGMMA, **WARPS}


def scale(q: Any) -> float:
    return float(q.shape[-1]) ** -0.5


def scores(q: Any, k: Any) -> Any:
    return q @ np.swapaxes(k, -1, -2) * scale(q)


def softmax(s: Any) -> Any:
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def seen(s: Any, low: int = 0, high: int | None = None) -> Any:
    """Where a query sees a key: low <= i - j <= high."""
    rows, columns = s.shape[-2:]
    mask = np.tri(rows, columns, -low, dtype=bool)
    return mask if high is None else mask & ~np.tri(rows, columns, -high - 1, dtype=bool)


# ------------------------------------------------------------------------------------- spellings
# Ways to write the same: softmax(q k^T / sqrt(d)) v, of [batch, head, time, width].


def plain(q: Any, k: Any, v: Any) -> Any:
    return softmax(scores(q, k)) @ v


def without_maximum(q: Any, k: Any, v: Any) -> Any:
    e = np.exp(scores(q, k))
    return e / e.sum(-1, keepdims=True) @ v


def maximum_held(q: Any, k: Any, v: Any) -> Any:
    s = scores(q, k)
    e = np.exp(s - ge2.stop_gradient(s.max(-1, keepdims=True)))
    return e / e.sum(-1, keepdims=True) @ v


def scaled_before(q: Any, k: Any, v: Any) -> Any:
    return softmax((q * scale(q)) @ np.swapaxes(k, -1, -2)) @ v


def scaled_by_division(q: Any, k: Any, v: Any) -> Any:
    return softmax(q @ np.swapaxes(k, -1, -2) / float(q.shape[-1]) ** 0.5) @ v


def keys_scaled(q: Any, k: Any, v: Any) -> Any:
    return softmax(q @ np.swapaxes(k / float(q.shape[-1]) ** 0.5, -1, -2)) @ v


def by_logsumexp(q: Any, k: Any, v: Any) -> Any:
    s = scores(q, k)
    return np.exp(s - logsumexp(s, axis=-1, keepdims=True)) @ v


def by_log_softmax(q: Any, k: Any, v: Any) -> Any:
    s = scores(q, k)
    s = s - s.max(-1, keepdims=True)
    return np.exp(s - np.log(np.exp(s).sum(-1, keepdims=True))) @ v


def divided_after(q: Any, k: Any, v: Any) -> Any:
    s = scores(q, k)
    e = np.exp(s - s.max(-1, keepdims=True))
    return (e @ v) / e.sum(-1, keepdims=True)


def by_inverse(q: Any, k: Any, v: Any) -> Any:
    e = np.exp(scores(q, k))
    return (e * (1.0 / e.sum(-1, keepdims=True))) @ v


def by_einsum(q: Any, k: Any, v: Any) -> Any:
    w = softmax(np.einsum("bhqd,bhkd->bhqk", q, k) * scale(q))
    return np.einsum("bhqk,bhkd->bhqd", w, v)


def in_float32(q: Any, k: Any, v: Any) -> Any:
    wide = np.float32 if q.dtype != np.float64 else np.float64
    s = scores(q.astype(wide), k.astype(wide))
    return softmax(s).astype(q.dtype) @ v


def keys_first(q: Any, k: Any, v: Any) -> Any:
    s = k @ np.swapaxes(q, -1, -2) * scale(q)
    e = np.exp(s - s.max(-2, keepdims=True))
    return np.swapaxes(e / e.sum(-2, keepdims=True), -1, -2) @ v


SPELLINGS: Final = (
    plain, without_maximum, maximum_held, scaled_before, scaled_by_division, keys_scaled, by_logsumexp,
    by_log_softmax, divided_after, by_inverse, by_einsum, in_float32, keys_first,
)  # fmt: skip

# ----------------------------------------------------------------------------------------- scores
# Masks, biases and functions of scores; some read more arrays.


def masked(low: int, high: int | None = None, number: float = -np.inf) -> Attention:
    def attention(q: Any, k: Any, v: Any) -> Any:
        s = scores(q, k)
        return softmax(np.where(seen(s, low, high), s, number)) @ v

    return attention


def added(q: Any, k: Any, v: Any) -> Any:
    s = scores(q, k)
    mask = (1.0 - np.tri(*s.shape[-2:])) * -1e4
    return softmax(s + mask.astype(q.dtype)) @ v


def weights_masked(q: Any, k: Any, v: Any) -> Any:
    s = scores(q, k)
    e = np.where(seen(s), np.exp(s - s.max(-1, keepdims=True)), 0)
    return e / e.sum(-1, keepdims=True) @ v


def capped(q: Any, k: Any, v: Any) -> Any:
    s = 4.0 * np.tanh(scores(q, k) / 4.0)
    return softmax(np.where(seen(s), s, -np.inf)) @ v


def capped_by_indices(q: Any, k: Any, v: Any) -> Any:
    s = 4.0 * np.tanh(scores(q, k) / 4.0)
    place = np.arange(s.shape[-1]) if q.dtype == np.float64 else gnp.arange(s.shape[-1])
    return softmax(np.where(place[: s.shape[-2], None] >= place, s, -1e9)) @ v


def warm(q: Any, k: Any, v: Any, heat: Any, bias: Any) -> Any:
    """A number for each head that scores are multiplied by, and one for each key that is added."""
    s = scores(q, k) * heat[:, None, None] + bias[:, None, :]
    return softmax(np.where(seen(s), s, -np.inf)) @ v


def alibi(q: Any, k: Any, v: Any, slopes: Any) -> Any:
    s = scores(q, k)
    rows, columns = s.shape[-2:]
    arange = np.arange if q.dtype == np.float64 else gnp.arange  # counted in the graph
    away = (arange(rows)[:, None] - arange(columns)).astype(q.dtype)
    s = s - slopes[:, None, None] * away
    return softmax(np.where(seen(s), s, -np.inf)) @ v


def biased(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return softmax(scores(q, k) + bias) @ v


def causal_biased(q: Any, k: Any, v: Any, bias: Any) -> Any:
    s = 4.0 * np.tanh((scores(q, k) + bias) / 4.0)
    return softmax(np.where(seen(s), s, -np.inf)) @ v


def padded(q: Any, k: Any, v: Any, there: Any) -> Any:
    return softmax(np.where(there[:, None, None, :], scores(q, k), -np.inf)) @ v


def documents(q: Any, k: Any, v: Any, number: Any) -> Any:
    same = number[:, None, :, None] == number[:, None, None, :]
    s = scores(q, k)
    return softmax(np.where(same & seen(s), s, -np.inf)) @ v


def dropped(q: Any, k: Any, v: Any, key: Any) -> Any:
    """Some weights are set to 0, by random bits that are made in place."""
    s = scores(q, k)
    w = softmax(np.where(seen(s), s, -np.inf))
    kept = bernoulli(key, np.float32(0.75), s.shape)
    return np.where(kept, w / 0.75, 0).astype(q.dtype) @ v


def dropped_and_biased(q: Any, k: Any, v: Any, key: Any, bias: Any) -> Any:
    w = softmax(4.0 * np.tanh((scores(q, k) + bias) / 4.0))
    return np.where(bernoulli(key, 0.9, w.shape), w, 0) @ v


def sunk(q: Any, k: Any, v: Any, sink: Any) -> Any:
    """A logit of each head takes weight and gives nothing: all of it, where a query sees no key."""
    s = scores(q, k)
    s, sink = np.where(seen(s, 2), s, -np.inf), sink[:, None, None]
    top = np.maximum(s.max(-1, keepdims=True), sink)
    e = np.exp(s - top)
    return e / (e.sum(-1, keepdims=True) + np.exp(sink - top)) @ v


def quiet(q: Any, k: Any, v: Any) -> Any:
    """One is added to the sum, with the maximum taken out."""
    s = scores(q, k)
    top = np.maximum(s.max(-1, keepdims=True), 0)
    e = np.exp(s - top)
    return (e @ v) / (np.exp(-top) + e.sum(-1, keepdims=True))


SCORES: Final[dict[str, tuple[Attention, Callable[[Shape, Shape], tuple[Shape, ...]]]]] = {
    "causal": (masked(0), lambda q, k: ()),
    "causal, a low number": (masked(0, None, -1e9), lambda q, k: ()),
    "causal, the last key of all": (masked(-20), lambda q, k: ()),
    "window": (masked(0, 37), lambda q, k: ()),
    "window on both sides": (masked(-9, 150), lambda q, k: ()),
    "a low number is added": (added, lambda q, k: ()),
    "weights masked": (weights_masked, lambda q, k: ()),
    "soft cap": (capped, lambda q, k: ()),
    "soft cap, a low number": (capped_by_indices, lambda q, k: ()),
    "warm": (warm, lambda q, k: (q[1:2], (q[1], k[2]))),
    "alibi": (alibi, lambda q, k: (q[1:2],)),
    "bias": (biased, lambda q, k: ((*q[:3], k[2]),)),
    "bias of each head": (biased, lambda q, k: ((q[1], q[2], k[2]),)),
    "bias of all heads": (causal_biased, lambda q, k: ((q[2], k[2]),)),
    "dropout": (dropped, lambda q, k: ((2,),)),
    "dropout and bias": (dropped_and_biased, lambda q, k: ((2,), (q[1], q[2], k[2]))),
    "sink": (sunk, lambda q, k: (q[1:2],)),
    "quiet": (quiet, lambda q, k: ()),
    "padding": (padded, lambda q, k: ((k[0], k[2]),)),
    "documents": (documents, lambda q, k: ((k[0], k[2]),)),
}

# -------- Sinks in other words: a logit of each head, of queries and keys in four axes.


def joined(after: bool, s: Any, sink: Any) -> tuple[Any, Any]:
    """Scores and logits in one array, and where the scores are."""
    more = np.broadcast_to(sink, (*s.shape[:-1], 1))
    if after:
        return np.concatenate([s, more], -1), np.s_[..., :-1]
    return np.concatenate([more, s], -1), np.s_[..., 1:]


def weights_joined(s: Any, sink: Any) -> Any:
    every, where = joined(True, s, sink)
    return softmax(every)[where]


def weights_joined_first(s: Any, sink: Any) -> Any:
    every, where = joined(False, s, sink)
    every = every.astype(np.float32) if s.dtype != np.float64 else every
    return np.exp(every - logsumexp(every, axis=-1, keepdims=True))[where].astype(s.dtype)


def weights_padded(s: Any, sink: Any) -> Any:
    """A logit of 0."""
    return softmax(np.pad(s, [(0, 0)] * 3 + [(0, 1)]))[..., :-1]


def weights_less_logaddexp(s: Any, sink: Any) -> Any:
    return np.exp(s - np.logaddexp(logsumexp(s, axis=-1, keepdims=True), sink))


def weights_raised(s: Any, sink: Any) -> Any:
    e = np.exp(s)
    return e / (np.exp(sink) + e.sum(-1, keepdims=True))


def weights_of_one_more(s: Any, sink: Any) -> Any:
    e = np.exp(s)
    return e / (1 + e.sum(-1, keepdims=True))


SINKS: Final = (
    weights_joined, weights_joined_first, weights_padded, weights_less_logaddexp, weights_raised,
    weights_of_one_more,
)  # fmt: skip


def with_weights(weights: Callable[[Any, Any], Any]) -> Attention:
    def attention(q: Any, k: Any, v: Any, sink: Any) -> Any:
        return weights(scores(q, k), sink[:, None, None]) @ v

    return attention


# -------- Weights that are sums and parts of several, each times a number of its heads.


def differing(q: Any, k: Any, v: Any) -> Any:
    """The difference of two softmaxes, one times a number of each head."""
    by = np.linspace(0.2, 0.8, q.shape[1]).astype(q.dtype)[:, None, None]
    return (softmax(scores(q, k)) - by * softmax(scores(k, q))) @ v


def differing_pairs(q: Any, k: Any, v: Any) -> Any:
    """Of pairs of heads beside one another."""
    w = softmax(np.where(seen(scores(q, k)), scores(q, k), -np.inf))
    w = w.reshape(w.shape[0], w.shape[1] // 2, 2, *w.shape[2:])
    return (w[:, :, 0] - w[:, :, 1] * 0.8).astype(q.dtype) @ v[:, : w.shape[1]]


def differing_halves(q: Any, k: Any, v: Any) -> Any:
    w, n = softmax(scores(q, k)), q.shape[1] // 2
    return np.einsum("bhqk,bkhd->bqhd", w[:, :n] - 0.5 * w[:, n:], np.swapaxes(v[:, :n], 1, 2))


def differing_in_turns(q: Any, k: Any, v: Any) -> Any:
    w = softmax(scores(q, k))
    w = np.swapaxes(w[:, ::2] - 0.5 * w[:, 1::2], -1, -2)
    return np.einsum("bhkq,bhkd->bhqd", w, v[:, ::2])


def weighed_heads(q: Any, k: Any, v: Any) -> Any:
    by = np.linspace(0.2, 0.8, q.shape[1])[:, None, None]
    return (softmax(scores(q, k)) * by.astype(q.dtype)) @ v


def of_one_of_two(q: Any, k: Any, v: Any) -> Any:
    """Of queries that have an axis more, of which the weights lose one."""
    q = np.stack([q, 2 * q], 2)
    w = softmax(np.einsum("bhcqd,bhkd->bhcqk", q, k) * scale(q))
    return (w[:, :, 0] - 0.3 * w[:, :, 1]) @ v


PARTS: Final = (
    differing, differing_pairs, differing_halves, differing_in_turns, weighed_heads, of_one_of_two,
)  # fmt: skip

# -------- Weights that are multiplied by a mask, and divided by the sum of what is left.


def times_bools(e: Any) -> Any:
    return e * seen(e)


def times_less_bools(e: Any) -> Any:
    place = np.arange if e.dtype == np.float64 else gnp.arange
    hidden = place(e.shape[-1]) > place(e.shape[-2])[:, None]
    return e * (1.0 - hidden.astype(e.dtype)).astype(e.dtype)


FACTORS: Final = times_bools, times_less_bools


def with_factor(factor: Callable[[Any], Any]) -> Attention:
    def attention(q: Any, k: Any, v: Any) -> Any:
        s = scores(q, k)
        e = factor(np.exp(s - s.max(-1, keepdims=True)))
        return e / e.sum(-1, keepdims=True) @ v

    attention.__name__ = factor.__name__
    return attention


# -------- Causal masks in other words: whatever shows where keys are seen is the band that it is.


def written(s: Any, hidden: Any, number: Any) -> Any:
    s = s.copy()
    s[..., hidden] = number
    return s


def written_at_places(s: Any, hidden: Any) -> Any:
    s = s.copy()
    i, j = np.nonzero(hidden)
    s[:, :, i, j] = -1e9
    return s


def put(s: Any, hidden: Any) -> Any:
    s = s.copy()
    np.copyto(s, -np.inf, where=hidden)
    return s


# scores, and what hides keys, an array of bools in two axes
MASKS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "a number in an array": lambda s, hidden: np.where(hidden, np.array(-1e30, s.dtype), s),
    "an array of one number": lambda s, hidden: np.where(
        hidden, np.full(s.shape, -np.inf, s.dtype), s
    ),
    "an array like scores": lambda s, hidden: np.where(hidden, np.full_like(s, -1e9), s),
    "a high number is taken away": lambda s, hidden: s - (1e9 * hidden).astype(s.dtype),
    "times ones, less a high number": lambda s, hidden: (
        s * (1 - hidden).astype(s.dtype) - (1e4 * hidden).astype(s.dtype)
    ),
    "in four axes": lambda s, hidden: np.where(hidden[None, None], -1e9, s),
    "repeated": lambda s, hidden: np.where(np.broadcast_to(hidden, s.shape), -np.inf, s),
    "ones like scores": lambda s, hidden: np.where(np.tril(np.ones_like(s)) == 0, -np.inf, s),
    "made of ones like scores": lambda s, hidden: s - 1e9 * (1 - np.tril(np.ones_like(s))),
    "written where it holds": lambda s, hidden: written(s, hidden, -np.inf),
    "a number in an array, written": lambda s, hidden: written(s, hidden, np.array(-1e9, s.dtype)),
    "written at places": written_at_places,
    "put": put,
}

# ---------------------------------------------------------------------------------------- layouts
# Heads in other axes, grouped keys, parts of one array.


def time_first(q: Any, k: Any, v: Any) -> Any:
    w = softmax(np.einsum("bqhd,bkhd->bhqk", q, k) * scale(q))
    return np.einsum("bhqk,bkhd->bqhd", w, v)


def repeated(q: Any, k: Any, v: Any) -> Any:
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
    return plain(q, k, v)


def grouped(q: Any, k: Any, v: Any) -> Any:
    b, h, t, d = q.shape
    q = q.reshape(b, k.shape[1], h // k.shape[1], t, d)
    w = softmax(np.einsum("bhgqd,bhkd->bhgqk", q, k) * scale(q))
    return np.einsum("bhgqk,bhkd->bhgqd", w, v).reshape(b, h, t, d)


def one_head_of_keys(q: Any, k: Any, v: Any) -> Any:
    w = softmax(np.einsum("bhqd,bkd->bhqk", q, k) * scale(q))
    return np.einsum("bhqk,bkd->bhqd", w, v)


def split_heads(q: Any, k: Any, v: Any) -> Any:
    """Of [batch, time, heads * 64], as a layer has them."""
    q, k, v = (np.swapaxes(x.reshape(*x.shape[:2], -1, 64), 1, 2) for x in (q, k, v))
    y = plain(q, k, v)
    return np.swapaxes(y, 1, 2).reshape(y.shape[0], y.shape[2], -1)


def decoded(q: Any, k: Any, v: Any) -> Any:
    """Of one query without an axis of its own: [b, h, d] beside [b, h, t, d]."""
    s = np.einsum("bhd,bhtd->bht", q, k) * scale(q)
    return np.einsum("bht,bhtd->bhd", softmax(s), v)


def cached(q: Any, k: Any, v: Any) -> Any:
    """As `decoded`, from a cache that has positions before heads: [b, t, h, d]."""
    s = np.einsum("bhd,bthd->bht", q, k) * scale(q)
    s = np.where(np.arange(s.shape[-1]) <= 40, s, -np.inf)
    return np.einsum("bht,bthd->bhd", softmax(s), v)


def looked_up(q: Any, k: Any, v: Any) -> Any:
    """Of one vector, and a matrix of keys."""
    return softmax(k @ q * scale(q)) @ v


def squeezed(q: Any, k: Any, v: Any) -> Any:
    """Of one query whose axis the scores lose, and the weights have again."""
    s = (q[..., None, :] @ np.swapaxes(k, -1, -2))[..., 0, :] * scale(q)
    return (softmax(s)[..., None, :] @ v)[..., 0, :]


# queries that no axis counts
DECODED: Final[dict[str, tuple[Attention, Shape, Shape]]] = {
    "squeezed": (squeezed, (2, 4, 64), (2, 4, 72, 64)),
    "decoded": (decoded, (2, 4, 64), (2, 4, 72, 64)),
    "cached": (cached, (2, 4, 64), (2, 72, 4, 64)),
    "looked up": (looked_up, (64,), (72, 64)),
}


LAYOUTS: Final[dict[str, tuple[Attention, Shape, Shape]]] = {
    "two axes": (plain, (136, 64), (136, 64)),
    "one axis of batches": (plain, (3, 136, 64), (3, 136, 64)),
    "three axes of batches": (plain, (2, 1, 2, 72, 64), (2, 1, 2, 72, 64)),
    "other lengths": (plain, (1, 2, 40, 64), (1, 2, 300, 64)),
    "one query": (plain, (2, 2, 1, 64), (2, 2, 72, 64)),
    "time first": (time_first, (2, 136, 2, 64), (2, 136, 2, 64)),
    "keys repeated": (repeated, (2, 4, 72, 64), (2, 2, 72, 64)),
    "heads in groups": (grouped, (2, 4, 72, 64), (2, 2, 72, 64)),
    "one head of keys": (one_head_of_keys, (2, 3, 72, 64), (2, 72, 64)),
    "heads split": (split_heads, (2, 72, 128), (2, 72, 128)),
}


# few queries, whose keys warps share: a function, shapes, and the scores whose arrays it reads
FEW: Final[dict[str, tuple[Attention, Shape, Shape, str]]] = {
    "one": (plain, (2, 2, 1, 64), (2, 2, 300, 64), ""),
    "heads in groups": (grouped, (2, 8, 1, 128), (2, 2, 300, 128), ""),
    "keys repeated, several": (repeated, (2, 8, 3, 128), (2, 2, 300, 128), ""),
    "time first": (time_first, (2, 3, 2, 64), (2, 300, 2, 64), ""),
    "causal, at the end": (masked(-195), (1, 2, 5, 64), (1, 2, 200, 64), ""),
    "no key is seen": (masked(3), (1, 2, 5, 64), (1, 2, 300, 64), ""),
    "a low number": (masked(3, None, -3e4), (1, 2, 5, 64), (1, 2, 300, 64), ""),
    "other lengths": (padded, (2, 2, 1, 64), (2, 2, 300, 64), "padding"),
    "sink": (sunk, (2, 4, 3, 64), (2, 4, 300, 64), "sink"),
    "one more": (quiet, (2, 2, 1, 64), (2, 2, 300, 64), "quiet"),
    "bias, narrow": (biased, (1, 2, 20, 24), (1, 2, 300, 24), "bias of each head"),
    "wide": (plain, (1, 2, 12, 256), (1, 2, 100, 256), ""),
    "many shares": (masked(-2000), (1, 1, 3, 64), (1, 1, 2500, 64), ""),
}

# what has a derivative in kernels
DERIVED: Final[dict[str, tuple[Attention, Shape, Shape]]] = {
    "plain": (plain, (1, 2, 200, 64), (1, 2, 200, 64)),
    "wide, causal": (masked(0), (2, 200, 128), (2, 200, 128)),
    "wide, a window": (masked(-9, 70), (2, 200, 128), (2, 200, 128)),
    "causal, a low number": (masked(3, None, -3e4), (2, 150, 64), (2, 150, 64)),
    "other lengths": (masked(-150), (2, 72, 64), (2, 222, 64)),
    "time first": (time_first, (2, 72, 2, 64), (2, 72, 2, 64)),
    "keys repeated": (repeated, (1, 4, 72, 64), (1, 2, 72, 64)),
    "keys first": (keys_first, (2, 72, 64), (2, 72, 64)),
    "scaled before": (scaled_before, (2, 72, 64), (2, 72, 64)),
    "heads split": (split_heads, (2, 72, 128), (2, 72, 128)),
}


# and of these scores with what they are made of
DERIVED_SCORES: Final = (
    "soft cap", "soft cap, a low number", "warm", "alibi", "documents", "sink", "quiet", "bias", "bias of each head",
    "bias of all heads", "dropout", "dropout and bias",
)  # fmt: skip


def slopes(function: Attention, wanted: tuple[int, ...] = (0, 1, 2)) -> Attention:
    """The gradient of a sum of the squares of the result."""

    def loss(*xs: Any) -> Any:
        y = function(*xs)
        return (y * y if y.dtype == np.float64 else (y * y).astype(np.float32)).sum()

    return ge2.grad(loss, wanted)


def slopes_of_scores(
    rng: np.random.Generator, name: str, shape: Shape, dtype: Any
) -> tuple[tuple[int, ...], list[Any]]:
    """The numbers of all arrays of floating numbers, and the arrays."""
    xs = drawn(rng, shape, shape, dtype) + more(rng, name, shape, shape, dtype)
    return tuple(n for n, x in enumerate(xs) if x.dtype == dtype), xs


def judge_slopes(found: Any, wanted: Any, bound: float = 2.0**-6) -> None:
    """Cotangents, whose errors are a part of them; what is beyond a type's largest number is infinite."""
    for y, w in zip(found, wanted, strict=True):
        beyond = np.abs(w) > float(ml_dtypes.finfo(y.dtype).max)
        y = np.asarray(y, np.float64)
        assert y.shape == w.shape
        assert np.isinf(y[beyond]).all()
        y, w = y[~beyond], w[~beyond]
        assert np.linalg.norm(y - w) <= bound * np.linalg.norm(w)


def drawn(rng: np.random.Generator, q: Shape, k: Shape, dtype: Any) -> list[Any]:
    """Queries, keys and values."""
    return [rng.standard_normal(s).astype(dtype) for s in (q, k, k)]


def more(rng: np.random.Generator, name: str, q: Shape, k: Shape, dtype: Any) -> list[Any]:
    """The further arrays of a function of scores."""
    shapes = SCORES[name][1](q, k)
    if name == "alibi":
        return [(2.0 ** -np.arange(1, s[0] + 1)).astype(dtype) for s in shapes]
    if name.startswith("dropout"):
        biases = (rng.standard_normal(s).astype(dtype) for s in shapes[1:])
        return [np.asarray(random.key(7)), *biases]
    if name == "padding":
        return [np.arange(s[1]) < rng.integers(3, s[1], (s[0], 1)) for s in shapes]
    if name == "documents":
        return [np.sort(rng.integers(0, 4, s)).astype(np.int32) for s in shapes]
    return [rng.standard_normal(s).astype(dtype) for s in shapes]


def few(rng: np.random.Generator, name: str, dtype: Any) -> tuple[Attention, list[Any]]:
    """Attention of few queries, and its arrays."""
    function, q, k, scores = FEW[name]
    return function, drawn(rng, q, k, dtype) + (more(rng, scores, q, k, dtype) if scores else [])


def exactly(function: Attention, *xs: Any) -> Any:
    """The function in float64."""
    floats = (BF16, F16, F32)
    with np.errstate(all="ignore"):
        return function(*(np.asarray(x, np.float64) if x.dtype in floats else x for x in xs))


def judge(found: Any, wanted: Any, bound: float, plain: Any = None) -> None:
    """Weights and the result are rounded; values are normal numbers, of which a mean is no larger.
    `plain`: what NumPy has in float32, whose errors grow with scores as those of kernels do.
    """
    assert found.shape == wanted.shape
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    least = 0.0 if plain is None else error_of(plain, wanted)
    error = error_of(found, wanted)
    assert error <= least + (2 if plain is None else 1) * bound, error


def error_of(found: Any, wanted: Any) -> float:
    """The largest error, as a part of what is larger than 1."""
    error = np.abs(np.asarray(found, np.float64) - wanted) / np.maximum(np.abs(wanted), 1.0)
    return float(np.nanmax(error))


def in_numpy(function: Attention, xs: Any, kind: Kind) -> Any:
    """The function by NumPy's own operations, where its numbers are IEEE float32."""
    if kind.dtype != F32 or kind.rounded:
        return None
    with config.using(executor="reference"), np.errstate(all="ignore"):
        return ge2.jit(function)(*xs)
