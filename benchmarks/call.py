"""What a call costs when there is next to nothing to compute: the way from
Python to a kernel and back.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import ge2
from benchmarks.fresh import fresh
from benchmarks.options import USUAL, Options
from benchmarks.peers import peer
from benchmarks.ran import executor_of, remarks
from benchmarks.record import AtMost, Row
from benchmarks.timing import medians
from benchmarks.work import compiled_or_not
from ge2 import config
from ge2.targets.c import launcher

LEAVES, ROUNDS = 50, 41
PLAIN = "ge2.targets.c.linked"  # imported where it is needed
LAYOUT, SIZES = "float32, C order", {"each": [8]}


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
        compiled, notes = ge2.jit(function), dict[str, str]()
        found = candidates(function, compiled, argument, notes)
        notes |= remarks(executor_of(compiled, argument))
        times = medians(found, options.rounds_or(ROUNDS))
        rows.append(Row(name, "seconds", times.pop("ge2"), times, (target,), LAYOUT, SIZES, notes))
    return rows


def by_ctypes(options: Options) -> list[Row]:
    """The same where no extension calls the C, in a process of its own."""
    if config.executor != "c":
        return []
    program = f"from benchmarks import call; call.tell({options.rounds_or(ROUNDS)})"
    told = json.loads(fresh(program).said)
    return [
        Row(
            f"{name}, by ctypes",
            "seconds",
            told["times"][name],
            {},
            (target,),
            LAYOUT,
            SIZES,
            told["notes"],
        )
        for name, (_, _, _, target) in WORK.items()
    ]


def tell(rounds: int) -> None:
    """Prints the times of our calls by ctypes as JSON."""
    launcher.native = lambda: None  # as where the extension cannot be made
    found = {
        name: ours(ge2.jit(function), function, argument)
        for name, (function, argument, *_) in WORK.items()
    }
    notes = {} if PLAIN in sys.modules else {"ge2": "did not call by ctypes"}
    print(json.dumps({"times": medians(found, rounds), "notes": notes}))


def ours(
    compiled: Callable[[Any], Any], function: Callable[[Any], Any], argument: Any
) -> Callable[[], object]:
    np.testing.assert_array_equal(compiled(argument), function(argument))
    return lambda: compiled(argument)


def candidates(
    function: Callable[[Any], Any],
    compiled: Callable[[Any], Any],
    argument: Any,
    notes: dict[str, str],
) -> dict[str, Callable[[], object]]:
    found = {"ge2": ours(compiled, function, argument), "numpy": lambda: function(argument)}
    jax, torch = peer("jax"), peer("torch")
    if jax is not None:
        in_jax, on_device = jax.jit(function), jax.tree.map(jax.numpy.asarray, argument)
        found["jax"] = lambda: in_jax(on_device).block_until_ready()
    if torch is not None:
        tensors = ge2.tree.map(torch.from_numpy, argument)
        in_torch = compiled_or_not(torch, function, [tensors], notes)
        found["torch"] = lambda: in_torch(tensors)
    return found
