"""Regions write right into slices where that is the same: no pass over the array for each write."""

from __future__ import annotations

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.compile import compile_graph, writes
from tests.compared import all_close, all_equal

rng = np.random.default_rng(0)
U, V = rng.standard_normal((2, 9, 11))
WIDE_U, WIDE_V = rng.standard_normal((2, 24, 70))


def heat(u, v):
    y = np.zeros_like(u)
    y[1:-1] = u[1:-1] + 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2])
    y[0], y[-1] = u[0], v[0]
    return y


def jacobi(u, v):
    y = u.copy()
    y[1:-1, 1:-1] = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]) - v[1:-1, 1:-1]
    return y


def reflecting(u, v):
    y = np.zeros_like(u)
    y[1:-1, 1:-1] = np.sin(u[1:-1, 1:-1]) * v[1:-1, 1:-1]
    y[0], y[-1] = y[1], y[-2]
    y[:, 0], y[:, -1] = y[:, 1], y[:, -2]
    return y


def leapfrog(u, v):
    h, e = u.copy() * 1.0, v * 0.5
    for _ in range(3):
        h[:, :-1] = h[:, :-1] + 0.5 * (e[:, 1:] - e[:, :-1])
        e[:, 1:-1] = e[:, 1:-1] + 0.5 * (h[:, 1:-1] - h[:, :-2])
    return h, e


def in_sweeps(u, v):  # reads its neighbours after they were written: not in one pass
    y = u * 1.0
    y[1:-1] = y[:-2] + y[2:] * 0.5
    y[:, 1:] = y[:, :-1] * 0.5 - v[:, 1:]
    return y


def read_between(u, v):
    y = u + 1.0
    z = np.cumsum(v * 2.0, axis=0)
    new = np.sin(v[2:]) * 3.0
    total = y.sum() + z[0, 0]
    y[2:] = new
    return y * total


def overlapping(u, v):
    y = np.zeros_like(u)
    a, b = np.sin(u), np.cos(v)
    y[:6] = a[:6] * b[3:] * 2.0
    y[3:] = b[3:] * 2.0 + y[:6]
    return y


def strided(u, v):
    y = v * 2.0
    y[::2, 1::3] = u[::2, 1::3] * 5.0
    y[1::2] = y[:-1:2] - u[1::2]
    return y


def reshaped(u, v):
    y = np.zeros_like(u[:, 0])
    y[3] = (u[0] * v[0]).sum()
    y[4] = u[1, 1] * v[2, 2]
    return y[::-1] * 2.0


def gathered(u, v):  # by the region that makes what is written into it, too
    k = np.argsort(u[:, 0])
    y = v[k // 2]
    y[:, 1] = k % 2
    return y


def from_one_region(u, v):
    y, z = u * 2.0 + v, u * 3.0 - v
    y[2:5] = z[2:5]
    y[:, 3:] = (u * v)[:, 3:] + 1.0
    return y, z[0]


PROGRAMS = [
    heat, jacobi, reflecting, leapfrog, in_sweeps, read_between, overlapping, strided, reshaped, gathered,
    from_one_region,
]  # fmt: skip


@pytest.mark.exhaustive("f")
@pytest.mark.parametrize("executor", ["c", "blocked"])
@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_writes_into_slices_mean_the_same(f, executor):
    with config.using(executor=executor):
        found = ge2.jit(f)(U, V)
    all_close(ge2.tree.leaves(found), ge2.tree.leaves(f(U.copy(), V.copy())), rtol=1e-13)


def scratch(f):
    """The bytes of arrays that are neither arguments nor results."""
    graph = ge2.jit(f).trace(U, V).jaxpr
    with config.using(executor="c"):
        return compile_graph(graph).memory_analysis().arena


@pytest.mark.parametrize("f", [heat, jacobi, reflecting, leapfrog], ids=lambda f: f.__name__)
def test_what_is_written_into_a_slice_has_no_array_of_its_own(f):
    assert scratch(f) == 0


@pytest.mark.parametrize("f", [in_sweeps, overlapping], ids=lambda f: f.__name__)
def test_what_is_read_meanwhile_has_one(f):
    assert scratch(f) > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(8))
def test_random_writes_mean_the_same(seed):
    draw = np.random.default_rng(seed)

    def cut():
        """A slice of four elements, in one step or two."""
        start, step = int(draw.integers(0, 5)), int(draw.integers(1, 3))
        return slice(start, start + 3 * step + 1, step)

    plan = [(cut(), cut(), int(draw.integers(4))) for _ in range(6)]

    def f(x):
        y, z = x * 0.0, x * 2.0
        for to, source, kind in plan:
            base = (x, y, z, y)[kind]
            y[to] = np.sin(base[source]) + x[to] * (y[to] if kind == 3 else 0.5)
            if kind == 2:
                z[source] = y[source] * 0.5 + z[to]
        return y, z

    x = draw.standard_normal(12)
    all_close(ge2.jit(f)(x), f(x), rtol=1e-13)


