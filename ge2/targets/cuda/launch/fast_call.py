"""Programs that are nothing but arrays for results and one group of launches:
their call is made in C.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from functools import partial
from typing import TYPE_CHECKING, Any

from ge2.base.source import execute
from ge2.ir import Atom, Literal
from ge2.program.program import Program
from ge2.targets.cuda.device_arrays import explain, quietly
from ge2.targets.cuda.launch.arguments import ARENA
from ge2.targets.cuda.launch.groups import Assembled
from ge2.targets.cuda.launch.launches import Straight
from ge2.targets.cuda.launch.template import Group

if TYPE_CHECKING:
    from ge2.targets.cuda.device_arrays import Failed

TEXT = """def compute({}):
{}
    return {},
"""


def straight(
    p: Assembled, begun: AbstractSet[str], extra: int, failed: Failed | None
) -> Straight | None:
    """The program as such a call; None if it is more than that.

    `begun`: the results that have an array; `extra`: how many of these are not made within the group.
    """
    group = only_group(p, len(begun) - extra)
    if group is None:
        return None
    buffers, graph = p.program.buffers, p.program.graph
    given = [buffers[v].name for v in graph.inputs]
    homes = [b for b in buffers.values() if b.name in begun]
    made = [b for b in homes if not b.donor]
    taken = {*given, *begun}
    known = [name for name in group.bases if name in p.names and name not in taken]
    results = [end(p.program, a, begun) for a in graph.outputs]
    asked = [n.text for n in group.numbers]
    numbers = [*asked, *(r for r in results if r and r not in taken)]
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
    weak = [buffers[v].name for v in graph.inputs if v.type.weak]
    return Straight(
        len(given),
        tuple((b.type.shape, p.names[b.type.dtype.name]) for b in made),
        tuple(p.names[name] for name in known),
        len(numbers),
        tuple(places[name] for name in weak),
        computing(p, weak, numbers) if numbers else None,
        p.nbytes,
        tuple(places[name] for name in [*group.bases, *asked]),
        tuple(places[name] for name in results if name is not None),
        p.names["take"],
        p.names["empty"],
        partial(explain, failed),
        p.names[group.name],
    )


def only_group(p: Assembled, arrays: int) -> Group | None:
    """The one group that the program is, if what comes before it makes so many arrays for results,
    or numbers.
    """
    if len(p.parts) != 1 or not isinstance(group := p.parts[0], Group):
        return None
    plain = len(group.before) == arrays + len(p.computed)
    return group if group.launches and plain else None


def end(program: Program, a: Atom, begun: AbstractSet[str]) -> str | None:
    """The name of a result: of an array made for it, or donated to it, or of a
    number that was computed.
    """
    if isinstance(a, Literal):
        return None
    found = program.buffers[a]
    if a.type.weak:
        return None if a in program.graph.inputs else found.name
    return found.name if found.storage == "output" and found.name in begun else None


def computing(p: Assembled, weak: list[str], numbers: list[str]) -> Any:
    """Returns what makes the numbers from the Python numbers among the arguments."""
    lines = "\n".join(f"    {line.code}" for line in p.computed) or "    pass"
    names = dict(p.names)
    execute(TEXT.format(", ".join(weak), lines, ", ".join(numbers)), names)
    return partial(quietly, names["compute"])
