"""The derivative of scores element by element, as a kernel has it for a block at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from ge2.base.dtypes import FLOAT32, HALF
from ge2.ir import ArrayType, Atom, Derive, Dims, Eqn, Flags, Graph, Var, without_dead_code
from ge2.ops.attention.facts import REPEATED, reshaped
from ge2.ops.attention.form import Form
from ge2.ops.attention.graphs import inputs_of, scores_dtype, wide, widened
from ge2.ops.graphs.control import whole
from ge2.ops.pointlike import Pointlike, Pointwise
from ge2.ops.shape import BroadcastInDim, Iota, Reshape, Transpose

Read = tuple[int, Dims]  # an input of attention; the axis of the products that each of its axes is
Reads = tuple[Read, ...]


@final
class Elementwise:
    """A graph of scores as work on arrays that are all of the shape of the products, so that each
    input is repeated to it before anything else is done. `reads`: the inputs so repeated.
    """

    def __init__(self, form: Form, graph: Graph) -> None:
        self.form, self.graph = form, graph
        self.shape = form.product.type.shape
        self.makers: dict[Atom, Eqn] = {e.outs[0]: e for e in graph.eqns}
        self.reads: dict[tuple[Var, Dims], None] = {}

    def visited(self, a: Atom, dims: Dims, seen: set[tuple[Atom, Dims]]) -> bool:
        """Collects what a value reads whose axes are these of the products; False if a view in it
        merges or splits axes.
        """
        if not isinstance(a, Var) or (a, dims) in seen:
            return True
        seen.add((a, dims))
        eqn = self.makers.get(a)
        if eqn is None:
            if a is self.graph.inputs[0]:
                return dims == self.all_axes
            self.reads[a, dims] = None
            pairs = zip(dims, a.type.shape, strict=True)
            return all(d != REPEATED or n == 1 for d, n in pairs)
        inner = self.inner(eqn, dims)
        return inner is not None and all(
            self.visited(x, d, seen) for x, d in zip(eqn.inputs, inner, strict=True)
        )

    @property
    def all_axes(self) -> Dims:
        return tuple(REPEATED if n == 1 else a for a, n in enumerate(self.shape))

    def inner(self, eqn: Eqn, dims: Dims) -> list[Dims] | None:
        """The axes of the operands of an equation, of those of its result; None if they merge."""
        op = eqn.op
        if isinstance(op, Iota):
            return []
        if isinstance(op, Transpose):
            return [tuple(dims[op.order.index(i)] for i in range(len(dims)))]
        if isinstance(op, BroadcastInDim):
            old = eqn.inputs[0].type.shape
            pairs = zip(op.dims, old, strict=True)
            return [tuple(REPEATED if n == 1 else dims[d] for d, n in pairs)]
        if isinstance(op, Reshape):
            found = reshaped(op.shape, dims, eqn.inputs[0].type.shape)
            return None if found is None else [found]
        if len(eqn.outs) == 1 and isinstance(op, Pointlike) and isinstance(op.lowering, Pointwise):
            return [dims if x.type.shape else () for x in eqn.inputs]
        return None

    def value(self, a: Atom, dims: Dims, env: dict[tuple[Atom, Dims], Any]) -> Any:
        """A value repeated to the shape of the products."""
        if not isinstance(a, Var):
            return a.value
        if (a, dims) not in env:
            eqn = self.makers[a]
            inner = self.inner(eqn, dims)
            assert inner is not None
            if isinstance(eqn.op, Iota):
                env[a, dims] = self.counted(eqn.op, dims)
            else:
                xs = [self.value(x, d, env) for x, d in zip(eqn.inputs, inner, strict=True)]
                moves = isinstance(eqn.op, Reshape | Transpose | BroadcastInDim)
                env[a, dims] = xs[0] if moves else widened(eqn, xs)
        return env[a, dims]

    def counted(self, op: Iota, dims: Dims) -> Any:
        axis = dims[op.axis]
        if axis == REPEATED:
            return op.dtype.type(0)
        return Iota(self.shape, axis, op.dtype)()

    def scores(self, product: Any, xs: Sequence[Any]) -> Any:
        """Scores in the shape of the products, of the reads so repeated."""
        start = self.graph.inputs[0], self.all_axes
        env: dict[tuple[Atom, Dims], Any] = dict(zip(self.reads, xs, strict=True))
        env[start] = product
        (scores,) = self.graph.outputs
        return wide(self.value(scores, self.form.dims, env))


def derivative(
    form: Form, graph: Graph, wanted: Flags, derive: Derive
) -> tuple[Graph, Reads] | None:
    """(products, what else scores are made of, cotangents of scores) -> cotangents of the products
    and of the inputs that are read, which are wanted, repeated to the shape of the products; and
    those reads. All is elementwise and in the type of scores. None if scores of `graph` are not.
    """
    work = Elementwise(form, graph)
    (scores,), others = graph.outputs, inputs_of(form)
    if not work.visited(scores, form.dims, set()):
        return None
    full = form.product.type.with_dtype(scores_dtype(form))
    asked = {v for v, w in zip(others, wanted, strict=True) if w}
    reads = [r for r in work.reads if r[0] in asked]
    types = [full.with_dtype(stored(v.type.dtype)) for v, _ in work.reads]
    scored = derive.trace(lambda product, *xs: [work.scores(product, xs)], [full, *types])
    flags = (True, *(v in asked for v, _ in work.reads))
    pulled = whole(*derive.vjp(scored, flags))

    def slopes(product: Any, *xs: Any) -> Sequence[Any]:
        env = dict(zip(others, xs, strict=False))
        some = [wide(spread(form, env[v], dims)) for v, dims in work.reads]
        return derive.run(pulled, [product, *some, xs[-1]])

    found = derive.trace(slopes, [full, *(v.type for v in others), full])
    numbers = form.plain.inputs
    return without_dead_code(found), tuple((numbers.index(v), dims) for v, dims in reads)


def stored(dtype: np.dtype) -> np.dtype:
    return FLOAT32 if dtype in HALF else dtype


def spread(form: Form, x: Any, dims: Dims) -> Any:
    """A value whose axes are these of the products, repeated to their shape."""
    mine = [a for a, d in enumerate(dims) if d != REPEATED]
    order = sorted(range(len(mine)), key=lambda i: dims[mine[i]])
    x = x.reshaped(tuple(x.shape[a] for a in mine)).reorder(tuple(order))
    return x.spread(form.product.type.shape, tuple(sorted(dims[a] for a in mine)))


# ------------------------------------------------------------------------- what a kernel adds up
# The cotangents of a read over the axes that it lacks: over all keys, or all queries, and what is of
# each query and key over batches.


def way(form: Form, read: Read) -> str:
    """Along what the cotangents of a read are left by a kernel: "rows", "keys" or "both"."""
    _, dims = read
    if form.key not in dims:
        return "rows"
    return "both" if form.row in dims else "keys"


def folded_type(form: Form, read: Read) -> ArrayType:
    """The type of what a kernel leaves of the cotangents of a read: batches first."""
    shape, (n, dims) = form.product.type.shape, read
    how = way(form, read)
    if how == "both":
        batch = (shape[a] if a in dims else 1 for a in form.batch)
        dtype = form.plain.inputs[n].type.dtype
        return ArrayType((*batch, shape[form.row], shape[form.key]), dtype)
    last = form.row if how == "rows" else form.key
    return ArrayType((*(shape[a] for a in form.batch), shape[last]), scores_dtype(form))


def folded(form: Form, read: Read, ct: Any) -> Any:
    """The part of cotangents, which have the shape of the products, that a kernel leaves."""
    how, (_, dims) = way(form, read), read
    kept = {"rows": (form.row,), "keys": (form.key,), "both": (form.row, form.key)}[how]
    batch = form.batch if how != "both" else tuple(a for a in form.batch if a in dims)
    over = tuple(a for a in range(form.rank) if a not in (*kept, *batch))
    return moved(ct, over, (*batch, *kept), form.rank, folded_type(form, read))


def moved(x: Any, over: Dims, wanted: Dims, rank: int, to: ArrayType) -> Any:
    """A value of which some axes are summed, with the others in an order, as a type has it."""
    x = x.fold_sum(over) if over else x
    left = [a for a in range(rank) if a not in over]
    return x.reorder(tuple(left.index(a) for a in wanted)).reshaped(to.shape).cast(to.dtype)


def settled(form: Form, read: Read, x: Any) -> Any:
    """The cotangent of an input, of what a kernel left of it."""
    how, (n, dims) = way(form, read), read
    t = form.plain.inputs[n].type
    kept = {"rows": (form.row,), "keys": (form.key,), "both": (form.row, form.key)}[how]
    axes = (*form.batch, *kept)
    over = tuple(i for i, a in enumerate(axes) if a not in dims)
    mine = tuple(axes.index(d) for d in dims if d != REPEATED)
    return moved(x, over, mine, len(axes), t)
