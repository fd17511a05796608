"""A character model of the text that ships with Python: its help on the language. CPU, minutes."""

from __future__ import annotations

from pydoc_data.topics import topics

import numpy as np

import ge2
from examples.gpt2.data import Tokens
from examples.gpt2.model import GPT2, Config, loss
from examples.gpt2.sample import generate
from examples.gpt2.train import Options, started, training


def text():
    """The letters of the text, and the number of each of them."""
    return np.unique([*"\n\n".join(topics.values())], return_inverse=True)


def bigrams(ids):
    """The mean cross entropy of each letter from the one before it, by the exact table of pairs."""
    counts = np.zeros((ids.max() + 1,) * 2)
    np.add.at(counts, (ids[:-1], ids[1:]), 1)
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return -(counts * np.log(np.maximum(share, 1e-300))).sum() / counts.sum()


def learned(model, batches, count=20):
    """The mean loss of so many batches."""
    step = ge2.jit(loss)
    return float(np.mean([step(model, batches[i]) for i in range(count)]))


def train(steps, each, width=128, layers=4, length=64, batch=12, seed=0):
    """A model of the first nine tenths of the text, its alphabet, and the report on the last tenth.

    `each(step, loss)` is called after each step.
    """
    alphabet, ids = text()
    cut = len(ids) * 9 // 10
    config = Config(len(alphabet), length, width, layers, heads=4)
    options = Options(steps, rate=2e-3, warmup=max(steps // 20, 1))
    now = start = started(config, GPT2.init(ge2.random.key(seed), config), options)
    for now, value in training(start, Tokens([ids[:cut]], length, batch, seed), options):
        each(now["state"]["step"], float(value))
    model = now["model"]
    return model, alphabet, learned(model, Tokens([ids[cut:]], length, batch)), bigrams(ids)


def write(model, alphabet, start, count, seed=0):
    """A text that begins with `start`, and goes on by the model."""
    prompt = np.searchsorted(alphabet, [*start])
    tokens = generate(model, prompt, count, ge2.random.key(seed), temperature=0.7)
    return start + "".join(str(alphabet[token]) for token in tokens)
