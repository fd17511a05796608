"""Products of fp8: by tensor cores of fp8 where those serve, and else by those of bfloat16, which has
every number of either type.

dot_general (convert[bf16] a:f8_e4m3fn) (convert[bf16] b:f8_e4m3fn)
->  dot_general[out=bf16 precision=fp8] a b

dot_general a:f8_e5m2 b:f8_e5m2
->  convert[f8_e5m2] (dot_general[out=f32] (convert[bf16] a) (convert[bf16] b))

Tensor cores of fp8 keep some 14 bits of a sum, and the library adds those up in float32: enough for
results of half types, and for those in float32 that are scaled and cast to one; not for other float32,
unless `precision="fp8"` asks for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from ge2.base.dtypes import BFLOAT16, FLOAT16, FLOAT32, FP8, HALF
from ge2.ir import Atom, Eqn, Graph, Var
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import MUL, ConvertElementType
from ge2.passes.context import Context
from ge2.passes.simplify import Sweep
from ge2.targets.cuda.kernels.products import no_fp8
from ge2.targets.cuda.limits import Limits


def fp8_products(graph: Graph, context: Context) -> Graph:
    """The graph with such products, for the GPU of the context."""
    limits = context.caps
    if not isinstance(limits, Limits) or not any(has_fp8(e) for e in graph.eqns):
        return graph
    makers: dict[Atom, Eqn] = {v: e for e in graph.eqns for v in e.outs}
    rounded = cast_at_last(graph)
    eqns = [new for e in graph.eqns for new in rewritten(e, makers, rounded, limits)]
    return Sweep({}).run(replace(graph, eqns=tuple(eqns)))  # of which casts may be left unread


def has_fp8(eqn: Eqn) -> bool:
    return any(a.type.dtype in FP8 for a in eqn.inputs)


def cast_at_last(graph: Graph) -> set[Atom]:
    """The values of which nothing is read but casts to half types, scaled by numbers it may be."""
    read = set[Atom](graph.outputs)  # by anything else
    found = set[Atom]()
    for e in reversed(graph.eqns):
        scaled = e.op == MUL and sum(a.type.size > 1 for a in e.inputs) == 1
        casts = isinstance(e.op, ConvertElementType) and e.op.dtype in HALF
        if casts or (scaled and e.outs[0] in found and e.outs[0] not in read):
            found.update(a for a in e.inputs if a.type.size > 1)
        else:
            read.update(e.inputs)
    return found - read


def rewritten(
    eqn: Eqn, makers: Mapping[Atom, Eqn], rounded: Collection[Atom], limits: Limits
) -> tuple[Eqn, ...]:
    op, (y, *_) = eqn.op, eqn.outs or (None,)
    if not isinstance(op, DotGeneral) or y is None:
        return (eqn,)
    views, out = list[Eqn](), y.type.dtype
    factors = [before_cast(a, makers, views) for a in eqn.inputs]
    if not all(isinstance(a, Var) and a.type.dtype in FP8 for a in factors):
        return (eqn,)
    stored = out in (BFLOAT16, FLOAT16) or y in rounded or op.precision == "fp8"
    direct = factors == [*eqn.inputs]
    one, other = (a.type for a in factors)
    serves = not no_fp8(op, one, other, limits)
    if serves and (stored or out in FP8):
        return (*views, *by_tensor_cores(eqn, factors, out))
    return by_bfloat16(eqn, out) if direct else (eqn,)


def before_cast(a: Atom, makers: Mapping[Atom, Eqn], views: list[Eqn]) -> Atom:
    """What a value is cast from, or the same `views` of that, which are listed."""
    maker = makers.get(a)
    if maker is None or len(maker.inputs) != 1:
        return a
    (given,), op = maker.inputs, maker.op
    if isinstance(op, ConvertElementType):
        return given
    found = before_cast(given, makers, views) if op.is_view else given
    if found is given:
        return a
    views.append(Eqn(op, (found,), (Var(*op.infer(found.type)),), maker.source))
    return views[-1].outs[0]


def by_tensor_cores(eqn: Eqn, factors: list[Atom], out: np.dtype) -> tuple[Eqn, ...]:
    """The product of fp8. Its result is not the library's fp8, which stops at the largest number
    where NumPy's has none.
    """
    wide = FLOAT32 if out in FP8 else out
    op = replace(eqn.op, out=wide, precision="fp8")  # type: ignore[type-var]
    return cast_after(Eqn(op, tuple(factors), eqn.outs, eqn.source), wide, out)


def by_bfloat16(eqn: Eqn, out: np.dtype) -> tuple[Eqn, ...]:
    """The product of what bfloat16 has of both factors, rounded once."""
    cast = ConvertElementType(BFLOAT16)
    casts = [Eqn(cast, (a,), (Var(*cast.infer(a.type)),), eqn.source) for a in eqn.inputs]
    op = replace(eqn.op, out=FLOAT32, precision=None)  # type: ignore[type-var]
    product = Eqn(op, tuple(e.outs[0] for e in casts), eqn.outs, eqn.source)
    return (*casts, *cast_after(product, FLOAT32, out))


def cast_after(eqn: Eqn, wide: np.dtype, out: np.dtype) -> tuple[Eqn, ...]:
    """A product whose results are of a wider type, and its cast to another."""
    if wide == out:
        return (eqn,)
    (y,) = eqn.outs
    v = Var(replace(y.type, dtype=wide))
    return replace(eqn, outs=(v,)), Eqn(ConvertElementType(out), (v,), (y,), eqn.source)
