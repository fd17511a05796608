"""Eager derivatives that are remembered: never an older trace's where anything has changed."""

from __future__ import annotations

import contextvars
import copy
import gc
import pickle
import random
import time
import weakref

import numpy as np
import pytest

import ge2
from ge2 import grad, jit, value_and_grad
from ge2.trace import Trace
from ge2.transforms.surroundings import straight
from tests.compared import all_close, all_equal

X = np.array([0.5, -1.0, 2.0])
SCALE = 2.0
WEIGHTS = np.array([1.0, 2.0, 3.0])
LOG: list[int] = []
LARGE, JITTED = np.ones(100_000), jit(np.sum)
SETTING = contextvars.ContextVar("SETTING", default=1.0)


@pytest.fixture(autouse=True)
def unchecked():
    """Nothing is remembered while graphs are checked."""
    with ge2.config.using(check=False):
        yield


def helper(x):
    return x * SCALE


class Config:
    scale = 1.0


class Model:
    def __init__(self):
        self.scale = 1.0

    def __call__(self, x):
        return np.sum(x * self.scale)

    def loss(self, x):
        return np.sum(x * self.scale)


def cells(g):
    """The cells of a function and of those that it wraps."""
    for c in g.__closure__ or ():
        yield c
        if hasattr(c.cell_contents, "__closure__"):
            yield from cells(c.cell_contents)


def entries(g):
    """What a transformed function remembers."""
    memories = {
        id(c.cell_contents): c.cell_contents for c in cells(g) if hasattr(c.cell_contents, "known")
    }
    return [e for memory in memories.values() for e in memory.known.values() if e is not None]


def settled(g, *args):
    """The third result, after two equal ones."""
    first = g(*args)
    for _ in range(2):
        again = g(*args)
        np.testing.assert_array_equal(again, first)
    return again


def test_a_pure_function_is_remembered_by_signature():
    g = grad(lambda x, y: np.sum(np.sin(x) * helper(y)), (0, 1))
    for x, y in ((X, 2 * X), (X, 1.5), (X.astype("f4"), X.astype("f4")), (X[:2], X[:2])):
        want = (
            np.cos(x) * y * SCALE,
            (np.sin(x) * SCALE if np.ndim(y) else np.sum(np.sin(x) * SCALE)),
        )
        for _ in range(3):
            all_close(g(x, y), want, rtol=1e-6)
        assert type(g(x, y)[1]) is (np.ndarray if np.ndim(y) else float)
    assert len(entries(g)) == 4


def test_values_and_auxiliary_results():
    g = value_and_grad(lambda p: (np.sum(p["w"] * p["b"][0]), {"n": p["w"] + 1}), has_aux=True)
    for k in range(4):
        p = {"w": X + k, "b": [2.0 * X]}
        (value, aux), found = g(p)
        assert value == np.sum(p["w"] * p["b"][0])
        np.testing.assert_array_equal(aux["n"], p["w"] + 1)
        np.testing.assert_array_equal(found["w"], p["b"][0])
        found["w"][:] = np.nan  # it is the caller's own
    assert len(entries(g)) == 1


def test_higher_orders():
    g = grad(grad(lambda x: x**3 * SCALE))
    assert [g(x) for x in (1.0, 2.0, 3.0)] == [12.0, 24.0, 36.0]
    assert len(entries(g)) == 1


def test_globals_and_helpers(monkeypatch):
    g = grad(lambda x: np.sum(helper(x) * WEIGHTS))
    np.testing.assert_array_equal(settled(g, X), 2 * WEIGHTS)
    assert entries(g)
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    np.testing.assert_array_equal(settled(g, X), 5 * WEIGHTS)
    monkeypatch.setitem(globals(), "helper", lambda x: -x)
    np.testing.assert_array_equal(settled(g, X), -WEIGHTS)
    monkeypatch.setitem(globals(), "sum", lambda x: 0.0)
    np.testing.assert_array_equal(settled(g, X), -WEIGHTS)


def test_arrays_in_place():
    w, table = np.ones(3), {"k": [1.0, np.ones(3)]}
    g = grad(lambda x: np.sum(x * np.sin(w) * table["k"][1]) * table["k"][0])
    np.testing.assert_allclose(settled(g, X), np.sin(np.ones(3)))
    assert entries(g)
    w[1] = 0.0
    np.testing.assert_allclose(settled(g, X), np.sin([1.0, 0.0, 1.0]))
    table["k"][1][0] = 4.0
    np.testing.assert_allclose(settled(g, X), np.sin([1.0, 0.0, 1.0]) * [4, 1, 1])
    table["k"][0] = -1.0
    np.testing.assert_allclose(settled(g, X), -np.sin([1.0, 0.0, 1.0]) * [4, 1, 1])


