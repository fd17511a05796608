"""Programs that are nothing but arrays for results and one group of launches:
their call is made in C.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ge2.base.source import execute
from ge2.ir import Literal, Var
from ge2.targets.cuda.device_arrays import explain, quietly
from ge2.targets.cuda.launch.arguments import ARENA
from ge2.targets.cuda.launch.launches import Straight
from ge2.targets.cuda.launch.template import Group

if TYPE_CHECKING:
    from ge2.targets.cuda.assemble import CudaAssembler

TEXT = """def compute({}):
{}
    return {},
"""


def straight(assembler: CudaAssembler) -> Straight | None:
    """The program as such a call; None if it is more than that."""
    group = only_group(assembler)
    if group is None or assembler.named.intersection(assembler.arguments):
        return None
    given = [assembler.name(v) for v in assembler.program.graph.inputs]
    homes = [b for b in assembler.program.buffers.values() if b.name in assembler.begun]
    made = [b for b in homes if not b.donor]
    taken = {*given, *assembler.begun}
    known = [name for name in group.bases if name in assembler.names and name not in taken]
    results = [end(assembler, a) for a in assembler.program.graph.outputs]
    asked = [n.text for n in group.numbers]
    numbers = [*asked, *(r for r in results if r and r not in {*given, *assembler.begun})]
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
    weak = [assembler.name(v) for v in assembler.program.graph.inputs if v.type.weak]
    return Straight(
        len(given),
        tuple((b.type.shape, assembler.names[b.type.dtype.name]) for b in made),
        tuple(assembler.names[name] for name in known),
        len(numbers),
        tuple(places[name] for name in weak),
        computing(assembler, weak, numbers) if numbers else None,
        assembler.arena.nbytes,
        tuple(places[name] for name in [*group.bases, *asked]),
        tuple(places[name] for name in results if name is not None),
        assembler.names["take"],
        assembler.names["empty"],
        partial(explain, assembler.around.failed),
        assembler.names[group.name],
    )


def only_group(assembler: CudaAssembler) -> Group | None:
    """The one group that the program is, if what comes before it makes arrays
    for results, or numbers.
    """
    numbers, parts = assembler.numbers, assembler.groups.parts
    if assembler.inside or assembler.seen or numbers.uploads:
        return None
    group = parts[0] if len(parts) == 1 else None
    if not isinstance(group, Group):
        return None
    arrays = len(assembler.begun) - len(assembler.made_first)
    plain = len(group.before) == arrays + len(numbers.lines)
    return group if group.launches and plain else None


def end(assembler: CudaAssembler, a: Any) -> str | None:
    """The name of a result: of an array made for it, or donated to it, or of a
    number that was computed.
    """
    if isinstance(a, Literal):
        return None
    assert isinstance(a, Var)
    found = assembler.buffer(a)
    if a.type.weak:
        return None if a in assembler.program.graph.inputs else found.name
    return found.name if found.storage == "output" and found.name in assembler.begun else None


def computing(assembler: CudaAssembler, weak: list[str], numbers: list[str]) -> Any:
    """What makes the numbers from the Python numbers among the arguments."""
    lines = "\n".join(f"    {line.code}" for line in assembler.numbers.lines) or "    pass"
    names = dict(assembler.names)
    execute(TEXT.format(", ".join(weak), lines, ", ".join(numbers)), names)
    return partial(quietly, names["compute"])
