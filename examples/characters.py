"""A character model: a recurrent network learns the text of Python's own help, and writes some.

The network is a module of `ge2.nn`'s, AdamW with its cosine is `ge2.optim`'s, and products are
bfloat16 by `ge2.autocast`.

python examples/characters.py            # 40 steps of a tiny one: it has heard of letters
python examples/characters.py 3000 256   # steps, width: words, and nearly sentences
"""

from __future__ import annotations

import sys
from pydoc_data.topics import topics

import numpy as np

import ge2
from ge2 import nn, optim

LENGTH, BATCH = 32, 16


class Model(nn.Module):
    letters: nn.Embedding
    memory: nn.GRU
    out: nn.Linear

    @classmethod
    def init(cls, key, count, width):
        keys = ge2.random.split(key, 3)
        return cls(
            nn.Embedding.init(keys[0], count, width, stddev=1.0),
            nn.GRU.init(keys[1], width, width),
            nn.Linear.init(keys[2], width, count),
        )

    def __call__(self, ids, state=None):
        """The scores of the letter after each of ids[time, ...], and the state after all."""
        ys, state = self.memory(self.letters(ids), state)
        return self.out(ys), state


def loss(model, ids):
    return nn.cross_entropy(model(ids[:-1])[0], ids[1:])


def train(model, text, steps):
    """The trained model, and the loss of each step."""
    schedule = optim.cosine(1e-2, warmup=steps // 10, steps=steps)
    optimizer = optim.adamw(schedule, decay=0.1, mask=optim.matrices)

    @ge2.jit(donate_argnums=(0, 1))
    def step(model, state, ids):
        value, grads = ge2.value_and_grad(ge2.autocast(loss, "bf16"))(model, ids)
        model, state = optimizer.update(optim.clip_by_global_norm(grads, 1.0), state, model)
        return model, state, value

    rng, state, losses = np.random.default_rng(0), optimizer.init(model), []
    for i in range(steps):
        starts = rng.integers(0, len(text) - LENGTH, BATCH)
        model, state, value = step(model, state, text[np.arange(LENGTH)[:, None] + starts])
        losses.append(float(value))
        if (i + 1) % (steps // 5) == 0:
            print(f"step {i + 1:5}   loss {np.mean(losses[-(steps // 5) :]):.3f}")
    return model, losses


def write(model, start, count, key):
    """So many letters after `start`, each by the probabilities that the model gives."""
    logits, state = model(start)
    found = list(start)
    for i in range(count):
        drawn = ge2.random.uniform(ge2.random.fold_in(key, i))
        found.append(int(np.searchsorted(np.cumsum(nn.softmax(logits[-1])), drawn)))
        logits, state = model(np.array(found[-1:]), state)
    return found


def main(steps: int = 40, width: int = 32) -> None:
    alphabet, ids = np.unique([*"".join(topics.values())[:200_000]], return_inverse=True)
    model = Model.init(ge2.random.key(0), len(alphabet), width)
    print(nn.summary(model, ids[:LENGTH]))
    model, losses = train(model, ids, steps)
    assert np.mean(losses[-5:]) < 0.8 * losses[0]
    found = write(model, ids[:8], 24, ge2.random.key(1))
    print("".join(alphabet[np.minimum(found, len(alphabet) - 1)]))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
