"""The compiler, read from top to bottom: every rewrite from graph to graph, a pipeline a target.

A pass is a function of a graph, or of a graph and its `Context`: the chip, the inputs that are
written or count, and whether the graph is a loop's body, which is rewritten by the same pipeline as
the whole. Each is timed, is dumped by the setting `dump`, is left out by its name in `passes_off`,
and its result is verified in check mode. Blocked NumPy has the pipeline of the references.

The numbers that a program is planned by, all of them: they are passed from where it begins to
who reads them.
"""

from __future__ import annotations

from typing import Final, final

from ge2.base.config import config
from ge2.base.record import record
from ge2.compile.catalog import USER_KERNELS
from ge2.compile.steps import (
    constants_late,
    reads_first,
    results_together,
    rolled_results,
    turned_columns,
)
from ge2.compile.writes import checked_early, results_apart, views_first, with_copies, writes
from ge2.ir import Graph
from ge2.ops.attention.ops import has_attention
from ge2.ops.dot import DotGeneral
from ge2.ops.graphs.associative import AssociativeScan, AssociativeScanSaving, as_kernels
from ge2.ops.graphs.loops import ScanLoop
from ge2.ops.index import Scatter, ScatterAdd, ScatterReduce, SumsInOrder, UpdateSlice
from ge2.ops.reduce import CumSum
from ge2.passes import TIDY
from ge2.passes.context import NOTHING, Context, Pass, run
from ge2.passes.context import TUNING as PASSES
from ge2.passes.context import Tuning as Passes
from ge2.passes.fold import unread_writes
from ge2.passes.folds import mirrored, online_sums, short_sums
from ge2.passes.fuse import fuse
from ge2.passes.indices import (
    SumsAt,
    indexed,
    join_scatters,
    parts_done,
    repeated_updates,
    rows_inside,
    sums_of_zeros,
    unpadded_updates,
)
from ge2.passes.linear_algebra import factors as factors_of
from ge2.passes.linear_algebra import (
    products_to_sums,
    solves,
    thin_products,
    tiny_products,
)
from ge2.passes.loops import sums_after
from ge2.passes.loops.absorb_peeled import whole
from ge2.passes.loops.parts import deinterleave, updates_added
from ge2.passes.loops.products_outside import (
    in_double,
    joined_products,
    products_outside,
    real_transforms,
    repeated_operands,
)
from ge2.passes.loops.roll import roll
from ge2.passes.loops.roll_offsets import roll_offsets
from ge2.passes.loops.rolled_to_scan import stack, stack_all
from ge2.passes.moves_inside import moves_inside
from ge2.passes.reads import few_ranks, order_statistics, small_turned, sorted_reads
from ge2.passes.simplify import inline
from ge2.passes.slices import (
    little_first,
    scans_of_slices,
    slices_first,
)
from ge2.passes.split_edges import split_edges, written_windows
from ge2.passes.take_to_mask import same_axes
from ge2.program import PLACEMENT, PLANNING, Placement, Planning
from ge2.targets.c.libraries import lapack
from ge2.targets.c.loops import grounded
from ge2.targets.c.tuning import TUNING as C
from ge2.targets.c.tuning import Tuning as InC


def user_kernels(graph: Graph, context: Context) -> Graph:
    """Functions that a user has a kernel for become it, where it is chosen."""
    if not USER_KERNELS or not (context.gathers or context.caps):
        return graph
    # nobody loads it who has no such kernel
    from ge2.compile.user_kernels import caps_of, substituted

    return substituted(graph, USER_KERNELS, *caps_of(context))


def attention(graph: Graph, context: Context) -> Graph:
    """Attention becomes one step, where a kernel serves it."""
    if context.caps is None and not has_attention(inline(graph) if context.gathers else graph):
        return graph
    # what few programs need
    from ge2.compile.rewrites import attention

    return attention(graph, context)


def factors(graph: Graph, context: Context) -> Graph:
    """Systems of equations with one matrix share its factors, where LAPACK can be called."""
    wanted = any(map(solves, graph.eqns)) and lapack() is not None
    return factors_of(graph, context) if wanted else graph


def recompute(graph: Graph, context: Context) -> Graph:
    """Values are computed again where that is quicker than to write and to read them."""
    # a GPU's, which others need not load, as those below
    from ge2.compile.recompute import recompute

    return recompute(graph, context)


def computed_once(graph: Graph, context: Context) -> Graph:
    """Costly work is stored before elementwise regions would repeat it along new axes."""
    from ge2.compile.recompute import computed_once

    return computed_once(graph, context)


def split_live_ranges(graph: Graph, context: Context) -> Graph:
    """Values that wait across the fullest step, and are cheap to make again, are made again behind
    it.
    """
    from ge2.compile.live_ranges import split_live_ranges

    return split_live_ranges(graph, context)


