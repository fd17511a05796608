"""Memory of results is used again only when nobody can see it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ge2.compile import compile_graph
from ge2.ir import parse
from ge2.ir.types import ArrayType
from ge2.passes import TABLE
from ge2.targets.c.launcher import COUNT, COUNTED, Kept, worth_keeping
from ge2.targets.c.tuning import Results

F32 = np.dtype(np.float32)
SIZE = Results().least // 4
TEXT = f"{{ lambda ; x:f32[{SIZE}]. let a:f32[{SIZE}] = mul x 2.0:f32[] in (a,) }}"


def address(x: np.ndarray) -> int:
    return x.__array_interface__["data"][0]


@pytest.mark.skipif(not COUNTED, reason="references are not counted here")
def test_what_nobody_holds_is_used_again():
    kept = Kept((8,), F32)
    assert len({address(kept()) for _ in range(10)}) <= COUNT


@pytest.mark.parametrize(
    "hold",
    [
        lambda x: x,
        lambda x: x[2:],
        lambda x: [x],
        lambda x: memoryview(x),
        lambda x: x.reshape(2, 4).T[1:],
        lambda x: np.from_dlpack(x),
        lambda x: lambda: x,
    ],
)
def test_what_somebody_holds_is_not(hold):
    kept, held, places = Kept((8,), F32), [], []
    for _ in range(5):
        x = kept()
        places.append(address(x))
        held.append(hold(x))
        del x
    assert len(held) == len(set(places)) == 5


def test_results_that_are_held_keep_their_numbers():
    f = compile_graph(parse(TEXT, TABLE))
    held = []
    for i in range(8):
        (y,) = f(np.full(SIZE, i, np.float32))
        held.append((i, y[5:] if i % 2 else y))
    for i, y in held:
        assert (y == 2 * i).all()


def test_what_was_changed_by_its_last_holder_is_not_used():
    kept = Kept((8,), F32)
    for change in (lambda x: x.setflags(write=False), lambda x: x.resize(4, refcheck=False)):
        for _ in range(COUNT):
            change(kept())
        y = kept()
        assert y.shape == (8,)
        assert y.flags.writeable


def test_threads_never_share_one():
    f = compile_graph(parse(TEXT, TABLE))

    def work(i: int) -> bool:
        return all((f(np.full(SIZE, i + k, np.float32))[0] == 2 * (i + k)).all() for k in range(50))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_small_and_huge_results_are_not_kept():
    assert not worth_keeping(ArrayType((8,), F32).nbytes, Results())
    assert not worth_keeping(ArrayType((1 << 28,), F32).nbytes, Results())
    assert worth_keeping(ArrayType((SIZE,), F32).nbytes, Results()) == COUNTED
