"""What is done to joined parts that are made together is done to the parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.passes import TIDY
from ge2.passes.context import run
from ge2.passes.indices import parts_done
from tests.together import needs_compiler

Function = Callable[..., Any]
BF16 = ml_dtypes.bfloat16


def turned(x: Any, c: Any) -> list[Any]:
    a, b = x[:, ::2].astype(np.float32), x[:, 1::2].astype(np.float32)
    return [a * c - b, a + b * c]


def codes(x: Any, c: Any) -> Any:
    """Two numbers of four bits a byte, as a table has them."""
    packed = (np.abs(x).astype(np.float32) * 99).astype(np.uint8)
    table = c.reshape(-1)[:16]
    return np.stack([table[(packed & 15).astype(np.int32)], table[packed >> 4]], -1)


def written(x: Any, c: Any) -> Any:
    y = np.empty(x.shape, np.float32)
    y[:, ::2], y[:, 1::2] = turned(x, c)
    return y.astype(BF16)


DONE: dict[str, Function] = {
    "halves": lambda x, c: np.concatenate(turned(x, c), -1).astype(BF16),
    "pairs": lambda x, c: np.stack(turned(x, c), -1).reshape(x.shape).astype(BF16),
    "rows": lambda x, c: np.concatenate(turned(x, c), 0) * 2.0,
    "several": lambda x, c: np.abs(1.0 - np.stack(turned(x, c))).astype(np.float16),
    "comparison": lambda x, c: np.stack(turned(x, c), 1) > 0.25,
    "rows by a number": lambda x, c: np.stack(turned(x, c), -1).reshape(x.shape) * c[:, :1],
    "halves by a number": lambda x, c: (np.concatenate(turned(x, c), -1) + c[:, :1]).astype(BF16),
    "longer rows": lambda x, c: np.stack(turned(x, c), -1).reshape(3, 32) * c[:3, :1],
    "of a table as long": lambda x, c: (
        np.stack([(t := c.reshape(-1)[:12])[np.argsort(t)], t[np.argsort(t) // 2]], -1).reshape(
            3, -1
        )
        * c[:3, :1]
    ),
    "of a table": lambda x, c: (codes(x, c).reshape(3, -1) * c[:3, :1]).astype(BF16),
}
LEFT: dict[str, Function] = {
    "wider": lambda x, c: np.concatenate(turned(x, c), -1).astype(np.float64),
    "read twice": lambda x, c: (y := np.concatenate(turned(x, c), -1)).astype(BF16) + y[:, ::-1],
    "a result": lambda x, c: ((y := np.concatenate(turned(x, c), -1)), y.astype(BF16)),
    "one array twice": lambda x, c: np.concatenate([np.exp(c)] * 2).astype(BF16),
    "an array": lambda x, c: np.concatenate(turned(x, c), 0) * np.concatenate([c, c], 0),
    "apart": lambda x, c: np.concatenate([np.exp(c), np.tanh(c[:, ::-1])]) * 2.0,
    "columns by a number": lambda x, c: (
        np.stack(turned(x, c), -1).reshape(x.shape) * c.reshape(-1)[:16]
    ),
    "shorter rows": lambda x, c: (
        np.concatenate(turned(x, c), -1).reshape(24, 4) * c.reshape(-1)[:24, None]
    ),
    "given": lambda x, c: np.concatenate([x, x]).astype(np.float16),
    "unequal": lambda x, c: np.concatenate([(y := np.exp(c)), y[:2] * y[:2]]).astype(BF16),
    "many": lambda x, c: np.stack([np.exp(c) * k for k in (1.5, 2.0, 3.0, 4.0, 5.0)]).astype(BF16),
}


X = np.random.default_rng(3).standard_normal((6, 16)).astype(BF16)
C = np.linspace(-2, 2, 48, dtype=np.float32).reshape(6, 8)


def graph_of(function: Function, *xs: Any) -> Any:
    return run(TIDY, ge2.make_jaxpr(function)(*xs).graph)


@pytest.mark.parametrize("name", DONE)
def test_nothing_follows_a_join(name: str) -> None:
    graph = graph_of(DONE[name], X, C)
    assert graph.eqns[-1].op.name not in {"concatenate", "reshape"}
    names = [e.op.name for e in parts_done(graph).eqns]
    assert not {*names[names.index("concatenate") + 1 :]} - {"reshape"}


@pytest.mark.parametrize("name", LEFT)
def test_others_are_left(name: str) -> None:
    graph = graph_of(LEFT[name], X, C)
    assert any(e.op.name == "concatenate" for e in graph.eqns) or name == "given"
    assert parts_done(graph) == graph


@needs_compiler
@pytest.mark.parametrize("executor", ["shim", "emulator"])
def test_it_means_the_same(executor: str) -> None:
    def all_of(x: Any, c: Any) -> list[Any]:
        return [f(x, c) for f in (*DONE.values(), written)]

    with config.using(executor=executor):
        found = ge2.jit(all_of)(X, C)
    for y, w in zip(found, all_of(X, C), strict=True):
        assert y.dtype == w.dtype
        # a product and a sum may be rounded once
        np.testing.assert_allclose(y.astype(float), w.astype(float), rtol=2e-2, atol=2e-3)


def test_turned_halves_are_one_kernel() -> None:
    for function in (DONE["halves"], DONE["pairs"], written):
        with config.using(executor="emulator"):
            assert len(ge2.jit(function).lower(X, C).kernels) == 1
