"""While loops and branches on a device as items of the launches around them, by
the device's own numbers.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.dispatch import cache
from ge2.targets.cuda.launch import Address, Branch, Launch, While, count, texts
from ge2.targets.cuda.launch.graph import waits
from ge2.targets.cuda.launch.template import accesses, rebound
from tests.compared import all_equal
from tests.together import needs_compiler

lax = ge2.lax
X = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32) * 0.5
F32 = np.float32


def turns(x, n):
    """A count, and an array that two kernels and a product change."""
    return lax.while_loop(
        lambda c: c[0] < n,
        lambda c: (c[0] + 1, np.tanh(c[1] @ W) + np.cumsum(c[1], 0)),
        (np.int32(0), x),
    )


def by_arrays(x):
    """Decided by what is computed, with a constant of the predicate's and one of the body's."""
    limit, step = abs(x).max() * 0.3, x.mean(0)
    return lax.while_loop(
        lambda y: abs(y).max() > limit, lambda y: y * 0.8 - 0.01 * np.cumsum(step), x
    )


def exchanged(x, n):
    """Carries that change places, one that is never changed, and one
    that is a constant of the body's.
    """
    w = x * 3
    start = np.int32(0), x, -x, x + 5, x
    return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[2], c[1], c[3], w), start)


def flagged(x, n):
    """The predicate is one of the carries itself."""

    def body(c):
        i, _, y = c
        return i + 1, i + 1 < n, np.cumsum(y * 0.5, 0)

    return lax.while_loop(lambda c: c[1], body, (np.int32(0), n > 0, x))


def twins(x, n):
    """Two carries that are one result."""

    def body(c):
        y = np.tanh(c[1]) + c[2]
        return c[0] + 1, y, y

    return lax.while_loop(lambda c: c[0] < n, body, (np.int32(0), x, x))


def in_a_branch(x, n):
    """A loop in a branch in a loop, and a scan in its round."""

    def inner(y):
        return lax.while_loop(lambda c: abs(c).max() > 1, lambda c: c * 0.5, np.cumsum(y, 0))

    def other(y):
        return lax.scan(lambda h, r: (np.tanh(h + r), h), y[0], y)[1]

    def body(c):
        i, y = c
        return i + 1, lax.cond(y.sum() > 0, inner, other, y) + 0.1

    return lax.while_loop(lambda c: c[0] < n, body, (np.int32(0), x))


def in_a_scan(x, n):
    def step(h, row):
        kept = lax.cond(row.sum() > 0, lambda h: np.cumsum(h + row), lambda h: h - row, h)
        found = lax.while_loop(lambda c: abs(c).max() > n, lambda c: c * 0.7, kept)
        return found, kept

    return lax.scan(step, x[0], x)


def numbers(x, n):
    """Results of rounds and branches that are always the same number."""

    def body(c):
        i, y, _, _ = c
        return (
            i + 1,
            np.cumsum(y, 0),
            np.float32(3),
            lax.cond(y.sum() > 0, lambda: np.int8(1), lambda: np.int8(-1)),
        )

    last = lax.while_loop(lambda c: c[0] < n, body, (np.int32(0), x, np.float32(2), np.int8(0)))
    return last, lax.scan(lambda h, v: (h + v, np.float32(3)), x[0], x)


LOOPS = [turns, exchanged, flagged, twins, numbers, in_a_branch, in_a_scan]


def written(f, *args, seed=0, **settings):
    """The results in the shim, and the text of the program, whose loops are none of one kernel."""
    cache.forget()
    with config.using(
        **{"executor": "shim", "shim_seed": seed, "passes_off": ("resident",), **settings}
    ):
        jitted = ge2.jit(f)
        found = jitted(*args)
        return found, jitted._last.executable.assembler.texts["python"]


def reference(f, *args):
    cache.forget()
    with config.using(executor="reference"):
        return ge2.jit(f)(*args)


def same(found, wanted, **tolerance):
    found, wanted = (ge2.tree.leaves(each) for each in (found, wanted))
    assert len(found) == len(wanted)
    for x, y in zip(found, wanted, strict=True):
        assert np.asarray(x).dtype == np.asarray(y).dtype
        np.testing.assert_allclose(x, y, **(tolerance or {"rtol": 1e-5, "atol": 1e-5}))


def is_one_list(text):
    """Nothing but launches, with a loop or a branch among them."""
    return ("# while " in text or "# match " in text) and not ("while_" in text or "cond_" in text)


@pytest.mark.exhaustive
@needs_compiler
@pytest.mark.parametrize("n", [0, 1, 2, 5])
@pytest.mark.parametrize("f", LOOPS)
def test_loops_of_any_number_of_rounds(f, n):
    n = np.int32(n) if f is not in_a_scan else F32(n + 1)
    found, text = written(f, X, n, passes_off=("resident",))
    same(found, reference(f, X, n))
    assert is_one_list(text)


@pytest.mark.exhaustive
@needs_compiler
@pytest.mark.parametrize("f", LOOPS)
@pytest.mark.parametrize("seed", range(1, 5))
def test_any_order_gives_the_same_bits(f, seed):
    n = np.int32(3) if f is not in_a_scan else F32(2)
    all_equal(ge2.tree.leaves(written(f, X, n)[0]), ge2.tree.leaves(written(f, X, n, seed=seed)[0]))


@needs_compiler
def test_what_is_computed_decides():
    found, text = written(by_arrays, X)
    same(found, reference(by_arrays, X))
    assert is_one_list(text)


@pytest.mark.exhaustive("index")
@needs_compiler
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "uint64"])
@pytest.mark.parametrize("index", [-2, 0, 1, 2, 3, 99])
def test_an_index_of_any_integer_takes_the_nearest(dtype, index):
    f = lambda i, x: lax.switch(i, [lambda x: x + 1, lambda x: np.cumsum(x, 0), lambda x: x * 3], x)  # noqa: E731
    i = np.array(index).astype(dtype)[()]
    if dtype == "bool":
        f = lambda i, x: lax.cond(i, lambda x: np.cumsum(x, 0), lambda x: x * 3, x)  # noqa: E731
    found, text = written(f, i, X)
    same(found, reference(f, i, X))
    assert is_one_list(text)


@needs_compiler
def test_an_index_may_lie_anywhere():
    """In the midst of an array, where no wide access may begin."""

    def f(numbers, x):
        return [
            lax.switch(numbers[i], [lambda x: x + 1, lambda x: np.cumsum(x, 0), lambda x: x], x)
            for i in range(3)
        ]

    numbers = np.array([2, 0, 1], np.int32)
    found, text = written(f, numbers, X)
    same(found, reference(f, numbers, X))
    assert text.count("# match") == 3 and is_one_list(text)


@pytest.mark.exhaustive
@needs_compiler
@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (5,)])
@pytest.mark.parametrize(
    "dtype", [np.float64, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.complex64]
)
def test_carries_of_any_type(dtype, shape):
    x = np.ones(shape).astype(dtype)

    def f(x):
        return lax.while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + 1, c[2], c[1]), (np.int32(0), x + x, x)
        )

    found, _ = written(f, x)
    for a, b in zip(found, reference(f, x), strict=True):
        assert a.dtype == b.dtype and a.tobytes() == b.tobytes()


@needs_compiler
def test_derivatives_go_through_branches():
    def f(x, w):
        y = lax.cond(x.sum() > 0, lambda y: np.tanh(y @ w), lambda y: np.cumsum(y * w, 0), x)
        return (y * y).sum()

    for x in (X, abs(X), -abs(X)):
        found, text = written(ge2.grad(f, argnums=(0, 1)), x, W)
        same(found, reference(ge2.grad(f, argnums=(0, 1)), x, W), rtol=1e-4, atol=1e-4)
        assert is_one_list(text)


@needs_compiler
def test_a_donated_carry_is_not_read_after_it_is_written():
    def f(x, n):
        y = lax.while_loop(
            lambda c: c[0] < n, lambda c: (c[0] + 1, np.cumsum(c[1] + x, 0)), (np.int32(0), x)
        )[1]
        return y, x.sum()

    for n in range(4):
        wanted = reference(f, X, np.int32(n))
        cache.forget()
        with config.using(executor="shim"):
            found = ge2.jit(f, donate_argnums=0)(X.copy(), np.int32(n))
        same(found, wanted, rtol=1e-4, atol=1e-4)


@needs_compiler
def test_where_the_host_decides_still():
    """What needs Python in its rounds, and what Python knows the number of."""

    def f(x, n):
        y = lax.while_loop(lambda c: c.sum() < 9, lambda c: np.sort(c, 0)[::-1] + 1, x)
        return lax.cond(n > 2, lambda y: y * 2, lambda y: np.cumsum(y, 0), y)

    found, text = written(f, X, 3)
    same(found, reference(f, X, 3))
    assert not is_one_list(text)


@needs_compiler
def test_a_program_without_capture_is_the_same():
    found, text = written(turns, X, np.int32(3), capture="off")
    same(found, reference(turns, X, np.int32(3)))
    assert "# while " in text


# ----------------------------------------------------------------------------------------- the data


def pending(*arguments, written=()):
    return Launch(0, (1,), (32,), 0, arguments, "kernel", "", frozenset(written))


def test_a_loop_and_a_branch_touch_all_that_their_lists_do():
    inner = Branch(
        ((pending(Address("a")),), (pending(Address("b"), written=[0]),)),
        Address("i"),
        np.dtype(bool),
        "cond",
        "",
    )
    loop = While(
        (pending(Address("p", in_arena=True), written=[0]),),
        (inner,),
        Address("p", in_arena=True),
        "while",
        "",
    )
    found = accesses(loop, {"p": (64, 1)}, {"b": "c"})
    assert {(a.base, a.first, a.written) for a in found} == {
        ("arena", 64, False), ("arena", 64, True), ("a", 0, False), ("c", 0, True), ("i", 0, False),
    }  # fmt: skip
    around = [
        pending(Address("c")), pending(Address("a")), loop, pending(Address("a")),
        pending(Address("c")),
    ]  # fmt: skip
    assert waits([accesses(each, {"p": (64, 1)}, {"b": "c"}) for each in around]) == [
        (), (), (0,), (), (2,),
    ]  # fmt: skip


def test_lists_within_lists_are_counted_named_and_moved():
    inner = Branch(((), (pending(Address("b")),)), Address("i"), np.dtype(bool), "cond", "")
    loop = While(
        (pending(Address("p")),), (inner, pending(Address("p"))), Address("p"), "while", ""
    )
    assert count([loop, pending()]) == len([*texts([loop, pending()])]) == 8
    assert [*texts([loop])] == [
        "kernel<<<1, 32>>>(p)",
        "while p:",
        "    match i:",
        "        case 0:",
        "        case 1:",
        "            kernel<<<1, 32>>>(b)",
        "    kernel<<<1, 32>>>(p)",
    ]
    changed = rebound(loop, lambda a: Address(a.array * 2), lambda each: each)
    assert [*texts([changed])][1:3] == ["while pp:", "    match ii:"]


@needs_compiler
def test_kernels_of_loops_and_branches_are_listed():
    with config.using(executor="shim"):
        f = ge2.jit(lambda x, n: turns(np.cumsum(x, 0), n))
        kernels = f.lower(X, np.int32(3)).kernels
        f(X, np.int32(3))
    names = [kernel.name for kernel in kernels]
    assert names == [*f.report().kernels]
    within = [name for name in names if name.startswith("while_")]
    assert within and names[0] not in within and names.index(within[0]) == 1
    (inside,) = (name for name in within if "/cumsum_" in name)
    assert "while_1.1/pointwise_" in str(kernels) and "cumsum" in kernels.named(inside).source


@needs_compiler
def test_a_branch_writes_an_element_of_a_stack_where_no_wide_access_may_begin():
    """A round's rows have 33 numbers of two bytes; the host launches the
    branches, for one sorts.
    """

    def f(xs, k):
        def step(c, x):
            y = lax.cond(c > 0, lambda x: np.sort(x) * 2, lambda x: x * 0.5, x)
            return c - 1, y

        return lax.scan(step, k, xs)[1]

    xs = np.random.default_rng(0).standard_normal((3, 33)).astype(ml_dtypes.bfloat16)
    with config.using(executor="reference"):
        wanted = ge2.jit(f)(xs, np.int32(1))
    with config.using(executor="shim", shim_watch=True):
        np.testing.assert_array_equal(ge2.jit(f)(xs, np.int32(1)), wanted)
