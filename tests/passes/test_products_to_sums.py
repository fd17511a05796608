"""Products with a vector, and those of few elements with long sums, are sums of products."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ge2
from ge2.base.arrays import BFLOAT16
from ge2.base.config import config
from ge2.compile.catalog import interpret
from ge2.ir import Graph, verify
from ge2.passes.context import TUNING, Context, ProductsToSums
from ge2.passes.linear_algebra import products_to_sums
from tests.compared import all_close, all_equal
from tests.exhaustive import examples
from tests.kernels.programs import needs_compiler
from tests.passes.graphs import after, lines, names

EINSUMS = {
    "ij,j->i": ((130, 140), (140,)),
    "ij,i->j": ((130, 140), (130,)),
    "i,i->": ((20_000,), (20_000,)),
    "i,ji->j": ((140,), (130, 140)),
    "bij,bj->bi": ((5, 70, 60), (5, 60)),
    "bji,bj->ib": ((5, 70, 60), (5, 70)),
    "aij,bj->aib": ((13, 20, 70), (1, 70)),
    "ki,kj->ij": ((2100, 3), (2100, 5)),
    "ik,kj->ji": ((3, 2100), (2100, 5)),
    "bki,kbj->bij": ((2, 2100, 3), (2100, 2, 5)),
    "abi,abj->ij": ((50, 50, 3), (50, 50, 4)),
}
DTYPES = {"f4": "f4", "f8": "f8", "f2": "f2", "bf16": BFLOAT16}
ANY = Context(tuning=TUNING.__class__(products_to_sums=ProductsToSums(smallest=1, long=1)))


def same(spec: str, shapes: tuple[tuple[int, ...], ...], dtype: str, context: Context) -> Graph:
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-9, 9, shape).astype(DTYPES[dtype]) for shape in shapes]
    graph = ge2.make_jaxpr(lambda a, b: np.einsum(spec, a, b))(*arrays).graph
    found = verify(products_to_sums(graph, context))
    all_equal(interpret(found, arrays), interpret(graph, arrays))
    return found


@pytest.mark.parametrize("spec", EINSUMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same(spec: str, dtype: str) -> None:
    """Of half types products with vectors alone: tensor cores are for the others."""
    found = names(same(spec, EINSUMS[spec], dtype, Context()))
    matrix = dtype in ("f2", "bf16") and spec in list(EINSUMS)[7:]
    assert ("dot_general" in found) is matrix


@settings(max_examples=examples(60))
@given(st.data())
def test_any_axes(data: st.DataObject) -> None:
    """Axes in any order: beside each other, summed over, of one operand."""
    letters = data.draw(st.permutations("bckdij"))
    left = data.draw(st.permutations([x for x in letters if x != "j"]))
    right = data.draw(st.permutations([x for x in letters if x != "i"]))
    out = data.draw(st.permutations([x for x in letters if x not in "kd"]))
    sizes = {x: data.draw(st.integers(1, 3)) for x in letters}
    shapes = tuple(tuple(sizes[x] for x in side) for side in (left, right))
    same(f"{''.join(left)},{''.join(right)}->{''.join(out)}", shapes, "f8", ANY)


@pytest.mark.parametrize(
    "shapes",
    [
        ((120, 130), (130,)),  # small
        ((300, 300), (300, 2)),  # of long rows a library's tile has enough
        ((21, 3000), (3000, 21)),
        ((16, 1 << 21), (1 << 21, 16)),
    ],
)
def test_others_are_products(shapes: tuple[tuple[int, ...], ...]) -> None:
    types = [ge2.ShapeDtypeStruct(shape, np.float64) for shape in shapes]
    graph = ge2.make_jaxpr(lambda a, b: a @ b)(*types).graph
    assert products_to_sums(graph) is graph


def test_of_two_vectors_there_is_no_product() -> None:
    """However short: of a thousand terms a library's kernel took 34 us of an H200."""
    text = after(
        products_to_sums,
        """{ lambda ; a:f64[1000] b:f64[1000]. let
        c:f64[] = dot_general[contract=((0,), (0,)) beside=((), ()) precision=None out=None] a b
        in (c,) }""",
    )
    assert "dot_general" not in text and "reduce_sum" in text


