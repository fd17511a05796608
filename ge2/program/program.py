"""What the runtime sees of a graph: steps in order, and where each array lies
and how long it is needed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import final

from ge2.base.record import mutable, record
from ge2.codegen.layout import Layout
from ge2.ir import ArrayType, Eqn, Graph, Var

# Where an array comes from: given by the caller, a Python number, the arena, made for the caller,
# made by the step that computes it, the same memory as another.
STORAGE = ("input", "host", "arena", "output", "library", "view")
# host: Python numbers. view: no work. copy: a view that has to be a copy. kernel: a region. hosted:
# a loop or branch whose rounds Python launches, in the memory of the whole.
END = 1 << 60  # in place of a step: to the end of the call
KINDS = ("host", "view", "copy", "kernel", "loop", "hosted", "matmul", "library")


@final
@mutable
class Buffer:
    """An array of the program; needed from step `first` to step `last`, views of it included."""

    name: str
    type: ArrayType
    storage: str
    first: int
    last: int
    base: Buffer | None = None  # of a view: what holds the memory
    # of an output: the input whose memory it takes, which was donated or is written
    donor: str = ""
    written: bool = False  # of such an output: the input is an argument that is written


@final
@record
class Step:
    """One equation, and how it is run."""

    kind: str
    name: str
    eqn: Eqn
    number: int
    shared: frozenset[tuple[int, int]] = frozenset()  # results that lie in the memory of inputs


@final
@dataclass(frozen=True, slots=True)
class Program:
    graph: Graph
    steps: tuple[Step, ...]
    buffers: dict[Var, Buffer]
    # of views, within what they view; for C alone
    layouts: dict[Var, Layout] = field(default_factory=dict)
    target: str = "cpu"
    # of loops and branches, by the step's number: the programs of their graphs
    inner: dict[int, tuple[Program, ...]] = field(default_factory=dict)
    label: str = ""  # what the files of a graph in a loop begin with, where there are any

    def count(self, *kinds: str) -> int:
        """How many steps are of these kinds."""
        found = Counter(step.kind for step in self.steps)
        return sum(found[kind] for kind in kinds)
