"""Graphs of functions that write their arguments, made such that what is
written can lie in the arguments.

What is read of an argument after it was written is copied before: a view of it, where
that is less work than to write a copy of the argument and copy that back; and another
argument whose contents it takes over.
"""

from __future__ import annotations

from collections.abc import Sequence

from ge2.ir import Atom, Eqn, Graph, Op, Var
from ge2.ops.index import Indexed, UpdateSlice
from ge2.ops.shape import Identity, StopGradient
from ge2.passes.context import Context
from ge2.passes.take_to_mask import Index
from ge2.passes.writes import reads_elsewhere
from ge2.program.carries import WRITES


def with_copies(graph: Graph, context: Context) -> Graph:
    """The graph, in which last contents that are an input, or those of
    another argument, are copies.

    Each stands behind the last equation that reads the argument it is for.
    """
    written = context.written
    if not written:
        return graph
    eqns, outputs = list(graph.eqns), list(graph.outputs)
    homes = {outputs[n]: n for n in reversed(range(len(written)))}
    makers = {v: eqn for eqn in eqns for v in eqn.outs}
    homes |= {
        a: n for n, i in enumerate(written) if begun(makers, a := outputs[n]) is graph.inputs[i]
    }
    for n, i in enumerate(written):
        a, x = outputs[n], graph.inputs[i]
        if isinstance(a, Var) and a.type == x.type and (a in graph.inputs or homes[a] != n):
            copy = Var(a.type)
            eqns.insert(behind(eqns, x, a), Eqn(StopGradient(), (a,), (copy,)))
            outputs[n] = copy
    return Graph(graph.inputs, tuple(eqns), tuple(outputs), graph.consts)


def is_view(eqn: Eqn) -> bool:
    """True if the result is a view of the input.

    A `stop_gradient` is the copy that `with_copies` makes.
    """
    return eqn.op.is_view and not isinstance(eqn.op, Identity)


def begun(makers: dict[Var, Eqn], a: Atom) -> Atom:
    """The value that a chain of updates begins with."""
    while isinstance(a, Var) and a in makers and isinstance(makers[a].op, WRITES):
        a = makers[a].inputs[0]
    return a


def behind(eqns: Sequence[Eqn], x: Var, a: Var) -> int:
    """The place behind all that reads `x`, itself or by a view, and behind what makes `a`."""
    views: set[Atom] = {x}
    place = 0
    for n, eqn in enumerate(eqns):
        if not views.isdisjoint(eqn.inputs) or a in eqn.outs:
            place = n + 1
        if is_view(eqn) and eqn.inputs[0] in views:
            views.update(eqn.outs)
    return place


def views_first(graph: Graph, context: Context) -> Graph:
    """The graph with the views of written arguments before all else."""
    known: set[Atom] = {graph.inputs[i] for i in context.written}
    first: list[Eqn] = []
    rest: list[Eqn] = []
    for eqn in graph.eqns:
        early = is_view(eqn) and eqn.inputs[0] in known
        (first if early else rest).append(eqn)
        known.update(eqn.outs if early else ())
    return Graph(graph.inputs, (*first, *rest), graph.outputs, graph.consts) if first else graph


def checked_early(graph: Graph, context: Context) -> Graph:
    """The graph with all indices looked at as soon as they are known, if arguments are written.

    An update may write where an argument lies if no index is found out of range after that.
    """
    users = [e for e in graph.eqns if isinstance(e.op, Indexed) and all(map(is_var, indices(e)))]
    one = len(users) < 2 and all(
        e.inputs[0] in graph.inputs and isinstance(e.op, WRITES) for e in users
    )
    if one or not context.written:
        return graph
    wanted: dict[Atom, list[Eqn]] = {}
    for e in users:
        for op, index in checks(e):
            wanted.setdefault(index, []).append(Eqn(op, (index,), op_outs(op, index), e.source))
    eqns = [check for v in graph.inputs for check in wanted.get(v, ())]
    for e in numbers_first(graph):
        eqns += [e, *(check for v in e.outs for check in wanted.get(v, ()))]
    return Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts)


