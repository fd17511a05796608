"""Small graphs whose C was wrong once, each beside its reference."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16, float8_e4m3fn

import ge2
from ge2.base.config import config
from ge2.compile import compile_graph
from ge2.compile.catalog import Reference
from ge2.ir import parse
from ge2.passes import TABLE
from ge2.targets.c.tuning import Tuning
from tests.compared import all_close, all_equal
from tests.small import TINY
from tests.together import needs_compiler

pytestmark = needs_compiler


def check(text: str, *arrays: Any, donated: Sequence[bool] = ()) -> None:
    """On one thread and on two, twice each."""
    graph = parse(text, TABLE)
    want = Reference(graph)(*arrays)
    for threads in (1, 2):
        with config.using(threads=threads):
            executable = compile_graph(graph, donated=tuple(donated))
            for _ in range(2):
                got = executable(
                    *(np.array(x) if i < len(donated) else x for i, x in enumerate(arrays))
                )
                all_equal(got, want)
        assert executable.text("c")


@pytest.fixture
def small():
    with config.using(tuning=(TINY,)):
        yield


def test_a_number_that_python_computes_is_read_as_a_view():
    text = """{ lambda ; a:~i64[] b:f64[5]. let
      c:f64[] = convert_element_type[dtype=f64 weak=False] a
      d:f64[5] = broadcast_in_dim[dims=() shape=(5,)] c
      e:f64[5] = sort[axis=0] d
      f:f64[5] = add e b
    in (f,) }"""
    check(text, 3, np.arange(5.0))


def test_a_value_outlives_the_blocks_in_which_it_is_made(small):
    text = """{ lambda ; a:f16[3,3] b:f16[]. let
      c:f16[3,5,3] = broadcast_in_dim[dims=(0, 2) shape=(3, 5, 3)] a
      d:f16[5,3] = reduce_max[axes=(0,)] c
      e:f16[5,3] = sub d b
      f:f16[5,3] = tanh e
    in (e, f) }"""
    check(text, np.arange(9, dtype=np.float16).reshape(3, 3) % 4, np.float16(0.5))


def test_a_constant_is_not_called_as_the_beginning_of_a_block(small):
    text = """{ lambda ; a:f32[8,8,9]. let
      b:f32[8,8,9] = mul a 0.75:f32[]
      c:f32[8,8,9] = square b
      d:f32[8,9,8] = transpose[order=(0, 2, 1)] c
    in (d,) }"""
    check(text, np.arange(8 * 8 * 9, dtype=np.float32).reshape(8, 8, 9))


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [1, 7, 8, 9, 40])
def test_a_donated_array_is_read_again_for_each_row_of_a_larger_space(size, small):
    text = """{ lambda ; a:i32[3,8]. let
      b:i32[3,8] = floor_div a a
      c:i32[3,8] = shift_right b a
      d:i32[3,8] = square b
      e:u8[3,8] = population_count d
      f:u8[3,5,8] = broadcast_in_dim[dims=(0, 2) shape=(3, 5, 8)] e
      g:u8[3,5] = reduce_sum[axes=(2,)] f
    in (g, c) }""".replace("8", str(size)).replace(f"u{size}", "u8")
    check(text, np.arange(3 * size, dtype=np.int32).reshape(3, size) - 4, donated=(True,))


@pytest.mark.exhaustive("op")
@pytest.mark.parametrize("n", [1, 63, 64, 65, 129, 195, 1000])
@pytest.mark.parametrize("op", ["reduce_or", "reduce_and", "reduce_max", "reduce_min"])
def test_truth_is_gathered_within_its_place_on_the_stack(op, n):
    """gcc 12 keeps a vector of _Bool for each round of such a loop."""
    text = f"{{ lambda ; a:bool[{n}]. let b:bool[] = {op}[axes=(0,)] a  c:bool[] = logical_not b in (b, c) }}"
    x = np.zeros(n, bool)
    check(text, x)
    check(text, ~x)
    x[-1] = True
    check(text, x)
    check(text, ~x)


@pytest.mark.exhaustive("op")
@pytest.mark.parametrize("n", [1, 65, 129, 400])
@pytest.mark.parametrize("op", ["cummax", "cummin"])
@pytest.mark.parametrize("reverse", [False, True])
def test_truth_is_scanned_within_its_place_on_the_stack(op, n, reverse):
    text = f"{{ lambda ; a:bool[2,{n}]. let b:bool[2,{n}] = {op}[axis=1 reverse={reverse}] a in (b,) }}"
    x = np.zeros((2, n), bool)
    x[0, n // 2] = x[1, n // 3 :] = True
    check(text, x)
    check(text, ~x)


def test_what_an_update_is_given_is_made_once():
    """The array that a result is to be written over is made before the step that makes it."""
    text = """{ lambda ; c:f32[33,5] d:i32[1] e:bool[1]. let
      b:f32[33,5] = max c 3.0:f32[]
      f:bool[33,5] = ge b 0.0:f32[]
      g:bool[33] = reduce_or[axes=(1,)] f
      h:bool[33,5] = barrier f
      i:bool[33] = scatter[axes=(0,)] g e d
    in (i, h) }"""
    check(text, np.ones((33, 5), np.float32), np.array([4], np.int32), np.array([False]))


@pytest.mark.exhaustive("op")
@pytest.mark.parametrize("dtype", ["c64", "c128"])
@pytest.mark.parametrize("op", ["argmin", "argmax"])
def test_the_least_complex_number_within_a_kernel(op, dtype, small):
    text = f"""{{ lambda ; a:{dtype}[3,2,5]. let
      b:i64[3,5] = {op}[axis=1] a
      c:i64[3,5] = iota[axis=0 dtype=i64 shape=(3, 5)]
      d:i64[3,5] = mul b c
      e:{dtype}[3,2,5] = conj a
      f:{dtype}[3,5] = reduce_sum[axes=(1,)] e
    in (d, f) }}"""
    x = np.arange(30).reshape(3, 2, 5) * 7 % 11 + 1j * (np.arange(30).reshape(3, 2, 5) * 5 % 7)
    check(text, x.astype({"c64": np.complex64, "c128": np.complex128}[dtype]))


@pytest.mark.parametrize("shape", [(33, 8, 3), (33, 33, 3), (16, 64, 4), (1, 4000, 1)])
def test_a_tiny_product_errs_no_more_than_numpys(shape):
    rng = np.random.default_rng(0)
    m, k, n = shape
    f, ours, theirs = ge2.jit(lambda a, b: a @ b), 0.0, 0.0
    for _ in range(20):
        a, b = (
            rng.standard_normal((m, k)).astype(np.float32),
            rng.standard_normal((k, n)).astype(np.float32),
        )
        exact = a.astype(np.float64) @ b.astype(np.float64)
        ours += float(((f(a, b) - exact) ** 2).sum())
        theirs += float(((a @ b - exact) ** 2).sum())
    assert ours <= theirs


@pytest.mark.exhaustive("op")
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("n", [1, 5, 64])
@pytest.mark.parametrize("op", [np.negative, np.conj])
def test_the_zeros_of_a_negated_product_keep_their_signs(op, n, dtype):
    """gcc 12 made -(a * b) - c of -(a * b + c)."""
    a, f = (
        np.full(n, 1 + 1j, dtype),
        lambda a: (op(a * a), op(np.square(a)), op(a * a + 0j), op(a * (a * 1j))),
    )
    for y, want in zip(ge2.jit(f)(a), f(a), strict=True):
        np.testing.assert_array_equal(y, want)
        np.testing.assert_array_equal(np.signbit(y.real), np.signbit(want.real))
        np.testing.assert_array_equal(np.signbit(y.imag), np.signbit(want.imag))


def test_a_stride_of_the_fourteenth_input_is_not_the_size_of_an_axis():
    """Both were called n_i."""
    x, rows = (
        np.arange(36.0).reshape(2, 6, 3),
        [np.arange(6.0).reshape(2, 3) * i for i in range(13)],
    )

    def f(x, *rows):
        y = np.square(x)
        return sum(rows) + y[:, 1], y

    all_equal(ge2.jit(f)(x, *rows), f(x, *rows))


@pytest.mark.parametrize("short", ["bf16", "f16"])
def test_a_repeated_number_of_a_half_type_is_that_number(short):
    """It is handed over as float32, so it is not widened again."""
    text = f"{{ lambda ;. let a:{short}[7] = broadcast_in_dim[dims=() shape=(7,)] 1.5:{short}[] in (a,) }}"
    with config.using(executor="c"):
        (y,) = compile_graph(parse(text, TABLE))()
    np.testing.assert_array_equal(y.astype(np.float32), 1.5)


def test_an_array_of_any_name_is_read_where_it_lies():
    """The strides of the fourteenth value, `n`, are not the sizes of the loops."""
    more = 22

    def f(x, *others):
        total = x
        for y in others:
            total = total + y[:, ::-1].T
        return total

    arrays = [np.random.default_rng(i).normal(size=(5, 5)) for i in range(more)]
    np.testing.assert_allclose(ge2.jit(f)(*arrays), f(*arrays), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_exponentials_of_complex_numbers(dtype):
    """Within 4 ulp of the C library's, its infinities, zeros and NaN; a cosine brings back what exp cannot hold."""
    real = np.finfo(dtype)
    far = np.log(float(real.max))
    special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        np.inf,
        -np.inf,
        np.nan,
        far - 0.1,
        far + 1,
        far + 5,
        2 * far,
        -far,
        1e30,
        np.pi / 2,
    ]
    special += [float(real.tiny), 3e5, -1e22]
    rng = np.random.default_rng(0)
    x = np.array([complex(a, b) for a in special for b in special]).astype(dtype)
    x = np.concatenate(
        [x, (rng.normal(size=999) * far / 4 + 1j * rng.normal(size=999) * 50).astype(dtype)]
    )
    with np.errstate(all="ignore"):
        wanted = np.exp(x)
        exact = np.exp(x.astype(np.complex128)) if dtype == np.complex64 else wanted
    found = ge2.jit(np.exp)(x)
    assert found.dtype == dtype
    for y, w, e in ((found.real, wanted.real, exact.real), (found.imag, wanted.imag, exact.imag)):
        np.testing.assert_array_equal(np.isnan(y), np.isnan(w))
        ends = np.isinf(w) | (w == 0)
        np.testing.assert_array_equal(y[ends], w[ends])
        np.testing.assert_array_equal(np.signbit(y[ends]), np.signbit(w[ends]))
        inside = np.isfinite(w) & ~ends
        error = abs(y[inside] - e[inside])
        assert (error <= 4 * real.eps * abs(e[inside]) + 2 * real.smallest_subnormal).all()


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_choices_of_complex_numbers_are_theirs_to_the_bit(dtype):
    special = [0.0, -0.0, np.nan, np.inf, -np.inf, 1.5, 5e-324, 1e-45]
    x = np.array([complex(a, b) for a in special for b in special] * 5).astype(dtype)
    y, mask = x[::-1].copy(), np.arange(len(x)) % 3 == 0

    def f(mask, x, y):
        return (
            np.where(mask, x, y),
            np.where(mask, x, 0),
            np.where(~mask[:64, None], y[None, :9], x[:9]),
        )

    for found, wanted in zip(ge2.jit(f)(mask, x, y), f(mask, x, y), strict=True):
        assert found.tobytes() == wanted.astype(dtype).tobytes()


