"""Python loops that write into slices whose starts count: the loops that are found, and the same bits
as NumPy with them.
"""

from __future__ import annotations

import inspect
import random

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.ir import Graph
from ge2.ops.graphs.loops import ScanLoop
from ge2.ops.graphs.while_loop import WhileLoop
from ge2.passes.context import Context, Offsets, Tuning
from ge2.passes.loops.roll_offsets import roll_offsets
from ge2.trace.stage import tidy

EAGER = Tuning(offsets=Offsets(equations=20, writes=4, worth=20))
N = 14


def found(f, *args) -> Graph:
    graph = tidy(ge2.make_jaxpr(f)(*args).graph)
    return roll_offsets(graph, Context(tuning=EAGER))


def loops(graph: Graph) -> list[tuple[str, list]]:
    """The loops of a graph, each with those in it."""
    return [
        (e.op.name, loops(e.op.graphs()[-1]))
        for e in graph.eqns
        if isinstance(e.op, ScanLoop | WhileLoop)
    ]


def seidel(a):
    for i in range(1, N - 1):
        a[i, 1:-1] += a[i - 1, :-2] + a[i + 1, 2:]
        for j in range(1, N - 1):
            a[i, j] += a[i, j - 1]
            a[i, j] /= 9.0
    return a


def triangle(a):
    for i in range(N):
        for j in range(i + 1):
            a[i, j] = a[i, j] * 0.5 - a[j, i]
    return a


def around_pivot(a):
    for k in range(N):
        a[k] /= a[k, k] + 3.0
        for i in range(N):
            if i != k:
                a[i] -= a[i, k] * a[k]
    return a


def windows(a):
    y = a * 0.0
    for i in range(N - 2):
        for j in range(0, N - 3, 2):
            y[i, j] = (a[i : i + 3, j : j + 3] * a[:3, :3]).max()
            y[i : i + 2, j : j + 4 : 2] += a[i + 1, j]
    return y


def from_the_end(a):
    y, last = a[1] * 0.0, a[0, 0]
    for i in range(N - 1, -1, -1):
        last = a[i, 0] - 0.3 * last
        y[i] = last
    return y, last


PROGRAMS = (seidel, triangle, around_pivot, windows, from_the_end)


@pytest.mark.exhaustive("executor", table="nests")
@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("executor", ["c", "blocked", "shim"])
def test_the_same_bits(f, executor, rng: np.random.Generator) -> None:
    a = rng.random((N, N))
    wanted = f(a.copy())
    with config.using(executor=executor, tuning=(EAGER,)):
        np.testing.assert_equal(ge2.jit(f)(a), wanted)


@pytest.mark.parametrize(
    ("f", "nest"),
    [
        (seidel, [("scan", [("scan", [])])]),
        (windows, [("scan", [("scan", [])])]),
        (from_the_end, [("scan", [])]),
    ],
)
def test_loops_that_are_found(f, nest) -> None:
    assert loops(found(f, np.ones((N, N)))) == nest


def test_a_loop_in_a_loop_has_any_length() -> None:
    assert ("scan", [("while", [])]) in loops(found(triangle, np.ones((N, N))))
    assert ("scan", [("while", []), ("while", [])]) in loops(found(around_pivot, np.ones((N, N))))


def test_a_value_of_every_iteration_keeps_a_loop_straight() -> None:
    def f(a):
        seen = []
        for i in range(N):
            a[i, 0] += 1.0
            seen.append(a[i, 0] * 2.0)
        return a, sum(seen)

    assert not loops(found(f, np.ones((N, N))))


def test_starts_that_do_not_count_keep_a_loop_straight() -> None:
    def f(a):
        for i in (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8):
            a[i, 0] += a[0, i]
        return a

    assert not loops(found(f, np.ones((N, N))))


def test_slices_that_are_read_by_several_iterations_are_no_elements_of_one() -> None:
    def f(a, seq):
        for i in range(N):
            for j in range(N):
                a[i, j] = np.maximum(a[i, j], seq[i] - seq[j])
        return a

    assert loops(found(f, np.ones((N, N)), np.arange(N))) == [("scan", [("scan", [])])]


