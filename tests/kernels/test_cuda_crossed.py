"""Folds over pairs of what two small arrays hold: a thread has several columns. In the emulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.passes.context import ShortSums, Tuning
from ge2.targets.cuda.limits import H200, Limits
from tests.small import planned_by
from tests.together import needs_compiler

# by which small programs are written as large ones are
CHIP: Final = planned_by(H200, "columns", pairs=1 << 10)
PASSES: Final = Tuning(short_sums=ShortSums(elements=1 << 10))


def nearest(x: Any, c: Any) -> Any:
    d = ((x[:, None] - c) ** 2).sum(-1)
    return d.argmin(1), np.sqrt(d.min(1)).sum()


def furthest(x: Any, c: Any) -> Any:
    """Down the columns."""
    d: Any = np.sqrt(((c - x[:, None]) ** 2).sum(-1) + 1)
    return d.argmax(0), d.max(0)


def energy(p: Any) -> Any:
    d = p[:, None] - p
    return (1 / np.sqrt((d * d).sum(-1) + 1e-2)).sum()


def pull(p: Any, _: Any) -> Any:
    return ge2.grad(energy)(p)


def pull_by_hand(p: Any, _: Any) -> Any:
    d = p[:, None] - p
    return (-2 * d / ((d * d).sum(-1) + 1e-2)[..., None] ** 1.5).sum(1)


def both(p: Any, _: Any) -> Any:
    return ge2.value_and_grad(energy)(p)


def both_by_hand(p: Any, _: Any) -> Any:
    return np.atleast_1d(energy(p)), pull_by_hand(p, _)


def weighed(x: Any, c: Any) -> Any:
    """Several axes are kept, which no array treats as one, and two are folded."""
    y = x.reshape(-1, 4, x.shape[1])[:, :, 0]
    z = c[: len(c) // 2 * 2, 0].reshape(-1, 2)
    w = np.exp(-((y[:, :, None, None] - z) ** 2) * (1 + y[0][:, None, None] ** 2))
    return w.sum((2, 3))


def roots(x: Any, c: Any) -> Any:
    """Numbers of several kinds over one root."""
    r = np.sqrt((x[:, None, 0] - c[:, 0]) ** 2 + 0.25)
    return (2.0 / r + 0.3 / r + -(1 / r) / r + c[:, 0] / r).sum(1)


Case = tuple[Callable[..., Any], Callable[..., Any]]
CASES: Final[dict[str, Case]] = {
    "nearest": (nearest, nearest),
    "furthest": (furthest, furthest),
    "pull": (pull, pull_by_hand),
    "both": (both, both_by_hand),
    "weighed": (weighed, weighed),
    "roots": (roots, roots),
}
# points and centres, of which one number or the other is no multiple of what a block or a thread has
SIZES: Final = ((512, 24), (700, 37), (1028, 64))


def compiled(f: Callable[..., Any], chip: Limits = CHIP) -> Any:
    def call(*xs: Any) -> Any:
        with config.using(executor="shim", tuning=(chip, PASSES), shim_watch=True):
            return ge2.jit(f)(*xs)

    return call


def sources(f: Callable[..., Any], *shapes: tuple[int, ...]) -> list[str]:
    structs = [ge2.ShapeDtypeStruct(s, np.float32) for s in shapes]
    with config.using(executor="shim", tuning=(CHIP, PASSES)):
        return [k.source for k in ge2.jit(f).lower(*structs).kernels]


@needs_compiler
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_numpy(name: str, sizes: tuple[int, int], dtype: str) -> None:
    function, exact = CASES[name]
    rng = np.random.default_rng(5)
    xs = [rng.normal(size=(n, 3)).astype(dtype) for n in sizes]
    found, wanted = compiled(function)(*xs), exact(*(x.astype("f8") for x in xs))
    for y, w in zip(np.atleast_1d(*tuple_of(found)), np.atleast_1d(*tuple_of(wanted)), strict=True):
        scale = max(np.abs(w).max(), 1)
        near = 2e-5 if dtype == "f4" else 1e-12
        np.testing.assert_allclose(y / scale, w / scale, rtol=0, atol=near)


def tuple_of(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x, np.zeros(1))


@needs_compiler
@pytest.mark.parametrize("argument", [np.argmin, np.argmax])
def test_the_first_of_equals_and_of_nan(argument: Callable[..., Any]) -> None:
    """Also where all are infinite, and nothing is before the start."""
    rng = np.random.default_rng(3)
    x, c = (rng.integers(-2, 3, n).astype("f4") for n in (640, 24))
    c[[5, 9]] = np.inf, -np.inf
    x[::7], x[::64] = np.inf, np.nan
    f = compiled(lambda x, c: argument(np.exp(c) + (x[:, None] - c) * np.sqrt(c * c + 2.0), 1))
    with np.errstate(all="ignore"):
        wanted = argument(np.exp(c) + (x[:, None] - c) * np.sqrt(c * c + np.float32(2)), 1)
    np.testing.assert_array_equal(f(x, c), wanted)
    every = compiled(lambda x, c: argument(np.exp(x[:, None] * c) * np.sqrt(c), 1))
    none = np.full(24, np.inf, "f4") * (1 if argument is np.argmin else -1)
    with np.errstate(all="ignore"):
        wanted = argument(np.exp(x[:, None] * none) * np.sqrt(none), 1)
    np.testing.assert_array_equal(every(x, none), wanted)


def test_a_thread_has_several_columns() -> None:
    first, *rest = sources(nearest, (1 << 17, 8), (64, 8))
    assert "PACK     =    4" in first
    assert "ge2_near_argmin_step_f32" in first
    assert "ge2_fma_f32" in first
    assert len(rest) <= 2


def test_energy_and_forces_are_one_pass_over_pairs() -> None:
    texts = sources(both, (2048, 3), (1, 1))
    assert sum("ge2_root_f32(" in text for text in texts) == 1


def test_forces_are_one_pass_over_pairs() -> None:
    first, *rest = sources(pull, (2048, 3), (1, 1))
    assert first.count("ge2_root_f32(") == 1
    assert "ge2_div_f32(" not in first
    assert not any("for (int j" in each and "ge2_root" in each for each in rest)
