"""Loops over arrays of any strides in C, and the parameters that their
sizes and strides become.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np

from ge2.base.record import record
from ge2.choice.problem import Problem, described
from ge2.codegen.parameters import Parameters
from ge2.codegen.text import ALONE, CKernel, Operand, Sharing, Text
from ge2.targets.c.caps import Caps
from ge2.targets.c.emit.kernel_parameters import ORDER
from ge2.targets.c.emit.types import HELD, STORED


@final
@record
class Check:
    """A test that leaves a kernel, and the loops around it."""

    over: tuple[tuple[str, str], ...]
    test: tuple[Text, ...]


@final
class Head(Parameters):
    """The parameters of a kernel, each declared when it is first named."""

    def __init__(self, caps: Caps) -> None:
        super().__init__()
        self.alone, self.tuning = caps.threads == ALONE, caps.tuning

    def add(self, name: str, declaration: str, kind: str, value: Any = None) -> str:
        return self.argue(name, f"{declaration}{name}", kind, value)

    def array(self, name: str, operand: Operand, dtype: np.dtype, written: bool = False) -> str:
        """An array, or the number that stands in its place."""
        if operand.value:
            return self.add(name, f"{HELD[dtype]} ", "value", (operand, dtype))
        const = "" if written else "const "
        return self.add(
            name, f"{const}{STORED[dtype]} *", "result" if written else "array", (operand, dtype)
        )

    def size(self, name: str, value: int) -> str:
        return self.add(name, "int64_t ", "size", value)

    def team(self, work: int) -> str:
        """The test by which threads share a loop: whether there are so many elements."""
        self.add("threads", "int ", "threads")
        return f"threads > 1 && {self.size('work', work)} > {self.tuning.moves.grain}"

    def services(self) -> str:
        self.add("lib", "const ge2_services *", "services")
        self.add("equation", "int64_t ", "equation")
        return "equation, " + self.add("threads", "int ", "threads") + ", lib"

    def kernel(self, kind: str, problem: Problem, body: Sequence[Text]) -> CKernel:
        arguments = sorted(self.arguments.values(), key=lambda a: ORDER.index(a.kind))
        return CKernel(kind, described(problem), tuple(arguments), tuple(body), 1)

    def skeleton(self, kind: str, problem: Problem, template: str, view: Any) -> CKernel:
        """A kernel of a family's template."""
        bare = self.kernel(kind, problem, ())
        return replace(bare, template=f"c/{template}.c.jinja", view=view)


@final
@record
class Elements:
    """What `templates/c/elements.c.jinja` prints: statements for each element along some axes."""

    over: tuple[tuple[str, str], ...]
    sharing: Sharing | None
    statements: tuple[Text, ...]
    checks: tuple[Check, ...] = ()


def nest_of(letters: Sequence[str], ends: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The loops of a nest, as a template prints them."""
    return tuple(zip(letters, ends, strict=True))


def shared(head: Head, depth: int, work: int, simd: bool = False, lines: int = 0) -> Sharing | None:
    """Returns how threads share so many nested loops around some lines; not at all where one thread
    has little to do.
    """
    if head.alone:
        return None
    collapse = f"collapse({depth}) " if depth > 1 else ""
    schedule = f"for {'simd ' if simd else ''}{collapse}schedule(static)"
    again = simd and not collapse
    long = depth + lines > head.tuning.regions.lines
    return Sharing(head.team(work), schedule, long, simd=again)
