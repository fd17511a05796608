"""Kernels of a GPU in a file, and with the text that a user made of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import final

from ge2.choice.choose import Choice
from ge2.choice.saved import Launch, SavedFamily, written
from ge2.targets.cuda.emit.kernel import CudaKernel
from ge2.targets.cuda.load.kernels import source_of


@final
class CudaSaved(SavedFamily):
    target = "cuda"

    def source(self, kernel: CudaKernel) -> str:
        return source_of(kernel).text()

    def edited(self, kernel: CudaKernel, text: str, launch: Launch) -> CudaKernel:
        blocks, threads, shared = launch
        return replace(
            kernel, text=text, file=self.saved.path, grid=blocks, block=math.prod(threads),
            sides=threads, shared=shared,
        )  # fmt: skip


def file_of(choice: Choice, kernels: Sequence[CudaKernel]) -> str:
    """The text of a file with the kernels of a choice."""
    return written(
        choice,
        [(source_of(k).name, source_of(k).text(), (k.grid, k.shape, k.shared)) for k in kernels],
    )
