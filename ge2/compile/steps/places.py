"""The places of a step's inputs within its result, where they may be made instead of copied there."""

from __future__ import annotations

from ge2.codegen.layout import Layout, plain, reshaped
from ge2.ir import Eqn, Var
from ge2.ops.shape import Concatenate, Pad, Reshape, Transpose


def places_in(eqn: Eqn, around: Layout | None) -> dict[int, Layout]:
    """The layouts of inputs within the result of an equation that joins or pads them, as they are;
    `around` is the layout of the result, if it is part of another array.
    """
    op, (out,) = eqn.op, eqn.outs[:1]
    whole = around or plain(out.type.shape)
    if isinstance(op, Concatenate):
        found, at = {}, 0
        for i, a in enumerate(eqn.inputs):
            found[i] = Layout(whole.offset + at * whole.strides[op.axis], whole.strides)
            at += a.type.shape[op.axis]
        return found
    if isinstance(op, Pad) and min(*op.low, *op.high, 0) >= 0 and not any(op.inner):
        offset = sum(n * s for n, s in zip(op.low, whole.strides, strict=True))
        return {0: Layout(whole.offset + offset, whole.strides)}
    return {}


def before(eqn: Eqn, place: Layout) -> Layout | None:
    """The layout of the input of a reshape or transpose whose result has the layout `place`."""
    op, (x, *_), (out, *_) = eqn.op, eqn.inputs, eqn.outs
    if isinstance(op, Reshape):
        return reshaped(place, out.type.shape, x.type.shape)
    assert isinstance(op, Transpose)
    strides = tuple(place.strides[op.order.index(i)] for i in range(len(op.order)))
    return Layout(place.offset, strides)


def is_mappable(place: Layout, v: Var) -> bool:
    """True if a tensor map can write this layout: last axis contiguous, other strides and the offset
    multiples of 16 bytes.
    """
    *outer, last = place.strides
    some = max(1, 16 // v.type.dtype.itemsize)
    return last == 1 and not any(each % some for each in (place.offset, *outer))
