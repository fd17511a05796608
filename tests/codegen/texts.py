"""The CUDA kernels of a function, as texts."""

from __future__ import annotations

from typing import Any

import ge2
from ge2.cli.show import assemblers
from ge2.compile import compile_graph
from ge2.ir import Graph
from ge2.program.records import Kernels
from ge2.program.records import kernels as as_shown
from ge2.targets.cuda.emit import CudaKernel
from ge2.targets.cuda.emulator import OfflineDevice, limits_of
from ge2.targets.cuda.limits import Limits


def kernels(
    f: Any, *xs: Any, arch: str = "sm_90a", chip: Limits | None = None
) -> list[tuple[CudaKernel, str]]:
    """The kernels of a function, with their texts; nothing is compiled."""
    types = [ge2.ShapeDtypeStruct(x.shape, x.dtype) for x in xs]
    device = OfflineDevice(chip or limits_of(arch))
    executable = compile_graph(ge2.make_jaxpr(f)(*types).graph, device=device)
    return [
        (s.kernel, s.text()) for d in assemblers(executable) for s in d.kernels.sources.values()
    ]


def chosen_kernels(graph: Graph, chip: Limits, name: str = "f") -> Kernels:
    """The kernels of a graph as users see them, for tests of which are chosen. Nothing is compiled, as
    it is where an executable is asked for them: by NVRTC in a second, which tests of their texts do.
    """
    executable = compile_graph(graph, name=name, device=OfflineDevice(chip))
    return as_shown(executable.made(executable.unbuilt()))
