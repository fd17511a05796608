"""Kernels of libraries: cuDNN's attention, products with what the library does to their sums, and
Fourier transforms.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import mul
from typing import Final, final

import numpy as np

from ge2.base.arrays import AMPERE, BFLOAT16, FLOAT16, FLOAT32, FP8, HOPPER
from ge2.base.errors import CompileError
from ge2.base.record import record
from ge2.choice import Problem, Variant
from ge2.codegen.layout import filled, unspoken
from ge2.codegen.text import Operand
from ge2.ir import ArrayType, Dims, Var
from ge2.ops.attention import Band
from ge2.ops.attention.form import Form
from ge2.ops.attention.ops import Batch, FusedAttention, FusedBackward, Tiling, c_order, form_of
from ge2.ops.attention.scores import scores_of
from ge2.ops.dot import Fft, Irfft, Rfft
from ge2.ops.graphs.contraction import ProductSteps, steps_of
from ge2.ops.graphs.region import CONTRACTION, Region
from ge2.targets.cuda.attention.warps import is_within
from ge2.targets.cuda.device import Caps
from ge2.targets.cuda.emit import CudaKernel
from ge2.targets.cuda.emit.special_reductions import Kernels, LibraryLaunch
from ge2.targets.cuda.emit.split_region import regional
from ge2.targets.cuda.kernels import Cuda, copying
from ge2.targets.cuda.kernels.attention import SHORT, cotangents_of, lying
from ge2.targets.cuda.kernels.attention import operands_of as attention_operands
from ge2.targets.cuda.kernels.products import (
    Matrices,
    algorithms,
    alignment,
    library_seconds,
    matrices,
    multiple,
    no_fp8,
    rounds,
)
from ge2.targets.cuda.launch.library_call import LibraryEpilogue, Steps, WantedAttention
from ge2.targets.cuda.load.fourier import transforms_of
from ge2.targets.cuda.load.libraries import missing
from ge2.targets.cuda.products import tight
from ge2.targets.cuda.products.library_epilogue import Matched, matched

# -------- Attention by cuDNN, where its scores are products times a number of the keys in a band.


WIDEST: Final = 128  # features of a head, but on Hopper
# of operands as `Tiling` has them: those that have the heads of keys
OF_KEYS: Final = frozenset((1, 2, 7, 8))
ROWS: Final = 5  # the sum of each query, which cuDNN makes itself
RESULT: Final = 9  # of attention whose derivative is wanted


@final
@record
class Asked:
    """Attention as cuDNN is asked for it; the operands of the call, some of which it writes; and the
    cotangents that it leaves, for all heads but the first, of heads that share keys.
    """

    wanted: WantedAttention
    operands: tuple[Operand, ...]
    left: tuple[Operand, ...] = ()


class OfCudnn(Cuda):
    """Attention, or its derivative, by cuDNN."""

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        asked = self.asked(problem, caps)
        if isinstance(asked, str):
            return asked
        if caps is None:
            return ""
        if reason := missing() or too_old(asked.wanted, caps):
            return reason
        found = caps.attention(asked.wanted) if problem.settled else ""
        return found if isinstance(found, str) else ""

    def hesitates(self, problem: Problem, caps: Caps | None) -> str:
        asked = self.asked(problem, caps)
        if caps is None or isinstance(asked, str):
            return ""
        wanted, tuning = asked.wanted, caps.chip.tuning.attention
        most = tuning.short_backward if wanted.backward else tuning.short
        few = is_within((wanted.queries, wanted.keys, wanted.width), most)
        return SHORT if few else ""

    @abstractmethod
    def asked(self, problem: Problem, caps: Caps | None) -> Asked | str:
        """Returns what cuDNN is asked for; or the reason why it is not."""

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        """The products of keys that are seen, at a part of the rate of tensor cores: less of short
        sequences.
        """
        asked = self.asked(problem, caps)
        assert isinstance(asked, Asked), "it was not refused"
        wanted, tuning = asked.wanted, caps.chip.tuning.cudnn
        limits = caps.limits
        rate = limits.tuning.mma.rate(limits.generation) * 2 * limits.clock
        if limits.generation == HOPPER:
            rate = caps.chip.tuning.wgmma.rate_of(wanted.dtype)
        part, short = tuning.part(wanted.width, wanted.backward)
        times = 2.5 if wanted.backward else 1.0
        banded = wanted.band != Band()
        lost = 1 + (short if banded else short / 3) / wanted.queries
        done = times * wanted.flops * lost
        return caps.speed.launch + done / (part * rate * limits.multiprocessors)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        asked = self.asked(problem, caps)
        assert isinstance(asked, Asked), "it was not refused"
        call = caps.attention(asked.wanted)
        assert call is not None and not isinstance(call, str), "it was not refused"
        zeros = list[CudaKernel]()
        for x in asked.left:
            zeros += regional(*filled(problem.outs[x.index], None, x), caps.chip).kernels
        dtypes = [self.dtype(problem, x) for x in asked.operands]
        written = frozenset(n for n, x in enumerate(asked.operands) if x.role == "out")
        operands = tuple(zip(asked.operands, dtypes, strict=True))
        return Kernels(tuple(zeros), (), LibraryLaunch(call, operands, written))

    @staticmethod
    def dtype(problem: Problem, x: Operand) -> np.dtype:
        return (problem.inputs if x.role == "in" else problem.outs)[x.index].dtype


@final
class CudnnAttention(OfCudnn):
    name = "cudnn attention"
    ops = (FusedAttention,)

    def asked(self, problem: Problem, caps: Caps | None) -> Asked | str:
        op = problem.op
        assert isinstance(op, FusedAttention)
        form = form_of(op.plain)
        if reason := unlike(form):
            return reason
        if form.sink is not None:
            return "it has a sink"
        outs = problem.arrays[1] if problem.settled else in_c_order(problem)[1]
        sums = [x.strides for x in outs[1:]]
        found = lying(form, problem, outs[0], sums)
        if isinstance(found, str):
            return found
        bases = bases_of(form, problem)
        operands = (*bases, *outs)
        return wanted_of(form, problem, found, (0, 1, 2, 3, 4)[: 4 + len(sums)], operands, caps)


class OfBackward(OfCudnn):
    """The cotangents of queries, keys and values."""

    ops = (FusedBackward,)
    ordered = True

    def asked(self, problem: Problem, caps: Caps | None) -> Asked | str:
        op = problem.op
        assert isinstance(op, FusedBackward)
        form = form_of(op.plain)
        if reason := unlike(form):
            return reason
        ins, outs = problem.arrays if problem.settled else in_c_order(problem)
        logs, rows, ct, y = ins[len(form.plain.inputs) :]
        cotangents = cotangents_of(form, problem)
        sums = logs.strides, rows.strides
        found = lying(form, problem, ct, sums, cotangents, results=(y,))
        if isinstance(found, str):
            return found
        operands = *bases_of(form, problem), y, ct, logs, *outs[:3]
        order = 0, 1, 2, RESULT, 3, 4, 6, 7, 8
        asked = wanted_of(form, problem, found, order, operands, caps)
        if isinstance(asked, str):
            return asked
        wanted = replace(asked.wanted, backward=True, ordered=self.ordered)
        shared = wanted.heads != wanted.key_heads
        return replace(asked, wanted=wanted, left=outs[1:3] if shared else ())


@final
class CudnnBackward(OfBackward):
    name = "cudnn attention backward"


@final
class CudnnBackwardInAnyOrder(OfBackward):
    """Sums of queries' cotangents are added as blocks of keys come to it."""

    name = "cudnn attention backward in any order"
    ordered = False

    def variants(self, problem: Problem, caps: Caps) -> Iterator[Variant]:
        yield Variant(ordered=False)


