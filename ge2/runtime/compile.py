"""From a closed graph to an Executable."""

from __future__ import annotations

from ge2.ir import Graph
from ge2.runtime.executable import Executable


def compile_graph(graph: Graph, *, donated: tuple[bool, ...] = (), name: str = "f") -> Executable:
    """The graph, through every pass, as a program that runs on this machine."""
    return Executable(name, graph)
