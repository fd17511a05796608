"""Small products with what is done to their elements: which become one, and
that no number changes.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2 import lax
from ge2.base.arrays import HALF
from ge2.base.config import config
from ge2.cli import demo as digits
from ge2.compile.contractions import contractions
from ge2.compile.pipeline import rewritten
from ge2.ir import verify
from ge2.ops.graphs.contraction import is_contraction, steps_of
from ge2.passes.context import Context
from ge2.targets.cuda.emit import bare
from ge2.targets.cuda.limits import A100, H200
from ge2.targets.cuda.products.tensor_epilogue import RegionEpilogue
from tests.codegen.texts import kernels
from tests.nvrtc import needs_nvrtc
from tests.templates.cuda_harness import ARCHITECTURES, compiled
from tests.together import needs_compiler

F32 = np.dtype(np.float32)
TOGETHER = "contraction"


def drawn(*shape: int, dtype: Any = F32, seed: int = 0) -> Any:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype)


X, W, B = drawn(20, 18), drawn(18, 24), drawn(24)


def ops(f: Any, *xs: Any) -> list[str]:
    """The operations after the pass, which gives what was there before it."""
    before = rewritten(ge2.make_jaxpr(f)(*xs).graph, "reference")
    after = verify(contractions(before, Context(H200)))
    for y, w in zip(after(*xs), before(*xs), strict=True):
        np.testing.assert_array_equal(y, w)
    return ["contraction" if is_contraction(e.op) else e.op.name for e in after.eqns]


def layer(x: Any, w: Any, b: Any) -> Any:
    return np.maximum(x @ w + b, 0)


# ---------------------------------------------------------------------------------------- the graph


def test_a_region_becomes_part_of_the_product_that_it_reads() -> None:
    assert ops(layer, X, W, B) == ["contraction"]
    two = ops(lambda x, w, b: layer(layer(x, w, b), w.T, b[:18]), X, W, B)
    assert sorted(two) == ["contraction", "contraction", "slice", "transpose"]
    assert "contraction" in ops(lambda x, w, b: layer(x[::2], w, b), X, W, B)


def test_what_follows_a_product_is_stated_once_for_all_tiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stated, lanes = Counter[int](), RegionEpilogue.lanes

    def counted(self: RegionEpilogue, pack: int) -> Any:
        stated[pack] += 1
        return lanes(self, pack)

    monkeypatch.setattr(RegionEpilogue, "lanes", counted)
    x, w, b = (np.zeros(n, ml_dtypes.bfloat16) for n in ((4096, 512), (512, 1024), 1024))
    graph = rewritten(ge2.make_jaxpr(layer)(x, w, b).graph, "reference")
    assert is_contraction(contractions(graph, Context(A100)).eqns[0].op)
    assert max(stated.values()) == 2  # the one is looked at, the other is written


def test_what_folds_is_parted() -> None:
    """The gradient of a bias reads what the product's kernel wrote."""

    def f(x: Any, w: Any, mask: Any) -> Any:
        ct = (x @ w) * mask
        return ct, ct.sum(0) * 0.9

    assert ops(f, X, W, drawn(20, 24)) == ["contraction", "region"]


@needs_compiler
@pytest.mark.parametrize("dtype", [F32, np.dtype(ml_dtypes.bfloat16)])
def test_what_others_read_of_a_product_is_written_as_well(dtype: Any) -> None:
    """It may be a result, or read again, as the argument of an activation is by its derivative."""
    x, w, b = (each.astype(dtype) for each in (X, W, B))
    returned = lambda x, w, b: (x @ w, layer(x, w, b))  # noqa: E731
    twice = lambda x, w, b: (lambda y: (y + b, (y @ w.T).sum()))(x @ w)  # noqa: E731
    for f in (returned, twice):
        assert ops(f, X, W, B)[0] == "contraction"
        with config.using(executor="shim"):
            found = ge2.jit(f)(x, w, b)
        for y, wanted in zip(found, f(*(each.astype("f8") for each in (x, w, b))), strict=True):
            unit = 2.0**-6 if dtype.itemsize == 2 else 1e-5
            np.testing.assert_allclose(y.astype("f8"), wanted, rtol=unit, atol=20 * unit)


def test_what_is_read_before_the_region_stays_apart() -> None:
    """What the first reader is, no kernel of the second may be."""

    def f(x: Any, w: Any, b: Any) -> Any:
        y = x @ w
        return y @ w.T, y + b

    assert "contraction" not in ops(f, X, W, B)