@pytest.mark.parametrize("dtype", ["i1", "u1", "i8", "u8"])
def test_whole_numbers_that_are_chosen_are_no_part_of_the_text(dtype):
    limits = np.iinfo(dtype)
    x = np.arange(40).astype(dtype)

    def choosing(value):
        return lambda x: np.where(x > 20, value, x)

    for value in (int(limits.max), int(limits.min), 7, 100, 2):
        program = ge2.jit(choosing(value))
        np.testing.assert_array_equal(program(x), choosing(value)(x))
        parameters = str(program.lower(x).kernels[0]).split("_part(")[1].split(") {")[0]
        assert ("const0" in parameters) == (abs(value) > 3)


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
def test_remainders_by_powers_of_two_are_bits(dtype):
    limits = np.iinfo(dtype)
    ends = [int(limits.min), int(limits.min) + 1, int(limits.max), 0, 1, 63, 64, 65]
    x = np.array(ends * 8, dtype)
    x = np.concatenate([x, 0 - x])

    def divided(x):
        top = x.dtype.type(limits.max // 2 + 1)
        return x % 64, x // 64, x % 2, x // 2, x % 1, x // 1, x % top, x // top

    program = ge2.jit(divided)
    for found, wanted in zip(program(x), divided(x), strict=True):
        np.testing.assert_array_equal(found, wanted)
    text = str(program.lower(x).kernels[0])
    assert " & " in text and " >> " in text


def test_a_size_that_divides_is_no_part_of_the_text():
    program = ge2.jit(lambda x: (x + 1) % x.shape[0])
    one, other = (program.lower(np.arange(n)).as_text("c") for n in (512, 1024))
    assert " & const" in one
    assert one.split("_part(")[1] == other.split("_part(")[1].replace("1024", "512")


def test_a_masked_write_of_each_iteration_is_one_kernel():
    def f(x):
        n = np.zeros(x.shape, int)
        for i in range(30):
            mask = abs(x) < 2
            n[mask] = i
            x = np.where(mask, x * x + 0.3, x)
        return n, x

    x = np.linspace(-1, 1, 300) + 0.2j
    all_close(ge2.jit(f)(x), f(x), rtol=1e-9)
    assert len({kernel.name.split(".")[0] for kernel in ge2.jit(f).lower(x).kernels}) < 12


def joins(x, y):
    return np.concatenate([np.sin(x), y, x * 2], 1), np.concatenate([x + y, x + y])


def stacks(x, y):
    return np.stack([x - y, x * y, x], 1), np.stack([abs(x), y], -1)


def pads(x, y):
    return np.pad(x * y, ((1, 2), (0, 3))), np.pad(x + y, ((0, 0), (2, 0))), np.pad(x, 1)


def mixed(x, y):
    a = np.concatenate([x * 2, np.pad(y * 3, ((0, 0), (1, 1)))], 1)
    return a, np.concatenate([a[:, ::-1] + 1, a.T.reshape(a.shape)])


@pytest.mark.exhaustive("f")
@pytest.mark.parametrize("f", [joins, stacks, pads, mixed])
@pytest.mark.parametrize("shape", [(4, 3), (1, 5), (300, 40)])
def test_what_is_joined_is_made_where_it_lies(f, shape):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal(shape), rng.standard_normal(shape)
    for threads in (1, 2):
        with config.using(threads=threads):
            all_close(ge2.jit(f)(x, y), f(x, y), rtol=1e-13)
    if f is not mixed:  # x + y is joined to itself
        arena = ge2.jit(f).lower(x, y).memory_analysis().arena
        assert arena <= (x.nbytes if f is joins else 0) + 256


def test_arrays_across_each_other_are_copied_by_tiles(rng):
    """Of elements of each size, with whole tiles and parts of them, of parts of arrays, and to them."""
    kinds = ((130, 70), np.uint8), ((130, 70), np.float32), ((9, 33, 20), np.float64)
    kinds += (((20, 2, 65), np.float16),)
    arrays = [rng.integers(0, 99, shape).astype(dtype) for shape, dtype in kinds]

    def turned(a, b, c, d):
        joined = np.concatenate([b[:, 1:].T, b[:, 1:].T], -1)
        return a.T, joined, c.transpose(1, 2, 0), d.transpose(2, 1, 0)

    low = ge2.jit(turned).lower(*arrays)
    assert all(
        f"ge2_transpose_u{bits}(" in "".join(map(str, low.kernels)) for bits in (8, 16, 32, 64)
    )
    all_equal(low.executable(*arrays), turned(*arrays))


def test_neighbours_in_a_stencil_share_their_strides(rng):
    """Seven strides of each axis took a third of the time of a kernel whose rows are short."""

    def smoothed(x):
        return x[2:, 1:-1] + x[:-2, 1:-1] - x[1:-1, 2:] * x[1:-1, :-2] + x[1:-1, 1:-1].T

    graph = ge2.make_jaxpr(smoothed)(x := rng.random((9, 9))).graph
    check(str(graph), x)
    text = compile_graph(graph).text("c")
    assert set(re.findall(r"int64_t (\w+_[ij])\b", text)) - {"n_i", "n_j"} == {"a_i", "e_j"}


EDGES = [
    s * ((1 << k) + d) for s in (1, -1) for k in range(20, 62) for d in (-1, 0, 1, 1 << k // 2)
]
LIMITS = [0, (1 << 53) + 1, (1 << 54) + 3, (1 << 62) + 1, (1 << 63) - 1, -(1 << 63), 1 - (1 << 63)]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("i8", "f8"),
        ("i8", "f4"),
        ("u8", "f8"),
        ("u8", "f4"),
        ("f8", "i8"),
        ("f4", "i8"),
        ("f8", "u8"),
        ("i8", "c16"),
    ],
)
def test_casts_of_64_bits_are_numpys_to_the_bit(
    source: str, target: str, rng: np.random.Generator
) -> None:
    """Of all sizes, where one rounding shows, out of range, and of what is not finite."""
    whole = np.array(
        [*EDGES, *LIMITS, *(rng.integers(-1 << 63, 1 << 63, 6400) >> np.arange(6400) % 64)]
    )
    if source[0] == "f":
        parts = whole + rng.normal(size=whole.size) * 10.0 ** rng.integers(-3, 3, whole.size)
        special = [
            np.nan,
            np.inf,
            -np.inf,
            -0.0,
            0.5,
            -0.5,
            5e-324,
            2.0**63,
            -(2.0**63),
            2.0**32 - 0.5,
        ]
        near = [
            np.nextafter(2.0**63, 0),
            np.nextafter(-(2.0**63), -np.inf),
            2.0**52 + 0.5,
            0.5 - 2.0**32,
        ]
        with np.errstate(over="ignore"):
            x = np.concatenate([parts, special, near]).astype(source)
    else:
        x = whole.view(source)
    with np.errstate(invalid="ignore"):
        wanted = x.astype(target)
    found = ge2.jit(lambda x: x.astype(target))(x)
    assert found.dtype == wanted.dtype
    assert found.tobytes() == wanted.tobytes()


