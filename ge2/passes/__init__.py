"""From graph to graph: each pass is a function; `ge2/compile/pipeline.py` has their order."""

from collections import ChainMap
from collections.abc import Callable

from ge2.ir import Op
from ge2.ops import KNOWN
from ge2.ops.graphs.loops import RepeatLoop as RepeatLoop
from ge2.ops.graphs.region import Region as Region
from ge2.ops.random import Draw as Draw
from ge2.passes.context import Context as Context
from ge2.passes.indices import Wrap as Wrap
from ge2.passes.take_to_mask import Index as Index

LATER: dict[str, Callable[..., Op]] = {
    "region": Region,
    "index": Index,
    "wrap": Wrap,
    "draw": Draw,
    "repeat": RepeatLoop,
}
TABLE = ChainMap(LATER, KNOWN)  # what the text of a graph may name after all passes