def read_where_written(graph: Graph, context: Context) -> Graph:
    """Parts of arrays that are written are read in those."""
    if not any(isinstance(e.op, UpdateSlice) for e in graph.eqns):
        return graph
    from ge2.compile.live_ranges import read_where_written

    return read_where_written(graph, context)


def shared_orders(graph: Graph, context: Context) -> Graph:
    """Sums at the same indices have the order of their updates once."""
    if not any(isinstance(e.op, ScatterAdd | ScanLoop) for e in graph.eqns):
        return graph
    from ge2.compile.rewrites.persistent import shared_orders

    return shared_orders(graph, context)


def distinct_writes(graph: Graph, context: Context) -> Graph:
    """Writes at indices that are all different look for no last one; a mask's go to the front."""
    if not any(isinstance(e.op, Scatter) for e in graph.eqns):
        return graph
    from ge2.compile.rewrites.persistent import distinct_writes

    return distinct_writes(graph, context)


def made_where_summed(graph: Graph, context: Context) -> Graph:
    """Rows at indices times weights are made by the sums at indices that read them."""
    if not any(isinstance(e.op, SumsAt | SumsInOrder) for e in graph.eqns):
        return graph
    from ge2.compile.live_ranges import made_where_summed

    return made_where_summed(graph, context)


def rows_last(graph: Graph, context: Context) -> Graph:
    """Products are stored along the rows that their readers have last."""
    if not any(isinstance(e.op, DotGeneral) for e in graph.eqns):
        return graph
    from ge2.compile.rewrites.products import rows_last

    return rows_last(graph)


def narrow_integers(graph: Graph, context: Context) -> Graph:
    """Running sums of masks and bytes, and computed indices of writes, are in 32 bits."""
    if not any(isinstance(e.op, CumSum | Scatter | ScatterReduce | SumsAt) for e in graph.eqns):
        return graph
    from ge2.compile.rewrites.persistent import narrow_integers

    return narrow_integers(graph, context)


def gated_products(graph: Graph, context: Context) -> Graph:
    """Products of whose columns one half gates the other become two."""
    from ge2.compile.rewrites.products import gated_products

    return gated_products(graph, context)


def split_sums(graph: Graph, context: Context) -> Graph:
    """Products of few elements and long sums are batches of parts, and their sum."""
    if not any(isinstance(e.op, DotGeneral) for e in graph.eqns):
        return graph
    from ge2.compile.rewrites.products import split_sums

    return split_sums(graph, context)


def narrow_operands(graph: Graph, context: Context) -> Graph:
    """Products of operands that are narrow numbers made wide are products of those."""
    if not any(isinstance(e.op, DotGeneral) for e in graph.eqns):
        return graph
    from ge2.compile.rewrites.products import narrow_operands

    return narrow_operands(graph, context.tuning.three_parts)


def half_results(graph: Graph, context: Context) -> Graph:
    """Products of half types whose float32 results would be stored give low ones."""
    if not any(isinstance(e.op, DotGeneral) for e in graph.eqns):
        return graph
    from ge2.compile.rewrites.products import half_results

    return half_results(graph)


def fp8_products(graph: Graph, context: Context) -> Graph:
    """Products of fp8 are by tensor cores of that, or of bfloat16."""
    if context.caps is None:
        return graph
    from ge2.compile.rewrites.products import fp8_products

    return fp8_products(graph, context)


def contractions(graph: Graph, context: Context) -> Graph:
    """Products are one kernel with what makes their operands and what is done to their elements."""
    if context.caps is None and not context.gathers:
        return graph
    # what programs that NumPy runs need not load
    from ge2.compile.contractions import contractions

    return contractions(graph, context)


def resident(graph: Graph, context: Context) -> Graph:
    """Small loops and branches, and the steps around them, become one kernel."""
    from ge2.compile.rewrites.persistent import resident

    return resident(graph, context)


def drawn(graph: Graph) -> Graph:
    """Random bits that only elementwise regions read are made there."""
    from ge2.compile.rewrites.persistent import drawn

    return drawn(graph)


def associative_scans(graph: Graph, context: Context) -> Graph:
    """Associative scans are kernels on a GPU, and else loops over rows, or regions; all without
    results that nobody reads.
    """
    if not any(isinstance(e.op, AssociativeScan | AssociativeScanSaving) for e in graph.eqns):
        return graph
    found = as_kernels(graph)
    if context.caps is not None:
        return found
    from ge2.transforms.loops import without_kernels

    return without_kernels(found, context.tuning.rows)


# before loops are found in straight code; what a loop holds has TIDY alone
FIRST: Final[tuple[Pass, ...]] = (user_kernels, attention, *TIDY, associative_scans)

