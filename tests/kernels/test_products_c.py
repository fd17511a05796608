"""Products of a matrix and a vector, thin ones and many tiny ones, as they lie:
exact for small integers.
"""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.choice import Pin, Problem
from ge2.compile.catalog import select
from ge2.ir import ArrayType
from ge2.ops.dot import DotGeneral
from ge2.targets.c.tuning import Products, Tuning
from tests.compared import all_equal
from tests.together import needs_compiler

pytestmark = needs_compiler
DTYPES = (np.float32, np.float64, np.complex64, np.complex128, np.float16, ml_dtypes.bfloat16)
SHAPES = (
    *(((90, 100), (100,)), ((90,), (90, 100)), ((1, 90), (90, 100)), ((90, 100), (100, 1))),
    *(
        ((2, 2), (2, 1500)), ((1500, 3), (3, 3)), ((60, 4), (4, 70)), ((4, 1), (1, 1200)),
        ((50, 1), (1, 90)),
    ),
    *(((2, 2000), (2000, 2)), ((8, 90), (90, 100))),
    *(
        ((70, 4, 4), (70, 4, 4)),
        ((70, 2, 3), (70, 3, 1)),
        ((5000, 4, 4), (4, 4)),
        ((3, 2, 2), (3, 2, 900)),
    ),
    *(((300,), (300,)), ((3, 300), (300,)), ((20, 17), (17,)), ((30, 100), (100,))),
    *(((0, 3), (3, 4000)), ((90, 0), (0, 90)), ((9, 30, 20), (9, 20, 1))),
)  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_products_are_exact(dtype):
    rng = np.random.default_rng(0)
    pairs, expected = [], []
    for m, n in SHAPES:
        a, b = rng.integers(-1, 2, m), rng.integers(-1, 2, n)
        if np.dtype(dtype).kind == "c":
            a, b = a + 1j * rng.integers(-1, 2, m), b + 1j * rng.integers(-1, 2, n)
        pairs.append((a.astype(dtype), b.astype(dtype)))
        expected.append(a @ b)

    def every(pairs):
        """Views are taken inside, so that products read them as they lie."""
        return [[x @ y for x in transposed(a) for y in transposed(b)] for a, b in pairs]

    def transposed(x):
        return x, np.swapaxes(np.swapaxes(x, 0, -1).copy(), 0, -1)

    for products, y in zip(ge2.jit(every)(pairs), expected, strict=True):
        for x in products:
            assert x.dtype == dtype
            np.testing.assert_array_equal(x.astype(y.dtype), y)


PANELS = (
    ((37, 50), (50, 41)), ((13, 400), (400, 16)), ((5, 12, 40), (5, 40, 64)),
    ((37, 50), (50, 4)), ((25, 300), (300, 8)), ((40, 50), (50, 13)), ((3, 30, 9), (3, 9, 7)),
)  # fmt: skip
WRAPPING = (np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64)


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "dtype", [*DTYPES[:2], np.float16, *WRAPPING], ids=lambda d: np.dtype(d).name
)
def test_panels_are_exact_at_ragged_sizes_and_any_strides(dtype, threads):
    rng = np.random.default_rng(0)
    whole = np.dtype(dtype).kind in "iu"
    low, high = (-(2**40), 2**40) if whole else (-2, 3)
    pairs = [
        tuple(rng.integers(low, high, n).astype(np.int64).astype(dtype) for n in shapes)
        for shapes in PANELS
    ]

    def every(pairs):
        """Views are taken inside, so that products read them as they lie."""
        return [[x @ y for x, y in views(a, b)] for a, b in pairs]

    def views(a, b):
        turned = [np.swapaxes(np.swapaxes(x, -1, -2).copy(), -1, -2) for x in (a, b)]
        yield from ((a, b), turned, (a[..., ::-2, :], b[..., 1:]))

    pin, few = Pin("product in C", "panels"), Tuning(products=Products(wake=0, high=24, task=1))
    with config.using(pins=(pin,), tuning=(few,), threads=threads):
        found = ge2.jit(every)(pairs)
    expected = every(pairs if whole else [(a.astype(float), b.astype(float)) for a, b in pairs])
    for products, wanted in zip(found, expected, strict=True):
        for x, y in zip(products, wanted, strict=True):
            assert x.dtype == dtype
            np.testing.assert_array_equal(x, y)


