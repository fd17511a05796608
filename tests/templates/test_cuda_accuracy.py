"""How errors of float32's functions are measured, tried on the CPU where
numbers change their kind.
"""

from __future__ import annotations

import pytest

from ge2.targets.cuda.emulator import ShimDevice
from tests.templates import cuda_accuracy
from tests.templates.cuda_accuracy import limit, measured, unary
from tests.templates.cuda_harness import needs_compiler

pytestmark = needs_compiler
# the bits of 0, 1, the last finite numbers, the ends of exp and the least
# normal number, of both signs
EDGES = [
    s + e
    for s in (0, 1 << 31)
    for e in (0, 0x3F7FFF80, 0x7F7FFF00, 0x42B17200, 0x42CFF000, 0x007FFF80)
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", unary())
def test_edges(name: str) -> None:
    off, at, ends = measured(ShimDevice(), name, EDGES, 512, 1)
    assert ends == 0
    assert off <= limit(name) + 2**-12, at


@pytest.mark.parametrize(
    ("narrow", "finds"),
    [
        ("ge2_exp_f32({0}) * 1.000002f", "off"),
        ("ge2_abs_f32(ge2_exp_f32({0}) - 1)", "off"),
        ("{0} > 88 ? ge2_max_f32({0}, 3.4e38f) : ge2_exp_f32({0})", "off"),
        ("{0} < -104 ? -0.0f : ge2_exp_f32({0})", "ends"),
        ("{0} > 89 ? ge2_sqrt_f32(-1.0f) : ge2_exp_f32({0})", "ends"),
    ],
)
def test_errors_are_found(narrow: str, finds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = cuda_accuracy.text_of
    monkeypatch.setattr(
        cuda_accuracy, "text_of", lambda n, d: narrow if d.itemsize == 4 else own(n, d)
    )
    off, _, ends = measured(ShimDevice(), "exp", EDGES, 512, 1)
    assert off > limit("exp") if finds == "off" else ends