def test_many_operations_on_wide_numbers_take_few_bytes_at_a_time(rng):
    """A vector of bytes would be four of each of them; few operations keep it."""
    table = rng.integers(0, 1 << 32, 256).astype(np.uint32)
    data = rng.integers(0, 256, (301, 12)).astype(np.uint8)

    def checksum(data, rounds):
        c = np.full(len(data), 0xFFFFFFFF, np.uint32)
        for i in range(rounds):
            at = (c ^ data[:, i]) & np.uint32(255)
            c = table[at.astype(np.int64)] ^ (c >> np.uint32(8))
        return c

    for rounds, few in ((7, True), (2, False)):
        f = ge2.jit(lambda data, n=rounds: checksum(data, n))
        assert ("simdlen(32)" in f.lower(data).as_text("c")) == few
        np.testing.assert_array_equal(f(data), checksum(data, rounds))


def test_beside_bytes_numbers_of_eight_are_taken_as_many_as_a_vector_has(rng):
    """Of 16 elements of a byte gcc takes vectors of 16 bytes, of all arrays."""
    x, m = rng.standard_normal(301), rng.random(301) < 0.5

    def steps(x, m):
        y = x
        for _ in range(12):
            y = np.where(m, y * x + 0.5, y - x)
        return y

    f = ge2.jit(steps)
    for y, lanes in ((x, 8), (x + 1j, 8), (x.astype(np.float32), 32)):
        assert f"simdlen({lanes})" in f.lower(y, m).as_text("c")
        np.testing.assert_allclose(f(y, m), steps(y, m), rtol=1e-5)


