"""Matrix times vector, vector times matrix, a thin product: float64, beside NumPy's BLAS."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import ge2
from benchmarks.element_loops.program import in_float64
from benchmarks.options import USUAL, Options
from benchmarks.peers import peer
from benchmarks.ran import executor_of, remarks
from benchmarks.record import Faster, Row
from benchmarks.timing import medians

ROUNDS, BUDGET = 25, 6.0
ROWS, COLUMNS, QUICK = 4000, 5000, 100
THIN, WIDTH = 8, 2000


def product(a: Any, b: Any) -> Any:
    return a @ b


def works(quick: bool) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Operands of each product."""
    rng = np.random.default_rng(0)
    rows, columns, width = (QUICK,) * 3 if quick else (ROWS, COLUMNS, WIDTH)
    a = rng.standard_normal((rows, columns))
    return {
        "A @ x": (a, rng.standard_normal(columns)),
        "y @ A": (rng.standard_normal(rows), a),
        "thin @ square": (rng.standard_normal((THIN, width)), rng.standard_normal((width, width))),
    }


def run(options: Options = USUAL) -> list[Row]:
    with in_float64():
        return measured(options)


def measured(options: Options) -> list[Row]:
    compiled, jax, rows = ge2.jit(product), peer("jax"), []
    for name, (a, b) in works(options.quick).items():
        calls: dict[str, Any] = {"ge2": partial(compiled, a, b), "numpy": partial(product, a, b)}
        np.testing.assert_allclose(calls["ge2"](), calls["numpy"](), rtol=1e-9, atol=1e-9)
        if jax is not None:
            theirs, moved = jax.jit(product), [jax.numpy.asarray(x) for x in (a, b)]
            calls["jax"] = lambda f=theirs, of=moved: f(*of).block_until_ready()
        times = medians(calls, options.rounds_or(ROUNDS), BUDGET)
        targets = () if options.quick else (Faster(0.95, "numpy"),)
        sizes = {"operands": [list(a.shape), list(b.shape)]}
        notes = remarks(executor_of(compiled, a, b))
        ours = times.pop("ge2")
        rows.append(Row(name, "seconds", ours, times, targets, "float64, C order", sizes, notes))
    return rows