@pytest.mark.parametrize("executor", ["c", "emulator"])
def test_the_derivative_of_a_product_of_vectors_has_no_product(executor: str) -> None:
    """The cotangent is a number, perhaps a known one, times a vector that is made as it is read."""
    x, y = np.arange(6.0), np.linspace(-1, 1, 6)
    slopes = ge2.grad(lambda x, y: 0.5 * np.exp(x) @ y, (0, 1))
    with config.using(executor=executor):
        found = ge2.jit(slopes)(x, y)
    np.testing.assert_allclose(found, [0.5 * np.exp(x) * y, 0.5 * np.exp(x)], rtol=1e-14)


@pytest.mark.parametrize("columns", ["", ",3"])
def test_what_may_be_rounded_is_left_to_tensor_cores(columns: str) -> None:
    """But not a product with a vector, which waits for memory in either case."""
    text = f"""{{ lambda ; a:f32[9,3000] b:f32[3000{columns}]. let
        c:f32[9{columns}] = dot_general[contract=((1,), (0,)) beside=((), ()) precision=tf32 out=None] a b
        in (c,) }}"""
    assert ("dot_general" in after(products_to_sums, text)) is bool(columns)


def test_a_transposed_matrix_is_read_as_it_lies() -> None:
    text = """{ lambda ; a:f32[200,300] b:f32[200]. let
        t:f32[300,200] = transpose[order=(1, 0)] a
        c:f32[300] = dot_general[contract=((1,), (0,)) beside=((), ()) precision=None out=None] t b
        in (c,) }"""
    assert after(products_to_sums, text) == lines("""
        c:f32[200,300] = broadcast_in_dim[dims=(0,) shape=(200, 300)] b
        d:f32[200,300] = mul a c
        e:f32[300] = reduce_sum[axes=(0,)] d
        in (e,) }""")


def test_what_is_costly_is_computed_once() -> None:
    """For each element of the result it would be an exponential of every term."""
    text = """{ lambda ; a:f32[3000] b:f32[3000,3]. let
        c:f32[3000] = exp a
        d:f32[3000] = mul c 2.0:f32[]
        e:f32[3000,3] = broadcast_in_dim[dims=(0,) shape=(3000, 3)] d
        f:f32[3000,3] = mul b e
        g:f32[3,3] = dot_general[contract=((0,), (0,)) beside=((), ()) precision=None out=None] f b
        in (g,) }"""
    found = after(products_to_sums, text).splitlines()
    assert "c:f32[3000] = exp a" in found
    assert "d:f32[3000] = barrier c" in found
    assert "e:f32[3000] = mul d 2.0:f32[]" in found


def test_of_several_costly_parts_the_operand_is_stored() -> None:
    """It is as many bytes as any of them, and each element of the result reads it alone."""
    text = """{ lambda ; a:f32[3000,3] b:f32[3000,3]. let
        c:f32[3000,3] = tanh a
        d:f32[3000,3] = square c
        e:f32[3000,3] = sub c d
        f:f32[3,3] = dot_general[contract=((0,), (0,)) beside=((), ()) precision=None out=None] e b
        in (f,) }"""
    found = after(products_to_sums, text).splitlines()
    assert [line for line in found if "barrier" in line] == ["f:f32[3000,3] = barrier e"]


@needs_compiler
def test_a_step_with_a_vector_is_one_kernel(rng: np.random.Generator) -> None:
    """What is done to the operands and the result goes with the sum, and nothing is a library's."""

    def step(a, x, y):
        return np.tanh(a @ (x * 2) + y)

    a, x, y = (rng.normal(size=s).astype("f8") for s in ((150, 210), 210, 150))
    with config.using(executor="shim"):
        low = ge2.jit(step).lower(a, x, y)
        assert [s.kind for s in low.executable.program.steps] == ["kernel"]
        np.testing.assert_allclose(ge2.jit(step)(a, x, y), step(a, x, y), rtol=1e-11)
        gradient = ge2.jit(ge2.grad(lambda a, x, y: step(a, x, y).sum(), argnums=(0, 1)))
        plain = ge2.grad(lambda a, x, y: step(a, x, y).sum(), argnums=(0, 1))(a, x, y)
        all_close(gradient(a, x, y), plain, rtol=1e-9, atol=1e-9)


