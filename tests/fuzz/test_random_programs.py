"""Random programs through every executor, with passes on and off, against a run in float64.

`GE2_TEST_PROGRAMS=20000 pytest --all tests/fuzz` looks at more of them; a failure names its seed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ge2.base.arrays import BFLOAT16, INEXACT
from ge2.base.config import config
from ge2.base.detect import toolchain
from ge2.compile import compile_graph
from ge2.compile.catalog import Reference
from ge2.ir import Graph, Literal, parse, verify, write
from ge2.passes import TABLE
from tests.fuzz.programs import NARROW, WIDE, Made, build
from tests.small import TINY
from tests.together import together

PROGRAMS, FIRST = (
    int(os.environ.get(f"GE2_TEST_{name}", n)) for name, n in (("PROGRAMS", 500), ("FIRST", 0))
)
SHARE = 25
EPS = float(np.finfo(np.float64).eps)
OFF = ("inline", "simplify", "fold", "match", "fuse")
SETTINGS: dict[str, dict[str, Any]] = {
    "c": {"threads": 1},
    "c, two threads": {"threads": 2},  # and with donated arguments
    "c, no passes": {"threads": 1, "passes_off": OFF},
    "blocked": {"executor": "blocked", "threads": 1},
    "blocked, two threads": {"executor": "blocked", "threads": 2},
    "blocked, no passes": {"executor": "blocked", "passes_off": OFF},
    "blocked, fuse alone": {"executor": "blocked", "passes_off": ("simplify", "fold", "match")},
}
ALIKE = {"c, two threads": "c", "blocked, two threads": "blocked"}  # to the bit
IN_C = ("c", "c, two threads", "c, no passes")
NO_C = toolchain() is None


@pytest.mark.exhaustive("small")
@pytest.mark.parametrize(
    ("first", "small"), [(n, n // SHARE % 2 == 1) for n in range(FIRST, FIRST + PROGRAMS, SHARE)]
)
def test_every_executor_agrees_with_float64(first: int, small: bool) -> None:
    """Some of them are small programs that are written as large ones are."""
    seeds = range(first, min(first + SHARE, FIRST + PROGRAMS))
    failures = []
    for seed, executables in zip(seeds, list(built(seeds, small)), strict=True):
        for name, trouble in judged(seed, executables):
            failures.append(f"seed {seed}, {name}: {trouble}")
    assert not failures, "\n".join(failures)


def built(seeds: Sequence[int], small: bool = False) -> Iterator[dict[str, Any]]:
    """The executables of each program; all that is C is compiled together."""
    with together("-Og") if not NO_C else nullcontext():
        for seed in seeds:
            made = build(seed)
            found = {}
            for name, settings in SETTINGS.items():
                rare = name in ("c, no passes", "blocked, no passes", "blocked, fuse alone")
                if (NO_C and name in IN_C) or (rare and seed % 5):
                    # what it adds to the first two are slow steps between the same kernels
                    continue
                donated = made.donated if name == "c, two threads" else ()
                with config.using(**settings, tuning=(TINY,) if small else ()):
                    found[name] = compile_graph(made.graph, donated=donated)
                    found[name].build()
            yield found


def judged(seed: int, executables: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What is wrong, under which setting."""
    made = build(seed)
    given = [np.asarray(x).tobytes() for x in made.arrays]
    judge = Judge.of(seed)
    bits: dict[str, list[bytes]] = {}
    for name, executable in executables.items():
        try:
            results = [
                executable(*arguments(made, name)) for _ in range(2)
            ]  # again in the arena of the first call
            judge(results[0])
        except (AssertionError, Exception) as trouble:  # noqa: BLE001 - each is one of many failures
            yield name, f"{type(trouble).__name__}: {trouble}"
            continue
        bits[name] = [*map(as_bytes, results[0])]
        if bits[name] != [*map(as_bytes, results[1])]:
            yield name, "the second call gives other bits"
        if name in ALIKE and ALIKE[name] in bits and bits[name] != bits[ALIKE[name]]:
            yield name, f"other bits than {ALIKE[name]}"
        if [np.asarray(x).tobytes() for x in made.arrays] != given:
            yield name, "an argument was changed"


def as_bytes(y: Any) -> bytes:
    """Bits. gcc may take -(a * b + c) for -a * b - c, so zeros of complex numbers have any sign."""
    y = np.asarray(y)
    return (y + 0 if y.dtype.kind == "c" else y).tobytes()


