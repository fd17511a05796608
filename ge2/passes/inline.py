"""Calls are replaced by what they call."""

from __future__ import annotations

from ge2.ir import Graph
from ge2.ops.control import CALLS as PLAIN
from ge2.ops.custom import CUSTOM
from ge2.ops.inline import inlined
from ge2.ops.solves import SOLVES

# Operations whose first graph is what they compute; their other graphs served
# derivatives, which are done.
CALLS = (*PLAIN, *CUSTOM, *SOLVES)


def inline(graph: Graph) -> Graph:
    return inlined(graph, CALLS)
