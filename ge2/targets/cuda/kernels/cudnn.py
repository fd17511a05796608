"""Attention by cuDNN, where its scores are products times a number of the keys in a band."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import mul
from typing import Final, final

import numpy as np

from ge2.base.gpu import AMPERE
from ge2.base.record import record
from ge2.choice.problem import Problem, Variant
from ge2.codegen.moves import filled
from ge2.codegen.text import Operand
from ge2.ops.attention.band import Band
from ge2.ops.attention.form import Form
from ge2.ops.attention.ops import FusedAttention, FusedBackward, form_of
from ge2.ops.attention.scores import scores_of
from ge2.ops.attention.tiling import Batch, Tiling, c_order
from ge2.targets.cuda.caps import Caps
from ge2.targets.cuda.emit.kernel import CudaKernel
from ge2.targets.cuda.emit.region_variants import regional
from ge2.targets.cuda.emit.two_stage_reduce import Kernels, LibraryLaunch
from ge2.targets.cuda.kernels.attention import cotangents_of, lying, operands_of
from ge2.targets.cuda.kernels.gemm.speed import CLOCK, LEAST, RATE
from ge2.targets.cuda.kernels.generated import Cuda
from ge2.targets.cuda.kernels.products import HOPPER
from ge2.targets.cuda.launch.attention import Steps, WantedAttention
from ge2.targets.cuda.load.cudnn import missing

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
        rate = RATE.get(limits.generation, LEAST) * 2 * CLOCK
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

    def asked(self, problem: Problem, caps: Caps | None) -> Asked | str:
        op = problem.op
        if not isinstance(op, FusedAttention):
            return f"{op.name} is no attention"
        form = form_of(op.plain)
        if reason := unlike(form):
            return reason
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

    ordered = True

    def asked(self, problem: Problem, caps: Caps | None) -> Asked | str:
        op = problem.op
        if not isinstance(op, FusedBackward):
            return f"{op.name} is no derivative of attention"
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
    operands = operands_of(form, problem)
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
