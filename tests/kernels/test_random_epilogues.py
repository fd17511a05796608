"""2,000 random epilogues of products on tensor cores: no further from float64 than in two steps."""

from __future__ import annotations

import re
from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.choice import Pin
from tests.codegen.texts import kernels
from tests.kernels.families import kinds
from tests.kernels.random_epilogues import Program, programs
from tests.kernels.wgmma_cases import F32
from tests.nvrtc import needs_nvrtc
from tests.templates.cuda_harness import compiled
from tests.together import needs_compiler

PROGRAMS: Final = 250  # of 8 epilogues on an average
SMALL: Final = 100.0  # numbers stay so small that no half type is near its end
FAMILIES: Final = {"mma": 1, "wgmma": 8}
TILES: Final = {"mma": ("64 x 64 by 4", "128 x 64 by 8"), "wgmma": ("64 x 64", "128 x 128")}


def drawn_program(seed: int, kind: str) -> Program:
    """The first of a seed whose numbers stay small."""
    return next(
        p
        for p in programs(seed, FAMILIES[kind])
        if all(np.abs(x).max() < SMALL for x in p.exactly()[: len(p.nodes)])
    )


def bounds(program: Program, exact: Any, stored: Any) -> list[float]:
    """Of each result: the largest error of the program in two steps, and one in the last place of the
    largest number, of the half type that all are made of, or of tf32. A sum errs as all that it is of
    may.
    """
    eps = 2.0**-10 if program.dtype == F32 else float(ml_dtypes.finfo(program.dtype).eps)
    found = [
        float(
            np.abs(two - wanted).max()
            + eps * 2.0 ** np.floor(np.log2(np.abs(wanted).max() + 2.0**-14))
        )
        for two, wanted in zip(stored, exact, strict=True)
    ]
    last = len(program.nodes)
    sums = (found[n] * len(exact[n]) for n in program.sums)
    return [*found[:last], *(max(pair) for pair in zip(found[last:], sums, strict=True))]


@needs_compiler
@pytest.mark.exhaustive(share=20)
@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_no_further_from_float64_than_in_two_steps(seed: int) -> None:
    kind = [*FAMILIES][seed // 2 % 2]
    families = f"{kind} product", f"{kind} product and region"
    program = drawn_program(seed, kind)
    xs, function = tuple(program.arrays.values()), ge2.jit(program.function)
    pin = Pin(families[1], TILES[kind][seed // 4 % 2])
    with config.using(executor="shim", prefer=families, pins=(pin,)):
        # fusion may leave several results, or a turned array, in two regions that read the product
        one = len(program.nodes) == 1 and "turned" not in program.names
        assert not one or families[1] in kinds(function, *xs)
        found = function(*xs)
    exact, values = program.exactly(), [np.asarray(y, np.float64) for y in found]
    pairs = zip(program.roughly(), found, strict=True)
    stored = [np.asarray(two.astype(y.dtype), np.float64) for two, y in pairs]
    errors = [np.abs(y - wanted).max() for y, wanted in zip(values, exact, strict=True)]
    assert all(map(float.__le__, map(float, errors), bounds(program, exact, stored)))


@needs_nvrtc
@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(1000, 1016))
def test_random_epilogues_compile(seed: int) -> None:
    kind = [*FAMILIES][seed // 2 % 2]
    program = drawn_program(seed, kind)
    families = f"{kind} product", f"{kind} product and region"
    with config.using(prefer=families):
        found = kernels(program.function, *program.arrays.values(), arch="sm_90a")
    (text,) = (text for kernel, text in found if kernel.kind == "contraction")
    assert not any(usage.spills for usage in compiled(text, "sm_90a").kernels)


@pytest.mark.parametrize(("results", "pack"), [(8, 8), (15, 2)])
def test_what_registers_do_not_hold_in_packs_is_taken_in_pairs(results: int, pack: int) -> None:
    """A kernel that had eight neighbours of 17 results spilled 3,400 bytes."""
    x = np.zeros((64, 64), ml_dtypes.bfloat16)

    def function(a: Any, b: Any, turned: Any) -> list[Any]:
        y = a @ b + turned.T
        return [np.tanh(y) * n for n in range(1, results + 1)]

    with config.using(prefer=("wgmma product", "wgmma product and region")):
        found = kernels(function, x, x, x, arch="sm_90a")
    (text,) = (text for kernel, text in found if kernel.kind == "contraction")
    assert re.findall(r"int PACK +=\s+(\d+)", text) == [str(pack)]
