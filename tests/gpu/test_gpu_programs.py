"""Random programs on a GPU."""

from __future__ import annotations

from ge2.targets.cuda.load.gpu import current_gpu
from tests.fuzz.test_programs_in_cuda import agree, in_shares


@in_shares
def test_programs_on_a_gpu_agree_with_float64(first: int) -> None:
    agree(first, current_gpu())
