"""Attention as one kernel, where Hopper's tensor cores serve it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, final

from ge2.base.dtypes import FLOAT32, FLOATS, HALF
from ge2.choice.problem import Problem, Variant
from ge2.choice.speed import bytes_of
from ge2.codegen.text import Operand
from ge2.ir import Dims, Graph, Var
from ge2.ops.attention.form import Form
from ge2.ops.attention.ops import FusedAttention, FusedBackward, form_of
from ge2.ops.attention.slopes import way
from ge2.ops.attention.tiling import Tiling, c_order, product_axes, tiling
from ge2.ops.pointlike import Pointlike
from ge2.targets.cuda.attention.backward import AttentionBackward as BackwardKernels
from ge2.targets.cuda.attention.backward import without_band
from ge2.targets.cuda.attention.bias import Left
from ge2.targets.cuda.attention.by_keys import AttentionByKeys, rows_of, tiles_of
from ge2.targets.cuda.attention.kernel import AttentionWgmma
from ge2.targets.cuda.attention.scores import Scores, scores_of
from ge2.targets.cuda.attention.statements import (
    NOTHING,
    Statements,
    Written,
    drop_statements,
    slope_statements,
    statements,
)
from ge2.targets.cuda.caps import Caps
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.two_stage_reduce import Kernels
from ge2.targets.cuda.kernels.generated import Cuda
from ge2.targets.cuda.kernels.products import HOPPER
from ge2.targets.cuda.tuning import AttentionTile

MOST_ROWS: Final = 32  # that share keys, if warps share these: 16 read them once


@final
class Attention(Cuda):
    """softmax(f(q k)) v in one pass over keys and values."""

    name = "wgmma attention"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        if not isinstance(op, FusedAttention):
            return f"{op.name} is no attention"
        if caps is not None and caps.limits.generation != HOPPER:
            return "only GPUs of compute capability 9.0 have these instructions"
        form = form_of(op.plain)
        found = lying(form, problem)
        if isinstance(found, str):
            return found
        if caps is None:
            return ""
        scores = scores_of(form)
        of = Written(form, operands_of(form, problem), caps.chip, {})
        made = (statements(scores.edge, of), statements(scores.whole, of), drop_statements(of))
        return next((each for each in made if isinstance(each, str)), "")

    def variants(self, problem: Problem, caps: Caps) -> Iterator[Variant]:
        op = problem.op
        assert isinstance(op, FusedAttention)
        form = form_of(op.plain)
        found = lying(form, problem)
        assert isinstance(found, Tiling)
        simple = scores_of(form).is_simple and form.soft is None
        tiles = fitting(caps.chip.tuning.attention.tiles, found)
        for tile in sorted(tiles, key=lambda t: not simple and t.groups > 2):
            yield Variant(f"{64 * tile.groups} x {tile.keys}", tile)

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        """Both products of whole tiles, where keys are seen, at the rate of tensor cores."""
        op, tuning, tile = problem.op, caps.chip.tuning.wgmma, variant.plan
        assert isinstance(op, FusedAttention) and isinstance(tile, AttentionTile)
        form = form_of(op.plain)
        found = lying(form, problem)
        assert isinstance(found, Tiling)
        band = scores_of(form).band
        seen = 0.5 if band.low is not None or band.high is not None else 1.0
        queries = -(-found.queries // (64 * tile.groups)) * 64 * tile.groups
        done = 4 * found.heads * queries * found.keys * found.columns * seen
        rate = (
            tuning.clock
            * tuning.rate
            * caps.limits.multiprocessors
            * caps.chip.tuning.attention.busy
        )
        return caps.speed.launch + done / rate

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        op, tile = problem.op, variant.plan
        assert isinstance(op, FusedAttention) and isinstance(tile, AttentionTile)
        form = form_of(op.plain)
        found, operands, scores = lying(form, problem), operands_of(form, problem), scores_of(form)
        of = Written(form, operands, caps.chip, {})
        graphs = scores.edge, scores.whole
        edge, whole, drop = sure((*(statements(g, of) for g in graphs), drop_statements(of)))
        assert isinstance(found, Tiling)
        outs = problem.arrays[1]
        bases = [operands[c.base] for c in form.chains]
        logs = outs[1] if op.logs else None
        kernel = AttentionWgmma(
            (*bases, outs[0]), form.queries.base.type.dtype, found, scores, edge, whole, drop, tile,
            caps.chip, logs, is_guarded(scores, form), str(op.plain),
        )  # fmt: skip
        return kernel.kernels()


@final
class AttentionOfFew(Cuda):
    """softmax(f(q k)) v of few queries, in one pass over keys and values, which warps share."""

    name = "attention by keys"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        if not isinstance(op, FusedAttention):
            return f"{op.name} is no attention"
        form = form_of(op.plain)
        found = lying(form, problem)
        if isinstance(found, str):
            return found
        if form.soft is not None:
            return "it has dropout"
        if rows_of(found) > MOST_ROWS:
            return f"more than {MOST_ROWS} queries share keys"
        if caps is None:
            return ""
        made = statements(
            edge_of(form, found), Written(form, operands_of(form, problem), caps.chip, {})
        )
        return made if isinstance(made, str) else ""

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        """The bytes of keys and values, as often as they are read, in two launches."""
        op = problem.op
        assert isinstance(op, FusedAttention)
        found = lying(form_of(op.plain), problem)
        assert isinstance(found, Tiling)
        moved = tiles_of(found) * bytes_of(problem)
        return 2 * caps.speed.launch + moved / caps.speed.moved

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
            outs[1] if op.logs else None, is_guarded(scores, form), str(op.plain),
        ).kernels()  # fmt: skip


def edge_of(form: Form, found: Tiling) -> Graph:
    """Scores of any key."""
    return without_band(scores_of(form), found.queries, found.keys).edge


@final
class AttentionBackward(Cuda):
    """The cotangents of queries, keys and values, each in a fixed order of sums."""

    name = "wgmma attention backward"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        if not isinstance(op, FusedBackward):
            return f"{op.name} is no derivative of attention"
        if caps is not None and caps.limits.generation != HOPPER:
            return "only GPUs of compute capability 9.0 have these instructions"
        form = form_of(op.plain)
        found = lying_back(form, problem)
        if isinstance(found, str):
            return found
        if caps is None:
            return ""
        if any(
            left.how == "both" and left.dtype not in (*HALF, FLOAT32) for left in lefts(op, form)
        ):
            return "an array of queries and keys is of a type that no kernel has a gradient of"
        written = written_back(op, form, operands_of(form, problem), caps.chip)
        return next((each for four in written for each in four if isinstance(each, str)), "")

    def variants(self, problem: Problem, caps: Caps) -> Iterator[Variant]:
        op = problem.op
        assert isinstance(op, FusedBackward)
        found = lying_back(form_of(op.plain), problem)
        assert isinstance(found, Tiling)
        for tile in fitting(caps.chip.tuning.attention.backward, found):
            yield Variant(f"{64 * tile.groups} x {tile.keys}", tile)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        op, tile = problem.op, variant.plan
        assert isinstance(op, FusedBackward) and isinstance(tile, AttentionTile)
        form = form_of(op.plain)
        found, operands = lying_back(form, problem), operands_of(form, problem)
        assert isinstance(found, Tiling)
        scores = without_band(scores_of(form), found.queries, found.keys)
        queries, keys = written_back(op, form, operands, caps.chip)
        ins, outs = problem.arrays
        bases = [operands[c.base] for c in form.chains]
        logs, rows, ct = ins[len(form.plain.inputs) :]
        return BackwardKernels(
            (*bases, ct, logs, rows, *outs), form.queries.base.type.dtype, found, scores,
            (sure(queries), sure(keys)), lefts(op, form), tile, caps.chip, str(op.plain),
        ).kernels()  # fmt: skip


def fitting(tiles: Sequence[AttentionTile], found: Tiling) -> list[AttentionTile]:
    """The tiles for heads that are no narrower, but no more than needed."""
    width = min(t.width for t in tiles if t.width >= found.width)
    return [t for t in tiles if t.width == width]


def lefts(op: FusedBackward, form: Form) -> tuple[Left, ...]:
    """What is left of the cotangents of what scores are made of."""
    shape, inputs = form.product.type.shape, form.plain.inputs
    return tuple(
        Left(
            way(form, r), inputs[r[0]].type.dtype, tuple((shape[a], a in r[1]) for a in form.batch)
        )
        for r in op.reads
    )


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


def lying_back(form: Form, problem: Problem) -> Tiling | str:
    """How the operands of a derivative lie; or the reason why no kernel serves it."""
    n, y = len(form.plain.inputs), form.plain.outputs[0].type
    types = (form.sums, form.sums, y.shape)
    logs, rows, ct = (
        problem.arrays[0][n:]
        if problem.settled
        else [Operand("in", n + i, c_order(shape)) for i, shape in enumerate(types)]
    )
    found = lying(form, problem, ct, (logs.strides, rows.strides))
    shape = form.product.type.shape
    axes = product_axes(form)
    if any(a not in each for each in axes for a in form.batch if shape[a] > 1):
        return "an operand has no axis of some heads"
    return found


def operands_of(form: Form, problem: Problem) -> dict[Var, Operand]:
    """Where each input is; in C order, where that is not known yet."""
    inputs = form.plain.inputs
    if problem.settled:
        return dict(zip(inputs, problem.arrays[0], strict=False))
    return {v: Operand("in", i, c_order(v.type.shape)) for i, v in enumerate(inputs)}


def lying(
    form: Form, problem: Problem, out: Operand | None = None, sums: Sequence[Dims] = ()
) -> Tiling | str:
    """How the operands lie, `out`, which is as the result, and what is as the sums; or the reason why
    no tensor map copies them.
    """
    operands = operands_of(form, problem)
    y = form.plain.outputs[0].type
    if out is None:
        out = problem.arrays[1][0] if problem.settled else Operand("out", 0, c_order(y.shape))
    given = [*(operands[c.base] for c in form.chains), out]
    if any((x.offset % 8) or (x.loose % 8) for x in given):
        return "an operand does not begin at a multiple of 16 bytes"
    q, k, v, o = (x.strides for x in given)
    return tiling(form, (q, k, v, o), sums)


def is_guarded(scores: Scores, form: Form) -> bool:
    """True if an array of floating numbers is read that may hold the least of them."""
    graph: Graph = scores.edge
    return any(v.type.dtype in FLOATS and v.type.shape for v in form.others) and any(
        isinstance(e.op, Pointlike) for e in graph.eqns
    )
