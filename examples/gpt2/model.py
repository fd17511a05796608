"""GPT-2 (Radford and others, 2019): the names of its fields are those of the published weights."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import ge2
from ge2 import nn
from ge2.nn.initializers import normal


class Config(NamedTuple):
    """Sizes of a model. The first is GPT-2's, of 124 million parameters."""

    vocabulary: int = 50257
    context: int = 1024
    width: int = 768
    layers: int = 12
    heads: int = 12

    @classmethod
    def of_json(cls, given):
        """From the config.json of a published checkpoint."""
        names = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head")
        return cls(*(given[name] for name in names))


SIZES = {
    "124M": Config(),
    "355M": Config(width=1024, layers=24, heads=16),
    "774M": Config(width=1280, layers=36, heads=20),
    "1558M": Config(width=1600, layers=48, heads=25),
    "small": Config(context=256, width=256, layers=6, heads=8),
    "tiny": Config(context=64, width=32, layers=2, heads=4),
}


# Some files have a prefix, copies of the first matrix, and masks, which are no parameters.
PUBLISHED = ge2.io.Map({}, ignore=ge2.io.GPT2.ignore, prefixes=ge2.io.GPT2.prefixes)


class Cache(NamedTuple):
    """Keys and values of one layer, [batch, heads, context, width], of the positions seen so far."""

    keys: Any
    values: Any


class Attention(nn.Module):
    c_attn: nn.Linear
    c_proj: nn.Linear
    heads: int = nn.static()

    def __call__(self, x, cache=None, at=0):
        """Attention of x[batch, t, width] to itself and, with a cache, to what came before `at`."""
        batch, t, width = x.shape
        parts = self.c_attn(x).reshape(batch, t, 3, self.heads, -1)
        q, k, v = np.transpose(parts, (2, 0, 3, 1, 4))
        if cache is None:
            y = nn.attention(q, k, v, causal=True)
        else:
            rows = at + np.arange(t, like=x)
            cache.keys[:, :, rows] = k
            cache.values[:, :, rows] = v
            seen = rows[:, None] >= np.arange(cache.keys.shape[2], like=x)
            y = nn.attention(q, cache.keys, cache.values, seen)
        return self.c_proj(np.swapaxes(y, 1, 2).reshape(batch, t, width))


class MLP(nn.Module):
    c_fc: nn.Linear
    c_proj: nn.Linear

    def __call__(self, x):
        return self.c_proj(nn.gelu(self.c_fc(x)))


class Block(nn.Module):
    ln_1: nn.LayerNorm
    attn: Attention
    ln_2: nn.LayerNorm
    mlp: MLP

    @classmethod
    def init(cls, key, config):
        keys, width = ge2.random.split(key, 4), config.width
        usual, last = normal(0.02), normal(0.02 / np.sqrt(2 * config.layers))
        shapes = ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))
        c_attn, out, c_fc, down = (
            nn.Linear.init(k, *shape, initializer=by)
            for k, shape, by in zip(keys, shapes, (usual, last) * 2, strict=True)
        )
        norms = nn.LayerNorm.init(width), nn.LayerNorm.init(width)
        return cls(norms[0], Attention(c_attn, out, config.heads), norms[1], MLP(c_fc, down))

    def __call__(self, x, cache=None, at=0):
        x = x + self.attn(self.ln_1(x), cache, at)
        return x + self.mlp(self.ln_2(x))


class GPT2(nn.Module):
    wte: nn.Embedding
    wpe: nn.Embedding
    h: tuple[Block, ...]
    ln_f: nn.LayerNorm

    @classmethod
    def init(cls, key, config):
        """A model that has learned nothing."""
        keys = ge2.random.split(key, config.layers + 2)
        return cls(
            nn.Embedding.init(keys[0], config.vocabulary, config.width),
            nn.Embedding.init(keys[1], config.context, config.width, stddev=0.01),
            tuple(Block.init(k, config) for k in keys[2:]),
            nn.LayerNorm.init(config.width),
        )

    @property
    def context(self):
        return self.wpe.weight.shape[0]

    def caches(self, batch=1):
        """A cache for each layer, of nothing so far."""
        heads, like = self.h[0].attn.heads, self.wpe.weight
        shape = (batch, heads, self.context, like.shape[1] // heads)
        empty = lambda: np.zeros_like(like, shape=shape)  # noqa: E731
        return [Cache(empty(), empty()) for _ in self.h]

    def __call__(self, ids, caches=None, at=0):
        """The scores of each token after ids[batch, t], which stand at positions `at` and on."""
        x = self.wte(ids) + self.wpe(at + np.arange(ids.shape[1], like=ids))
        for block, cache in zip(self.h, caches or [None] * len(self.h), strict=True):
            x = block(x, cache, at)
        return self.wte.attend(self.ln_f(x))


def loss(model, ids):
    """The mean cross entropy of ids[batch, t + 1], each from those before it."""
    return nn.cross_entropy(model(ids[:, :-1]), ids[:, 1:])


def published(path, config):
    """The model of a published file of weights, whose names are this model's key paths."""
    like = ge2.eval_shape(lambda: GPT2.init(ge2.random.key(0), config))
    return ge2.io.load(path, into=like, map=PUBLISHED)
