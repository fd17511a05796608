"""Kernels in C in a file, and with the text that a user made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

from ge2.choice.choose import Choice
from ge2.choice.saved import SavedFamily, written
from ge2.codegen.text import CKernel
from ge2.targets.c.emit.file import Named


@final
class CSaved(SavedFamily):
    target = "c"

    def source(self, kernel: CKernel) -> str:
        return Named(kernel.kind, kernel).text()

    def edited(self, kernel: CKernel, text: str, launch: None) -> CKernel:
        return replace(kernel, text=text)


def file_of(choice: Choice, kernels: Sequence[CKernel]) -> str:
    """The text of a file with the kernels of a choice."""
    return written(choice, [(k.kind, Named(k.kind, k).text(), None) for k in kernels])
