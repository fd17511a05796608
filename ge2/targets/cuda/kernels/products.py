"""Matrix products on a device, by BLAS or small kernels of ours, with the work on their result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import final

from ge2.base.arrays import (
    BFLOAT16,
    BYTES,
    COMPLEX64,
    COMPLEX128,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    FP8,
    HOPPER,
    INT8,
    INT32,
)
from ge2.base.record import record
from ge2.choice import Problem, Variant, operations
from ge2.codegen.layout import unspoken
from ge2.codegen.text import Operand
from ge2.ir import ArrayType, Atom, Dims, Op
from ge2.ops.dot import DotGeneral
from ge2.ops.graphs.contraction import ProductSteps, steps_of
from ge2.ops.graphs.region import CONTRACTION, Region
from ge2.targets.cuda.device import Caps
from ge2.targets.cuda.emit import CudaKernel
from ge2.targets.cuda.emit.special_reductions import Kernels, LibraryLaunch
from ge2.targets.cuda.kernels import Cuda, copying
from ge2.targets.cuda.launch.library_call import Wanted
from ge2.targets.cuda.limits import Chip, Limits
from ge2.targets.cuda.products import (
    SIDE,
    SIZES,
    Contraction,
    arranged,
    by_blas,
    contraction,
    in_terms,
    of_terms,
    sums_in,
    tight,
    uneven,
)
from ge2.targets.cuda.products.made import operations as making
from ge2.targets.cuda.products.made import prologues_of, unmade_alone
from ge2.targets.cuda.products.rules import (
    is_of_many,
    least_seconds,
    library_of_many,
    many_seconds,
    predicted,
    why_not_many,
    why_not_small,
)
from ge2.targets.cuda.products.small import (
    NAMES,
    Many,
    ManyRegion,
    Small,
    SmallRegion,
    Tiles,
)
from ge2.targets.cuda.products.tensor_cores import is_astray, least_waste, unmatched
from ge2.targets.cuda.products.tensor_epilogue import FOLDS

# -------- Matrix products on a device: by BLAS, and in CUDA for what BLAS does not multiply.

HALVES = (FLOAT16, BFLOAT16)
ADA = 89  # the first generation that multiplies fp8
OF_TERMS = (*FP8, INT8)  # whose terms are neighbours, for the library
BY_BLAS = {
    *((t, d) for t in FP8 for d in (FLOAT32, *HALVES)),
    *((d, d) for d in (FLOAT32, FLOAT64, COMPLEX64, COMPLEX128, *HALVES)),
    *((d, FLOAT32) for d in HALVES),
    (INT8, INT32),
}


def refusal(problem: Problem) -> str:
    """The reason why a matrix product is not one of arrays."""
    return "an operand is a Python number" if any(t.weak for t in problem.inputs) else ""


def mixed(a: ArrayType, b: ArrayType) -> str:
    """The reason why a kernel with one type of operands does not serve; "" if it may."""
    return "" if a.dtype == b.dtype else f"it does not multiply {a.dtype.name} and {b.dtype.name}"


def busy(problem: Problem, caps: Caps, side: int = 64) -> float:
    """The part of a chip that has a tile of the result, of `side` x `side` elements."""
    tiles = max(problem.outs[0].size // (side * side), 1)
    return min(1.0, tiles / caps.limits.multiprocessors)


def rounds(problem: Problem) -> bool:
    """True if a product is one of tensor cores: of half types, or of float32 that is rounded."""
    return problem.inputs[0].dtype in (*HALVES, *FP8) or precision(problem.op) is not None


def no_fp8(op: Op, a: ArrayType, b: ArrayType, limits: Limits) -> str:
    """The reason why the library has no product of arrays of fp8; "" if it may have."""
    assert isinstance(op, DotGeneral)
    if {a.dtype, b.dtype} == {FP8[1]}:
        return "the library multiplies no two arrays of float8_e5m2"
    if limits.generation < ADA:
        return "GPUs older than compute capability 8.9 have no tensor cores of fp8"
    if op.beside != ((), ()):
        return "the library is asked for no batches of fp8"
    return uneven(op, a, b)


def multiple(types: Sequence[ArrayType], operands: Sequence[Operand]) -> int:
    """Bytes of which rows of all arrays are a multiple, 16 at most."""
    found = 16
    for t, x in zip(types, operands, strict=True):
        steps = [s for n, s in zip(t.shape, x.strides, strict=True) if n > 1 and s != 1]
        found = math.gcd(found, *(s * t.dtype.itemsize for s in (*steps, x.offset, x.loose)))
    return found


def no_groups_fp8(op: Op, a: ArrayType, b: ArrayType, limits: Limits) -> str:
    """The reason why warp groups of Hopper have no product of arrays of fp8, or of copies of them; ""
    if they have.
    """
    assert isinstance(op, DotGeneral)
    if limits.generation != HOPPER:
        return "only GPUs of compute capability 9.0 have warp groups that multiply fp8"
    free, few = op.free(a, b), limits.tuning.wgmma.thin
    lines = [math.prod(t.shape[i] for i in axes) for t, axes in zip((a, b), free, strict=True)]
    terms = math.prod(a.shape[i] for i in op.contract[0])
    if min(lines) < few or terms < SIZES:
        return f"it has fewer than {few} rows or columns, or than {SIZES} terms"
    return "" if a.size and b.size else "there is nothing to multiply"


def unasked(op: Op) -> str:
    """The reason why sums of fp8 are to be those of float32; "" if tensor cores may keep fewer bits."""
    assert isinstance(op, DotGeneral)
    return "" if op.precision == "fp8" else "tensor cores of fp8 keep too few bits of its sums"


def is_narrow(problem: Problem) -> bool:
    """True if a product of tensor cores has rows that a library reads slowly."""
    if not isinstance(problem.op, DotGeneral) or not problem.settled or not rounds(problem):
        return False
    return multiple((*problem.inputs, *problem.outs), problem.operands) < 16


def is_longest(problem: Problem, caps: Caps) -> bool:
    """True if sums of tensor cores are so long, and tiles of ours waste so much, that the larger
    ones of a library may be better. Of fp8 others tell.
    """
    if problem.inputs[0].dtype in FP8:
        return False
    if caps.limits.generation != HOPPER or not problem.settled or not rounds(problem):
        return False
    axes, tuning = axes_of(problem), caps.chip.tuning.wgmma
    if unmatched(axes) or axes.sums[0].size < tuning.longest:
        return False
    return least_waste(axes, caps.limits.multiprocessors, tuning) > tuning.library


def has_astray(problem: Problem, caps: Caps) -> bool:
    """True of a product of tensor cores of which rows of a factor begin within a sector of memory,
    which takes our tiles far longer than the library.
    """
    if caps.limits.generation != HOPPER or not problem.settled or not rounds(problem):
        return False
    axes = axes_of(problem)
    return not unmatched(axes) and is_astray(axes, problem.inputs[0].dtype, caps.chip.tuning.wgmma)


def longest_seconds(problem: Problem, caps: Caps) -> float:
    """Returns what a library takes for such a product."""
    tuning, (a, *_) = caps.chip.tuning.wgmma, problem.inputs
    rate = tuning.rate_of(a.dtype) * caps.limits.multiprocessors
    found = caps.speed.launch + tuning.library * operations(problem, 1) / rate
    return max(found, caps.speed.of(problem, rate=math.inf))


def is_ranked(problem: Problem, caps: Caps | None) -> bool:
    """True if predictions decide between a library and what stands beside it in the catalog."""
    if caps is None:
        return False
    if problem.inputs[0].dtype in (*FP8, *BYTES):
        return True
    known = caps.is_measured and not is_narrow(problem)
    return not known or is_longest(problem, caps) or has_astray(problem, caps)


def library_seconds(problem: Problem, caps: Caps, bytes_: int = 16) -> float:
    """Returns what a product by the library takes: half types at the rate of tensor cores, less of
    it where rows are multiples of fewer bytes, and its tiles are larger; of small matrices few
    blocks have a tile, and each waits for its terms, however few.
    """
    speed, tuning, wgmma = caps.speed, caps.limits.tuning.products, caps.chip.tuning.wgmma
    if problem.inputs[0].dtype in (*FP8, *BYTES) and caps.limits.generation == HOPPER:
        rate = wgmma.rate_of(problem.inputs[0].dtype) * caps.limits.multiprocessors
        done = operations(problem, 1) / (rate * busy(problem, caps, tuning.narrow_side))
        stored = problem.outs[0].nbytes / speed.moved
        return max(speed.launch + wgmma.few.library * done + stored, least_seconds(caps))
    side = tuning.narrow_side if rounds(problem) and bytes_ < 16 else 64
    rate = busy(problem, caps, side) * speed.products / speed.single
    if rounds(problem):
        part = dict(tuning.aligned)[max(bytes_, 2)]
        rate *= tuning.tensor * part * (2 if problem.inputs[0].dtype in FP8 else 1)
    return max(speed.of(problem, rate=rate), least_seconds(caps))


@final
class CudaSmallProduct(Cuda):
    """A small product, in the library's place: docs/design/small_products.md has the rule."""

    name = "small product in CUDA"
    ops = (DotGeneral,)

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        if reason := refusal(problem):
            return reason
        if caps is None or not problem.settled:
            return "it is not known how the operands lie"
        (a, b), (y,), rounded = problem.inputs, problem.outs, precision(problem.op) is not None
        if why := mixed(a, b):
            return why
        if not (a.size and b.size):
            return "there is nothing to multiply"
        axes = axes_of(problem)
        why = why_not_small(axes, a.dtype, y.dtype, rounded, caps.limits)
        return why if why and why_not_many(problem, a, y, axes, caps) else ""

    def is_many(self, problem: Problem, caps: Caps) -> bool:
        """True if there are too many products for blocks that have one each."""
        a, y, rounded = problem.inputs[0], problem.outs[0], precision(problem.op) is not None
        return bool(why_not_small(axes_of(problem), a.dtype, y.dtype, rounded, caps.limits))

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        """The clocks of its rule, and a launch; of many products, what is moved."""
        if self.is_many(problem, caps):
            return many_seconds(problem, axes_of(problem), caps)
        clocks = predicted(axes_of(problem), problem.inputs[0].dtype, caps.limits)
        return caps.speed.launch + clocks / caps.limits.clock

    def is_ranked(self, problem: Problem, caps: Caps | None) -> bool:
        return caps is not None and not caps.is_measured

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        (first, second), (result,) = problem.arrays
        dtype, out = problem.inputs[0].dtype, problem.outs[0].dtype
        small = Small(axes_of(problem), (first, second, result), dtype, out, caps.chip)
        many = self.is_many(problem, caps)
        return Kernels((Many(small).kernel() if many else small.kernel(),))


