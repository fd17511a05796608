"""What a call costs when there is next to nothing to compute: the way from Python to a kernel and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ge2
from benchmarks.peers import peer
from benchmarks.record import Row, Target
from benchmarks.timing import medians

LEAVES = 50


def line(x: Any) -> Any:
    return x * 2 + 1


def total(leaves: dict[str, Any]) -> Any:
    first, *rest = leaves.values()
    for leaf in rest:
        first = first + leaf
    return first


def run(quick: bool = False) -> list[Row]:
    x = np.arange(8, dtype=np.float32)
    leaves = {f"leaf{i}": x + i for i in range(LEAVES)}
    rounds = 3 if quick else 41
    work = (
        ("a call on 8 floats", line, x, Target(10e-6), {"x": [8]}),
        (f"a call on a dict of {LEAVES} leaves", total, leaves, Target(100e-6), {"leaves": [LEAVES, 8]}),
    )
    rows = []
    for name, function, argument, target, sizes in work:
        times = medians(candidates(function, argument), rounds)
        rows.append(Row(name, "seconds", times.pop("ge2"), times, target, "float32", sizes))
    return rows


def candidates(function: Callable[[Any], Any], argument: Any) -> dict[str, Callable[[], object]]:
    compiled = ge2.jit(function)
    np.testing.assert_array_equal(compiled(argument), function(argument))
    found: dict[str, Callable[[], object]] = {
        "ge2": lambda: compiled(argument),
        "numpy": lambda: function(argument),
    }
    jax, torch = peer("jax"), peer("torch")
    if jax is not None:
        in_jax, on_device = jax.jit(function), jax.tree.map(jax.numpy.asarray, argument)
        found["jax"] = lambda: in_jax(on_device).block_until_ready()
    if torch is not None:
        in_torch = torch.compile(function)
        tensors = ge2.tree.map(torch.from_numpy, argument)
        found["torch"] = lambda: in_torch(tensors)
    return found
