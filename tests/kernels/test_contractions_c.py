"""Products with what follows them in C: the same numbers as in steps, in each way to multiply."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.choice import Pin
from ge2.targets.c.tuning import Products, Tuning
from tests.compared import all_close, all_equal
from tests.kernels.random_epilogues import PRODUCT, Node, Program, programs, traced
from tests.together import needs_compiler

FAMILY: Final = "contraction in C"
F32, F64 = np.dtype(np.float32), np.dtype(np.float64)
# of a kilobyte or so a task, however small a product is
FINE: Final = Tuning(
    products=Products(near=0, panel=1 << 11, first=1 << 9, wake=0, task=1, high=24, many=1)
)
WAYS: Final = ("panels", "BLAS", "loops of known sizes")


def whole(rng: np.random.Generator, *shape: int, dtype: Any = F32) -> Any:
    """Whole numbers, of which sums are exact."""
    return rng.integers(-4, 5, shape).astype(dtype)


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layers(x: Any, w: Any, b: Any, r: Any, many: Any, others: Any) -> list[Any]:
    """Layers whose products are whole numbers: of matrices as they lie and not, and of batches."""
    turned = np.maximum(w.T[:, ::2] @ x.T[::2] - r.T, 0)
    y = x @ w + b
    batch = np.maximum(many @ others + b[:5], 0)
    return [np.maximum(y, 0), turned, x * 2 - (r @ w.T), batch, abs(many) @ many - others]


def taken(f: Any, *xs: Any) -> list[str]:
    choices = ge2.jit(f).lower(*xs).choices.values()
    return [c.taken.variant.name for c in choices if c.taken.family.name == FAMILY]


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", [F32, F64, np.dtype(np.int32)], ids=str)
def test_whole_numbers_are_exact_at_ragged_sizes(dtype: Any, threads: int) -> None:
    rng = np.random.default_rng(0)
    shapes = (101, 66), (66, 37), (37,), (101, 37), (61, 5, 5), (61, 5, 5)
    xs = [whole(rng, *shape, dtype=dtype) for shape in shapes]
    ways = WAYS if dtype.kind == "f" else WAYS[:1]
    for way in ways:
        with config.using(pins=(Pin(FAMILY, way),), tuning=(FINE,), threads=threads):
            assert way in taken(layers, *xs)
            all_equal(ge2.jit(layers)(*xs), layers(*xs))


@needs_compiler
@pytest.mark.parametrize("dtype", [F32, F64, np.dtype(np.int32)], ids=str)
def test_operands_have_steps_along_both_axes(dtype: Any) -> None:
    """Neither their lines nor their terms are neighbours."""
    rng = np.random.default_rng(4)
    x, w = (whole(rng, *s, dtype=dtype) for s in ((180, 134), (134, 170)))

    def stepped(x: Any, w: Any) -> Any:
        return np.maximum(x[::2, ::2] @ w[::2, ::2] + w[0, 1], 0)

    for way in WAYS if dtype.kind == "f" else WAYS[:1]:
        with config.using(pins=(Pin(FAMILY, way),), tuning=(FINE,)):
            all_equal([ge2.jit(stepped)(x, w)], [stepped(x, w)])


@needs_compiler
@pytest.mark.parametrize("way", WAYS[:2])
def test_rows_are_folded_where_their_product_is(way: str) -> None:
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(s).astype(F32) for s in ((333, 40), (40, 50)))

    def both(x: Any, w: Any) -> Any:
        y = x @ w
        return softmax(y), y.sum(1), np.tanh(y)

    with config.using(pins=(Pin(FAMILY, way),), tuning=(FINE,), threads=2):
        assert taken(both, x, w) == [way]
        found = ge2.jit(both)(x, w)
    all_close(found, both(x.astype(F64), w.astype(F64)), rtol=2e-5, atol=2e-5)


def test_what_is_refused_and_what_is_left_apart() -> None:
    def words(f: Any, *shapes: tuple[int, ...]) -> str:
        xs = [np.zeros(shape, F32) for shape in shapes]
        with config.using(threads=1, tuning=(Tuning(),)):
            return str(ge2.explain(f)(*xs))

    relu = lambda x, w: np.maximum(x @ w, 0)  # noqa: E731
    assert "its product stays in a near cache as it is" in words(relu, (64, 64), (64, 64))
    large = words(relu, (600, 64), (64, 300))
    assert f"taken  {FAMILY}, " in large  # by panels or by BLAS, as this processor's rates are
    assert f"{FAMILY}, panels" in large
    assert "or     product, then region in C" in large
    lines = words(relu, (8, 5000), (5000, 5000))
    assert "its product is quickest by lines, all at once" in lines
    across = words(lambda x, w: np.tanh(x @ w).T, (600, 64), (64, 300))
    assert "what follows does not go by rows, or may fail" in across
    assert "taken  product, then region in C" in across
    itself = words(lambda x: np.maximum(x @ x.T, 0), (600, 64))
    assert "taken  product in C, half by BLAS, mirrored" in itself
    columns = lambda x, w: np.tanh(x @ w).sum(0)  # noqa: E731
    assert FAMILY not in [
        t for t in words(columns, (600, 64), (64, 300)).split("\n") if "taken" in t
    ]


def in_type(program: Program, dtype: Any) -> Program:
    """The program of arrays of one type, without the sums of its columns."""
    nodes = tuple(with_type(node, dtype) for node in program.nodes)
    arrays = {name: np.asarray(x, dtype) for name, x in program.arrays.items()}
    return replace(program, nodes=nodes, sums=(), arrays=arrays)


def with_type(node: Node, dtype: Any) -> Node:
    return replace(node, dtype=dtype, parts=tuple(with_type(part, dtype) for part in node.parts))


def written(program: Program) -> Any:
    """The function as a user writes it, its product in its own type."""

    def function(*arrays: Any) -> Any:
        held = dict(zip(program.names, arrays, strict=True))
        a, b = (held[n].T if t else held[n] for n, t in zip("ab", program.turned, strict=True))
        return program.results({**held, PRODUCT: a @ b}, traced)

    return function


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(48))
def test_random_epilogues_are_no_further_from_float64_than_in_numpy(seed: int) -> None:
    dtype, way = (F32, F64)[seed % 2], WAYS[seed // 2 % 2]
    program = in_type(next(programs(seed, 1)), dtype)
    function, xs = written(program), tuple(program.arrays.values())
    with config.using(pins=(Pin(FAMILY, way),), tuning=(FINE,), threads=1 + seed // 4 % 3):
        # fusion may leave several results, or a turned array, in two regions that read the product
        one = len(program.nodes) == 1 and "turned" not in program.names
        assert not one or taken(function, *xs) == [way]
        found = ge2.jit(function)(*xs)
    wide = np.longdouble if dtype == F64 else F64
    exact = function(*(x.astype(wide) for x in xs))
    eps = np.finfo(dtype).eps
    for y, plain, wanted in zip(found, function(*xs), exact, strict=True):
        largest = np.abs(wanted).max()
        own, two = (float(np.abs(each - wanted).max()) for each in (y, plain))
        assert own <= 2 * two + 8 * eps * (largest + 1)
