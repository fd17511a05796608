"""Statistics and clustering."""

from __future__ import annotations

import numpy as np

from benchmarks.programs.program import program


@program(lambda d: (d.normal(100_000, 20), d.normal(20, 20)), tolerance=1e-8)
def standardised_scores(x, w):
    """Standardised columns, projected, and the covariance of what comes out."""
    z = (x - x.mean(axis=0)) / x.std(axis=0, ddof=1)
    y = z @ w
    centred = y - y.mean(0)
    return centred.T @ centred / (len(y) - 1)


@program(lambda d: (d.normal(20_000, 8), d.normal(16, 8)))
def k_means(points, centres):
    """Five rounds of Lloyd's algorithm by one-hot products."""
    k = centres.shape[0]
    for _ in range(5):
        distances = ((points[:, None, :] - centres[None, :, :]) ** 2).sum(-1)
        label = distances.argmin(1)
        hot = (label[:, None] == np.arange(k)).astype(points.dtype)
        count = hot.sum(0)
        centres = hot.T @ points / np.maximum(count, 1)[:, None]
    return centres, count


@k_means.in_jax
def _(jnp, lax, points, centres):
    k = centres.shape[0]

    def step(_, state):
        centres, _ = state
        distances = ((points[:, None, :] - centres[None, :, :]) ** 2).sum(-1)
        label = distances.argmin(1)
        hot = (label[:, None] == jnp.arange(k)).astype(points.dtype)
        count = hot.sum(0)
        return hot.T @ points / jnp.maximum(count, 1)[:, None], count

    return lax.fori_loop(0, 5, step, (centres, jnp.zeros(k)))


@program(lambda d: (d.normal(50_000), d.normal(200)))
def kernel_density(sample, grid):
    """A Gaussian density estimate with Silverman's bandwidth."""
    h = 1.06 * sample.std() * len(sample) ** -0.2
    z = (grid[:, None] - sample[None, :]) / h
    return np.exp(-0.5 * z * z).mean(1) / (h * np.sqrt(2 * np.pi))


@program(lambda d: (d.normal(20_000, 4), d.normal(6, 4), d.uniform(6, 4, low=0.5, high=2.0)))
def gaussian_mixture(x, means, variances):
    """Responsibilities in the log domain, and one update of weights, means and variances."""
    diff = x[:, None, :] - means
    log_p = -0.5 * (diff**2 / variances + np.log(2 * np.pi * variances)).sum(-1)
    top = log_p.max(axis=1, keepdims=True)
    log_sum = top + np.log(np.exp(log_p - top).sum(axis=1, keepdims=True))
    r = np.exp(log_p - log_sum)
    n = r.sum(0)
    new_means = r.T @ x / n[:, None]
    new_vars = np.einsum("nk,nkd->kd", r, (x[:, None, :] - new_means) ** 2) / n[:, None]
    return n / len(x), new_means, new_vars, log_sum.mean()


@program(lambda d: (d.normal(100_000, 12), d.below(2, 100_000) * 1.0), tolerance=1e-8)
def logistic_newton(x, y):
    """Four steps of Newton's method for a logistic regression with a ridge."""
    w = np.zeros(x.shape[1])
    for _ in range(4):
        p = 1 / (1 + np.exp(-(x @ w)))
        gradient = x.T @ (p - y) + 0.1 * w
        hessian = (x * (p * (1 - p))[:, None]).T @ x + 0.1 * np.eye(x.shape[1])
        w = w - np.linalg.solve(hessian, gradient)
    return w


@program(lambda d: (d.uniform(2_000_000, high=10.0),))
def binned_moments(x):
    """Counts, means and variances of a sample in fifty equal bins."""
    n = 50
    bins = np.clip((x * (n / 10.0)).astype(np.int64), 0, n - 1)
    count = np.bincount(bins, minlength=n)
    total = np.bincount(bins, weights=x, minlength=n)
    square = np.bincount(bins, weights=x * x, minlength=n)
    mean = total / np.maximum(count, 1)
    return count, mean, square / np.maximum(count, 1) - mean**2


@binned_moments.in_jax
def _(jnp, lax, x):
    n = 50
    bins = jnp.clip((x * (n / 10.0)).astype(jnp.int64), 0, n - 1)
    count = jnp.bincount(bins, length=n)
    total, square = jnp.bincount(bins, x, length=n), jnp.bincount(bins, x * x, length=n)
    mean = total / jnp.maximum(count, 1)
    return count, mean, square / jnp.maximum(count, 1) - mean**2


@program(lambda d: (d.normal(300, 2000),), tolerance=1e-8)
def rank_correlation(x):
    """Spearman's correlation of all pairs of rows."""
    ranks = x.argsort(axis=1).argsort(axis=1).astype(np.float64)
    ranks = ranks - ranks.mean(axis=1, keepdims=True)
    ranks = ranks / np.sqrt((ranks**2).sum(axis=1, keepdims=True))
    return ranks @ ranks.T


@program(lambda d: (d.normal(1_000_000),))
def rolling_statistics(x):
    """Mean and deviation over a window of a hundred, by running sums."""
    w = min(100, len(x) // 2)
    s, q = np.cumsum(x), np.cumsum(x * x)
    total = s[w:] - s[:-w]
    squares = q[w:] - q[:-w]
    mean = total / w
    return mean, np.sqrt(np.maximum(squares / w - mean**2, 0))


@program(lambda d: (d.normal(2000, 500), d.normal(2000)))
def bootstrap_of_slopes(noise, x):
    """Slopes of many resampled lines at once, their mean and spread, and a robust middle."""
    y = 2.0 * x[:, None] + noise
    xm, ym = x.mean(), y.mean(0)
    slopes = ((x - xm)[:, None] * (y - ym)).sum(0) / ((x - xm) ** 2).sum()
    return slopes.mean(), slopes.std(), np.median(slopes), np.percentile(slopes, np.array([5, 95]))


@program(lambda d: (d.uniform(3000, 64), d.uniform(3000, 64)), tolerance=1e-8)
def divergences(p, q):
    """Kullback and Leibler's, Jensen and Shannon's and Hellinger's distance of rows."""
    p, q = p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)
    m = (p + q) / 2

    def kl(a, b):
        return np.where(a > 0, a * np.log(a / b), 0.0).sum(1)

    hellinger = np.sqrt(((np.sqrt(p) - np.sqrt(q)) ** 2).sum(1) / 2)
    return kl(p, q), (kl(p, m) + kl(q, m)) / 2, hellinger


@program(lambda d: (d.normal(3000, 3), d.normal(3000, 3)), tolerance=1e-8)
def energy_distance(x, y):
    """The energy distance of two samples, by all pairs."""

    def mean_distance(a, b):
        d2 = (a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - 2 * a @ b.T
        return np.sqrt(np.maximum(d2, 0) + 1e-9).mean()

    return 2 * mean_distance(x, y) - mean_distance(x, x) - mean_distance(y, y)
