"""The looped form of each program is its plain Python loop, in every executor."""

from __future__ import annotations

import numpy as np
import pytest

import ge2
from benchmarks.element_loops import PROGRAMS, libraries

SIZE = 7
EMULATED = ("thomas", "cholesky", "sieve")


@pytest.mark.parametrize("executor", ["c", "blocked"])
def test_loops_are_the_plain_programs(executor):
    """All in one compiled function: what a compiler costs is its start."""
    ours = libraries()["ge2"]
    arguments = [p.arguments(SIZE) for p in PROGRAMS]

    def every(given):
        return [p.looped(ours, *each) for p, each in zip(PROGRAMS, given, strict=True)]

    with ge2.config.using(executor=executor):
        found = ge2.jit(every)(arguments)
    assert len(found) == 20
    for program, each, y in zip(PROGRAMS, arguments, found, strict=True):
        expected = program.plain(*each)
        np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12, err_msg=program.name)
        assert y.dtype == np.asarray(expected).dtype, program.name


@pytest.mark.parametrize(
    "program", [p for p in PROGRAMS if p.name in EMULATED], ids=lambda p: p.name
)
def test_loops_are_the_plain_programs_on_the_emulator(program):
    arguments = program.arguments(SIZE)
    with ge2.config.using(executor="shim"):
        y = program.compiled(libraries()["ge2"])(*arguments)
    np.testing.assert_allclose(y, program.plain(*arguments), rtol=1e-12, atol=1e-12)


def test_levinson_solves_its_system():
    (program,) = (p for p in PROGRAMS if p.name == "levinson")
    r, y = program.arguments(SIZE)
    at = np.arange(SIZE)
    np.testing.assert_allclose(r[np.abs(at[:, None] - at)] @ program.plain(r, y), y, rtol=1e-12)
