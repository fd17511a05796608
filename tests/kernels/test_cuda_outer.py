"""Products of float32 with few terms and a large result, on the CPU in a GPU's place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.compile import compile_graph
from ge2.targets.cuda.emulator import EMULATED, OfflineDevice, ShimDevice, limits_of
from tests.small import planned_by
from tests.together import needs_compiler

LARGE = planned_by(EMULATED, "products", large=1, elements=0, whole=0)


def kinds(f: Any, *shapes: tuple[int, int]) -> list[str]:
    xs = [ge2.ShapeDtypeStruct(s, "float32") for s in shapes]
    graph = ge2.make_jaxpr(f)(*xs).graph
    return [k.kind for k in compile_graph(graph, device=OfflineDevice(limits_of("sm_90"))).kernels]


@needs_compiler
@pytest.mark.parametrize("turned", ["", "a", "b", "ab"])
def test_values(turned: str, rng: np.random.Generator) -> None:
    """Of tiles that are cut off, of less than a stage of terms and of more."""
    for m, n, k in ((130, 260, 7), (129, 132, 32)):
        a = rng.standard_normal((k, m) if "a" in turned else (m, k)).astype(np.float32)
        b = rng.standard_normal((n, k) if "b" in turned else (k, n)).astype(np.float32)

        def f(a: Any, b: Any) -> Any:
            return (a.T if "a" in turned else a) @ (b.T if "b" in turned else b)

        made = compile_graph(ge2.make_jaxpr(f)(a, b).graph, device=ShimDevice(limits=LARGE))
        assert [each.kind for each in made.kernels] == ["outer product"]
        want = f(a.astype(np.float64), b.astype(np.float64))
        bound = 2.0**-22 * f(abs(a.astype(np.float64)), abs(b.astype(np.float64)))
        assert (abs(made(a, b)[0] - want) <= bound).all()


def test_which_products_are_such() -> None:
    multiply = lambda a, b: a @ b  # noqa: E731
    assert kinds(multiply, (8192, 32), (32, 8192)) == ["outer product"]
    assert kinds(multiply, (8192, 40), (40, 8192)) != ["outer product"]
    assert kinds(multiply, (8192, 32), (32, 8190)) != ["outer product"]
    assert kinds(multiply, (4096, 32), (32, 8192)) != ["outer product"]
