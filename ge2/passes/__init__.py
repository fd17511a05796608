"""From graph to graph: each pass is a function. The first of them are here, the pipelines in compile."""

from collections import ChainMap
from collections.abc import Callable

from ge2.ir import Op
from ge2.ops import KNOWN
from ge2.ops.elementwise import MultiplyAdd
from ge2.ops.graphs import Windows as Windows
from ge2.ops.graphs.loops import RepeatLoop as RepeatLoop
from ge2.ops.graphs.region import Region as Region
from ge2.ops.index import RowSums as RowSums
from ge2.ops.index import SumsInOrder as SumsInOrder
from ge2.ops.index import UpdateOrder as UpdateOrder
from ge2.ops.linalg.decompositions import Lu as Lu
from ge2.ops.linalg.decompositions import LuSolve as LuSolve
from ge2.ops.random import Draw as Draw
from ge2.ops.reduce import ReduceDeviations, ReduceSumExp
from ge2.ops.sort import ToFront as ToFront
from ge2.passes.context import Context as Context
from ge2.passes.context import Pass
from ge2.passes.fold import counted, fold, forward_writes
from ge2.passes.indices import SumsAt as SumsAt
from ge2.passes.indices import Wrap as Wrap
from ge2.passes.indices import masked_reads
from ge2.passes.loops import trim
from ge2.passes.loops.parts import parts_as_values
from ge2.passes.simplify import inline, simplify, strong
from ge2.passes.take_to_mask import Index as Index
from ge2.passes.take_to_mask import join, match

LATER: dict[str, Callable[..., Op]] = {
    "region": Region,
    "windows": Windows,
    "index": Index,
    "wrap": Wrap,
    "draw": Draw,
    "repeat": RepeatLoop,
    "multiply_add": MultiplyAdd,
    "reduce_sum_exp": ReduceSumExp,
    "reduce_deviations": ReduceDeviations,
    "row_sums": RowSums,
    "sums_at": SumsAt,
    "sums_in_order": SumsInOrder,
    "update_order": UpdateOrder,
    "to_front": ToFront,
    "lu": Lu,
    "lu_solve": LuSolve,
}
TABLE = ChainMap(LATER, KNOWN)  # what the text of a graph may name after all passes

# The same for every target, before loops are found in straight code and regions are formed. What a
# loop holds that becomes part of a kernel is rewritten by these.
TIDY: tuple[Pass, ...] = (
    strong,
    counted,
    inline,
    trim,
    simplify,
    parts_as_values,
    masked_reads,
    forward_writes,
    fold,
    match,
    join,
)