def too_old(wanted: WantedAttention, caps: Caps) -> str:
    generation = caps.limits.generation
    if generation < AMPERE:
        return "cuDNN's attention is for compute capability 8.0 and newer"
    if wanted.width > WIDEST and generation != HOPPER:
        return f"heads are more than {WIDEST} features wide"
    return ""


def unlike(form: Form) -> str:
    """The reason why scores are none that cuDNN has; "" if they are."""
    if form.soft is not None:
        return "it has dropout"
    scores = scores_of(form)
    if not scores.is_simple:
        return "scores are more than products times a number"
    band, shape = scores.band, form.product.type.shape
    queries, keys = shape[form.row], shape[form.key]
    if (band.low or 0) > 0 or (band.high is not None and queries - 1 - band.high > keys - 1):
        return "a query sees no key, of which cuDNN makes 0, not NaN"
    if band.high is not None and queries > keys:
        return "cuDNN has windows of no more queries than keys"
    return ""


def in_c_order(problem: Problem) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
    """The operands of a problem of which it is not known yet how they lie."""
    pairs = (("in", problem.inputs), ("out", problem.outs))
    found = (
        tuple(Operand(role, n, c_order(t.shape)) for n, t in enumerate(types))
        for role, types in pairs
    )
    return next(found), next(found)