def test_short_programs_are_left_as_they_are() -> None:
    graph = tidy(ge2.make_jaxpr(from_the_end)(np.ones((N, N))).graph)
    assert roll_offsets(graph, Context()) is graph


# -------- Random nests of loops over slices.


def slice_text(rand: random.Random, names: list[str], size: int, lengths: dict[str, int]) -> str:
    """A part of an axis of so many elements, at a start that counts with one of the loops."""
    if not names or rand.random() < 0.2:
        start = rand.randrange(N - size + 1)
        return f"{start}" if size == 1 else f"{start}:{start + size}"
    name = rand.choice(names)
    stride = rand.choice((1, 1, 2, -1))
    reach = (lengths[name] - 1) * stride
    room = N - size - max(reach, 0)
    base = rand.randint(max(0, -reach), max(room, max(0, -reach)))
    if room < max(0, -reach):
        return "0" if size == 1 else f"0:{size}"
    at = f"{base} + {stride} * {name}"
    return at if size == 1 else f"{at}:{at} + {size}"


def statement(rand: random.Random, names: list[str], lengths: dict[str, int]) -> str:
    size = rand.choice((1, 1, 3))
    rows = size if rand.random() < 0.3 else 1

    def part() -> str:
        first = slice_text(rand, names, rows, lengths)
        array = rand.choice("ab")
        return f"{array}[{first}, {slice_text(rand, names, size, lengths)}]"

    return f"{part()} {rand.choice(('=', '+=', '-='))} {part()} * 0.5 + {rand.choice((part(), 'c', 0.25))}"


def program(seed: int) -> str:
    rand = random.Random(seed)
    lines = ["def f(a, b):", "    c = 0.5"]
    names, lengths = [], {}
    for depth in range(rand.choice((1, 2, 2, 3))):
        indent, name = "    " * (depth + 1), "ijk"[depth]
        lengths[name] = 6 if depth else rand.choice((5, 6))
        until = f"{'ijk'[depth - 1]} + 1" if depth and rand.random() < 0.4 else str(lengths[name])
        lines += [f"{indent}{statement(rand, names, lengths)}" for _ in range(rand.choice((0, 1)))]
        lines.append(f"{indent}for {name} in range({until}):")
        names.append(name)
        inner = range(rand.choice((1, 1, 2)))
        lines += [f"{indent}    {statement(rand, names, lengths)}" for _ in inner]
        if rand.random() < 0.3:
            lines.append(f"{indent}    c = c * 0.5 + a[{name}, 0]")
    return "\n".join([*lines, "    return a, b, c"])


@pytest.mark.any_executor
@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(60))
def test_random_nests(seed: int, rng: np.random.Generator) -> None:
    scope: dict = {}
    exec(program(seed), scope)
    f, (a, b) = scope["f"], rng.random((2, N, N))
    wanted = f(a.copy(), b.copy())
    with config.using(tuning=(EAGER,)):
        np.testing.assert_equal(ge2.jit(f)(a, b), wanted)


# -------- Sizes that change.


def crout(a):
    for i in range(N):
        for j in range(i):
            a[i, j] -= a[i, :j] @ a[:j, j]
            a[i, j] /= a[j, j] + N
        for j in range(i, N):
            a[i, j] -= a[i, :i] @ a[:i, j]
    return a


def symmetric(a):
    y = a * 0.0
    for i in range(N):
        for j in range(N):
            y[:i, j] += a[i, j] * a[i, :i]
            y[i, j] += a[:i, j] @ a[i, :i]
    return y


def rank_one(a):
    y = a + 0.0
    for i in range(N):
        y[i, : i + 1] *= 0.5
        for k in range(N):
            y[i, : i + 1] += 1.5 * a[i, k] * a[: i + 1, k]
    return y


def below(a):
    y = a * 0.0
    for i in range(N - 1):
        for j in range(i + 1):
            y[i + 1 :, j] = np.maximum(a[i + 1 :, i], y[i + 1 :, j] * 0.5)
            y[i, j] += a[i + 1 :, j].max()
    return y


def sums(a):
    y = a[0] * 0.0
    for i in range(N):
        for j in range(N):
            y[j] += a[j, :i].sum() + np.flip(a[i, : j + 1])[0]
    return y


