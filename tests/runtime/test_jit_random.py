"""Random numbers drawn in a trace would be the same for ever: an error, at the line that draws."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.random import randn

import ge2
from ge2.dispatch.closures import unseen as purity
from ge2.errors import ImpureError, UnexpectedTracerError

pytestmark = pytest.mark.any_executor

X = np.ones(3)
RNG = np.random.default_rng(0)
LEGACY = np.random.RandomState(0)
HOLDER = {"rng": RNG}


def legacy(x):
    y = x * 2
    return y + np.random.normal(size=3)  # here


def of_module(x):
    return x + RNG.normal(size=3)  # here


def old_style(x):
    return x + LEGACY.rand(3)  # here


def in_a_container(x):
    return x + HOLDER["rng"].normal(size=3)  # here


def imported(x):
    return x + randn(3)  # here


def in_a_helper(x):
    return helper(x) + 1


def helper(x):
    noise = np.random.rand(3)  # here
    return x * noise


def unseeded(x):
    rng = np.random.default_rng()  # here
    return x + rng.normal(size=3)


def in_one_line(x):
    return x + np.random.default_rng().normal(size=3)  # here


DRAWING = [
    legacy,
    of_module,
    old_style,
    in_a_container,
    imported,
    in_a_helper,
    unseeded,
    in_one_line,
]


def line_of(function: Any) -> int:
    import inspect

    lines, start = inspect.getsourcelines(helper if function is in_a_helper else function)
    return start + next(i for i, line in enumerate(lines) if "# here" in line)


@pytest.mark.parametrize("function", DRAWING, ids=lambda f: f.__name__)
def test_the_line_is_named_and_ge2_random_offered(function):
    with pytest.raises(
        ImpureError, match=rf"test_jit_random.py:{line_of(function)} in (.|\n)*ge2.random"
    ):
        ge2.jit(function)(X)


def test_under_grad_in_jit():
    with pytest.raises(ImpureError, match=r"test_jit_random.py:\d+ in legacy"):
        ge2.jit(ge2.grad(lambda x: legacy(x).sum()))(X)


def test_a_generator_as_an_argument():
    with pytest.raises(
        ge2.errors.InputError, match=r"rng of .* random generator(.|\n)*ge2.random.key"
    ):
        ge2.jit(lambda x, rng: x)(X, RNG)


def test_a_seeded_generator_made_inside_gives_the_same_in_every_call():
    def function(x):
        return x + np.random.default_rng(3).normal(size=3)

    np.testing.assert_array_equal(ge2.jit(function)(X), function(X))


def test_a_line_that_does_not_run_is_no_reason():
    def function(x):
        if x.ndim > 1:
            return x + np.random.default_rng().normal(size=3) + np.random.rand()
        return x + 1

    np.testing.assert_array_equal(ge2.jit(function)(X), X + 1)


def test_drawing_between_calls_is_no_reason():
    f = ge2.jit(lambda x: x + 1)
    for n in (1, 2, 3):
        np.testing.assert_array_equal(f(np.random.rand(n)) > 1, True)


@pytest.mark.parametrize(
    "generator", [np.random, RNG, LEGACY], ids=["global", "Generator", "RandomState"]
)
def test_another_thread_that_draws_is_no_reason(generator):
    drawn, stop = threading.Event(), threading.Event()

    def draw():
        while not stop.is_set():
            generator.normal(size=3)
            drawn.set()

    def function(x):
        drawn.clear()
        drawn.wait(20)  # so that something is drawn during each trace
        return x + (RNG.bit_generator is not None) + (LEGACY is not None)

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        np.testing.assert_array_equal(ge2.jit(function)(X), X + 2)
    finally:
        stop.set()
        thread.join()


def test_a_line_may_name_values_of_a_trace_that_is_over():
    """Which line drew is looked for after the trace, too, if another thread draws meanwhile."""
    values = []
    ge2.jit(lambda x: values.append(x) or x + 1)(np.ones((2, 3)))

    def frame():
        x = values[0]
        with pytest.raises(UnexpectedTracerError):
            _ = x.T
        return sys._getframe()

    assert purity.resolve(frame(), ("x", "T")) is None
    assert purity.resolve(frame(), ("RNG", "normal")) == RNG.normal


def test_modules_that_another_thread_is_importing_have_no_generators_yet(monkeypatch):
    for name in ("random", "numpy.random.mtrand"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert purity.shared() == []
    np.testing.assert_array_equal(ge2.jit(lambda x: x + 3)(X), X + 3)


def test_ge2_random_is_pure():
    f = ge2.jit(lambda key: ge2.random.normal(key, (3,)))
    key = ge2.random.key(0)
    np.testing.assert_array_equal(f(key), f(key))
    np.testing.assert_array_equal(f(key), ge2.random.normal(key, (3,)))


# ---------------------------------------------------------- generators that nobody has imported yet


def in_a_process(program):
    given = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "GE2_EXECUTOR": "blocked"}
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, env=given, capture_output=True, text=True, check=True)
    return done.stdout.split("\n")


def test_a_first_call_imports_no_generators_and_no_masked_arrays():
    """They take a fifth of a first call whose program was compiled before."""
    said = in_a_process("""
import sys
import numpy as np
before = {name for name in ("numpy.random", "numpy.ma") if name in sys.modules}  # as old versions do
import ge2
scale = np.arange(3.0)
f = ge2.jit(ge2.grad(lambda x: (np.tanh(x) * scale).sum()))
f(np.arange(3.0))
print(*({"numpy.random", "numpy.ma"} & set(sys.modules) - before))
""")
    assert said[0] == ""


@pytest.mark.parametrize("module", ["numpy.random", "random"])
def test_drawing_from_what_is_imported_in_the_trace_is_found(module):
    draw = {"numpy.random": "np.random.normal()", "random": "random.random()"}[module]
    said = in_a_process(f"""
import sys
import numpy as np
import ge2
new = {module!r} not in sys.modules
def f(x):
    import {module}
    return x * 2 * {draw}
try:
    ge2.jit(f)(np.arange(3.0))
    print(new, "no error")
except ge2.errors.ImpureError as error:
    print(new, "drew random numbers" in str(error))
""")
    assert said[0] in ("True True", "False True")


def test_importing_them_in_the_trace_is_no_reason():
    said = in_a_process("""
import numpy as np
import ge2
traces = []
def f(x):
    traces.append(1)
    return x * np.random.default_rng(3).random()  # seeded: the same in every call
jitted = ge2.jit(f)
y = jitted(np.ones(2))
z = jitted(np.ones(2) * 2)
print(float(z[0] / y[0]), len(traces) <= 2)
""")
    assert said[0] == "2.0 True"
