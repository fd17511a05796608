"""No extreme loses a NaN, wherever it is, however many loops and threads a reduction is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.compile import compile_graph
from tests.exhaustive import SAMPLING
from tests.small import TINY
from tests.templates.harness import IS_GCC, build
from tests.together import needs_compiler, together

SHAPES, DTYPES = (
    ((5, 8), (3, 70), (33, 40)),
    (np.float16, ml_dtypes.bfloat16, np.float32, np.float64),
)
FOLDS: tuple[Callable[..., Any], ...] = (
    np.max, np.min, np.ptp, np.argmax, lambda a, axis: np.max(a, axis=axis) + np.sum(a, axis=axis),
)  # fmt: skip
BEFORE: tuple[Callable[[Any], Any], ...] = (
    lambda a: a + a[:, :1], lambda a: a + a[:1], lambda a: a.T * 2, lambda a: a,
)  # fmt: skip
CASES = [*product(SHAPES, DTYPES, FOLDS, BEFORE, (None, 0, 1), (1, 2))]


def program(fold: Any, before: Any, axis: int | None) -> Callable[[Any], Any]:
    return lambda a: fold(before(a), axis=axis)


def has_nan(y: Any) -> Any:
    """Where a NaN is; of indices, the indices."""
    y = np.asarray(y)
    return y if y.dtype.kind == "i" else np.isnan(y.astype(np.float64))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "executor", [pytest.param("c", marks=needs_compiler), "c, cut small", "blocked"]
)
def test_no_extreme_loses_a_nan(executor: str, rng: np.random.Generator) -> None:
    name, tuning = executor.split(",")[0], (TINY,) if "small" in executor else ()
    made = []
    with together("-Og") if name == "c" else nullcontext():
        for at in rng.choice(len(CASES), 60 if SAMPLING.every else 25, replace=False):
            shape, dtype, fold, before, axis, threads = CASES[at]
            f, a = program(fold, before, axis), rng.standard_normal(shape).astype(dtype)
            with config.using(executor=name, threads=threads, tuning=tuning):
                executable = compile_graph(ge2.jit(f).trace(a).jaxpr)
                executable.build()
            made.append((CASES[at], f, a, executable))
    for case, f, a, executable in made:
        for place in ((0, 0), (1, a.shape[1] // 2), (a.shape[0] - 1, a.shape[1] - 1)):
            x = a.copy()
            x[place] = np.nan
            with np.errstate(invalid="ignore"):
                wanted = has_nan(f(x))
            np.testing.assert_array_equal(
                has_nan(executable(x)[0]), wanted, err_msg=f"{case} {place}"
            )


def test_debug_nans_sees_what_an_extreme_met() -> None:
    """The maximum of an infinity less itself, in the second of several inner loops."""
    a = np.ones((5, 8), np.float32)
    a[1, 4] = np.inf
    with ge2.debug_nans(), pytest.raises(ge2.errors.NonFiniteError, match="sub made a NaN"):
        ge2.jit(lambda a: np.max((a - a) + a[:, :1]))(a)


def test_places_of_extremes_in_runs(rng):
    """The first of equals, in the first run and in later ones, NaN before all; no number at all."""
    n = 700
    ties = rng.integers(0, 4, (3, n))
    late = np.where(np.arange(n) == 610, 9.0, ties[0])
    lines = [ties[1] * 1.0, late, np.full(n, -np.inf), np.full(n, np.inf), np.arange(n) * 1.0]
    lines += [np.where(np.arange(n) % 333 == 300, np.nan, late), np.full(n, np.nan)]
    x = np.stack(lines)
    arrays = x, x.astype(np.float32), ties.astype(np.int8), ties == 3, ties.astype(np.uint16)

    def both(*arrays):
        return [f(a * 1, 1) for a in arrays for f in (np.argmax, np.argmin)] + [
            (np.argmax(a), np.argmin(a)) for a in arrays
        ]

    low = ge2.jit(both).lower(*arrays)
    assert "_part" in "".join(map(str, low.kernels))
    for ours, wanted in zip(low.executable(*arrays), ge2.tree.leaves(both(*arrays)), strict=True):
        np.testing.assert_array_equal(ours, wanted)


def neighbours(x: Any) -> Any:
    """Places in a ring."""
    i = np.floor((x[:1] - x) % 300.0)
    at = i.astype(np.int32) % 300
    return x - i, at, (at + 1) % 300


@pytest.mark.skipif(not IS_GCC, reason="reads what gcc reports")
def test_what_is_known_of_a_choice_costs_no_vectors(tmp_path: Path) -> None:
    """Of an infinity that a mask chooses, or a function becomes, gcc knows how it compares; and of a
    remainder that is 0 all that follows.
    """
    chosen: list[Callable[[Any], Any]] = [
        np.exp, lambda x: np.where(x > 0.5, x, -np.inf), lambda x: np.where(x > 0.5, x * 2, 0.0),
    ]  # fmt: skip
    folds = [lambda y: y.max(0), lambda y: y.max(1), lambda y: y.argmin(1)]
    made = [lambda x, f=f, fold=fold: fold(f(x)) for f, fold in product(chosen, folds)]
    x, scalar = np.ones((200, 300), np.float32), []
    for at, f in enumerate([*made, neighbours]):
        text = ge2.jit(f).lower(x).as_text("c")
        said = build(text, tmp_path, ["-w", "-fopt-info-vec-optimized"])[1].splitlines()
        done = {line.split(":")[1] for line in said if "loops.c:" in line and "loop vec" in line}
        lines = enumerate(text.splitlines(), 1)
        simd = [
            i for i, line in lines if "#pragma omp simd" in line
        ]  # the pragma, `for`, what it does
        if not simd or not done.issuperset(str(i + 2) for i in simd):
            scalar.append(at)
    assert scalar == []
