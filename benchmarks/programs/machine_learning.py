"""Machine learning, forward and backward."""

from __future__ import annotations

import numpy as np

from benchmarks.programs.program import program

F = np.float32
LOOSE = 2e-4


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def rms_norm(x, gain):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6) * gain


def silu(x):
    return x / (1 + np.exp(-x))


@program(
    lambda d: (d.normal(512, 256, dtype=F), d.normal(256, 512, dtype=F) / 16, d.normal(256, 512, dtype=F) / 16,
               d.normal(512, 256, dtype=F) / 16, d.uniform(256, dtype=F)),
    tolerance=LOOSE,
)  # fmt: skip
def gated_block(x, w, v, out, gain):
    """A residual block with a root-mean-square norm and a gated unit."""
    h = rms_norm(x, gain)
    return x + (silu(h @ w) * (h @ v)) @ out


@program(
    lambda d: (d.normal(512, 256, dtype=F), d.normal(256, 512, dtype=F) / 16, d.normal(256, 512, dtype=F) / 16,
               d.normal(512, 256, dtype=F) / 16, d.uniform(256, dtype=F)),
    tolerance=LOOSE, by=(1, 2, 3, 4),
)  # fmt: skip
def gated_block_gradient(x, w, v, out, gain):
    """The mean square of the block, derived by its weights."""
    h = rms_norm(x, gain)
    y = x + (silu(h @ w) * (h @ v)) @ out
    return (y * y).mean()


@program(
    lambda d: (
        d.normal(8, 128, 64, dtype=F),
        d.normal(8, 128, 64, dtype=F),
        d.normal(8, 128, 64, dtype=F),
    ),
    tolerance=LOOSE,
)
def causal_attention(q, k, v):
    """Attention of eight heads that looks back only."""
    t = q.shape[1]
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1]).astype(q.dtype)
    mask = np.tril(np.ones((t, t), dtype=bool))
    return softmax(np.where(mask, scores, -np.inf)) @ v


@program(
    lambda d: (d.normal(8, 128, 64, dtype=F), d.normal(8, 128, 64, dtype=F), d.normal(8, 128, 64, dtype=F)),
    tolerance=LOOSE, by=(0, 1, 2),
)  # fmt: skip
def causal_attention_gradient(q, k, v):
    """Its sum of squares, derived by queries, keys and values."""
    t = q.shape[1]
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1]).astype(q.dtype)
    mask = np.tril(np.ones((t, t), dtype=bool))
    return ((softmax(np.where(mask, scores, -np.inf)) @ v) ** 2).sum()


@program(lambda d: (d.normal(64, 32, 128, dtype=F),), tolerance=LOOSE)
def rotary_embedding(x):
    """Pairs of features turned by angles that grow with the position."""
    half = x.shape[-1] // 2
    freq = (10000.0 ** (-np.arange(half) / half)).astype(x.dtype)
    angle = np.arange(x.shape[-2], dtype=x.dtype)[:, None] * freq
    cos, sin = np.cos(angle), np.sin(angle)
    a, b = x[..., :half], x[..., half : 2 * half]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


@program(lambda d: (d.normal(256, 1000, dtype=F), d.below(10, 256)), tolerance=LOOSE)
def label_smoothing(logits, labels):
    """Cross-entropy against smoothed labels, the accuracy, and the gradient by hand."""
    n, k = logits.shape
    top = logits.max(1, keepdims=True)
    log_p = logits - top - np.log(np.exp(logits - top).sum(1, keepdims=True))
    hot = (labels[:, None] == np.arange(k)).astype(logits.dtype)
    target = 0.9 * hot + 0.1 / k
    loss = -(target * log_p).sum(1).mean()
    return loss, (log_p.argmax(1) == labels).mean(), (np.exp(log_p) - target) / n


@program(
    lambda d: (d.normal(256, 64, dtype=F), d.normal(256, 64, dtype=F)), tolerance=LOOSE, by=(0, 1)
)
def contrastive_loss(a, b):
    """Two views of a batch that should know each other, derived by both."""
    a = a / np.sqrt((a * a).sum(1, keepdims=True) + 1e-8)
    b = b / np.sqrt((b * b).sum(1, keepdims=True) + 1e-8)
    logits = a @ b.T / 0.1

    def cross(x):
        top = x.max(1, keepdims=True)
        return (np.log(np.exp(x - top).sum(1)) + top[:, 0] - np.diagonal(x)).mean()

    return (cross(logits) + cross(logits.T)) / 2


@program(
    lambda d: (*(d.normal(1_000_000, dtype=F) for _ in range(3)), d.uniform(1_000_000, dtype=F)),
    tolerance=LOOSE,
)  # fmt: skip
def adamw_update(w, g, m, v):
    """A step of AdamW with the gradient clipped by its norm."""
    g = g * np.minimum(1.0, 1.0 / (np.sqrt((g * g).sum()) + 1e-6)).astype(g.dtype)
    m = 0.9 * m + 0.1 * g
    v = 0.99 * v + 0.01 * g * g
    w = w - 0.001 * (m / 0.1 / (np.sqrt(v / 0.01) + 1e-8) + 0.01 * w)
    return w, m, v