def test_what_stays_apart() -> None:
    cases = {
        "what is folded is not returned": lambda x, w, b: (x @ w + b).sum(0),
        "a row is known first": lambda x, w, b: (lambda y: y - y.max(1, keepdims=True))(x @ w),
        "both ways round": lambda x, w, b: (lambda y: y - 2 * y.T)(x.T @ x),
        "more axes": lambda x, w, b: (x @ w) * b[:3].reshape(3, 1, 1),
    }
    for name, f in cases.items():
        assert "contraction" not in ops(f, X, W, B), name


def test_what_lies_apart_and_large_products_stay_apart() -> None:
    assert "contraction" not in ops(lambda x, w: np.tanh(x[:, ::2] @ w[:9]), X, W)
    x, w = np.zeros((64, 1024), F32), np.zeros((1024, 1024), F32)
    assert "contraction" not in ops(lambda x, w: np.tanh(x @ w), x, w)


def test_a_region_of_very_many_arrays_stays_apart() -> None:
    def f(x: Any, w: Any, *more: Any) -> Any:
        y = x @ w
        for each in more:
            y = y * each
        return y

    assert "contraction" in ops(f, X, W, *(drawn(20, 24, seed=n) for n in range(10)))
    assert "contraction" not in ops(f, X, W, *(drawn(20, 24, seed=n) for n in range(30)))


def test_tiny_products_near_a_loop_are_left_to_it() -> None:
    def f(x: Any, w: Any, b: Any) -> Any:
        y = layer(x, w, b)
        return lax.fori_loop(0, 10, lambda i, y: np.tanh(y), y)

    assert "contraction" in ops(f, X, W, B)  # and is opened again
    graph = ge2.make_jaxpr(f)(X, W, B).graph
    assert [e.op.name for e in rewritten(graph, "cuda", Context(H200)).eqns] == ["resident"]


def test_the_operation_refuses_other_types() -> None:
    before = rewritten(ge2.make_jaxpr(layer)(X, W, B).graph, "reference")
    (eqn,) = contractions(before, Context(H200)).eqns
    assert steps_of(eqn.op).product is eqn.op.graph.eqns[0] is eqn.op.root
    with pytest.raises(TypeError, match="region of 3 inputs"):
        eqn.op.infer(*(v.type for v in eqn.inputs[:2]))


# --------------------------------------------------------------------------------------- the kernel


def on_shim(f: Any, *xs: Any, **how: Any) -> tuple[Any, list[str]]:
    with config.using(executor="shim", **how):
        g = ge2.jit(f)
        found = g(*xs)
        kinds = [k.kind for k in g.lower(*xs).executable.kernels]
    return found, kinds


def same(f: Any, *xs: Any, together: int = 1) -> None:
    """The same bits as by two kernels, and NumPy's numbers."""
    found, kinds = on_shim(f, *xs)
    wanted, apart = on_shim(f, *xs, passes_off=("epilogue",))
    assert kinds.count(TOGETHER) == together and TOGETHER not in apart
    leaves = ge2.tree_util.tree_leaves
    for y, w, n in zip(leaves(found), leaves(wanted), leaves(f(*xs)), strict=True):
        np.testing.assert_array_equal(y, w)
        close = 2e-2 if y.dtype in HALF else 1e-4
        np.testing.assert_allclose(
            *(np.asarray(z, np.float64) for z in (y, n)), rtol=close, atol=close
        )


@pytest.mark.exhaustive
@needs_compiler
@pytest.mark.parametrize(
    "dtype", [F32, np.dtype("f8"), np.dtype("f2"), np.dtype(ml_dtypes.bfloat16)], ids=str
)
def test_a_layer(dtype: np.dtype) -> None:
    same(layer, *(x.astype(dtype) for x in (X, W, B)))


@needs_compiler
def test_all_kinds_of_operands() -> None:
    """Rows, columns, bools, numbers of Python's and of the host's, an operand
    that is multiplied as well.
    """

    def f(x: Any, w: Any, column: Any, mask: Any, scale: Any) -> Any:
        y = np.where(mask, x @ w, column[:, None]) * scale + x
        return y, y > 0, (y * 100).astype(np.int32)

    x, w = drawn(18, 18), drawn(18, 18, seed=1)
    same(f, x, w, drawn(18), drawn(18, 18) > 0, 0.75)


