"""The first rewrite of a loop's body or of a branch: arrays in place of Python numbers."""

from __future__ import annotations

from ge2.ir import Graph
from ge2.passes.context import Context
from ge2.trace.strong import strong as on_arrays


def strong(graph: Graph, context: Context) -> Graph:
    """The graph on arrays alone, if it is a body: code that calls it again
    and again passes arrays.
    """
    return on_arrays(graph) if context.body else graph
