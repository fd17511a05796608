"""Programs that call ge2, as type checkers see them: read by mypy and pyright, never run.

`assert_type` holds an expression to its type. A line of `mistakes` must be an error: where a
checker finds none it reports the `type: ignore` as unused.
"""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import ge2

Array = npt.NDArray[np.float32]


def loss(w: Array, x: Array, scale: float = 1.0) -> float:
    return float((w * x).sum() * scale)


def with_aux(w: Array, n: int) -> tuple[float, str]:
    return float(w.sum()), "aux"


class Model:
    @ge2.jit
    def step(self, x: Array) -> Array:
        return x


@ge2.jit(static_argnames="scale")
def decorated(x: Array, scale: float) -> Array:
    return x * np.float32(scale)


@ge2.custom_vjp
def ruled(x: Array) -> Array:
    return x


def right(w: Array, x: Array) -> None:
    assert_type(ge2.jit(loss)(w, x, scale=2.0), float)
    assert_type(decorated(x, 2.0), Array)
    assert_type(Model().step(x), Array)
    assert_type(ruled(x), Array)
    assert_type(ge2.grad(loss)(w, x), Array)
    assert_type(ge2.jit(ge2.grad(loss))(w, x, scale=2.0), Array)
    assert_type(ge2.value_and_grad(loss)(w, x), tuple[float, Array])
    assert_type(ge2.grad(with_aux, has_aux=True)(w, 3), tuple[Array, str])
    assert_type(ge2.value_and_grad(with_aux, has_aux=True)(w, 3), tuple[tuple[float, str], Array])
    assert_type(ge2.vmap(loss)(w, x), float)
    assert_type(ge2.checkpoint(decorated)(x, 2.0), Array)
    assert_type(ge2.vjp(loss, w, x)[0], float)
    assert_type(ge2.jvp(decorated, (x, 2.0), (x, 0.0)), tuple[Array, Array])
    both: Any = ge2.grad(loss, (0, 1))(w, x)
    low = ge2.jit(loss).lower(w, x)
    assert_type(low.as_text("plan"), str)
    ge2.jit(np.sum)(x)
    assert_type(ge2.io.load("a.npz"), dict[str, Any])
    assert_type(ge2.io.load("a.npz", into=w, map={"w": ("v", np.transpose)}), Array)
    assert_type(ge2.io.load_state("run", into=(w, x)), tuple[Array, Array])
    for batch in ge2.io.progress(ge2.io.prefetch([x])):
        assert_type(batch, Array)
    del both


def mistakes(w: Array, x: Array) -> None:
    ge2.jit(loss)("nonsense", 3, 4)  # type: ignore[arg-type]
    ge2.jit(loss)(w)  # type: ignore[call-arg]
    ge2.jit(loss)(w, x, scales=2.0)  # type: ignore[call-arg]
    decorated(x, "two")  # type: ignore[arg-type]
    Model().step("x")  # type: ignore[arg-type]
    ruled(3)  # type: ignore[arg-type]
    ge2.grad(loss)("nonsense", 3, 4)  # type: ignore[arg-type]
    ge2.value_and_grad(loss)(w)  # type: ignore[call-arg]
    ge2.vmap(loss)(w, x, 2, 3)  # type: ignore[call-arg]
    ge2.jit(loss, statics=0)  # type: ignore[call-overload]
    ge2.jit(3)  # type: ignore[call-overload]
    ge2.nonsense  # type: ignore[attr-defined]
