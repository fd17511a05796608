"""What a call costs when there is next to nothing to compute: the way from Python to a kernel and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

import ge2
from benchmarks.fresh import fresh
from benchmarks.options import USUAL, Options
from benchmarks.peers import peer
from benchmarks.record import AtMost, Row
from benchmarks.timing import medians
from benchmarks.work import compiled_or_not
from ge2.base.config import FIELDS, variable

LEAVES, ROUNDS = 50, 41
CTYPES = "ctypes"  # the launcher where no extension can be compiled


def line(x: Any) -> Any:
    return x * 2 + 1


def total(leaves: dict[str, Any]) -> Any:
    first, *rest = leaves.values()
    for leaf in rest:
        first = first + leaf
    return first


X = np.arange(8, dtype=np.float32)
# fmt: off
WORK = {
    "a call on 8 floats":                   (line, X, AtMost(2e-6, 2, "numpy"), AtMost(6e-6)),
    f"a call on a dict of {LEAVES} leaves": (
        total, {f"leaf{i}": X + i for i in range(LEAVES)}, AtMost(35e-6), AtMost(150e-6)),
}
# fmt: on


def run(options: Options = USUAL) -> list[Row]:
    return [*usual(options), *by_ctypes(options)]


def usual(options: Options) -> list[Row]:
    rows = []
    for name, (function, argument, target, _) in WORK.items():
        notes: dict[str, str] = {}
        times = medians(candidates(function, argument, notes), options.rounds_or(ROUNDS))
        sizes = {"arrays": LEAVES if isinstance(argument, dict) else 1, "each": [8]}
        row = Row(name, "seconds", times.pop("ge2"), times, (target,), "float32, C order", sizes, notes)
        rows.append(row)
    return rows


def by_ctypes(options: Options) -> list[Row]:
    """The same with the launcher that needs no extension, in a process of its own."""
    setting = ctypes_setting()
    if setting is None:
        return []
    program = f"from benchmarks.call import told; told({options.rounds_or(ROUNDS)})"
    times = json.loads(fresh(program, **{variable(setting): CTYPES}).said)
    return [
        Row(f"{name}, by ctypes", "seconds", times[name], {}, (target,), "float32, C order")
        for name, (_, _, _, target) in WORK.items()
    ]


def ctypes_setting() -> str | None:
    return next((name for name, f in FIELDS.items() if CTYPES in f.metadata["choices"]), None)


def told(rounds: int) -> None:
    """Prints the times of our calls as JSON."""
    found = {name: ours(function, argument) for name, (function, argument, *_) in WORK.items()}
    print(json.dumps(medians(found, rounds)))


def ours(function: Callable[[Any], Any], argument: Any) -> Callable[[], object]:
    compiled = ge2.jit(function)
    np.testing.assert_array_equal(compiled(argument), function(argument))
    return lambda: compiled(argument)


def candidates(
    function: Callable[[Any], Any], argument: Any, notes: dict[str, str]
) -> dict[str, Callable[[], object]]:
    found = {"ge2": ours(function, argument), "numpy": lambda: function(argument)}
    jax, torch = peer("jax"), peer("torch")
    if jax is not None:
        in_jax, on_device = jax.jit(function), jax.tree.map(jax.numpy.asarray, argument)
        found["jax"] = lambda: in_jax(on_device).block_until_ready()
    if torch is not None:
        tensors = ge2.tree.map(torch.from_numpy, argument)
        in_torch = compiled_or_not(torch, function, [tensors], notes)
        found["torch"] = lambda: in_torch(tensors)
    return found
