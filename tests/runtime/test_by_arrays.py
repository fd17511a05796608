"""What a device's array module computes equals the references, which are not asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ge2.base.arrays import EXTENDED, SHORT
from ge2.compile import compile_graph
from ge2.ir import ArrayType, Eqn, Graph, Op, Var
from ge2.ops.sort import ArgSort, SearchSorted, Sort
from ge2.targets.cuda import device as cupy_fallback
from ge2.targets.cuda.device import Device
from ge2.targets.cuda.emulator import ShimDevice
from ge2.test_util import laws
from tests import fake_cupy
from tests.kernels.programs import numbers
from tests.laws.linalg_samples import decompositions, equations, transforms

DTYPES = pytest.mark.parametrize("dtype", list(SHORT), ids=str)


def ran(op: Op, *arrays: Any) -> Any:
    inputs = tuple(Var(ArrayType(x.shape, x.dtype)) for x in arrays)
    (out,) = op.infer(*(v.type for v in inputs))
    y = Var(out)
    device: Device = ShimDevice()
    (found,) = compile_graph(Graph(inputs, (Eqn(op, inputs, (y,)),), (y,)), device=device)(*arrays)
    assert (found.shape, found.dtype) == (out.shape, out.dtype)
    return found


def same(y: Any, wanted: Any) -> None:
    """To the bit, but for those of NaN."""
    for each in (y, wanted):
        each[each != each] = (
            np.array(np.nan).astype(each.dtype) if each.dtype.kind not in "iub" else 0
        )
    assert y.tobytes() == np.ascontiguousarray(wanted).tobytes()


@pytest.mark.exhaustive
@DTYPES
def test_lines_are_sorted_stably_with_nan_last(dtype: np.dtype, rng: np.random.Generator) -> None:
    for shape, axis in (
        ((40,), 0), ((3, 17, 4), 1), ((5, 9), 0), ((0,), 0), ((2, 0), 1), ((1, 1), 1),
    ):  # fmt: skip
        x = numbers(rng, shape, dtype, small=bool(rng.integers(2)))
        same(ran(Sort(axis), x), Sort(axis).reference(x))
        same(ran(ArgSort(axis), x), ArgSort(axis).reference(x))


@pytest.mark.exhaustive
@DTYPES
def test_values_are_sought(dtype: np.dtype, rng: np.random.Generator) -> None:
    for n, many in ((0, 3), (1, 5), (8, 20), (33, 50)):
        line, values = (
            Sort(1).reference(numbers(rng, (4, n), dtype)),
            numbers(rng, (4, many), dtype),
        )
        values[:, : min(n, many)] = line[:, : min(n, many)]
        for side in ("left", "right"):
            alone, beside = SearchSorted(side), SearchSorted(side, 1)
            same(ran(alone, line[0], values), alone.reference(line[0], values))
            same(ran(beside, line, values), beside.reference(line, values))


def test_the_reference_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((4, 5))

    def never(*arrays: Any) -> Any:
        raise AssertionError("the reference was asked")

    for op in (Sort(1), ArgSort(0), SearchSorted()):
        monkeypatch.setattr(type(op), "reference", never)
    ran(Sort(1), x), ran(ArgSort(0), x), ran(SearchSorted(), np.sort(x[0]), x)


def test_keys_are_ordered_as_all_numbers_are() -> None:
    for dtype in EXTENDED:
        bits = np.arange(1 << (8 * dtype.itemsize), dtype=f"u{dtype.itemsize}")
        x = bits.view(dtype)
        keys, wide = cupy_fallback.ordered(np, x), x.astype(np.float32)
        assert keys.dtype == bits.dtype
        number = wide == wide
        order = np.argsort(wide[number], kind="stable")
        np.testing.assert_array_equal(np.argsort(keys[number], kind="stable"), order)
        assert len(np.unique(keys[number])) == len(np.unique(wide[number]))
        assert (keys[~number] == keys.max()).all() and keys[number].max() < keys.max()


FACTORS = {**equations(), **decompositions(), **transforms()}


@pytest.mark.parametrize("name", FACTORS)
def test_matrices_and_transforms_by_the_device_s_functions(
    name: str, rng: np.random.Generator
) -> None:
    """The table's functions of CuPy's names, given CuPy's arrays; of empty
    matrices the reference.
    """
    xp = fake_cupy.module()
    for sample in FACTORS[name]:
        arrays = sample.draw(rng, sample.dtypes[-1])
        graph = laws.graph_of(sample.op, laws.types_of(arrays))
        served, want = cupy_fallback.serves(graph.eqns[0]), laws.evaluate(sample.op, arrays)
        if served is None:
            assert name in ("eig", "cofactors") or any(0 in x.shape for x in arrays)
            continue
        found = served(xp, sample.op, *map(xp.asarray, arrays))
        for y, w in zip(found if sample.op.several else [found], want, strict=True):
            assert (y.shape, y.dtype) == (np.shape(w), np.asarray(w).dtype)
            np.testing.assert_allclose(y.get(), w, rtol=1e-12, atol=1e-12)