def checks(eqn: Eqn) -> list[tuple[Index, Atom]]:
    """The operations that look at the indices of an equation, each with its index."""
    shape = eqn.inputs[0].type.shape
    return [(Index(shape[a], a), index) for index, a in zip(indices(eqn), axes(eqn), strict=True)]


def made_at_checked(graph: Graph) -> set[Var]:
    """What is made at indices that an equation before it has looked at."""
    looked: set[tuple[Op, Atom]] = set()
    found: set[Var] = set()
    for e in graph.eqns:
        if isinstance(e.op, Index):
            looked.add((e.op, e.inputs[0]))
        elif isinstance(e.op, Indexed) and looked.issuperset(checks(e)):
            found.add(e.outs[0])
    return found


def numbers_first(graph: Graph) -> list[Eqn]:
    """The equations, those on Python numbers alone before all else."""
    known: set[Atom] = {v for v in graph.inputs if v.type.weak}
    first: list[Eqn] = []
    rest: list[Eqn] = []
    for eqn in graph.eqns:
        early = not eqn.op.effect and all(a in known for a in eqn.inputs if is_var(a))
        early = early and any(map(is_var, eqn.inputs)) and all(not v.type.shape for v in eqn.outs)
        (first if early else rest).append(eqn)
        known.update(eqn.outs if early else ())
    return [*first, *rest]


def is_var(a: Atom) -> bool:
    return isinstance(a, Var)


def axes(eqn: Eqn) -> Sequence[int]:
    op = eqn.op
    assert isinstance(op, Indexed)
    return op.axes


def indices(eqn: Eqn) -> Sequence[Atom]:
    """The operands that are indices, one an axis."""
    return eqn.inputs[len(eqn.inputs) - len(axes(eqn)) :]


def op_outs(op: Index, index: Atom) -> tuple[Var, ...]:
    return tuple(Var(t) for t in op.infer(index.type))


def saved_views(graph: Graph, contents: dict[Var, Var]) -> set[Atom]:
    """The views of arguments to be copied, so that updates can write where the arguments lie.

    `contents`: the inputs that are written, by their last contents.
    """
    makers = {v: n for n, eqn in enumerate(graph.eqns) for v in eqn.outs}
    found: set[Atom] = set()
    for out, x in contents.items():
        first = first_update(graph, makers, out, x)
        late = read_later(graph, x, first) if first is not None else None
        if late and sum(a.type.size for a in late) <= 2 * x.type.size:
            found |= late
    return found | own_parts(graph)


def own_parts(graph: Graph) -> set[Atom]:
    """Views that are written into the array they are views of, where that was made inside, unless
    their elements are others than those that are written.
    """
    makers = {v: eqn for eqn in graph.eqns for v in eqn.outs}
    of: dict[Atom, Atom] = {}  # what each view is a view of
    found: set[Atom] = set()
    for eqn in graph.eqns:
        if is_view(eqn):
            of[eqn.outs[0]] = of.get(eqn.inputs[0], eqn.inputs[0])
        elif isinstance(eqn.op, UpdateSlice) and reads_elsewhere(makers, eqn):
            continue
        elif isinstance(eqn.op, WRITES) and eqn.inputs[0] not in graph.inputs:
            found.update(a for a in eqn.inputs[1:] if of.get(a) is eqn.inputs[0])
    return found


def first_update(graph: Graph, makers: dict[Var, int], out: Var, x: Var) -> int | None:
    """The number of the update that begins a chain of them from an argument
    to its last contents.
    """
    a: Atom = out
    while isinstance(a, Var) and a in makers:
        eqn = graph.eqns[makers[a]]
        if not isinstance(eqn.op, WRITES):
            return None
        if eqn.inputs[0] is x:
            return makers[a]
        a = eqn.inputs[0]
    return None


def read_later(graph: Graph, x: Var, first: int) -> set[Atom] | None:
    """The views of an argument that an update, or what comes after it, reads;
    None if it is read itself.
    """
    views: set[Atom] = {x}
    found: set[Atom] = set()
    for n, eqn in enumerate(graph.eqns):
        if is_view(eqn) and eqn.inputs[0] in views:
            views.update(eqn.outs)
        elif n >= first:
            found.update(a for a in eqn.inputs[n == first :] if a in views)
    found.update(a for a in graph.outputs if a in views)
    return None if x in found else found
