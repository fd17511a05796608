"""A small product that a region goes on with makes its operands of other arrays, element by element, as it
reads them: casts, scales, activations.

  h = region x; y = product_region h w b   ->   y = product_region[prologue] x w b

Each block makes what it reads, so the work is repeated for every tile beside or below another; a launch
and two passes over memory are saved. Predictions decide.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ge2.choice.choose import Choice, choose
from ge2.choice.problem import Problem, prefs
from ge2.codegen.layout import plain
from ge2.codegen.text import Operand
from ge2.compile.rewrites.product_epilogue import Epilogues
from ge2.ir import Atom, Eqn, Graph, Var
from ge2.ops.graphs.region import ProductRegion
from ge2.passes.context import Context
from ge2.targets.cuda.kernels.apart import MadeBefore
from ge2.targets.cuda.kernels.product_region import CudaProductRegion
from ge2.targets.cuda.limits import Limits
from ge2.targets.cuda.products.prologue import unmade

CATALOG = (CudaProductRegion(), MadeBefore())


def prologue(graph: Graph, context: Context) -> Graph:
    """The graph with such products, for the GPU of the context."""
    limits = context.caps
    if not isinstance(limits, Limits) or not any(is_small(e) for e in graph.eqns):
        return graph
    reads = Counter([*(a for e in graph.eqns for a in e.inputs), *graph.outputs])
    makers = {v: e for e in graph.eqns for v in e.outs}
    eqns, gone, known = list[Eqn](), set[int](), Epilogues(graph, limits)
    for e in graph.eqns:
        for a in dict.fromkeys(e.inputs) if is_small(e) else ():
            maker = makers.get(a) if reads[a] == 1 else None  # type: ignore[arg-type]
            joined = with_prologue(e, a, maker, known) if maker is not None else None
            if joined is not None:
                e = joined
                gone.add(id(maker))
        eqns.append(e)
    return replace(graph, eqns=tuple(e for e in eqns if id(e) not in gone))


def is_small(eqn: Eqn) -> bool:
    """True of a product and a region that are one kernel of ours for small ones."""
    choice = eqn.choice
    return isinstance(choice, Choice) and isinstance(choice.family, CudaProductRegion)


def with_prologue(eqn: Eqn, a: Atom, maker: Eqn, known: Epilogues) -> Eqn | None:
    """The product that makes operand `a` as its maker does; None if that is not chosen."""
    op, inner = eqn.op, None
    assert isinstance(op, ProductRegion)
    inner = op.graph.inputs[eqn.inputs.index(a)]
    read = [x for e in op.graph.eqns for x in e.inputs if x is inner]
    if len(read) > 1 or inner not in op.product.inputs or unmade(maker):
        return None
    (source,) = maker.inputs
    if not isinstance(source, Var) or source in eqn.inputs or known.layout(source) is None:
        return None
    first = Eqn(maker.op, (source,), (inner,), maker.source)
    inputs = tuple(source if x is inner else x for x in op.graph.inputs)
    joint = ProductRegion(Graph(inputs, (first, *op.graph.eqns), op.graph.outputs))
    given = tuple(source if x is a else x for x in eqn.inputs)
    made = Eqn(joint, given, eqn.outs, eqn.source)

    def operand(role: str, i: int, x: Atom) -> Operand:
        layout = known.layout(x) or plain(x.type.shape)
        return Operand(role, i, layout.strides, layout.offset)

    choice = choose(Problem.of(made, "cuda", operand), known.caps, prefs(), CATALOG)
    return None if isinstance(choice.family, MadeBefore) else replace(made, choice=choice)