@pytest.mark.parametrize("shape", [(16, 16), (64, 130), (37, 53), (65, 15), (5, 200)])
def test_bytes_across_each_other_are_copied_to_the_edges(shape, rng):
    x = rng.integers(0, 256, shape).astype(np.uint8)
    np.testing.assert_array_equal(ge2.jit(lambda x: x.T.copy())(x), x.T)


@pytest.mark.full_options
def test_what_vectors_leave_over_of_long_loops_is_the_same(rng: np.random.Generator) -> None:
    """A large loop that does much has no shorter vectors for the last elements."""

    def f(x: Any) -> Any:
        for _ in range(5):
            x = np.where(x > 0, np.tanh(x) + 0.3, x * x - 1.7)
        return x

    plain = replace(Tuning(), regions=replace(Tuning().regions, long=1 << 40))
    for dtype in (np.float32, np.float64):
        for n in (511, 512, 513, 530, 20_011):
            x = rng.normal(size=n).astype(dtype)
            long = ge2.jit(f)
            assert ("GE2_LONG_LOOP" in long.lower(x).as_text("c")) == (n >= 512)
            with config.using(tuning=(plain,)):
                other = ge2.jit(f)
                assert "GE2_LONG_LOOP" not in other.lower(x).as_text("c")
                np.testing.assert_array_equal(other(x), long(x))


