"""The families of the kernels that a program has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ge2.targets.c.assemble import CAssembler
from ge2.targets.cuda.assemble import CudaAssembler


def families_of(lowered: Any) -> list[str]:
    return [k.choice.family.name for k in lowered.kernels]


def kinds(compiled: Any, *xs: Any) -> list[str]:
    """The families of a jitted function's kernels. Those of a program that is built for it are noted
    then: to write its text again, for the kernels as users see them, takes as long.
    """
    built: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for assembler in (CAssembler, CudaAssembler):
            patch.setattr(assembler, "build", noting(assembler.build, built))
        lowered = compiled.lower(*xs)
    return built or families_of(lowered)


def noting(build: Callable[[Any], Any], built: list[str]) -> Callable[[Any], Any]:
    def noted(assembler: Any) -> Any:
        found = build(assembler)
        built.extend(each.choice.family.name for each in found.made)
        return found

    return noted
