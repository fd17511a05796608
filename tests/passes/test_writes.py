"""Zeros that are written by slices: padding where that is the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.compile import writes as steps
from ge2.compile.catalog import interpret
from ge2.compile.writes import disjoint, writes
from tests.kernels.programs import needs_compiler
from tests.passes.graphs import after, lines

U = np.arange(1.0, 9.0)


def test_the_largest_slice_is_padded_and_the_others_are_written_into_it():
    found = after(
        writes,
        """{ lambda ; a:f64[1] b:f64[6]. let
        z:f64[8] = broadcast_in_dim[shape=(8,) dims=()] 0.0:f64[]
        y:f64[8] = update_slice[start=(0,) step=(1,)] z a
        x:f64[8] = update_slice[start=(1,) step=(1,)] y b in (x,) }""",
    )
    assert found == lines("""
        c:f64[8] = pad[high=(1,) inner=(0,) low=(1,)] b
        d:f64[8] = update_slice[start=(0,) step=(1,)] c a
        in (d,) }""")


def meeting(u):
    y = np.zeros_like(u)
    y[0:2] = u[0:2]
    y[1:7] = u[2:]
    return y


def read_between(u):
    y = np.zeros_like(u)
    y[0] = u[0]
    z = y * 1.0
    y[1:7] = u[2:]
    return y, z


def shared_zeros(u):
    y, z = np.zeros_like(u), np.zeros_like(u)
    y[1:-1], z[2:] = u[1:-1], u[:-2]
    y[0] = y[1]
    return y, z


def minus_zeros(u):
    y = np.zeros_like(u) * -1.0
    y[1:3] = u[1:3]
    return y


def by_twos(u):
    y = np.zeros_like(u)
    y[::2] = u[::2]
    y[1] = u[1]
    return y


@pytest.mark.parametrize(
    "f", [meeting, read_between, shared_zeros, minus_zeros, by_twos], ids=lambda f: f.__name__
)
def test_writes_into_zeros_mean_the_same(f):
    found = interpret(writes(ge2.make_jaxpr(f)(U).graph), [U])
    for a, b in zip(found, ge2.tree.leaves(f(U)), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(np.signbit(a), np.signbit(b))


def test_slices_that_meet_keep_their_order():
    graph = writes(ge2.make_jaxpr(meeting)(U).graph)
    assert [e.op.name for e in graph.eqns if e.op.name in ("pad", "update_slice")] == [
        "pad",
        "update_slice",
    ]
    assert next(e for e in graph.eqns if e.op.name == "pad").op.low == (0,)


def test_many_slices_of_a_size_are_not_compared_with_each_other(monkeypatch: pytest.MonkeyPatch):
    def by_elements(u):
        y = np.zeros_like(u)
        for i in range(200):
            y[i] = 2.0 * u[i]
        return y

    u = np.arange(200.0)
    graph = ge2.make_jaxpr(by_elements)(u).graph
    compared: list[int] = []
    monkeypatch.setattr(steps, "disjoint", lambda a, b: compared.append(0) or disjoint(a, b))
    (found,) = interpret(writes(graph), [u])
    np.testing.assert_array_equal(found, by_elements(u))
    assert len(compared) <= 200


@needs_compiler
@pytest.mark.parametrize("executor", ["c", "shim"])
@pytest.mark.parametrize("read_again", [False, True])
def test_a_written_array_in_a_padded_one(executor: str, read_again: bool) -> None:
    """What an update writes over is made where the update is, or the update is not made in the pad."""

    def f(x: Any) -> Any:
        y = np.zeros((3, 9), np.float32)
        y[:, ::2] = x
        y = np.pad(y, ((0, 0), (2, 2)))
        return y[:, :11] + y[:, 2:] if read_again else y

    x = np.arange(1, 16, dtype=np.float32).reshape(3, 5)
    with ge2.config.using(executor=executor):
        np.testing.assert_array_equal(ge2.jit(f)(x), f(x))
