"""The parameters of a persistent kernel: arrays and their strides, sizes, and numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, final

import numpy as np

from ge2.base.arrays import accumulator as widened
from ge2.codegen.axes import strides_of
from ge2.codegen.text import Argument, Operand
from ge2.codegen.text import whole as whole_operand
from ge2.ir import Atom, Dims, Graph, Literal, Names, Var
from ge2.targets.cuda.emit.words import HELD, baked, label, number
from ge2.targets.cuda.persistent.nodes import Parts, dense, stacks
from ge2.targets.cuda.persistent.rows import Along, Split
from ge2.targets.cuda.persistent.values import (
    Array,
    Number,
    Step,
    Steps,
    Value,
    declared,
    held,
    times,
)

# elements of which the place of an array is a multiple, if it may be read in packs
PACK: Final = 16


@final
class Handed:
    """The arguments of a kernel.

    `free` gives names that nothing else has; `parts` says which axes of arrays have `rows`.

    What blocks of a `grid` write for each other is not promised to be restrict: a compiler may take
    what a thread has read of such memory for what is there still, whoever it waits for.
    """

    def __init__(
        self, graph: Graph, names: Names, free: Callable[[str], str], parts: Split | None, rows: int,
        grid: bool,
    ) -> None:  # fmt: skip
        self.names, self.label, self.parts, self.rows = names, free, parts, rows
        self.promise = "" if grid else "__restrict__ "
        self.arguments: dict[str, Argument] = {}
        self.constants: dict[object, Number] = {}
        self.stacks = stacks(graph)

    def declared(self, x: Array) -> str:
        """A parameter for memory that the kernel writes."""
        return declared(x, False).replace("__restrict__ ", self.promise)

    def add_argument(self, name: str, argument: Argument) -> None:
        assert name not in self.arguments, f"two arguments {name}"
        self.arguments[name] = argument

    def given(self, v: Var, operand: Operand, axis: Along) -> Value:
        name, dtype = self.label(label(self.names[v])), v.type.dtype
        if operand.value:
            self.add_argument(name, Argument(f"{HELD[dtype]} {name}", "value", (operand, dtype)))
            return Number(name, v.type)
        steps = self.steps(name, v, operand, axis)
        found = Array(name, v.type, steps, self.first(steps, axis), given=True)
        self.add_argument(name, Argument(declared(found, True), "array", (operand, dtype)))
        return found

    def result(self, a: Any, operand: Operand, axis: Along) -> Array:
        name = self.names[a] if isinstance(a, Var) else "result"
        alone = self.parts is not None and axis is None
        name = self.label(f"{label(name)}_out")
        steps = self.steps(name, a, operand, axis)
        begins = (operand.offset % PACK, operand.loose % PACK) == (0, 0)
        packed = begins and operand.strides == strides_of(a.type.shape)
        found = Array(name, a.type, steps, self.first(steps, axis), alone, packed=packed)
        self.add_argument(
            found.name, Argument(self.declared(found), "result", (operand, a.type.dtype))
        )
        return found

    def steps(self, name: str, a: Atom, operand: Operand, axis: Along) -> Steps:
        """The strides of an array; what follows from numbers of rows or rounds
        is no number in the text.
        """
        shape = tuple(self.rows if i == axis else n for i, n in enumerate(a.type.shape))
        order, rounds, found = dense(operand.strides, shape), self.stacks.get(a), list[Step]()
        if order is None and axis is None and rounds is None:
            return operand.strides
        for i, step in enumerate(operand.strides):
            faster = () if order is None else order[order.index(i) + 1 :]
            if order is None or rounds in faster:
                found.append(step if step in (0, 1) else self.sized(f"{name}_step_{i}", step))
            else:
                found.append(self.step(shape, faster, axis))
        return tuple(found)

    def step(self, shape: Dims, faster: Dims, axis: Along) -> Step:
        """The elements along some axes of a shape, of which `axis` is that of rows."""
        inner = math.prod(shape[i] for i in faster if i != axis)
        if axis not in faster:
            return inner
        if "rows" not in self.arguments:
            self.add_argument("rows", Argument("int rows", "size", self.rows))
        return times("rows", inner)

    def sized(self, name: str, value: int) -> str:
        """A size that the kernel is handed."""
        name = self.label(name)
        self.add_argument(name, Argument(f"int {name}", "size", value))
        return name

    def first(self, steps: Steps, axis: Along) -> str:
        """Returns where the rows of a block begin in an array."""
        if axis is None or self.parts is None:
            return ""
        step, each = steps[axis], self.parts.each
        step = step * each if isinstance(step, int) else held(times(step, each))
        return f"(int)blockIdx.x * {step}" if step != 1 else "(int)blockIdx.x"

    def literal(self, literal: Literal) -> Number:
        """A number in the text, or else an argument."""
        dtype = widened(literal.type.dtype)
        value: Any = literal.value
        if literal.type.dtype != dtype:  # a half type's own number
            value = dtype.type(literal.type.dtype.type(value))
        if baked(value, dtype, frozenset()):
            return Number(number(value, dtype), literal.type)
        if literal.key not in self.constants:
            name = self.label("constant")
            self.add_argument(name, Argument(f"{HELD[dtype]} {name}", "constant", (value, dtype)))
            self.constants[literal.key] = Number(name, literal.type)
        return self.constants[literal.key]

    def temps(self, arrays: Sequence[Array], parts: Sequence[Parts], times: int) -> tuple[int, ...]:
        """Arguments for the arrays that the kernel has for itself, `times` of
        some; the bytes of each.
        """
        found = list[int]()
        for temp in arrays:
            operand, declaration = (
                whole_operand("temp", len(found), temp.type.shape),
                self.declared(temp),
            )
            self.add_argument(
                temp.name, Argument(declaration, "result", (operand, temp.type.dtype))
            )
            found.append(temp.type.nbytes * times)
        for each in parts:
            operand = whole_operand("temp", len(found), (each.nbytes,))
            declaration = f"{each.state} *{self.promise}{each.name}"
            self.add_argument(
                each.name, Argument(declaration, "result", (operand, np.dtype(np.uint8)))
            )
            found.append(each.nbytes)
        return tuple(found)