def shifted(a):
    y = a * 0.0
    for i in range(N - 2):
        for j in range(N):
            y[j, : i + 1] += a[j, 1 : i + 2] * a[j, N - 1 - i :]
    return y


@pytest.mark.exhaustive("executor", table="nests")
@pytest.mark.parametrize("f", [crout, symmetric, rank_one, below, sums, shifted])
@pytest.mark.parametrize("executor", ["c", "blocked"])
def test_sizes_that_change(f, executor, rng: np.random.Generator) -> None:
    a = rng.random((N, N))
    wanted = f(a.copy())
    with config.using(executor=executor, tuning=(EAGER,)):
        result = ge2.jit(f)(a)
    if any(word in inspect.getsource(f) for word in ("@", "sum")):  # in an order of its own
        np.testing.assert_allclose(result, wanted, rtol=1e-12, atol=1e-12)
    else:
        np.testing.assert_equal(result, wanted)


@pytest.mark.parametrize("f", [sums])
def test_sums_are_in_the_order_of_straight_code(f, rng: np.random.Generator) -> None:
    a, bits = rng.standard_normal((N, N)), []
    for off in ((), ("roll_offsets",)):
        with config.using(tuning=(EAGER,), passes_off=off):
            bits.append(ge2.jit(f)(a.copy()))
    np.testing.assert_equal(*bits)


@pytest.mark.parametrize("f", [crout, symmetric, rank_one, below])
def test_a_nest_of_changing_sizes_is_a_nest_of_loops(f) -> None:
    assert any(inner for _, inner in loops(found(f, np.ones((N, N)))))


def test_what_is_outside_of_a_part_counts_for_nothing(rng: np.random.Generator) -> None:
    a = np.tril(rng.random((N, N)))
    for unread in (np.nan, np.inf):
        a[np.triu_indices(N, 1)] = unread

        def f(a):
            y = a[:, 0] * 0.0
            for i in range(N):
                for j in range(i + 1):
                    y[i] += a[i, :i] @ a[i, :i] + a[j, : j + 1].max()
            return y

        with config.using(tuning=(EAGER,)):
            np.testing.assert_allclose(ge2.jit(f)(a), f(a), rtol=1e-12)


def filters(seen, start):
    """Elementwise steps over rows, each of which is written to a row of the result."""
    x, p = start, start * 0.0 + 1
    out = np.zeros_like(seen)
    for t in range(len(seen)):
        p = p + 0.01
        gain = p / (p + 0.1)
        x = x + gain * (seen[t] - x)
        p = (1 - gain) * p
        out[t] = x
    return out, p


@pytest.mark.parametrize(("width", "rolled"), [(8, True), (1 << 20, False)])
def test_shorter_programs_are_loops_if_that_costs_less(width: int, rolled: bool) -> None:
    """What is in memory between iterations costs more than compiling, if it is large."""
    graph = ge2.make_jaxpr(filters)(np.empty((120, width)), np.empty(width)).graph
    assert 1000 < len(graph.eqns) < 10_000
    made = roll_offsets(graph)
    assert [inner for _, inner in loops(made)] == ([[]] if rolled else [])
    assert rolled or made is graph


def test_shorter_programs_that_are_loops_have_the_same_bits(rng: np.random.Generator) -> None:
    seen, start, bits = rng.random((120, 8)), rng.random(8), []
    for off in ((), ("roll_offsets",)):
        with config.using(passes_off=off):
            bits.append(ge2.jit(lambda a, b: filters(a, b))(seen, start))
    np.testing.assert_equal(*bits)
    np.testing.assert_allclose(bits[0][0], filters(seen, start)[0], rtol=1e-12)


def growing(a):
    y = a * 0.0
    for i in range(N):
        y[i, : i + 1] = a[i, : i + 1] * 2.0 + a[i, : i + 1]
        y[i, : i + 1] *= 0.5
    return y


def products(a):
    y = a * 0.0
    for i in range(N):
        y[i] = a[i] @ a * 0.5
        y[i] *= a[i]
    return y


