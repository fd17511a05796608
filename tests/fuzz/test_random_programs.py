"""Random programs through every executor, with passes on and off, against a run in float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ge2.base.config import config
from ge2.codegen import blocks, statements
from ge2.ir import Graph, parse, verify, write
from ge2.kernels.catalog import launch
from ge2.passes import TABLE
from ge2.runtime import driver
from ge2.runtime.compile import compile_graph
from ge2.runtime.executable import Reference
from tests.fuzz.programs import program

PROGRAMS, SHARE = 240, 20
SETTINGS: dict[str, dict[str, Any]] = {
    "c": {},
    "blocked": {"executor": "blocked"},
    "two threads": {"threads": 2},
    "no passes": {"passes_off": ("inline", "simplify", "fold", "match", "fuse")},
    "fuse alone": {"passes_off": ("simplify", "fold", "match")},
    "reference": {"executor": "reference"},
}


@pytest.fixture(params=["whole arrays", "tiny blocks"])
def cutting(request, monkeypatch):
    """Small programs in one block, as they would be, or in many, as large ones are."""
    launch.cache_clear()
    if request.param == "tiny blocks":
        for name, value in {"CACHE": 300, "LEAST": 16, "MOST": 256}.items():
            monkeypatch.setattr(blocks, name, value)
        monkeypatch.setattr(statements, "MANY", 4)
        monkeypatch.setattr(driver, "SHARED", 0)
    yield
    launch.cache_clear()


@pytest.mark.parametrize("first", range(0, PROGRAMS, SHARE))
def test_every_executor_agrees_with_float64(first, cutting):
    for seed in range(first, first + SHARE):
        graph, arrays = program(seed)
        before = [x.tobytes() for x in arrays]
        exact = Reference(program(seed, wide=True)[0])(*program(seed, wide=True)[1])
        reference = Reference(graph)(*arrays)
        for name, settings in SETTINGS.items():
            with config.using(**settings):
                results = compile_graph(graph)(*arrays)
            compare(results, reference, exact, coarsest(graph), f"seed {seed}, {name}")
        assert [x.tobytes() for x in arrays] == before, f"seed {seed} changed an argument"


def coarsest(graph: Graph) -> float:
    """The rounding of the narrowest float in a program."""
    types = [v.type.dtype for eqn in graph.eqns for v in eqn.outs] + [v.type.dtype for v in graph.inputs]
    return max((float(ml_dtypes.finfo(d).eps) for d in types if d.kind in "fcV"), default=0.0)


def compare(results: list[Any], reference: list[Any], exact: list[Any], eps: float, what: str) -> None:
    """Integers are equal; floats err at most three times as much as the reference, or by some roundings."""
    for y, r, e in zip(results, reference, exact, strict=True):
        assert (y.shape, y.dtype) == (r.shape, r.dtype), what
        assert y.flags.owndata and y.flags.writeable and y.flags.c_contiguous, what
        if y.dtype.kind in "biu":
            np.testing.assert_array_equal(y, r, err_msg=what)
            continue
        ours, theirs = (np.abs(np.asarray(a, complex) - e).max(initial=0) for a in (y, r))
        assert ours <= 3 * theirs + 8 * eps * max(np.abs(e).max(initial=0), 1), what


def test_the_same_bits_on_any_number_of_threads(monkeypatch):
    monkeypatch.setattr(blocks, "CACHE", 300)
    monkeypatch.setattr(blocks, "LEAST", 16)
    monkeypatch.setattr(driver, "SHARED", 0)
    launch.cache_clear()
    for seed in range(1000, 1040):
        graph, arrays = program(seed)
        found = []
        for threads in (1, 2, 5):
            with config.using(threads=threads):
                executable = compile_graph(graph)
            found += [[y.tobytes() for y in executable(*arrays)] for _ in range(2)]
        assert all(bits == found[0] for bits in found), f"seed {seed}"
    launch.cache_clear()


def test_every_graph_reads_back_from_its_text():
    for seed in range(60):
        graph, _ = program(seed)
        after = compile_graph(graph).graph
        assert verify(parse(write(after), TABLE)) == after
