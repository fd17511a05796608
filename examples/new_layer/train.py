"""A new layer from NumPy to a training loop that runs its kernels.

Run it: python examples/new_layer/train.py
"""

from __future__ import annotations

import os

import numpy as np
from layer import channel_attention

import ge2

FOLDER = os.path.dirname(os.path.abspath(__file__))


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# A network of two layers: a product of each place's channels, then the attention.


def loss(weights, x, target):
    y = channel_attention(np.tanh(x @ weights["mix"]), weights["squeeze"], weights["excite"])
    return ((y - target) ** 2).mean()


@ge2.jit
def step(weights, x, target, rate):
    value, gradient = ge2.value_and_grad(loss)(weights, x, target)
    return value, ge2.tree.map(lambda w, g: w - rate * g, weights, gradient)


def train(steps=20):
    weights = dict(START)
    losses = []
    for _ in range(steps):
        value, weights = step(weights, X, TARGET, 2.0)
        losses.append(float(value))
    return losses


START = {
    "mix": 0.2 * normal(32, 64),
    "squeeze": 0.3 * normal(64, 4, seed=1),
    "excite": normal(4, 64, seed=2),
}
X, TARGET = normal(8, 196, 32, seed=3), 0.1 * normal(8, 196, 64, seed=4)

# Before: plain NumPy, which ge2 compiles.

before = train()
print(f"kernels of ge2: loss {before[0]:.4f} -> {before[-1]:.4f}")

# The kernels are checked beside the function. Only then can they be registered.

print(ge2.kernels.check(FOLDER))
# without prefer they are taken where `ge2 kernels bench` found them faster
ge2.kernels.register(FOLDER, prefer=True)

# The same loop: the function in it, and its derivative, are now the kernels.

after = train()
print(f"our kernels:    loss {after[0]:.4f} -> {after[-1]:.4f}")
assert np.allclose(before, after, rtol=1e-4)

found = ge2.explain(ge2.grad(loss))(START, X, TARGET)
for kernel in found.kernels:
    print(kernel.name, "of", kernel.places)