def arguments(made: Made, name: str) -> list[Any]:
    """What is donated is a copy."""
    if name != "c, two threads":
        return made.arrays
    return [
        np.array(x, order="C") if d else x for x, d in zip(made.arrays, made.donated, strict=True)
    ]


def coarseness(graph: Graph) -> list[float]:
    """For each result the rounding of the narrowest float that it was made of."""
    eps: dict[Any, float] = {v: rounding(v.type.dtype) for v in graph.inputs}
    for eqn in graph.eqns:
        before = max((eps[a] for a in eqn.inputs if not isinstance(a, Literal)), default=0.0)
        eps.update({v: max(before, rounding(v.type.dtype)) for v in eqn.outs})
    return [eps[v] for v in graph.outputs]  # type: ignore[index]


def rounding(dtype: np.dtype) -> float:
    return float(ml_dtypes.finfo(dtype).eps) if dtype in INEXACT else 0.0


@dataclass(frozen=True)
class Judge:
    """What a program should give: its references, the same in float64, and in
    float32 instead of float64.
    """

    reference: list[Any]
    exact: list[Any]
    narrow: list[Any]
    rounded: list[float]

    @classmethod
    def of(cls, seed: int) -> Judge:
        runs = [build(seed, instead) for instead in (None, WIDE, NARROW)]
        return cls(*(Reference(m.graph)(*m.arrays) for m in runs), coarseness(runs[0].graph))

    def __call__(self, results: list[Any]) -> None:
        """Integers are equal; floats err at most three times as much as the
        reference, or some roundings.
        """
        owned = [y for y in results if isinstance(y, np.ndarray)]
        assert len({id(y) for y in owned}) == len(owned), "two results are one array"
        for i, (y, r) in enumerate(zip(results, self.reference, strict=True)):
            assert type(y) is type(r), (
                f"result {i} is a {type(y).__name__}, not a {type(r).__name__}"
            )
            if isinstance(y, np.ndarray):
                assert (y.shape, y.dtype) == (r.shape, r.dtype), f"result {i}"
                assert y.flags.owndata and y.flags.writeable and y.flags.c_contiguous, f"result {i}"
            if np.asarray(y).dtype.kind in "biu":
                np.testing.assert_array_equal(y, r, err_msg=f"result {i}")
            else:
                self.errs_little(i, y)

    def errs_little(self, i: int, result: Any) -> None:
        y, r, e = (np.asarray(a, complex) for a in (result, self.reference[i], self.exact[i]))
        over = ~np.isfinite(r)  # what overflows in a narrow type does so in each
        np.testing.assert_array_equal(y[over], r[over], err_msg=f"result {i}")
        ours, theirs = (np.abs(a - e)[~over].max(initial=0) for a in (y, r))
        if (
            self.rounded[i] == EPS
        ):  # the reference is a run in float64 too: its error is as many roundings as in float32
            n = np.asarray(self.narrow[i], complex)
            theirs = np.abs(n - e)[~over].max(initial=0) * EPS / np.finfo(np.float32).eps
        most = 3 * theirs + 8 * self.rounded[i] * max(np.abs(e[~over]).max(initial=0), 1)
        what = f"result {i} {np.asarray(result).dtype}: error {ours}, {theirs} of the reference"
        assert ours <= most, what


def test_the_same_bits_on_any_number_of_threads() -> None:
    for seed in range(1000, 1040):
        made = build(seed)
        found = []
        for threads in (1, 2, 5):
            with config.using(threads=threads, executor="blocked", tuning=(TINY,)):
                executable = compile_graph(made.graph)
                for _ in range(2):
                    results = executable(*made.arrays)
                    found.append([np.asarray(y).tobytes() for y in results])
        assert all(bits == found[0] for bits in found), f"seed {seed}"


def test_every_graph_reads_back_from_its_text() -> None:
    for seed in range(60):
        graph = build(seed).graph
        after = compile_graph(graph).graph
        assert verify(parse(write(after), TABLE)) == after


def test_programs_have_everything() -> None:
    """Every kind of operation and every dtype is met in the first programs."""
    graphs = [build(seed).graph for seed in range(300)]
    names = {eqn.op.name for graph in graphs for eqn in graph.eqns}
    dtypes = {v.type.dtype for graph in graphs for eqn in graph.eqns for v in eqn.outs}
    assert len(names) > 65, sorted(names)
    assert len(dtypes) == 17 and BFLOAT16 in dtypes
    assert all(5 <= len(graph.eqns) <= 45 for graph in graphs)
    sizes = {n for graph in graphs for eqn in graph.eqns for v in eqn.outs for n in v.type.shape}
    assert {0, 1} <= sizes