@final
class CudaBlas(Cuda):
    """A product by the device's library, of operands as they lie; where it
    takes none such, of copies.
    """

    name = "product by BLAS"
    ops = (DotGeneral,)
    step_kind = "matmul"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        if reason := refusal(problem):
            return reason
        (a, b), (y,) = problem.inputs, problem.outs
        if (a.dtype, y.dtype) not in BY_BLAS:
            return f"BLAS does not multiply {a.dtype.name} to {y.dtype.name}"
        if not (a.size and b.size):
            return "there is nothing to multiply"
        if a.dtype in BYTES and (why := mixed(a, b) or uneven(problem.op, a, b)):
            return why
        if caps is None or not problem.settled:
            return ""
        if a.dtype in FP8 and (why := unasked(problem.op) or no_fp8(problem.op, a, b, caps.limits)):
            return why
        found = matrices(problem, caps)
        if found is None:
            return "BLAS takes no matrices that lie so"
        return "" if caps.product(found.wanted) else "the library has no such product"

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        """A further algorithm is thought to be slower. Copies of bytes count; those of others are rare."""
        bytes_ = multiple((*problem.inputs, *problem.outs), problem.operands)
        usual = library_seconds(problem, caps, bytes_)
        found = longest_seconds(problem, caps) if is_longest(problem, caps) else usual
        if problem.settled and is_of_many(axes := axes_of(problem), caps.limits):
            found = max(found, library_of_many(problem, problem.outs[0], axes, caps))
        copies = terms_apart(problem, [x.strides for x in problem.arrays[0]])
        return found * (1 + 0.01 * (variant.plan or 0)) + copied_seconds(copies, caps)

    def is_ranked(self, problem: Problem, caps: Caps | None) -> bool:
        return is_ranked(problem, caps)

    def variants(self, problem: Problem, caps: Caps) -> Iterator[Variant]:
        return algorithms(problem, caps, matrices)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        found = matrices(problem, caps, variant.plan or 0)
        product = found and caps.product(found.wanted)
        assert found is not None and product is not None, "it was not refused"
        kernels = list[CudaKernel]()
        for t, source, target in found.copies:
            kernels += copying(t, t, source, target, caps.chip).kernels
        temps = tuple(t.nbytes for t, _, _ in found.copies)
        dtypes = *found.wanted.dtypes, problem.outs[0].dtype
        operands = tuple(zip(found.operands, dtypes, strict=True))
        return Kernels(tuple(kernels), temps, LibraryLaunch(product, operands, frozenset([2])))


