"""The layouts of the operands of attention: along batches, queries, keys and features, each with
its stride.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, final

from ge2.base.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from ge2.base.record import record
from ge2.ir import Dims
from ge2.ops.attention.facts import FEATURE
from ge2.ops.attention.form import Chain, Form
from ge2.ops.dot import DotGeneral
from ge2.ops.shape import BroadcastInDim, Reshape, Transpose

Factors = list[tuple[int, int]]  # sizes and strides that make up an axis, the outermost first
WIDEST: Final = 256  # features of a head that kernels have tiles for
TYPES: Final = frozenset((BFLOAT16, FLOAT16, FLOAT32, FLOAT64))  # that kernels multiply
SUMS: Final = (4, 5)  # among the operands, those that are as the sums: they have no features
MAPPED: Final = 3  # axes of batches, beside those of rows and features: a tensor map has five
Strides = Sequence[Dims]


@final
@record
class Batch:
    """An axis of batches: its size, and the stride of queries, keys, values, result, of what has the
    shape of the sums, of cotangents, and of what else is as the result along it.
    """

    size: int
    strides: Dims


@final
@record
class Tiling:
    """`rows`: the strides of queries, keys, values, result and sums from row to row."""

    queries: int
    keys: int
    width: int
    batches: tuple[Batch, ...]
    rows: Dims

    @property
    def columns(self) -> int:
        """The features that are multiplied, the last of which may be zeros."""
        return -(-self.width // 16) * 16

    @property
    def planes(self) -> int:
        """Tiles of 64 features side by side."""
        return -(-self.width // 64)

    @property
    def heads(self) -> int:
        """Batches and heads, all together."""
        return math.prod(b.size for b in self.batches)

    def unaligned(self, bytes_: int, size: int) -> str:
        """The reason why rows of elements of a size are no multiples of so many bytes; "" if they are."""
        some = max(1, bytes_ // size)
        if self.width % some:
            return f"heads are not a multiple of {some} features wide"
        apart = (*self.rows, *(s for b in self.batches for s in b.strides))
        lines = len(self.rows)
        if any(s % some for n, s in enumerate(apart) if n % lines not in SUMS):
            return f"rows are no multiples of {bytes_} bytes apart"
        return ""


def c_order(shape: Dims) -> Dims:
    """The strides of an array in C order."""
    return tuple(math.prod(shape[a + 1 :]) for a in range(len(shape)))


def refusal(form: Form) -> str:
    """The reason why no kernel serves attention of these types; "" if one may."""
    dtypes = {c.base.type.dtype for c in form.chains}
    y = form.plain.outputs[0].type
    if len(dtypes) != 1 or not dtypes <= TYPES or y.dtype not in dtypes:
        return "queries, keys, values and result are not of one half type, of float32 or of float64"
    strides = (*(c_order(c.base.type.shape) for c in form.chains), c_order(y.shape))
    found = tiling(form, strides)
    return found if isinstance(found, str) else found.unaligned(4, y.dtype.itemsize)


def tiling(
    form: Form,
    strides: Strides,
    sums: Strides = (),
    cotangents: Strides = (),
    results: Strides = (),
) -> Tiling | str:
    """The layouts of operands that have these strides; or the reason why no kernel reads them so.
    `sums`: of further arrays, which have the shape of the sums; `cotangents`: of those of queries, keys and
    values for each batch and head; `results`: of more arrays that are as the result, which come last.
    """
    dot, values, shape = form.dot.op, form.values.op, form.product.type.shape
    assert isinstance(dot, DotGeneral) and isinstance(values, DotGeneral)
    parts = [factors(c, s) for c, s in zip(form.chains, strides, strict=False)]
    axes = product_axes(form)
    y_shape = form.plain.outputs[0].type.shape
    ys = [split(y_shape, s) for s in (strides[3], *results)]
    pairs = zip((*axes, *(form.result for _ in ys)), (*parts, *ys), strict=True)
    found = [dict(zip(a, p, strict=True)) for a, p in pairs]
    lines = [dict(zip((*form.batch, form.row), split(form.sums, s), strict=True)) for s in sums]
    order = form.row, form.key, form.key, form.row
    backs = [
        dict(
            zip(
                (*form.batch, row),
                split(tuple(shape[a] for a in (*form.batch, row)), s[:-1]),
                strict=True,
            )
        )
        for row, s in zip(order, cotangents, strict=False)
    ]
    if any(len(p) > 1 for f in found for a, p in f.items() if a in (form.key, form.row, FEATURE)):
        return "its rows or features are several axes"
    widths = [f.get(FEATURE, []) for f in found]
    if any(len(w) != 1 or w[0][1] != 1 for w in widths):
        return "features are not side by side"
    width = widths[0][0][0]
    if width > WIDEST or any(w[0][0] != width for w in widths):
        return f"heads are more than {WIDEST} features wide, or of several widths"
    everything = (*found[:4], *lines, *backs, *found[4:])
    batches = merged(
        [b for a in form.batch for b in refined(shape[a], [f.get(a, []) for f in everything])]
    )
    if form.key in found[0] or form.row in found[1]:
        return "queries depend on keys"
    rows = tuple(step(f.get(a, [])) for f, a in zip(found[:4], order, strict=True))
    if any(s < 0 for s in (*rows, *(s for b in batches for s in b.strides[:4]))):
        return "an operand has no strides along axes that others have"
    rows += tuple(step(f.get(form.row, [])) for f in lines)
    rows += tuple(step(f.get(a, [])) for f, a in zip(backs, order, strict=False))
    rows += tuple(step(f.get(form.row, [])) for f in found[4:])
    return Tiling(shape[form.row], shape[form.key], width, tuple(batches), rows)


def split(shape: Dims, strides: Dims) -> list[Factors]:
    """The axes of an array as factors."""
    return [[(n, s)] if n > 1 else [] for n, s in zip(shape, strides, strict=True)]


def step(part: Factors) -> int:
    return part[0][1] if part else 0


def product_axes(form: Form) -> tuple[Dims, Dims, Dims]:
    """The axis of the scores that each axis of queries, keys and values is, or FEATURE."""
    dot, values = form.dot.op, form.values.op
    assert isinstance(dot, DotGeneral) and isinstance(values, DotGeneral)
    types = [a.type for a in form.dot.inputs]
    free, beside = dot.free(*types), len(dot.beside[0])
    found = []
    for side in (form.query, 1 - form.query):
        axes = [FEATURE] * types[side].ndim
        for n, a in enumerate(dot.beside[side]):
            axes[a] = n
        first = beside + (len(free[0]) if side else 0)
        for n, a in enumerate(free[side]):
            axes[a] = first + n
        found.append(tuple(axes))
    other = 1 - form.side
    axes = [FEATURE] * form.values.inputs[other].type.ndim
    pairs = (*zip(values.contract[other], values.contract[form.side], strict=True),)
    pairs += (*zip(values.beside[other], values.beside[form.side], strict=True),)
    for mine, theirs in pairs:
        axes[mine] = form.weights[theirs]
    return found[0], found[1], tuple(axes)


def lacks_heads(form: Form) -> bool:
    """True if an operand has no axis of some heads, as keys that an einsum has heads share: what a step
    of the derivative has for each head would have to be summed.
    """
    shape, axes = form.product.type.shape, product_axes(form)
    return any(a not in each for each in axes for a in form.batch if shape[a] > 1)


def factors(chain: Chain, strides: Dims) -> list[Factors]:
    """The axes of an operand, in terms of the array that it is made of."""
    parts = split(chain.base.type.shape, strides)
    for e in chain.eqns:
        op = e.op
        if isinstance(op, Transpose):
            parts = [parts[a] for a in op.order]
        elif isinstance(op, BroadcastInDim):
            new: list[Factors] = [[(n, 0)] if n > 1 else [] for n in op.shape]
            for d, part in zip(op.dims, parts, strict=True):
                new[d] = part
            parts = new
        elif isinstance(op, Reshape):
            parts = regrouped([f for part in parts for f in part], op.shape)
    return parts


def regrouped(flat: Factors, shape: Dims) -> list[Factors]:
    """Factors in C order as those of the axes of another shape.

    >>> regrouped([(2, 12), (3, 0), (4, 1)], (6, 2, 2))
    [[(2, 12), (3, 0)], [(2, 2)], [(2, 1)]]
    """
    rest, found = list(flat), list[Factors]()
    for n in shape:
        part, left = Factors(), n
        while left > 1:
            size, stride = rest.pop(0)
            take = math.gcd(size, left)
            if take != size:
                rest.insert(0, (size // take, stride))
            part.append((take, stride * (size // take)))
            if take == 1:  # axes that share no factor: no strides tell where elements are
                return [[(n, -1), (1, -1)] for n in shape]
            left //= take
        found.append(part)
    return found


def refined(size: int, parts: Sequence[Factors]) -> list[Batch]:
    """One axis of several operands, each in factors of its own, in factors that all have."""
    rest = [list(p) or [(size, 0)] for p in parts]
    found, left = list[Batch](), size
    while left > 1:
        # the innermost first
        take = math.gcd(*(p[-1][0] for p in rest))
        if take == 1:
            take = left
            found.append(Batch(take, tuple(-1 for _ in rest)))
            break
        found.append(Batch(take, tuple(p[-1][1] for p in rest)))
        for p in rest:
            n, stride = p.pop()
            if n > take:
                p.append((n // take, stride * take))
        left //= take
    return found[::-1]


def merged(batches: Sequence[Batch]) -> list[Batch]:
    """Axes that all operands treat as one, as one."""
    found: list[Batch] = []
    for b in batches:
        if found and all(
            o == i * b.size for o, i in zip(found[-1].strides, b.strides, strict=True)
        ):
            found[-1] = Batch(found[-1].size * b.size, b.strides)
        else:
            found.append(b)
    return found