# -------- Into arguments, and into carries: the first write, too, is made where it goes.


def smoothed(u, v):
    u[1:-1, 1:-1] += 0.1 * (v[2:, 1:-1] + v[:-2, 1:-1] - 2 * v[1:-1, 1:-1])


def bordered(u, v):
    u[1:-1] = 0.5 * (v[2:] - v[:-2])
    u[0], u[-1] = 1.0, u[1]


def red_black(u, v):
    u[1:-1:2, 1:-1] = 0.25 * (u[:-2:2, 1:-1] + u[2::2, 1:-1] + v[1:-1:2, 1:-1])
    u[2:-1:2, 1::3] = 0.25 * (u[1:-2:2, 1::3] + u[3::2, 1::3] + v[2:-1:2, 1::3])


def leaps(u, v):
    for t in range(9):
        u[0] = v[t]
        u[1:] -= 0.5 * (v[1:] - v[:-1])
        v[:-1, :-1] -= 0.7 * (u[1:, :-1] - u[:-1, :-1] + v[:-1, :-1])


def pools(u, v):
    for _ in range(9):
        v[1:-1, 1:-1] = 0.2 * (u[1:-1, :-2] + u[1:-1, 2:] + u[2:, 1:-1] + u[:-2, 1:-1])
        u[1:-1, 1:-1] = 0.2 * (v[1:-1, :-2] + v[1:-1, 2:] + v[2:, 1:-1] + v[:-2, 1:-1])


INTO = [smoothed, bordered, red_black, leaps, pools]


@pytest.mark.parametrize("f", INTO, ids=lambda f: f.__name__)
def test_what_is_written_into_an_argument_has_no_array_of_its_own(f):
    given = [x.copy() for x in (WIDE_U, WIDE_V)]
    assert ge2.jit(f).lower(*given).memory_analysis().arena <= 64


def made_before(u, v):  # and written in another order
    a, b = u[:4] * 2.0, v[4:8] + u[4:8]
    u[4:8] = b
    u[:4] = a


def crossed(u, v):
    a, b = u[:4] * 2.0, u[4:8] + u[:4]
    u[4:8] = b
    u[:4] = a + u[4:8]


def read_before_it_is_written(u, v):
    a = v[1:5] * 2.0
    b = u[1:5] * v[2:6]
    u[1:5] = a
    v[0:4] = b


def read_after_it_is_written(u, v):
    u[1:-1] = v[1:-1] * 2.0
    v[1:-1] = u[:-2] + u[2:]


def places(u, v):  # which may be out of range, when something is written
    a = v[1:5] * 2.0
    b = u[0, (v[0] * 0).astype(int)]
    u[1:5] = a
    v[0] = b


@pytest.mark.parametrize("apart", [False, True], ids=["plain", "strided"])
@pytest.mark.parametrize(
    "f",
    [*INTO, made_before, crossed, read_before_it_is_written, read_after_it_is_written, places],
    ids=lambda f: f.__name__,
)
def test_writes_into_arguments_mean_the_same_wherever_those_lie(f, apart):
    """An argument that is not in C order is made beside, and what a step does not write is copied."""
    given, wanted = [x.copy() for x in (WIDE_U, WIDE_V)], [WIDE_U.copy(), WIDE_V.copy()]
    if apart:
        given = [np.repeat(np.repeat(x, 2, 0), 2, 1)[::2, ::2] for x in given]
    ge2.jit(f)(*given)
    f(*wanted)
    all_equal(given, wanted)


def shallow(u, v):
    new = np.zeros_like(u)
    new[1:] = u[1:] - 0.1 * (v[1:] - v[:-1])
    h = np.zeros_like(v)
    h[:-1] = v[:-1] - 0.1 * (new[1:] - new[:-1])
    h[-1] = v[-1]
    return h, new


def test_zeros_are_not_filled_where_they_are_written():
    compiled = ge2.jit(shallow)
    all_close(compiled(U, V), shallow(U, V), rtol=1e-13)
    assert scratch(shallow) == 0
    source = compiled.lower(U, V).as_text("c")
    calls = source[source.index("\nint ge2_run") :].count("    pointwise_")
    assert calls == 5  # two regions, the zeros beside each, a row


def test_rows_that_are_written_after_all_are_looked_at_once_each(monkeypatch):
    """The work on a chain of updates whose array is made after the region that their rows are of."""

    def rows(x, y):
        out = np.zeros_like(y)
        for t in range(len(y)):
            x = x / (x + 0.1)
            out[t] = x
        return out

    def looks(count):
        asked = []
        monkeypatch.setattr(writes, "disjoint", lambda a, b: asked.append(a) or disjoint(a, b))
        ge2.jit(rows).lower(np.ones(6), np.ones((count, 6)))
        return len(asked)

    disjoint = writes.disjoint
    assert looks(64) <= 2 * looks(32) + 64