def copied_seconds(copies: Sequence[ArrayType], caps: Caps) -> float:
    """Returns what copies take: elements, of rows that lie anyhow, come one by one."""
    rate = caps.speed.moved * caps.limits.tuning.products.one_by_one
    return len(copies) * caps.speed.launch + 2 * sum(t.nbytes for t in copies) / rate


@final
@record
class Matrices:
    """A product as the library is asked for it: copies that are made
    before, and its three operands.
    """

    wanted: Wanted
    copies: tuple[tuple[ArrayType, Operand, Operand], ...]
    operands: tuple[Operand, Operand, Operand]


def algorithms(
    problem: Problem, caps: Caps, asked: Callable[[Problem, Caps, int], Matrices | None]
) -> Iterator[Variant]:
    """Returns what the library thinks best, then its further algorithms for a product as `asked`."""
    yield Variant()
    for n in range(1, caps.chip.tuning.products.algorithms):
        found = asked(problem, caps, n)
        if found is None or caps.product(found.wanted) is None:
            return
        yield Variant(f"algorithm {n + 1}", n)


def matrices(problem: Problem, caps: Caps, algorithm: int = 0) -> Matrices | None:
    """The product of matrices that a problem is, in few calls of the library if it can be; None if
    no copies make it one.
    """
    call = caps.chip.tuning.products.call
    (first, second), (result,) = problem.arrays
    (a, b), (y,), op = problem.inputs, problem.outs, problem.op
    assert isinstance(op, DotGeneral)
    lie = first.strides, second.strides, result.strides
    before = of_terms(op, a, b, lie) if a.dtype in OF_TERMS else (None, None)
    given = *(c or s for c, s in zip(before, lie, strict=False)), result.strides
    found = by_blas(op, a, b, given, call)  # type: ignore[arg-type]
    if found is None:
        return None
    copied, g = found
    strides = tuple(c or s for c, s in zip(copied, before, strict=True))
    if a.dtype in OF_TERMS and not in_terms(g):
        return None
    operands, copies = [first, second], list[tuple[ArrayType, Operand, Operand]]()
    for i, (t, lies) in enumerate(zip((a, b), strides, strict=True)):
        if lies is not None:
            target = Operand("temp", len(copies), lies)
            copies.append((t, operands[i], target))
            operands[i] = target
    order = (1, 0) if g.second else (0, 1)
    factors = operands[order[0]], operands[order[1]], result
    sizes = a.dtype.itemsize, b.dtype.itemsize, y.dtype.itemsize
    aligned = tuple(
        math.gcd(16, alignment(x, size), *(call[n] * size for call in g.calls))
        for n, (x, size) in enumerate(zip(factors, sizes, strict=True))
    )
    rounding = precision(op)
    first_type, other_type = (problem.inputs[n].dtype for n in order)
    wanted = Wanted(
        g, first_type, y.dtype, rounding, aligned, algorithm, caps.workspace,  # type: ignore[arg-type]
        other=None if other_type == first_type else other_type,
    )  # fmt: skip
    return Matrices(wanted, tuple(copies), factors)


