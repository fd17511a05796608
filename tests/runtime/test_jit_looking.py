"""`jit`: what it may overwrite, what it says of itself, and what it forgets."""

from __future__ import annotations

import contextvars
import logging
import pickle

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.base.source import Ge2Warning
from ge2.errors import InputError
from tests.runtime.counted import Counted, X
from tests.threads import on_threads

pytestmark = pytest.mark.any_executor

# ----------------------------------------------------------------------------------------- donation


def test_a_donated_array_is_spoiled_under_check():
    f = ge2.jit(lambda x, y: (x.sum(), y), donate_argnums=0)
    x, y = X.copy(), X.copy()
    assert f(x, y)[0] == X.sum()
    assert np.isnan(x).all()
    np.testing.assert_array_equal(y, X)


@pytest.mark.parametrize(
    "make", [lambda: X.copy(), lambda: np.arange(5), lambda: np.array([True, False])]
)
def test_views_of_a_donated_array_are_spoiled_too(make):
    """Its memory would hold a result, and a view cannot be found from its base."""
    f, x = ge2.jit(lambda x: x * 2, donate_argnums=0), make()
    view, names, wanted = x[1:], [x], x * 2
    np.testing.assert_array_equal(f(x), wanted)
    spoiled = {"f": np.nan, "i": np.iinfo("i8").max, "b": True}[x.dtype.kind]
    for each in (view, *names):
        np.testing.assert_array_equal(each, np.full_like(each, spoiled))


def test_donation_by_name_and_in_containers():
    f = ge2.jit(lambda params, x: {k: v + x for k, v in params.items()}, donate_argnames="params")
    for call in (lambda p: f(p, 1.0), lambda p: f(params=p, x=1.0)):
        params = {"a": X.copy(), "b": X.copy()}
        found = call(params)
        np.testing.assert_array_equal(found["a"], X + 1)
        np.testing.assert_array_equal(found["b"], X + 1)
        assert not np.array_equal(params["a"], X)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda x: (x[:2], x * 1), "a view"),
        (lambda x: (x, x), "overlaps"),
        (lambda x: (x, x[1:]), "overlaps"),
        (lambda x: (np.frombuffer(x.tobytes()), x), "view|read-only"),
    ],
)
def test_what_cannot_be_donated_is_kept_with_one_warning(make, why):
    f = ge2.jit(lambda x, y: (x * 2, y.sum()), donate_argnums=0)
    x, y = make(X.copy())
    before = x.copy()
    with pytest.warns(Ge2Warning, match=f"not donated: it .*({why})"):
        f(x, y)
    np.testing.assert_array_equal(f(x, y)[0], before * 2)  # the second time without a warning
    np.testing.assert_array_equal(x, before)


def test_a_donated_array_that_is_closed_over_is_kept():
    w = X.copy()
    f = ge2.jit(lambda x: x + w, donate_argnums=0)
    with pytest.warns(Ge2Warning, match="overlaps"):
        f(w)
    np.testing.assert_array_equal(w, X)


# ------------------------------------------------------------------------------------ looking at it


def test_lower_trace_and_compile():
    f = ge2.jit(lambda x, n: np.tanh(x) * n, static_argnums=1)
    traced = f.trace(X, 2)
    assert "tanh" in str(traced)
    assert traced.jaxpr == ge2.parse(str(traced.jaxpr))
    lowered = f.lower(X, 2)
    assert lowered.kernels
    assert all(kernel.name and kernel.kind and kernel.source for kernel in lowered.kernels)
    assert "tanh" in lowered.as_text()
    compiled = lowered.compile()
    np.testing.assert_allclose(compiled(X, 2), np.tanh(X) * 2)
    with pytest.raises(
        InputError, match=r"compiled for other arguments: x: f64\[3\] against f32\[2\]"
    ):
        compiled(np.ones(2, np.float32), 2)


def test_lowering_needs_no_arrays():
    f = Counted(lambda x: np.tanh(x))
    shape = ge2.ShapeDtypeStruct((3,), np.float64)
    f.jitted.lower(shape)
    f(X)
    assert f.traces == 1
    with pytest.raises(InputError, match="ShapeDtypeStruct"):
        f(shape)


