"""A variational autoencoder (Kingma and Welling, 2013): handwritten digits as points of a plane.

Its bound of the likelihood is made large by gradients through samples. With a linear decoder the
best bound is known: the exact likelihood of probabilistic PCA, by eigenvalues (Tipping and Bishop,
1999). A network knows more than that.

python examples/vae.py [picture.png]    # the digits come with scikit-learn
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import ge2
from ge2 import nn, optim, random


class VAE(nn.Module):
    encoder: nn.MLP
    decoder: nn.MLP
    log_noise: Any

    @classmethod
    def init(cls, key, widths, latent=2):
        """`widths` from a picture to what the encoder's last layer is given."""
        first, second = random.split(key)
        encoder = nn.MLP.init(first, (*widths, 2 * latent), activation=np.tanh)
        decoder = nn.MLP.init(second, (latent, *widths[::-1]), activation=np.tanh)
        return cls(encoder, decoder, np.zeros((), np.float32))

    def bound(self, x, key):
        """A lower bound of the log likelihood of each picture, by a sample of its place."""
        mean, log_std = np.split(self.encoder(x), 2, axis=-1)
        z = mean + np.exp(log_std) * random.normal(key, mean.shape, np.float32)
        away = (x - self.decoder(z)) * np.exp(-self.log_noise)
        seen = -0.5 * np.sum(away**2 + np.log(2 * np.pi) + 2 * self.log_noise, axis=-1)
        divergence = 0.5 * np.sum(mean**2 + np.exp(2 * log_std) - 1 - 2 * log_std, axis=-1)
        return seen - divergence


def trained(model, x, steps):
    """The model, and its mean bound over 20 samples of each picture."""
    optimizer = optim.adam(optim.cosine(1e-2, steps // 20, steps))
    state = optimizer.init(model)
    loss = lambda model, key: -np.mean(model.bound(x, key))  # noqa: E731

    @ge2.jit(donate_argnums=(0, 1))
    def step(model, state, key):
        return optimizer.update(ge2.grad(loss)(model, key), state, model)

    for i in range(steps):
        model, state = step(model, state, random.fold_in(random.key(0), i))
    test = ge2.jit(lambda model, key: -loss(model, key))
    return model, np.mean([test(model, key) for key in random.split(random.key(1), 20)])


def by_eigenvalues(x, latent=2):
    """The largest mean log likelihood of x[n, d] as a plane of places plus noise."""
    d = x.shape[1]
    values = np.linalg.eigvalsh(np.cov(x.T, bias=True).astype(np.float64))[::-1]
    noise = values[latent:].mean()
    volume = np.log(values[:latent]).sum() + (d - latent) * np.log(noise)
    return -0.5 * (d * np.log(2 * np.pi) + volume + d)


def main(
    steps: int = 1500, count: int | None = None, near: float = 0.01, picture: str | None = None
) -> None:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x, labels = (images[:count] / 8 - 1).astype(np.float32), labels[:count]
    exact = by_eigenvalues(x)
    _, linear = trained(VAE.init(random.key(0), (64,)), x, steps)
    model, deep = trained(VAE.init(random.key(0), (64, 64, 32)), x, steps)
    print(f"linear decoder {linear:.3f}, exactly {exact:.3f}; a network {deep:.3f} nats a picture")
    assert abs(linear - exact) < near * abs(exact) and deep > exact
    if picture:
        draw(picture, model, x, labels)


def draw(path, model, x, labels):
    import matplotlib.pyplot as plt

    places = model.encoder(x)[:, :2]
    steps = np.linspace(-2, 2, 12, dtype=np.float32)
    grid = np.stack(np.meshgrid(steps, -steps), axis=-1)
    images = model.decoder(grid).reshape(12, 12, 8, 8).transpose(0, 2, 1, 3).reshape(96, 96)
    plt.figure(figsize=(5, 2.5))
    plt.subplot(1, 2, 1)
    plt.scatter(*places.T, c=labels, s=1, cmap="tab10")
    plt.title("places of the digits, by label", fontsize=8)
    plt.subplot(1, 2, 2)
    plt.imshow(images, cmap="gray")
    plt.axis("off")
    plt.title("what is decoded of places in [-2, 2]", fontsize=8)
    plt.savefig(path, dpi=100, bbox_inches="tight")


if __name__ == "__main__":
    main(picture=next(iter(sys.argv[1:]), None))
