"""Random bits that only elementwise regions read are made there, element by
element, and never stored.

It is for targets that make a number faster than they read one. The bits are
those of the whole stream.
"""

from __future__ import annotations

from dataclasses import replace

from ge2.ir import Atom, Dims, Eqn, Graph, Var
from ge2.ops.random import Draw, RandomBits
from ge2.ops.region import Region
from ge2.ops.shape import Reshape, Slice
from ge2.passes.fusion_group import NONE
from ge2.passes.wrap_indices import orientation


def drawn(graph: Graph) -> Graph:
    """The graph with `draw` in its regions in place of `random_bits` before them."""
    makers = {
        e.outs[0]: e
        for e in graph.eqns
        if isinstance(e.op, RandomBits) and e.inputs[0].type.ndim == 1
    }
    readers: dict[Atom, list[Eqn]] = {}
    for eqn in graph.eqns:
        for a in {*eqn.inputs} & makers.keys():
            readers.setdefault(a, []).append(eqn)
    inside = {
        v for v in makers if v not in graph.outputs and all(inner(e, v) for e in readers.get(v, ()))
    }
    if not inside:
        return graph
    words: dict[Var, tuple[Var, Var]] = {}
    eqns: list[Eqn] = []
    for eqn in graph.eqns:
        if eqn.outs and eqn.outs[0] in inside:
            views = [view for n in (0, 1) for view in word(eqn, n)]
            words[eqn.outs[0]] = views[1].outs[0], views[3].outs[0]
            eqns += views
        else:
            for var in (a for a in eqn.inputs if isinstance(a, Var) and a in inside):
                eqn = taken(eqn, var, makers[var], words[var])
            eqns.append(eqn)
    return Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts)


def word(eqn: Eqn, n: int) -> tuple[Eqn, Eqn]:
    """One word of a key, as views."""
    (key,) = eqn.inputs
    part, number = Slice((n,), (n + 1,), (1,)), Reshape(())
    (one,) = part.infer(key.type)
    (none,) = number.infer(one)
    cut, scalar = Var(one), Var(none)
    return Eqn(part, (key,), (cut,), eqn.source), Eqn(number, (cut,), (scalar,), eqn.source)


def inner(eqn: Eqn, var: Var) -> bool:
    """Whether a region reads the value once, in the order in which it lies."""
    op = eqn.op
    if not isinstance(op, Region) or op.kind != "pointwise" or eqn.inputs.count(var) != 1:
        return False
    at = orientation(op, op.graph.inputs[eqn.inputs.index(var)])
    return at is not None and in_order(at)


def in_order(at: Dims) -> bool:
    real = [a for a in at if a != NONE]
    return real == sorted(real)


def taken(eqn: Eqn, var: Var, bits: Eqn, words: tuple[Var, Var]) -> Eqn:
    """A region that is given the words of a key."""
    op, i = eqn.op, eqn.inputs.index(var)
    assert isinstance(op, Region)
    assert isinstance(bits.op, RandomBits)
    inside, given = op.graph, (Var(words[0].type), Var(words[1].type))
    value = inside.inputs[i]
    at = orientation(op, value)
    assert at is not None
    draw = Eqn(Draw(value.type.shape, bits.op.dtype), given, (value,), bits.source)
    inputs = (*inside.inputs[:i], *given, *inside.inputs[i + 1 :])
    whole = Graph(inputs, (draw, *inside.eqns), inside.outputs, inside.consts)
    return replace(
        eqn, op=replace(op, axes=(at, *op.axes), graph=whole),
        inputs=(*eqn.inputs[:i], *words, *eqn.inputs[i + 1 :]),
    )  # fmt: skip
