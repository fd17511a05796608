"""Every kernel family in the order of preference. Adding one is a line here and a file."""

from __future__ import annotations

from functools import lru_cache
from typing import final

from ge2.base.errors import NoRuleError
from ge2.base.record import record
from ge2.kernels.blocked import BlockedPointwise, BlockedReduce, BlockedRowwise
from ge2.kernels.cuda import CudaConstant, CudaCopy, CudaRegion
from ge2.kernels.cuda_draws import CudaBits, CudaFold
from ge2.kernels.cuda_indexing import CudaGather, CudaIndex
from ge2.kernels.cuda_moves import CudaConcatenate, CudaPad, CudaUpdateSlice
from ge2.kernels.cuda_own import CudaOwn
from ge2.kernels.cuda_product_region import CudaProductRegion
from ge2.kernels.cuda_resident import CudaResident
from ge2.kernels.cuda_scans import CudaScan
from ge2.kernels.cuda_scatter import CudaScatter, CudaScatterAdd
from ge2.kernels.cuda_top import CudaTop
from ge2.kernels.draws import CBits, CFold
from ge2.kernels.generated import (
    CConcatenate,
    CConstant,
    CCopy,
    CPad,
    CProduct,
    CRegion,
    CTable,
    CUpdateSlice,
)
from ge2.kernels.indexing import CGather, CIndex, CScatter, CScatterAdd
from ge2.kernels.kernel import Family, Launch, Problem
from ge2.kernels.library import Library, Product
from ge2.kernels.own import COwn
from ge2.kernels.products import CudaBlas, CudaProduct
from ge2.kernels.scans import CScan
from ge2.kernels.sorting import CSearch, CSort, CTop

CATALOG: tuple[Family, ...] = (
    CRegion(), CProduct(), CCopy(), CConcatenate(), CPad(), CUpdateSlice(), CConstant(), CTable(),
    CGather(), CScatterAdd(), CScatter(), CIndex(), CScan(), CBits(), CFold(), CSort(), CTop(), CSearch(),
    COwn(), CudaRegion(), CudaCopy(), CudaConstant(), CudaGather(), CudaIndex(),
    CudaScatter(), CudaScatterAdd(), CudaConcatenate(), CudaPad(), CudaUpdateSlice(), CudaBits(), CudaFold(),
    CudaScan(), CudaTop(), CudaOwn(), CudaResident(), CudaProductRegion(), CudaBlas(), CudaProduct(),
    BlockedPointwise(), BlockedRowwise(), BlockedReduce(), Product(), Library(),
)  # fmt: skip


@final
@record
class Choice:
    """The kernel, and why the families before it do not serve."""

    family: Family
    refused: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return "\n".join([*(f"not {name}: {why}" for name, why in self.refused), f"{self.family.name}"])


def select(problem: Problem, catalog: tuple[Family, ...] = CATALOG) -> Choice:
    """The first family of the catalog that serves the problem."""
    refused: list[tuple[str, str]] = []
    for family in catalog:
        if family.target not in ("", problem.target):
            continue
        why = family.refuses(problem)
        if not why:
            return Choice(family, tuple(refused))
        refused.append((family.name, why))
    raise NoRuleError(f"no kernel for {problem.op} on {problem.target}", where=refused)


@lru_cache(maxsize=256)
def launch(problem: Problem) -> Launch:
    """The chosen kernel, written once for equal problems."""
    return select(problem).family.launch(problem)
