"""Twelve stencil and finite-difference routines, as users of NumPy write them:
zeros, filled slice by slice.

Beside each stands its JAX form, with `x.at[...].set`. `INTO_ARGUMENTS` has
those that write into an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.options import USUAL, Options
from benchmarks.peers import peer
from benchmarks.record import Faster, Row, mean_of
from benchmarks.timing import medians

LINE, SIDE = 1_000_000, 1000
Put = Callable[[Any, Any, Any], Any]  # the array with a value at an index


def written(x: Any, at: Any, value: Any) -> Any:
    x[at] = value
    return x


ALL = slice(None)
IN, LOW, HIGH = slice(1, -1), slice(None, -2), slice(2, None)
LEFT, RIGHT = slice(None, -1), slice(1, None)


def heat(u: Any, v: Any, xp: ModuleType = np, put: Put = written) -> Any:
    y = put(xp.zeros_like(u), IN, u[IN] + 0.1 * (u[HIGH] - 2 * u[IN] + u[LOW]))
    return put(put(y, 0, u[0]), -1, u[-1])


def wave(u: Any, before: Any, xp: ModuleType = np, put: Put = written) -> Any:
    return put(xp.zeros_like(u), IN, 2 * u[IN] - before[IN] + 0.25 * (u[HIGH] - 2 * u[IN] + u[LOW]))


def upwind(u: Any, speed: Any, xp: ModuleType = np, put: Put = written) -> Any:
    y = xp.zeros_like(u)
    back, ahead = u[IN] - u[LOW], u[HIGH] - u[IN]
    c = speed[IN]
    y = put(y, IN, u[IN] - 0.1 * (xp.maximum(c, 0) * back + xp.minimum(c, 0) * ahead))
    return put(put(y, 0, y[1]), -1, y[-2])


def lax_friedrichs(u: Any, flux: Any, xp: ModuleType = np, put: Put = written) -> Any:
    y = put(xp.zeros_like(u), IN, 0.5 * (u[HIGH] + u[LOW]) - 0.05 * (flux[HIGH] - flux[LOW]))
    return put(put(y, 0, u[0]), -1, u[-1])


def burgers(u: Any, v: Any, xp: ModuleType = np, put: Put = written) -> Any:
    y = xp.zeros_like(u)
    y = put(y, IN, u[IN] - 0.1 * u[IN] * (u[IN] - u[LOW]) + 0.05 * (u[HIGH] - 2 * u[IN] + u[LOW]))
    y = put(y, 0, u[0] - 0.1 * u[0] * (u[0] - u[-2]) + 0.05 * (u[1] - 2 * u[0] + u[-2]))
    return put(y, -1, y[0])


def shallow_water(h: Any, u: Any, xp: ModuleType = np, put: Put = written) -> tuple[Any, Any]:
    u_new = put(xp.zeros_like(u), (slice(1, None), ALL), u[RIGHT] - 0.1 * (h[RIGHT] - h[LEFT]))
    h_new = xp.zeros_like(h)
    h_new = put(h_new, (LEFT, ALL), h[LEFT] - 0.1 * (u_new[RIGHT] - u_new[LEFT]))
    return put(h_new, -1, h[-1]), u_new


def cross(u: Any) -> Any:
    return u[HIGH, IN] + u[LOW, IN] + u[IN, HIGH] + u[IN, LOW]


def poisson(p: Any, b: Any, xp: ModuleType = np, put: Put = written) -> Any:
    y = put(xp.zeros_like(p), (IN, IN), 0.25 * (cross(p) - b[IN, IN]))
    y = put(put(y, (ALL, 0), 0.0), (ALL, -1), 1.0)
    return put(put(y, 0, y[1]), -1, y[-2])


def diffusion(u: Any, k: Any, xp: ModuleType = np, put: Put = written) -> Any:
    y = put(xp.zeros_like(u), (IN, IN), u[IN, IN] + k[IN, IN] * (cross(u) - 4 * u[IN, IN]))
    y = put(put(y, 0, y[1]), -1, y[-2])
    return put(put(y, (ALL, 0), y[:, 1]), (ALL, -1), y[:, -2])


def fdtd_line(e: Any, h: Any, xp: ModuleType = np, put: Put = written) -> tuple[Any, Any]:
    h_new = put(xp.zeros_like(h), LEFT, h[LEFT] + 0.5 * (e[RIGHT] - e[LEFT]))
    return put(xp.zeros_like(e), RIGHT, e[RIGHT] + 0.5 * (h_new[RIGHT] - h_new[LEFT])), h_new


def fdtd(e: Any, h: Any, xp: ModuleType = np, put: Put = written) -> tuple[Any, Any, Any]:
    hx, hy = xp.zeros_like(h), xp.zeros_like(h)
    hx = put(hx, (ALL, LEFT), h[:, LEFT] - 0.5 * (e[:, RIGHT] - e[:, LEFT]))
    hy = put(hy, (LEFT, ALL), h[LEFT] + 0.5 * (e[RIGHT] - e[LEFT]))
    curl = hy[IN, IN] - hy[LOW, IN] - hx[IN, IN] + hx[IN, LOW]
    return put(xp.zeros_like(e), (IN, IN), e[IN, IN] + 0.5 * curl), hx, hy


def gray_scott(u: Any, v: Any, xp: ModuleType = np, put: Put = written) -> tuple[Any, Any]:
    a, b = u[IN, IN], v[IN, IN]
    reaction = a * b * b
    u_new = put(
        xp.zeros_like(u), (IN, IN), a + 0.16 * (cross(u) - 4 * a) - reaction + 0.06 * (1 - a)
    )
    v_new = put(xp.zeros_like(v), (IN, IN), b + 0.08 * (cross(v) - 4 * b) + reaction - 0.12 * b)
    for side in (0, -1):
        u_new, v_new = put(u_new, side, 1.0), put(v_new, (ALL, side), 0.0)
    return u_new, v_new


def curl(u: Any, v: Any, xp: ModuleType = np, put: Put = written) -> tuple[Any, Any]:
    turn, flow = xp.zeros_like(u), xp.zeros_like(u)
    turn = put(turn, (IN, IN), 0.5 * (v[HIGH, IN] - v[LOW, IN] - u[IN, HIGH] + u[IN, LOW]))
    flow = put(flow, (IN, IN), 0.5 * (u[HIGH, IN] - u[LOW, IN] + v[IN, HIGH] - v[IN, LOW]))
    flow = put(flow, 0, u[1] - u[0])
    return turn, put(flow, -1, u[-1] - u[-2])


WORKS: dict[str, Callable[..., Any]] = {
    "heat": heat, "wave": wave, "upwind": upwind, "lax-friedrichs": lax_friedrichs, "burgers": burgers,
    "shallow-water": shallow_water, "poisson": poisson, "diffusion": diffusion, "fdtd-line": fdtd_line,
    "fdtd": fdtd, "gray-scott": gray_scott, "curl": curl,
}  # fmt: skip
ON_A_LINE = ("heat", "wave", "upwind", "lax-friedrichs", "burgers", "fdtd-line")


def heat_in_place(u: Any, v: Any) -> None:
    """One step that changes its argument, as about half of such programs do."""
    u[1:-1] += 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2])
    u[0], u[-1] = v[0], v[-1]


def relaxed_in_place(p: Any, b: Any) -> None:
    p[1:-1, 1:-1] = 0.25 * (cross(p) - b[1:-1, 1:-1])
    p[0], p[-1] = p[1], p[-2]


INTO_ARGUMENTS: dict[str, Callable[..., None]] = {
    "heat": heat_in_place,
    "poisson": relaxed_in_place,
}


def arguments(name: str, quick: bool) -> tuple[Any, Any]:
    line, side = (1000, 60) if quick else (LINE, SIDE)
    rng = np.random.default_rng(0)
    shape = (line,) if name in ON_A_LINE else (side, side)
    return rng.standard_normal(shape), rng.standard_normal(shape)


def run(options: Options = USUAL) -> list[Row]:
    rows = [measured(name, options) for name in WORKS if options.wants("stencils", name)]
    if len(rows) < len(WORKS):
        return rows
    targets = () if options.quick else (Faster(1.5, "jax"),)
    return [*rows, mean_of("geometric mean of these twelve", rows, *targets)]


def measured(name: str, options: Options) -> Row:
    import ge2

    given, routine, jax = arguments(name, options.quick), WORKS[name], peer("jax")
    calls: dict[str, Callable[[], Any]] = {"ge2": partial(ge2.jit(routine), *given)}
    calls["numpy"] = partial(routine, *given)
    if jax is not None:
        calls["jax"] = in_jax(jax, routine, given)
    for call in calls.values():
        for found, want in zip(leaves(call()), leaves(routine(*given)), strict=True):
            np.testing.assert_allclose(found, want, rtol=1e-9, atol=1e-12, err_msg=name)
    times = medians(calls, options.rounds_or(15), 4.0)
    ours, targets = times.pop("ge2"), () if options.quick else (Faster(1.0, "jax"),)
    sizes = {"arguments": [list(a.shape) for a in given]}
    return Row(name, "seconds", ours, times, targets, "float64, C order", sizes)


def leaves(result: Any) -> tuple[Any, ...]:
    return tuple(map(np.asarray, result if isinstance(result, tuple) else (result,)))


def in_jax(
    jax: ModuleType, routine: Callable[..., Any], given: tuple[Any, ...]
) -> Callable[[], Any]:
    jax.config.update("jax_enable_x64", True)
    compiled = jax.jit(partial(routine, xp=jax.numpy, put=lambda x, at, value: x.at[at].set(value)))
    moved = [jax.numpy.asarray(a) for a in given]
    return lambda: jax.block_until_ready(compiled(*moved))
