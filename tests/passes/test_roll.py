"""Python loops of equal rounds, as the pass finds them, and the same results
with it and without.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ge2
from ge2.compile.pipeline import rewritten
from ge2.ops.graphs.loops import RepeatLoop, ScanLoop
from ge2.passes import TIDY
from ge2.passes.context import NOTHING, Context, Rolling, Tuning, run
from ge2.passes.loops.roll import roll
from ge2.targets.cuda.limits import H200
from tests.compared import all_close

rng = np.random.default_rng(0)
X = rng.standard_normal((4, 5))
WS = [(rng.standard_normal((5, 5)) / 3, rng.standard_normal(5)) for _ in range(12)]
WX, WH = rng.standard_normal((2, 5, 5)) / 3
XS = rng.standard_normal((32, 4, 5))


def layers(ws, x):
    for w, b in ws:
        x = np.tanh(x @ w + b)
    return (x * x).sum()


def recurrent(w, xs):
    h, total, seen = np.zeros((4, 5)), 0.0, []
    for t in range(32):
        h = np.tanh(xs[t] @ w[0] + h @ w[1])
        total = total + (h * h).sum()
        seen.append(h[0, 0])
    return total + seen[3] * seen[-1]


def backwards(w, xs):
    h = np.zeros((4, 5))
    for t in reversed(range(32)):
        h = h @ w[0] + xs[t]
    return h.sum()


def fibonacci(w, xs):
    a, b = xs[0], xs[1]
    for _ in range(24):
        a, b = b, np.sin(a @ w[0]) + b
    return (a * b).sum()


PROGRAMS = {
    "layers": (layers, (WS, X)),
    "recurrent": (recurrent, ((WX, WH), XS)),
    "backwards": (backwards, ((WX, WH), XS)),
    "fibonacci": (fibonacci, ((WX, WH), XS)),
}


def loops(f, *args, context: Context = NOTHING) -> list[RepeatLoop | ScanLoop]:
    graph = rewritten(ge2.make_jaxpr(f)(*args).graph, "reference", context)
    return [e.op for e in graph.eqns if isinstance(e.op, RepeatLoop | ScanLoop)]


@pytest.fixture(params=["c", "blocked", "reference"])
def executor(request):
    with ge2.config.using(executor=request.param):
        yield request.param


@pytest.mark.exhaustive("name")
@pytest.mark.parametrize("derivative", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_rolled_program_computes_the_same(name, derivative, executor):
    f, args = PROGRAMS[name]
    f = ge2.grad(f) if derivative else f
    compiled = ge2.jit(f)
    with ge2.config.using(passes_off=("roll",)):
        plain = ge2.jit(lambda *xs: f(*xs))
        want = plain(*args)
        assert not loops(f, *args)
    all_close(ge2.tree.leaves(compiled(*args)), ge2.tree.leaves(want), rtol=1e-12, atol=1e-13)
    assert loops(f, *args)


def test_every_round_is_in_the_loop_and_the_rest_is_not():
    (loop,) = loops(layers, WS, X)
    assert loop.length in (11, 12)  # the first may differ by what it reads
    assert loop.carry == 1
    assert len(loop.body.inputs) - loop.consts - loop.carry == 2  # the weights of a layer


def relaxed(x):
    for _ in range(100):
        x = x + 0.01 * np.sin(x)
    return x


def test_elementwise_iterations_that_compile_soon_stay_one_kernel():
    def f(x):
        for _ in range(60):
            x = x * 0.5 + x * x - 1
        return x

    assert not loops(f, X)


@pytest.mark.parametrize(
    ("size", "length", "of_one"), [(1000, 100, 1), (1 << 18, 10, 10), (1 << 26, None, 100)]
)
def test_elementwise_iterations_are_rolled_by_their_price(size, length, of_one):
    """Small arrays stay in a cache; those of large ones are read again, so
    several iterations are one: of a hundred ten, which leave none over, rather than eight.
    """
    found = loops(relaxed, np.empty(size))
    assert [loop.length for loop in found] == ([length] if length else [])
    assert [sum(e.op.name == "sin" for e in loop.body.eqns) for loop in found] == (
        [of_one] if length else []
    )


@pytest.mark.parametrize(("width", "rolled"), [(64, True), (4096, False)])
def test_rounds_of_several_kernels_on_a_gpu_are_rolled_by_their_price(width, rolled):
    """Large arrays in straight code are written over their arguments and fused across rounds."""
    x, b = np.empty((width, width), np.float32), np.empty(width, np.float32)
    ws = [(x, b)] * 12
    assert bool(loops(layers, ws, x, context=Context(H200))) is rolled
    assert loops(layers, ws, x)


def test_a_gpus_loop_has_single_iterations_that_fold():
    """One kernel has them all; of elementwise ones each thread has many in straight code."""
    e, t = np.ones((300, 16, 8), np.float32), np.ones((8, 8), np.float32)

    def best(e, t):
        s = e[0]
        for x in e[1:64]:
            s = (s[:, :, None] + t).max(1) + x
        return s

    def recursion(e, t):
        s = e[0]
        for x in e[1:]:
            s = np.tanh(s * 0.9 + x * t[0])
        return s

    assert [loop.length for loop in loops(best, e, t, context=Context(H200))] == [63]
    assert not loops(recursion, e, t, context=Context(H200)) and loops(recursion, e, t)


def test_several_iterations_in_one_of_a_loop_compute_the_same():
    tuning = Tuning(rolling=Rolling(dispatch=1e-3))  # as of large arrays
    x = np.linspace(0, 3, 20)
    f = ge2.value_and_grad(lambda x: relaxed(x).sum())
    found = loops(f, x, context=Context(tuning=tuning))
    assert found and all(loop.length <= 50 for loop in found)
    with ge2.config.using(tuning=(tuning,)):
        all_close(ge2.jit(f)(x), f(x), rtol=1e-12)


def test_rounds_that_differ_stay_as_they_are():
    def f(x, w):
        for i in range(12):
            x = np.tanh(x @ w) * (i + 0.5)
            x = np.sin(x) + x if i % 3 == 0 else np.cos(x) - x * i
        return x

    compiled = ge2.jit(f)
    assert not loops(f, X, WX)
    np.testing.assert_allclose(compiled(X, WX), f(X, WX), rtol=1e-12)


def test_a_round_that_reads_further_back_than_the_last():
    def f(x, w):
        xs = [x, x + 1, x + 2]
        for _ in range(14):
            xs.append(np.tanh(xs[-1] @ w) + np.sin(xs[-3]) * xs[-2])
        return xs[-1]

    compiled = ge2.jit(f)
    np.testing.assert_allclose(compiled(X, WX), f(X, WX), rtol=1e-12)


def test_what_is_rolled_is_said(caplog):
    with caplog.at_level("INFO", logger="ge2"):
        ge2.jit(lambda ws, x: layers(ws, x) + 1)(WS, X)
    assert "equal rounds from" in caplog.text and "test_roll.py" in caplog.text
    f = ge2.jit(layers)
    f(WS, X)
    (line,) = f.report().rolled
    assert line.startswith("a Python loop of 12 rounds as one loop, at ") and "test_roll.py" in line
    assert line in str(f.report())


def test_what_is_rolled_and_then_stacked_is_said_too_and_a_scan_is_not():
    def f(w, xs):
        h = ge2.lax.scan(lambda h, x: (np.tanh(h @ w[0]) + x, None), xs[0], xs)[0]
        for t in range(32):
            h = np.tanh(xs[t] @ w[0] + h @ w[1])
        return h.sum()

    compiled = ge2.jit(ge2.grad(f))
    compiled((WX, WH), XS)
    assert ["32 rounds" in line for line in compiled.report().rolled] == [True, True]


def test_a_round_begins_with_the_product_that_makes_its_carry():
    """What follows a product is one kernel with it within a round alone; and a vector that is added
    to each row is handed over as a vector.
    """

    def chain(x, w, b):
        for _ in range(24):
            x = np.tanh(x @ w + b) * 0.5
        return x

    (loop,) = loops(chain, X, *WS[0])
    assert loop.body.eqns[0].op.name in ("dot_general", "broadcast_in_dim")
    assert loop.body.outputs[0] not in {
        v for e in loop.body.eqns if e.op.name == "dot_general" for v in e.outs
    }
    assert (5,) in [v.type.shape for v in loop.body.inputs[: loop.consts]]


def test_a_matrix_and_its_transpose_in_turns_are_one_constant() -> None:
    """Else both would lie in a stack, one of them a copy."""

    def scalings(k, u):
        for _ in range(12):
            v = 1 / (k.T @ u)
            u = 1 / (k @ v)
        return u

    rng = np.random.default_rng(5)
    k, u = rng.uniform(1, 2, (30, 30)), rng.uniform(1, 2, 30)
    graph = run((*TIDY, roll), ge2.make_jaxpr(scalings)(k, u).graph)
    (loop,) = [e for e in graph.eqns if e.op.name == "repeat"]
    assert loop.op.length >= 11
    assert [a.type.shape for a in loop.inputs] == [(30, 30), (30,)]
    np.testing.assert_allclose(ge2.jit(scalings)(k, u), scalings(k, u))


def rows_first(k, u):
    for _ in range(12):
        u = 1 / (k.T @ (1 / (k @ u)))
    return u


def columns_first(k, u):
    for _ in range(12):
        u = 1 / (k @ (1 / (k.T @ u)))
    return u


@pytest.mark.parametrize("function", [rows_first, columns_first])
def test_on_a_gpu_one_kernel_reads_the_rows_of_a_matrix_for_both_products(function):
    rng = np.random.default_rng(5)
    k, u = rng.uniform(1, 2, (300, 300)), rng.uniform(1, 2, 300)
    for cache, arrays in ((2 << 20, 1), (3 << 20, 2)):  # that does not hold both, or does
        context = Context(caps=replace(H200, l2=cache))
        graph = run((*TIDY, roll), ge2.make_jaxpr(function)(k, u).graph, context)
        (loop,) = [e for e in graph.eqns if e.op.name == "repeat"]
        assert [x.type.ndim for x in loop.inputs].count(2) == arrays
    with ge2.config.using(executor="shim"):
        np.testing.assert_allclose(ge2.jit(function)(k, u), function(k, u))


def driven(x):
    """Steps in time, of which each has numbers of its own."""
    v = x * 0.5
    for i in range(24):
        force = 0.7 * np.cos(0.3 * i)
        x, v = x + 0.1 * v, v + 0.1 * (force - np.sin(x) - 0.2 * np.sin(v) - np.sin(x - 1))
    return x, v


def test_iterations_may_differ_in_numbers(executor):
    """Those are rows of an array; the operations and their order are those of straight code."""
    x = np.linspace(-3, 3, 1000)
    assert [loop.length for loop in loops(driven, x)] in ([23], [24])
    with ge2.config.using(passes_off=("roll",)):
        want = ge2.jit(lambda x: driven(x))(x)
    np.testing.assert_equal(ge2.jit(driven)(x), want)
    np.testing.assert_allclose(want, driven(x), rtol=1e-12)


def test_numbers_that_differ_are_no_elements_of_a_gpus_loop():
    assert not loops(driven, np.empty(1000), context=Context(H200))


def test_rounds_of_several_kernels_that_differ_in_numbers_stay_as_they_are():
    """In straight code they are compiled once as well, and fused with those beside them."""

    def f(x, w):
        for i in range(24):
            x = np.tanh(x @ w) * np.cos(0.3 * i)
        return x

    assert not loops(f, X, WX)


def test_the_period_of_a_loop_that_repeats_within_an_iteration():
    """Four times the same right side: what repeats soonest is not the iteration."""

    def side(x):
        return -np.sin(x) - 0.2 * x

    def steps(x):
        for _ in range(30):
            a = side(x)
            b = side(x + 0.1 * a)
            c = side(x + 0.1 * b)
            d = side(x + 0.2 * c)
            x = x + 0.05 * (a + 2 * b + 2 * c + d)
        return x

    (loop,) = loops(steps, np.empty(1000))
    assert loop.length == 30 and sum(e.op.name == "sin" for e in loop.body.eqns) == 4


def turns(c):
    """Rows, then columns: the names of operations repeat in half of an iteration."""
    f = np.zeros(len(c))
    for _ in range(24):
        f = np.log(np.exp(f - c).sum(1))
        f = np.log(np.exp(f[:, None] - c).sum(0))
    return f


def warped(a, b):
    """A loop in a loop; the rows of the table are lists."""
    row = [np.full(a.shape[1], np.inf)] * 17
    row[0] = np.zeros(a.shape[1])
    for i in range(16):
        new = [np.full(a.shape[1], np.inf)]
        for j in range(16):
            best = np.minimum(np.minimum(row[j], row[j + 1]), new[j])
            new.append(np.abs(a[i] - b[j]) + best)
        row = new
    return row[-1]


def stepped(x, h):
    """A step that is a Python number: traced, it has a weak type."""
    for _ in range(30):
        x = x + h * np.sin(x) + (h / 2) * x
    return x


FOUND = {
    "turns": (turns, (np.abs(rng.standard_normal((6, 6))),), 8),
    "warped": (warped, (rng.standard_normal((16, 50)), rng.standard_normal((16, 50))), 64),
    "stepped": (stepped, (rng.standard_normal(50), 0.01), 1),
}


@pytest.mark.exhaustive("executor")
@pytest.mark.parametrize("name", FOUND)
def test_iterations_are_found_whatever_repeats_inside_or_is_a_python_number(name, executor):
    f, args, equations = FOUND[name]
    (loop,) = loops(f, *args)
    assert loop.length >= 14 and len(loop.body.eqns) >= equations
    with ge2.config.using(passes_off=("roll",)):
        want = ge2.jit(lambda *xs: f(*xs))(*args)
    np.testing.assert_equal(ge2.jit(f)(*args), want)
    np.testing.assert_allclose(want, f(*args), rtol=1e-12)


def test_python_numbers_that_iterations_make_or_read_in_turn_stay_as_they_are():
    def made(x, h):
        t = h
        for _ in range(30):
            x, t = x + t * np.sin(x), t + h
        return x

    def read(x, *hs):
        for h in hs:
            x = x + h * np.sin(x)
        return x

    assert not loops(made, X, 0.5)
    assert not loops(read, X, *(0.1 * i for i in range(30)))


def ring(u):
    for _ in range(30):
        u = u + np.float32(0.1) * (np.roll(u, 1) + np.roll(u, -1) - 2 * u)
    return u


def test_a_gpus_round_begins_where_the_fewest_bytes_are_carried():
    """Above 4 MB twice the array is made anew in each round, behind its neighbours, which were
    carried beside it. The loop is launched, whatever a kernel of all blocks is predicted to take.
    """
    n, caps = (1 << 20) + 4, Context(H200)
    before = ge2.make_jaxpr(ring)(ge2.ShapeDtypeStruct((n,), np.float32)).graph
    with ge2.config.using(passes_off=("resident",)):
        graph = rewritten(before, "cuda", caps)
    (loop,) = [e for e in graph.eqns if isinstance(e.op, ScanLoop)]
    assert loop.op.carry == 1 and loop.outs[0].type.shape == (n,) and loop.op.length >= 28
    x = np.linspace(0, 1, 300, dtype=np.float32)
    with ge2.config.using(executor="emulator"):
        np.testing.assert_allclose(ge2.jit(lambda u: ring(u))(x), ring(x), rtol=1e-6)