@program(
    lambda d: (d.normal(16, 3, 32, 32, dtype=F), d.normal(8, 3, 3, 3, dtype=F)), tolerance=LOOSE
)
def convolution_by_windows(x, w):
    """A 3 x 3 convolution by sliding windows, then the largest of squares of two."""
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3))
    y = np.maximum(np.einsum("nchwij,ocij->nohw", windows, w), 0)
    n, o, h, k = y.shape
    y = y[:, :, : h // 2 * 2, : k // 2 * 2]
    return y.reshape(n, o, h // 2, 2, k // 2, 2).max(axis=(3, 5))


@convolution_by_windows.in_jax
def _(jnp, lax, x, w):
    y = jnp.maximum(lax.conv_general_dilated(x, w, (1, 1), "VALID"), 0)
    return lax.reduce_window(y, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


@program(
    lambda d: (d.normal(32, 50, 64, dtype=F), d.normal(64, 192, dtype=F) / 8, d.normal(64, 192, dtype=F) / 8),
    tolerance=LOOSE,
)  # fmt: skip
def gated_recurrence(x, w, u):
    """A gated recurrent unit over fifty inputs."""
    n = min(u.shape[0], u.shape[1] // 3)
    w, u = w[:, : 3 * n], u[:n, : 3 * n]
    h = np.zeros((x.shape[0], n), x.dtype)

    def gate(a):
        return 1 / (1 + np.exp(-a))

    for t in range(x.shape[1]):
        a, b = x[:, t] @ w, h @ u
        r = gate(a[:, :n] + b[:, :n])
        z = gate(a[:, n : 2 * n] + b[:, n : 2 * n])
        new = np.tanh(a[:, 2 * n :] + r * b[:, 2 * n :])
        h = (1 - z) * new + z * h
    return h


@gated_recurrence.in_jax
def _(jnp, lax, x, w, u):
    n = min(u.shape[0], u.shape[1] // 3)
    w, u = w[:, : 3 * n], u[:n, : 3 * n]

    def gate(a):
        return 1 / (1 + jnp.exp(-a))

    def step(h, x):
        a, b = x @ w, h @ u
        r = gate(a[:, :n] + b[:, :n])
        z = gate(a[:, n : 2 * n] + b[:, n : 2 * n])
        new = jnp.tanh(a[:, 2 * n :] + r * b[:, 2 * n :])
        return (1 - z) * new + z * h, None

    return lax.scan(step, jnp.zeros((x.shape[0], n), x.dtype), x.transpose(1, 0, 2))[0]


@program(
    lambda d: (d.normal(2048, 64, dtype=F), d.normal(64, 32, dtype=F) / 8, d.normal(32, dtype=F),
               d.normal(32, 64, dtype=F) / 8),
    tolerance=LOOSE, by=(1, 2, 3),
)  # fmt: skip
def autoencoder_gradient(x, encode, bias, decode):
    """A tied pair of layers with a penalty on what is active."""
    h = np.log1p(np.exp(-np.abs(x @ encode + bias))) + np.maximum(x @ encode + bias, 0)
    y = h @ decode
    return ((y - x) ** 2).mean() + 1e-3 * np.abs(h).mean()


@program(
    lambda d: (d.normal(512, 768, dtype=F), d.normal(768, dtype=F), d.normal(768, dtype=F),
               d.normal(512, 768, dtype=F)),
    tolerance=LOOSE,
)  # fmt: skip
def layer_norm_backward(x, gain, bias, dy):
    """A layer norm and its gradient, both by hand."""
    n = x.shape[-1]
    mean = x.mean(-1, keepdims=True)
    inv = 1 / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    z = (x - mean) * inv
    dz = dy * gain
    dx = inv / n * (n * dz - dz.sum(-1, keepdims=True) - z * (dz * z).sum(-1, keepdims=True))
    return z * gain + bias, dx, (dy * z).sum(0), dy.sum(0)


@program(
    lambda d: (
        d.normal(4096, 16, dtype=F),
        d.normal(16, 8, dtype=F),
        d.normal(8, 16, 16, dtype=F) / 4,
    ),
    tolerance=LOOSE,
)
def mixture_of_experts(x, router, experts):
    """Every expert on every row, weighted by a softmax in which the two best count."""
    p = softmax(x @ router)
    second = np.sort(p, axis=-1)[:, -2:-1]
    p = np.where(p >= second, p, 0)
    p = p / p.sum(-1, keepdims=True)
    y = np.tanh(np.einsum("ni,eio->neo", x, experts[: router.shape[1], : x.shape[1], :]))
    return (p[..., None] * y).sum(1)
