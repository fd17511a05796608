"""Arrays that a trace meets are constants of it, with the contents they had when they were met."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ge2
from ge2.base.errors import InPlaceError, InputError
from ge2.trace.tracer import SNAPSHOT, checksum

X = np.array([1.0, 2.0, 3.0])


def both(f: Any, *args: Any) -> tuple[Any, Any]:
    """The function's result by its graph, and plainly."""
    ys = ge2.make_jaxpr(f)(*args)(*args)
    want = f(*args)
    return ys, list(want) if isinstance(want, tuple) else [want]


def test_an_array_from_outside_or_made_inside_is_a_constant() -> None:
    w = np.arange(3.0)
    closed = ge2.make_jaxpr(lambda x: x * w + np.ones(3) + w)(X)
    assert closed.graph.consts == 2
    assert [c.tolist() for c in closed.captured] == [[0, 1, 2], [1, 1, 1]]
    np.testing.assert_array_equal(closed(X)[0], X * w + 1 + w)


def test_scalars_are_literals_not_constants() -> None:
    closed = ge2.make_jaxpr(lambda x: x * np.float64(2) + 3 + np.float32(1.5))(X)
    assert closed.graph.consts == 0


def test_an_array_changed_later_is_seen_as_numpy_sees_it() -> None:
    def f(x: Any) -> Any:
        a = np.zeros(3)
        y = x + a
        a += 1
        z = x * a
        a[0] = 9
        return y, z, x - a, x + a

    for got, want in zip(*both(f, X), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_buffer_filled_in_a_loop() -> None:
    def f(x: Any) -> Any:
        basis = np.zeros(3)
        total = 0.0
        for i in range(3):
            basis[:] = 0
            basis[i] = 1
            total = total + np.sum(x * basis) * (i + 1)
        return total

    got, want = both(f, X)
    assert got == want
    np.testing.assert_array_equal(ge2.grad(f)(X), [1, 2, 3])


def test_an_array_changed_after_the_trace_does_not_change_it() -> None:
    w = np.ones(3)
    closed = ge2.make_jaxpr(lambda x: x * w)(X)
    w[:] = 7
    np.testing.assert_array_equal(closed(X)[0], X)


def test_views_of_a_changing_array_are_met_anew() -> None:
    def f(x: Any) -> Any:
        a = np.arange(4.0)
        y = x * a[1:]
        a *= 2
        return y, x * a[1:], x * a[:3]

    for got, want in zip(*both(f, X), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_read_only_view_of_an_array_that_changes() -> None:
    def f(x: Any) -> Any:
        a = np.zeros(1)
        seen = np.broadcast_to(a, (3,))
        y = x + seen
        a[0] = 5
        return y, x + seen

    for got, want in zip(*both(f, X), strict=True):
        np.testing.assert_array_equal(got, want)


def test_special_values_count_as_contents() -> None:
    def f(x: Any) -> Any:
        a = np.array([0.0, np.nan, 1.0])
        y = np.copysign(x, a)
        a[0] = -0.0
        return y, np.copysign(x, a)

    for got, want in zip(*both(f, X), strict=True):
        np.testing.assert_array_equal(got, want)


@given(
    st.lists(
        st.tuples(st.sampled_from(["read", "write"]), st.integers(0, 2), st.integers(-3, 3)),
        max_size=8,
    )
)
def test_reads_and_writes_in_any_order(steps: list[tuple[str, int, int]]) -> None:
    def f(x: Any) -> Any:
        a = np.zeros(3)
        for what, i, n in steps:
            if what == "write":
                a[i] = n
            else:
                x = x * 2 + a
        return x

    (got,), (want,) = both(f, X)
    np.testing.assert_array_equal(got, want)


LARGE = SNAPSHOT // 8 + 1


def test_a_large_array_is_not_copied() -> None:
    big = np.ones(LARGE)
    closed = ge2.make_jaxpr(lambda x: np.sum(x[0] * big))(X)
    assert closed.captured[0] is big


def test_a_large_array_changed_before_it_is_met_or_after_the_trace_is_fine() -> None:
    def f(x: Any) -> Any:
        big = np.zeros(LARGE)
        big[7] = 2
        return np.sum(x[0] * big)

    assert ge2.make_jaxpr(f)(X)(X)[0] == 2.0


@pytest.mark.parametrize("again", [True, False])
def test_a_large_array_changed_while_it_is_traced_is_a_clear_error(again: bool) -> None:
    big = np.zeros(LARGE)

    def f(x: Any) -> Any:
        y = x[0] * big
        big[5] += 1
        return y + big * x[1] if again else y

    with pytest.raises(InPlaceError) as caught:
        ge2.make_jaxpr(f)(X)
    what, where, fix = str(caught.value).split("\n")
    said = "that the function reads was changed while it was traced, and is too large to be copied"
    assert what == f"an array (f64[{LARGE}]) {said}"
    assert where.startswith("  at   test_captures.py:")
    assert fix == "  try  change a copy of it, or read a copy"


@given(st.integers(0, 20000), st.integers(1, 255), st.integers(1, 20001))
def test_the_checksum_sees_every_byte(at: int, by: int, size: int) -> None:
    x = np.arange(size, dtype=np.uint8)
    before = checksum(x)
    x[at % size] ^= by
    assert checksum(x) != before


def test_the_checksum_sees_words_that_cancel_or_trade_places() -> None:
    x = np.arange(4096.0)
    rows = x.reshape(-1, 512)
    changed = [x, x[::-1], np.roll(x, 1), np.roll(rows, 1, axis=0), rows[::-1], rows[:, ::-1], -x]
    for i, j in ((0, 512), (1, 1025), (2, 3)):
        changed.append(x.copy())
        changed[-1][[i, j]] = x[[j, i]]
        changed.append(x.copy())
        changed[-1][[i, j]] = 1.0
    assert len({checksum(y) for y in changed}) == len(changed)


def test_an_outer_value_is_captured_once_and_as_it_was() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        inner = ge2.make_jaxpr(lambda z: z * y + y)
        first = inner(X)
        y += 1
        second = inner(X)
        assert first.graph.consts == second.graph.consts == 1
        return (first(X)[0], second(X)[0])

    got = ge2.make_jaxpr(f)(X)(X)
    np.testing.assert_array_equal(got[0], X * (2 * X) + 2 * X)
    np.testing.assert_array_equal(got[1], X * (2 * X + 1) + 2 * X + 1)


def test_a_view_of_an_outer_value_is_read_as_it_is_now() -> None:
    def f(x: Any) -> Any:
        y = x.copy()
        part = y[1:]
        y *= 3
        return np.sum(ge2.vmap(lambda z: z * part)(X))

    assert ge2.make_jaxpr(f)(X)(X)[0] == f_plain()


def f_plain() -> float:
    return float(np.sum(X[:, None] * (3 * X)[1:]))


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (np.ma.masked_array([1.0, 2.0, 3.0], [True, False, False]), "masked array"),
        (np.array([1, "a", None], dtype=object), "object"),
        (np.array(["a", "b", "c"]), "<U1"),
        (np.array(["2020-01-01"] * 3, dtype="M8[D]"), "datetime64"),
        (np.arange(3.0).astype(">f8"), ">f8"),
        (np.zeros(3, "g"), np.dtype("g").name),
        (np.zeros(3, [("a", "f4")]), "[('a', '<f4')]"),
    ],
)
def test_arrays_of_other_kinds_are_refused_at_the_line(bad: Any, says: str) -> None:
    def f(x: Any) -> Any:
        return np.where(x > 0, bad, x)

    with pytest.raises((InputError, TypeError)) as caught:
        ge2.make_jaxpr(f)(X)
    assert says in str(caught.value)
    assert "at   test_captures.py:" in str(caught.value)
    assert "  try  " in str(caught.value)


def test_a_copy_of_a_captured_array_serves_the_traces_around() -> None:
    """It is written to by nobody, so those need no copies of it."""
    met = []

    def loss(x: Any) -> Any:
        mask = np.tri(4)
        y = x * mask
        mask[:] = 0.0  # what the function does to its array later is not seen
        return y.sum()

    @ge2.jit
    def step(x: Any) -> Any:
        return ge2.value_and_grad(loss)(x)

    entry = step.trace(np.ones((4, 4))).entry
    met = [x for x in entry.captured if getattr(x, "shape", None) == (4, 4)]
    assert met and not any(x.flags.writeable for x in met)
    value, slope = step(np.ones((4, 4)))
    assert value == 10.0
    np.testing.assert_array_equal(slope, np.tri(4))