def test_cells_defaults_and_code():
    k = 1.0

    def f(x, *, by=[2.0]):  # noqa: B006 a default that changes
        return np.sum(x) * k * by[0]

    g = grad(f)
    assert settled(g, X)[0] == 2.0 and entries(g)
    k = 3.0
    assert settled(g, X)[0] == 6.0
    f.__kwdefaults__["by"][0] = 4.0
    assert settled(g, X)[0] == 12.0

    def plain(x, c=1.0):
        return np.sum(x) * c

    g = grad(plain)
    assert settled(g, X)[0] == 1.0 and entries(g)
    plain.__defaults__ = (7.0,)
    assert settled(g, X)[0] == 7.0
    plain.__code__ = (lambda x, c: np.sum(x * x)).__code__
    np.testing.assert_array_equal(settled(g, X), 2 * X)


def reads_an_attribute(x):
    return np.sum(x) * Config.scale


def test_attributes_are_looked_up_each_time(monkeypatch):
    model, g = Model(), grad(reads_an_attribute)
    assert settled(g, X)[0] == 1.0 and not entries(g)
    monkeypatch.setattr(Config, "scale", 2.0)
    assert settled(g, X)[0] == 2.0
    for f in (model, model.loss, lambda x: model.loss(x)):
        g = grad(f)
        model.scale = 1.0
        assert settled(g, X)[0] == 1.0 and not entries(g)
        model.scale = 3.0
        assert settled(g, X)[0] == 3.0


IMPURE = {
    "print": lambda x: (print("here"), np.sum(x))[1],
    "append": lambda x: (LOG.append(1), np.sum(x))[1],
    "random": lambda x: np.sum(x) * np.random.rand(),
    "python_random": lambda x: np.sum(x) * random.random(),
    "time": lambda x: np.sum(x) * time.time(),
    "contextvar": lambda x: np.sum(x) * SETTING.get(),
    "looks": lambda x: np.sum(x) if x[0] > 0 else -np.sum(x),
    "converts": lambda x: np.sum(x) * int(x[0]),
    "globals": lambda x: np.sum(x) * globals()["SCALE"],
    "jitted": lambda x: JITTED(x),
    "debug": lambda x: (ge2.debug.print("x"), np.sum(x))[1],
    "large": lambda x: np.sum(x) * LARGE[0],
}


@pytest.mark.parametrize("f", IMPURE.values(), ids=IMPURE)
def test_what_cannot_be_seen_is_traced_each_time(f):
    g = grad(f)
    for _ in range(4):
        g(X)
    assert not entries(g)


def test_effects_happen_at_each_call(capsys):
    LOG.clear()
    g, h = grad(IMPURE["append"]), grad(IMPURE["print"])
    for _ in range(5):
        g(X), h(X)
    assert LOG == [1] * 5 and capsys.readouterr().out == "here\n" * 5
    monday = grad(lambda x: np.sum(x) if x[0] > 0 else -np.sum(x))
    assert [monday(x)[0] for x in (X, X, X, -X, -X, X)] == [1, 1, 1, -1, -1, 1]


def test_settings_and_tracing():
    g = grad(lambda x: np.sum(np.sqrt(x)))
    settled(g, np.abs(X))
    np.testing.assert_allclose(jit(g)(np.abs(X)), g(np.abs(X)))
    np.testing.assert_allclose(ge2.vmap(g)(np.abs(X)[None]), g(np.abs(X))[None])
    with ge2.config.using(debug_nans=True), pytest.raises(FloatingPointError):
        g(X)


def test_a_copy_begins_anew():
    g = grad(lambda x: np.sum(x * SCALE))
    settled(g, X)
    (memory,) = (c.cell_contents for c in cells(g) if hasattr(c.cell_contents, "known"))
    assert entries(g) and not pickle.loads(pickle.dumps(memory)).known
    assert not copy.deepcopy(memory).known


def test_straight_code_is_the_graph():
    """Values that die lend their memory, views and results do not."""
    n = 5000

    def f(x, y):
        a = np.sin(x) * 2.0 + y
        v = a[::-1]
        b = np.cos(a) * y
        c = np.where(b > 0, b, v) + np.tanh(b.reshape(50, -1)).T.reshape(-1)
        return a, np.sum(c * c), np.exp(-c) + b, v * 3, 1.5

    x, y = np.linspace(-1, 1, n), np.linspace(2, 3, n)
    graph = ge2.make_jaxpr(f)(x, y).graph
    kept = x.copy(), y.copy()
    all_equal(straight(graph)(x, y), graph(x, y))
    np.testing.assert_array_equal((x, y), kept)


