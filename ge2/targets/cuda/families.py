"""Kernel families of the CUDA target in the order of preference.

Adding one is a line here and a file.
"""

from __future__ import annotations

from ge2.choice.choose import Catalog
from ge2.targets.cuda.kernels.attention import (
    Attention,
    AttentionBackward,
    AttentionBackwardOfWarps,
    AttentionOfFew,
    AttentionOfWarps,
)
from ge2.targets.cuda.kernels.cudnn import (
    CudnnAttention,
    CudnnBackward,
    CudnnBackwardInAnyOrder,
)
from ge2.targets.cuda.kernels.gemm.library import BlasEpilogue
from ge2.targets.cuda.kernels.gemm.mma import GemmMma, GemmMmaPair, GemmMmaRegion
from ge2.targets.cuda.kernels.gemm.wgmma import (
    GemmWgmma,
    GemmWgmmaOfCopies,
    GemmWgmmaPair,
    GemmWgmmaRegion,
    GemmWgmmaRegionOfCopies,
)
from ge2.targets.cuda.kernels.generated import CudaConstant, CudaCopy, CudaRegion
from ge2.targets.cuda.kernels.indices.gather import CudaGather, CudaIndex
from ge2.targets.cuda.kernels.indices.scatter import CudaScatter, CudaScatterReduce
from ge2.targets.cuda.kernels.linalg.solve import CudaSolve
from ge2.targets.cuda.kernels.lines.scan import CudaScan
from ge2.targets.cuda.kernels.lines.sort import CudaSort
from ge2.targets.cuda.kernels.lines.top_k import CudaTop
from ge2.targets.cuda.kernels.moves import CudaConcatenate, CudaPad, CudaUpdateSlice
from ge2.targets.cuda.kernels.persistent import CudaResident
from ge2.targets.cuda.kernels.product_region import CudaProductRegion
from ge2.targets.cuda.kernels.products import CudaBlas, CudaProduct, CudaSmallProduct
from ge2.targets.cuda.kernels.random import CudaBits, CudaFold
from ge2.targets.cuda.kernels.user_kernels import CudaOwn

FAMILIES: Catalog = (
    CudaRegion(), CudaCopy(), CudaConstant(), CudaGather(), CudaIndex(), CudaScatter(),
    CudaScatterReduce(), CudaConcatenate(), CudaPad(), CudaUpdateSlice(), CudaBits(), CudaFold(),
    CudaScan(), CudaSort(), CudaTop(), CudaSolve(), CudaOwn(), CudaResident(), CudaProductRegion(),
    GemmWgmmaRegion(), GemmWgmmaRegionOfCopies(), BlasEpilogue(), GemmMmaRegion(), GemmWgmmaPair(),
    GemmMmaPair(), AttentionOfFew(), Attention(), CudnnAttention(), AttentionOfWarps(), CudnnBackwardInAnyOrder(),
    AttentionBackward(), CudnnBackward(), AttentionBackwardOfWarps(),
    CudaSmallProduct(), GemmWgmma(), CudaBlas(), GemmWgmmaOfCopies(),
    GemmMma(), CudaProduct(),
)  # fmt: skip
