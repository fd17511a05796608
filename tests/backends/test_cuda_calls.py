"""Whole calls in C, and looks at many arrays at once: as Python has them
(`templates/cuda/launch/calls.h`).
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base import arrays
from ge2.base.detect import toolchain
from ge2.base.source import Ge2Warning
from ge2.dispatch import arguments as donation
from ge2.targets.cuda.launch.library_call import made_now
from tests.fake_cupy import stand_in

pytestmark = pytest.mark.skipif(toolchain() is None, reason="no C compiler")


@pytest.fixture(scope="module")
def made() -> Any:
    """The extension, compiled and told of the classes."""
    return made_now()


@pytest.fixture
def cp(made: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with stand_in(monkeypatch) as xp:
        arrays.on_gpu(xp.ones(1))  # its class is known from now on
        yield xp


class Lender:
    def __init__(self) -> None:
        self.idle: list[Any] = []
        self.asked: list[int] = []

    def take(self, nbytes: int) -> tuple[Any, list[Any]]:
        self.asked.append(nbytes)
        return np.empty(nbytes, np.uint8), self.idle


def adder(extension: Any, lender: Lender, **other: Any) -> Any:
    """f(x, y) -> [x + y + k, x], the latter doubled in its place."""
    k = np.full(3, 10.0)

    def run(*handed: Any) -> None:
        total, x, y, constant, scratch = handed
        scratch[:] = 0
        total[...] = x + y + constant
        x *= 2

    parts = {
        "given": 2, "empty": np.empty, "made": (((3,), np.dtype(float)),), "constants": (k,),
        "numbers": 0, "asked": (), "compute": None, "take": lender.take, "size": 64,
        "handed": (2, 0, 1, 3, 4), "results": (2, 0), "current": lambda: 0,
        "number": 0, "stream": lambda: SimpleNamespace(ptr=0), "lost": [],
        "otherwise": lambda *xs: ["otherwise", *xs], "explain": lambda error: None, "run": run,
    }  # fmt: skip
    return extension.Call(*{**parts, **other}.values())


def test_a_call(made: Any) -> None:
    lender = Lender()
    f = adder(made, lender)
    x, y = np.arange(3.0), np.ones(3)
    total, same = f(x, y)
    np.testing.assert_array_equal(total, [11, 12, 13])
    assert same is x
    np.testing.assert_array_equal(x, [0, 2, 4])
    assert lender.asked == [64]
    assert len(lender.idle) == 1
    assert f(x, y)[0] is not total


def test_a_call_that_needs_no_scratch(made: Any) -> None:
    f = adder(made, Lender(), take=None, size=0, handed=(2, 0), run=lambda y, x: y.fill(x[0]))
    np.testing.assert_array_equal(f(np.full(3, 4.0), None)[0], [4, 4, 4])


@pytest.mark.parametrize("other", [{"number": 1}, {"lost": [True]}])
def test_another_device_and_a_lost_one_are_left_to_python(made: Any, other: dict[str, Any]) -> None:
    f = adder(made, Lender(), **other)
    assert f(1, 2) == ["otherwise", 1, 2]


def test_numbers_are_made_of_what_is_given(made: Any) -> None:
    def run(total: Any, x: Any, tenfold: float) -> None:
        total[...] = x * tenfold

    more = {
        "numbers": 2,
        "asked": (1,),
        "compute": lambda n: (n * 10, n + 1),
        "handed": (2, 0, 4),
        "run": run,
    }
    f = adder(made, Lender(), **more, results=(2, 5), take=None)
    total, following = f(np.ones(3), 7)
    np.testing.assert_array_equal(total, [70, 70, 70])
    assert following == 8
    for wrong in (lambda n: [n, n], lambda n: (n,)):
        with pytest.raises(TypeError, match="2 numbers are wanted"):
            adder(made, Lender(), **{**more, "compute": wrong})(np.ones(3), 7)
    with pytest.raises(ZeroDivisionError):
        adder(made, Lender(), **{**more, "compute": lambda n: n / 0})(np.ones(3), 7)


def test_a_call_that_fails(made: Any) -> None:
    def fails(*_: Any) -> None:
        raise ArithmeticError("of the launches")

    def runs_out(*_: Any) -> None:
        raise MemoryError("of the launches")

    def says(error: BaseException) -> None:
        raise RuntimeError(f"no memory: {error}") from error

    lender = Lender()
    for name in ("run", "current", "stream"):
        with pytest.raises(ArithmeticError, match="launches"):
            adder(made, lender, **{name: fails})(np.ones(3), np.ones(3))
    assert lender.idle == []
    with pytest.raises(RuntimeError, match="no memory: of the launches"):
        adder(made, lender, run=runs_out, explain=says)(np.ones(3), np.ones(3))
    with pytest.raises(MemoryError, match="of the launches"):
        adder(made, lender, run=runs_out)(np.ones(3), np.ones(3))
    # nothing is launched yet: Python has it done, or says what is wrong
    for name in ("empty", "take"):
        x = np.ones(3)
        assert adder(made, lender, **{name: fails})(x, x)[0] == "otherwise"
        with pytest.raises(ArithmeticError, match="launches"):
            adder(made, lender, **{name: fails, "otherwise": fails})(x, x)
    with pytest.raises(TypeError, match="takes 2 arguments"):
        adder(made, lender)(np.ones(3))
    with pytest.raises(TypeError, match="scratch comes with"):
        adder(made, lender, take=lambda n: None)(np.ones(3), np.ones(3))


@pytest.mark.parametrize(
    "other", [{"handed": (5,)}, {"results": (-1,)}, {"take": None, "handed": (4,)}, {"asked": (9,)}]
)
def test_places_that_there_are_not(made: Any, other: dict[str, Any]) -> None:
    with pytest.raises((ValueError, OverflowError)):
        adder(made, Lender(), **other)


def test_nothing_is_kept_of_a_call(made: Any) -> None:
    f = adder(made, Lender())
    x, y = np.arange(3.0), np.ones(3)
    before = sys.getrefcount(x), sys.getrefcount(y)
    for _ in range(100):
        f(x, y)
    assert (sys.getrefcount(x), sys.getrefcount(y)) == before
    many = tuple(range(2, 102))
    wide = adder(
        made,
        Lender(),
        made=(((3,),),) * 100,
        take=None,
        handed=many,
        results=many,
        run=lambda *ys: None,
    )
    found = wide(x, y)
    assert len(found) == 100
    counts = {sys.getrefcount(found[i]) for i in range(100)}
    assert counts == {2}
    assert gc.is_tracked(wide)


def test_many_arrays_are_seen_as_one_by_one(made: Any, cp: Any) -> None:
    xs = (cp.ones((2, 3), np.float32), cp.ones(4), cp.ones((), np.int32))
    keys = tuple(map(arrays.gpu_key, xs))
    others = [
        xs, (xs[1], xs[0], xs[2]), (*xs[:2], np.ones((), np.int32)), (*xs[:2], 3.0),
        (cp.ones((2, 3)), *xs[1:]),
        (cp.ones((3, 2), np.float32), *xs[1:]),
    ]  # fmt: skip
    for each in others:
        assert made.same(each, keys) == arrays.same(each, keys) == (each is xs)
    assert not made.same(xs, keys[:2])
    assert not arrays.same(xs, keys[:2])
    with pytest.raises(TypeError, match="two tuples"):
        made.same(list(xs), keys)
    with pytest.raises(TypeError, match="a key is"):
        made.same(xs[:1], ((),))


def test_what_may_be_donated(made: Any, cp: Any) -> None:
    x, y, z = cp.ones((2, 3)), cp.ones(4), cp.ones((2, 3))
    turned = cp.array(z, order="F")
    beside = cp.ndarray((3,), np.uint8, y.data + 1)
    cases: list[tuple[list[Any], set[int], tuple[Any, ...]]] = [
        ([x, y, z], {0, 1}, ()), ([x, x], {0}, ()), ([x, x], set(), ()), ([x, y], {1}, (x,)),
        ([x, y[1:]], {0}, ()), ([x, z[1:]], {1}, ()), ([turned, x], {0}, ()), ([turned, x], {1}, ()),
        ([beside], {0}, ()), ([x, 2.0, 3, True], {0}, (y,)),
        ([*map(cp.ones, range(1, 100))], {*range(99)}, ()),
    ]  # fmt: skip
    found = []
    for leaves, donated, others in cases:
        found.append(made.stands(leaves, frozenset(donated), others))
        assert found[-1] == donation.stands(leaves, frozenset(donated), others, None)
    assert found == [True, False, False, False, True, False, False, True, False, True, True]
    assert not made.stands([np.ones(3)], frozenset(), ())  # Python looks at it
    assert made.stands((x, y), frozenset([0]), ())
    with pytest.raises(TypeError, match="takes leaves"):
        made.stands(x, frozenset(), ())


def test_a_program_is_called_so(made: Any, cp: Any) -> None:
    f = ge2.jit(lambda x, y: (x * 2 + y, (x * y).sum()), donate_argnums=0)
    x, y = cp.asarray(np.arange(6.0)), cp.ones(6)
    for _ in range(4):
        x, total = f(x, y)
    np.testing.assert_array_equal(x.get(), np.arange(6.0) * 16 + 15)
    assert total.get() == (np.arange(6.0) * 8 + 7).sum()
    assert isinstance(f._last.executable.run, made.Call)


def test_a_program_with_numbers_is_called_so(made: Any, cp: Any) -> None:
    def step(x: Any, t: int, k: float) -> Any:
        t = t + 1
        return x * (1 - 0.5**t) + k, t, x.sum()

    f = ge2.jit(step, donate_argnums=0)
    x, want, t = cp.ones(6), np.ones(6), 0
    for n in range(4):
        before = want.sum()
        want = want * (1 - 0.5 ** (t + 1)) + n / 2
        x, t, total = f(x, t, n / 2)
        np.testing.assert_allclose(x.get(), want)
        assert (type(t), t) == (int, n + 1)
        np.testing.assert_allclose(total.get(), before)
    assert isinstance(f._last.executable.run, made.Call)


def test_state_keeps_its_place(cp: Any) -> None:
    """Each result has the memory of the argument that it follows, so a graph
    of the launches lasts.
    """

    def step(state: Any, x: Any) -> Any:
        w, b, m = state
        g = (x @ w + b).sum(0)
        m = 0.9 * m + g
        return (w * 0.5, b - 0.1 * m, m), g.sum()

    f = ge2.jit(step, donate_argnums=0)
    state = cp.ones((4, 4)), cp.ones(4), cp.ones(4)
    x = cp.ones((3, 4))
    for _ in range(3):
        state, _ = f(state, x)
    program = f._last.executable.program
    names = [program.buffers[v].name for v in program.graph.inputs]
    donors = [program.buffers[v].donor for v in program.graph.outputs[:3]]
    assert donors[0] == names[0]
    # none of another's
    assert all(donor in ("", own) for donor, own in zip(donors, names, strict=False))


def test_an_array_in_another_order_is_not_donated(cp: Any) -> None:
    f = ge2.jit(lambda x: x + 1, donate_argnums=0)
    x = cp.array(cp.ones((2, 3)), order="F")
    with pytest.warns(Ge2Warning, match="not in C order"):
        y = f(x)
    np.testing.assert_array_equal(y.get(), np.full((2, 3), 2.0))
    np.testing.assert_array_equal(x.get(), np.ones((2, 3)))
