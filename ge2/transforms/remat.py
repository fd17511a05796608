"""`checkpoint`: values of the forward pass are computed again in the backward
pass instead of being kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from ge2.base.errors import InputError
from ge2.base.source import here
from ge2.base.tracebacks import hides
from ge2.ir import Atom, Eqn, Graph, Var, rename
from ge2.ops.graphs.control import Call, Checkpoint, Cond
from ge2.ops.graphs.loops import ScanLoop
from ge2.ops.graphs.policy import NOTHING, Policy, Rule, inlined
from ge2.ops.shape import Name
from ge2.trace import tidy
from ge2.transforms.arguments import Arguments, Results, Static, at_top
from ge2.tree import map as tree_map

P = ParamSpec("P")
R = TypeVar("R")
CHOSEN = "chosen by a policy"  # the label of what a function of the user's saves


def checkpoint(
    fun: Callable[P, R],
    *,
    prevent_cse: bool = True,
    policy: Callable[..., bool] | None = None,
    static_argnums: int | Sequence[int] = (),
) -> Callable[P, R]:
    """`fun`, whose intermediate values are not kept for the backward pass but computed again there.

    `policy` says what is kept nevertheless: one of `ge2.checkpoint_policies`, or a function of an
    operation, the types of its inputs and its parameters. What it saves is never computed again,
    but where it costs nothing; a value that it does not save is never kept, but for the arguments.
    Without `prevent_cse` the compiler may find that both computations are the same, and do one.

    InputError for a policy that is no function.

    >>> import numpy as np, ge2
    >>> ge2.grad(ge2.checkpoint(lambda x: np.sin(np.sin(x))))(0.0)
    1.0
    """
    check_policy(policy)
    static = Static.of(static_argnums)

    @wraps(fun)
    @hides
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if at_top():
            return fun(*args, **kwargs)
        _, others, merged = static.split(fun, args)
        call, returned = Arguments.of(merged, others, kwargs), Results()
        closed, writes = call.stage_writing(
            call.inputs(), returned, "checkpoint", [True] * len(call.arrays)
        )
        call.check(writes)
        graph, rule = marked(tidy(closed.graph), policy)
        found = Checkpoint(graph, rule, prevent_cse)(*closed.captured, *call.values())
        call.carry(writes, found)
        return returned.build(found)

    return wrapped


def check_policy(policy: Any) -> None:
    if policy is not None and not callable(policy):
        what = (
            f"the policy of checkpoint is a function; got {policy!r:.60} ({type(policy).__name__})"
        )
        raise InputError(what, where=here(), fix="one of ge2.checkpoint_policies")


def marked(graph: Graph, policy: Callable[..., bool] | None) -> tuple[Graph, Rule]:
    """A policy as a rule: what a function of the user's saves gets a
    label, by which graphs know it.
    """
    if policy is None:
        return graph, NOTHING
    if isinstance(policy, Policy):
        return graph, policy.rule
    return chosen(inlined(graph, (Call,)), policy), ("save_only_these_names", CHOSEN)


def chosen(graph: Graph, policy: Callable[..., bool]) -> Graph:
    """The graph with a label for what a function of the user's saves, inside of
    loops and branches, too.
    """
    env: dict[Var, Atom] = {}
    eqns: list[Eqn] = []
    for eqn in graph.eqns:
        op, inputs = eqn.op, rename(env, eqn.inputs)
        if isinstance(op, ScanLoop):
            op = replace(op, body=chosen(inlined(op.body, (Call,)), policy))
        elif isinstance(op, Cond):
            op = Cond(tuple(chosen(inlined(b, (Call,)), policy) for b in op.branches))
        eqns.append(Eqn(op, inputs, eqn.outs, eqn.source))
        if policy(eqn.op, *(a.type for a in eqn.inputs), **eqn.op.params()):
            for v in eqn.outs:
                named = Var(v.type)
                env[v] = named
                eqns.append(Eqn(Name(CHOSEN), (v,), (named,), eqn.source))
    return Graph(graph.inputs, tuple(eqns), rename(env, graph.outputs))


def checkpoint_name(x: Any, name: Any) -> Any:
    """`x` (an array or a container of arrays), marked with a label that
    policies of `checkpoint` can name.

    >>> checkpoint_name(2.0, "scale")
    2.0
    """
    if not isinstance(name, str):
        raise InputError(f"a label is a string; got {name!r:.60}", where=here())
    return x if at_top() else tree_map(Name(name), x)


remat = checkpoint
