"""Runners of a program: by the text that was written for it, by the references of its operations,
or with a look at the results of each call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, final

import numpy as np

from ge2.base.dtypes import python_type
from ge2.base.errors import BY_VALUES, locate
from ge2.base.gpu import host
from ge2.base.interpreter import hush, restore
from ge2.base.record import mutable
from ge2.ir import ArrayType, Evaluate, Graph, Var, read
from ge2.passes.scalars import compute, on_host
from ge2.program.assembler import Assembler
from ge2.program.program import Inner
from ge2.trace.watch import check_finite

if TYPE_CHECKING:
    from ge2.targets.cuda.device import Device

EVALUATE = Evaluate()
ALIGNMENT = 64


class Runner(Protocol):
    """A program as a function of arrays."""

    def __call__(self, *arrays: Any) -> list[Any]: ...


@final
class Reference:
    """Op by op with the references: the oracle."""

    def __init__(self, graph: Graph, device: Device | None = None) -> None:
        self.graph, self.device = graph, device

    def __call__(self, *arrays: Any) -> list[Any]:
        found = interpret(self.graph, [*map(host, arrays)])
        results = [owned(y, a.type) for y, a in zip(found, self.graph.outputs, strict=True)]
        if self.device is None:
            return results
        from ge2.targets.cuda.device import upload

        return [
            y if a.type.weak else upload(self.device, y)
            for y, a in zip(results, self.graph.outputs, strict=True)
        ]


def interpret(graph: Graph, arrays: Sequence[Any]) -> list[Any]:
    """The results of a graph by its references; Python numbers stay Python numbers."""
    env: dict[Var, Any] = dict(zip(graph.inputs, arrays, strict=True))
    for eqn in graph.eqns:
        xs = read(env, eqn.inputs)
        if on_host(eqn):
            env[eqn.outs[0]] = compute(eqn.op, eqn.outs[0].type, *xs)
            continue
        try:
            ys = EVALUATE.apply(eqn.op, xs)
        except BY_VALUES as error:
            locate(error, eqn.source)
            raise
        for var, y in zip(eqn.outs, ys, strict=True):
            env[var] = python_type(var.type.dtype)(y) if var.type.weak else y
    return read(env, graph.outputs)


def owned(y: Any, type_: ArrayType) -> Any:
    """A copy that the caller may keep and change; a Python number where the type is weak."""
    if type_.weak:
        return python_type(type_.dtype)(y)
    return np.array(y, type_.dtype, order="C", copy=True)


@final
class Blocked:
    """The text of a program, run.

    Each call has an arena of its own; those of past calls are used again.
    """

    __slots__ = ("arenas", "bind", "nbytes", "run")

    def __init__(self, assembler: Assembler) -> None:
        self.run: Callable[..., list[Any]] = assembler.names["run"]
        self.bind: Callable[[Any], tuple[Any, ...]] = assembler.names["bind"]
        self.nbytes = assembler.arena.nbytes
        self.arenas: list[tuple[Any, ...]] = []

    def __call__(self, *arrays: Any) -> list[Any]:
        try:
            bound = self.arenas.pop()
        except IndexError:
            bound = self.bind(aligned(self.nbytes))
        loud = hush()
        try:
            return self.run(bound, *arrays)
        finally:
            restore(loud)
            self.arenas.append(bound)


@final
@mutable
class Watched:
    """A program, each of whose calls is followed by a look at its results."""

    run: Runner
    graph: Graph
    title: str

    def __call__(self, *arrays: Any) -> list[Any]:
        results = self.run(*arrays)
        check_finite(self.graph, arrays, results, self.title)
        return results


def runner(assembler: Assembler) -> Runner:
    return assembler.built.direct or Blocked(assembler)


def inner_of(assembler: Assembler) -> Inner:
    """A program as part of another one."""
    if assembler.built.direct is not None:
        return alone(assembler.built.direct)
    return Inner(assembler.arena.nbytes, assembler.names["bind"], assembler.names["run"])


def alone(run: Runner) -> Inner:
    """A program that needs nothing of another program's arena."""
    return Inner(0, lambda arena: (), lambda bound, *arrays: run(*arrays))


def aligned(nbytes: int) -> Any:
    """Bytes that begin at a cache line."""
    whole = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -whole.ctypes.data % ALIGNMENT
    return whole[start : start + nbytes]


def manner(run: Any) -> str:
    """The calls of a group of launches so far, in words."""
    if run.counts is None:
        return "launched one by one, from Python"
    calls, one_by_one, graphs, patched = run.counts
    said = [
        f"{one_by_one} of {calls} calls one by one",
        f"{graphs} captured graphs",
        f"{patched} patches",
    ]
    nodes, anew = run.choices
    if nodes:
        said += [
            f"{nodes} conditional nodes" if graphs else f"{nodes} loops and branches by the host"
        ]
    if anew:
        said += [f"{anew} graphs made anew"]
    if graphs and run.early:
        said += [f"{run.early} waits overlapped"]
    if run.whole:
        said += [f"none overlapped, for {run.whole}"]
    return ", ".join(said) + (f"; no graph, for {run.trouble}" if run.trouble else "")
