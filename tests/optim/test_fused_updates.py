"""An update in the kernel of its gradient's product."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import ge2
from ge2.cli.show import assemblers
from ge2.compile import compile_graph
from ge2.targets.cuda.emulator import OfflineDevice, limits_of


def test_what_the_host_makes_of_the_step_is_handed_to_the_kernel_as_numbers() -> None:
    """It has no address; when the kernel was chosen that was not known yet."""
    optimizer = ge2.optim.adamw(1e-3)

    def step(p: Any, state: Any, x: Any, ct: Any) -> Any:
        return optimizer.update((x.T @ ct).astype(np.float32), state, p)

    p, x = np.zeros((256, 256), np.float32), np.zeros((1024, 256), ml_dtypes.bfloat16)
    with ge2.config.using(executor="reference"):
        entry = ge2.jit(step).trace(p, optimizer.init(p), x, x).entry
    with ge2.config.using(prefer=("wgmma product and region",)):  # two steps are thought quicker
        made = compile_graph(entry.graph, device=OfflineDevice(limits_of("sm_90a")))
    (source,) = (s for a in assemblers(made) for s in a.kernels.sources.values())
    assert source.name == "contraction"
    assert [a.kind for a in source.kernel.given].count("value") == 2
