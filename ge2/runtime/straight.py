"""Programs that are nothing but arrays for results and one group of launches: their call is made in C."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ge2.backends.launches import Straight
from ge2.ir import Literal, Var
from ge2.runtime.launching import ARENA, Group

if TYPE_CHECKING:
    from ge2.runtime.gpu import GpuDriver


def straight(driver: GpuDriver) -> Straight | None:
    """The program as such a call; None if it is more than that."""
    group = only_group(driver)
    if group is None or driver.named.intersection(driver.arguments):
        return None
    homes = {b.name: b for b in driver.program.buffers.values() if b.name in driver.begun}
    made = [b for b in homes.values() if not b.donor]
    known = [name for name in group.bases if name in driver.names and name not in homes]
    objects = [*driver.arguments, *(b.name for b in made), *known, ARENA]
    places = {name: i for i, name in enumerate(objects)}
    places |= {b.name: places[b.donor] for b in homes.values() if b.donor}
    results = [end(driver, a) for a in driver.program.graph.outputs]
    if None in results or len(set(results)) < len(results) or not places.keys() >= {*group.bases, *results}:
        return None
    return Straight(
        len(driver.arguments),
        tuple((b.type.shape, driver.names[b.type.dtype.name]) for b in made),
        tuple(driver.names[name] for name in known),
        driver.nbytes,
        tuple(places[name] for name in group.bases),
        tuple(places[name] for name in results if name is not None),
        driver.names["take"],
        driver.names["empty"],
        driver.names[group.name],
    )


def only_group(driver: GpuDriver) -> Group | None:
    """The one group that the program is, if all that comes before it are the arrays of its results."""
    if driver.within is not None or driver.ranged or driver.meter or not driver.silent():
        return None
    if len(driver.body) != 1 or not isinstance(driver.body[0], Group):
        return None
    (group,) = driver.body
    plain = group.launches and not group.numbers and len(group.before) == len(driver.begun)
    return group if plain else None


def end(driver: GpuDriver, a: Any) -> str | None:
    """The name of a result that is an array made for it, or donated to it."""
    if isinstance(a, Literal):
        return None
    assert isinstance(a, Var)
    found = driver.buffer(a)
    return found.name if found.storage == "output" and found.name in driver.begun else None
