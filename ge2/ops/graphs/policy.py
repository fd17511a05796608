"""The rule that says which values a checkpoint may keep, which graphs can hold and print.

A rule is a tuple: its name, then labels or further rules. `Policy` is what users hold of it; like a
policy in JAX it can be called with an operation, the types of its inputs and its parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import replace
from typing import Any, final

from ge2.base.errors import InputError
from ge2.base.record import record
from ge2.ir import Atom, Eqn, Graph, GraphOp, Op, Reversing, Var, rename, renamed
from ge2.ops.dot import DotGeneral
from ge2.ops.shape import Barrier, Name

Rule = tuple[Any, ...]
Labels = Collection[str]


def no_batch_dims(op: Any) -> bool:
    return isinstance(op, DotGeneral) and not op.beside[0]


# fmt: off
RULES: dict[str, Callable[[Any, Labels, Rule], bool]] = {
    "everything_saveable":                lambda op, labels, given: True,
    "nothing_saveable":                   lambda op, labels, given: False,
    "dots_saveable":                      lambda op, labels, given: isinstance(op, DotGeneral),
    "dots_with_no_batch_dims_saveable":   lambda op, labels, given: no_batch_dims(op),
    "save_only_these_names":              lambda op, labels, given: not set(given).isdisjoint(labels),
    "save_any_names_but_these":           lambda op, labels, given: any(n not in given for n in labels),
    "save_anything_except_these_names":   lambda op, labels, given: set(given).isdisjoint(labels),
    "save_from_both_policies":            lambda op, labels, given: any(saves(r, op, labels) for r in given),
}
# fmt: on
NOTHING: Rule = ("nothing_saveable",)


def saves(rule: Rule, op: Any, labels: Labels = ()) -> bool:
    """True if a result of an operation, which `checkpoint_name` gave these labels, may be kept."""
    return RULES[rule[0]](op, labels, rule[1:])


def check(rule: Rule) -> None:
    """InputError unless it is a rule."""
    name, *given = rule or ("",)
    if name not in RULES:
        raise InputError(
            f"{rule!r} is no rule of what to save", fix="one of ge2.checkpoint_policies"
        )
    for r in given if name == "save_from_both_policies" else ():
        check(r)


@final
@record
class Policy:
    """The argument of `ge2.checkpoint(policy=...)`: which values may be kept for the backward pass."""

    rule: Rule

    def __call__(self, op: Any, *types: Any, **params: Any) -> bool:
        """True if results of `op` may be kept; its label, if it is one that marks, counts as one."""
        return saves(self.rule, op, (op.label,) if isinstance(op, Name) else ())

    def __repr__(self) -> str:
        return words(self.rule)


def words(rule: Rule) -> str:
    name, *given = rule
    inner = ", ".join(words(g) if isinstance(g, tuple) else repr(g) for g in given)
    return f"ge2.checkpoint_policies.{name}{f'({inner})' if given else ''}"


# ------------------------------------------------------------------------------------------ inline
# Operations that hold graphs, replaced by what they compute.


Kinds = tuple[type[GraphOp], ...]


def inlined(graph: Graph, kinds: Kinds) -> Graph:
    """The graph with the equations of the first graph of each operation of
    these kinds in its place.
    """
    if not any(isinstance(eqn.op, (*kinds, Reversing)) for eqn in graph.eqns):
        return graph
    eqns: list[Eqn] = []
    env: dict[Var, Atom] = {}
    splice(graph.eqns, env, eqns, kinds, fresh=False)
    return Graph(graph.inputs, tuple(eqns), rename(env, graph.outputs), graph.consts)


def past_barriers(graph: Graph) -> Graph:
    """The graph whose captured arrays and numbers pass barriers: they are there in any case, and what
    is known of them, as of a mask that is a band, holds behind a barrier as before it.
    """
    captured, env, eqns = frozenset(graph.inputs[: graph.consts]), dict[Var, Atom](), list[Eqn]()
    for eqn in graph.eqns:
        kept: Eqn | None = renamed(env, eqn)
        if isinstance(eqn.op, Barrier) and kept is not None:
            passing, kept = parted(kept, captured)
            env.update(passing)
        eqns += () if kept is None else (kept,)
    return Graph(graph.inputs, tuple(eqns), rename(env, graph.outputs), graph.consts)


def parted(barrier: Eqn, captured: Set[Var]) -> tuple[dict[Var, Atom], Eqn | None]:
    """What passes a barrier, by the name behind it, and the barrier of what does not, if any."""
    pairs = [*zip(barrier.inputs, barrier.outs, strict=True)]
    passing = {v: a for a, v in pairs if type(a) is not Var or a.type.weak or a in captured}
    held = [(a, v) for a, v in pairs if v not in passing]
    if not held:
        return passing, None
    inputs, outs = zip(*held, strict=True)
    return passing, replace(barrier, inputs=inputs, outs=outs)


def splice(
    body: Sequence[Eqn], env: dict[Var, Atom], eqns: list[Eqn], kinds: Kinds, fresh: bool
) -> None:
    """Appends the equations of `body`; `fresh`: under new names, for a graph
    may be called twice.
    """
    for eqn in body:
        inputs = rename(env, eqn.inputs)
        if isinstance(eqn.op, kinds):
            assert isinstance(eqn.op, GraphOp)
            inner = eqn.op.graphs()[0]
            names: dict[Var, Atom] = dict(zip(inner.inputs, inputs, strict=True))
            splice(inner.eqns, names, eqns, kinds, fresh=True)
            env.update(zip(eqn.outs, rename(names, inner.outputs), strict=True))
            continue
        # its derivative is done
        op: Op = eqn.op.plain() if isinstance(eqn.op, Reversing) else eqn.op
        outs = tuple(Var(v.type) for v in eqn.outs) if fresh else eqn.outs
        if fresh:
            env.update(zip(eqn.outs, outs, strict=True))
        eqns.append(Eqn(op, inputs, outs, eqn.source))
