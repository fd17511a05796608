"""Attention where a kernel serves it: one step, in place of the user's equations of it.

What was not differentiated is looked for here; what was, `vjp_graph` has found before. All that no
kernel is chosen for stays, or becomes again, the graph that the user wrote (`inline`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ge2.choice.choose import choose
from ge2.choice.problem import Problem, prefs
from ge2.ir import Atom, Eqn, Graph
from ge2.ops.attention.band import Band, with_bands
from ge2.ops.attention.ops import ATTENTION, Attention, AttentionSaving, FusedAttention, recognised
from ge2.ops.graphs.policy import inlined
from ge2.passes.context import Context
from ge2.passes.simplify import CALLS
from ge2.targets.cuda.caps import Caps
from ge2.targets.cuda.kernels.apart import Apart
from ge2.targets.cuda.kernels.attention import Attention as Kernel
from ge2.targets.cuda.kernels.gemm.wgmma import HOPPER
from ge2.targets.cuda.limits import Limits

CATALOG: Final = (Kernel(), Apart())
OTHERS: Final = tuple(kind for kind in CALLS if kind not in ATTENTION)


def attention(graph: Graph, context: Context) -> Graph:
    """The graph with a kernel's step for each attention that one is chosen for."""
    limits = context.caps
    if not isinstance(limits, Limits) or limits.generation != HOPPER:
        return graph
    found = recognised(inlined(graph, OTHERS))
    if not any(isinstance(e.op, Attention | AttentionSaving) for e in found.eqns):
        return graph
    caps = Caps.before(limits)
    bands: dict[Atom, Band] = {found.inputs[i]: x for i, x in context.iotas if isinstance(x, Band)}
    eqns = tuple(chosen(e, bands, caps) for e in found.eqns)
    return Graph(found.inputs, eqns, found.outputs, found.consts)


def chosen(eqn: Eqn, bands: Mapping[Atom, Band], caps: Caps) -> Eqn:
    """The step of a kernel, if one is chosen for the equation; `bands`: values known to be such."""
    op = eqn.op
    if not isinstance(op, Attention | AttentionSaving):
        return eqn
    known = {n: bands[a] for n, a in enumerate(eqn.inputs) if a in bands}
    jaxpr = with_bands(op.jaxpr, known)
    plain = with_bands(op.plain, known) if isinstance(op, AttentionSaving) else jaxpr
    inputs = tuple(a for n, a in enumerate(eqn.inputs) if n not in known)
    fused = FusedAttention(jaxpr, plain, isinstance(op, AttentionSaving))
    one = replace(eqn, op=fused, inputs=inputs)
    choice = choose(Problem.of(one, "cuda"), caps, prefs(), CATALOG)
    return eqn if choice.family is CATALOG[-1] else replace(one, choice=choice)
