"""Arenas: the same again on a stream, another for whoever comes at the same
time, larger when needed.
"""

from __future__ import annotations

from threading import Thread

import numpy as np
import pytest

from ge2.targets.cuda.load.arena import STREAMS, Scratch


def bytes_(n):
    return np.empty(n, np.uint8)


def used(scratch, nbytes):
    """What a program of that need had."""
    memory, idle = scratch.take(nbytes)
    idle.append(memory)
    return memory


def test_the_same_memory_comes_again():
    scratch = Scratch(bytes_, lambda: 0)
    first = used(scratch, 100)
    assert used(scratch, 50) is first
    assert used(scratch, 100) is first


def test_two_at_once_have_two():
    scratch = Scratch(bytes_, lambda: 0)
    (first, idle), (second, _) = scratch.take(8), scratch.take(8)
    assert first is not second
    idle += [first, second]
    assert {id(scratch.take(8)[0]), id(scratch.take(8)[0])} == {id(first), id(second)}


def test_a_larger_one_takes_the_place_of_a_smaller():
    scratch = Scratch(bytes_, lambda: 0)
    used(scratch, 8)
    large = used(scratch, 80)
    assert large.nbytes == 80
    assert scratch.idle == {0: [large]}


def test_streams_do_not_share():
    current = [0]
    scratch = Scratch(bytes_, lambda: current[0])
    first = used(scratch, 8)
    current[0] = 1
    assert used(scratch, 8) is not first
    current[0] = 0
    assert used(scratch, 8) is first


def test_only_so_many_streams_are_kept():
    current = [0]
    scratch = Scratch(bytes_, lambda: current[0])
    for n in range(3 * STREAMS):
        current[0] = n
        used(scratch, 8)
    assert len(scratch.idle) <= STREAMS


def test_what_is_idle_goes_before_memory_runs_out():
    def empty(n):
        if n > 20 - sum(x.nbytes for xs in scratch.idle.values() for x in xs):
            raise MemoryError("no more")
        return bytes_(n)

    scratch = Scratch(empty, lambda: 0)
    used(scratch, 4)
    scratch.idle[7] = [bytes_(4)]
    assert scratch.take(17)[0].nbytes == 17
    assert not any(scratch.idle.values())
    with pytest.raises(MemoryError):
        scratch.take(21)


def test_threads_never_have_the_same_at_once():
    scratch, held, wrong = Scratch(bytes_, lambda: 0), set(), []

    def work():
        for _ in range(2000):
            memory, idle = scratch.take(8)
            if id(memory) in held:
                wrong.append(memory)
            held.add(id(memory))
            held.remove(id(memory))
            idle.append(memory)

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_a_captured_graph_has_is_nobody_elses():
    """The graph may run at any time: its scratch is neither given again nor freed."""
    current = [0]
    scratch = Scratch(bytes_, lambda: current[0])
    used(scratch, 100)
    current[0] = None
    inside = used(scratch, 100)
    again = used(scratch, 100)
    current[0] = 0
    assert len({id(inside), id(again), id(used(scratch, 100))}) == 3
    used(scratch, 1000)
    scratch.release()
    assert [x is y for x, y in zip(scratch.captured, (inside, again), strict=True)] == [True, True]
