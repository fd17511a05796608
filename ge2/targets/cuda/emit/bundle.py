"""Several launches of one kernel as one: each block finds by its number whose block it is."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ge2.codegen.environment import WIDTH
from ge2.codegen.text import Argument
from ge2.targets.cuda.emit.kernel import EXCLUSIVE, Bundle, CudaKernel

OWN: Final = ("array", "result", "size")  # kinds of arguments that each member has for itself
WHOLE: Final = re.compile(r"\b(?:gridDim|blockIdx)\.(\w)\b")
TOGETHER: Final = re.compile(r"\b(?:cooperative_groups|ge2_grid_\w+)\b")
# headers whose functions ask for the number of a block, which only the text of a kernel is told
ASKING: Final = ("grid", "order")
MEMBER: Final = {"blockIdx": "member_block", "gridDim": "member_blocks"}
END: Final = "end"  # of a member's blocks


def axis_of(grid: Sequence[int]) -> int:
    """The axis along which the blocks of several grids can follow each other: the last that has any.

    >>> axis_of((5, 1)), axis_of((1, 5)), axis_of((5, 7)), axis_of((1, 1))
    (0, 1, 1, 0)
    """
    return max((i for i, n in enumerate(grid) if n != 1), default=0)


def can_be_bundled(kernel: CudaKernel, code: str) -> bool:
    """True for a kernel whose blocks are told apart by their numbers alone."""
    fixed = kernel.foreign or kernel.together or kernel.text or kernel.sides or kernel.bundle
    mapped = any(a.mapped for a in kernel.arguments)
    asked = any(f'"ge2/{name}.cuh"' in code for name in ASKING)
    asked = asked or any(WHOLE.search(each) for each in kernel.helpers)
    return not (fixed or mapped or asked or TOGETHER.search(code))


def bundle_of(kernel: CudaKernel, ends: Sequence[int]) -> CudaKernel:
    """The kernel that does the work of so many launches, whose blocks end at `ends`.

    A member's own arguments have its number at the end of their names.
    """
    found = list[Argument]()
    for m, end in enumerate(ends):
        own = [a for a in kernel.given if a.kind in OWN]
        found += [replace(a, declaration=of(m, a.declaration), value=None) for a in own]
        found.append(Argument(f"int {of(m, END)}", "size", end))
    found += [a for a in kernel.given if a.kind not in OWN]
    axis = axis_of(kernel.grid)
    grid = (*kernel.grid[:axis], ends[-1], *kernel.grid[axis + 1 :])
    bundle = Bundle(kernel, len(ends), "xyz"[axis])
    return replace(kernel, arguments=tuple(found), grid=grid, bundle=bundle)


def of(member: int, name: str) -> str:
    """The name of what a member has for itself."""
    return f"{name}_of_{member}"


def selection(bundle: Bundle, code: str) -> tuple[str, ...]:
    """The lines by which a block takes the arguments of its member, and what the code asks of its
    grid.
    """
    own = [a for a in bundle.member.given if a.kind in OWN]
    lines = [f"{a.declaration.replace(EXCLUSIVE, '')};" for a in own]
    block, blocks = MEMBER.values()
    counts = "gridDim" in code
    lines.append(f"int {block} = (int)blockIdx.{bundle.axis};")
    lines += [f"int {blocks};"] if counts else []
    return (*lines, *chosen(bundle, range(bundle.count), counts))


def chosen(bundle: Bundle, members: range, counts: bool, depth: int = 0) -> list[str]:
    """The lines by which a block, one of these members', takes what its member has: it asks whether
    it is of the first half of them, and so on.
    """
    if len(members) == 1:
        return taken(bundle, members[0], counts, depth)
    half = members[len(members) // 2]
    sides = range(members.start, half), range(half, members.stop)
    one, other = (chosen(bundle, side, counts, depth + 1) for side in sides)
    test = f"if ({MEMBER['blockIdx']} < {of(half - 1, END)}) {{"
    return [test, *indented(one), "} else {", *indented(other), "}"]


def taken(bundle: Bundle, m: int, counts: bool, depth: int) -> list[str]:
    """The lines by which a block takes what member `m` has for itself."""
    block, blocks = MEMBER.values()
    found = [f"{a.name} = {of(m, a.name)};" for a in bundle.member.given if a.kind in OWN]
    if counts:
        found.append(f"{blocks} = {of(m, END)}{f' - {of(m - 1, END)}' if m else ''};")
    if m:
        found.append(f"{block} -= {of(m - 1, END)};")
    return textwrap.wrap(" ".join(found), WIDTH - 4 - 4 * depth)


def indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def of_member(body: str, bundle: Bundle) -> str:
    """A kernel's body, in which a block has its number among those of its member."""

    def of_its_own(found: re.Match[str]) -> str:
        return MEMBER[found[0].partition(".")[0]] if found[1] == bundle.axis else found[0]

    return WHOLE.sub(of_its_own, body)
