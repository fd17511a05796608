"""Random numbers: distributions, keys, the same values under every transform,
and errors with a remedy.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import ge2
from ge2 import random
from ge2.base.arrays import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from ge2.base.config import config
from ge2.base.errors import InputError, ShapeError
from ge2.transforms import grad, make_jaxpr, vmap

KEY = random.key(2024)
FLOATS = (FLOAT16, BFLOAT16, FLOAT32, FLOAT64)
MANTISSA = {FLOAT16: 11, BFLOAT16: 8, FLOAT32: 24, FLOAT64: 53}


def erf(x: Any) -> Any:
    return np.vectorize(math.erf)(x)


def distance(x: Any, cdf: Any) -> float:
    """The statistic of Kolmogorov and Smirnov times sqrt(n): above 2 with probability 7e-4."""
    x = np.sort(np.asarray(x, FLOAT64).ravel())
    n = len(x)
    expected = cdf(x)
    gap = np.maximum(np.arange(1, n + 1) / n - expected, expected - np.arange(n) / n)
    return float(gap.max() * math.sqrt(n))


def chi_square(x: Any, probabilities: Any) -> float:
    """How many standard deviations the counts of 0, 1, ... are from what is expected."""
    probabilities = np.asarray(probabilities)
    counts, n = np.bincount(np.asarray(x).ravel(), minlength=len(probabilities)), np.size(x)
    assert len(counts) == len(probabilities)
    statistic = np.sum((counts - n * probabilities) ** 2 / (n * probabilities))
    degrees = len(probabilities) - 1
    return float((statistic - degrees) / math.sqrt(2 * degrees))


# --------------------------------------------------------------------------------------------- keys


def test_the_numbers_never_change() -> None:
    assert random.key(2**32 + 5).tolist() == [5, 1]
    assert random.bits(random.key(0), (4,)).tolist() == [
        0x6627E8D5,
        0xE169C58D,
        0xBC57AC4C,
        0x9B00DBD8,
    ]
    assert random.uniform(random.key(0), (), np.float32) == np.float32((0x6627E8D5 >> 8) * 2.0**-24)


def test_a_key_is_its_seed() -> None:
    for seed in (0, 7, 2**40 + 3, -1):
        assert np.array_equal(random.key(seed), random.key(np.int64(seed)))
        assert np.array_equal(random.key(seed), random.key(np.array(seed)))
        assert np.array_equal(random.key(seed), vmap(random.key)(np.array([seed]))[0])


def test_split_keys_are_distinct_and_lead_apart() -> None:
    keys = random.split(KEY, (3, 4))
    assert keys.shape == (3, 4, 2)
    assert keys.dtype == np.uint32
    assert np.array_equal(keys.reshape(12, 2), random.split(KEY, 12))
    folded = random.fold_in(KEY, np.arange(12))
    streams = np.concatenate(
        [
            vmap(lambda k: random.bits(k, (50,), np.uint64))(k)
            for k in (random.split(KEY, 12), folded)
        ]
    )
    assert len(np.unique(streams)) == 24 * 50


def test_fold_in_takes_a_number_or_many() -> None:
    many = random.fold_in(KEY, np.arange(5))
    assert all(np.array_equal(many[i], random.fold_in(KEY, i)) for i in range(5))
    assert np.array_equal(random.fold_in(KEY, -1), random.fold_in(KEY, np.int64(-1)))
    assert np.array_equal(random.fold_in(KEY, 3), random.fold_in(KEY, np.uint8(3)))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (3, r"3 is a number, not a key\n.*\n  try  ge2.random.key\(3\)"),
        (np.int64(3), "a number, not a key"),
        (np.random.default_rng(0), r"Generator is not a key: a key is uint32\[2\]"),
        (None, "NoneType is not a key"),
        (np.zeros(2), r"not a key: a key is u32\[2\]; got f64\[2\]"),
        (np.zeros(3, np.uint32), r"got u32\[3\]"),
        (
            np.zeros((5, 2), np.uint32),
            r"many keys were given, not one(.|\n)*try  keys\[i\], or ge2.vmap",
        ),
    ],
)
@pytest.mark.parametrize(
    "f", [random.uniform, random.split, random.normal, random.bits], ids=lambda f: f.__name__
)
def test_what_is_no_key(f: Any, bad: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        f(bad)


def test_a_traced_number_is_no_key() -> None:
    with pytest.raises(InputError, match="a number, not a key"):
        make_jaxpr(lambda k: random.uniform(k))(3)


def test_what_is_no_seed() -> None:
    for bad in (1.5, "7", None, np.zeros(2, int), np.float32(1)):
        with pytest.raises(InputError, match="a seed is an integer"):
            random.key(bad)
    with pytest.raises(InputError, match="fold_in takes an integer"):
        random.fold_in(KEY, 1.5)


# ------------------------------------------------------------------------------------ distributions


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_uniform(dtype: np.dtype) -> None:
    x = random.uniform(KEY, (200, 100), dtype)
    assert x.dtype == dtype
    assert x.shape == (200, 100)
    scaled = x.astype(FLOAT64) * 2.0 ** MANTISSA[dtype]
    assert np.array_equal(scaled, np.floor(scaled))
    assert scaled.min() >= 0
    assert scaled.max() < 2.0 ** MANTISSA[dtype]
    spread = 2.0 ** -MANTISSA[dtype]
    assert (
        distance(
            x.astype(FLOAT64) + spread * random.uniform(random.fold_in(KEY, 1), (200, 100)),
            lambda t: t,
        )
        < 2
    )


def test_uniform_between_bounds() -> None:
    low, high = np.array([-3.0, 10.0]), np.array([5.0, 10.5])
    x = random.uniform(KEY, (20000, 2), minval=low, maxval=high)
    assert np.all((x >= low) & (x < high))
    assert distance((x - low) / (high - low), lambda t: t) < 2
    assert random.uniform(KEY, (), minval=2, maxval=2) == 2
    near = random.uniform(KEY, (10000,), FLOAT16, 1.0, 1.002)
    assert set(near.astype(float).tolist()) <= {1.0, 1 + 2.0**-10}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_normal(dtype: np.dtype) -> None:
    x = random.normal(KEY, (333, 301), dtype)
    assert x.dtype == dtype
    x = x.astype(FLOAT64)
    if dtype in (FLOAT32, FLOAT64):
        assert distance(x, lambda t: (1 + erf(t / math.sqrt(2))) / 2) < 2
    n = x.size
    assert abs(x.mean()) < 4 / math.sqrt(n)
    assert abs((x**2).mean() - 1) < 4 * math.sqrt(2 / n) + 2.0 ** -MANTISSA[dtype]
    assert abs((x**4).mean() - 3) < 4 * math.sqrt(96 / n) + 2.0 ** (2 - MANTISSA[dtype])
    pairs = x.ravel()[: n // 2 * 2].reshape(2, -1)
    assert abs((pairs[0] * pairs[1]).mean()) < 4 / math.sqrt(n // 2)


def test_the_tail_of_normal_is_that_of_normal() -> None:
    x = np.abs(random.normal(KEY, (4_000_000,), np.float32))
    assert np.all(np.isfinite(x))
    for t in (3.0, 4.0, 4.5):
        expected = math.erfc(t / math.sqrt(2)) * x.size
        assert abs(np.count_nonzero(x > t) - expected) < 4 * math.sqrt(expected)


@pytest.mark.parametrize(("dtype", "reach"), [(FLOAT32, 6.7), (FLOAT64, 9.4)], ids=str)
def test_the_ends_of_normal_are_finite(
    monkeypatch: pytest.MonkeyPatch, dtype: np.dtype, reach: float
) -> None:
    lowest = lambda key, shape, unsigned: np.zeros(shape, unsigned)  # noqa: E731
    highest = lambda key, shape, unsigned: np.full(shape, np.iinfo(unsigned).max, unsigned)  # noqa: E731
    monkeypatch.setattr(random, "bits", lowest)
    assert reach < random.normal(KEY, (2,), dtype)[0] < reach + 0.2
    assert reach < random.exponential(KEY, (), dtype) * 2 < 200
    monkeypatch.setattr(random, "bits", highest)
    assert np.all(np.abs(random.normal(KEY, (2,), dtype)) < 1e-3)
    assert 0 <= random.exponential(KEY, (), dtype) < 1e-6


def test_exponential() -> None:
    for dtype in (FLOAT32, FLOAT64):
        x = random.exponential(KEY, (50000,), dtype)
        assert x.dtype == dtype
        assert distance(x, lambda t: 1 - np.exp(-t)) < 2


def test_gumbel_and_categorical() -> None:
    for dtype in (FLOAT32, FLOAT64):
        x = random.gumbel(KEY, (50000,), dtype)
        assert x.dtype == dtype
        assert distance(x, lambda t: np.exp(-np.exp(-t))) < 2
    p = np.array([[0.1, 0.2, 0.7], [0.25, 0.5, 0.25]])
    drawn = random.categorical(KEY, np.log(p), shape=(20000, 2))
    assert drawn.dtype == np.int64
    assert all(chi_square(drawn[:, i], p[i]) < 4 for i in range(2))
    never = random.categorical(KEY, np.array([0.0, -np.inf]), shape=(1000,))
    assert not never.any()
    turned = random.categorical(KEY, np.log(p).T, axis=0)
    assert np.array_equal(turned, random.categorical(KEY, np.log(p)))


def test_bernoulli() -> None:
    p = np.array([0.0, 0.1, 0.75, 1.0])
    x = random.bernoulli(KEY, p, (40000, 4))
    assert x.dtype == bool
    n = np.count_nonzero(x, axis=0)
    assert (n[0], n[3]) == (0, 40000)
    assert np.all(np.abs(n - 40000 * p) <= 4 * np.sqrt(40000 * p * (1 - p)))
    assert random.bernoulli(KEY, p).shape == (4,)
    assert random.bernoulli(KEY).shape == ()
    assert random.bernoulli(KEY, np.float32(0.5), (3,)).shape == (3,)


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
def test_randint(dtype: str) -> None:
    x = random.randint(KEY, (70000,), 3, 10, dtype)
    assert x.dtype == dtype
    assert chi_square(x - 3, np.full(7, 1 / 7)) < 5
    assert np.array_equal(x, random.randint(KEY, (70000,), np.array(3), np.array(10), dtype))
    info = np.iinfo(dtype)
    whole = random.randint(KEY, (4000,), info.min, info.max + 1, dtype)
    high = (whole >= (info.max - info.min) // 2 + 1 + info.min).mean()
    assert abs(high - 0.5) < 4 * 0.5 / math.sqrt(4000)
    assert set(random.randint(KEY, (50,), info.max, info.max + 1, dtype).tolist()) == {info.max}


def test_randint_of_a_wide_range_favours_no_third() -> None:
    x = random.randint(KEY, (60000,), 0, 3 * 2**62, np.uint64)
    assert chi_square((x >> np.uint64(62)).astype(int), np.full(3, 1 / 3)) < 5
    below_zero = random.randint(KEY, (60000,), -(2**63), 2**62)
    assert chi_square((below_zero >> 62) + 2, np.full(3, 1 / 3)) < 5


def test_randint_between_arrays() -> None:
    low, high = np.array([-5, 0, 7]), np.array([-3, 100, 7])
    x = random.randint(KEY, (1000, 3), low, high)
    assert np.all(x[:, 2] == 7)  # an empty range gives its least value
    assert set(x[:, 0].tolist()) == {-5, -4}
    assert x[:, 1].max() == 99


def test_ranges_that_do_not_exist() -> None:
    for low, high, dtype in (
        (3, 3, int), (5, 2, int), (0, 257, np.uint8), (-1, 3, np.uint8), (0, 2**63 + 1, np.int64),
    ):  # fmt: skip
        with pytest.raises(ShapeError, match="is no range of"):
            random.randint(KEY, (), low, high, dtype)
    with pytest.raises(InputError, match=r"integer bounds; got 1\.5"):
        random.randint(KEY, (), 0, 1.5)
    with pytest.raises(InputError, match="randint makes integers"):
        random.randint(KEY, (), 0, 2, float)


def test_permutation() -> None:
    x = random.permutation(KEY, 1000)
    assert sorted(x.tolist()) == list(range(1000))
    assert x.tolist() != list(range(1000))
    table = np.arange(24).reshape(2, 3, 4)
    for axis in (0, 1, 2, -1):
        y = random.permutation(KEY, table, axis)
        assert y.shape == table.shape
        assert np.array_equal(np.sort(y, axis), table)
    first = vmap(lambda k: random.permutation(k, 4))(random.split(KEY, 12000))[:, 0]
    assert chi_square(first, np.full(4, 1 / 4)) < 5


def test_choice() -> None:
    p = np.array([0.1, 0.0, 0.6, 0.3])
    x = random.choice(KEY, 4, (20000,), p=p)
    assert np.count_nonzero(x == 1) == 0
    assert chi_square(np.array([0, 0, 1, 2])[x], p[p > 0]) < 5
    assert chi_square(random.choice(KEY, 5, (20000,)), np.full(5, 0.2)) < 5
    items = np.arange(12).reshape(3, 4) * 10
    assert random.choice(KEY, items, (2, 5)).shape == (2, 5, 4)
    assert random.choice(KEY, items, (2,), axis=1).shape == (3, 2)
    assert sorted(random.choice(KEY, 6, (2, 3), replace=False).ravel().tolist()) == list(range(6))
    drawn = vmap(lambda k: random.choice(k, 4, (2,), replace=False, p=p))(random.split(KEY, 20000))
    assert np.all(drawn[:, 0] != drawn[:, 1])
    assert chi_square(np.array([0, 0, 1, 2])[drawn[:, 0]], p[p > 0]) < 5
    assert random.choice(KEY, 3, (0,)).shape == (0,)
    with pytest.raises(ShapeError, match="5 elements of 4 without replacement"):
        random.choice(KEY, 4, (5,), replace=False)
    with pytest.raises(ShapeError, match="one probability for each of 4"):
        random.choice(KEY, 4, (5,), p=np.ones(3))


# --------------------------------------------------------------------------------------- transforms

DRAWS = {
    "bits": lambda k: random.bits(k, (3, 5), np.uint64),
    "uniform": lambda k: random.uniform(k, (3, 5), minval=-1, maxval=2),
    "normal": lambda k: random.normal(k, (3, 5)),
    "half": lambda k: random.normal(k, (7,), BFLOAT16),
    "scalar": lambda k: random.normal(k),
    "exponential": lambda k: random.exponential(k, (4,)),
    "gumbel": lambda k: random.gumbel(k, (4,), np.float32),
    "categorical": lambda k: random.categorical(k, np.arange(12.0).reshape(3, 4)),
    "bernoulli": lambda k: random.bernoulli(k, 0.3, (20,)),
    "randint": lambda k: random.randint(k, (9,), -5, 1000),
    "bytes": lambda k: random.randint(k, (9,), -5, 100, np.int8),
    "permutation": lambda k: random.permutation(k, np.arange(20).reshape(4, 5), axis=1),
    "choice": lambda k: random.choice(k, 9, (4,), p=np.arange(9.0)),
    "no replacement": lambda k: random.choice(k, 9, (4,), replace=False),
    "split": lambda k: random.split(k, 3),
    "fold_in": lambda k: random.fold_in(k, 7),
    "chain": lambda k: random.uniform(random.fold_in(random.split(k)[1], 3), (2,)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_batch_of_keys_is_the_loop(name: str) -> None:
    keys = random.split(KEY, 4)
    got, draw = vmap(DRAWS[name])(keys), DRAWS[name]
    assert all(np.array_equal(got[i], draw(keys[i])) for i in range(4))
    assert got.dtype == draw(keys[0]).dtype


@pytest.mark.parametrize("name", DRAWS)
def test_a_traced_key_draws_the_same(name: str) -> None:
    closed = make_jaxpr(DRAWS[name])(KEY)
    assert np.array_equal(closed(KEY)[0], DRAWS[name](KEY))
    assert "random_" in str(closed)


@pytest.mark.exhaustive("executor")
@pytest.mark.parametrize("executor", ["c", "blocked"])
@pytest.mark.parametrize("name", DRAWS)
def test_jit_draws_the_same(name: str, executor: str) -> None:
    """The bits are the same; a logarithm in C may round another way than NumPy's."""
    with config.using(executor=executor):
        draw = ge2.jit(DRAWS[name])
        for k in random.split(KEY, 2):
            same(draw(k), DRAWS[name](k), executor)
        keys = random.split(KEY, 3)
        same(ge2.jit(vmap(DRAWS[name]))(keys), vmap(DRAWS[name])(keys), executor)


