"""The compiler, read from top to bottom."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from ge2.base.compile_times import passed, spent
from ge2.base.config import config
from ge2.base.gc_pause import collector_paused
from ge2.ir import Graph, verify
from ge2.passes.dump import dump
from ge2.passes.fold import fold
from ge2.passes.fuse import fuse
from ge2.passes.inline import inline
from ge2.passes.loops.absorb_peeled import whole
from ge2.passes.loops.hoist import trim
from ge2.passes.loops.roll import roll
from ge2.passes.loops.rolled_to_scan import stack
from ge2.passes.pads_to_concatenate import join
from ge2.passes.simplify import simplify
from ge2.passes.take_to_mask import match

PIPELINE = (inline, trim, simplify, fold, match, join, roll, whole, stack, fuse)


@collector_paused
def run_pipeline(graph: Graph, name: str = "", first: int = 0, last: int | None = None) -> Graph:
    """The graph after every pass that is not switched off; in check mode each result is verified.

    What the setting `dump` asks for is written under that name, if there is one. `first` and `last` choose
    passes, as the bounds of a slice do.
    """
    if not first:
        dump(f"{name}-0-traced.txt", graph)
    for number, step in enumerate(PIPELINE[first:last], first + 1):
        graph = run_pass(step, graph, f"{name}-{number}")
    return graph


def run_pass(step: Callable[[Graph], Graph], graph: Graph, label: str) -> Graph:
    """The graph after a pass, unless it is switched off: counted, dumped under the label, and verified."""
    if step.__name__ in config.passes_off:
        return graph
    with spent("passes"):
        began = perf_counter()
        graph = step(graph)
        passed(step.__name__, perf_counter() - began)
        dump(f"{label}-{step.__name__}.txt", graph)
        if config.check:
            verify(graph)
    return graph
