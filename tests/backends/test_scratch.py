"""Arenas: the same again on a stream, another for whoever comes at the same time, larger when needed."""

from __future__ import annotations

from threading import Thread

import numpy as np
import pytest

from ge2.backends.scratch import KEPT, STREAMS, Scratch


def bytes_(n):
    return np.empty(n, np.uint8)


def test_the_same_memory_comes_again():
    scratch = Scratch(bytes_, lambda: 0)
    first = scratch.take(100)
    scratch.give(first)
    assert scratch.take(50) is first


def test_two_at_once_have_two():
    scratch = Scratch(bytes_, lambda: 0)
    first, second = scratch.take(8), scratch.take(8)
    assert first is not second
    for x in (first, second):
        scratch.give(x)
    assert {id(scratch.take(8)), id(scratch.take(8))} == {id(first), id(second)}


def test_a_larger_one_takes_the_place_of_a_smaller():
    scratch = Scratch(bytes_, lambda: 0)
    scratch.give(scratch.take(8))
    large = scratch.take(80)
    assert large.nbytes == 80
    scratch.give(large)
    assert scratch.idle == {0: [large]}


def test_streams_do_not_share():
    current = [0]
    scratch = Scratch(bytes_, lambda: current[0])
    first = scratch.take(8)
    scratch.give(first)
    current[0] = 1
    assert scratch.take(8) is not first
    current[0] = 0
    assert scratch.take(8) is first


def test_only_so_much_is_kept():
    current = [0]
    scratch = Scratch(bytes_, lambda: current[0])
    for x in [scratch.take(8) for _ in range(3 * KEPT)]:
        scratch.give(x)
    assert len(scratch.idle[0]) == KEPT
    for n in range(3 * STREAMS):
        current[0] = n
        scratch.give(bytes_(8))
    assert len(scratch.idle) <= STREAMS


def test_what_is_idle_goes_before_memory_runs_out():
    room = [20]

    def empty(n):
        if n > room[0] - sum(x.nbytes for xs in scratch.idle.values() for x in xs):
            raise MemoryError("no more")
        return bytes_(n)

    scratch = Scratch(empty, lambda: 0)
    small = [scratch.take(4), scratch.take(4)]
    for x in small:
        scratch.give(x)
    scratch.idle[7] = [bytes_(4)]
    assert scratch.take(17).nbytes == 17
    assert not scratch.idle
    with pytest.raises(MemoryError):
        scratch.take(21)


def test_threads_never_have_the_same_at_once():
    scratch, held, wrong = Scratch(bytes_, lambda: 0), set(), []

    def work():
        for _ in range(2000):
            x = scratch.take(8)
            if id(x) in held:
                wrong.append(x)
            held.add(id(x))
            held.remove(id(x))
            scratch.give(x)

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
