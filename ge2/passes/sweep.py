"""One walk over a graph that rewrites it: each equation is simplified, found
among earlier ones, or kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ge2.base.source import Source
from ge2.ir import ArrayType, Atom, Eqn, Graph, Literal, Op, Var, without_dead_code
from ge2.ops.shape import Barrier

Rule = Callable[["Sweep", Any, Sequence[Atom], ArrayType], Atom | None]
Rules = Mapping[str, Sequence[Rule]]  # by the name of the operation


class Sweep:
    """The equations so far, what each value of the old graph is called
    now, and who made each new one.
    """

    def __init__(self, rules: Rules, merging: bool = True) -> None:
        self.rules = rules
        self.merging = merging  # whether equal equations become one
        self.env: dict[Var, Atom] = {}
        self.eqns: list[Eqn] = []
        self.maker: dict[Atom, Eqn] = {}
        self.seen: dict[tuple[Op, tuple[object, ...]], Var] = {}
        # how often values of the old graph are read, if a rule asks
        self.uses: Counter[Atom] = Counter()
        self.folded: set[Atom] = set()  # values of which it folds the last axis, if a rule asks
        self.source: Source | None = None

    def run(self, graph: Graph) -> Graph:
        env = self.env
        for eqn in graph.eqns:
            self.source = eqn.source
            inputs = tuple([env.get(a, a) if type(a) is Var else a for a in eqn.inputs])
            if isinstance(eqn.op, Barrier):
                self.barrier(eqn, inputs)
                continue
            if eqn.op.several or eqn.op.effect or len(eqn.outs) != 1:
                self.eqns.append(
                    eqn if inputs == eqn.inputs else Eqn(eqn.op, inputs, eqn.outs, eqn.source)
                )
                continue
            out = eqn.outs[0]
            found = self.found(eqn.op, inputs, out.type)
            if found is None:
                kept = eqn if inputs == eqn.inputs else Eqn(eqn.op, inputs, eqn.outs, eqn.source)
                self.eqns.append(kept)
                self.maker[out] = kept
                if self.merging:
                    self.seen[eqn.op, inputs] = out
            else:
                env[out] = found
        outputs = tuple([env.get(a, a) if type(a) is Var else a for a in graph.outputs])
        return without_dead_code(Graph(graph.inputs, tuple(self.eqns), outputs, graph.consts))

    def barrier(self, eqn: Eqn, inputs: Sequence[Atom]) -> None:
        """Numbers pass a barrier: nothing can be computed from them alone
        that would be worth it.
        """
        pairs = list(zip(inputs, eqn.outs, strict=True))
        self.env.update((v, a) for a, v in pairs if type(a) is not Var or a.type.weak)
        held = [(a, v) for a, v in pairs if v not in self.env]
        if held:
            xs, outs = zip(*held, strict=True)
            self.eqns.append(Eqn(eqn.op, xs, outs, eqn.source))

    def make(
        self, op: Op, inputs: Sequence[Atom], type_: ArrayType | None = None, out: Var | None = None
    ) -> Atom:
        """The value of `op inputs`: by a rule, or known already, or made by a new equation."""
        if type_ is None:
            (type_,) = op.infer(*(a.type for a in inputs))
        found = self.found(op, inputs, type_)
        if found is None:
            found = self.record(op, inputs, type_, out)
            if self.merging:
                self.seen[op, tuple(inputs)] = found
        return found

    def found(self, op: Op, inputs: Sequence[Atom], type_: ArrayType) -> Atom | None:
        """What a rule says that `op inputs` is, or the earlier equal equation's result."""
        for rule in self.rules.get(op.name, ()):
            found = rule(self, op, inputs, type_)
            if found is not None:
                return found
        return self.seen.get((op, tuple(inputs))) if self.merging else None

    def record(self, op: Op, inputs: Sequence[Atom], type_: ArrayType, out: Var | None) -> Var:
        var = Var(type_) if out is None else out
        eqn = Eqn(op, tuple(inputs), (var,), self.source)
        self.eqns.append(eqn)
        self.maker[var] = eqn
        return var

    def made_by(self, atom: Atom, name: str) -> Eqn | None:
        """The equation that made a value, if it is of that operation."""
        eqn = self.maker.get(atom) if type(atom) is Var else None
        return eqn if eqn is not None and eqn.op.name == name else None


def number(atom: Atom) -> Any:
    """The value of a literal; None for any other value."""
    return atom.value if isinstance(atom, Literal) else None
