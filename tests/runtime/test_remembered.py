"""The report of what a jitted function was traced for names the field that
differs, and a remedy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.errors import InputError, RetraceError

X = np.ones(3)


def scaled(x: Any, s: Any = 1.0, *, mode: Any = "a") -> Any:
    return x * s if mode else x


def last(*calls: Callable[[Any], Any], **options: Any) -> Any:
    """The last line of the report after these calls."""
    f = ge2.jit(scaled, **options)
    for call in calls:
        call(f)
    return f.cache_report().entries[-1]


@pytest.mark.parametrize(("first", "second", "differs", "suggestion"), [
    (lambda f: f(X), lambda f: f(X[:2]), "x: f64[3] against f64[2]", "padding x along axis 0 to a few sizes"),
    (lambda f: f(np.ones((2, 3, 4))), lambda f: f(np.ones((5, 3, 6))), "x: f64[2,3,4] against f64[5,3,6]",
     "padding x along axes 0, 2"),
    (lambda f: f(X), lambda f: f(X.astype("f")), "x: f64[3] against f32[3]", "x.astype(np.float64)"),
    (lambda f: f(X), lambda f: f(X[None]), "x: f64[3] against f64[1,3]", "x.reshape to 1 axes, or ge2.vmap"),
    (lambda f: f(X, 1.0), lambda f: f(X, 1), "s: a Python float against a Python int", "float(s) at every"),
    (lambda f: f(X, 1.0), lambda f: f(X, np.float32(1)), "s: a Python float against f32[]", "np.asarray(s)"),
    (lambda f: f(X), lambda f: f(X, 1.0), "s, given", "s at every call, or at none"),
    (lambda f: f(X, mode="b"), lambda f: f(X), "mode, left out", "mode at every call, or at none"),
    (lambda f: f(X, mode="a"), lambda f: f(X, mode="b"), "mode: static 'a' against static 'b'",
     "few different values of mode"),
    (lambda f: f(X, mode=f), lambda f: f(X, mode=len), "mode: the", "the same object for mode"),
    (lambda f: f(X, (1.0,)), lambda f: f(X, [1.0]), "the structure of the arguments:", "the same containers"),
])  # fmt: skip
def test_the_field_and_the_remedy(first: Any, second: Any, differs: str, suggestion: str) -> None:
    with np.errstate(all="ignore"):
        found = last(*(quietly(call) for call in (first, second)))
    assert found.nearest == 0
    assert found.differs[0].startswith(differs)
    assert found.suggestions[0].startswith(suggestion)


def quietly(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A call of which only the trace matters."""

    def run(f: Any) -> None:
        try:
            call(f)
        except (TypeError, ge2.errors.Ge2Error):
            call(f.trace)

    return run


def test_a_static_number_need_not_be_static() -> None:
    found = last(lambda f: f(X, 1), lambda f: f(X, 2), static_argnums=1)
    assert found.differs == ("s: static 1 against static 2",)
    assert found.suggestions == (
        "leaving s out of static_argnums: then its value is an argument like any other",
    )


def test_settings_are_named() -> None:
    f = ge2.jit(lambda x: x + 1)
    for executor in ("blocked", "reference"):
        with ge2.config.using(executor=executor):
            f(X)
    assert f.cache_report().entries[1].differs == (
        "the settings: executor='blocked' against 'reference'",
    )


def test_what_the_function_reads_is_named() -> None:
    rate = 1
    f = ge2.jit(lambda x: x * rate)
    f(X)
    rate = 2
    f(X)
    found = f.cache_report().entries[1]
    what = "rate, what the function reads besides its arguments: static 1 against static 2"
    assert found.differs == (what,)
    assert found.suggestions == ("rate as an argument",)


def test_the_contents_of_an_array_that_was_looked_at() -> None:
    table = np.array([1.0])
    f = ge2.jit(lambda x: x if table[0] > 0 else -x, max_traces=1)
    f(X)
    table[0] = -1.0
    with pytest.raises(
        RetraceError, match="unlike 1 in the contents of an array that the trace looked at"
    ):
        f(X)


def test_the_nearest_is_that_with_the_fewest_differences() -> None:
    f = ge2.jit(lambda x, y: x + y)
    f(X, 1.0)
    f(X.astype("f"), 1)
    f(X, 1)
    report = f.cache_report()
    assert [e.nearest for e in report.entries] == [None, 0, 1]
    assert report.entries[2].differs == ("x: f32[3] against f64[3]",)


def test_the_report_printed() -> None:
    f = ge2.jit(scaled)
    f(X)
    f(X)
    f(X[:2])
    assert str(f.cache_report()).splitlines()[:-1] == [
        "scaled: 2 signatures, 3 calls",
        "   1. 2 calls    x: f64[3]",
        "   2. 1 call     x: f64[2]",
        "                 unlike 1 in x: f64[3] against f64[2]",
    ]
    assert str(f.cache_report()).splitlines()[-1].startswith(f"{'':17}try padding x along axis 0")


def test_more_traces_than_allowed_are_an_error_with_the_report() -> None:
    f = ge2.jit(scaled, max_traces=2)
    for n in (1, 2, 1, 2):
        f(np.ones(n))
    with pytest.raises(RetraceError) as caught:
        f(np.ones(3))
    lines = str(caught.value).splitlines()
    assert lines[0] == "scaled was to be traced 2 times at most; this call would be one more"
    assert lines[1] == "scaled: 3 signatures, 4 calls"
    assert "   3. 0 calls    x: f64[3]" in lines
    assert lines[-2].startswith("  at   test_remembered.py:")
    f(np.ones(2))  # what was traced goes on
    f.clear_cache()
    f(np.ones(3))


def test_a_trace_for_its_text_counts_too() -> None:
    f = ge2.jit(scaled, max_traces=1)
    f.lower(X)
    with pytest.raises(RetraceError):
        f.trace(X[:2])


@pytest.mark.parametrize("wrong", [0, -1, 2.0, "3", True])
def test_max_traces_is_a_number_of_traces(wrong: Any) -> None:
    with pytest.raises(InputError, match="max_traces is a number of traces, 1 or more; got"):
        ge2.jit(scaled, max_traces=wrong)


def test_by_default_there_is_no_limit() -> None:
    f = ge2.jit(lambda x: x)
    with ge2.config.using(executor="reference"):
        for n in range(20):
            f(np.ones(n))
    assert len(f.cache_report().entries) == 20


def test_a_function_made_anew_for_each_call_is_named():
    f = ge2.jit(lambda model, x: model(x))
    for _ in range(2):
        model = ge2.nn.MLP.init(ge2.random.key(0), (3, 2), activation=lambda x: x * 2)
        f(model, X)
    text = str(f.cache_report())
    assert "what is static in a MLP: MLP(layers=*, activation=<function" in text
    assert "try <lambda> defined once" in text