def same(got: np.ndarray, want: np.ndarray, executor: str) -> None:
    assert got.dtype == want.dtype
    if executor == "c" and want.dtype in (np.float32, np.float64):
        np.testing.assert_allclose(got, want, rtol=16 * np.finfo(want.dtype).eps)
    else:
        assert np.array_equal(got, want)


def test_seeds_and_steps_may_be_arguments_of_jit() -> None:
    draw = ge2.jit(lambda seed, step: random.uniform(random.fold_in(random.key(seed), step), (2,)))
    for seed, step in ((0, 1), (-5, 2), (2**40, 3)):
        assert np.array_equal(
            draw(seed, step), random.uniform(random.fold_in(random.key(seed), step), (2,))
        )
    bounded = ge2.jit(lambda n: random.randint(KEY, (5,), 0, n))
    assert np.array_equal(bounded(7), random.randint(KEY, (5,), 0, 7))


def test_bounds_may_be_traced_and_batched() -> None:
    high = np.array([2, 5, 9])
    x = vmap(lambda h: random.randint(KEY, (50,), 0, h))(high)
    assert all(
        np.array_equal(x[i], random.randint(KEY, (50,), 0, int(h))) for i, h in enumerate(high)
    )
    y = vmap(lambda s: random.uniform(KEY, (5,), minval=-s, maxval=s))(np.array([1.0, 4.0]))
    assert np.allclose(y[1], 4 * y[0])


def test_a_derivative_flows_through_the_scale_alone() -> None:
    draw = random.normal(KEY, (5,))
    assert np.isclose(grad(lambda s: np.sum(s * random.normal(KEY, (5,))))(2.0), draw.sum())
    assert np.isclose(
        grad(lambda s: np.sum(random.uniform(KEY, (5,), minval=0.0, maxval=s)))(2.0),
        random.uniform(KEY, (5,)).sum(),
    )