@needs_compiler
def test_long_sums_of_few_elements(rng: np.random.Generator) -> None:
    def moments(x, y):
        hot = (y[:, None] == np.arange(3)).astype(x.dtype)
        return (hot.T @ x) / np.maximum(hot.sum(0), 1)[:, None]

    x, y = rng.normal(size=(3000, 4)), rng.integers(0, 3, 3000)
    with config.using(executor="shim"):
        low = ge2.jit(moments).lower(x, y)
        assert {s.kind for s in low.executable.program.steps} == {"kernel"}
        np.testing.assert_allclose(ge2.jit(moments)(x, y), moments(x, y), rtol=1e-12)


@needs_compiler
@pytest.mark.parametrize("way", ["a @ x", "x @ a", "batched"])
def test_half_types_by_a_vector(rng: np.random.Generator, way: str) -> None:
    """Sums are float32 and rounded once; where blocks share rows, the kernel that merges rounds."""

    def product(a, x):
        return {"a @ x": a @ x, "x @ a": x @ a, "batched": np.einsum("bij,j->bi", a[None], x)}[way]

    a, x = (rng.normal(size=s).astype(BFLOAT16) for s in ((192, 192), 192))
    with config.using(executor="shim"):
        low = ge2.jit(product).lower(a, x)
        kinds = [s.kind for s in low.executable.program.steps]
        assert kinds == ["kernel"]
        found = ge2.jit(product)(a, x)
    wanted = product(a.astype("f8"), x.astype("f8"))
    np.testing.assert_allclose(found.astype("f8"), wanted, rtol=2**-8, atol=1e-3)


@needs_compiler
def test_a_sum_of_few_columns_is_shared_by_blocks(rng: np.random.Generator) -> None:
    """What comes after it is a kernel of its own then."""

    def step(a, x, b):
        return np.tanh(x @ a + b)

    a, x, b = (rng.normal(size=s).astype("f4") for s in ((8192, 64), 8192, 64))
    with config.using(executor="shim"):
        low = ge2.jit(step).lower(a, x, b)
        assert str(low.kernels[0]).count("__global__") > 1
        np.testing.assert_allclose(ge2.jit(step)(a, x, b), step(a, x, b), rtol=1e-4, atol=1e-5)


FEW_COLUMNS = {
    "ij,jk->ik": ((130, 140), (140, 3)),
    "ji,jk->ik": ((140, 130), (140, 2)),
    "ji,kj->ki": ((140, 130), (4, 140)),
    "aij,jk->aik": ((5, 30, 140), (140, 3)),
    "ij,kj->ki": ((140, 130), (2, 130)),
}
COLUMNS = Context(tuning=TUNING.__class__(products_to_sums=ProductsToSums(large=1)))


@pytest.mark.parametrize("spec", FEW_COLUMNS)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_few_columns_are_multiplied_one_by_one(spec: str, dtype: str) -> None:
    found = same(spec, FEW_COLUMNS[spec], dtype, COLUMNS)
    assert "dot_general" not in names(found) and "concatenate" in names(found)


@pytest.mark.parametrize(
    ("shapes", "dtype"),
    [
        (((130, 140), (140, 5)), "f4"), (((130, 63), (63, 3)), "f4"), (((130, 140), (140, 3)), "f2"),
        (((3, 140), (140, 2)), "f4"),
    ],
)  # fmt: skip
def test_what_is_no_few_columns_of_a_large_matrix(
    shapes: tuple[tuple[int, ...], ...], dtype: str
) -> None:
    large = Context(tuning=TUNING.__class__(products_to_sums=ProductsToSums(large=1 << 12)))
    assert "dot_general" in names(same("ij,jk->ik", shapes, dtype, large))


@pytest.mark.parametrize(
    ("spec", "shapes", "stored"),
    [
        ("ij,jk->ik", ((2048, 200), (200, 3)), True),
        ("ji,kj->ki", ((200, 2048), (3, 200)), False),  # columns lie one after another
        ("ij,jk->ik", ((512, 600), (600, 4)), False),  # few rows read them
    ],
)
def test_columns_that_many_rows_read_lie_by_themselves(
    spec: str, shapes: tuple[tuple[int, ...], ...], stored: bool
) -> None:
    """Threads beside each other would read them far apart, for each row."""
    found = same(spec, shapes, "f4", Context())
    assert ("barrier" in names(found)) is stored
