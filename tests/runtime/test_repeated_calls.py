"""Python loops whose iterations differ in offsets alone: each kernel is
compiled and called in one place.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

import ge2
from ge2.codegen.text import Text
from ge2.targets.c import native
from ge2.targets.c.emit.file import repeated_calls
from ge2.targets.c.tuning import Files

rng = np.random.default_rng(0)
X = rng.standard_normal(60)
A = rng.standard_normal((14, 14))
L = rng.standard_normal((20, 20)) + 20 * np.eye(20)


def smoothing(x):
    y = x.copy()
    for i in range(1, 60):
        y[i] = 0.9 * y[i - 1] + 0.1 * x[i]
    return y


def red_black(x):
    x = x.copy()
    for t in range(30):
        s = 1 + t % 2
        x[s:-1:2] = 0.5 * (x[s - 1 : -2 : 2] + x[s + 1 :: 2])
    return x


def over_relaxation(a):
    a = a.copy()
    for _ in range(2):
        for i in range(1, 13):
            for j in range(1, 13):
                a[i, j] = 0.5 * a[i, j] + 0.125 * (
                    a[i - 1, j] + a[i + 1, j] + a[i, j - 1] + a[i, j + 1]
                )
    return a


def triangular(a, b):
    x = b.copy()
    for i in range(20):
        x[i] = (b[i] - a[i, :i] @ x[:i]) / a[i, i]
    return x


def rates(x):
    for t in range(40):
        x = x.copy()
        x[1:-1] = x[1:-1] + (1 / (t * t + 3.0)) * (x[:-2] + x[2:])
    return x


PROGRAMS = {  # and the most calls in the text of the program
    "smoothing": (smoothing, (X,), 9),
    "red_black": (red_black, (X,), 14),
    "over_relaxation": (over_relaxation, (A,), 12),
    "triangular": (triangular, (L, X[:20]), 16),
    "rates": (rates, (X,), 12),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PROGRAMS)
def test_iterations_that_differ_in_offsets_are_compiled_once(name):
    f, args, most = PROGRAMS[name]
    compiled = ge2.jit(f)
    np.testing.assert_allclose(compiled(*args), f(*args), rtol=1e-12, atol=1e-13)
    (source,) = [compiled.lower(*args).as_text("c")]
    calls = re.findall(r"^ +\w+_\d+\(", source[source.index("\nint ge2_run") :], re.MULTILINE)
    assert 0 < len(calls) <= most


def table():
    numbers = list(range(100))

    def add(more):
        numbers.extend(more)
        return len(numbers) - len(more)

    return numbers, add


def called(texts, numbers):
    """The calls that C would make, by Python: an element of `p` or `k` is its number."""
    found = []
    functions = {f: lambda *args, f=f: found.append((f, *args)) for f in "abcd"}

    def run(texts, env):
        for text in texts:
            if isinstance(text, Text):
                eval(text.code.rstrip(";"), env)
                continue
            for t in range(eval(text.end, env)):
                run(text.body, {**env, text.index: t})

    run(texts, {**functions, "n": numbers, "p": range(9), "k": range(9)})
    return found


@pytest.mark.parametrize("seed", range(12))
def test_loops_make_the_same_calls_in_the_same_order(seed):
    draw = np.random.default_rng(seed)
    calls = []
    # rows of varying length, numbers with and without a step
    for i in range(int(draw.integers(2, 7))):
        calls.append(Text(f"a(p[{draw.integers(3)}], n[{i}]);"))
        for j in range(int(draw.integers(3, 9)) if seed % 2 else 6):
            calls.append(
                Text(f"b(n[{7 * i + j}], k[{draw.integers(2)}], n[{draw.integers(100)}] + p[4]);")
            )
            calls += [Text(f"c(n[{j}]);")] * (seed % 3)
    calls += [Text("d();")] * 20
    numbers, add = table()
    loops = repeated_calls(calls, add, Files())
    assert len(loops) < len(calls)
    assert called(loops, numbers) == called(calls, list(range(100)))


def test_few_calls_stay_as_they_are():
    calls = [Text(f"a(n[{i}]);") for i in range(8)]
    assert repeated_calls(calls, table()[1], Files()) == tuple(calls)


def test_loops_of_one_body_are_one_function():
    def halved(x):
        for _ in range(3):
            x = ge2.lax.fori_loop(0, 5, lambda _, x: 0.5 * x + x.sum() / x.size, x)[::-1]
        return x

    def text_of(x):
        f = ge2.jit(halved)
        np.testing.assert_allclose(f(x), halved(x), rtol=1e-12)
        return f.lower(x).as_text("c")

    long, short = text_of(rng.standard_normal(300)), text_of(rng.standard_normal(20))
    assert "GE2_SINGLE int scan_0(" in long
    assert "scan_1(" not in long + short
    assert "GE2_FN int scan_0(" in short


def by_elements(a):
    a = a.copy()
    for i in range(1, 12):
        for j in range(3, 12):
            a[i, j] += a[i, j - 1] * a[i - 1, j - 2]
    return a


def gram(a):
    """Products of parts of one array, which are the same or neighbours."""
    return sum((a[i : i + 4] @ a[k : k + 4].T).sum() * (i + 2 * k) for i in (0, 5) for k in (0, 5))


@pytest.mark.parametrize(("f", "most"), [(by_elements, 12), (gram, 40)])
def test_steps_that_differ_in_offsets_alone_are_chosen_for_once(f, most, monkeypatch):
    asked, before = [], native.settled
    monkeypatch.setattr(native, "settled", lambda *a: asked.append(a) or before(*a))
    np.testing.assert_allclose(ge2.jit(f)(A), f(A), rtol=1e-12)
    if ge2.config.executor == "c":
        assert 0 < len(asked) <= most
