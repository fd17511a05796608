"""Sorting, searching, grouping, gathers and scatters."""

from __future__ import annotations

import numpy as np

from benchmarks.programs.program import program


@program(lambda d: (d.uniform(500_000), d.uniform(200)))
def quantile_bins(x, edges):
    """Where values fall between sorted edges, and how many are in each bin."""
    edges = np.sort(edges)
    at = np.searchsorted(edges, x)
    return at, np.bincount(at, minlength=len(edges) + 1)


@quantile_bins.in_jax
def _(jnp, lax, x, edges):
    edges = jnp.sort(edges)
    at = jnp.searchsorted(edges, x)
    return at, jnp.bincount(at, length=len(edges) + 1)


@program(lambda d: (d.below(1000, 400_000), d.normal(400_000)))
def group_by(key, value):
    """Sum, largest and mean of each of a thousand groups."""
    n = 1000
    count = np.bincount(key, minlength=n)
    total = np.zeros_like(value, shape=n)
    np.add.at(total, key, value)
    top = np.full_like(value, -np.inf, shape=n)
    np.maximum.at(top, key, value)
    return total, top, total / np.maximum(count, 1)


@group_by.in_jax
def _(jnp, lax, key, value):
    total = jnp.zeros(1000).at[key].add(value)
    top = jnp.full(1000, -jnp.inf).at[key].max(value)
    return total, top, total / jnp.maximum(jnp.bincount(key, length=1000), 1)


@program(lambda d: (d.normal(2000, 300),))
def top_ten(scores):
    """The ten largest of each row with their places, in order."""
    k = min(10, scores.shape[1])
    order = np.argsort(-scores, axis=1)[:, :k]
    return order, np.take_along_axis(scores, order, axis=1)


@program(lambda d: (d.below(1_000_000, 200_000),))
def runs_in_sorted_keys(keys):
    """Keys in order, where runs begin, and each key's place within its run."""
    order = np.argsort(keys)
    s = keys[order]
    first = np.concatenate([np.ones(1, bool), s[1:] != s[:-1]])
    place = np.arange(len(s))
    start = np.maximum.accumulate(np.where(first, place, 0))
    return s, first.sum(), place - start


@program(
    lambda d: (d.normal(20_000, 64, dtype=np.float32), d.below(20_000, 4096, 20)), tolerance=1e-5
)
def bags_of_embeddings(table, index):
    """Mean and largest of the rows that each line of indices names."""
    rows = table[index % len(table)]
    return np.concatenate([rows.mean(1), rows.max(1)], axis=1)


@program(lambda d: (d.normal(300, 1000), d.below(1000, 1000)))
def permuted_columns(x, key):
    """Columns in the order of a key, undone again, with the inverse permutation."""
    order = np.argsort(key, kind="stable")
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    y = np.cumsum(x[:, order], axis=1)
    return y[:, inverse], inverse


@permuted_columns.in_jax
def _(jnp, lax, x, key):
    order = jnp.argsort(key)
    inverse = jnp.zeros_like(order).at[order].set(jnp.arange(len(order)))
    return jnp.cumsum(x[:, order], axis=1)[:, inverse], inverse


@program(lambda d: (d.normal(1500, 3), d.normal(800, 3)), tolerance=1e-8)
def nearest_neighbours(points, queries):
    """The nearest point of each query, its distance, and a smooth vote of the three nearest."""
    d2 = ((queries[:, None, :] - points[None, :, :]) ** 2).sum(-1)
    nearest = d2.argmin(axis=1)
    three = np.sort(d2, axis=1)[:, :3]
    w = 1 / (three + 1e-6)
    return nearest, np.sqrt(d2.min(axis=1)), (w * three).sum(1) / w.sum(1)


@program(lambda d: (d.below(255, 300_000, dtype=np.uint8),))
def run_lengths_of_bytes(data):
    """Where bytes change, the length of the run that each ends, and the longest."""
    change = np.concatenate([data[1:] != data[:-1], np.ones(1, bool)])
    at = np.arange(len(data))
    last = np.maximum.accumulate(np.where(change, at, -1))
    before = np.concatenate([np.array([-1]), last[:-1]])
    length = np.where(change, at - before, 0)
    return length, length.max(), length.argmax()


@program(lambda d: (d.below(300, 300, 400), d.normal(300, 400)))
def scatter_by_rows(index, values):
    """A sparse matrix of two entries a row made dense, multiplied by itself."""
    n = index.shape[0]
    dense = np.zeros_like(values, shape=(n, n))
    rows = np.arange(n)
    for k in range(2):
        dense[rows, index[:, k] % n] += values[:, k]
    return dense @ dense.T, (dense != 0).sum(axis=0)


@scatter_by_rows.in_jax
def _(jnp, lax, index, values):
    n = index.shape[0]
    rows = jnp.arange(n)
    dense = jnp.zeros((n, n))
    for k in range(2):
        dense = dense.at[rows, index[:, k] % n].add(values[:, k])
    return dense @ dense.T, (dense != 0).sum(axis=0)


@program(lambda d: (d.normal(400_000),))
def outliers_by_deviation(x):
    """The median, the median deviation, and values beyond three of them pulled in."""
    middle = np.median(x)
    deviation = np.median(np.abs(x - middle)) * 1.4826
    low, high = middle - 3 * deviation, middle + 3 * deviation
    y = x.copy()
    y[x < low] = low
    y[x > high] = high
    return y, ((x < low) | (x > high)).sum()


@outliers_by_deviation.in_jax
def _(jnp, lax, x):
    middle = jnp.median(x)
    deviation = jnp.median(jnp.abs(x - middle)) * 1.4826
    low, high = middle - 3 * deviation, middle + 3 * deviation
    return jnp.clip(x, low, high), ((x < low) | (x > high)).sum()


@program(lambda d: (d.normal(200, 2000), d.uniform(1000, low=-2.0, high=2.0)))
def tables_interpolated(tables, at):
    """Many tables on one grid read at the same places, by index and weight."""
    n = tables.shape[1]
    place = (at + 2) / 4 * (n - 1)
    low = np.clip(place.astype(np.int64), 0, n - 2)
    w = place - low
    y = np.take(tables, low, axis=1) * (1 - w) + np.take(tables, low + 1, axis=1) * w
    return y, np.interp(at, np.linspace(-2, 2, n), tables[0])


@program(lambda d: (d.below(64, 200_000), d.below(64, 200_000)))
def confusion_matrix(truth, guess):
    """Counts of pairs, precision, recall and the agreement beyond chance."""
    n = 64
    counts = np.bincount(truth * n + guess, minlength=n * n).reshape(n, n)
    hits = np.diagonal(counts)
    rows, columns = counts.sum(1), counts.sum(0)
    total = counts.sum()
    chance = (rows * columns).sum() / total**2
    agreement = hits.sum() / total
    return counts, hits / np.maximum(rows, 1), (agreement - chance) / (1 - chance)


@confusion_matrix.in_jax
def _(jnp, lax, truth, guess):
    n = 64
    counts = jnp.zeros((n, n), jnp.int64).at[truth, guess].add(1)
    hits = jnp.diagonal(counts)
    rows, columns = counts.sum(1), counts.sum(0)
    total = counts.sum()
    chance = (rows * columns).sum() / total**2
    agreement = hits.sum() / total
    return counts, hits / jnp.maximum(rows, 1), (agreement - chance) / (1 - chance)
