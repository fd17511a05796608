"""Calls are replaced by what they call."""

from __future__ import annotations

from ge2.ir import Graph
from ge2.ops.control import Call, CallSaving, Checkpoint, CheckpointSaving
from ge2.ops.custom import CUSTOM
from ge2.ops.splice import spliced

# Operations whose first graph is what they compute; their other graphs served derivatives, which are done.
CALLS = (Call, CallSaving, Checkpoint, CheckpointSaving, *CUSTOM)


def inline(graph: Graph) -> Graph:
    return spliced(graph, CALLS)
