"""The adding problem (Hochreiter and Schmidhuber, 1997): a recurrent network that has to remember.

Of a row of numbers in [0, 1) two are marked, and their sum is to be given at the end. Who answers 1
each time has a mean square of 1/6; who remembers has none.

python examples/lstm.py [picture.png]
"""

from __future__ import annotations

import sys

import numpy as np

import ge2
from ge2 import nn, optim, random


class Adder(nn.Module):
    memory: nn.LSTM
    out: nn.Linear

    @classmethod
    def init(cls, key, width):
        first, second = random.split(key)
        return cls(nn.LSTM.init(first, 2, width), nn.Linear.init(second, width, 1))

    def __call__(self, x):
        """The sums of x[time, batch, (number, mark)]."""
        ys, _ = self.memory(x)
        return self.out(ys[-1])[:, 0]


def rows(key, length, batch):
    """Numbers and marks, one in each half of a row, and the sums of the numbers that are marked."""
    keys = random.split(key, 2)
    numbers = random.uniform(keys[0], (length, batch), np.float32)
    half = length // 2
    marked = random.randint(keys[1], (2, batch), 0, half) + np.array([[0], [half]])
    marks = (np.arange(length)[:, None, None] == marked).any(axis=1).astype(np.float32)
    return np.stack([numbers, marks], axis=2), np.sum(numbers * marks, axis=0)


def loss(model, x, sums):
    return nn.mse(model(x), sums)


def main(
    steps: int = 1500,
    length: int = 20,
    width: int = 32,
    near: float = 0.1,
    picture: str | None = None,
) -> None:
    optimizer = optim.adam(optim.cosine(1e-2, steps // 20, steps))
    model = Adder.init(random.key(0), width)
    state, losses = optimizer.init(model), []

    @ge2.jit(donate_argnums=(0, 1))
    def step(model, state, key):
        value, grads = ge2.value_and_grad(loss)(model, *rows(key, length, 64))
        return *optimizer.update(optim.clip_by_global_norm(grads, 1.0), state, model), value

    for i in range(steps):
        model, state, value = step(model, state, random.fold_in(random.key(1), i))
        losses.append(float(value))
        if (i + 1) % (steps // 5) == 0:
            print(f"step {i + 1:5}   mean square {np.mean(losses[-(steps // 5) :]):.4f}")
    x, sums = rows(random.key(2), length, 1000)
    found = loss(model, x, sums)
    print(f"new rows: {found:.5f}; the answer 1 has {np.mean((sums - 1) ** 2):.4f}, or 1/6")
    assert found < near / 6
    if picture:
        draw(picture, losses)


def draw(path, losses):
    import matplotlib.pyplot as plt

    plt.figure(figsize=(4, 2.6))
    plt.semilogy(losses, lw=0.5)
    plt.axhline(1 / 6, color="k", lw=0.8, ls="--")
    plt.title("mean square of the error, step by step; 1/6 is the answer 1", fontsize=8)
    plt.savefig(path, dpi=100, bbox_inches="tight")


if __name__ == "__main__":
    main(picture=next(iter(sys.argv[1:]), None))
