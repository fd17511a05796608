"""Resident kernels compile for each architecture without spills, which would
be read in each round.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2 import lax
from tests.codegen.loop_programs import counted, either
from tests.codegen.test_resident_random import ROWS, program
from tests.codegen.texts import kernels
from tests.nvrtc import needs_nvrtc
from tests.templates.cuda_harness import ARCHITECTURES, compiled


def zeros(*shape: int, dtype: Any = np.float32) -> Any:
    return np.zeros(shape, dtype)


def rnn(w: Any, h: Any, xs: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = np.tanh(x + h @ w)
        return h, h

    return (lax.scan(step, h, xs)[1] ** 2).mean()


def gated(w: Any, u: Any, h: Any, xs: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        z = 1 / (1 + np.exp(-(h @ w + x)))
        h = (1 - z) * h + z * np.tanh((h * z) @ u + x)
        return h, h

    return (lax.scan(step, h, xs)[1] ** 2).mean()


def neighbours(x: Any) -> Any:
    def step(c: Any, _: Any) -> Any:
        c = c * 0.5 + (np.roll(c, 1) + np.roll(c, -1)) * 0.25
        return c / (1 + np.abs(c).max()), c.sum()

    return lax.scan(step, x, None, length=50)


PROGRAMS: dict[str, tuple[Any, ...]] = {
    "rnn": (ge2.grad(rnn), zeros(256, 256), zeros(32, 256), zeros(512, 32, 256)),
    "rnn of two rows a block": (
        ge2.grad(rnn, (0, 2)),
        zeros(256, 256),
        zeros(216, 256),
        zeros(512, 216, 256),
    ),
    "narrow rnn": (ge2.grad(rnn, (0, 2)), zeros(128, 128), zeros(64, 128), zeros(99, 64, 128)),
    "gated": (
        ge2.grad(gated, (0, 1, 3)), zeros(128, 128), zeros(128, 128), zeros(64, 128),
        zeros(99, 64, 128),
    ),
    "while": (counted, zeros(64)),
    "conds": (either, zeros(64)),
    "while of the whole GPU": (counted, zeros(1 << 20)),
    "conds of the whole GPU": (either, zeros(1 << 20)),
    "neighbours": (neighbours, zeros(1 << 20)),
    "wide rnn": (
        ge2.grad(rnn, (0, 1, 2)),
        zeros(1024, 1024),
        zeros(32, 1024),
        zeros(512, 32, 1024),
    ),
    "an rnn of another width": (ge2.grad(rnn), zeros(768, 768), zeros(50, 768), zeros(9, 50, 768)),
}  # fmt: skip
RESIDENT = {"rnn": 2, "rnn of two rows a block": 2, "narrow rnn": 2, "gated": 2, "wide rnn": 2}
RESIDENT |= {"an rnn of another width": 2}
KINDS = ("resident kernel", "grid kernel")


@pytest.mark.exhaustive("architecture")
@needs_nvrtc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program(name: str, architecture: str) -> None:
    f, *xs = PROGRAMS[name]
    found = [(k, text) for k, text in kernels(f, *xs, arch=architecture) if k.kind in KINDS]
    assert len(found) == RESIDENT.get(name, 1)
    assert all(k.together == (k.kind == "grid kernel") for k, _ in found)
    if name == "wide rnn":  # blocks meet once a round, forwards and backwards
        assert [text.count("ge2_grid_wait();") for _, text in found] == [1, 1]
    for kernel, text in found:
        (usage,) = compiled(text, architecture).kernels
        assert not usage.spills, (name, architecture, usage)
        assert usage.registers * kernel.block <= 1 << 16


@pytest.mark.exhaustive
@needs_nvrtc
@pytest.mark.parametrize("seed", range(8))
def test_random_rounds(seed: int) -> None:
    n = (3, 8, 33, 64)[seed % 4]
    for kernel, text in kernels(program(seed), zeros(ROWS, n), zeros(3, ROWS, n), zeros(n, n)):
        if kernel.kind == "resident kernel":
            assert not any(each.spills for each in compiled(text, "sm_90a").kernels)
