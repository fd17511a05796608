"""A long elementwise chain over a short last axis: density and its slopes by rational polynomials.

The shape of an equation of state of sea water (T. J. McDougall and P. M. Barker, "Getting started
with TEOS-10", 2011): polynomials in the square root of salinity, in temperature and in pressure,
which is the same at every point of the sea's surface; 48 coefficient terms that are read again and
again, some 300 operations. The coefficients are drawn, not measured.
"""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.options import USUAL, Options
from benchmarks.peers import peer
from benchmarks.record import Faster, Row
from benchmarks.timing import medians

LEVELS = 26
WORKS = {"chain-1000": 6, "chain-100000": 62, "chain-1000000": 196}  # the side of the surface
C = np.random.default_rng(0).uniform(0.1, 1.0, 48).tolist()


def horner(coefficients: Any, x: Any) -> Any:
    """A polynomial, the highest power first in its evaluation."""
    y = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        y = c + x * y
    return y


def state(salinity: Any, temperature: Any, pressure: Any, xp: ModuleType = np) -> tuple[Any, ...]:
    """Specific volume, and its slopes by temperature and salinity."""
    s, t, p = xp.maximum(salinity, 0.0) * 0.025, temperature * 0.025, pressure * 1e-4
    r = xp.sqrt(s)
    roots = (1.0, 1.0, 1.0, r, s, r)
    # 48 of them: each a coefficient, a power of temperature and perhaps one of salinity's root
    terms = []
    power = 1.0
    for k in range(8):
        terms += [c * power * root for c, root in zip(C[6 * k : 6 * k + 6], roots, strict=True)]
        power = power * t
    numerator = horner([horner(terms[3 * k : 3 * k + 3], p) for k in range(8)], r)
    denominator = 1.0 + horner([horner(terms[24 + 3 * k : 27 + 3 * k], p) for k in range(8)], r)
    by_t = horner([(k + 1) * terms[6 * k] for k in range(8)], p) - denominator * horner(
        terms[1::8], t
    )
    by_s = horner(terms[4::7], r) / (r + 0.5) - numerator * horner(terms[5::9], p)
    volume = numerator / denominator
    return volume, (by_t - volume) / denominator, (by_s - volume * by_t) / denominator


def arguments(side: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(1)
    shape = (side, side, LEVELS)
    return (
        rng.uniform(0, 38, shape),
        rng.uniform(-2, 28, shape),
        np.linspace(0, 5000, LEVELS).reshape(1, 1, LEVELS),
    )


def run(options: Options = USUAL) -> list[Row]:
    import ge2

    compiled, jax, rows = ge2.jit(state), peer("jax"), []
    for name, side in WORKS.items():
        if not options.wants("long_chains", name):
            continue
        args = arguments(side)
        candidates = {"ge2": partial(compiled, *args), "numpy": partial(state, *args)}
        if jax is not None:
            candidates["jax"] = in_jax(jax, args)
        found = medians(candidates, options.rounds or (5 if options.quick else 15), budget=10.0)
        ours, title = found.pop("ge2"), f"equation of state, {side} x {side} x {LEVELS}"
        targets = (Faster(1.0, "numpy"), Faster(1.0, "jax"))
        sizes = {"salinity": [side, side, LEVELS], "pressure": [1, 1, LEVELS]}
        rows.append(Row(title, "seconds", ours, found, targets, "float64, C order", sizes))
        if options.quick:
            break
    return rows


def in_jax(jax: ModuleType, args: tuple[Any, ...]) -> Any:
    jax.config.update("jax_enable_x64", True)
    compiled, given = jax.jit(partial(state, xp=jax.numpy)), [jax.numpy.asarray(a) for a in args]
    return lambda: jax.block_until_ready(compiled(*given))