def terms_apart(product: Problem, strides: Sequence[Dims]) -> list[ArrayType]:
    """The factors of bytes that a library takes copies of, given their strides."""
    (a, b), (y,), op = product.inputs, product.outs, product.op
    assert isinstance(op, DotGeneral)
    if a.dtype not in BYTES:
        return []
    first, second = strides
    copies = of_terms(op, a, b, (first, second, tight(y.shape, range(y.ndim))))
    return [t for t, copy in zip((a, b), copies, strict=True) if copy is not None]


def alignment(x: Operand, size: int) -> int:
    """Bytes of which the address of an array is known to be a multiple; 0: of all that matters."""
    return 0 if x.role == "temp" else math.gcd(x.offset * size, x.loose * size)


def precision(op: Op) -> str | None:
    """Returns how float32 may be rounded before it is multiplied; None: not at all."""
    assert isinstance(op, DotGeneral)
    return op.precision if op.precision in ("tf32", "bf16") else None


def axes_of(problem: Problem) -> Contraction:
    """The axes of a product, those merged that lie together."""
    (first, second), (result,) = problem.arrays
    a, b = problem.inputs
    assert isinstance(problem.op, DotGeneral)
    return contraction(problem.op, a, b, (first.strides, second.strides, result.strides))


@final
class CudaProduct(Cuda):
    """A product in tiles: integers wrap, half types are summed in float32."""

    name = "product in CUDA"
    ops = (DotGeneral,)

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        if why := refusal(problem):
            return why
        (a, _), (y,) = problem.inputs, problem.outs
        kinds = {a.dtype.kind, y.dtype.kind, sums_in(a.dtype, y.dtype).kind}
        mixed = len(kinds & {"b", "c"}) and len(kinds) > 1
        return f"{a.dtype.name} is not summed to {y.dtype.name} in CUDA" if mixed else ""

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        """Tiles in shared memory reach a quarter of what the lanes do."""
        return max(caps.speed.of(problem, rate=0.25 * busy(problem, caps)), least_seconds(caps))

    def is_ranked(self, problem: Problem, caps: Caps | None) -> bool:
        return is_ranked(problem, caps)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        (ins, outs), chip = problem.arrays, caps.chip
        (a, b), (y,), op = problem.inputs, problem.outs, problem.op
        assert isinstance(op, DotGeneral)
        if not y.size:
            return Kernels(())
        strides = ins[0].strides, ins[1].strides, outs[0].strides
        both = bool(mixed(a, b))
        # each number of both types of fp8, or of bytes
        dtype = (BFLOAT16 if a.dtype in FP8 else INT32) if both else a.dtype
        # copies of both merge what is summed over
        ways = (w for w in arranged(op, a, b, strides) if not both or None not in w[0])
        copies, axes = next(each for each in ways if len(each[1].sums) <= 1)
        operands, kernels, temps = list(ins), list[CudaKernel](), list[int]()
        for i, (t, copy) in enumerate(zip((a, b), copies, strict=True)):
            if copy is not None:
                operands[i], to = Operand("temp", len(temps), copy), replace(t, dtype=dtype)
                temps.append(to.nbytes)
                kernels += copying(t, to, ins[i], operands[i], chip).kernels
        placed = operands[0], operands[1], outs[0]
        kernels.append(Tiles(axes, placed, dtype, y.dtype, chip).kernel())
        return Kernels(tuple(kernels), tuple(temps))


