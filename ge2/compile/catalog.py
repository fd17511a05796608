"""The families of kernels of each target, in the order of preference."""

from __future__ import annotations

from functools import cache
from typing import Any

from ge2.choice.choose import Catalog, Choice, choose
from ge2.choice.problem import Problem, prefs
from ge2.targets.reference.library import Library, Product

TARGETS = ("c", "cuda", "cpu")


@cache
def catalog_of(target: str) -> Catalog:
    """The families of a target, which is loaded when it is asked for; then
    NumPy's own functions.
    """
    library = (Product(), Library())
    if target == "cuda":
        from ge2.targets.cuda.families import FAMILIES as cuda

        return (*cuda, *library)
    from ge2.targets.c.families import BLOCKED, FAMILIES

    return (*(FAMILIES if target == "c" else BLOCKED), *library)


def caps_of(target: str) -> Any:
    """What is known of a target's limits before it is known which chip it is."""
    if target != "c":
        return None
    from ge2.targets.c.caps import Caps
    from ge2.targets.c.load.blas import services

    return Caps(1, bool(services().dgemm))


def select(problem: Problem, catalog: Catalog | None = None) -> Choice:
    """The choice for a problem whose layouts are not settled: that of a
    family that serves its types.
    """
    target = problem.target
    return choose(
        problem, caps_of(target), prefs(), catalog_of(target) if catalog is None else catalog
    )
