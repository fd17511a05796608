"""Runs rewrites of graphs: timed, dumped, switched off by name, verified; and those that come
first.

The pipelines, one a target, stand in `ge2/compile/pipeline.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from types import FunctionType
from typing import cast

from ge2.base.compile_times import passed, spent
from ge2.base.config import config
from ge2.base.record import collector_paused
from ge2.ir import Graph, verify
from ge2.passes.context import NOTHING, Context, dump
from ge2.passes.fold import counted, fold
from ge2.passes.hoist import trim
from ge2.passes.simplify import inline, simplify, strong
from ge2.passes.take_to_mask import join, match

Alone = Callable[[Graph], Graph]
Informed = Callable[[Graph, Context], Graph]
Pass = Alone | Informed

# The same for every target, before loops are found in straight code and regions are formed. What a
# loop holds that becomes part of a kernel is rewritten by these.
TIDY: tuple[Pass, ...] = (strong, counted, inline, trim, simplify, fold, match, join)


@collector_paused
def run(
    passes: Sequence[Pass], graph: Graph, context: Context = NOTHING, name: str = "", first: int = 1
) -> Graph:
    """The graph after each of the passes that is not switched off; in check
    mode each result is verified.

    What the setting `dump` asks for is written under that name, if there is one; `first` is the
    number of the first pass among its files.
    """
    for _, found in stages(passes, graph, context, name, first):
        graph = found
    return graph


def stages(
    passes: Sequence[Pass], graph: Graph, context: Context = NOTHING, name: str = "", first: int = 1
) -> Iterator[tuple[str, Graph]]:
    """The name of each pass that is not switched off, with the graph after it."""
    if first == 1:
        dump(f"{name}-0-traced.txt", graph)
        if config.check:
            verify(graph)
    for number, step in enumerate(passes, first):
        if step.__name__ not in config.passes_off:
            graph = run_pass(step, graph, context, f"{name}-{number}")
            yield step.__name__, graph


def run_pass(step: Pass, graph: Graph, context: Context, label: str) -> Graph:
    """The graph after a pass: counted, dumped under the label, and verified."""
    with spent("passes"):
        began, before = perf_counter(), graph
        graph = (
            cast(Informed, step)(graph, context) if is_informed(step) else cast(Alone, step)(graph)
        )
        passed(step.__name__, perf_counter() - began)
        dump(f"{label}-{step.__name__}.txt", graph)
        if config.check and graph is not before:
            verify(graph, before)
    return graph


def is_informed(step: Pass) -> bool:
    """True for a pass that takes the context as its second argument.

    >>> is_informed(strong), is_informed(simplify)
    (True, False)
    """
    return cast(FunctionType, step).__code__.co_argcount == 2
