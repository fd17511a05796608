"""C that costs the compiler little: vectors where they pay, the body of a parallel loop once."""

from __future__ import annotations

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from tests.small import TINY
from tests.together import needs_compiler

pytestmark = needs_compiler


def text_of(f, *args) -> str:
    return "".join(map(str, ge2.jit(f).lower(*args).kernels))


def edges(x):
    return x[:, :1] + x[:, 1:2] * x[:, -1:]


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8"])
def test_elements_apart_are_not_collected_for_a_few_operations(dtype, rng):
    x = rng.integers(0, 9, (301, 70)).astype(dtype)
    assert "omp simd" not in text_of(edges, x)
    np.testing.assert_array_equal(ge2.jit(edges)(x), edges(x))


def test_elements_apart_are_collected_for_many_operations(rng):
    def waves(x):
        return np.sin(np.exp(x[:, 1]) * np.cos(x[:, 1]))

    x = rng.random((301, 70))
    assert "omp simd" in text_of(waves, x)
    np.testing.assert_allclose(ge2.jit(waves)(x), waves(x), rtol=1e-14)


def test_sums_of_elements_apart_are_in_vectors(rng):
    """As their bits depend on it."""

    def total(x):
        return x[:, 1].sum()

    assert "omp simd reduction" in text_of(total, rng.random((301, 70)))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_numbers_before_a_parallel_loop_are_no_second_copy_of_it(threads, rng):
    def scaled(x, a, b):
        return x * np.sin(a + b) + np.cos(b)

    x, a, b = rng.random((300, 40)), rng.random(), rng.random()
    assert text_of(scaled, x, a, b).count("omp simd") == 1
    for tuning in ((), (TINY,)):
        with config.using(threads=threads, tuning=tuning):
            np.testing.assert_allclose(ge2.jit(scaled)(x, a, b), scaled(x, a, b), rtol=1e-14)


def test_many_small_products_are_one_loop_for_any_number_of_threads(rng):
    def multiplied(a, b):
        return a @ b

    a, b = rng.standard_normal((2, 9001, 4, 4))
    text = text_of(multiplied, a, b)
    assert text.count("ge2_product_tiny_f64(") == 1 and "ge2_share(" in text
    found = []
    for threads in (1, 2, 3):
        with config.using(threads=threads):
            found.append(ge2.jit(multiplied)(a, b))
    np.testing.assert_allclose(found[0], a @ b, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


def spread(x):
    """Tasks that read an array on the stack, scratch of the kernel, and numbers."""
    scale = np.sqrt(np.abs(x[:1, :3]) + 1.0)
    return (x[:, :3] - scale).sum(0), ((x - x.mean(0)) ** 2).sum(0) / 5.0, x.sum()


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["f4", "f8", "c16", "i4", "f2"])
def test_tasks_are_compiled_once_for_one_thread_and_for_several(dtype, rng):
    x = (rng.standard_normal((6000, 40)) * 4).astype(dtype)
    text = text_of(spread, x)
    assert "omp parallel" not in text and "ge2_share(" in text
    found = []
    for threads in (1, 2, 3):
        with config.using(threads=threads):
            found.append(ge2.jit(lambda x: spread(x))(x))
    for a, b, c, wanted in zip(*found, spread(x.astype("f8") if dtype == "f2" else x), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)
        np.testing.assert_allclose(a, wanted, rtol=2e-2 if dtype == "f2" else 1e-4, atol=1e-2)


def test_an_extreme_and_its_place_of_all_elements_in_tasks(rng):
    """Their state is several numbers, which each task has for itself."""
    x = rng.standard_normal(300_000)
    with config.using(threads=3):
        found = ge2.jit(lambda x: (x.argmax(), x.max(), np.sum(x * x)))(x)
    assert tuple(found[:2]) == (x.argmax(), x.max())


@pytest.mark.parametrize(("n", "function"), [(9, "ge2_select_few_f8"), (65, "ge2_select_f8")])
def test_short_lines_are_selected_from_by_counting_alone(n, function, rng):
    x = rng.standard_normal((300, n))
    median = ge2.jit(lambda x: np.median(x, axis=1))
    text = "".join(map(str, median.lower(x).kernels))
    assert f"{function.replace('f8', 'f64')}(" in text
    np.testing.assert_array_equal(median(x), np.median(x, axis=1))
