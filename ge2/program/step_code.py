"""A step of a program as an object: what it needs, and what it becomes in the text of a target."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from ge2.base.memory import Lifetime
from ge2.codegen.layout import Line
from ge2.ir import Var
from ge2.program.program import Step
from ge2.program.records import Made

A = TypeVar("A")  # the assembler of the target


class StepCode(Generic[A]):
    """The code of a step. It asks the assembler for names; the assembler adds it to the program
    when it is complete.

    `needs`: arrays of the arena for this step alone. `results`: for which the caller's arrays are
    made before. `lines`: Python. `made`: kernels, for people; `choice`: of what the step becomes.
    """

    def __init__(self, assembler: A, step: Step) -> None:
        self.assembler, self.step = assembler, step
        self.needs: dict[str, Lifetime] = {}
        self.results: tuple[Var, ...] = ()
        self.lines: list[Line] = []
        self.made: list[Made] = []
        self.choice: Any = None
