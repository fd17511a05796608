"""Products become those of matrices as BLAS takes them, whatever the
order in which the operands lie.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ge2.ir import ArrayType, Dims
from ge2.ops.dot import DotGeneral
from ge2.targets.cuda.launch.library_call import HostProduct, Wanted
from ge2.targets.cuda.limits import H200
from ge2.targets.cuda.products import Gemm, Matrix, by_blas, tight

FLOAT64 = np.dtype(np.float64)


def planned(op: DotGeneral, a: Dims, b: Dims, *strides: Dims) -> tuple[Any, Gemm]:
    types = ArrayType(a, FLOAT64), ArrayType(b, FLOAT64)
    (y,) = op.infer(*types)
    given = [tight(t.shape, range(t.ndim)) for t in (*types, y)]
    given[: len(strides)] = strides
    found = by_blas(op, *types, (given[0], given[1], given[2]), CALL)
    assert found is not None
    return found


PLAIN = DotGeneral(((1,), (0,)))
CALL = H200.tuning.products.call


def test_a_plain_product_is_that_of_turned_matrices() -> None:
    copies, g = planned(PLAIN, (3, 5), (5, 4))
    assert copies == (None, None)
    assert g == Gemm(
        4, 3, 5, 1, Matrix(False, 4, 0), Matrix(False, 5, 0), Matrix(False, 4, 0), True,
        ((0, 0, 0),),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("a", "b"), [((5, 1), (1, 5)), ((1, 3), (4, 1)), ((1, 3), (1, 5)), ((8, 1), (9, 1))]
)
def test_turned_and_padded_operands_are_taken_as_they_lie(a: Dims, b: Dims) -> None:
    assert planned(PLAIN, (3, 5), (5, 4), a, b)[0] == (None, None)


def test_a_result_may_lie_turned() -> None:
    copies, g = planned(PLAIN, (3, 5), (5, 4), (5, 1), (4, 1), (1, 3))
    assert copies == (None, None) and not g.second and (g.m, g.n) == (3, 4)


def test_what_has_no_neighbours_is_copied() -> None:
    assert planned(PLAIN, (3, 5), (5, 4), (10, 2))[0] == ((5, 1), None)
    assert planned(PLAIN, (3, 5), (5, 4), (5, -1))[0] == ((5, 1), None)
    assert planned(PLAIN, (3, 5), (5, 4), (0, 0))[0] == ((5, 1), None)


def test_attention_needs_no_copy() -> None:
    """Batch and head do not merge: one of them is the batch of a call."""
    op = DotGeneral(((3,), (3,)), ((0, 2), (0, 2)))  # [batch, place, head, feature], twice
    copies, g = planned(op, (2, 64, 8, 16), (2, 32, 8, 16))
    assert copies == (None, None)
    assert (g.count, len(g.calls)) == (8, 2)


def test_one_operand_for_a_whole_batch() -> None:
    """Rows that lie together are rows of one product, not a batch of them."""
    op = DotGeneral(((2,), (0,)))
    assert planned(op, (7, 3, 5), (5, 4))[1].count == 1
    shared = DotGeneral(((2,), (1,)), ((0,), (0,)))
    assert planned(shared, (7, 3, 5), (7, 5, 4), (15, 5, 1), (0, 4, 1))[1].first.step == 0


def drawn(rng: np.random.Generator, shape: list[int], spread: bool) -> tuple[Any, Dims]:
    """Memory in which an array lies with its axes in any order, perhaps with gaps, or spread."""
    order = rng.permutation(len(shape))
    strides, at = [0] * len(shape), 1
    for i in reversed(order):
        strides[i] = at
        at *= shape[i] + int(rng.random() < 0.1)
    if spread and shape and rng.random() < 0.1:
        strides[int(rng.integers(len(shape)))] = 0
    return rng.integers(-9, 10, at + 1).astype(np.float64), tuple(strides)


def seen(memory: Any, shape: Dims, strides: Dims) -> Any:
    return np.lib.stride_tricks.as_strided(memory, shape, [s * 8 for s in strides])


def case(rng: np.random.Generator) -> tuple[DotGeneral, list[int], list[int]]:
    """A product of up to two axes of each kind, in any order."""
    kinds = [[int(n) for n in rng.choice([1, 2, 3, 5], k)] for k in rng.integers(0, 3, 4)]
    beside, rows, columns, sums = kinds
    left, right = (rng.permutation(len(beside) + len(sums) + len(free)) for free in (rows, columns))
    sizes = [beside + sums + free for free in (rows, columns)]
    at = [{int(v): i for i, v in enumerate(order)} for order in (left, right)]
    n = len(beside)
    op = DotGeneral(
        tuple(tuple(where[n + i] for i in range(len(sums))) for where in at),  # type: ignore[arg-type]
        tuple(tuple(where[i] for i in range(n)) for where in at),  # type: ignore[arg-type]
    )
    return op, [sizes[0][i] for i in left], [sizes[1][i] for i in right]


def test_any_product(rng: np.random.Generator) -> None:
    taken = 0
    for _ in range(400):
        op, a, b = case(rng)
        types = ArrayType(tuple(a), FLOAT64), ArrayType(tuple(b), FLOAT64)
        (y,) = op.infer(*types)
        (left, ls), (right, rs) = drawn(rng, a, True), drawn(rng, b, True)
        made, ys = np.zeros(math.prod(y.shape) + 1), tight(y.shape, range(y.ndim))
        if rng.random() < 0.3:
            made, ys = drawn(rng, list(y.shape), False)
        found = by_blas(op, *types, (ls, rs, ys), CALL)
        if found is None:
            continue
        taken += 1
        given = [seen(left, types[0].shape, ls), seen(right, types[1].shape, rs)]
        want = op.reference(*given)
        factors = []
        for x, memory, copy in zip(given, (left, right), found[0], strict=True):
            if copy is not None:
                memory = np.empty(x.size + 1)
                seen(memory, x.shape, copy)[...] = x
            factors.append(memory)
        first, other = factors[::-1] if found[1].second else factors
        places = (x.ctypes.data for x in (first, other, made))
        HostProduct(Wanted(found[1], FLOAT64, FLOAT64))(0, *places, 0)
        np.testing.assert_array_equal(seen(made, y.shape, ys), want)
    assert taken > 350