# -------- A small product and the elementwise work on its result, as one kernel.


@final
class CudaSmallContraction(Cuda):
    """A product that a region goes on with."""

    name = "small product and region in CUDA"
    ops, kinds = (Region,), (CONTRACTION,)

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = steps_of(problem.op)
        if len(op.products) > 1:
            return "it is two products and a region"
        if why := unspoken(op.region.graph) or too_many(op, caps):
            return why
        if any(isinstance(e.op, FOLDS) for e in op.region.graph.eqns):
            return "what comes after it is folded"
        dot, types = op.dot, [x.type for x in op.product.inputs]
        if why := mixed(*types):
            return why
        shape, many = op.product.outs[0].type.shape, dot.beside != ((), ())
        if [*map(len, dot.free(*types))] != [1, 1] or min(shape[-2:]) == 1:
            return "the product is no matrix"  # nor are two axes of one factor
        if many and op.prologues:
            return "an operand of many products is made"
        if why := unmade_of(op):
            return why
        if caps is None or not problem.settled:
            return ""
        lies = read_of(op, problem)
        (a, b), y = op.product.inputs, op.product.outs[0].type
        if any(1 not in lies[x].strides for e in op.prologues for x in e.outs):
            return "an operand that is made has no neighbours"
        strides = lies[a].strides, lies[b].strides, tight(y.shape, range(y.ndim))
        axes = contraction(dot, a.type, b.type, strides)
        if many and not why_not_many(problem, a.type, y, axes, caps):
            return ""
        return why_not_small(axes, a.type.dtype, y.dtype, precision(dot) is not None, caps.limits)

    def is_ranked(self, problem: Problem, caps: Caps | None) -> bool:
        """True if operands are made as they are read, which may cost more than to make them before."""
        return bool(steps_of(problem.op).prologues)

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float | None:
        op = steps_of(problem.op)
        if not op.prologues:
            return super().seconds(problem, variant, caps)
        return made_seconds(problem, op, caps)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        op, chip = steps_of(problem.op), caps.chip
        (y,), operands = op.places, op.around(problem.placed(op.graph))
        before, factors, temps = self.factors(op, read_of(op, problem), chip)
        a, b = (x.type for x in op.product.inputs)
        result = Operand("in", 0, tight(y.type.shape, range(y.type.ndim)))
        lie = factors[0].strides, factors[1].strides, result.strides
        axes, placed = contraction(op.dot, a, b, lie), (*factors, result)
        small = Small(axes, placed, a.dtype, y.type.dtype, chip, NAMES)
        many = op.dot.beside != ((), ())
        if many and not why_not_many(problem, a, y.type, axes, caps):
            kernel = ManyRegion(small, op.region, y, operands, chip).kernel()
        else:
            made = prologues_of(op, chip)
            kernel = SmallRegion(small, op.region, y, operands, chip, made).kernel()
        return Kernels((*before, kernel), temps)

    def factors(
        self, op: ProductSteps, given: Mapping[Atom, Operand], chip: Chip
    ) -> tuple[list[CudaKernel], tuple[Operand, Operand], tuple[int, ...]]:
        """Returns what is multiplied, in C order where it lies as no small product
        takes it; and the copies.
        """
        kernels, temps, found = list[CudaKernel](), list[int](), list[Operand]()
        for x in op.product.inputs:
            lies = given[x]
            if 1 not in lies.strides:
                copy = Operand("temp", len(temps), tight(x.type.shape, range(len(x.type.shape))))
                temps.append(x.type.nbytes)
                kernels += copying(x.type, x.type, lies, copy, chip).kernels
                lies = copy
            found.append(lies)
        return kernels, (found[0], found[1]), tuple(temps)