def test_the_report_of_the_last_call():
    f = ge2.jit(lambda x: np.tanh(x) * 2)
    with pytest.raises(InputError, match="not been called"):
        f.report()
    f(X)
    first = f.report()
    f(X)
    second = f.report()
    assert (first.traced, second.traced, second.compiled) == (True, False, False)
    assert first.regions == len(first.kernels) == 1
    assert first.op_by_op == 0
    assert "nothing traced, nothing compiled; 1 region," in str(second)


def test_the_cache_report_says_what_differs():
    f = ge2.jit(lambda x, mode: x * 2, static_argnames="mode")
    f(X, mode="a")
    f(X, mode="a")
    f(X, mode="b")
    f(X[:2], mode="b")
    report = f.cache_report()
    assert [line.hits for line in report.entries] == [2, 1, 1]
    assert report.entries[1].differs == ("mode: static 'a' against static 'b'",)
    assert report.entries[2].differs == ("x: f64[3] against f64[2]",)
    assert "3 signatures" in str(report)


def test_log_compiles_says_why(caplog):
    f = ge2.jit(lambda x: x + 1)
    with caplog.at_level(logging.WARNING, "ge2"), ge2.config.using(log_compiles=True):
        f(X)
        f(X)
        f(X[:2])
    first, bill, second, other = caplog.messages
    assert "for the first time" in first
    assert "x: f64[3] against f64[2]" in second
    assert all(text.startswith("<lambda>: ready in ") for text in (bill, other))


def test_caches_can_be_cleared():
    f = Counted(lambda x: x + 1)
    f(X)
    f.jitted.clear_cache()
    f(X)
    ge2.clear_caches()
    f(X)
    assert f.traces == 3


def test_equal_graphs_share_one_executable():
    f, g = (ge2.jit(lambda x: np.tanh(x) * 3) for _ in range(2))
    assert f.lower(X).executable is g.lower(X).executable


def test_another_thread_may_call_what_this_one_compiled():
    f = Counted(lambda x: x * 2)
    f(X)
    found = []
    call = contextvars.copy_context().run  # under the settings of this one
    on_threads(lambda: found.append(call(f, X)))
    np.testing.assert_array_equal(found[0], X * 2)
    assert f.traces == 1


def test_results_can_be_pickled():
    assert pickle.loads(pickle.dumps(ge2.jit(lambda x: {"y": x})(X)))["y"].tolist() == X.tolist()


@pytest.fixture
def unchecked():
    """Donated arrays are not spoiled; inside `using`, calls do not go the quick way."""
    before = config.check
    config.update(check=False)
    yield
    config.update(check=before)


def test_a_step_whose_state_is_donated_is_looked_up_quickly(unchecked):
    """Without a walk through its arguments, as long as nothing about their memory is new."""

    def step(state, x):
        return {"w": state["w"] * 2 + x, "n": state["n"] + 1}, x.sum()

    f, walked = ge2.jit(step, donate_argnums=0), []
    state, x = {"w": np.ones(100), "n": np.zeros(3)}, np.arange(100.0)
    find, f._find = f._find, lambda *given, **more: walked.append(1) or find(*given, **more)
    for _ in range(10):
        before = state["w"].ctypes.data
        state, _ = f(state, x)
        assert state["w"].ctypes.data == before
    assert len(walked) == 2


def test_what_can_no_longer_be_donated_is_found_on_the_quick_way_too(unchecked):
    def step(state, x):
        return [w + x for w in state]

    f = ge2.jit(step, donate_argnums=0)
    state, x = [np.ones(50), np.zeros(50)], np.ones(50)
    for _ in range(4):
        state = f(state, x)
    refused(f, x)


def refused(f, x):
    """Arguments of which each has something that forbids it to be donated."""
    whole = np.ones(100)
    with pytest.warns(Ge2Warning, match="not donated: it is a view"):
        found = f([whole[:50], np.zeros(50)], x)
    np.testing.assert_array_equal(found[0], np.full(50, 2.0))
    np.testing.assert_array_equal(whole, np.ones(100))
    same = np.ones(50)
    with pytest.warns(Ge2Warning, match="it overlaps another argument"):
        found = f([same, np.zeros(50)], same)
    np.testing.assert_array_equal(same, np.ones(50))
    np.testing.assert_array_equal(found[1], np.ones(50))
    fixed = np.ones(50)
    fixed.flags.writeable = False
    with pytest.warns(Ge2Warning, match="read-only"):
        f([fixed, np.zeros(50)], x)
