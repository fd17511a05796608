"""CuPy's arrays as they lie in memory (`templates/cuda/launch/arrays.h`):
learned from examples; kept results.
"""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path
from sysconfig import get_path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ge2.base.compiler import extension
from ge2.base.detect import toolchain
from ge2.targets.c.launcher import ABI
from tests.backends.fake_driver import launches_extension
from tests.threads import on_threads

pytestmark = pytest.mark.skipif(toolchain() is None, reason="no C compiler")
F4, F8 = np.dtype(np.float32), np.dtype(np.float64)
SHAPES = [
    ((), 1), ((7,), 1), ((3, 5), 1), ((2, 3, 4), 1), ((5, 3), 0), ((4, 2, 3), 0),
    ((9, 1, 2, 8), 1),
]  # fmt: skip


class Memory:
    """Something that is held."""


@pytest.fixture(scope="module")
def fake() -> Any:
    source = (Path(__file__).parent / "fake_arrays.c").read_text()
    return extension(source, "fake_arrays", ("-O1", "-isystem", get_path("include")), ABI)


@pytest.fixture
def made() -> Any:
    """A copy of the extension, which learns anew."""
    return launches_extension()


def array(
    fake: Any,
    shape: Any = (3, 5),
    ordered: Any = 1,
    dtype: Any = F4,
    ptr: int = 512,
    device: int = 0,
) -> Any:
    steps = tuple(4 * int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
    return fake.ndarray(shape, steps, ordered, dtype, fake.MemoryPointer(ptr, device, Memory()))


def examples(fake: Any) -> list[Any]:
    found = []
    for n, (shape, ordered) in enumerate(SHAPES):
        x = array(fake, shape, ordered, (F4, F8)[n % 2], 4096 * (n + 1), n % 5)
        found.append(
            (x, x.shape, x.dtype, x.data, x._c_contiguous, x.data.ptr, x.data.device_id, x.data.mem)
        )
    return found


def test_where_things_lie_is_learned(made: Any, fake: Any) -> None:
    x = array(fake, device=2)
    key = ((3, 5), F4, 2)
    assert not made.same((x,), (key,))  # Python knows no such class
    assert made.learn(examples(fake))
    assert made.same((x,), (key,))
    others = [((3, 4), F4, 2), ((3, 5, 1), F4, 2), ((15,), F4, 2), ((3, 5), F8, 2), ((3, 5), F4, 1)]
    assert not any(made.same((x,), (other,)) for other in others)
    assert made.same((x,), (((3, 5), np.dtype("=f4"), 2),))
    x.shape = (5, 3)
    assert made.same((x,), (((5, 3), F4, 2),))


def test_examples_that_lie_are_not_believed(made: Any, fake: Any) -> None:
    def change(which: int, value: Any) -> list[Any]:
        found = examples(fake)
        found[2] = (*found[2][:which], value, *found[2][which + 1 :])
        return found

    lies = [(1, (5, 3)), (2, np.dtype(int)), (4, False), (5, 12345), (6, 77), (7, Memory())]
    for which, value in lies:
        assert not made.learn(change(which, value))
    assert not made.learn(examples(fake)[:1])  # too few: many places tell the truth of one
    for wrong in ([], [()], 3, [*examples(fake), (np.ones(3), (), 0, 0, 0, 0, 0, 0)]):
        with pytest.raises(TypeError, match="examples"):
            made.learn(wrong)
    x = array(fake)
    assert not made.same((x,), (((3, 5), F4, 0),))


def test_what_may_be_donated(made: Any, fake: Any) -> None:
    assert made.learn(examples(fake))
    made.know({fake.ndarray: True})
    x, y = array(fake), array(fake)
    view = fake.ndarray((3,), (4,), 1, F4, x.data)
    base = array(fake)
    base.base = x
    cases = [
        ([x, y], {0, 1}), ([x, x], {0}), ([x, view], {0}), ([array(fake, ordered=0)], {0}),
        ([array(fake, ptr=513)], {0}), ([base], {0}), ([base, y], {1}), ([x, 2.0], {0}),
    ]  # fmt: skip
    found = [made.stands(leaves, frozenset(donated), ()) for leaves, donated in cases]
    assert found == [True, False, False, False, False, False, True, True]


class Program:
    """A call that makes two arrays, on a stream that is told."""

    def __init__(self, made: Any, fake: Any, shapes: Any = ((3, 5), (2,))) -> None:
        self.count, self.stream = 0, 0

        def empty(shape: Any, dtype: Any) -> Any:
            self.count += 1
            return array(fake, shape, 1, dtype, 512 * self.count)

        kinds = tuple((shape, F4) for shape in shapes)
        current = lambda: SimpleNamespace(ptr=self.stream)  # noqa: E731
        order = tuple(range(len(shapes)))
        self.call = made.Call(
            0, empty, kinds, (), 0, (), None, None, 0, order, order, lambda: 0, 0, current, [],
            None, None, lambda *xs: None,
        )  # fmt: skip


def test_results_that_nobody_has_are_used_again(made: Any, fake: Any) -> None:
    assert made.learn(examples(fake))
    program = Program(made, fake)
    for _ in range(10):
        x, y = program.call()
        del x, y
    assert program.count == 2
    kept = program.call()
    found = [program.call() for _ in range(5)]
    places = [x.data.ptr for pair in [kept, *found] for x in pair]
    assert len(set(places)) == len(places)
    del found, kept
    before = program.count
    for _ in range(4):
        program.call()
    assert program.count == before


def test_state_has_two_places_in_turn(made: Any, fake: Any) -> None:
    assert made.learn(examples(fake))
    program = Program(made, fake)
    places = []
    state = program.call()
    for _ in range(6):
        state = program.call()  # while the one before lives
        places.append(tuple(x.data.ptr for x in state))
    assert places[0] != places[1]
    assert places[:2] * 3 == places


def test_what_somebody_can_still_see_is_not_used_again(made: Any, fake: Any) -> None:
    assert made.learn(examples(fake))
    for hold in (lambda x: x, lambda x: x.data, lambda x: x.data.mem, weakref.ref):
        program = Program(made, fake)
        held = hold(program.call()[0])
        place = 512
        for _ in range(5):
            x, _ = program.call()
            assert x.data.ptr != place
            del x
        del held
    program = Program(made, fake)
    program.call()[0].shape = (5, 3)
    assert program.call()[0].shape == (3, 5)
    assert program.count == 3


def test_each_stream_has_its_own(made: Any, fake: Any) -> None:
    assert made.learn(examples(fake))
    program = Program(made, fake)
    first = program.call()[0].data.ptr
    program.stream = 7
    assert program.call()[0].data.ptr != first
    program.stream = 0
    assert program.call()[0].data.ptr == first


def test_each_thread_has_its_own_where_streams_are_of_threads(made: Any, fake: Any) -> None:
    """The driver's number of a thread's own stream is 2 in all threads."""
    assert made.learn(examples(fake))
    program = Program(made, fake)
    program.stream = 2
    first = program.call()[0].data.ptr
    found: list[int] = []
    on_threads(lambda: found.append(program.call()[0].data.ptr))
    assert found != [first]
    assert program.call()[0].data.ptr == first


def test_what_goes_may_call_the_program_again(made: Any, fake: Any) -> None:
    assert made.learn(examples(fake))
    program = Program(made, fake, ((3, 5),))
    weakref.finalize(program.call()[0], program.call)
    (second,) = program.call()
    (third,) = program.call()  # the first is kept no more, and so gone
    assert program.count == 4
    assert (sys.getrefcount(second), sys.getrefcount(third)) == (2, 3)
    places = {x.data.ptr for x in (second, third, *program.call(), *program.call())}
    assert len(places) == 4


def test_large_results_are_not_kept(made: Any, fake: Any) -> None:
    assert made.learn(examples(fake))
    program = Program(made, fake, ((1 << 20,), (0, 1 << 20), (16,)))
    memories = [weakref.ref(x.data.mem) for x in program.call()]
    assert [m() is None for m in memories] == [True, False, False]
    del program
    gc.collect()
    assert all(m() is None for m in memories)


def test_other_classes_are_left_to_python(made: Any, fake: Any) -> None:
    assert made.learn(examples(fake))
    before = sys.getrefcount(F4)
    assert not made.same((np.ones((3, 5), F4),), (((3, 5), F4, 0),))
    assert sys.getrefcount(F4) == before