def bases_of(form: Form, problem: Problem) -> tuple[Operand, ...]:
    operands = attention_operands(form, problem)
    return tuple(operands[c.base] for c in form.chains)


def wanted_of(
    form: Form, problem: Problem, found: Tiling, order: Sequence[int], operands: tuple[Operand, ...],
    caps: Caps | None,
) -> Asked | str:  # fmt: skip
    """Attention as it is asked for, of operands as `found` has them, those of `order`."""
    heads = headed(found, form)
    if isinstance(heads, str):
        return heads
    scores = scores_of(form)
    most = sum(t.nbytes for t in (*problem.inputs, *problem.outs))
    wanted = WantedAttention(
        form.queries.base.type.dtype, heads.batches, heads.count * heads.group, heads.count,
        found.queries, found.keys, found.width, scores.factor, scores.band,
        tuple(heads.steps(n) for n in order),
        workspace=max(most, 0 if caps is None else caps.workspace),
    )  # fmt: skip
    return Asked(wanted, operands)


@final
@record
class Heads:
    """Batches, and `count` heads of keys, each of which `group` heads of queries share: the steps
    of each operand along these, and from row to row.
    """

    batches: int
    count: int
    group: int
    outer: tuple[int, ...]
    heads: tuple[int, ...]
    inner: tuple[int, ...]
    rows: tuple[int, ...]
    width: int

    def steps(self, n: int) -> Steps:
        """Of an operand; of an axis of one element any will do but 0."""
        own = self.count * (1 if n in OF_KEYS else self.group)
        head = self.heads[n] if n in OF_KEYS or self.group == 1 else self.inner[n]
        row = self.rows[n] or (1 if n == 4 else self.width)
        return (self.outer[n] or own * (head or row)), (head or row), row


def headed(found: Tiling, form: Form) -> Heads | str:
    """The axes of batches as batches and heads; or the reason why they are not."""
    some = [b for b in found.batches if b.size > 1]
    if any(s < 0 for b in some for n, s in enumerate(b.strides) if n != ROWS):
        return "an operand has no strides along axes that others have"
    sharing = [b for b in some if not b.strides[1] or not b.strides[2]]
    if any(b.strides[1] or b.strides[2] for b in sharing):
        return "keys and values are not of the same heads"
    if any(not s for b in some for n, s in enumerate(b.strides) if n not in (*OF_KEYS, ROWS)):
        return "several heads have the same queries"
    if sharing not in ([], some[-1:]):
        return "heads that share keys are not side by side"
    one = Batch(1, (0,) * len(found.rows))
    group, rest = (sharing[0], some[:-1]) if sharing else (one, some)
    outer, heads = apart(rest, group, form)
    if len(rest) > 2 or (len(rest) > 1 and not joined(rest[-1], group)):
        return "batches and heads are more than two axes"
    return Heads(
        outer.size, heads.size, group.size, outer.strides, heads.strides, group.strides, found.rows,
        found.width,
    )  # fmt: skip


