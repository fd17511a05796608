"""Attention as one kernel: on Hopper's tensor cores, on those of warps, or by multiply-adds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Final, final

import numpy as np

from ge2.base.arrays import AMPERE, FLOAT32, HALF, HOPPER
from ge2.choice import Problem, Variant, bytes_of
from ge2.codegen.text import Operand
from ge2.ir import Dims, Graph, Var
from ge2.ops.attention import number_of
from ge2.ops.attention.form import Form
from ge2.ops.attention.ops import (
    MAPPED,
    SEVERAL_WIDTHS,
    FusedAttention,
    FusedBackward,
    Tiling,
    c_order,
    form_of,
    tiling,
)
from ge2.ops.attention.scores import core_shapes, folded_type, scores_of, way, without_band
from ge2.targets.cuda.attention import (
    NOTHING,
    AttentionWgmma,
    SinkOf,
    Statements,
    Written,
    statements,
)
from ge2.targets.cuda.attention import Forward as ForwardKernel
from ge2.targets.cuda.attention.backward import AttentionBackward as WgmmaBackward
from ge2.targets.cuda.attention.backward import Backward as BackwardKernels
from ge2.targets.cuda.attention.backward import Left, drop_statements, slope_statements
from ge2.targets.cuda.attention.warps import (
    AttentionByKeys,
    AttentionMma,
    Room,
    few_seconds,
    fitting,
    is_guarded,
    is_within,
    rows_of,
    seen_part,
    shares_of,
    sizes_of,
    tiled,
    tiles_of,
)
from ge2.targets.cuda.attention.warps import AttentionMmaBackward as MmaBackward
from ge2.targets.cuda.device import Caps
from ge2.targets.cuda.emit.special_reductions import Kernels
from ge2.targets.cuda.kernels import Cuda
from ge2.targets.cuda.kernels.products import precision
from ge2.targets.cuda.limits import Chip
from ge2.targets.cuda.tensor_tuning import Attention as AttentionTuning
from ge2.targets.cuda.tensor_tuning import AttentionMmaTile, AttentionTile
from ge2.targets.cuda.tuning import Tuning

ROWS: Final = 16  # queries of a warp
SHORT: Final = "queries and keys are so few that most of a tile would be empty"


class OnTensorCores(Cuda):
    """Attention, or its derivative, in tiles."""

    dtypes: ClassVar[frozenset[np.dtype]] = HALF
    bytes_: ClassVar[int] = 16  # of which rows are multiples
    widths: ClassVar[bool] = False  # whether values may be wider than keys

    @abstractmethod
    def too_old(self, generation: int) -> str:
        """The reason why a GPU of a generation has no such kernels; "" if it may."""

    def lying(
        self, form: Form, problem: Problem, out: Operand | None = None, sums: Sequence[Dims] = (),
        cotangents: Sequence[Operand] = (),
    ) -> Tiling | str:  # fmt: skip
        most = self.bytes_, self.dtypes
        return lying(form, problem, out, sums, cotangents, *most, widths=self.widths)

    @abstractmethod
    def laid(self, form: Form, problem: Problem) -> Tiling | str:
        """The layouts of the operands; or the reason why no kernel serves them."""

    @abstractmethod
    def unwritten(self, form: Form, problem: Problem, caps: Caps) -> str:
        """The reason why scores, or what is made of them, have no statements; "" if they do."""

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        if caps is not None and (reason := self.too_old(caps.limits.generation)):
            return reason
        form = form_of(problem.op.plain)  # type: ignore[attr-defined]
        found = self.laid(form, problem)
        if isinstance(found, str):
            return found
        if caps is None:
            return ""
        if not any(self.variants(problem, caps)):
            return "no tile finds room in shared memory"
        return self.unwritten(form, problem, caps)

    @abstractmethod
    def is_short(self, found: Tiling, tuning: AttentionTuning) -> bool:
        """True if queries and keys are so few that blocks of warps are the quicker ones."""

    def found(self, problem: Problem) -> tuple[Form, Tiling]:
        """The form of a problem that is not refused, and how its operands lie."""
        form = form_of(problem.op.plain)  # type: ignore[attr-defined]
        found = self.laid(form, problem)
        assert isinstance(found, Tiling)
        return form, found

    def lying_few(self, form: Form, problem: Problem) -> bool:
        """True if the queries that share keys are no more than a warp multiplies at once."""
        found = self.lying(form, problem)
        return isinstance(found, Tiling) and found.queries <= ROWS


class Forward(OnTensorCores):
    """softmax(f(q k)) v in one pass over keys and values."""

    ops = (FusedAttention,)

    def is_short(self, found: Tiling, tuning: AttentionTuning) -> bool:
        return is_within(sizes_of(found), tuning.short)

    def laid(self, form: Form, problem: Problem) -> Tiling | str:
        return self.lying(form, problem)

    def unwritten(self, form: Form, problem: Problem, caps: Caps) -> str:
        return next((x for x in self.statements(form, problem, caps) if isinstance(x, str)), "")

    def statements(self, form: Form, problem: Problem, caps: Caps) -> list[Statements | str]:
        """Those of scores where some keys are not seen, where all are, and of dropout."""
        scores, of = scores_of(form), Written(form, operands_of(form, problem), caps.chip, {})
        found = [statements(graph, of) for graph in (scores.edge, scores.whole)]
        return [*found, drop_statements(of)]

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        op = problem.op
        assert isinstance(op, FusedAttention)
        form, found = self.found(problem)
        operands, scores, outs = operands_of(form, problem), scores_of(form), problem.arrays[1]
        written = sure(self.statements(form, problem, caps))
        bases = [operands[c.base] for c in form.chains]
        make, more = self.maker(form)
        kernel = make(
            (*bases, outs[0]), form.queries.base.type.dtype, found, scores, written, variant.plan,
            caps.chip, outs[1] if op.logs else None, sink_of(form, operands), is_guarded(scores, form),
            str(op.plain), *more,
        )  # fmt: skip
        return kernel.kernels()

    @abstractmethod
    def maker(self, form: Form) -> tuple[Callable[..., ForwardKernel], tuple[bool, ...]]:
        """Returns what makes the kernels, and what it takes beside what all such take."""


def not_hopper(generation: int) -> str:
    return (
        ""
        if generation == HOPPER
        else "only GPUs of compute capability 9.0 have these instructions"
    )


def mapped(found: Tiling | str) -> Tiling | str:
    """Returns how operands lie; or the reason why no tensor map copies them."""
    if isinstance(found, Tiling) and len(found.batches) > MAPPED:
        return "it has too many axes of batches"
    return found


class OfTensorMaps(OnTensorCores):
    """Operands come by tensor maps, which Hopper has, and which fill what is beyond their features."""

    widths = True

    def too_old(self, generation: int) -> str:
        return not_hopper(generation)

    def hesitates(self, problem: Problem, caps: Caps | None) -> str:
        if caps is None:
            return ""
        found = self.found(problem)[1]
        return (
            SHORT if self.is_short(found, caps.chip.tuning.attention) and not found.widths else ""
        )

    def lying(
        self, form: Form, problem: Problem, out: Operand | None = None, sums: Sequence[Dims] = (),
        cotangents: Sequence[Operand] = (),
    ) -> Tiling | str:  # fmt: skip
        return mapped(super().lying(form, problem, out, sums, cotangents))


@final
class Attention(OfTensorMaps, Forward):
    name = "wgmma attention"

    def variants(self, problem: Problem, caps: Caps) -> Iterator[Variant]:
        form, found = self.found(problem)
        simple, tuning = scores_of(form).is_simple and form.soft is None, caps.chip.tuning.attention

        def order(tile: AttentionTile) -> tuple[bool, float]:
            """Three groups for plain scores alone, where a last tile is not mostly empty."""
            rows, three = 64 * tile.groups, tile.groups > 2
            every = -(-found.queries // rows) * rows
            return not simple and three, every * (tuning.three if three else 1)

        for tile in sorted(fitting(tuning.tiles, found), key=order):
            yield Variant(f"{64 * tile.groups} x {tile.keys}", tile)

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        """Both products of whole tiles, where keys are seen, at the rate of tensor cores."""
        tuning, tile = caps.chip.tuning.wgmma, variant.plan
        form, found = self.found(problem)
        assert isinstance(tile, AttentionTile)
        if found.queries <= ROWS:
            wait = caps.chip.tuning.attention.waits_of_group * tile.groups * seen_part(form)
            moved = bytes_of(problem) / caps.speed.moved
            return few_seconds(found, (found.keys / tile.keys + 0.5) * wait, 1, moved, caps)
        queries = -(-found.queries // (64 * tile.groups)) * 64 * tile.groups
        done = 4 * found.heads * queries * found.keys * found.columns * seen_part(form)
        rate = (
            tuning.clock
            * tuning.rate
            * caps.limits.multiprocessors
            * caps.chip.tuning.attention.busy
        )
        return caps.speed.launch + done / rate

    def is_ranked(self, problem: Problem, caps: Caps | None) -> bool:
        """True of few queries, which may leave a GPU idle."""
        op = problem.op
        return isinstance(op, FusedAttention) and self.lying_few(form_of(op.plain), problem)

    def maker(self, form: Form) -> tuple[Callable[..., ForwardKernel], tuple[bool, ...]]:
        return AttentionWgmma, ()


class OfWarps(OnTensorCores):
    """By the tensor cores of warps, or of IEEE float32 by multiply-adds."""

    dtypes = HALF | {FLOAT32}
    bytes_ = 4

    def too_old(self, generation: int) -> str:
        if generation >= AMPERE:
            return ""
        return "GPUs older than compute capability 8.0 do not have these instructions"

    def is_quick(self, form: Form, problem: Problem, caps: Caps) -> bool:
        """True of half types whose queries and keys are few: nothing else is as quick."""
        half = form.queries.base.type.dtype != FLOAT32
        return half and self.is_short(self.found(problem)[1], caps.chip.tuning.attention)

    def is_ranked(self, problem: Problem, caps: Caps | None) -> bool:
        """True of IEEE float32, since the library's products are faster than multiply-adds, and of few
        queries, which may leave a GPU idle; else memory is linear in length, and that counts.
        """
        op = problem.op
        if not isinstance(op, FusedAttention | FusedBackward):
            return False
        form = form_of(op.plain)
        if caps is not None and self.is_quick(form, problem, caps):
            return False
        if isinstance(op, FusedAttention) and form.queries.base.type.dtype != FLOAT32:
            return self.lying_few(form, problem)
        few = form.product.type.shape[form.row] <= most_rows(caps)
        return few or is_exact(form)


@final
class AttentionOfWarps(OfWarps, Forward):
    name = "mma attention"

    def variants(self, problem: Problem, caps: Caps) -> Iterator[Variant]:
        form, found = self.found(problem)
        tuning = caps.chip.tuning.attention
        tiles = (*tuning.mma, *(tuning.mma_short if self.is_short(found, tuning) else ()))
        fit = [t for t in tiles if room_of(form, found, t).forward <= caps.chip.most]
        yield from tiled(
            fit,
            found,
            lambda t: (
                is_crowded(form, t, caps),
                mma_seconds(form, found, t, 2, found.queries, caps),
            ),
        )

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        form, found = self.found(problem)
        if self.lying_few(form, problem) and form.queries.base.type.dtype != FLOAT32:
            tuning = caps.chip.tuning.attention
            waits = (found.keys / 64 + 1) * tuning.waits * found.columns / 64 * seen_part(form)
            moved = bytes_of(problem) / (caps.speed.moved * tuning.warps)
            return few_seconds(found, waits, tuning.resident, moved, caps)
        return mma_seconds(form, found, variant.plan, 2, found.queries, caps)

    def maker(self, form: Form) -> tuple[Callable[..., ForwardKernel], tuple[bool, ...]]:
        return AttentionMma, (is_exact(form),)


def is_exact(form: Form) -> bool:
    """True of float32 that is not to be rounded before it is multiplied."""
    rounds = all(precision(e.op) is not None for e in (form.dot, form.values))
    return form.queries.base.type.dtype == FLOAT32 and not rounds


def most_rows(caps: Caps | None) -> int:
    """Queries that share keys, at most, if warps share these."""
    return (Tuning() if caps is None else caps.chip.tuning).attention.sharing


def is_crowded(form: Form, tile: AttentionMmaTile, caps: Caps) -> bool:
    """True if registers spill beside the sums of a tile, as NVRTC showed."""
    simple, half = scores_of(form).is_simple, form.queries.base.type.dtype != FLOAT32
    most = caps.chip.tuning.attention.crowded[0 if form.soft is not None else 1 + (simple and half)]
    return tile.high * (tile.width + tile.keys) // 2 > most


def room_of(form: Form, found: Tiling, tile: AttentionMmaTile) -> Room:
    return Room(form.queries.base.type.dtype, found.columns, tile, is_exact(form))


def mma_seconds(
    form: Form, found: Tiling, tile: AttentionMmaTile, products: int, rows: int, caps: Caps
) -> float:
    """Waves of tiles of rows, that many products each, where keys are seen."""
    limits, size = caps.limits, form.queries.base.type.dtype.itemsize
    waves = -(-found.heads * -(-rows // tile.rows) // limits.multiprocessors)
    others = -(-found.queries * found.keys // rows // tile.keys) * tile.keys
    done = products * waves * tile.rows * others * found.columns * seen_part(form)
    rate = limits.tuning.mma.rate(limits.generation) // (size // 2) * limits.clock
    if is_exact(form):
        rate = caps.speed.single / 2 / limits.multiprocessors
    return caps.speed.launch + done / (rate * tile.part)


@final
class AttentionOfFew(Cuda):
    """softmax(f(q k)) v of few queries, in one pass over keys and values, which warps share."""

    name = "attention by keys"
    ops = (FusedAttention,)

    def is_ranked(self, problem: Problem, caps: Caps | None) -> bool:
        """True if keys and values are so many bytes that bandwidth counts: of fewer this is the quickest,
        or nearly.
        """
        return caps is None or bytes_of(problem) >= caps.chip.tuning.attention.many

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        assert isinstance(op, FusedAttention)
        form = form_of(op.plain)
        found = lying(form, problem)
        if isinstance(found, str):
            return found
        if form.soft is not None:
            return "it has dropout"
        if rows_of(found) > (most := most_rows(caps)):
            return f"more than {most} queries share keys"
        if caps is None:
            return ""
        made = statements(
            edge_of(form, found), Written(form, operands_of(form, problem), caps.chip, {})
        )
        return made if isinstance(made, str) else ""

    def hesitates(self, problem: Problem, caps: Caps | None) -> str:
        if caps is None:
            return ""
        form = form_of(problem.op.plain)  # type: ignore[attr-defined]
        found = lying(form, problem)
        assert isinstance(found, Tiling)
        if not is_within(sizes_of(found), caps.chip.tuning.attention.short):
            return ""
        alone = shares_of(found, scores_of(form).band, caps.chip)[0] == 1
        return "no two warps would share the keys of a head" if alone else ""

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        """The bytes of keys and values, as often as they are read, in two launches."""
        op = problem.op
        assert isinstance(op, FusedAttention)
        found = lying(form_of(op.plain), problem)
        assert isinstance(found, Tiling)
        moved = tiles_of(found) * bytes_of(problem)
        tuning = caps.chip.tuning.attention
        return 2 * caps.speed.launch + tuning.merge + moved / (caps.speed.moved * tuning.apart)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        op = problem.op
        assert isinstance(op, FusedAttention)
        form = form_of(op.plain)
        found, operands = lying(form, problem), operands_of(form, problem)
        assert isinstance(found, Tiling)
        scores = without_band(scores_of(form), found.queries, found.keys)
        edge = statements(scores.edge, Written(form, operands, caps.chip, {}))
        assert not isinstance(edge, str)
        outs = problem.arrays[1]
        bases = [operands[c.base] for c in form.chains]
        return AttentionByKeys(
            (*bases, outs[0]), form.queries.base.type.dtype, found, scores, edge, caps.chip,
            outs[1] if op.logs else None, sink_of(form, operands), is_guarded(scores, form), str(op.plain),
        ).kernels()  # fmt: skip


def edge_of(form: Form, found: Tiling) -> Graph:
    """Scores of any key."""
    return without_band(scores_of(form), found.queries, found.keys).edge


class Backward(OnTensorCores):
    """The cotangents of queries, keys and values, each in a fixed order of sums."""

    ops = (FusedBackward,)

    def is_short(self, found: Tiling, tuning: AttentionTuning) -> bool:
        return is_within(sizes_of(found), tuning.short_backward)

    def unwritten(self, form: Form, problem: Problem, caps: Caps) -> str:
        op = problem.op
        assert isinstance(op, FusedBackward)
        if any(
            left.how == "both" and left.dtype not in (*HALF, FLOAT32) for left in lefts(op, form)
        ):
            return "an array of queries and keys is of a type that no kernel has a gradient of"
        written = written_back(op, form, operands_of(form, problem), caps.chip)
        return next((each for four in written for each in four if isinstance(each, str)), "")

    def laid(self, form: Form, problem: Problem) -> Tiling | str:
        n, y = len(form.plain.inputs), form.plain.outputs[0].type
        types = (form.sums, form.sums, y.shape, y.shape)
        logs, rows, ct, _ = (
            problem.arrays[0][n:]
            if problem.settled
            else [Operand("in", n + i, c_order(shape)) for i, shape in enumerate(types)]
        )
        sums = logs.strides, rows.strides
        return self.lying(form, problem, ct, sums, cotangents_of(form, problem))

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        op = problem.op
        assert isinstance(op, FusedBackward)
        form, found = self.found(problem)
        operands = operands_of(form, problem)
        scores = without_band(scores_of(form), found.queries, found.keys)
        queries, keys = written_back(op, form, operands, caps.chip)
        ins, outs = problem.arrays
        bases = [operands[c.base] for c in form.chains]
        logs, rows, ct, _ = ins[len(form.plain.inputs) :]
        make, more = self.maker(form)
        kernels = make(
            (*bases, ct, logs, rows, *outs), form.queries.base.type.dtype, found, scores,
            (sure(queries), sure(keys)), lefts(op, form), variant.plan, caps.chip, str(op.plain), *more,
        )  # fmt: skip
        return kernels.kernels()

    @abstractmethod
    def maker(self, form: Form) -> tuple[Callable[..., BackwardKernels], tuple[bool, ...]]:
        """Returns what makes the kernels, and what it takes beside what all such take."""


@final
class AttentionBackward(OfTensorMaps, Backward):
    name = "wgmma attention backward"

    def variants(self, problem: Problem, caps: Caps) -> Iterator[Variant]:
        _, found = self.found(problem)
        for tile in fitting(caps.chip.tuning.attention.backward, found):
            yield Variant(f"{64 * tile.groups} x {tile.keys}", tile)

    def maker(self, form: Form) -> tuple[Callable[..., BackwardKernels], tuple[bool, ...]]:
        return WgmmaBackward, ()


@final
class AttentionBackwardOfWarps(OfWarps, Backward):
    name = "mma attention backward"

    def variants(self, problem: Problem, caps: Caps) -> Iterator[Variant]:
        form, found = self.found(problem)
        tuning = caps.chip.tuning.attention
        tiles = (
            *tuning.mma_backward,
            *(tuning.mma_short_backward if self.is_short(found, tuning) else ()),
        )
        fit = [t for t in tiles if room_of(form, found, t).backward <= caps.chip.most]
        yield from tiled(fit, found, lambda t: (mma_seconds(form, found, t, 7, found.keys, caps),))

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        """Seven products, or eight, in tiles of rows."""
        form, found = self.found(problem)
        return mma_seconds(form, found, variant.plan, 7, found.keys, caps)

    def maker(self, form: Form) -> tuple[Callable[..., BackwardKernels], tuple[bool, ...]]:
        return MmaBackward, (is_exact(form),)


def lefts(op: FusedBackward, form: Form) -> tuple[Left, ...]:
    """Returns what is left of the cotangents of what scores are made of."""
    shape = form.product.type.shape
    return tuple(
        Left(
            way(form, r), folded_type(form, r).dtype,
            tuple((shape[a], a in r[1]) for a in form.batch), r[2],
        )
        for r in op.reads
    )  # fmt: skip


def written_back(
    op: FusedBackward, form: Form, operands: Mapping[Var, Operand], chip: Chip
) -> tuple[tuple[Statements | str, ...], tuple[Statements | str, ...]]:
    """The statements of the kernel that has rows of queries, and of that which has rows of keys: of
    scores anywhere, where all keys are seen, of their derivative, and of dropout; or why there are none.
    """
    shape = form.product.type.shape
    scores = without_band(scores_of(form), shape[form.row], shape[form.key])

    def written(turned: bool) -> tuple[Statements | str, ...]:
        of = Written(form, operands, chip, {}, turned)
        found = statements(scores.edge, of), statements(scores.whole, of)
        slopes = NOTHING if op.slopes is None else slope_statements(op.slopes, of)
        return (*found, slopes, drop_statements(of))

    return written(False), written(True)


def sure(found: Sequence[Statements | str]) -> tuple[Statements, ...]:
    """Statements of which none is missing."""
    return tuple(each for each in found if not isinstance(each, str))


def cotangents_of(form: Form, problem: Problem) -> tuple[Operand, ...]:
    """Returns where those of queries, keys and values go; in C order, where that is not known yet."""
    if problem.settled:
        return problem.arrays[1][:3]
    return tuple(Operand("out", n, c_order(shape)) for n, shape in enumerate(core_shapes(form)))


def operands_of(form: Form, problem: Problem) -> dict[Var, Operand]:
    """Returns where each input is; in C order, where that is not known yet."""
    inputs = form.plain.inputs
    if problem.settled:
        return dict(zip(inputs, problem.arrays[0], strict=False))
    return {v: Operand("in", i, c_order(v.type.shape)) for i, v in enumerate(inputs)}


def lying(
    form: Form, problem: Problem, out: Operand | None = None, sums: Sequence[Dims] = (),
    cotangents: Sequence[Operand] = (), bytes_: int = 16, dtypes: frozenset[np.dtype] = HALF,
    results: Sequence[Operand] = (), widths: bool = False,
) -> Tiling | str:  # fmt: skip
    """Returns how the operands lie, `out`, which is as the result, what is as the sums, and
    `cotangents` of queries, keys and values; or the reason why no copies of so many bytes bring
    them. `dtypes`: of which kernels are; `results`: what else is as the result; `widths`: whether values may be
    wider than keys, or narrower.
    """
    operands = operands_of(form, problem)
    y = form.plain.outputs[0].type
    if y.dtype not in dtypes:
        return "queries, keys, values and result are not of one half type"
    if form.sunk is not None and form.sunk.base.type.dtype not in (*HALF, FLOAT32):
        return "its sink is of a type that no kernel reads"
    if out is None:
        out = problem.arrays[1][0] if problem.settled else Operand("out", 0, c_order(y.shape))
    given = [*(operands[c.base] for c in form.chains), out, *cotangents, *results]
    some = max(1, bytes_ // y.dtype.itemsize)
    if any((x.offset % some) or (x.loose % some) for x in given):
        return f"an operand does not begin at a multiple of {bytes_} bytes"
    strides = [x.strides for x in given]
    if any(each[-1] != 1 for each in strides[4 : 4 + len(cotangents)]):
        return "features are not side by side"
    last = 4 + len(cotangents)
    reads = form.sunk is not None and isinstance(problem.op, FusedAttention)
    sink = operands[form.sunk.base].strides if reads else None  # type: ignore[union-attr]
    found = tiling(form, strides[:4], sums, strides[4:last], strides[last:], sink)
    if isinstance(found, str):
        return found
    if found.widths is not None and not widths:
        return SEVERAL_WIDTHS
    return found.unaligned(bytes_, y.dtype.itemsize) or found


def sink_of(form: Form, operands: Mapping[Var, Operand]) -> SinkOf:
    """What a sink is made of, or its number; None if there is none."""
    if form.sink is None:
        return None
    if form.sunk is None:
        return number_of(form.sink)
    return operands[form.sunk.base], form.sunk.base.type.dtype
