"""A small product whose threads go on with what is done to its
elements: each has one in a register.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import final

from ge2.base.dtypes import HALF
from ge2.codegen.text import Operand, Text
from ge2.ir import Var
from ge2.ops.graphs.region import Region
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.columnwise import Lanes
from ge2.targets.cuda.emit.kernel import CudaKernel, Fixed
from ge2.targets.cuda.emit.region import Problem
from ge2.targets.cuda.emit.types import STORED, SUFFIX
from ge2.targets.cuda.products.matrices import SIDE
from ge2.targets.cuda.products.prologue import Prologue
from ge2.targets.cuda.products.small import THREADS, Small

NAMES = ("left", "right", "y")


@final
class SmallRegion:
    """`product`: the value of the region that is the product; `operands` are
    those of the others.
    """

    def __init__(
        self,
        small: Small,
        region: Region,
        product: Var,
        operands: Mapping[Var, Operand],
        chip: Chip,
        made: tuple[Prologue, ...] = (),
    ) -> None:
        self.small, self.made = small, made
        small.made = tuple(each.made for each in made)
        for each in made:
            dtypes = [*small.stored]
            dtypes[each.made.operand] = each.dtype
            small.stored = dtypes[0], dtypes[1]
        _, columns = product.type.shape
        # so that nobody takes rows and columns for one axis
        apart = Operand("in", 0, (2 * columns + 1, 1))
        self.problem = Problem(region, {**operands, product: apart})
        self.lanes = Lanes(self.problem, frozenset(), chip, lane=1, pack=1)
        self.product = next(p for p in self.problem.axes.strides if p.var is product)

    def kernel(self) -> CudaKernel:
        small, problem, lanes = self.small, self.problem, self.lanes
        before, after = self.read_before(), lanes.inside(lanes.root)
        small.declare("ab")
        small.extents()
        view = small.product({"a": "", "b": ""})
        view = replace(
            view, before=tuple(before), rounded=tuple(self.rounded()), after=tuple(after),
            made=small.made,
        )  # fmt: skip
        more = {a.name: a for each in self.made for a in each.arguments}
        arguments = {**small.arguments, **lanes.places.arguments, **more}
        helpers = dict.fromkeys([*lanes.said.helpers, *(h for x in self.made for h in x.helpers)])
        product = (
            f"{self.product.name}[row, column] = sum of left[row, k] * right[k, column] over k, and"
        )
        text = "\n".join([product, problem.text, *(each.text for each in self.made)])
        fixed = Fixed("SIDE", SIDE, "rows and columns of a block")
        return CudaKernel(
            "product region", text, tuple(arguments.values()), (), THREADS,
            small.grid, (fixed,), small.shared, 1 + len(problem.region.graph.eqns), tuple(helpers),
            resident=2, template="cuda/product/region.cu.jinja", view=view,
        )  # fmt: skip

    def read_before(self) -> list[Text]:
        """Returns what the thread needs besides the product, on its way while that is summed."""
        said, found = self.lanes.said, []
        for p in said.read_in(list(self.lanes.root.everything())):
            if p is self.product:
                continue
            stored = STORED[p.var.type.dtype]
            read = f"here ? {said.load(p)} : {stored}()"
            found.append(Text(f"const {stored} {p.name}_at = {read};"))
            said.packs[p] = f"{p.name}_at"
        said.packs[self.product] = "total"
        said.widened.add(self.product)  # it never was stored
        return found

    def rounded(self) -> list[Text]:
        """The product as it would be, had it been stored."""
        dtype = self.product.var.type.dtype
        if dtype not in HALF:
            return []
        short = SUFFIX[dtype]
        return [Text(f"total = ge2_cast_{short}_f32(ge2_cast_f32_{short}(total));")]
