"""Kernel families of the CUDA target in the order of preference.

Adding one is a line here and a file.
"""

from __future__ import annotations

from ge2.choice.choose import Catalog
from ge2.targets.cuda.kernels import (
    CudaConstant,
    CudaCopy,
    CudaOwn,
    CudaRegion,
    CudaResident,
)
from ge2.targets.cuda.kernels.attention import (
    Attention,
    AttentionBackward,
    AttentionBackwardOfWarps,
    AttentionOfFew,
    AttentionOfWarps,
)
from ge2.targets.cuda.kernels.gather import CudaGather, CudaIndex, CudaRowSums, CudaScatter
from ge2.targets.cuda.kernels.gemm import CudaSolve
from ge2.targets.cuda.kernels.libraries import (
    BlasEpilogue,
    CudnnAttention,
    CudnnBackward,
    CudnnBackwardInAnyOrder,
    Cufft,
)
from ge2.targets.cuda.kernels.lines import CudaTop
from ge2.targets.cuda.kernels.made import GemmMmaMade, GemmWgmmaMade, MadeBefore, MadeFirst
from ge2.targets.cuda.kernels.moves import (
    CudaBits,
    CudaConcatenate,
    CudaFold,
    CudaPad,
    CudaToFront,
    CudaUpdateSlice,
)
from ge2.targets.cuda.kernels.products import (
    CudaBlas,
    CudaProduct,
    CudaSmallContraction,
    CudaSmallProduct,
)
from ge2.targets.cuda.kernels.scans import CudaPrefixes, CudaScan
from ge2.targets.cuda.kernels.scatter import (
    CudaScatterReduce,
    CudaSumsAt,
    CudaSumsInOrder,
    CudaUpdateOrder,
)
from ge2.targets.cuda.kernels.sort import CudaSort
from ge2.targets.cuda.kernels.tensor_cores import (
    Apart,
    GemmMma,
    GemmMmaPair,
    GemmMmaRegion,
    GemmWgmma,
    GemmWgmmaOfCopies,
    GemmWgmmaPair,
    GemmWgmmaRegion,
    GemmWgmmaRegionOfCopies,
    LoopApart,
    OneByOne,
)

FAMILIES: Catalog = (
    CudaRegion(), CudaCopy(), CudaConstant(), CudaGather(), CudaIndex(), CudaScatter(),
    CudaScatterReduce(), CudaRowSums(), CudaSumsAt(), CudaUpdateOrder(), CudaSumsInOrder(),
    CudaConcatenate(), CudaPad(),
    CudaUpdateSlice(), CudaBits(), CudaFold(), CudaToFront(),
    CudaScan(), CudaPrefixes(), CudaSort(), CudaTop(), CudaSolve(), Cufft(), CudaOwn(), CudaResident(),
    CudaSmallContraction(),
    GemmWgmmaRegion(), GemmWgmmaRegionOfCopies(), BlasEpilogue(), GemmMmaRegion(), GemmWgmmaPair(),
    GemmMmaPair(), GemmWgmmaMade(), GemmMmaMade(), AttentionOfFew(), Attention(), CudnnAttention(),
    AttentionOfWarps(), CudnnBackwardInAnyOrder(), AttentionBackward(), CudnnBackward(), AttentionBackwardOfWarps(),
    CudaSmallProduct(), GemmWgmma(), CudaBlas(), GemmWgmmaOfCopies(),
    GemmMma(), CudaProduct(),
)  # fmt: skip

# what a pass chooses among for products with what is around them, and leaves steps apart of
MADE: Catalog = (GemmWgmmaMade(), GemmMmaMade())
PAIRS: Catalog = (GemmWgmmaPair(), GemmMmaPair())
CONTRACTIONS: Catalog = (
    CudaSmallContraction(), GemmWgmmaRegion(), GemmWgmmaRegionOfCopies(), BlasEpilogue(), GemmMmaRegion(),
    *PAIRS, *MADE, Apart(), LoopApart(), OneByOne(), MadeBefore(), MadeFirst(),
)  # fmt: skip
# of the last step of a region, which is there in any case
OF_LAST_STEPS: Catalog = (*MADE, MadeBefore(), MadeFirst(in_part=True))
