"""Matrix products are shared by our threads, in tiles that the sizes alone
decide, while the BLAS has one.
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import ge2
from ge2.base.compiler import library
from ge2.base.config import allowed_cores, quota
from ge2.targets.c import libraries
from tests.backends.compilers import call, needs_compiler
from tests.threads import on_threads

# rows, columns, inner, count, transposed: rows in tiles, columns in tiles,
# ragged, whole, many small
SHAPES = [
    (1030, 70, 90, 0, ""), (9, 1500, 300, 0, "b"), (513, 513, 40, 0, "a"), (40, 40, 40, 0, ""),
    (70, 50, 60, 30, "ab"), (1, 3000, 1500, 0, ""), (2500, 1, 1500, 0, "a"),
    # with a vector: lines in tasks, parts of few long lines, blocks of wide lines, many short lines
    (2503, 1, 901, 0, ""), (1, 3, 800003, 0, "b"), (1, 1, 2200001, 0, ""), (1, 7001, 333, 0, ""),
    (5, 1, 500003, 0, "a"),
]  # fmt: skip
counted = pytest.mark.skipif(
    libraries.get_threads() is None, reason="the BLAS does not count its threads"
)


def product(a, b):
    return a @ b


def operand(rng, shape, dtype, transposed):
    x = rng.standard_normal(shape).astype(dtype)
    return np.swapaxes(np.ascontiguousarray(np.swapaxes(x, -1, -2)), -1, -2) if transposed else x


@pytest.mark.exhaustive
@needs_compiler
@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
def test_the_bits_are_those_of_any_number_of_threads(dtype, rng):
    for m, n, k, count, how in SHAPES:
        before = (count,) if count else ()
        a = operand(rng, (*before, m, k), dtype, "a" in how)
        b = operand(rng, (*before, k, n), dtype, "b" in how)
        found = []
        for threads in (1, 2, 3):
            with ge2.config.using(threads=threads):
                found.append(ge2.jit(product)(a, b))
        np.testing.assert_array_equal(found[1], found[0])
        np.testing.assert_array_equal(found[2], found[0])
        wide = np.matmul(a.astype("c16"), b.astype("c16"))
        bound = 8 * np.finfo(dtype).eps * np.sqrt(k) * max(np.abs(wide).max(), np.sqrt(k))
        assert np.abs(found[0] - wide).max() <= bound


def with_itself(x):
    return x @ x.T


@needs_compiler
@pytest.mark.parametrize(("n", "k"), [(17, 300), (150, 700)])
@pytest.mark.parametrize(("dtype", "transposed"), [("f4", True), ("f8", False)])
def test_of_a_matrix_and_its_transpose_half_is_computed(n, k, dtype, transposed, rng):
    x = operand(rng, (n, k), dtype, transposed)
    f, found = ge2.jit(with_itself), []
    for threads in (1, 3):
        with ge2.config.using(threads=threads):
            found.append(f(x))
    kernels = "".join(map(str, f.lower(x).kernels))
    assert "product_with_itself" in kernels and "product_with_itself" not in str(
        ge2.jit(product).lower(x, x.T).kernels[0]
    )
    np.testing.assert_array_equal(*found)
    np.testing.assert_array_equal(found[0], found[0].T)
    wide = with_itself(x.astype("f8"))
    assert np.abs(found[0] - wide).max() <= 8 * np.finfo(dtype).eps * np.sqrt(k) * wide.max()


TEAMS = """#include <ge2/core.h>
int ge2_run(int n) {
    int total = 0;
    for (int r = 0; r < n; r++) {
        ge2_team team = ge2_team_here();
        #pragma omp parallel num_threads(3)
        {
            ge2_begin(&team);
            #pragma omp for schedule(dynamic) nowait
            for (int i = 0; i < 8; i++) __atomic_add_fetch(&total, i, __ATOMIC_RELAXED);
            ge2_end(&team);
        }
        ge2_over(&team);
    }
    return total;
}
"""


@needs_compiler
def test_threads_that_the_caller_moves_to_its_processor_finish_their_work():
    """With no patience at all, it does so in nearly every region."""
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    assert call(library(TEAMS, "teams", ("-DGE2_PATIENCE=0",)), 200) == 200 * 28
    assert before is None or os.sched_getaffinity(0) == before


@needs_compiler
@counted
def test_the_blas_has_its_threads_again_after_a_product(rng):
    a = rng.standard_normal((600, 600))
    f = ge2.jit(product)
    before = libraries.get_threads()
    try:
        for count in (1, 2):
            libraries.set_threads(count)
            on_threads(*[lambda: f(a, a)] * 3)
            assert libraries.get_threads() == count
            assert libraries.PRODUCTS[0] == 0
    finally:
        libraries.set_threads(before)


@counted
def test_numpys_own_products_obey_the_setting(monkeypatch, rng):
    seen = []
    monkeypatch.setattr(
        libraries.np, "matmul", lambda *args, **more: seen.append(libraries.get_threads())
    )
    before = libraries.get_threads()
    libraries.matmul_on(before + 1)(1, 2)
    assert seen == [before + 1]
    assert libraries.get_threads() == before
    assert libraries.matmul_on(before) is libraries.np.matmul


def test_a_quota_bounds_the_cores(tmp_path):
    file = tmp_path / "cpu.max"
    for text, cores in (
        ("max 100000", 8),
        ("150000 100000", 2),
        ("nonsense", 8),
        ("400000 100000", 4),
    ):
        quota.cache_clear()
        file.write_text(text)
        assert quota(8, str(file)) == cores
    assert quota(8, str(tmp_path / "none")) == 8
    quota.cache_clear()
    assert allowed_cores() >= 1


AWAKE = """
import os, threading, time
import numpy as np
import ge2

def seconds_of_others():
    others = {*os.listdir("/proc/self/task")} - {str(threading.get_native_id())}
    return sum(int(open(f"/proc/self/task/{t}/schedstat").read().split()[0]) for t in others) / 1e9

f = ge2.jit(lambda a, b: a @ b)
for dtype in ("f4", "f8", "c8", "c16"):
    for m, n, k in ((1, 200, 90), (150, 1, 200), (128, 10, 256), (100, 100, 100), (700, 1, 700)):
        a, b = np.ones((m, k), dtype), np.ones((k, n), dtype)
        f(a, b)
        time.sleep(0.1)  # until the team of a large product sleeps, and who compiled has ended
        before = seconds_of_others()
        f(a, b)
        time.sleep(0.03)
        if (spent := seconds_of_others() - before) > 0.01:
            print(dtype, m, n, k, spent)
"""


@needs_compiler
@counted
@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="Linux counts so")
def test_no_product_wakes_the_threads_of_the_blas():
    """They spin for tens of milliseconds, on the processors that the loops after it need."""
    environment = os.environ | {"PYTHONWARNINGS": "ignore"}
    ran = subprocess.run(
        [sys.executable, "-c", AWAKE], env=environment, capture_output=True, text=True, check=False
    )
    assert (ran.stdout, ran.returncode) == ("", 0), ran.stderr