@needs_compiler
def test_random_bits_are_those_of_their_places() -> None:
    """A dropout: which elements stay is known by their places among all."""
    key = ge2.random.key(3)
    same(lambda x, w: (x @ w) * (ge2.random.uniform(key, (20, 24), dtype=F32) < 0.5), X, W)


@needs_compiler
def test_results_of_a_row_alone() -> None:
    same(lambda x, w, b: (layer(x, w, b), np.tanh(b) * 2), X, W, B)


@needs_compiler
@pytest.mark.parametrize(
    ("axes", "shapes"),
    [
        ("ijk,k->ij", ((4, 16, 32), (32,))),
        ("hijk,jk->hi", ((4, 5, 16, 32), (16, 32))),
        ("k,ijk->ij", ((32,), (4, 16, 32))),
        ("bijk,bk->bij", ((3, 4, 16, 32), (3, 32))),
    ],
)
def test_lines_of_several_axes_by_a_vector_are_no_matrix(
    axes: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    """Gates of tokens: the result has two axes, which were taken for rows and columns."""
    x, y = (drawn(*shape) for shape in shapes)
    same(lambda x, y: 1 / (1 + np.exp(-np.einsum(axes, x, y))), x, y, together=0)


@needs_compiler
def test_the_parted_region() -> None:
    def f(x: Any, w: Any, mask: Any, mean: Any) -> Any:
        ct = (x @ w) * mask
        mean = 0.9 * mean + 0.1 * ct.sum(0)
        return ct, mean, np.sqrt(abs(mean))

    same(f, X, W, drawn(20, 24) > 0, B)


@needs_compiler
def test_state_is_written_over_what_was_donated() -> None:
    """New weights take the memory of the old ones, which the product does not read."""

    def f(w: Any, x: Any, ct: Any) -> Any:
        return w - 0.1 * (x.T @ ct)

    x, ct, w = drawn(20, 18), drawn(20, 24, seed=2), drawn(18, 24, seed=3)
    wanted = f(w, x, ct)
    with config.using(executor="shim", check=False):
        g = ge2.jit(f, donate_argnums=0)
        given = w.copy()
        found = g(given, x, ct)
    assert found.ctypes.data == given.ctypes.data
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@needs_compiler
def test_what_is_multiplied_is_not_written_over() -> None:
    def f(w: Any, x: Any) -> Any:
        return w - 0.1 * (x @ w)

    x, w = drawn(40, 40) / 40, drawn(40, 40, seed=1)
    wanted = f(w, x)
    with config.using(executor="shim"):
        found = ge2.jit(f, donate_argnums=0)(w.copy(), x)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@needs_compiler
def test_threads_in_any_order_and_each_access_looked_at() -> None:
    found, _ = on_shim(layer, X, W, B, shim_seed=3, shim_watch=True)
    wanted, _ = on_shim(layer, X, W, B)
    np.testing.assert_array_equal(found, wanted)


def step(batch: int) -> dict[str, str]:
    """The kernels of the digits' training step by their text."""
    x, y = np.zeros((batch, digits.SIZES[0]), F32), np.zeros(batch, np.int64)
    state = digits.start()
    return {
        bare(text): kernel.kind
        for kernel, text in kernels(lambda *a: digits.train_step(state, *a), x, y)
    }


def test_the_digits_have_a_kernel_a_product() -> None:
    found = step(128)
    assert [*found.values()].count(TOGETHER) == 5  # of seven: two pairs share theirs
    assert [*found.values()].count("small product") == 1
    assert step(96).keys() == found.keys() == step(127).keys()


@pytest.mark.exhaustive
@needs_nvrtc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_spills(architecture: str) -> None:
    def adam(w: Any, m: Any, v: Any, x: Any, ct: Any) -> Any:
        g = x.T @ ct
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        return w - 1e-3 * m / (np.sqrt(v) + 1e-8), m, v

    w = drawn(18, 24)
    for f, xs in ((layer, (X, W, B)), (adam, (w, w, w, X, drawn(20, 24)))):
        ((kernel, text),) = kernels(f, *xs, arch=architecture)
        (usage,) = compiled(text, architecture).kernels
        assert kernel.kind == TOGETHER and not usage.spills
        assert usage.registers * kernel.block * 2 <= 1 << 16
