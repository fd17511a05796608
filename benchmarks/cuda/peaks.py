"""The most memory that the training step of an MLP takes on a GPU, from its
first call on: a process each.

Ours is what CuPy's pool has in use and what lies behind the addresses of arenas, JAX's
and torch's what their allocators had in use at most. Weights, moments and data are
counted, contexts, code and graphs are not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

STEPS: Final = 6
Step = Callable[[], Any]


def of_ge2() -> tuple[int, str]:
    import cupy

    from benchmarks.cuda.programs import mlp_data, mlp_of_ge2
    from ge2.targets.cuda.load.gpu import gpu

    pool, scratch = cupy.get_default_memory_pool(), gpu(0).scratch

    class Peak(cupy.cuda.MemoryHook):  # type: ignore[misc]
        """Looks after each allocation."""

        name = "Peak"
        most = 0

        def look(self) -> None:
            self.most = max(self.most, pool.used_bytes() + scratch.nbytes)

        def malloc_postprocess(self, **_: Any) -> None:
            self.look()

    with Peak() as peak:
        _, step = mlp_of_ge2(cupy, *mlp_data())
        for _ in range(STEPS):
            step()
            peak.look()
    return peak.most, f"of these {scratch.nbytes / 2**20:.1f} MB are arenas"


def of_jax() -> tuple[int, str]:
    import jax

    from benchmarks.cuda.programs import mlp_data, mlp_of_jax

    run(mlp_of_jax(jax, *mlp_data()))
    return int(jax.devices()[0].memory_stats()["peak_bytes_in_use"]), "from the first call on"


def of_torch() -> tuple[int, str]:
    """In its steps alone: what its compiler tries before would count otherwise.

    Without its graphs, whose memory is not looked at while they are replayed.
    """
    import torch

    from benchmarks.cuda.programs import mlp_data, torch_mlp

    step = torch_mlp(torch, *mlp_data(), mode="default")
    run(step)
    torch.cuda.synchronize()
    whole = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run(step)
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated()), f"from the first call on {whole / 2**20:.1f} MB"


def run(step: Step) -> None:
    for _ in range(STEPS):
        step()


OF: Final = {"ge2": of_ge2, "jax": of_jax, "torch": of_torch}


def measured(name: str) -> tuple[int, str]:
    """The bytes of one of them and what to know of the figure, from a process of its own."""
    from benchmarks.fresh import fresh

    program = f"from benchmarks.cuda.peaks import say; say({name!r})"
    said = fresh(program, XLA_PYTHON_CLIENT_PREALLOCATE="false")
    nbytes, _, note = said.said.strip().splitlines()[-1].partition(" ")
    return int(nbytes), note


def say(name: str) -> None:
    print(*OF[name](), flush=True)


if __name__ == "__main__":
    for each in sys.argv[1:] or OF:
        say(each)
