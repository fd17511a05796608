"""The families of kernels of each target, in the order of preference."""

from __future__ import annotations

from functools import cache
from typing import Any

from ge2.base.config import config
from ge2.base.errors import InputError
from ge2.choice.choose import Catalog, Choice, choose
from ge2.choice.problem import Problem, prefs
from ge2.targets.reference.library import Library, Product

# kernels of users' for functions of theirs: whether each is preferred where nothing was measured
USER_KERNELS: dict[Any, bool] = {}
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
    """The limits of a target that are known before it is known which chip it is."""
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


def family_names() -> tuple[str, ...]:
    """The names of all families of kernels, of every target."""
    from ge2.targets.c.loops import CLoop

    catalogs = (*map(catalog_of, TARGETS), joint_families())
    found = [family.name for each in catalogs for family in each]
    users = [each.name for k in USER_KERNELS for each in (k, k.gradient) if each is not None]
    return tuple(dict.fromkeys([*found, CLoop.name, *users]))


def joint_families() -> Catalog:
    """Families of several equations, which passes ask for a kernel."""
    from ge2.compile.rewrites.product_epilogue import CATALOG

    return CATALOG


def know_families() -> None:
    """InputError, with the nearest, for a name in the setting `prefer` that no family has."""
    for name in config.prefer:
        check_family(name.removeprefix("-").strip())


def check_family(name: str) -> None:
    """InputError, with the nearest, unless a family has the name."""
    known = family_names()
    if name not in known:
        from difflib import get_close_matches  # hardly ever needed

        nearest = get_close_matches(name, known, 1)
        fix = repr(nearest[0]) if nearest else "a name of ge2.kernels.families()"
        raise InputError(f"no family of kernels is called {name!r}", fix=fix)
