"""Programs that are nothing but arrays for results and one group of launches:
their call is made in C.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ge2.base.source import execute
from ge2.ir import Literal, Var
from ge2.targets.cuda.device_arrays import explain, quietly
from ge2.targets.cuda.launch.launches import Straight
from ge2.targets.cuda.launch.template import ARENA, Group

if TYPE_CHECKING:
    from ge2.targets.cuda.assemble import GpuDriver

TEXT = """def compute({}):
{}
    return {},
"""


def straight(driver: GpuDriver) -> Straight | None:
    """The program as such a call; None if it is more than that."""
    group = only_group(driver)
    if group is None or driver.named.intersection(driver.arguments):
        return None
    given = [driver.name(v) for v in driver.program.graph.inputs]
    homes = [b for b in driver.program.buffers.values() if b.name in driver.begun]
    made = [b for b in homes if not b.donor]
    taken = {*given, *driver.begun}
    known = [name for name in group.bases if name in driver.names and name not in taken]
    results = [end(driver, a) for a in driver.program.graph.outputs]
    asked = [n.text for n in group.numbers]
    numbers = [*asked, *(r for r in results if r and r not in {*given, *driver.begun})]
    places = {
        name: i for i, name in enumerate([*given, *(b.name for b in made), *known, *numbers, ARENA])
    }
    places |= {b.name: places[b.donor] for b in homes if b.donor}
    if (
        None in results
        or len(set(results)) < len(results)
        or not places.keys() >= {*group.bases, *results}
    ):
        return None
    weak = [driver.name(v) for v in driver.program.graph.inputs if v.type.weak]
    return Straight(
        len(given),
        tuple((b.type.shape, driver.names[b.type.dtype.name]) for b in made),
        tuple(driver.names[name] for name in known),
        len(numbers),
        tuple(places[name] for name in weak),
        computing(driver, weak, numbers) if numbers else None,
        driver.nbytes,
        tuple(places[name] for name in [*group.bases, *asked]),
        tuple(places[name] for name in results if name is not None),
        driver.names["take"],
        driver.names["empty"],
        partial(explain, driver.failed),
        driver.names[group.name],
    )


def only_group(driver: GpuDriver) -> Group | None:
    """The one group that the program is, if what comes before it makes arrays
    for results, or numbers.
    """
    if driver.within is not None or driver.ranged or driver.meter or driver.uploads:
        return None
    group = driver.body[0] if len(driver.body) == 1 else None
    if not isinstance(group, Group):
        return None
    plain = len(group.before) + len(driver.results) == len(driver.begun) + len(driver.computed)
    return group if group.launches and plain else None


def end(driver: GpuDriver, a: Any) -> str | None:
    """The name of a result: of an array made for it, or donated to it, or of a
    number that was computed.
    """
    if isinstance(a, Literal):
        return None
    assert isinstance(a, Var)
    found = driver.buffer(a)
    if a.type.weak:
        return None if a in driver.program.graph.inputs else found.name
    return found.name if found.storage == "output" and found.name in driver.begun else None


def computing(driver: GpuDriver, weak: list[str], numbers: list[str]) -> Any:
    """What makes the numbers from the Python numbers among the arguments."""
    lines = "\n".join(f"    {line.code}" for line in driver.computed) or "    pass"
    names = dict(driver.names)
    execute(TEXT.format(", ".join(weak), lines, ", ".join(numbers)), names)
    return partial(quietly, names["compute"])
