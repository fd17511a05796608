"""A graph as straight-line Python over NumPy: for one that is evaluated op by
op again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from ge2.base.dtypes import EXTENDED
from ge2.ir import Atom, Eqn, Graph, Var
from ge2.ops.elementwise import WHERE, Elementwise

REUSED: Final = 4096  # elements from which on the memory of an operand that dies holds the result


def straight(graph: Graph) -> Callable[..., Sequence[Any]]:
    """A function of the inputs' values to the results', each value released after its last use.

    It computes what the references do under `ir.Evaluate`, without looking at each operand again.
    """
    return Writer(graph).function()


class Writer:
    """The text of one function and what its names stand for."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.names: dict[Atom, str] = {v: f"x{i}" for i, v in enumerate(graph.inputs)}
        self.known: dict[str, Any] = {"errstate": np.errstate}
        self.last: dict[Atom, int] = {}
        for i, eqn in enumerate(graph.eqns):
            self.last.update((a, i) for a in eqn.inputs if isinstance(a, Var))
        self.kept = {a for a in graph.outputs if isinstance(a, Var)} | set(graph.inputs)
        self.fresh: set[Atom] = set()  # arrays that a ufunc made
        # there may be views of them
        self.shared = {a for e in graph.eqns if not copies(e) for a in e.inputs}

    def function(self) -> Callable[..., Sequence[Any]]:
        lines = [line for i, eqn in enumerate(self.graph.eqns) for line in self.lines(i, eqn)]
        results = ", ".join(map(self.name, self.graph.outputs))
        inputs = ", ".join(self.names[v] for v in self.graph.inputs)
        body = "".join(f"        {line}\n" for line in (*lines, f"return ({results},)"))
        text = f"def run({inputs}):\n    with errstate(all='ignore'):\n{body}"
        exec(compile(text, "<ge2 straight>", "exec"), self.known)
        return self.known["run"]  # type: ignore[no-any-return]

    def name(self, atom: Atom) -> str:
        if isinstance(atom, Var):
            return self.names[atom]
        return self.constant(atom.value)

    def constant(self, value: Any) -> str:
        name = f"c{len(self.known)}"
        self.known[name] = value
        return name

    def lines(self, i: int, eqn: Eqn) -> list[str]:
        args = [self.name(a) for a in eqn.inputs]
        dead = [
            v for v in dict.fromkeys(eqn.inputs) if self.last.get(v) == i and v not in self.kept
        ]
        into = self.reusable(eqn, dead)
        outs = [f"v{i}_{k}" for k in range(len(eqn.outs))]
        self.names.update(zip(eqn.outs, outs, strict=True))
        call = f"{self.callee(eqn)}({', '.join([*args, *([self.names[into]] if into else [])])})"
        found = [f"{', '.join(outs)}{',' if eqn.op.several else ''} = {call}"]
        if all(a.type.weak for a in eqn.inputs) and eqn.inputs:
            number = self.constant(lambda y: np.asarray(y).item())
            found += [
                f"{y} = {number}({y})" for y, v in zip(outs, eqn.outs, strict=True) if v.type.weak
            ]
        unread = [self.names[v] for v in eqn.outs if v not in self.last and v not in self.kept]
        gone = [*(self.names[v] for v in dead), *unread]
        return [*found, f"del {', '.join(gone)}"] if gone else found

    def callee(self, eqn: Eqn) -> str:
        op = eqn.op
        half = any(a.type.dtype in EXTENDED for a in (*eqn.inputs, *eqn.outs))
        plain = isinstance(op, Elementwise) and not half
        return self.constant(op.ufunc if plain else op.reference)  # type: ignore[attr-defined]

    def reusable(self, eqn: Eqn, dead: Sequence[Atom]) -> Atom | None:
        """An operand whose memory may hold the result: an array of that type,
        which nothing else reads.
        """
        out = eqn.outs[0]
        if eqn.op is WHERE or not copies(eqn) or out.type.size < REUSED:
            return None
        if out.type.dtype in EXTENDED or any(a.type.dtype in EXTENDED for a in eqn.inputs):
            return None
        self.fresh.add(out)
        usable = self.fresh - self.shared
        return next((v for v in dead if v in usable and v.type == out.type), None)


def copies(eqn: Eqn) -> bool:
    """True if the result shares no memory with the operands."""
    op = eqn.op
    return op is WHERE or (isinstance(op, Elementwise) and isinstance(op.ufunc, np.ufunc))
