"""Numbers that several steps need are made before them, not by one that has to wait for something else.

Fusion puts a number into the first region that reads it: the bias corrections of Adam into the update of the
first weight, and the updates of all other weights then wait for that one, and so for its gradient. On a GPU,
where what is independent runs at once, that is most of the end of a training step in a row. A kernel of one
thread beside others costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ge2.ir import Atom, Eqn, Graph, Var
from ge2.ops.region import Region

Levels = dict[Var, int]


def early(graph: Graph) -> Graph:
    """The graph with regions of numbers alone, as early as what they read allows."""
    level = levels(graph)
    readers = read_by(graph)
    done: list[Eqn] = []
    for n, eqn in enumerate(graph.eqns):
        chosen = numbers(eqn, level, [v for v in eqn.outs if waits(graph, eqn, readers.get(v, set()), level)])
        if not chosen:
            done.append(eqn)
            continue
        first, rest = parted(eqn, chosen, readers, n)
        done.insert(place(first, done), first)
        done.append(rest)
    return Graph(graph.inputs, tuple(done), graph.outputs, graph.consts)


def levels(graph: Graph) -> Levels:
    """After how many regions, one after another, each value is there."""
    found: Levels = dict.fromkeys(graph.inputs, 0)
    for eqn in graph.eqns:
        on_host = all(v.type.weak for v in eqn.outs)
        found.update(dict.fromkeys(eqn.outs, 0 if on_host else 1 + latest(eqn.inputs, found)))
    return found


def latest(atoms: Sequence[Atom], level: Levels) -> int:
    return max([level.get(a, 0) for a in atoms if isinstance(a, Var)], default=0)


def read_by(graph: Graph) -> dict[Var, set[int]]:
    """The equations that read each value; -1 is who called."""
    found: dict[Var, set[int]] = {}
    for n, eqn in (*enumerate(graph.eqns), (-1, None)):
        for a in graph.outputs if eqn is None else eqn.inputs:
            if isinstance(a, Var):
                found.setdefault(a, set()).add(n)
    return found


def waits(graph: Graph, eqn: Eqn, readers: set[int], level: Levels) -> bool:
    """Whether something that reads a result of an equation has all else that it reads by then."""
    made, now = {*eqn.outs}, latest(eqn.inputs, level)
    others = [[a for a in graph.eqns[n].inputs if a not in made] for n in readers if n >= 0]
    return any(latest(each, level) <= now for each in others)


def numbers(eqn: Eqn, level: Levels, outs: Sequence[Var]) -> set[int]:
    """The equations of a region that make numbers for others out of what is there earlier."""
    op: Any = eqn.op
    if (
        not isinstance(op, Region)
        or all(v.type.shape for v in outs)
        or not any(v.type.shape for v in eqn.outs)
    ):
        return set()
    outer = dict(zip(op.graph.inputs, eqn.inputs, strict=True))
    inner = dict(zip(op.graph.outputs, eqn.outs, strict=True))
    now = latest(eqn.inputs, level)
    found: set[int] = set()
    for made, v in inner.items():
        if v in outs and not v.type.shape and isinstance(made, Var):
            behind = {*slice_of(op.graph, made)}
            read = [
                outer[a] for i in behind for a in op.graph.eqns[i].inputs if isinstance(a, Var) and a in outer
            ]
            plain = not any(op.axes[i] for i in behind)
            if plain and behind and latest(read, level) < now:
                found |= behind
    return found


def slice_of(graph: Graph, wanted: Var) -> Iterator[int]:
    """The equations that a value comes from."""
    needed: set[Atom] = {wanted}
    for i in reversed(range(len(graph.eqns))):
        eqn = graph.eqns[i]
        if not needed.isdisjoint(eqn.outs):
            needed.update(eqn.inputs)
            yield i


def parted(eqn: Eqn, chosen: set[int], readers: dict[Var, set[int]], n: int) -> tuple[Eqn, Eqn]:
    """A region as two: of the equations chosen, and of the rest, which reads what it needs of these."""
    op: Any = eqn.op
    graph, outer = op.graph, dict(zip(op.graph.inputs, eqn.inputs, strict=True))
    inner = dict(zip(graph.outputs, eqn.outs, strict=True))
    before = [i for i in range(len(graph.eqns)) if i in chosen]
    after = [i for i in range(len(graph.eqns)) if i not in chosen]
    made = [v for i in before for v in graph.eqns[i].outs]
    read = {a for i in after for a in graph.eqns[i].inputs}
    shown = [v for v in made if v in read or v in inner]
    fresh = {v: inner.get(v) or Var(v.type) for v in shown}
    first = region(op, before, outer, shown, tuple(fresh.values()), eqn)
    left = [v for v in graph.outputs if v not in fresh]
    rest = region(op, after, {**outer, **fresh}, left, tuple(inner[v] for v in left), eqn)
    return first, rest


def region(
    op: Region, chosen: Sequence[int], outer: dict[Any, Any], shown: Sequence[Any], outs: Any, eqn: Eqn
) -> Eqn:
    """Some equations of a region as one of its own; `outer` tells what each value from elsewhere is there."""
    eqns = tuple(op.graph.eqns[i] for i in chosen)
    own = {v for e in eqns for v in e.outs}
    inputs = tuple(dict.fromkeys([a for e in eqns for a in e.inputs if isinstance(a, Var) and a not in own]))
    inner = Graph(inputs, eqns, tuple(shown))
    axes = tuple(op.axes[i] for i in chosen)
    numbers = all(not at for at in axes)
    made = Region("pointwise" if numbers else op.kind, () if numbers else op.space, axes, inner)
    return Eqn(made, tuple(outer[v] for v in inputs), outs, eqn.source)


def place(eqn: Eqn, done: Sequence[Eqn]) -> int:
    """Behind the last equation that makes what this one reads."""
    makers = [n for n, each in enumerate(done) if not set(each.outs).isdisjoint(eqn.inputs)]
    return max(makers, default=-1) + 1
