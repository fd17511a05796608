"""Signals and images."""

from __future__ import annotations

import numpy as np

from benchmarks.programs.program import program


@program(lambda d: (d.uniform(720, 1280, 3),))
def luma_and_chroma(image):
    """A colour image as luma and chroma, with the chroma averaged over squares of four."""
    n = image.shape[0] // 2 * 2
    m = image.shape[1] // 2 * 2
    r, g, b = image[:n, :m, 0], image[:n, :m, 1], image[:n, :m, 2]
    y = 0.299 * r + 0.587 * g + 0.114 * b
    cb, cr = 0.564 * (b - y), 0.713 * (r - y)

    def halved(c):
        return c.reshape(n // 2, 2, m // 2, 2).mean(axis=(1, 3))

    return y, halved(cb), halved(cr)


@program(lambda d: (d.uniform(800, 800, high=255.0),))
def sobel_edges(image):
    """Gradients by Sobel's masks: magnitude, direction in eight sectors, and strong edges."""
    p = np.pad(image, 1, mode="symmetric")
    gx = p[:-2, 2:] + 2 * p[1:-1, 2:] + p[2:, 2:] - p[:-2, :-2] - 2 * p[1:-1, :-2] - p[2:, :-2]
    gy = p[2:, :-2] + 2 * p[2:, 1:-1] + p[2:, 2:] - p[:-2, :-2] - 2 * p[:-2, 1:-1] - p[:-2, 2:]
    size = np.hypot(gx, gy)
    sector = np.floor((np.arctan2(gy, gx) + np.pi) / (np.pi / 4)).astype(np.int32) % 8
    return size, sector, size > size.mean() + 2 * size.std()


@program(lambda d: (d.uniform(512, 512),))
def separable_blur(image):
    """A Gaussian blur of radius six, rows and then columns, and the detail it takes away."""
    t = np.arange(-6, 7)
    w = np.exp(-(t**2) / 8.0)
    w = w / w.sum()
    p = np.pad(image, ((6, 6), (0, 0)), mode="edge")
    rows = sum(w[k] * p[k : k + image.shape[0]] for k in range(13))
    p = np.pad(rows, ((0, 0), (6, 6)), mode="edge")
    blurred = sum(w[k] * p[:, k : k + image.shape[1]] for k in range(13))
    return blurred, image - blurred


@program(lambda d: (d.normal(262_144),), bound_by="fft")
def spectrogram(x):
    """The power of windowed frames in decibels."""
    size = min(512, len(x) // 2 * 2)
    hop = max(size // 4, 1)
    count = (len(x) - size) // hop + 1
    at = np.arange(count)[:, None] * hop + np.arange(size)[None, :]
    frames = x[at] * np.hanning(size)
    power = np.abs(np.fft.rfft(frames, axis=1)) ** 2
    return 10 * np.log10(power + 1e-10)


@program(lambda d: (d.normal(512, 512),), bound_by="fft", tolerance=1e-8)
def frequency_filter(image):
    """A band of spatial frequencies."""
    spectrum = np.fft.fft2(image)
    fy = np.fft.fftfreq(image.shape[0])[:, None]
    fx = np.fft.fftfreq(image.shape[1])[None, :]
    radius = np.sqrt(fx**2 + fy**2)
    band = np.exp(-((radius - 0.2) ** 2) / 0.01)
    return np.fft.ifft2(spectrum * band).real


@program(lambda d: (d.normal(200_000),))
def envelope_follower(x):
    """A smooth envelope by two box filters, and a compressor's gain."""
    level = np.abs(x)
    w = min(64, len(x) // 4)
    for _ in range(2):
        c = np.concatenate([np.zeros(1), np.cumsum(level)])
        level = (c[w:] - c[:-w]) / w
    db = 20 * np.log10(level + 1e-6)
    over_db = np.maximum(db + 6.0, 0.0)
    gain = 10 ** (-over_db * 0.75 / 20)
    return x[: len(gain)] * gain


@program(lambda d: (d.uniform(600, 600), d.uniform(400, 400, 2, high=0.98)))
def bilinear_sampling(image, at):
    """An image read between its pixels."""
    y = at[..., 0] * (image.shape[0] - 1)
    x = at[..., 1] * (image.shape[1] - 1)
    y0, x0 = np.floor(y).astype(np.int64), np.floor(x).astype(np.int64)
    y1, x1 = np.minimum(y0 + 1, image.shape[0] - 1), np.minimum(x0 + 1, image.shape[1] - 1)
    fy, fx = y - y0, x - x0
    top = image[y0, x0] * (1 - fx) + image[y0, x1] * fx
    bottom = image[y1, x0] * (1 - fx) + image[y1, x1] * fx
    return top * (1 - fy) + bottom * fy


@program(lambda d: (d.below(256, 700, 900, dtype=np.uint8),))
def histogram_equalisation(image):
    """An image of bytes whose levels are spread evenly."""
    counts = np.bincount(image.ravel(), minlength=256)
    cdf = counts.cumsum()
    low = cdf.min()
    table = np.clip(np.round((cdf - low) * 255.0 / (cdf[-1] - low)), 0, 255).astype(np.uint8)
    return table[image]


@histogram_equalisation.in_jax
def _(jnp, lax, image):
    cdf = jnp.bincount(image.ravel(), length=256).cumsum()
    low = cdf.min()
    table = jnp.clip(jnp.round((cdf - low) * 255.0 / (cdf[-1] - low)), 0, 255).astype(jnp.uint8)
    return table[image]


@program(lambda d: (d.uniform(400, 500),))
def median_of_nine(image):
    """The median of each pixel's neighbourhood."""
    p = np.pad(image, 1, mode="edge")
    n, m = image.shape
    stack = np.stack([p[i : i + n, j : j + m] for i in range(3) for j in range(3)])
    return np.median(stack, axis=0)


@program(lambda d: (d.below(2, 600, 600) == 1,))
def opening_and_closing(mask):
    """Morphology of a binary image with a cross of five."""

    def shifted(a, fill):
        p = np.pad(a, 1, constant_values=fill)
        return p[1:-1, 1:-1], p[2:, 1:-1], p[:-2, 1:-1], p[1:-1, 2:], p[1:-1, :-2]

    def erode(a):
        c, n, s, e, w = shifted(a, True)
        return c & n & s & e & w

    def dilate(a):
        c, n, s, e, w = shifted(a, False)
        return c | n | s | e | w

    opened = dilate(erode(mask))
    closed = erode(dilate(mask))
    return opened, closed, (opened ^ closed).sum()


@program(lambda d: (d.normal(1_000_000), d.normal(31)))
def finite_impulse_response(x, taps):
    """A signal filtered by a short kernel and decimated by four."""
    y = np.convolve(x, taps, mode="valid")
    return y[::4] ** 2


@program(lambda d: (d.uniform(256, 256, 3), d.uniform(256, 256, 3)))
def structural_similarity(a, b):
    """The similarity of two images in windows of eight."""
    k = 8 if a.shape[0] >= 8 else 2
    n, m = a.shape[0] // k * k, a.shape[1] // k * k

    def windows(x):
        return x[:n, :m].reshape(n // k, k, m // k, k, -1)

    a, b = windows(a), windows(b)
    ma, mb = a.mean((1, 3)), b.mean((1, 3))
    va, vb = a.var((1, 3)), b.var((1, 3))
    cov = (a * b).mean((1, 3)) - ma * mb
    c1, c2 = 1e-4, 9e-4
    score = (2 * ma * mb + c1) * (2 * cov + c2) / ((ma**2 + mb**2 + c1) * (va + vb + c2))
    return score.mean(), score.min(axis=-1)


@program(lambda d: (d.normal(200, 256),), tolerance=1e-8)
def cosine_transform(x):
    """The discrete cosine transform of rows by its matrix, small coefficients cut, and back."""
    n = x.shape[1]
    k, i = np.arange(n)[:, None], np.arange(n)[None, :]
    basis = np.cos(np.pi * (i + 0.5) * k / n) * np.sqrt(2.0 / n)
    basis = np.where(k == 0, basis / np.sqrt(2.0), basis)
    y = x @ basis.T
    return np.where(np.abs(y) < 0.5, 0.0, y) @ basis
