"""The values of a region in C: what a statement reads, and what it computes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ge2.base.dtypes import HALF
from ge2.codegen.kernel_values import Held, Param
from ge2.codegen.loop_nest import Home, Work
from ge2.codegen.text import Text
from ge2.ir import Eqn, Literal, Names
from ge2.ir.text import eqn_text
from ge2.ops.index import Gather
from ge2.ops.reduce import ArgReduce, Reduce
from ge2.ops.shape import Iota
from ge2.targets.c.emit.kernel_parameters import Places, label
from ge2.targets.c.emit.reductions import gathers_index, state_dtype, word
from ge2.targets.c.emit.types import HELD, SUFFIX, expression, helpers_of, retyped


class Statements:
    """The part of a writer of loops that spells values: it knows the home and the maker of each,
    arrays and numbers, and the names of the graph.
    """

    homes: dict[Held, Home]
    makers: dict[Held, Work]
    places: Places
    names: Names
    helpers: dict[str, None]

    def stored(self, w: Work) -> Text:
        assert w.param is not None
        dtype = w.param.var.type.dtype
        value = self.operand(w.xs[0])
        if dtype in HALF:
            value = f"ge2_cast_f32_{SUFFIX[dtype]}({value})"
        return Text(f"{self.places.result(w.param)} = {value};")

    def computed(self, w: Work) -> str:
        assert w.y is not None and w.step is not None
        if w.step.eqn is not None and isinstance(w.step.eqn.op, Gather):
            table, place = w.xs
            return self.places.read(table.leaf, self.operand(place))
        eqn, operands, dtype = (
            w.step.eqn,
            [self.operand(x) for x in w.xs],
            w.xs[0].dtype if w.xs else None,
        )
        if eqn is None:  # a half type is widened
            leaf = w.xs[0].leaf
            if isinstance(leaf, Param) and self.places.operands[leaf.var].value:
                return operands[0]  # a number is handed over as float32
            return f"ge2_cast_{SUFFIX[w.step.xs[0].dtype]}_f32({operands[0]})"
        op: Any = eqn.op
        assert dtype is not None
        if isinstance(op, ArgReduce):
            return "0"
        if isinstance(op, Reduce):
            return (
                expression("ge2_add({0}, 0)", operands, dtype, dtype)
                if op.name == "reduce_sum"
                else operands[0]
            )
        if op.retypes:
            return retyped(operands[0], eqn)
        if op.name == "pow" and dtype.kind == "i":
            return self.power(operands, dtype)
        if op.edition:
            self.helpers.update(dict.fromkeys(helpers_of(op.lowering.helpers, dtype)))
        return expression(op.lowering.expression, operands, dtype, w.y.dtype)

    def power(self, operands: list[str], dtype: np.dtype) -> str:
        """A power of integers, which a negative exponent makes the error of
        the call, as in NumPy.
        """
        services = self.places.argue("lib", "const ge2_services *lib", "services")
        equation = self.places.argue("equation", "int64_t equation", "equation")
        return expression(
            f"ge2_power({{0}}, {{1}}, {equation}, {services})", operands, dtype, dtype
        )

    def operand(self, x: Held) -> str:
        """A value, wherever it is."""
        leaf = x.leaf
        if isinstance(leaf, Param):
            return self.places.load(leaf)
        if isinstance(leaf, Literal):
            return self.places.constant(leaf, x.dtype)
        if isinstance(leaf, Iota):
            return self.places.count(leaf, x)
        home, w = self.homes[x], self.makers[x]
        place = self.places.at(home) if home.dims else ""
        if w.kind != "fold":
            return label(x.name) + place
        text = self.state(w) + place
        if gathers_index(w):
            return f"{text}.index"
        return text if state_dtype(w) == x.dtype else f"({HELD[x.dtype]}){text}"

    def note(self, eqn: Eqn | None) -> str:
        """The equation, as the graph above the kernel has it."""
        return eqn_text(eqn, self.names) if eqn is not None else ""

    def state(self, w: Work) -> str:
        assert w.y is not None
        return f"{label(w.y.name)}_{word(w)}"
