"""Rewrites that ask which kernel is chosen: attention, for which a program in C loads nothing of CUDA."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, final

from ge2.base.arrays import AMPERE
from ge2.base.config import config
from ge2.base.record import record
from ge2.choice.choose import Catalog, choose
from ge2.choice.problem import Problem, prefs
from ge2.ir import Atom, Eqn, Graph, Literal, Var, lines_of, rename
from ge2.ops.attention import Given, graphs, with_known
from ge2.ops.attention.form import Form
from ge2.ops.attention.graphs import Read, Reads, derivative, folded_type, in_parts, way
from ge2.ops.attention.ops import (
    ATTENTION,
    Attention,
    AttentionBackward,
    AttentionSaving,
    FusedAttention,
    FusedBackward,
    form_of,
    lacks_heads,
    recognised,
    with_heads,
)
from ge2.ops.attention.scores import around_core, core, scores_to_derive
from ge2.ops.graphs.control import Call, inlined, past_barriers
from ge2.ops.graphs.region import readers_of
from ge2.passes.context import Context
from ge2.passes.fold import RULES, fold
from ge2.passes.simplify import CALLS, Sweep
from ge2.targets.c.kernels.attention import CApart, CAttention, CAttentionBackward
from ge2.targets.c.libraries import limits
from ge2.transforms.graphs import PLAIN

# -------- Attention where a kernel serves it: one step, in place of the user's equations of it.
# What was not differentiated is looked for here; what was, `vjp_graph` has found before. All that
# no kernel is chosen for stays, or becomes again, the graph that the user wrote (`inline`).


# by what decides about an equation: the first such, and what became of it
Known = dict[tuple[object, ...], tuple[Eqn, tuple[Eqn, ...]]]
OTHERS: Final = tuple(kind for kind in CALLS if kind not in ATTENTION)


@final
@record
class Place:
    """A target, its limits, and the families that may serve attention there, the plain graph last."""

    target: str
    caps: Any
    catalog: Catalog

    def split_if_few_blocks(self, form: Form, read: Read) -> Read:
        """Returns how the cotangents of an input are summed: in several partial sums, if an array over
        queries and keys that many batches share would have too few blocks to fill a GPU.
        """
        if self.target != "cuda" or way(form, read) != "both":
            return read
        *batches, rows, keys = folded_type(form, read).shape
        tile, limits = self.caps.chip.tuning.attention.bias_tile, self.caps.limits
        blocks = math.prod(batches) * -(-rows // tile[0]) * -(-keys // tile[1])
        return in_parts(form, read, -(-2 * limits.multiprocessors // blocks))


def attention(graph: Graph, context: Context) -> Graph:
    """The graph with a kernel's step for each attention that one is chosen for."""
    found, where = graph, None if context.body else place(context)
    if where is not None:
        straight = Sweep(RULES).run(past_barriers(inlined(graph, OTHERS)))
        found = recognised(straight, frozenset((where.target,)))
    if not any(isinstance(e.op, ATTENTION) for e in found.eqns):
        return graph
    if where is not None:
        given: dict[Atom, Given] = {
            found.inputs[i]: x for i, x in context.iotas if not isinstance(x, int)
        }
        known: Known = {}
        eqns = tuple(made for e in found.eqns for made in chosen_once(e, given, where, known))
        found = Graph(found.inputs, eqns, found.outputs, found.consts)
    return as_written(found)


def chosen_once(
    eqn: Eqn, given: Mapping[Atom, Given], where: Place, known: Known
) -> tuple[Eqn, ...]:
    """As `chosen`; for an equation like an earlier one, as layers of a network have, what became of that."""
    if not isinstance(eqn.op, ATTENTION):
        return (eqn,)
    places = {a: n for n, a in reversed([*enumerate(eqn.inputs)])}
    read = tuple((places[a] if isinstance(a, Var) else a, a.type) for a in eqn.inputs)
    key = eqn.op, read, tuple(map(given.get, eqn.inputs)), lines_of(eqn)
    if key not in known:
        known[key] = eqn, chosen(eqn, given, where)
        return known[key][1]
    first, found = known[key]
    env: dict[Atom, Atom] = dict(
        zip((*first.inputs, *first.outs), (*eqn.inputs, *eqn.outs), strict=True)
    )
    env.update((v, Var(v.type)) for e in found for v in e.outs if v not in env)
    return tuple(
        replace(e, inputs=rename(env, e.inputs), outs=rename(env, e.outs))  # type: ignore[arg-type]
        for e in found
    )


def place(context: Context) -> Place | None:
    """Returns the target, limits and families that serve attention in a graph; None if none do."""
    if context.caps is not None:
        return on_gpu(context.caps)
    if not context.gathers:
        return None
    caps = limits(config.thread_count())
    return Place("c", caps, (CAttention(), CAttentionBackward(), CApart()))


def on_gpu(limits: object) -> Place | None:
    # what programs in C need not load
    from ge2.targets.cuda.device import Caps
    from ge2.targets.cuda.kernels import attention as kernels
    from ge2.targets.cuda.kernels import libraries
    from ge2.targets.cuda.kernels.tensor_cores import Apart
    from ge2.targets.cuda.limits import Limits

    if not isinstance(limits, Limits) or limits.generation < AMPERE:
        return None
    families = (
        kernels.AttentionOfFew(), kernels.Attention(), libraries.CudnnAttention(),
        kernels.AttentionOfWarps(), libraries.CudnnBackwardInAnyOrder(), kernels.AttentionBackward(),
        libraries.CudnnBackward(), kernels.AttentionBackwardOfWarps(), Apart(),
    )  # fmt: skip
    return Place("cuda", Caps.before(limits), families)


