"""Operations that hold graphs, solve, or have effects: parameters to try, and
operands that they take.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import ge2
from ge2 import ops
from ge2.base.arrays import BOOL, FLOAT64, INT64
from ge2.ir import ArrayType, Graph, Op, parse
from ge2.ir.graph import Derive, GraphOp
from ge2.ops.graphs.effects import HOLE, METHODS, host
from ge2.transforms.graphs import DERIVE
from tests.laws.sample import Rng, Sample, numbers


def graph(text: str) -> Graph:
    return parse(text, ops.TABLE)


SINES = """{ lambda ; a:f64[3] b:f64[3] n:i64[]. let
    c:f64[3] = sin a
    d:f64[3] = mul c b
    e:f64[3] = mul d d
    m:i64[] = add n 1:i64[]
  in (e, c, m) }"""
COSINES = """{ lambda ; a:f64[3] b:f64[3] n:i64[]. let
    c:f64[3] = cos a
    d:f64[3] = mul b 2.0:f64[]
  in (c, d, n) }"""
SQUARE = "{ lambda ; x:f64[3] y:f64[]. let z:f64[3] = mul x x  w:f64[3] = mul z y in (w,) }"
FORWARD = "{ lambda ; x:f64[3] y:f64[]. let z:f64[3] = mul x x  w:f64[3] = mul z y in (w, x, y) }"
BACKWARD = """{ lambda ; x:f64[3] y:f64[] ct:f64[3]. let
    a:f64[3] = mul x 2.0:f64[]
    b:f64[3] = mul a y
    c:f64[3] = mul b ct
    d:f64[3] = mul x x
    e:f64[3] = mul d ct
    f:f64[] = reduce_sum[axes=(0,)] e
  in (c, f) }"""
FOLLOWING = """{ lambda ; a:f64[] b:f64[] c:f64[] d:f64[]. let
    e:f64[] = mul a c
    f:f64[] = mul c b
    g:f64[] = add f d
  in (e, g) }"""
ADDED = """{ lambda ; a:f64[] m:i64[] b:f64[] n:i64[]. let
    c:f64[] = add a b
    o:i64[] = mul m n
  in (c, o) }"""
BOTH = (("dots_saveable",), ("save_only_these_names", "a b"))
RULE = """{ lambda ; x:f64[3] y:f64[] tx:f64[3] ty:f64[]. let
    z:f64[3] = mul x x
    w:f64[3] = mul z y
    a:f64[3] = mul x 2.0:f64[]
    b:f64[3] = mul a y
    c:f64[3] = mul b tx
    d:f64[3] = mul z ty
    e:f64[3] = add c d
  in (w, e) }"""


ROUND = """{ lambda ; w:f64[3] h:f64[3] n:i64[] x:f64[3]. let
    a:f64[3] = mul h w
    b:f64[3] = add a x
    c:f64[3] = sin b
    m:i64[] = add n 1:i64[]
    d:f64[3] = mul c h
  in (c, m, d, x) }"""
STILL = "{ lambda ; k:i64[] h:f64[3] n:i64[]. let on:bool[] = lt n k in (on,) }"
TURN = """{ lambda ; w:f64[3] h:f64[3] n:i64[]. let
    a:f64[3] = mul h w
    b:f64[3] = sin a
    m:i64[] = add n 1:i64[]
  in (b, m) }"""
SOLVE = (
    "{ lambda ; d:f64[3] b:f64[3]. let x:f64[3] = div b d  y:f64[3] = rev[axes=(0,)] x in (y,) }"
)
PRODUCT = (
    "{ lambda ; d:f64[3] x:f64[3]. let y:f64[3] = rev[axes=(0,)] x  b:f64[3] = mul d y in (b,) }"
)
TRANSPOSED = (
    "{ lambda ; d:f64[3] c:f64[3]. let y:f64[3] = rev[axes=(0,)] c  x:f64[3] = div y d in (x,) }"
)
DIAGONAL = "{ lambda ; d:f64[3] x:f64[3]. let b:f64[3] = mul d x in (b,) }"
QUOTIENT = "{ lambda ; d:f64[3] b:f64[3]. let x:f64[3] = div b d in (x,) }"
CUBE_ROOT = "{ lambda ; a:f64[3] guess:f64[3]. let x:f64[3] = cbrt a in (x,) }"
CUBE = """{ lambda ; a:f64[3] x:f64[3]. let
    b:f64[3] = mul x x
    c:f64[3] = mul b x
    d:f64[3] = sub c a
  in (d,) }"""
OF_CUBE = """{ lambda ; a:f64[3] x:f64[3] y:f64[3]. let
    b:f64[3] = mul x x
    c:f64[3] = mul b 3.0:f64[]
    d:f64[3] = div y c
  in (d,) }"""


def looped(derive: Derive, flags: tuple[bool, ...], size: int) -> Any:
    """A batching rule that is that of the equations."""
    batched, has = derive.batch(graph(SINES), flags, size)
    return batched, flags, has


def with_operands(op: Op, *before: Any) -> Sample:
    def draw(rng: Rng, d: np.dtype) -> tuple[Any, ...]:
        return (*before, numbers(rng, (3,), d), numbers(rng, (3,), d), np.int64(4))

    return Sample(op, draw, (FLOAT64,))


def saving(sample: Sample) -> Sample:
    """The same for the operation that also yields what its derivative reads."""
    arrays = sample.draw(np.random.default_rng(0), FLOAT64)
    assert isinstance(sample.op, GraphOp)
    return replace(
        sample, op=sample.op.saving(tuple(np.asarray(x).dtype == FLOAT64 for x in arrays), DERIVE)
    )


def control() -> dict[str, list[Sample]]:
    square = lambda rng, d: (numbers(rng, (3,), d), numbers(rng, (), d))  # noqa: E731
    call = with_operands(ops.Call(graph(SINES), "f"))
    checkpoints = [
        with_operands(ops.Checkpoint(graph(SINES))),
        with_operands(ops.Checkpoint(graph(SINES), ("everything_saveable",), prevent_cse=False)),
        with_operands(ops.Checkpoint(graph(SINES), ("save_from_both_policies", *BOTH))),
    ]
    branches = ops.Cond((graph(SINES), graph(COSINES)))
    three = ops.Cond((graph(SINES), graph(COSINES), graph(SINES)))
    conds = [
        with_operands(branches, np.bool_(False)),
        with_operands(branches, np.bool_(True)),
        with_operands(three, np.int32(5)),
    ]
    pulled = Sample(
        ops.CustomVjp(graph(SQUARE), graph(FORWARD), graph(BACKWARD), 2),
        square,
        (FLOAT64,),
        forward=False,
    )
    batched = with_operands(ops.CustomBatch(graph(SINES), looped))
    pushed = Sample(ops.CustomJvp(graph(SQUARE), graph(RULE)), square, (FLOAT64,))
    scans = [
        Sample(
            ops.ScanLoop(graph(ROUND), length, 1, 2, reverse),
            lambda rng, d, n=length: (
                *(numbers(rng, (3,), d) for _ in "wh"),
                np.int64(1),
                numbers(rng, (n, 3), d),
            ),
            (FLOAT64,),
        )
        for length, reverse in ((4, False), (3, True), (0, False))
    ]
    two = lambda rng, d: (numbers(rng, (2, 5, 3), d), numbers(rng, (2, 5, 3), d))  # noqa: E731
    prefixes = [
        Sample(ops.AssociativeScan(graph(FOLLOWING), 1), two, (FLOAT64,)),
        Sample(ops.AssociativeScan(graph(FOLLOWING), 0, True), two, (FLOAT64,)),
        Sample(
            ops.AssociativeScan(graph(ADDED), 1),
            lambda rng, d: (numbers(rng, (3, 4), d), np.full((3, 4), 2)),
            (FLOAT64,),
        ),
    ]
    until = Sample(
        ops.WhileLoop(graph(STILL), graph(TURN), 1, 1),
        lambda rng, d: (np.int64(3), numbers(rng, (3,), d), numbers(rng, (3,), d), np.int64(0)),
        (FLOAT64,),
        reverse=False,
    )
    return {
        "scan": scans,
        "scan_saving": [saving(s) for s in scans],
        "associative_scan": prefixes,
        "associative_scan_saving": [saving(s) for s in prefixes],
        "while": [until],
        "jit": [call],
        "jit_saving": [saving(call)],
        "checkpoint": checkpoints,
        "checkpoint_saving": [saving(s) for s in checkpoints],
        "cond": conds,
        "cond_saving": [saving(s) for s in conds],
        "custom_vjp_call": [pulled],
        "custom_vjp_saving": [replace(saving(pulled), forward=True)],
        "custom_jvp_call": [pushed],
        "custom_jvp_saving": [saving(pushed)],
        "custom_batch_call": [batched],
        "custom_batch_saving": [saving(batched)],
    }


def solves() -> dict[str, list[Sample]]:
    two = lambda rng, d: (numbers(rng, (3,), d), numbers(rng, (3,), d))  # noqa: E731
    solve, product, transposed = graph(SOLVE), graph(PRODUCT), graph(TRANSPOSED)
    diagonal, quotient = graph(DIAGONAL), graph(QUOTIENT)
    linear = [
        Sample(ops.LinearSolve(solve, product, (transposed,), 1), two, (FLOAT64,)),
        Sample(
            ops.LinearSolve(quotient, diagonal, (quotient,), 1, symmetric=True), two, (FLOAT64,)
        ),
    ]
    root = Sample(ops.Root(graph(CUBE_ROOT), graph(CUBE), graph(OF_CUBE), 1), two, (FLOAT64,))
    return {
        "linear_solve": linear,
        "linear_solve_saving": [saving(s) for s in linear],
        "root": [root],
        "root_saving": [saving(root)],
    }


def effects() -> dict[str, list[Sample]]:
    two = lambda rng, d: (numbers(rng, (2, 3), d), numbers(rng, (1, 3), d))  # noqa: E731
    structure = ge2.tree.structure
    both, one = structure(((0, 0), {})), structure(0)
    called = host(lambda x, y: None, (HOLE, HOLE), both)
    pure = host(lambda x, y: x * y, (HOLE, HOLE), both, one)
    whole = (ArrayType((2, 3), INT64),)
    looped = ops.PureCallback(pure, whole, "sequential", ((2, (True, False)),))
    return {
        "debug_print": [Sample(ops.DebugPrint("{} {y}", ("y",)), two, (BOOL, FLOAT64))],
        "debug_callback": [Sample(ops.DebugCallback(called), two, (FLOAT64,))],
        "pure_callback": [
            *(Sample(ops.PureCallback(pure, whole, method), two, (INT64,)) for method in METHODS),
            Sample(
                looped,
                lambda rng, d: (numbers(rng, (2, 2, 3), d), numbers(rng, (1, 3), d)),
                (INT64,),
            ),
        ],
    }