@pytest.mark.parametrize("f", [growing, products])
def test_shorter_programs_with_products_or_sizes_that_change_stay_as_they_are(f) -> None:
    """A product over a part would be summed in another order."""
    graph = tidy(ge2.make_jaxpr(f)(np.ones((N, N))).graph)
    offsets = Offsets(few=20, writes=4, worth=20)
    assert roll_offsets(graph, Context(tuning=Tuning(offsets=offsets))) is graph
    assert loops(found(f, np.ones((N, N))))


STEPS = 20


def steps_in_time(a, v):
    """Systems with the same pivots in each step: equal values are made by the first step alone."""
    for m in range(STEPS):
        c, d = np.zeros(N), v * np.exp(-0.1 * m)
        c[0] = a[0] / (a[0] + 2.0)
        d[0] = d[0] / (a[0] + 2.0)
        for k in range(1, N):
            pivot = a[k] + 2.0 - a[k] * c[k - 1]
            c[k] = a[k] / pivot
            d[k] = (d[k] - a[k] * d[k - 1]) / pivot
        x = np.zeros(N)
        x[-1] = d[-1]
        for k in range(N - 2, -1, -1):
            x[k] = d[k] - c[k] * x[k + 1]
        v = x
    return v


def test_loops_are_found_in_a_long_graph_before_equal_values_are_one(monkeypatch, rng) -> None:
    a, v = rng.random((2, N))
    assert len(loops(found(steps_in_time, a, v))) < 2 * STEPS
    graph = ge2.make_jaxpr(steps_in_time)(a, v).graph
    assert len(loops(roll_offsets(graph, Context(tuning=EAGER)))) == 2 * STEPS
    monkeypatch.setattr("ge2.dispatch.cache.is_long", lambda graph: True)
    with config.using(tuning=(EAGER,)):
        compiled = ge2.jit(steps_in_time)
        np.testing.assert_allclose(compiled(a, v), steps_in_time(a, v), rtol=1e-12)
        program = compiled.lower(a, v).executable.program
    steps = [e for e in program.graph.eqns if isinstance(e.op, ScanLoop)]
    assert len(steps) < STEPS  # those of a step are in a loop of steps, whose numbers differ


def uneven_program(seed: int) -> str:
    """A nest of two loops over parts of rows and columns whose sizes count."""
    rand = random.Random(seed)
    part = rand.choice((":i + 1", "i + 1:", ":j + 1", "2 * i:", "i:j + 1", f"i:{N - 1}", "::2"))
    other = part if rand.random() < 0.8 else rand.choice((":i + 1", "1:i + 2"))
    row = rand.choice(("i", "j", "0", f"{N - 1} - i"))

    def read(which: str) -> str:
        array, at = rand.choice("ab"), rand.choice(("i", "j", "1", row))
        return f"{array}[{at}, {which}]" if rand.random() < 0.6 else f"{array}[{which}, {at}]"

    outside = part if "j" not in part else ":i + 1"
    lines = ["def f(a, b):", f"    for i in range({N // 2}):", f"        v = a[i, {outside}] * 0.5"]
    if rand.random() < 0.5:
        lines.append(f"        b[i, {outside}] = v")
    lines.append(f"        for j in range({rand.choice((str(N), 'i + 1'))}):")
    more = " + 0.5 * v" if outside == part and rand.random() < 0.5 else ""
    line = f"{rand.choice('ab')}[{row}, {part}] = {read(part)} * 0.25 - {read(other)}{more}"
    lines.append(f"            {line}")
    if rand.random() < 0.3 and "i:j" not in part:
        lines.append(f"            b[i, j] = np.append({read(part)}, 0.0).max()")
    if rand.random() < 0.3:
        lines.append(f"            b[j, {part}] += np.outer({read(part)}, a[0, :2])[:, 1]")
    return "\n".join([*lines, "    return a, b"])


@pytest.mark.any_executor
@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(40))
def test_random_nests_of_changing_sizes(seed: int, rng: np.random.Generator) -> None:
    scope: dict = {"np": np}
    exec(uneven_program(seed), scope)
    f, (a, b) = scope["f"], rng.random((2, N, N))
    try:
        wanted = f(a.copy(), b.copy())
    except ValueError:  # parts of different sizes
        with pytest.raises(ValueError):
            ge2.jit(f)(a, b)
        return
    with config.using(tuning=(EAGER,)):
        np.testing.assert_equal(ge2.jit(f)(a, b), wanted)
