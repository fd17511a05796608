"""Which operations a target has no kernel for: they call a library, and take no part in a region.

What is not named here has a kernel. A region with an equation that has none is run by references,
equation by equation: the same numbers, slowly.
"""

from __future__ import annotations

import numpy as np
import pytest

from ge2.base.arrays import COMPLEX, HALF
from ge2.compile.pipeline import rewritten
from ge2.compile.steps import kind_of
from ge2.ir import GraphOp
from ge2.ops.dot import Fft
from ge2.test_util.laws import graph_of, types_of
from tests.laws.sample import Sample
from tests.laws.samples import SAMPLES
from tests.laws.test_laws import NAMES, every_op

CALLS = frozenset(("debug_print", "debug_callback", "pure_callback"))
LINALG = frozenset(
    ("solve", "pinv", "det", "cofactors", "slogdet", "cholesky", "qr", "eigh", "eig", "svd")
)
FFT = frozenset(("fft", "rfft", "irfft"))
SORTS = frozenset(("sort", "argsort", "searchsorted"))
NEIGHBOURS = frozenset(("spacing", "nextafter"))  # of half types


def by_library(name: str, target: str, dtype: np.dtype) -> bool:
    if name in NEIGHBOURS:
        return dtype in HALF
    if name in SORTS:
        return dtype in COMPLEX or (target == "cuda" and name == "searchsorted")
    if name in FFT and target == "cuda":
        return False
    return name in LINALG | FFT | CALLS or (name == "constant" and target == "cuda")


def one_of_each(name: str, rng: np.random.Generator) -> list[Sample]:
    """One of each value of the operation: shapes do not matter, but that a Fourier transform of no
    elements, or along no axis, is a copy.
    """
    found = {s.op: s for s in SAMPLES[name] if not isinstance(s.op, GraphOp)}
    if name in FFT:
        copies = {Fft(()), Fft((), True)}
        found = {
            s.op: s
            for s in SAMPLES[name]
            if s.op not in copies and np.size(*s.draw(rng, s.dtypes[0]))
        }
    return [*found.values()]


@pytest.mark.exhaustive("name")
@every_op
@pytest.mark.parametrize("target", ["c", "cuda"])
def test_an_operation_has_a_kernel(name: str, target: str) -> None:
    rng = np.random.default_rng(0)
    for sample in one_of_each(name, rng):
        for dtype in sample.dtypes:
            graph = graph_of(sample.op, types_of(sample.draw(rng, dtype)))
            kinds = {
                kind_of(e, target)
                for e in rewritten(graph, target).eqns
                if not any(v.type.weak for v in e.outs)
            }
            assert by_library(name, target, dtype) or "library" not in kinds, (sample.op, dtype)


def test_what_is_left_to_a_library_is_an_operation() -> None:
    assert set(NAMES) >= LINALG | FFT | CALLS | SORTS | NEIGHBOURS
