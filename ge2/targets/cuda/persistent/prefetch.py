"""Elements of stacks that a thread reads a round before they are needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from ge2.base.dtypes import COMPLEX
from ge2.base.record import record
from ge2.codegen.text import Text, guard
from ge2.targets.cuda.emit.types import STORED
from ge2.targets.cuda.persistent.block_matrices import place
from ge2.targets.cuda.persistent.index_text import Index
from ge2.targets.cuda.persistent.nodes import E, Rounds
from ge2.targets.cuda.persistent.values import Array

if TYPE_CHECKING:
    from ge2.targets.cuda.persistent.kernel import Writer


@final
@record
class Early:
    """An element that a thread has before the round in which it is
    needed: read first, and then again.
    """

    name: str
    first: Text
    next: Text


def element(writer: Writer, x: Array, at: Index) -> str:
    """An element; that of a stack, at the place of a thread, was read while
    the last round went on.
    """
    own, node = spot(writer), writer.round
    writer.touch(x)
    there = node is not None and x.stack is not None and x.stack[1] == node.label
    changes = x.name in writer.wrote or (writer.grid is not None and not x.given)
    if node is None or not there or not own or at.flat != E or changes:
        return x.element(at, writer.apart)
    name = f"{id(writer.loop)} {x.element(at)}"  # another loop reads it when this one has the next
    if name not in writer.early:
        writer.early[name] = earlier(writer, x, node, at.shape, own)
    return writer.early[name].name


def spot(writer: Writer) -> str:
    """The place of a thread's only element in the current loop; "" if it has more, or shares it."""
    key = None if writer.loop is None else writer.loop.key
    if key is None:
        return ""
    if key.wide:
        tile = (
            writer.grid.tiles.get(key.size)
            if writer.grid and key.spread and not key.stage
            else None
        )
        return f"{tile.name}_own" if tile and tile.size <= writer.threads else ""
    if key.product is not None:
        k = writer.loop.statements[0].kept  # type: ignore[union-attr]
        return place(k, "") if k.rows == 1 else ""
    return "thread" if key.team == 1 and key.size <= writer.threads else ""


def earlier(writer: Writer, x: Array, node: Rounds, shape: Any, spot: str) -> Early:
    assert x.stack is not None and writer.loop is not None
    stack, t = x.stack
    name = writer.plan.label(f"{x.name}_ahead")
    first, after = (f"{node.count} - 1", f"{t} - 1") if node.reverse else ("0", f"{t} + 1")
    size = writer.loop.key.size
    inside = f"{spot} < {size} ? " if spot == "thread" and size < writer.threads else ""
    begin = f"{inside}{stack.part(first).element(Index(shape, spot))}{' : 0' if inside else ''}"
    more = f"{t} > 0" if node.reverse else f"{t} + 1 < {node.count}"
    later = stack.part(after).element(Index(shape, E))
    kind = STORED[x.type.dtype]
    if inside and x.type.dtype in COMPLEX:
        begin = begin.replace(" : 0", f" : {kind}{{0, 0}}")
    return Early(
        name,
        Text(f"{kind} {name} = {begin};", "read a round ahead"),
        guard(more, f"{name} = {later};"),
    )


def after(writer: Writer, known: set[str]) -> list[Text]:
    """The lines that read elements of the next round, of those that the current loop reads."""
    return [each.next for name, each in writer.early.items() if name not in known]
