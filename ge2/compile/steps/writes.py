"""Zeros that are written by slices are the largest slice, padded, and the others written into that.

So nobody fills what is written anyway: `y = np.zeros_like(x); y[0] = a; y[1:-1] = f(x)` needs zeros
at the last place alone. Slices that have no element in common may be written in any order.

update_slice (update_slice 0 a) b  ->  update_slice (pad b) a
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from ge2.ir import Atom, Dims, Eqn, Graph, Literal, Op, Var, without_dead_code
from ge2.ops.index import Indexed, UpdateSlice
from ge2.ops.shape import BroadcastInDim, Identity, Pad, Reshape, Slice, StopGradient, Transpose
from ge2.passes.context import Context
from ge2.passes.take_to_mask import Index
from ge2.program.program import WRITES

Box = tuple[range, ...]  # the indices along each axis


def writes(graph: Graph) -> Graph:
    makers = {v: e for e in graph.eqns for v in e.outs}
    zeros = {e.outs[0] for e in graph.eqns if is_zeros(e)}
    if not zeros:
        return graph
    uses = Counter(a for e in graph.eqns for a in e.inputs if isinstance(a, Var))
    uses.update(a for a in graph.outputs if isinstance(a, Var))
    ends = [e for e in graph.eqns if isinstance(e.op, UpdateSlice)]
    between = {x for e in ends if isinstance(x := e.inputs[0], Var) and uses[x] == 1}
    chains = [chain(e, makers, zeros, uses) for e in ends if e.outs[0] not in between]
    new: dict[Eqn, Sequence[Eqn]] = {}
    for each in filter(None, chains):
        new.update(dict.fromkeys(each, ()))
        new[each[-1]] = padded(each)
    if not new:
        return graph
    eqns = tuple(each for e in graph.eqns for each in new.get(e, (e,)))
    return without_dead_code(Graph(graph.inputs, eqns, graph.outputs, graph.consts))


def is_zeros(eqn: Eqn) -> bool:
    """True for an array of zeros; those of -0.0 are no padding."""
    if not isinstance(eqn.op, BroadcastInDim) or not isinstance(eqn.inputs[0], Literal):
        return False
    value = complex(eqn.inputs[0].value)
    return value == 0 and math.copysign(1.0, value.real) + math.copysign(1.0, value.imag) == 2


def chain(last: Eqn, makers: Mapping[Var, Eqn], zeros: set[Var], uses: Counter[Var]) -> list[Eqn]:
    """The updates of zeros that end with this one, if one may come first:
    nobody reads what is between.
    """
    found, x = [last], last.inputs[0]
    while x not in zeros:
        maker = makers.get(x) if isinstance(x, Var) and uses[x] == 1 else None
        if maker is None or not isinstance(maker.op, UpdateSlice):
            return []
        found.insert(0, maker)
        x = maker.inputs[0]
    return found if set(found[largest(found)].op.step) == {1} else []  # type: ignore[attr-defined]


def largest(chain: Sequence[Eqn]) -> int:
    """The update that writes most, of those that may come first."""
    boxes = list(map(written_box, chain))
    by_size = sorted(range(len(chain)), key=lambda i: -chain[i].inputs[1].type.size)
    return next(i for i in by_size if all(disjoint(boxes[i], other) for other in boxes[:i]))


def padded(chain: Sequence[Eqn]) -> list[Eqn]:
    """The same array by padding, then the other updates in their order."""
    at = largest(chain)
    (out,), u = chain[-1].outs, chain[at].inputs[1]
    start, shape = chain[at].op.start, u.type.shape  # type: ignore[attr-defined]
    high = tuple(n - a - m for n, a, m in zip(out.type.shape, start, shape, strict=True))
    others = [e for e in chain if e is not chain[at]]
    made = [Var(out.type) for _ in others] + [out]
    eqns = [Eqn(Pad(start, high, (0,) * len(shape)), (u,), (made[0],), chain[at].source)]
    for e, x, y in zip(others, made, made[1:], strict=False):
        eqns.append(Eqn(e.op, (x, e.inputs[1]), (y,), e.source))
    return eqns


# ---------------------------------------------------------------------------------- parts of arrays


def box(start: Dims, stop: Dims, step: Dims) -> Box:
    return tuple(map(range, start, stop, step))


def written_box(eqn: Eqn) -> Box:
    """The elements that an update of a slice writes."""
    op = eqn.op
    assert isinstance(op, UpdateSlice)
    return box(op.start, op.stop(eqn.inputs[1].type.shape), op.step)


def disjoint(a: Box, b: Box) -> bool:
    """True if two boxes of one array have no element in common, as far as single axes show.

    >>> disjoint((range(0, 1),), (range(1, 9),)), disjoint((range(0, 9, 2),), (range(1, 9, 2),))
    (True, True)
    >>> disjoint((range(0, 5),), (range(4, 9),))
    False
    """
    return any(apart(p, q) for p, q in zip(a, b, strict=True))


def apart(a: range, b: range) -> bool:
    if not a or not b or a[-1] < b[0] or b[-1] < a[0]:
        return True
    return a.step == b.step and (a.start - b.start) % a.step != 0


def read_box(makers: Mapping[Var, Eqn], a: Atom) -> tuple[Atom, Box] | None:
    """The array that a value is a slice of, reshaped or transposed, and the
    elements it is made of.
    """
    maker = makers.get(a) if isinstance(a, Var) else None
    while maker is not None and isinstance(maker.op, Reshape | Transpose):
        a = maker.inputs[0]
        maker = makers.get(a) if isinstance(a, Var) else None
    if maker is None or not isinstance(maker.op, Slice):
        return None
    return maker.inputs[0], box(maker.op.start, maker.op.stop, maker.op.step)


def reads_elsewhere(makers: Mapping[Var, Eqn], eqn: Eqn) -> bool:
    """True if an update writes elements of an array that its other operand, a
    slice of it, has none of.
    """
    x, u = eqn.inputs
    found = read_box(makers, u)
    return found is not None and found[0] is x and disjoint(found[1], written_box(eqn))


# ----------------------------------------------------------------------------------- before writes
# Graphs of functions that write their arguments, made such that what is
# written can be in the arguments.
#
# What is read of an argument after it was written is copied before: a view of it, where
# that is less work than to write a copy of the argument and copy that back; and another
# argument whose contents it takes over.


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

    An update may write where an argument is if no index is found out of range after that.
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
    """The values that are made at indices which an equation before them has checked."""
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
    """The views of arguments to be copied, so that updates can write where the arguments are.

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
