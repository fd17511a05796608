"""Text from a model: one token after another, each by a query of length 1 and caches of keys."""

from __future__ import annotations

import numpy as np

import ge2


@ge2.jit
def scores(model, caches, ids, at):
    """The scores of the token after ids[t], at positions `at` and on; writes into the caches."""
    return model(ids[None], caches, at)[0, -1]


@ge2.jit(static_argnames="top_k")
def chosen(logits, key, temperature, top_k=None):
    """A token by the probabilities softmax(logits / temperature) of the best `top_k`.

    The largest of logits and Gumbel's noise is distributed so; without noise it is the best one.
    """
    if top_k is not None:
        least = ge2.lax.top_k(logits, min(top_k, logits.shape[0]))[0][-1]
        logits = np.where(logits < least, -np.inf, logits)
    noise = -np.log(ge2.random.exponential(key, logits.shape, np.float32))
    return np.argmax(logits + temperature * noise)


def generate(model, prompt, count, key, temperature=1.0, top_k=None):
    """Yields `count` tokens after those of a prompt, which is not empty.

    Where the context is full, it goes on from the last half of it.
    """
    tokens, caches, at = [int(x) for x in prompt][-model.context :], model.caches(), 0
    key = np.array(key.tolist(), key.dtype, like=model.wte.weight)  # where the model is
    for i in range(count):
        if len(tokens) > model.context:
            tokens, at = tokens[-(model.context // 2) :], 0
        new = np.array(tokens[at:], np.int32, like=model.wte.weight)
        logits = scores(model, caches, new, at)
        at = len(tokens)
        tokens.append(int(chosen(logits, ge2.random.fold_in(key, i), temperature, top_k)))
        yield tokens[-1]