def chosen(eqn: Eqn, given: Mapping[Atom, Given], where: Place) -> tuple[Eqn, ...]:
    """The step of a kernel, if one is chosen for the equation, and what is around it; `given`: values
    of which it is known what they are.
    """
    op = eqn.op
    if not isinstance(op, Attention | AttentionSaving | AttentionBackward):
        return (eqn,)
    known = known_of(op.jaxpr if isinstance(op, Attention) else op.plain, eqn.inputs, given)
    inputs = tuple(a for n, a in enumerate(eqn.inputs) if n not in known)
    if isinstance(op, AttentionBackward):
        return backward(replace(eqn, inputs=inputs), without_known(op.plain, known), known, where)
    jaxpr = without_known(op.jaxpr, known)
    plain = without_known(op.plain, known) if isinstance(op, AttentionSaving) else jaxpr
    fused = FusedAttention(jaxpr, plain, isinstance(op, AttentionSaving))
    one = with_choice(replace(eqn, op=fused, inputs=inputs), where)
    return (eqn,) if one is None else (one,)


def known_of(plain: Graph, inputs: Sequence[Atom], given: Mapping[Atom, Given]) -> dict[int, Given]:
    """Returns the known contents of the inputs of the score function, by their numbers; not those of
    queries, keys and values.
    """
    form = form_of(plain)
    mine = {*form.others, *form.scalars}
    pairs = enumerate(zip(form.plain.inputs, inputs, strict=False))
    return {n: given[a] for n, (v, a) in pairs if a in given and v in mine}


def without_known(graph: Graph, known: Mapping[int, Given]) -> Graph:
    """Returns the graph with its known inputs computed inside it, constants folded to literals."""
    found = with_known(graph, known)
    return fold(found) if any(isinstance(x, Literal) for x in known.values()) else found


def with_choice(eqn: Eqn, where: Place) -> Eqn | None:
    """The equation with the choice of its kernel; None if it has none."""
    choice = choose(Problem.of(eqn, where.target), where.caps, prefs(), where.catalog)
    return None if choice.family is where.catalog[-1] else replace(eqn, choice=choice)


def backward(eqn: Eqn, plain: Graph, known: Mapping[int, Given], where: Place) -> tuple[Eqn, ...]:
    """The step that computes cotangents, if kernels do, and what is around it; `plain`: without the
    inputs of which it is known what they are.
    """
    op = eqn.op
    assert isinstance(op, AttentionBackward)
    wanted = tuple(w for n, w in enumerate(op.wanted) if n not in known)
    form = form_of(plain)
    as_it_was = (replace(eqn, op=AttentionBackward(without_known(op.jaxpr, known), plain, wanted)),)
    if lacks_heads(form):
        plain = with_heads(form)
        form = form_of(plain)
    slopes: Graph | None = None
    reads: Reads = ()
    scores, flags = scores_to_derive(form), graphs.of_others(form, wanted)
    if scores is None and any(flags):
        return as_it_was
    if scores is not None:
        found = derivative(form, scores, flags, PLAIN)
        if found is None:
            return as_it_was
        slopes, reads = found[0], tuple(where.split_if_few_blocks(form, r) for r in found[1])
    *given, logs, y, ct = eqn.inputs
    before, after = around_core(form, wanted, PLAIN, reads)
    inner = core(form, PLAIN, slopes, reads)
    rows = Eqn(Call(before), (y, ct), (Var(before.outputs[0].type),), eqn.source)
    outs = tuple(Var(a.type) for a in inner.outputs)
    inputs = (*given, logs, rows.outs[0], ct, y)
    fused = FusedBackward(inner, plain, slopes, reads)
    one = with_choice(Eqn(fused, inputs, outs, eqn.source), where)
    if one is None:
        return as_it_was
    return rows, one, Eqn(Call(after), (*given, *outs), eqn.outs, eqn.source)


def as_written(graph: Graph) -> Graph:
    """The graph with the derivative of the user's equations where attention has no kernel, forward
    and backward being in it: what there would be, had nothing been recognised.
    """
    left = [e for e in graph.eqns if isinstance(e.op, AttentionSaving)]
    readers, made = readers_of(graph) if left else {}, dict[int, Eqn]()
    for e in left:
        op = e.op
        if not isinstance(op, AttentionSaving) or e.outs[1] in graph.outputs:
            continue
        backs = readers.get(e.outs[1], [])
        if not all(isinstance(b.op, AttentionBackward) for b in backs):
            continue
        forward, backward, count = PLAIN.vjp(op.plain, op.wanted)
        rest = tuple(Var(a.type) for a in forward.outputs[1:])
        made[id(e)] = Eqn(Call(forward), e.inputs, (e.outs[0], *rest), e.source)
        assert len(rest) == count
        for b in backs:
            made[id(b)] = Eqn(Call(backward), (*rest, b.inputs[-1]), b.outs, b.source)
    eqns = tuple(made.get(id(e), e) for e in graph.eqns)
    return Graph(graph.inputs, eqns, graph.outputs, graph.consts) if made else graph
