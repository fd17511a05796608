"""A chain of values that are read twice each is written in time that
grows with its length, no faster.
"""

from __future__ import annotations

import numpy as np

import ge2
from ge2.base.config import config
from ge2.compile import compile_graph


def test_a_chain_of_sums_is_written_at_once():
    def chain(x):
        for _ in range(40):
            x = x * 0.5 + x.sum(0)
            x = x / (1 + abs(x))
        return x

    graph = ge2.jit(chain).trace(ge2.ShapeDtypeStruct((64, 64), np.dtype(np.float32))).jaxpr
    with config.using(executor="c"):
        executable = compile_graph(graph)
        # 2 ** 40 steps would not end
        assert executable.written(run=False).source.count("\n") < 4000