def test_transforms_of_one_function_share_what_they_remember():
    """`grad(f)(x)` in a loop makes a new transform each time."""

    def f(x):
        LOG.append(0)
        return np.sum(x * x)

    LOG.clear()
    results = [grad(f)(X) for _ in range(6)]
    assert len(LOG) == 6  # it has an effect: traced at each call
    np.testing.assert_array_equal(results, [2 * X] * 6)

    def pure(x, y):
        return np.sum(np.sin(x) * y)

    for _ in range(4):
        np.testing.assert_allclose(grad(pure)(X, X), np.cos(X) * X)
        np.testing.assert_allclose(grad(pure, 1)(X, X), np.sin(X))
        value, slopes = value_and_grad(pure, argnums=[0, 1])(X, X)
        np.testing.assert_allclose(value, pure(X, X))
        np.testing.assert_allclose(slopes, (np.cos(X) * X, np.sin(X)))
    assert len(entries(grad(pure))) == len(entries(grad(pure, 1))) == 1
    assert entries(grad(pure)) != entries(grad(pure, 1))


def test_few_functions_are_held_and_only_those_transformed_again():
    def made(k):
        def f(x):
            return np.sum(x * k)

        return f

    once, often = made(2.0), [made(float(k)) for k in range(40)]
    grad(once)(X)
    held = weakref.ref(once)
    del once
    gc.collect()
    assert held() is None
    for f in often:
        for _ in range(4):
            np.testing.assert_array_equal(grad(f)(X), [f(1.0)] * 3)
    first, last = weakref.ref(often[0]), weakref.ref(often[-1])
    del often, f
    gc.collect()
    assert first() is None
    assert last() is not None


def test_a_function_that_closes_over_much_is_not_held():
    def f(x):
        return np.sum(x * LARGE[:3])

    for _ in range(8):
        grad(f)(X)
    held = weakref.ref(f)
    del f
    gc.collect()
    assert held() is None


# --------------------------------------------------------------- transforms whose whole call is traced


def product(x, y):
    return np.sin(x) * y * SCALE


def total(x, y):
    return np.sum(product(x, y) ** 2)


WHOLE = {
    "jacfwd": lambda: ge2.jacfwd(product),
    "jacrev": lambda: ge2.jacrev(product, (0, 1)),
    "hessian": lambda: ge2.hessian(total),
    "vmap": lambda: ge2.vmap(product, (0, None)),
    "vmap of grad": lambda: ge2.vmap(grad(total), (0, None)),
    "jvp": lambda: lambda x, y: ge2.jvp(product, (x, y), (y, x)),
}


@pytest.fixture
def traces(monkeypatch):
    """How many traces were begun."""
    begun = []
    first = Trace.__init__

    def counted(self, *args, **kwargs):
        begun.append(self)
        first(self, *args, **kwargs)

    monkeypatch.setattr(Trace, "__init__", counted)
    return begun


@pytest.mark.parametrize("make", WHOLE.values(), ids=WHOLE)
@pytest.mark.parametrize("x", [X, X.astype("f4"), 2.5], ids=["f64", "f32", "a number"])
def test_other_transforms_are_remembered_too(make, x, traces, monkeypatch):
    if x is not X and make in (WHOLE["vmap"], WHOLE["vmap of grad"]) and np.ndim(x) == 0:
        pytest.skip("a number has no axis")
    g, y = make(), x * 2

    def same(found, want):
        leaves, structure = ge2.tree.flatten(found)
        assert structure == ge2.tree.structure(want)
        for a, b in zip(leaves, ge2.tree.leaves(want), strict=True):
            assert type(a) is type(b) and np.asarray(a).dtype == np.asarray(b).dtype
            np.testing.assert_allclose(a, b, rtol=1e-6)

    first = g(x, y)
    for _ in range(3):
        same(g(x, y), first)
    count = len(traces)
    same(g(x, y), first)
    assert len(traces) == count > 0
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    fresh = make()
    for _ in range(4):
        same(g(x, y), fresh(x, y))
    assert len(traces) > count
    assert not np.array_equal(ge2.tree.leaves(g(x, y))[0], ge2.tree.leaves(first)[0])


def test_a_whole_call_that_looks_at_values_is_traced_each_time():
    def f(x):
        return x * 2 if x[0] > 0 else -x

    g = ge2.jacfwd(f)
    for x in (X, X, X, X, -X, -X, X):
        np.testing.assert_array_equal(g(x), (2 if x[0] > 0 else -1) * np.eye(3))
    assert not entries(g)


def test_a_whole_call_that_writes_or_leaves_something_is_not_remembered():
    def write(x, y):
        y[...] = x.sum()
        return x * 2

    g, y = ge2.vmap(write, (None, 0), None), np.zeros((2, 3))
    with pytest.raises(ge2.errors.Ge2Error):
        g(X, y)
    kept = []
    h = ge2.vmap(lambda x: kept.append(1) or x * 2)
    for n in range(1, 7):
        h(X)
        assert len(kept) == n
    out = ge2.vmap(product, (0, None))
    for _ in range(4):
        found = out(X, 2.0)
    found[:] = 0  # the caller's own
    np.testing.assert_array_equal(out(X, 2.0), product(X, 2.0))
