"""Every kernel family, target by target, each in its order of preference."""

from __future__ import annotations

from ge2.choice import choose
from ge2.choice.choose import Choice
from ge2.choice.family import Family, Launch, Problem
from ge2.targets.c import families as c
from ge2.targets.cuda import families as cuda
from ge2.targets.reference.library import Library, Product

CATALOG: tuple[Family, ...] = (*c.FAMILIES, *cuda.FAMILIES, *c.BLOCKED, Product(), Library())


def select(problem: Problem, catalog: tuple[Family, ...] = CATALOG) -> Choice:
    """The choice of a kernel for the problem among all families."""
    return choose.select(problem, catalog)


def launch(problem: Problem) -> Launch:
    """The chosen kernel, written once for equal problems."""
    return choose.launch(problem, CATALOG)