def apart(rest: Sequence[Batch], group: Batch, form: Form) -> tuple[Batch, Batch]:
    """Batches, and heads of keys. One axis is both, if it is as long as several of the user's are."""
    one = Batch(1, (0,) * len(group.strides))
    if len(rest) != 1:
        return (rest[0], rest[-1]) if rest else (one, one)
    if not joined(rest[0], group):
        return rest[0], one
    sizes = [form.product.type.shape[a] for a in form.batch]
    ends = accumulate((n for n in reversed(sizes) if n > 1), mul)
    heads = next((n // group.size for n in ends if n > group.size and not n % group.size), 1)
    if rest[0].size % heads:
        return one, rest[0]
    outer = tuple(heads * s for s in rest[0].strides)
    return Batch(rest[0].size // heads, outer), replace(rest[0], size=heads)


def joined(heads: Batch, group: Batch) -> bool:
    """True if heads that share keys are one axis with those that do not, but for keys."""
    pairs = enumerate(zip(heads.strides, group.strides, strict=True))
    return group.size == 1 or all(
        a == group.size * b for n, (a, b) in pairs if n not in (*OF_KEYS, ROWS)
    )


# -------- A product by the device's library with what the library itself does to its sums.


BY_LIBRARY = {
    (BFLOAT16, BFLOAT16), (BFLOAT16, FLOAT32), (FLOAT16, FLOAT16), (FLOAT16, FLOAT32), (FLOAT32, FLOAT32),
}  # fmt: skip
ROWS_OF = 8  # elements of which the rows of values before an activation are a multiple


@final
class BlasEpilogue(Cuda):
    """A product and a region that is exactly one of the library's epilogues."""

    name, kin = "product by BLAS and its epilogue", "launches, step by step"
    ops, kinds = (Region,), (CONTRACTION,)
    over = False  # of which the library says nothing
    ranked = True

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = steps_of(problem.op)
        if op.prologues:
            return "operands of the product are made of others"
        if why := unspoken(op.region.graph):
            return why
        left, right = (x.type.dtype for x in op.product.inputs)
        if left not in FP8 and (left != right or left not in {given for given, _ in BY_LIBRARY}):
            return f"the library has no epilogue of {left.name} by {right.name}"
        if (found := matched(problem.op)) is None:
            return "what comes after the product is none of the library's epilogues"
        if why := untyped(op, found):
            return why
        if caps is None or not problem.settled:
            return ""
        a, b = (x.type for x in op.product.inputs)
        if left in FP8 and (why := no_fp8(op.dot, a, b, caps.limits)):
            return why
        return misplaced(problem, found, caps)

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        """The time of the bare product, and for each element what was measured of GELU and a bias;
        far longer where rows are no multiples of 16 bytes apart. Other arrays are moved beside it.
        """
        op, tuning = steps_of(problem.op), caps.chip.tuning.products
        product, result = Problem.of(op.product, problem.target), op.rest.outs[0].type
        placed = problem.placed(op.graph)
        factors = [placed[x] for x in op.product.inputs if isinstance(x, Var)]
        row = result.shape[-1] * result.dtype.itemsize
        bytes_ = math.gcd(16, row, multiple(product.inputs, factors))
        found = library_seconds(product, caps, bytes_)
        if rounds(product) and bytes_ < 16:
            found *= tuning.narrow_epilogue
        others = (*op.rest.inputs, *op.rest.outs[1:])
        more = sum(v.type.nbytes for v in others) - product.outs[0].nbytes
        found += result.size * tuning.epilogue + more / caps.speed.moved
        return found * (1 + 0.01 * (variant.plan or 0))

    def variants(self, problem: Problem, caps: Caps) -> Iterator[Variant]:
        return algorithms(problem, caps, asked_of)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        """The launch. CompileError if the library turns out to have no such product, which only the
        device says: the next candidate serves then.
        """
        op = steps_of(problem.op)
        asked, found = asked_of(problem, caps, variant.plan or 0), matched(problem.op)
        call = asked and caps.product(asked.wanted)
        if asked is None or found is None or call is None:
            raise CompileError(f"the library has no such product: {self.name}", fix="ge2.explain")
        kernels = [
            each
            for t, source, target in asked.copies
            for each in copying(t, t, source, target, caps.chip).kernels
        ]
        values, lies = (*op.region.graph.inputs, *op.region.graph.outputs), operands_of(problem)
        out = values[found.result].type.dtype
        more = [n for n in (found.vector, found.matrix) if n is not None]
        operands = [*zip(asked.operands, (*asked.wanted.dtypes, out), strict=True)]
        operands += [(lies[n], values[n].type.dtype) for n in more]
        first = len(op.region.graph.inputs)  # of the results
        written = {2, *(3 + i for i, n in enumerate(more) if n >= first)}
        temps = tuple(t.nbytes for t, _, _ in asked.copies)
        launch = LibraryLaunch(call, tuple(operands), frozenset(written))
        return Kernels(tuple(kernels), temps, launch)


def untyped(op: ProductSteps, found: Matched) -> str:
    """The reason why the library has no such epilogue of these types; "" if it may have."""
    graph = op.region.graph
    values = (*graph.inputs, *graph.outputs)
    left = op.product.inputs[0].type.dtype
    out, more = (
        values[found.result].type.dtype,
        [n for n in (found.vector, found.matrix) if n is not None],
    )
    if left in FP8:
        scales = found.kind == "SCALED" and all(values[n].type.dtype == FLOAT32 for n in more)
        return "" if scales else "sums of fp8 are only scaled, by numbers in float32"
    if (left, out) not in BY_LIBRARY:
        return f"the library has no epilogue of {left.name} to {out.name}"
    if "GELU" in found.kind and (coarse := coarsely(out, graph.outputs[0].type.shape)):
        return f"the library's GELU has a tanh that is too coarse {coarse}"
    same = all(values[n].type.dtype == out for n in more)
    return "" if same else f"its further arrays are not all {out.name}"


def coarsely(dtype: np.dtype, shape: Dims) -> str:
    """Of which values the library's tanh is further off than their own rounding: on an H200 by 2 units
    of float16 near 0, and of bfloat16 by 5 in rows of no whole 16 bytes.
    """
    if dtype != BFLOAT16:
        return f"for {dtype.name}"
    return "in rows of no whole 16 bytes" if shape[-1] % 8 else ""


def operands_of(problem: Problem) -> dict[int, Operand]:
    """The operands of the inputs and then the results of the region, but for the product, by
    number.
    """
    op = steps_of(problem.op)
    given = problem.placed(op.graph)
    places = (*op.rest.inputs, *op.rest.outs)
    return {n: given[v] for n, v in enumerate(places) if isinstance(v, Var) and v in given}


def misplaced(problem: Problem, found: Matched, caps: Caps) -> str:
    """The reason why arrays lie as the library takes none; "" if it does."""
    op = steps_of(problem.op)
    lies, y = operands_of(problem), op.product.outs[0].type
    values = (*op.region.graph.inputs, *op.region.graph.outputs)
    if any(x.value for x in lies.values()):
        return "a number that it reads is in no array"
    if found.vector is not None:
        t = values[found.vector].type
        if not in_order(t, lies[found.vector]):
            return "the elements of its vector are not neighbours"
    n = found.matrix
    if n is not None and found.kind != "SCALED" and lead_of(y, lies[n], columns_of(op)) % ROWS_OF:
        return f"rows of its matrix are no multiples of {ROWS_OF} elements apart"
    asked = asked_of(problem, caps, 0)
    return "" if asked is not None else "BLAS takes no matrices that lie so, in one call"


def columns_of(op: ProductSteps) -> int:
    """The elements of a row of the result."""
    a, b = (x.type for x in op.product.inputs)
    return math.prod(b.shape[axis] for axis in op.dot.free(a, b)[1])


def in_order(t: ArrayType, x: Operand) -> bool:
    order = tight(t.shape, range(t.ndim))
    return all(n == 1 or s == w for n, s, w in zip(t.shape, x.strides, order, strict=True))


def lead_of(t: ArrayType, x: Operand, columns: int) -> int:
    """Elements from a row of a matrix to the next; an odd number if they do not lie so."""
    if t.ndim == 2 and x.strides[1] == 1 and x.strides[0] >= columns:
        return x.strides[0]
    return columns if in_order(t, x) else 1


def asked_of(problem: Problem, caps: Caps, algorithm: int) -> Matrices | None:
    """The product as the library is asked for it; None if it takes several calls, or results that
    are rows are no columns of the library's.
    """
    op = steps_of(problem.op)
    found, given, lies = matched(problem.op), problem.placed(op.graph), operands_of(problem)
    if found is None:
        return None
    factors = [given[x] for x in op.product.inputs if isinstance(x, Var)]
    out = (*op.region.graph.inputs, *op.region.graph.outputs)[found.result].type
    types = tuple(x.type for x in op.product.inputs)
    inner = Problem(
        op.product.op, types, (out,), problem.target, operands=(*factors, lies[found.result])
    )
    asked = matrices(inner, caps, algorithm)
    columns = columns_of(op)
    if asked is None or not one_by_columns(asked, columns):
        return None
    n, scaled = found.matrix, found.kind == "SCALED"
    lead = 0 if n is None or scaled else lead_of(out, lies[n], columns)
    vector, matrix = (aligned(each, lies, out.dtype) for each in (found.vector, n))
    epilogue = LibraryEpilogue(found.kind, vector, matrix, lead)
    return replace(asked, wanted=replace(asked.wanted, epilogue=epilogue))


def one_by_columns(asked: Matrices, columns: int) -> bool:
    """True of one product whose columns, for the library, are our rows: so its vectors are ours."""
    g = asked.wanted.gemm
    return len(g.calls) == g.count == 1 and g.second and g.m == columns


def aligned(n: int | None, lies: dict[int, Operand], dtype: np.dtype) -> int:
    return 0 if n is None else math.gcd(16, alignment(lies[n], dtype.itemsize))


# -------- Fourier transforms by cuFFT.


MOST_CALLS: Final = 64  # of a transform of a middle axis, whose lines are in two directions


@final
class Cufft(Cuda):
    """A Fourier transform of an array in C order; of a copy where it lies otherwise, or where it is
    to real numbers, for which cuFFT overwrites its operand.
    """

    name = "transform by cuFFT"
    ops = (Fft, Rfft, Irfft)

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        (x,), op = problem.inputs, problem.op
        if not x.size or not problem.outs[0].size:
            return "there is nothing to transform"
        if isinstance(op, Fft) and (not op.axes or len({*op.axes}) < len(op.axes)):
            return "no axis is transformed, or one twice"
        found = transforms_of(problem).transforms
        calls = max(len(each.starts) for each in found)
        if calls > MOST_CALLS:
            return f"it takes {calls} calls"
        odd = any(place % 2 for each in found for start in each.starts for place in start)
        if odd and not isinstance(op, Fft):
            return "lines of real numbers begin where no complex number does"
        return ""

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        ((source,), (target,)), (x,), (to,) = problem.arrays, problem.inputs, problem.outs
        kernels, temps = tuple[CudaKernel, ...](), tuple[int, ...]()
        apart = alignment(source, x.dtype.itemsize) % to.dtype.itemsize  # cuFFT reads pairs
        if not in_order(x, source) or apart or source.value or isinstance(problem.op, Irfft):
            copy = Operand("temp", 0, tight(x.shape, range(x.ndim)))
            kernels = copying(x, x, source, copy, caps.chip).kernels
            source, temps = copy, (x.nbytes,)
        operands = (source, x.dtype), (target, to.dtype)
        call = caps.transform(transforms_of(problem))
        return Kernels(kernels, temps, LibraryLaunch(call, operands, frozenset([1])))
