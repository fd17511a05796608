"""Generated C: every family writes the kernels of a step, given where its arrays are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import final

from ge2.base.record import record
from ge2.base.toolchain.compiler import include_folders
from ge2.base.toolchain.detect import FLAGS
from ge2.choice.problem import ONLY, Family, Problem, Variant
from ge2.choice.speed import operations
from ge2.codegen.content import content_of, headers_content
from ge2.codegen.layout import unspoken
from ge2.codegen.moves import copied
from ge2.codegen.text import ALONE, CKernel, Operand
from ge2.ir import ArrayType
from ge2.ops.graphs.region import Region
from ge2.targets.c.caps import Caps
from ge2.targets.c.emit.file import same_code
from ge2.targets.c.emit.region import c_kernel
from ge2.targets.c.emit.types import headers
from ge2.targets.c.kernels.transposed import moving

Operands = Sequence[Operand]
PRODUCTS = "product", "vector_product", "self_product"  # the headers of matrix products


@final
@record
class Pieces:
    """Kernels that run one after another, and the bytes of arrays that they have for themselves."""

    kernels: tuple[CKernel, ...]
    temps: tuple[int, ...] = ()
    products: frozenset[tuple[str, str]] = frozenset()

    @property
    def scratch(self) -> int:
        """The bytes that they need beside arguments and results."""
        given = (a for k in self.kernels for a in k.arguments if a.kind in ("partial", "scratch"))
        return sum((*self.temps, *(int(a.value) for a in given)))

    @property
    def content(self) -> tuple[str, ...]:
        """Returns what their texts consist of, but for numbers."""
        own = [part for k in self.kernels for part in content_of(same_code(k), k.template)]
        names = {"core", *headers("\n".join(own)), *(PRODUCTS if self.products else ())}
        names |= {"complex"} if any(k.helpers for k in self.kernels) else set()
        needed = headers_content(tuple(f"ge2/{n}.h" for n in sorted(names)), include_folders())
        return (needed, *FLAGS, *map(str, sorted(self.products)), *own)


class Generated(Family[Caps, Pieces]):
    """Kernels in C. By default threads share what is worth it by the numbers of tuning; variants do
    without, or share sooner.
    """

    target = "c"

    def variants(self, problem: Problem, caps: Caps) -> Iterable[Variant]:
        return shared(ONLY, problem, caps)

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        """Bytes or operations at the speed of one thread, or of all where work is shared."""
        return shared_seconds(problem, variant, caps)

    def is_ranked(self, problem: Problem, caps: Caps | None) -> bool:
        return False


def shared_seconds(problem: Problem, variant: Variant, caps: Caps, rate: float = 1.0) -> float:
    """The time of a kernel that computes at a part of the `rate`."""
    given = variant.caps or caps
    alone = replace(caps, threads=1).speed
    grain = given.tuning.regions.grain
    if given.threads <= 1 or operations(problem, alone.functions) < grain:
        return alone.of(problem, rate=rate)
    return caps.speed.of(problem, rate=rate)


def shared(usual: Iterable[Variant], problem: Problem, caps: Caps) -> Iterator[Variant]:
    """Variants, and beside them those that share work among threads otherwise."""
    yield from usual
    work = max((t.size for t in (*problem.inputs, *problem.outs)), default=0)
    if caps.threads <= 1 or work < caps.tuning.variants.least:
        return
    (first, *_) = usual
    for name, other in (
        ("one thread", replace(caps, threads=ALONE)),
        ("threads sooner", sooner(caps)),
    ):
        title = ", ".join(filter(None, (first.name, name)))
        yield replace(first, name=title, caps=other)


def sooner(caps: Caps) -> Caps:
    """Limits by which threads share less work than usual."""
    tuning, by = caps.tuning, caps.tuning.variants.sooner
    regions = replace(
        tuning.regions, grain=tuning.regions.grain // by, task=tuning.regions.task // by
    )
    moves = replace(tuning.moves, grain=tuning.moves.grain // by)
    return replace(caps, tuning=replace(tuning, regions=regions, moves=moves))


@final
class CRegion(Generated):
    name = "region in C"

    def variants(self, problem: Problem, caps: Caps) -> Iterator[Variant]:
        """Tiles of other sizes where arrays lie across each other, panels where rows are reduced."""
        yield from shared(ONLY, problem, caps)
        op = problem.op
        assert isinstance(op, Region)
        across = any(x.strides and x.strides[-1] not in (0, 1) for x in problem.operands)
        if math.prod(op.space) < caps.tuning.variants.least or not (across or op.kind == "reduce"):
            return
        nests, by = caps.tuning.nests, caps.tuning.variants.tiles
        for n in by:
            nest = replace(nests, tile=n, panel=nests.panel * n // nests.tile)
            other = replace(caps, tuning=replace(caps.tuning, nests=nest))
            yield Variant(f"tiles of {n}", caps=other)

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        if not isinstance(op, Region):
            return f"{op.name} is not a region"
        return unspoken(op.graph)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        op = problem.op
        assert isinstance(op, Region)
        return Pieces((c_kernel(op, problem.placed(op.graph), caps),))


def copying(x: ArrayType, to: ArrayType, source: Operand, target: Operand, caps: Caps) -> CKernel:
    """A copy from one array, or part of one, to another of the same shape."""
    return moving(copied(x, to, source, target), caps)


def unless_same(kernel: CKernel) -> CKernel:
    """A copy that is not made where a donated input lends its memory to the result."""
    return replace(kernel, unless_same=True)
