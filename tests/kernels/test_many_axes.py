"""Arrays of many axes, none of which merge: each has a name of its own in a kernel."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.targets.c.kernels import lines
from ge2.targets.cuda.kernels import index_sums, moves, scatter

ORDER = (3, 0, 4, 1, 5, 2)
X = np.random.default_rng(0).standard_normal((3, 2, 3, 3, 2, 3)).astype(np.float32)


def along(f: Any, axis: int) -> Any:
    return lambda x: f(np.transpose(x, ORDER), axis)


PROGRAMS = {
    **{f"cumsum {n}": along(np.cumsum, n) for n in range(6)},
    **{f"cummax {n}": along(np.maximum.accumulate, n) for n in (1, 3)},
    "sort": along(np.sort, 2), "argsort": along(np.argsort, 1), "median": along(np.median, 3),
    "take": lambda x: np.take(np.transpose(x, ORDER), [[0, 1], [1, 1]], 2) * 1.0,
    "partition": lambda x: np.sort(np.partition(np.transpose(x, ORDER), 1, 1), 1),
    "pads": lambda x: np.cumsum(np.pad(np.transpose(x, ORDER), 1), 2),
    "joins": lambda x: np.sort(np.concatenate([np.transpose(x, ORDER)] * 2, 3), 3),
    "largest": lambda x: np.sort(np.transpose(x, ORDER), 3)[:, :, :, -2:],
}  # fmt: skip


@pytest.mark.exhaustive("executor")
@pytest.mark.parametrize("executor", ["c", "emulator"])
@pytest.mark.parametrize("f", PROGRAMS.values(), ids=PROGRAMS)
def test_axes_that_do_not_merge(f: Any, executor: str) -> None:
    """`np.cumsum` along the second of six wrote beyond its result in C: an axis had the name of a
    loop inside.
    """
    with config.using(executor=executor):
        np.testing.assert_allclose(ge2.jit(f)(X), f(X), rtol=1e-5, atol=1e-6)


ADDED = {
    "axes": (2, (4,), (4, 1, 0, 3, 2, 5)),
    "of pairs": (1, (2, 2), (6, 2, 0, 4, 1, 3, 5)),
    "of the last": (5, (3, 2), (1, 5, 0, 4, 2, 6, 3)),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("executor", ["c", "emulator"])
@pytest.mark.parametrize(("axis", "count", "order"), ADDED.values(), ids=ADDED)
def test_updates_of_axes_that_do_not_merge(
    axis: int,
    count: tuple[int, ...],
    order: tuple[int, ...],
    executor: str,
    rng: np.random.Generator,
) -> None:
    """The sums on a GPU read another axis than theirs, which a loop over updates had the name of."""
    shape = tuple(X.shape[a] for a in ORDER)
    whole = (*shape[:axis], *count, *shape[axis + 1 :])
    u = rng.standard_normal([whole[order.index(a)] for a in range(len(whole))]).astype(np.float32)
    places = rng.integers(0, shape[axis], count)

    def f(x: Any, u: Any, places: Any) -> Any:
        y = np.transpose(x, ORDER) * 1.0
        np.add.at(y, (*[slice(None)] * axis, places), np.transpose(u, order))
        return y

    with config.using(executor=executor):
        np.testing.assert_allclose(ge2.jit(f)(X, u, places), f(X, u, places), rtol=1e-5, atol=1e-6)


TEMPLATES = Path(__file__).parents[2] / "templates"
NAMED = re.compile(r"\b(?:int|int64_t|\{\{ [\w.]*index \}\}) (\w)(?: =|;|,)")


def names_in(files: Iterable[Path]) -> set[str]:
    return {name for file in files for name in NAMED.findall(file.read_text())}


def test_templates_name_nothing_as_axes_are_named() -> None:
    """What a template says of an axis would mean the other inside of a loop."""
    c = [*(TEMPLATES / "c/scan").glob("*.jinja")]
    c += [TEMPLATES / f"c/{name}.c.jinja" for name in ("sort", "top_k", "order_statistics")]
    assert "t" in names_in(c) and not names_in(c) & {*lines.LETTERS}
    cuda = [*(TEMPLATES / "cuda/scatter_sums").glob("*.jinja"), TEMPLATES / "cuda/scatter.cu.jinja"]
    assert "b" in names_in(cuda) and not names_in(cuda) & {*moves.OVER, *moves.ALONG}
    assert not names_in(cuda) & {*index_sums.WHERE, *scatter.WHERE}
    assert not {*moves.OVER, *moves.ALONG} & {*index_sums.WHERE, *scatter.WHERE}
