"""What a kernel is chosen for, what the choice is, and what a family of kernels must answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, final

from ge2.base.record import record
from ge2.codegen.view import KernelView
from ge2.ir import ArrayType, Op


@final
@record
class Problem:
    """What is to be computed, and where. `shared`: pairs (result, input) that are the same memory."""

    op: Op
    inputs: tuple[ArrayType, ...]
    outs: tuple[ArrayType, ...]
    target: str = "cpu"
    shared: frozenset[tuple[int, int]] = frozenset()


@final
@record
class Launch:
    """A kernel ready to be compiled and launched; without a source, NumPy's own function is the kernel.

    It serves every operation equal to `op`, whose values its view speaks of.
    """

    name: str
    op: Op
    source: str = ""
    view: KernelView | None = None


class Family(ABC):
    """Kernels that one template renders, or one library function is."""

    name: ClassVar[str]
    target: ClassVar[str] = ""  # the one it serves; "" for any

    @abstractmethod
    def refuses(self, problem: Problem) -> str:
        """Why no kernel of the family serves the problem; nothing if one does."""

    @abstractmethod
    def launch(self, problem: Problem) -> Launch:
        """The kernel for a problem that is not refused."""


def described(problem: Problem) -> str:
    """What a kernel computes, for the comment above it."""
    given, made = (", ".join(map(str, types)) for types in (problem.inputs, problem.outs))
    return f"{made} = {problem.op} of {given}"
