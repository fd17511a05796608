"""The steps of a program inside ranges: one for each part of it that the user
named, one for each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, final

from ge2.base.record import record
from ge2.base.source import Source
from ge2.codegen.layout import Line
from ge2.ir import Eqn, Graph, GraphOp
from ge2.ops.region import ProductRegion, Region, Resident
from ge2.program.records import PLACES, cut, places

INDENT: Final = 4 * " "
Path = tuple[str, ...]


@final
@record
class Part:
    """The lines of a step, the scopes around them, and its own name; without
    one it stays where it falls.
    """

    scopes: Path
    name: str
    lines: tuple[Line, ...]


def ranged(parts: Sequence[Part], name: Callable[[str], str]) -> list[Line]:
    """The lines of all steps, those of neighbours in one scope inside one range.

    `name` names a range.

    >>> parts = [Part(("a",), "x", (Line("f()"),)), Part(("a",), "y", (Line("g()"),))]
    >>> print("\\n".join(line.code for line in ranged(parts, str)))
    with a:
        with x:
            f()
        with y:
            g()
    """
    found: list[Line] = []
    open_: Path = ()
    for part in parts:
        if not part.lines:
            continue
        if part.name:
            kept = len(common([open_, part.scopes]))
            found += [with_(name(each), d, each) for d, each in enumerate(part.scopes) if d >= kept]
            open_ = part.scopes
            found.append(with_(name(part.name), len(open_), part.name))
        inside = INDENT * (len(open_) + bool(part.name))
        found += [replace(line, code=inside + line.code) for line in part.lines]
    return found


def with_(name: str, depth: int, comment: str) -> Line:
    return Line(f"{INDENT * depth}with {name}:", comment)


def common(paths: Sequence[Path]) -> Path:
    """How all of them begin.

    >>> common([("a", "b"), ("a", "c"), ("a",)]), common([])
    (('a',), ())
    """
    if not paths:
        return ()
    same = [len(set(each)) == 1 for each in zip(*paths, strict=False)]
    return paths[0][: same.index(False) if False in same else len(same)]


def scopes_of(eqn: Eqn, around: Path) -> Path:
    """The scopes that all of a step was traced in, but for those that are
    open around its program.
    """
    found = common([path(source) for source in sources(eqn)])
    return found[len(common([found, around])) :]


def path(source: Source) -> Path:
    return tuple(source.scope.split("/")) if source.scope else ()


def sources(eqn: Eqn) -> list[Source]:
    """The user's lines of a step: of all that is in a region."""
    eqns = eqn.op.graph.eqns if isinstance(eqn.op, Region | Resident) else (eqn,)
    eqns = eqn.op.flat.eqns if isinstance(eqn.op, ProductRegion) else eqns
    return list(dict.fromkeys(e.source for e in eqns if e.source is not None))


def title(name: str, eqn: Eqn) -> str:
    """What a step's range is called."""
    lines = cut(places(sources(eqn)), PLACES, ", ")
    return f"{name}: {lines}" if lines else name


def spoken(graph: Graph) -> tuple[str, ...]:
    """All that a graph's equations say of the user's lines: graphs may be
    equal that differ in it.
    """
    return tuple(lines(graph))


def lines(graph: Graph) -> Iterator[str]:
    for eqn in graph.eqns:
        yield str(eqn.source)
        if isinstance(eqn.op, GraphOp):
            for inner in eqn.op.graphs():
                yield from lines(inner)
