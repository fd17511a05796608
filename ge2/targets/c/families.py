"""Kernel families of the C target in the order of preference.

Adding one is a line here and a file.
"""

from __future__ import annotations

from ge2.choice.choose import Catalog
from ge2.targets.c.blocked import BlockedPointwise, BlockedReduce, BlockedRowwise
from ge2.targets.c.kernels.attention import CAttention, CAttentionBackward
from ge2.targets.c.kernels.contractions import CContraction, CFactors, CInSteps
from ge2.targets.c.kernels.gather_scatter import CGather, CIndex, CScatter, CScatterReduce
from ge2.targets.c.kernels.generated import (
    CBits,
    CConcatenate,
    CConstant,
    CCopy,
    CFold,
    CNumpyLoop,
    COwn,
    CPad,
    CRegion,
    CTable,
    CUpdateSlice,
)
from ge2.targets.c.kernels.lines import CScan, CSearch, CSelect, CSort, CTop
from ge2.targets.c.kernels.products import CProduct

FAMILIES: Catalog = (
    CRegion(), CProduct(), CContraction(), CInSteps(), CCopy(), CConcatenate(), CPad(), CUpdateSlice(),
    CConstant(), CTable(),
    CGather(), CScatterReduce(), CScatter(), CIndex(), CScan(), CBits(), CFold(), CSort(),
    CSelect(), CTop(), CSearch(), COwn(), CAttention(), CAttentionBackward(),
    CNumpyLoop(), CFactors(),
)  # fmt: skip
BLOCKED: Catalog = (BlockedPointwise(), BlockedRowwise(), BlockedReduce())
# what a pass chooses among for a product and the region that goes on with it
CONTRACTIONS: Catalog = (CContraction(), CInSteps())
