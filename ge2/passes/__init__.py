"""From graph to graph: each pass is a function, `PIPELINE` is their order."""

from ge2.ops import TABLE as OPERATIONS
from ge2.ops.loops import RepeatLoop as RepeatLoop
from ge2.ops.region import Region as Region
from ge2.passes.match import Index as Index
from ge2.passes.pipeline import PIPELINE as PIPELINE
from ge2.passes.pipeline import run_pipeline as run_pipeline

TABLE = {
    **OPERATIONS,
    "region": Region,
    "index": Index,
    "repeat": RepeatLoop,
}  # what the text of a graph may name after all passes