FEW = (
    ((2, 64), (64, 64)),
    ((7, 401), (401, 133)),
    ((32, 79), (79, 300)),
    ((5, 1300), (1300, 70)),
    ((3, 5, 90), (3, 90, 65)),
)


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "dtype", [*DTYPES[:2], *DTYPES[4:], *WRAPPING[2:]], ids=lambda d: np.dtype(d).name
)
def test_few_rows_times_lines_are_exact_at_ragged_sizes_and_any_strides(dtype, threads):
    rng = np.random.default_rng(0)
    pairs = [tuple(rng.integers(-9, 9, n).astype(dtype) for n in shapes) for shapes in FEW]

    def every(pairs):
        return [[x @ y for x, y in views(a, b)] for a, b in pairs]

    def views(a, b):
        yield from ((a, b), (a[..., ::-1], b[..., ::-1, :]), (a[..., 2:, :], b[..., 1:]))
        yield a, np.swapaxes(np.swapaxes(b, -1, -2).copy(), -1, -2)
        for x, y in ((a, b), (a.copy(), np.swapaxes(np.swapaxes(b, -1, -2).copy(), -1, -2))):
            yield np.swapaxes(y, -1, -2), np.swapaxes(x, -1, -2)

    pin, few = (
        Pin("product in C", "lines"),
        Tuning(products=Products(wake=0, task=1, far=0, dots=32, vector=512)),
    )
    with config.using(pins=(pin,), tuning=(few,), threads=threads):
        found = ge2.jit(every)(pairs)
        choices = ge2.jit(every).lower(pairs).choices.values()
    assert sum(c.taken.variant.name == "lines" for c in choices) > len(FEW)
    wide = [tuple(x.astype(np.float32) for x in pair) for pair in pairs]
    for products, wanted in zip(found, every(wide if dtype in DTYPES[4:] else pairs), strict=True):
        for x, y in zip(products, wanted, strict=True):
            assert x.dtype == dtype
            np.testing.assert_array_equal(x, y.astype(dtype))


