"""Numbers that Python computes for the kernels of a program."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, final

import numpy as np

from ge2.codegen.kernel_values import held
from ge2.codegen.layout import Line
from ge2.ir import Var
from ge2.program.program import Program
from ge2.targets.cuda.device_arrays import narrowed


@final
class HostNumbers:
    """`strong`: those of a dtype of their own that kernels alone read, which need no memory on the
    device. `lines` compute them; `uploads`: whether one becomes an array of the device.
    """

    def __init__(self, program: Program, bind: Callable[[Any, str], str]) -> None:
        self.strong = handed_over(program)
        self.lines: list[Line] = []
        self.uploads = False
        self._names: dict[np.dtype, str] = {}
        self._bind = bind

    def narrowing(self, dtype: np.dtype) -> str:
        """The name of what makes a number of Python's one of `dtype`, as a kernel holds it."""
        if dtype not in self._names:
            self._names[dtype] = self._bind(partial(narrowed, dtype, held(dtype)), "number_")
        return self._names[dtype]


def handed_over(program: Program) -> set[Var]:
    """Returns what the host computes of a dtype of its own and kernels alone read."""
    made = {v for step in program.steps if step.kind == "host" for v in step.eqn.outs}
    made -= {v for v in made if v.type.weak} | set(program.graph.outputs)
    asking = [step.eqn for step in program.steps if step.kind != "kernel"]
    return made - {a for eqn in asking for a in eqn.inputs if isinstance(a, Var)}