def test_rows_of_a_half_type_are_widened_once_for_all_passes_over_them(rng):
    """A conversion by integer operations costs more than a float32 that is kept in the first cache."""

    def norm(x):
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float16(1e-3))

    x = rng.standard_normal((64, 1024)).astype(np.float16)
    compiled = ge2.jit(norm)
    np.testing.assert_allclose(compiled(x), norm(x), rtol=2e-3)
    (kernel,) = compiled.lower(x).kernels
    assert str(kernel).count("ge2_cast_f16_f32(a[") == 1


def moved(x, i, y):
    z = x.copy()
    z[i] = y
    return z, np.concatenate([x, y]), x.T.copy(), np.roll(x, 3, 1)


@pytest.mark.parametrize("dtype", [np.float16, bfloat16, float8_e4m3fn], ids=str)
def test_copies_of_half_types_keep_their_bits(dtype: Any, rng: np.random.Generator) -> None:
    """Of NaN, too, whatever its bits are: no copy makes a number a float32 and rounds it again."""
    dtype = np.dtype(dtype)
    bits = np.arange(1 << 16).astype(f"u{dtype.itemsize}")
    x, y = bits.view(dtype).reshape(256, 256), rng.permutation(bits)[:4096].view(dtype)
    i = rng.permutation(256)[:16]
    args = x, i, y.reshape(16, 256)
    low = ge2.jit(moved).lower(*args)
    for ours, wanted in zip(low.executable(*args), moved(*args), strict=True):
        np.testing.assert_array_equal(ours.view(bits.dtype), wanted.view(bits.dtype))
    assert "ge2_cast_" not in "".join(map(str, low.kernels))
