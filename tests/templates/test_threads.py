"""A thread of a team keeps away from the processor of its caller."""

from __future__ import annotations

import ctypes
import os

import numpy as np
import pytest

import ge2
from tests.templates.harness import build, needs_compiler

TEXT = """
#include "ge2/core.h"
#include <sched.h>

/* The processors that a worker may use after it was at home, or elsewhere, as bits; above them, home. */
int64_t allowed_after(int at_home) {
    int64_t bits = 0;
    const int home = ge2_home();
    #pragma omp parallel num_threads(2)
    if (GE2_THREAD == 1) {
        cpu_set_t before, one;
        sched_getaffinity(0, sizeof before, &before);
        CPU_ZERO(&one);
        for (int cpu = 0; cpu < 64; cpu++)
            if (CPU_ISSET(cpu, &before) && (cpu == home) == at_home && !CPU_COUNT(&one)) CPU_SET(cpu, &one);
        sched_setaffinity(0, sizeof one, &one);
        ge2_apart(home);
        sched_getaffinity(0, sizeof one, &one);
        for (int cpu = 0; cpu < 64; cpu++) bits |= (int64_t)!!CPU_ISSET(cpu, &one) << cpu;
        sched_setaffinity(0, sizeof before, &before);
    }
    return bits & ~((int64_t)1 << home) ? bits | (int64_t)home << 56 : -1;
}
"""


@needs_compiler
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system has no processor sets")
@pytest.mark.skipif(
    os.cpu_count() == 1 or (os.cpu_count() or 64) > 48, reason="needs 2 to 48 processors"
)
def test_a_thread_at_home_moves_away_and_another_stays(tmp_path):
    allowed = os.sched_getaffinity(0)
    if len(allowed) == 1:
        pytest.skip("one processor")
    call = ctypes.CDLL(str(build(TEXT, tmp_path)[0])).allowed_after
    call.restype = ctypes.c_int64
    one, several = call(0), call(1)
    assert (one & (1 << 48) - 1).bit_count() == 1  # it stays where it was
    home = several >> 56
    assert several & (1 << 48) - 1 == sum(1 << cpu for cpu in allowed - {home})


def test_the_caller_itself_may_run_anywhere_after():
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("the system has no processor sets")
    before = os.sched_getaffinity(0)
    x = np.ones(1 << 22, np.float32)
    assert ge2.jit(lambda x: (np.tanh(x) * x).sum())(x) > 0
    assert os.sched_getaffinity(0) == before


SHARED = """
#include "ge2/core.h"

static void add(const void *const *given, int64_t from, int64_t to) {
    int32_t *const *counts = given[0];
    for (int64_t i = from; i < to; i++) __atomic_add_fetch(*counts + i, 1, __ATOMIC_RELAXED);
}

void share(int32_t *counts, int64_t total, int64_t chunk, int threads) {
    ge2_share(add, (const void *const[]){&counts}, total, chunk, threads);
}
"""


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize(("total", "chunk"), [(0, 4), (1, 4), (7, 7), (1000, 3), (1000, 1001)])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_take_each_iteration_once(tmp_path, total, chunk, threads):
    share = ctypes.CDLL(str(build(SHARED, tmp_path)[0])).share
    share.argtypes = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int
    counts = np.zeros(total + 8, np.int32)
    share(counts.ctypes.data, total, chunk, threads)
    np.testing.assert_array_equal(counts, [1] * total + [0] * 8)