# fmt: off
PIPELINES: Final[dict[str, tuple[Pass, ...]]] = {
    "reference": (roll_offsets, *TIDY, roll, whole, stack, fuse),
    "c": (
        user_kernels, roll_offsets, *FIRST[1:], unpadded_updates, written_windows, sorted_reads, order_statistics,
        joined_products, roll, whole, stack, unread_writes, products_outside, repeated_operands, thin_products,
        factors, real_transforms, in_double, little_first, scans_of_slices,
        updates_added, repeated_updates, split_edges, fuse, contractions, constants_late, writes, grounded,
        reads_first, with_copies, views_first, checked_early,
    ),
    "cuda": (
        *FIRST, rows_last, sorted_reads, few_ranks, order_statistics, online_sums, narrow_operands, half_results,
        fp8_products, unpadded_updates, written_windows, computed_once, same_axes, recompute, tiny_products,
        mirrored, short_sums, joined_products, shared_orders, roll, whole, stack, stack_all, products_outside,
        sums_after, deinterleave, scans_of_slices, slices_first, gated_products, join_scatters, sums_of_zeros,
        repeated_updates, distinct_writes, narrow_integers, made_where_summed, products_to_sums, split_sums,
        parts_done, fuse, split_live_ranges, contractions, indexed, drawn, resident, rolled_results,
        moves_inside, rows_inside, small_turned, turned_columns, results_together, constants_late, reads_first,
        read_where_written, with_copies, results_apart, views_first,
    ),
}

# Under a memory limit the search for what is computed again (`remat.fitted`) comes between FIRST and
# these. It looks at values of straight code and plans every graph that it tries: loops are rolled
# when it has ended, if the program still fits, and what would keep more values is left out.
LIMITED: Final[dict[str, tuple[Pass, ...]]] = {
    "reference": (whole, stack, fuse),
    "c": (
        sorted_reads, order_statistics, whole, stack, thin_products, real_transforms, in_double, little_first,
        scans_of_slices, split_edges, fuse, constants_late, writes, grounded, reads_first, with_copies, views_first,
        checked_early,
    ),
    "cuda": (
        sorted_reads, few_ranks, order_statistics, online_sums, narrow_operands, half_results, fp8_products,
        unpadded_updates, written_windows, tiny_products, mirrored, short_sums, shared_orders, whole, stack,
        deinterleave, scans_of_slices, slices_first, join_scatters, sums_of_zeros, repeated_updates,
        distinct_writes, made_where_summed, products_to_sums, split_sums, parts_done, fuse, indexed, drawn,
        resident, rolled_results, moves_inside, rows_inside, constants_late, reads_first, with_copies, views_first,
    ),
}
# fmt: on
TARGETS: Final = {"cpu": "reference"}  # targets that have the pipeline of another
NAMES: Final = tuple(dict.fromkeys(step.__name__ for each in PIPELINES.values() for step in each))


def rewritten(graph: Graph, target: str, context: Context = NOTHING, name: str = "") -> Graph:
    """The graph after the pipeline of a target.

    >>> from ge2 import make_jaxpr
    >>> import numpy as np
    >>> print(rewritten(make_jaxpr(lambda x: x * 1.0)(np.ones(3)).graph, "c"))
    { lambda ; a:f64[3]. let  in (a,) }
    """
    return run(pipeline_of(target), graph, context, name)


def pipeline_of(target: str) -> tuple[Pass, ...]:
    return PIPELINES[TARGETS.get(target, target)]


def rewritten_within_limit(
    graph: Graph, target: str, context: Context = NOTHING, name: str = ""
) -> Graph:
    """The graph, tidied before, as it is planned where memory is limited."""
    return run(LIMITED[TARGETS.get(target, target)], graph, context, name, len(FIRST) + 2)


def rolled(graph: Graph, context: Context = NOTHING, name: str = "") -> Graph:
    """The graph, tidied before, with loops in place of straight code that repeats."""
    return run((roll,), graph, context, name, len(FIRST) + 1)


@final
@record
class Search:
    """The search for values that are computed again instead of being kept, to fit in so much
    memory.
    """

    part: int = 4  # one in so many of the values that wait is given up at a time
    rounds: int = 200  # of smaller and smaller programs, at most
    # a value of so small a part of what is freed may wait instead of being computed again
    small: int = 16
    longest: int = 256  # equations that are computed again for one value, at most
    while_rounds: int = 16  # that a while loop is taken to have
    transcendental: int = 8  # additions that exp or tanh counts as


SEARCH = Search()


@final
@record
class Tuning:
    """The numbers of passes, of planning and placing results, of programs in C, and of the search
    under a memory limit; a GPU's are in the limits of its chip.
    """

    passes: Passes = PASSES
    placement: Placement = PLACEMENT
    planning: Planning = PLANNING
    c: InC = C
    search: Search = SEARCH


def tuning_now() -> Tuning:
    """The records of `config.tuning`, and else each as it is."""
    return Tuning(
        config.tuned(PASSES),
        config.tuned(PLACEMENT),
        config.tuned(PLANNING),
        config.tuned(C),
        config.tuned(SEARCH),
    )


TUNING = Tuning()