def too_many(op: ProductSteps, caps: Caps | None) -> str:
    """The reason why threads have no room for an element of each array; "" if they have."""
    if caps is None or len(op.region.graph.inputs) <= caps.limits.tuning.products.arrays:
        return ""
    return "what comes after it reads too many arrays"


def unmade_of(op: ProductSteps) -> str:
    """The reason why a small product does not make such operands; "" if it does, or has none to make."""
    others = {v for e in (*op.products, op.rest) for v in e.inputs}
    for e in op.prologues:
        if why := unmade_alone(e):
            return why
        if not others.isdisjoint(e.inputs):
            return "an operand is made of an array that is read again"
    return "it is a bare product" if op.prologues and op.is_bare else ""


def read_of(op: ProductSteps, problem: Problem) -> dict[Atom, Operand]:
    """The places of all arrays; operands that are made lie as what they are made of."""
    found = dict[Atom, Operand](problem.placed(op.graph).items())
    found.update((e.outs[0], found[e.inputs[0]]) for e in op.prologues)
    return found


def small_seconds(problem: Problem, caps: Caps) -> float:
    """The time of a small product that a region goes on with, and whose operands are there."""
    return caps.speed.launch + clocks_of(problem, steps_of(problem.op), caps) / caps.limits.clock


def clocks_of(problem: Problem, op: ProductSteps, caps: Caps) -> int:
    """The clocks of the product alone."""
    given, y = read_of(op, problem), op.product.outs[0].type
    a, b = op.product.inputs
    strides = given[a].strides, given[b].strides, tight(y.shape, (0, 1))
    axes = contraction(op.dot, a.type, b.type, strides)
    return predicted(axes, a.type.dtype, caps.limits)


def made_seconds(problem: Problem, op: ProductSteps, caps: Caps) -> float:
    """The clocks of the product; those of what is made, again for each tile beside or below another;
    and of stages that no copies bring ahead of their use.
    """
    tuning, a = caps.limits.tuning.products, op.product.inputs[0].type
    (axis,) = op.dot.contract[0]
    stages = -(-a.shape[axis] // (4 * tuning.slices))
    blocks = -(-op.product.outs[0].type.size // SIDE**2)
    each = -(-blocks // caps.limits.multiprocessors)
    done = sum(making(e, caps.speed.functions) for e in op.prologues)
    work = stages * each * done * tuning.made
    waits = max(stages - tuning.ahead, 0) * tuning.waits
    return caps.speed.launch + (clocks_of(problem, op, caps) + work + waits) / caps.limits.clock