@pytest.mark.parametrize("dtype", DTYPES[4:], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_half_types_are_widened_as_they_lie(dtype, rows, rng):
    """A matrix that is read by its rows, `x @ w.T`, is not turned while it is widened."""
    x, w = (
        rng.integers(-3, 4, (rows, 300)).astype(dtype),
        rng.integers(-3, 4, (500, 300)).astype(dtype),
    )
    low = ge2.jit(lambda x, w: x @ w.T).lower(x, w)
    wanted = (x.astype(np.float32) @ w.astype(np.float32).T).astype(dtype)
    np.testing.assert_array_equal(low.executable(x, w)[0], wanted)
    text = low.as_text("c")
    assert "ge2_pack_columns" in text or "ge2_transpose" not in text


@pytest.fixture
def unpacked(request, monkeypatch):
    """The multiplications up to which BLAS is taken to pack nothing, in place of this machine's."""
    monkeypatch.setattr("ge2.targets.c.libraries.unpacked", lambda: request.param)
    config.renew()
    yield request.param
    config.renew()


def ways(f, *shapes):
    lowered = ge2.jit(f).lower(*(np.zeros(shape) for shape in shapes))
    return [choice.taken.variant.name for choice in lowered.choices.values()]


@pytest.mark.parametrize("unpacked", [0, 1_000_000], indirect=True)
def test_few_rows_times_lines_are_chosen_where_they_are_quicker(unpacked):
    small = ["BLAS" if unpacked else "lines"]  # it reads the rows of a right operand as they lie
    assert ways(lambda a, b: a @ b, (8, 300), (300, 300)) == small
    assert ways(lambda a, b: a.T @ b, (300, 300), (300, 8)) == small
    assert ways(lambda a, b: a @ b, (8, 500), (500, 500)) == ["lines"]
    assert ways(lambda a, b: np.einsum("bij,bjk->bik", a, b), (3, 8, 300), (3, 300, 300)) == small
    assert ways(lambda a, b: a @ b.T, (8, 400), (400, 400)) == ["lines"]
    assert ways(lambda a, b: a @ b, (400, 400), (400, 2)) == small
    assert ways(lambda a, b: a @ b.T, (8, 300), (300, 300)) == ["lines"]
    assert ways(lambda a, b: a @ b.T, (8, 100), (100, 100)) != ["lines"]
    assert ways(lambda a, b: a @ b, (400, 400), (400, 8)) == ["panels"]
    assert ways(lambda a, b: a @ b, (400, 1000), (1000, 5)) == ["panels"]
    assert ways(lambda a, b: a @ b, (64, 300), (300, 300)) != ["lines"]


@pytest.mark.parametrize("unpacked", [0, 1_000_000], indirect=True)
def test_a_blas_that_packs_no_small_operand_comes_before_panels_where_rows_lie_in_one_piece(
    unpacked,
):
    usual = ["BLAS" if unpacked else "panels"]
    assert ways(lambda a, b: a @ b, (200, 64), (64, 64)) == usual
    assert ways(lambda a, b: a @ b, (8, 64, 32), (8, 32, 64)) == usual
    assert ways(lambda a, b: a @ b, (500, 64), (64, 64)) == ["panels"]
    assert ways(lambda a, b: a @ b.T, (200, 64), (64, 64)) == ["panels"]
    tall = ["panels" if unpacked else "BLAS"]
    assert ways(lambda a, b: a @ b.T, (200, 150), (8, 150)) == tall
    assert ways(lambda a, b: a @ b.T, (16, 300), (100, 300)) != ["panels"] or not unpacked


@pytest.mark.parametrize("narrow", [False, True])
def test_panels_are_chosen_where_they_are_quicker(narrow, monkeypatch):
    monkeypatch.setattr("ge2.targets.c.libraries.is_narrow", lambda: narrow)

    def chosen(a, b, dtype):
        types = [ArrayType(shape, np.dtype(dtype)) for shape in (a, b)]
        beside = tuple(range(len(a) - 2))
        op = DotGeneral(((len(a) - 1,), (len(b) - 2,)), (beside, beside))
        return select(Problem(op, tuple(types), op.infer(*types), "c")).taken.variant.name

    assert chosen((300, 300), (300, 300), "i4") == "panels"
    assert chosen((2, 300), (300, 300), "i4") == "loops"
    assert chosen((64, 32, 32), (64, 32, 32), "f8") == "panels"
    assert chosen((4096, 64), (64, 64), "f4") == "panels"
    assert chosen((512, 512), (512, 512), "f4") == "panels"
    large = chosen((1024, 1024), (1024, 1024), "f4"), chosen((64, 768), (768, 768), "f8")
    assert large == (("panels", "panels") if narrow else ("BLAS", "BLAS"))
    few_long_sums = chosen((16, 100_000), (100_000, 16), "f4")
    assert (
        few_long_sums == "BLAS"
    )  # which parts of terms are shared for: 328 us, and 1861 by panels


def test_strides_of_vectors_and_matrices():
    rng = np.random.default_rng(1)
    a, x = rng.integers(-3, 4, (80, 160)).astype(float), rng.integers(-3, 4, 480).astype(float)
    cases = {
        "every third": lambda a, x: a @ x[::3],
        "backwards": lambda a, x: a @ x[159::-1],
        "columns": lambda a, x: a[:, ::2] @ x[:80],
        "rows": lambda a, x: x[:40] @ a[::2],
        "one number": lambda a, x: a @ np.broadcast_to(x[:1], (160,)),
        "a column": lambda a, x: x[:80] @ a[:, 3:100].copy() + a[:, 5] @ a[:, 3:100],
        "turned": lambda a, x: a.T[:, ::2] @ x[:40],
    }
    found = ge2.jit(lambda a, x: [f(a, x) for f in cases.values()])(a, x)
    for (name, f), y in zip(cases.items(), found, strict=True):
        np.testing.assert_array_equal(y, f(a, x), err_msg=name)


@pytest.mark.full_options
def test_a_vector_in_a_loop_is_passed_to_the_blas_with_its_whole_step():
    """All sizes are numbers there: gcc 12 took the calls for 32 and for 64 bits for one."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((500, 500))

    def three(product):
        return ge2.jit(lambda a, x: ge2.lax.fori_loop(0, 3, lambda _, x: 0.01 * product(a, x), x))

    for product in (lambda a, x: a @ x, lambda a, x: x @ a):
        wanted = a[0]
        for _ in range(3):
            wanted = 0.01 * product(a, wanted)
        np.testing.assert_allclose(three(product)(a, a[0].copy()), wanted, rtol=1e-9, atol=1e-12)


def test_a_product_compiles_the_functions_of_its_size_alone():
    def text(m, n):
        return ge2.jit(lambda a, b: a @ b).lower(np.ones(m), np.ones(n)).as_text("c")

    small, medium, large = text((9, 9), 9), text((300, 400), 400), text((2000, 1500), 1500)
    assert "ge2_product_any_lines_f64(" in small
    assert "ge2_product_alone_f64(" in medium
    assert "ge2_each_line_8_f64(" in large
    assert "vector_product.h" not in small + medium


@pytest.mark.exhaustive
@pytest.mark.parametrize("shapes", [((900, 17, 17), (900, 17, 14)), ((3000, 4, 1), (3000, 1, 300))])
def test_many_tiny_products_of_complex_numbers_are_loops(shapes):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 10, s) + 1j * rng.integers(-9, 10, s) for s in shapes)
    multiplied = ge2.jit(lambda a, b: a @ b)
    assert "ge2_tiny_products_lines_c128(" in multiplied.lower(a, b).as_text("c")
    for threads in (1, 3):
        with config.using(threads=threads):
            np.testing.assert_array_equal(ge2.jit(lambda a, b: a @ b)(a, b), a @ b)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", DTYPES[:4])
def test_the_edge_of_a_large_product_may_be_tiny(dtype):
    """Of 1025 rows the last is a tile: of a matrix times another, and times itself transposed."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 10, s).astype(dtype) for s in ((1025, 64), (64, 64)))
    with config.using(threads=3):
        found = ge2.jit(lambda a, b: (a @ b, a @ a.T))(a, b)
    np.testing.assert_array_equal(found[0], a @ b)
    np.testing.assert_array_equal(found[1], a @ a.T)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_of_few_columns_are_not_waited_for_in_loops(dtype):
    """Normal equations: few results, each a sum of some hundred terms, are calls of BLAS."""
    rng = np.random.default_rng(0)
    a, r = rng.integers(-9, 10, (450, 5)).astype(dtype), rng.integers(-9, 10, 450).astype(dtype)

    def calls(f, *xs):
        return set(re.findall(r"ge2_product_\w+(?=\()", str(ge2.jit(f).lower(*xs).kernels[0])))

    suffix = {4: "f32", 8: "f64"}[a.itemsize]
    assert calls(lambda a, r: a.T @ r, a, r) == {f"ge2_product_alone_{suffix}"}
    assert calls(lambda a, r: a.T @ a, a, r) == {f"ge2_product_with_itself_{suffix}"}
    assert calls(lambda a, r: a.T @ r, a[:9, :3], r[:9]) == {f"ge2_product_any_lines_{suffix}"}
    found = ge2.jit(lambda a, r: (a.T @ r, a.T @ a, r @ a, a.T @ a[:, :3]))(a, r)
    all_equal(found, (a.T @ r, a.T @ a, r @ a, a.T @ a[:, :3]))
    drawn = rng.normal(size=(100, 7)).astype(dtype)
    gram = ge2.jit(lambda a: a.T @ a)(drawn)
    np.testing.assert_array_equal(gram, gram.T)


def test_thin_products_are_loops_and_tiny_ones_are_written_for_their_size():
    def text(m, n):
        f = ge2.jit(lambda a, b: a @ b)
        return " ".join(f.lower(np.ones(m), np.ones(n)).as_text("c").split()).replace("( ", "(")

    assert "ge2_product_terms_f64(rows, columns, 2, " in text((2, 2), (2, 16384))
    rows, columns = text((300, 2), (2, 100)), text((3000, 2), (2, 3))
    assert (
        "ge2_product_terms_f64(rows, columns, 2, " in rows
        and "rows * columns, columns, 1 )" in rows
    )
    assert (
        "ge2_product_terms_f64(columns, rows, 2, " in columns
        and "rows * columns, 1, columns )" in columns
    )
    assert "ge2_product_tiny_f64(4, 4, 4, " in text((65536, 4, 4), (65536, 4, 4))
    assert "ge2_product_terms" not in text((700, 700), (700, 700))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_vectors_and_long_sums_are_exact_on_any_threads(dtype):
    """Those that a BLAS would wake threads of its own for, and few results of many terms."""
    rng = np.random.default_rng(0)
    a, tall = rng.integers(-1, 2, (700, 301)).astype(dtype), rng.integers(-1, 2, (90_001, 9))
    tall, x, y = tall.astype(dtype), a[5], a[:, 7].copy()

    def every(a, tall, x, y):
        turned = np.swapaxes(a, 0, 1)
        vectors = a @ x, y @ a, turned @ y, x @ turned
        return *vectors, tall.T @ (tall + 1), tall @ x[:9], y[:9] @ tall.T

    for threads in (1, 2):
        with config.using(threads=threads):
            found = ge2.jit(every)(a, tall, x, y)
        all_equal(found, every(a, tall, x, y))
