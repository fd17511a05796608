"""What goes wrong in silence with other compilers is right here, or an error
that says what to write.

Held elsewhere: arrays, numbers, objects and their attributes that a function closes over and that
change (tests/runtime/test_jit_closures.py); branches and loops on values, writing into arrays,
traced values stored outside (test_first_hour.py, tests/trace); np.random
(tests/runtime/test_jit_random.py); results that a later call must not overwrite, donation, nested
jit (tests/runtime/test_outputs.py, test_jit.py). Here is the rest.
"""

from __future__ import annotations

import array
import collections
import gc
import itertools
import random
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.errors import ImpureError, InPlaceError, InputError
from ge2.dispatch import cache, jitted

X = np.array([1.0, 2.0, 3.0])


# ----------------------------------------------------------------------------------- what is frozen


CONTAINERS: list[tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = [
    ({1, 2}, len, lambda c: c.add(7)),
    (collections.deque([1.0, 2.0]), lambda c: c[0], lambda c: c.appendleft(9.0)),
    (collections.Counter("aab"), lambda c: c["a"], lambda c: c.update("aa")),
    (collections.ChainMap({"a": 1.0}), lambda c: c["a"], lambda c: c.update(a=5.0)),
    (bytearray(b"ab"), lambda c: c[0], lambda c: c.__setitem__(0, 5)),
    (array.array("d", [1.0, 2.0]), lambda c: c[1], lambda c: c.__setitem__(1, 5.0)),
    (collections.deque([np.ones(3)]), lambda c: c[0], lambda c: c[0].__setitem__(0, 5.0)),
    (collections.deque([[1.0]]), lambda c: c[0][0], lambda c: c[0].__setitem__(0, 5.0)),
]


@pytest.mark.parametrize(
    ("container", "read", "change"), CONTAINERS, ids=lambda x: type(x).__name__
)
def test_containers_that_are_no_pytrees_are_seen_to_change(
    container: Any, read: Any, change: Any
) -> None:
    f = ge2.jit(lambda x: x * read(container))
    np.testing.assert_array_equal(f(X), X * read(container))
    change(container)
    np.testing.assert_array_equal(f(X), X * read(container))
    f(X)
    assert len(f.cache_report().entries) == 2


def test_so_are_those_in_attributes_and_in_other_containers() -> None:
    class Model:
        def __init__(self) -> None:
            self.tags = {1}
            self.table = {"steps": collections.deque([1])}

        def run(self, x: Any) -> Any:
            return x * len(self.tags) + len(self.table["steps"])

    model = Model()
    f = ge2.jit(model.run)
    np.testing.assert_array_equal(f(X), X + 1)
    model.tags.add(2)
    np.testing.assert_array_equal(f(X), 2 * X + 1)
    model.table["steps"].append(5)
    np.testing.assert_array_equal(f(X), 2 * X + 2)


def test_a_branch_on_a_closed_over_flag_is_taken_anew() -> None:
    training = True

    @ge2.jit
    def f(x: Any) -> Any:
        return x * 2 if training else x

    np.testing.assert_array_equal(f(X), 2 * X)
    training = False
    np.testing.assert_array_equal(f(X), X)


def test_a_table_made_in_the_function_is_made_of_what_is_there_now() -> None:
    sizes = [2, 3]

    @ge2.jit
    def f(x: Any) -> Any:
        table = np.array([float(n) for n in sizes])
        return x.sum() * table

    np.testing.assert_array_equal(f(X), [12.0, 18.0])
    sizes[0] = 5
    np.testing.assert_array_equal(f(X), [30.0, 18.0])


# ---------------------------------------------------------------------------------- what is used up


def counting() -> Iterator[int]:
    yield from itertools.count(1)


class Loader:
    def __init__(self) -> None:
        self.batches = iter([1.0, 2.0])

    def step(self, x: Any) -> Any:
        return x * next(self.batches)


ITERATORS = [
    counting(), iter([1, 2]), itertools.count(), zip([1], [2], strict=True), map(float, [1, 2]),
]  # fmt: skip


@pytest.mark.parametrize("source", ITERATORS, ids=lambda x: type(x).__name__)
def test_an_iterator_from_outside_is_refused(source: Any) -> None:
    kind = type(source).__name__
    f = ge2.jit(lambda x: x * next(source))
    for _ in range(2):
        with pytest.raises(
            ImpureError, match=rf"reads an? {kind} from outside: what it yields"
        ) as caught:
            f(X)
    assert "at   test_footguns.py:" in str(caught.value)
    assert "try  x = next(it) outside, and x as an argument" in str(caught.value)


def test_an_iterator_in_an_attribute_too_and_what_the_error_offers_works() -> None:
    loader = Loader()
    with pytest.raises(ImpureError, match="step reads a list_iterator from outside"):
        ge2.jit(loader.step)(X)
    f = ge2.jit(lambda x, n: x * n)
    np.testing.assert_array_equal([f(X, n) for n in loader.batches], [X, 2 * X])


def test_an_iterator_made_inside_is_fine() -> None:
    def f(x: Any) -> Any:
        numbers = iter([1.0, 2.0])
        return sum(x * n for n in numbers) + next(itertools.count(5))

    np.testing.assert_array_equal(ge2.jit(f)(X), 3 * X + 5)


def test_a_generator_is_no_argument() -> None:
    with pytest.raises(
        InputError, match="xs of .* is a generator, neither an array nor a container"
    ):
        ge2.jit(lambda xs: sum(xs))(x for x in X)


# --------------------------------------------------------------------------------------- randomness


own = random.Random(0)
RANDOM: dict[str, Callable[[Any], Any]] = {
    "of the module": lambda x: x * random.random(),
    "choice": lambda x: x * random.choice([1.0, 2.0, 3.0]),
    "of an object": lambda x: x * own.gauss(0, 1),
    "unseeded": lambda x: x * random.Random().random(),
    "the system's": lambda x: x * random.SystemRandom().random(),
    "shuffled": lambda x: x * random.sample(range(100), 3)[0],
}


@pytest.mark.parametrize("name", RANDOM)
def test_pythons_own_random_numbers_are_refused(name: str) -> None:
    f = ge2.jit(RANDOM[name])
    for _ in range(2):
        with pytest.raises(ImpureError, match="drew random numbers while it was traced") as caught:
            f(X)
    assert "at   test_footguns.py:" in str(caught.value)
    assert "ge2.random.key(0) as an argument" in str(caught.value)


def test_a_seeded_generator_made_inside_draws_the_same_at_every_call() -> None:
    f = ge2.jit(lambda x: x * random.Random(3).random())
    np.testing.assert_array_equal(f(X), X * random.Random(3).random())
    np.testing.assert_array_equal(f(X), f(X))


def test_drawing_between_calls_is_no_reason() -> None:
    f = ge2.jit(lambda x: x * 2)
    for n in range(1, 4):
        random.random()
        np.testing.assert_array_equal(f(np.ones(n)), np.full(n, 2.0))


# ---------------------------------------------------------------------------- arguments and results


@pytest.mark.parametrize("donated", [None, 0])
def test_a_returned_input_is_a_copy_of_its_own(donated: Any) -> None:
    f = ge2.jit(lambda x: x, donate_argnums=donated)
    x = X.copy()
    y, z = f(x), f(X.copy())
    np.testing.assert_array_equal(y, X)
    y[:] = 0
    np.testing.assert_array_equal(z, X)
    pair = ge2.jit(lambda x: (x, x, x[1:], x.reshape(3, 1)))(X)
    for a, b in itertools.combinations((*pair, X), 2):
        assert not np.shares_memory(a, b)
    assert all(y.flags.owndata and y.flags.writeable for y in pair)


@pytest.mark.parametrize("executor", ["c", "blocked"])
def test_the_same_array_passed_twice_and_donated(executor: str) -> None:
    f = ge2.jit(lambda x, y: (x * 2, x + y), donate_argnums=(0, 1))
    x = X.copy()
    with ge2.config.using(executor=executor):
        with pytest.warns(
            ge2.errors.Ge2Warning, match="was not donated: it overlaps another argument"
        ):
            a, b = f(x, x)
        np.testing.assert_array_equal(a, 2 * X)
        np.testing.assert_array_equal(b, 2 * X)
        np.testing.assert_array_equal(x, X)
        both = np.concatenate([X, X])
        with pytest.warns(ge2.errors.Ge2Warning, match="was not donated: it is a view"):
            a, b = f(both[:3], both[3:])
    np.testing.assert_array_equal(b, 2 * X)
    np.testing.assert_array_equal(both, np.concatenate([X, X]))


@pytest.mark.parametrize("executor", ["c", "blocked", "reference"])
def test_no_argument_is_written(executor: str) -> None:
    def f(x: Any, y: Any) -> Any:
        z = x.copy()
        z[0] = 9
        w = y + 0
        w += x
        return z, w, np.sort(y)[::-1], np.cumsum(x)

    x, y = X.copy(), X[::-1].copy()
    x.flags.writeable = y.flags.writeable = False
    with ge2.config.using(executor=executor):
        results = ge2.jit(f)(x, y)
    for found, wanted in zip(results, f(x, y), strict=True):
        np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(y, X[::-1])


def test_writing_to_a_container_of_the_caller_changes_a_copy() -> None:
    def f(d: Any, xs: Any) -> Any:
        d["sum"] = d["x"] + xs[0]
        xs.append(d["sum"])
        return d["sum"]

    d, xs = {"x": X}, [X]
    with (
        pytest.warns(ge2.errors.Ge2Warning, match="changes d, a container that it is given"),
        pytest.warns(ge2.errors.Ge2Warning, match="changes xs, a container"),
    ):
        np.testing.assert_array_equal(ge2.jit(f)(d, xs), 2 * X)
    assert (list(d), len(xs)) == (["x"], 1)


def test_writing_to_an_argument_changes_the_callers_array() -> None:
    def f(x: Any) -> Any:
        x[0] = 1
        return x

    x = X.copy()
    assert ge2.jit(f)(x) is x
    np.testing.assert_array_equal(x, f(X.copy()))
    with pytest.raises(
        InPlaceError, match="would change the caller's array: x is an argument of <lambda>"
    ):
        ge2.grad(lambda x: np.sum(f(x)))(X)


@pytest.mark.parametrize("executor", ["c", "blocked", "reference"])
@pytest.mark.parametrize("size", [8, 1 << 18])
def test_results_stay_what_they_were(executor: str, size: int) -> None:
    """Also those of which only a view, or a memoryview, is held."""
    f = ge2.jit(lambda x: (x + 1, np.sum(x)))
    with ge2.config.using(executor=executor):
        first = f(np.zeros(size))[0]
        view, memory = f(np.full(size, 1.0))[0][::2], memoryview(f(np.full(size, 2.0))[0])
        for k in range(6):
            f(np.full(size, 10.0 + k))
    assert (first[0], view[0], memory[0]) == (1.0, 2.0, 3.0)
    assert (first[-1], view[-1], memory[-1]) == (1.0, 2.0, 3.0)


# --------------------------------------------------------------------------------------- nested jit


def test_a_donation_inside_a_jitted_function_takes_nothing() -> None:
    inner = ge2.jit(lambda x: x * 2, donate_argnums=0)
    x = X.copy()
    np.testing.assert_array_equal(ge2.jit(lambda x: inner(x) + x)(x), 3 * X)
    np.testing.assert_array_equal(x, X)


def test_a_nested_jitted_function_sees_what_changes() -> None:
    weights, scale = np.ones(3), 2.0
    inner = ge2.jit(lambda x: x * weights * scale)
    outer = ge2.jit(lambda x: inner(x) + inner(x + 1))
    np.testing.assert_array_equal(outer(X), 4 * X + 2)
    weights[:] = 3.0
    np.testing.assert_array_equal(outer(X), 3 * (4 * X + 2))
    scale = 1.0
    np.testing.assert_array_equal(outer(X), 3 * (2 * X + 1))
    np.testing.assert_array_equal(inner(X), 3 * X)


def test_static_arguments_pass_through_nested_functions() -> None:
    inner = ge2.jit(lambda x, n: x[:n], static_argnums=1)
    outer = ge2.jit(lambda x, n: inner(x, n) + inner(x, n), static_argnums=1)
    assert [outer(X, n).shape for n in (1, 2, 3)] == [(1,), (2,), (3,)]


# -------------------------------------------------------------------------------------------- leaks


def held() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


MEGABYTE = 1 << 20


@pytest.mark.parametrize("executor", ["c", "blocked"])
def test_ten_thousand_calls_leave_nothing(executor: str, traced: None) -> None:
    weights = np.ones(8)
    f, g = ge2.jit(lambda x: (x + 1, x.sum())), ge2.jit(lambda d: d["x"] * weights)
    x = np.ones(8)
    with ge2.config.using(executor=executor):
        for _ in range(10):
            f(x), g({"x": x})
        before = held()
        for _ in range(5000):
            f(x)
            g({"x": x})
    assert held() - before < MEGABYTE / 10


@pytest.mark.exhaustive
@pytest.mark.parametrize("executor", ["c", "blocked"])
def test_many_shapes_leave_little(
    executor: str, traced: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is remembered has a limit, while the function lives; and
    much of it goes with the function.
    """
    assert (jitted.TRACES, cache.FAMILIES) == (512, 128)
    monkeypatch.setattr(jitted, "TRACES", 64)
    monkeypatch.setattr(cache, "FAMILIES", 16)
    with ge2.config.using(executor=executor, check=False):
        f = ge2.jit(lambda x: x + 1)
        for n in range(1, 5):
            f(np.ones(n))
        before = held()
        for n in range(10, 100):
            f(np.ones(n))
        full = held() - before
        assert full < MEGABYTE
        assert len(f.cache_report().entries) == 64
        del f
    assert held() - before < 0.85 * full
