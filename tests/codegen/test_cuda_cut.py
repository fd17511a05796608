"""A region that is more than one kernel can do: no row waits for what is
gathered over all of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.compile.pipeline import rewritten
from ge2.ir import verify
from ge2.ops.graphs.region import Region
from ge2.targets.cuda.emit.split_region import after_rows, cut, over_others, over_rows
from ge2.targets.cuda.emulator import EMULATED
from tests.codegen.texts import kernels
from tests.compared import all_close, all_equal
from tests.small import planned_by
from tests.together import needs_compiler

F32 = np.float32


def drawn(*shape: int) -> Any:
    return np.random.default_rng(shape).standard_normal(shape).astype(F32)


def loss_and_bias(z: Any, y: Any, mean: Any) -> Any:
    """A cross-entropy, its gradient, and a running mean of that of a bias."""
    z = z - z.max(axis=1, keepdims=True)
    e = np.exp(z)
    total = e.sum(axis=1, keepdims=True)
    loss = -(np.take_along_axis(z, y[:, None], axis=1) - np.log(total)).mean()
    ct = (e / total - np.eye(z.shape[1], dtype=F32)[0]) / len(y)
    return loss, ct, 0.9 * mean + 0.1 * ct.sum(axis=0)


def region_of(f: Any, *xs: Any) -> Region:
    graph = rewritten(ge2.make_jaxpr(f)(*xs).graph, "reference")
    (op,) = (e.op for e in graph.eqns if isinstance(e.op, Region) and len(e.op.graph.eqns) > 4)
    return op


def both(z: Any, mean: Any) -> Any:
    """A softmax, and a running mean of its columns, which nothing in the rows reads."""
    e = np.exp(z - z.max(axis=1, keepdims=True))
    p = e / e.sum(axis=1, keepdims=True)
    return p, 0.9 * mean + 0.1 * p.sum(axis=0)


def centred(z: Any, mean: Any) -> Any:
    """Rows that read what is gathered over all of them."""
    p, mean = both(z, mean)
    return p - mean


def test_what_is_gathered_is_read_after_the_rows() -> None:
    region = region_of(both, drawn(64, 10), drawn(10))
    late = after_rows(region)
    first, second = cut(region)
    for half in (first, second):
        verify(half.graph)
    assert [region.graph.eqns[n].op.name for n in late] == ["mul", "mul", "add"]
    assert [e.op.name for e in second.graph.eqns] == ["mul", "mul", "add"]
    assert {v.type.shape for v in first.graph.outputs} == {(64, 10), (10,)}


def test_rows_that_wait_are_cut_in_the_middle() -> None:
    region = region_of(centred, drawn(64, 10), drawn(10))
    assert after_rows(region) == []
    first, second = cut(region)
    assert first.graph.eqns and second.graph.eqns


def test_sums_over_what_rows_leave_come_after_them() -> None:
    """What is done with the elements of the rows stays with those, and no large array is between."""

    def loss(x: Any, y: Any) -> Any:
        p = np.exp(x - x.max(1, keepdims=True))
        p = p / p.sum(1, keepdims=True)
        return np.abs(p - y).sum(1).sum(), np.sign(p - y) * 0.5

    region = region_of(loss, drawn(64, 10), drawn(64, 10))
    first, second = cut(region)
    assert [region.graph.eqns[n].op.name for n in over_rows(region)] == ["reduce_sum"]
    assert [e.op.name for e in second.graph.eqns] == ["reduce_sum"]
    assert sorted(v.type.shape for v in first.graph.outputs) == [(64,), (64, 10)]


def test_sums_over_other_axes_read_what_rows_read() -> None:
    """They do elementwise work again rather than to read its results."""

    def norm(x: Any) -> Any:
        y = np.tanh((x - x.mean(1, keepdims=True)) * 2.0)
        return (y * x).sum(1), (y + 1.0).sum(0)

    region = region_of(norm, drawn(64, 10))
    first, second = cut(region)
    assert over_others(region)
    assert all(v.type.size <= 64 for v in first.graph.outputs)
    assert {v.type.shape for v in second.graph.inputs} >= {(64, 10)}
    assert sum(e.op.name == "tanh" for e in second.graph.eqns) == 1


def test_a_half_has_the_axes_and_the_equations_that_it_needs() -> None:
    """Or each element along another axis would find the nearest again, and multiply for nobody."""

    def assigned(x: Any, c: Any) -> Any:
        near = (x[:, :1] - c[None]).__abs__().argmin(1)
        hot = (near[:, None] == np.arange(len(c))).astype(F32)
        return near, (hot[:, None, :] * x[:, :, None]).sum(0)

    region = region_of(assigned, drawn(64, 8), drawn(16))
    first, second = cut(region)
    assert region.space == second.space and sorted(first.space) == [16, 64]
    read = {a for e in first.graph.eqns for a in e.inputs} | set(first.graph.outputs)
    assert all(not read.isdisjoint(e.outs) for e in first.graph.eqns)


def test_the_kernels_of_a_loss() -> None:
    """The gradient is there after the first of them."""
    n = 1 << 15  # rows that no single block would take
    z, y, mean = np.zeros((n, 10), F32), np.zeros(n, np.int64), drawn(10)
    found = [kernel for kernel, _ in kernels(loss_and_bias, z, y, mean)]
    assert [k.kind for k in found if "rowwise" in k.kind or "finish" in k.kind] == [
        "rowwise",
        "finish",
        "finish",
    ]
    gradient = [a for a in found[0].given if a.kind == "result" and a.value[0].role == "out"]
    assert [len(a.value[0].strides) for a in gradient] == [2]


@pytest.mark.exhaustive("f")
@needs_compiler
@pytest.mark.parametrize("rows", [1, 3, 64, 65, 300])
@pytest.mark.parametrize("f", [both, centred])
def test_the_numbers(f: Any, rows: int) -> None:
    z, mean = drawn(rows, 10), drawn(10)
    with config.using(executor="shim"):
        found = ge2.jit(f)(z, mean)
    all_close(
        ge2.tree_util.tree_leaves(found),
        ge2.tree_util.tree_leaves(f(z, mean)),
        rtol=1e-5,
        atol=1e-5,
    )


@needs_compiler
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (0, 0)], ids=str)
def test_a_half_may_read_what_has_no_elements(shape: tuple[int, ...]) -> None:
    def f(x: Any) -> Any:
        deviation = np.std(x, axis=0)
        return np.all(deviation), deviation[::-1]

    with config.using(executor="shim"):
        found = ge2.jit(f)(np.ones(shape, F32))
    all_equal(found, f(np.ones(shape, F32)))


@needs_compiler
def test_the_numbers_of_a_loss() -> None:
    z, mean = drawn(70, 10), drawn(10)
    y = np.random.default_rng(0).integers(0, 10, 70)
    with config.using(executor="shim", shim_watch=True):
        found = ge2.jit(loss_and_bias)(z, y, mean)
    all_close(found, loss_and_bias(z, y, mean), rtol=1e-5, atol=1e-6)


def test_as_many_rows_as_you_like_have_one_kernel_that_merges() -> None:
    """How many parts there are follows from the rows; the kernel that merges them does not."""

    def texts(rows: int) -> set[str]:
        found = kernels(both, np.zeros((rows, 10), F32), np.zeros(10, F32))
        return {text for kernel, text in found if kernel.kind == "finish"}

    assert texts(1 << 15) == texts(40000) == texts(1 << 17)


@needs_compiler
def test_parts_of_a_result_that_lacks_an_axis_of_the_rows() -> None:
    """All rows along that axis have the same part: one leaves it, where the merge reads it."""

    def f(c: Any, d: Any, m: Any) -> Any:
        return (c.sum(0) * m).sum((1, 2)), (c * d).sum((2, 3))

    c, d, m = drawn(3, 2, 128, 256), drawn(3, 2, 128, 256), drawn(128, 256)
    text = "".join(text for _, text in kernels(f, c, d, m))
    assert "d_sum_parts[blockIdx.y * n_j + j] = d_sum;" in text
    assert "if (t == 0 && i == 0)" in text
    with config.using(executor="shim"):
        found = ge2.jit(f)(c, d, m)
    all_close(found, f(c, d, m), rtol=2e-5, atol=1e-3)


def density(sample: Any, grid: Any) -> Any:
    h = 1.06 * sample.std() * len(sample) ** -0.2
    z = (grid[:, None] - sample[None, :]) / h
    return np.exp(-0.5 * z * z).mean(1) / h


@needs_compiler
def test_a_long_sum_that_is_the_same_for_all_rows_is_made_once() -> None:
    sample, grid = drawn(300).astype("f8"), drawn(5).astype("f8")
    chip = planned_by(EMULATED, "rowwise", long=256)
    with config.using(executor="shim", tuning=(chip,)):
        np.testing.assert_allclose(
            ge2.jit(density)(sample, grid), density(sample, grid), rtol=1e-12
        )
    assert [k.kind for k, _ in kernels(density, sample, grid)] == ["rowwise"]
    *first, rows = [text for _, text in kernels(density, sample, grid, chip=chip)]
    assert "ge2_exp_f64" in rows and "ge2_square" not in rows
    assert any("ge2_square" in text for text in first)


@needs_compiler
def test_parts_of_a_result_that_lacks_an_axis_within_the_rows() -> None:
    """One element along that axis leaves them: of all others the places are those of other parts."""

    def f(a: Any, b: Any) -> Any:
        h = (a * b).max((2, 3), keepdims=True)
        return (a * b).sum(), h, (h * a).sum((0, 1, 2))

    a, b = drawn(1, 3, 1, 40), drawn(3, 3, 130, 40)
    text = "".join(text for _, text in kernels(f, a, b))
    assert "if (l == 0)\n" in text and "_sum_parts[blockIdx.y * 40 + m + v] =" in text
    with config.using(executor="shim", shim_watch=True):
        found = ge2.jit(f)(a, b)
    all_close(found, f(a, b), rtol=2e-5, atol=1e-5)


def scaled(a: Any, b: Any, c: Any, x: Any) -> Any:
    """Sums along the rows of `a`, and of `b`, which lies across them."""
    s = c / (a * x).sum(1)
    return s, (b * s).sum(1)


def test_arrays_across_the_rows_of_a_kernel_are_read_by_another() -> None:
    """The second one would read a sector of 32 bytes for each element."""
    large = drawn(1500, 1500), drawn(1500, 1500), drawn(1500), drawn(1500)
    assert not any("(j + v) * n_i" in text for _, text in kernels(scaled, *large))


@needs_compiler
def test_columns_of_points_are_read_once() -> None:
    """Blocks walk the rows, which all have the same points of the other cloud: strided, in registers."""

    def chamfer(a: Any, b: Any) -> Any:
        d = ((a[:, None] - b[None]) ** 2).sum(-1)
        return d.min(1).mean() + d.min(0).mean()

    many = np.zeros((8192, 3), F32)
    text, *_ = (text for _, text in kernels(chamfer, many, many))
    body = text[text.index("for (int i = ") :]
    assert "b[" not in body and text.count("* b_j];") == 1
    a, b = drawn(70, 3), drawn(96, 3)
    with config.using(executor="shim"):
        np.testing.assert_allclose(ge2.jit(chamfer)(a, b), chamfer(a, b), rtol=1e-5)


@needs_compiler
def test_what_is_returned_twice_is_written_twice() -> None:
    """By the kernel that makes it: a copy would read it as well. The caller has two arrays."""

    def f(x: Any, y: Any) -> Any:
        z = np.tanh(x) * y.sum(1, keepdims=True)
        return z, z.sum(0), z

    x, y = drawn(512, 520), drawn(512, 40)
    assert "pointwise" not in [kernel.kind for kernel, _ in kernels(f, x, y)]
    with config.using(executor="shim"):
        first, _, second = ge2.jit(f)(x, y)
    np.testing.assert_allclose(first, f(x, y)[0], rtol=2e-5, atol=1e-5)
    assert not np.shares_memory(first, second)
    np.testing.assert_array_equal(first, second)
