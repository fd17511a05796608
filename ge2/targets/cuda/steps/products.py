"""Products of matrices in a program for a device: by its library, as operands lie, or by a kernel of ours."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, final

import numpy as np

from ge2.base.record import record
from ge2.codegen.text import Operand
from ge2.ir import Atom, Literal
from ge2.ops.dot import DotGeneral
from ge2.program.program import Step
from ge2.program.records import place
from ge2.program.timer import Call
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.kernel import CudaKernel
from ge2.targets.cuda.emit.two_stage_reduce import Kernels
from ge2.targets.cuda.kernels.generated import copying
from ge2.targets.cuda.kernels.products import CudaProduct, CudaSmallProduct
from ge2.targets.cuda.kernels.small_products import refusal
from ge2.targets.cuda.launch.product import Wanted
from ge2.targets.cuda.launch.template import At, Pending
from ge2.targets.cuda.products.gemm import by_blas, contraction
from ge2.targets.cuda.steps.kernels import by_kernels, launches

if TYPE_CHECKING:
    from ge2.targets.cuda.assemble import GpuDriver

PRECISION = {"tf32": "tf32", "bf16": "bf16"}  # any other is IEEE


@final
@record
class Spot:
    """A place, and what its address is known to be a multiple of; 0: of all that matters."""

    at: At
    multiple: int


def matmul(driver: GpuDriver, step: Step) -> None:
    """A product in CUDA if it is small; else by the device's BLAS, or in CUDA if that has none such."""
    eqn, (out,) = step.eqn, step.eqn.outs
    assert isinstance(eqn.op, DotGeneral)
    atoms, (a, b) = (*eqn.inputs, out), (x.type for x in eqn.inputs)
    first, second, third = (driver.operand("in", i, x) for i, x in enumerate(atoms))
    lie = first.strides, second.strides, third.strides
    axes, precision = contraction(eqn.op, a, b, lie), PRECISION.get(eqn.op.precision or "")
    if not refusal(axes, a.dtype, out.type.dtype, precision is not None, driver.device.limits):
        return by_kernels(driver, step, CudaSmallProduct())
    found = by_blas(eqn.op, a, b, lie)
    if found is None:
        return by_kernels(driver, step, CudaProduct())
    copies, g = found
    spots = [spot(driver, x) for x in atoms]
    before, temps = list[CudaKernel](), list[str]()
    for i, (x, strides) in enumerate(zip((first, second), copies, strict=True)):
        if strides is not None:
            target, t = Operand("temp", len(temps), strides), eqn.inputs[i].type
            before += copying(t, t, x, target, Chip.of(driver.device.limits)).kernels
            temps.append(driver.need(t.nbytes, step.number))
            spots[i] = Spot(At(temps[-1], own=True), 0)
    order = (1, 0, 2) if g.second else (0, 1, 2)
    factors = [spots[i] for i in order]
    aligned = tuple(
        math.gcd(16, spot.multiple, *(c[n] * atoms[i].type.dtype.itemsize for c in g.calls))
        for n, (i, spot) in enumerate(zip(order, factors, strict=True))
    )
    wanted = Wanted(g, a.dtype, out.type.dtype, precision, aligned)  # type: ignore[arg-type]
    product = driver.device.product(wanted)
    if product is None:
        return by_kernels(driver, step, CudaProduct())
    scratch = At(driver.need(product.workspace, step.number), own=True) if product.workspace else None
    driver.fresh(out)
    launches(driver, step, Kernels(tuple(before)), temps, whole=False)
    by = "NumPy" if driver.device.xp is np else "cuBLASLt"
    places = (*(spot.at for spot in factors), scratch)
    one = Call(driver.title, eqn.op.name, by, eqn, driver.cost(step))
    driver.launch(Pending(product, (), (), 0, places, frozenset([2, 3]), "dot_general", place(eqn)), one)
    return None


def spot(driver: GpuDriver, a: Atom) -> Spot:
    """Where an array begins."""
    if isinstance(a, Literal):
        return Spot(driver.at(a, 0), 0)
    buffer, size = driver.buffer(a), a.type.dtype.itemsize
    base, offset = buffer.base or buffer, driver.layout(a).offset * size
    return Spot(driver.at(a, offset), math.gcd(offset, driver.loose.get(base.name, 0) * size))
