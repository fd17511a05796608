"""Handwritten digits by a network with dropout and batch normalisation.

What changes while it is trained, the means of the normalisation, is returned with the loss; what is
random takes a key. `ge2 demo` trains a simpler network as plain NumPy, beside the same by hand.

python examples/digits.py [picture.png]    # the digits come with scikit-learn
"""

from __future__ import annotations

import sys

import numpy as np

import ge2
from ge2 import nn, optim, random


class Network(nn.Module):
    first: nn.Linear
    norm: nn.BatchNorm
    last: nn.Linear

    @classmethod
    def init(cls, key, width):
        keys = random.split(key)
        return cls(
            nn.Linear.init(keys[0], 64, width, bias="none"),
            nn.BatchNorm.init(width),
            nn.Linear.init(keys[1], width, 10),
        )

    def __call__(self, x, key=None):
        """The scores of the ten digits, and the network with its means moved; a key if it trains."""
        training = key is not None
        y, norm = self.norm(self.first(x), training=training)
        y = nn.relu(y)
        y = nn.dropout(y, 0.3, key) if training else y
        return self.last(y), self.replace(norm=norm)


def loss(model, x, labels, key):
    scores, moved = model(x, key)
    return nn.cross_entropy(scores, labels, smoothing=0.1), moved.norm


def main(
    epochs: int = 30, width: int = 128, required: float = 0.97, picture: str | None = None
) -> None:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x, labels = (images / 16).astype(np.float32), labels.astype(np.int32)
    rng = np.random.default_rng(0)
    test, train = np.split(rng.permutation(len(x)), [len(x) // 5])
    optimizer = optim.adamw(3e-3, decay=1e-2, mask=optim.matrices)
    model = Network.init(random.key(0), width)
    state = optimizer.init(model)

    @ge2.jit(donate_argnums=(0, 1))
    def step(model, state, x, labels, key):
        (value, norm), grads = ge2.value_and_grad(loss, has_aux=True)(model, x, labels, key)
        model, state = optimizer.update(grads, state, model)
        return model.replace(norm=model.norm.replace(mean=norm.mean, var=norm.var)), state, value

    for epoch in range(epochs):
        for rows in np.array_split(rng.permutation(train), len(train) // 128):
            key = random.fold_in(random.key(1), state["step"])
            model, state, value = step(model, state, x[rows], labels[rows], key)
        if (epoch + 1) % (epochs // 5) == 0:
            print(f"epoch {epoch + 1:3}   loss {float(value):.4f}")
    scores, _ = ge2.jit(lambda model, x: model(x))(model, x[test])
    found = scores.argmax(axis=1)
    right = np.mean(found == labels[test])
    print(f"{right:.4f} of {len(test)} new digits are right")
    assert right > required
    if picture:
        wrong = found != labels[test]
        draw(picture, images[test][wrong], labels[test][wrong], found[wrong])


def draw(path, images, labels, found):
    import matplotlib.pyplot as plt

    for i in range(min(len(images), 8)):
        plt.subplot(1, 8, i + 1)
        plt.imshow(images[i].reshape(8, 8), cmap="gray_r")
        plt.title(f"{labels[i]} as {found[i]}", fontsize=8)
        plt.axis("off")
    plt.gcf().set_size_inches(7, 1.2)
    plt.savefig(path, dpi=100, bbox_inches="tight")


if __name__ == "__main__":
    main(picture=next(iter(sys.argv[1:]), None))
