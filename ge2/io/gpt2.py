"""The names under which GPT-2's weights are published, for a model made of `ge2.nn`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ge2.io.maps import Map


def third(n: int) -> Callable[[Any], Any]:
    """The n-th of three equal parts along the last axis: queries, keys or values."""
    return lambda x: np.split(x, 3, -1)[n]


# Hugging Face's layers here are Conv1D, whose weights are [ins, outs] as those of nn.Linear.
GPT2: Final = Map(
    {
        "tokens.weight": "wte.weight",
        "positions.weight": "wpe.weight",
        "blocks.{i}.norm1.{p}": "h.{i}.ln_1.{p}",
        "blocks.{i}.attention.query.{p}": ("h.{i}.attn.c_attn.{p}", third(0)),
        "blocks.{i}.attention.key.{p}": ("h.{i}.attn.c_attn.{p}", third(1)),
        "blocks.{i}.attention.value.{p}": ("h.{i}.attn.c_attn.{p}", third(2)),
        "blocks.{i}.attention.qkv.{p}": "h.{i}.attn.c_attn.{p}",
        "blocks.{i}.attention.out.{p}": "h.{i}.attn.c_proj.{p}",
        "blocks.{i}.norm2.{p}": "h.{i}.ln_2.{p}",
        "blocks.{i}.mlp.layers.0.{p}": "h.{i}.mlp.c_fc.{p}",
        "blocks.{i}.mlp.layers.1.{p}": "h.{i}.mlp.c_proj.{p}",
        "norm.{p}": "ln_f.{p}",
        "head.weight": ("wte.weight", np.transpose),
    },
    ignore=("h.{i}.attn.bias", "h.{i}.attn.masked_bias", "lm_head.weight"),
    prefixes=("", "transformer."),
)
