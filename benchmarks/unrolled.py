"""First calls, with nothing cached, of Python loops whose iterations are whole arrays: sines that
feed one another and their gradient, stencils of Jacobi's iteration.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import ge2
from benchmarks.fresh import caches, fresh
from benchmarks.options import USUAL, Options
from benchmarks.peers import installed
from benchmarks.record import AtMost, Row

SINES, STENCILS = 100, 30
LINE, SIDE = 100_000, 300
LAYOUT = "float64, C order"


def sines(y: Any, xp: Any) -> Any:
    for _ in range(SINES):
        y = y + 0.01 * xp.sin(y)
    return y


def total(y: Any, xp: Any) -> Any:
    return sines(y, xp).sum()


def on_a_line(u: Any, xp: Any) -> Any:
    for _ in range(STENCILS):
        u = xp.concatenate([u[:1], 0.5 * (u[:-2] + u[2:]), u[-1:]])
    return u


def on_a_square(u: Any, xp: Any) -> Any:
    for _ in range(STENCILS):
        inner = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])
        middle = xp.concatenate([u[1:-1, :1], inner, u[1:-1, -1:]], axis=1)
        u = xp.concatenate([u[:1], middle, u[-1:]])
    return u


# each: what is compiled, whether its gradient is, the argument's shape, seconds that it may take
WORKS: dict[str, tuple[Callable[..., Any], bool, tuple[int, ...], float]] = {
    f"{SINES} sines": (sines, False, (LINE,), 0.8),
    f"gradient of {SINES} sines": (total, True, (LINE,), 1.2),
    f"{STENCILS} iterations of Jacobi on a line": (on_a_line, False, (LINE,), 1.0),
    f"{STENCILS} iterations of Jacobi on a square": (on_a_square, False, (SIDE, SIDE), 1.0),
}


def run(options: Options = USUAL) -> list[Row]:
    names, rows = ["ge2", *installed(["jax"])], []
    for work, (_, _, shape, bound) in WORKS.items():
        times: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(options.rounds_or(5)):
            for name in names:
                text = f"from benchmarks.unrolled import first; first({work!r}, {name!r})"
                with TemporaryDirectory() as folder:
                    times[name].append(float(fresh(text, **caches(folder)).said))
        others = {name: median(found) for name, found in times.items()}
        ours, targets = others.pop("ge2"), () if options.quick else (AtMost(bound),)
        title = f"{work}, a Python loop: first call, nothing cached"
        rows.append(Row(title, "seconds", ours, others, targets, LAYOUT, {"shape": list(shape)}))
    return rows


def first(work: str, library: str) -> None:
    """Compiles and calls one of them, in ge2 or JAX, and prints the seconds."""
    f, with_gradient, shape, _ = WORKS[work]
    x, expected = np.random.default_rng(0).random(shape), None
    if library == "jax":
        import jax
        import jax.numpy as xp

        jax.config.update("jax_enable_x64", True)
        made, x = partial(f, xp=xp), xp.asarray(x)
        compiled: Any = jax.jit(jax.grad(made) if with_gradient else made)
    else:
        made = partial(f, xp=np)
        compiled = ge2.jit(ge2.grad(made) if with_gradient else made)
        expected = None if with_gradient else made(x)
    began = time.perf_counter()
    result = np.asarray(compiled(x))
    print(time.perf_counter() - began)
    if expected is not None:
        np.testing.assert_allclose(result, expected, rtol=1e-10)
