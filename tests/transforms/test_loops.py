"""Loops under every transform, beside the Python loops that they stand for."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import ge2
from ge2 import lax
from ge2.errors import Ge2Error, InputError, NoRuleError, TypeRuleError
from tests.compared import all_close

rng = np.random.default_rng(0)
XS = rng.standard_normal((6, 3))
W = rng.standard_normal((3, 3)) / 2
H = rng.standard_normal(3)


def python_scan(f, init, xs, length=None, reverse=False):
    leaves = xs if isinstance(xs, tuple) else (xs,)
    n = len(leaves[0]) if xs is not None else length
    carry, ys = init, [None] * n
    for t in reversed(range(n)) if reverse else range(n):
        x = None if xs is None else tuple(v[t] for v in xs) if isinstance(xs, tuple) else xs[t]
        carry, ys[t] = f(carry, x)
    return carry, None if ys[0] is None else np.stack(ys)


def cell(w, h, x):
    h = np.tanh(h @ w + x)
    return h, h * x


def swapped(w, carry, x):
    a, b = carry
    return (b, np.sin(a + x)), a * b


def kept(w, carry, x):
    a, b = carry
    return (a, b * a + x), b


def twice(w, h, x):
    y = np.cos(h) * x
    return y, y


def constant(w, h, x):
    return h * 0.5, x.sum() + 0 * h


def rnn(scan, step, first=lambda h: h, **more):
    def loss(w, h, xs):
        carry, ys = scan(partial(step, w), first(h), xs, **more)
        total = (
            sum((np.sum(np.sin(c)) for c in carry), 0.0)
            if isinstance(carry, tuple)
            else np.sum(carry)
        )
        return total + np.sum(ys * ys)

    return loss


CASES = {
    "cell": (cell, {}, lambda h: h),
    "reverse": (cell, {"reverse": True}, lambda h: h),
    "swapped": (swapped, {}, lambda h: (h, 2 * h)),
    "kept": (kept, {}, lambda h: (h, 2 * h)),
    "twice": (twice, {"reverse": True}, lambda h: h),
    "constant": (constant, {}, lambda h: h),
}


@pytest.fixture(params=["c", "blocked", "reference"])
def executor(request):
    with ge2.config.using(executor=request.param):
        yield request.param


@pytest.mark.exhaustive("case")
@pytest.mark.parametrize("case", CASES)
def test_a_scan_is_its_python_loop(case, executor):
    step, more, first = CASES[case]
    f, g = rnn(lax.scan, step, first, **more), rnn(python_scan, step, first, **more)
    np.testing.assert_allclose(f(W, H, XS), g(W, H, XS), rtol=1e-12)
    np.testing.assert_allclose(ge2.jit(f)(W, H, XS), g(W, H, XS), rtol=1e-12)
    argnums = (0, 1, 2) if "w" in step.__code__.co_names or step is cell else (1, 2)
    want = ge2.grad(g, argnums)(W, H, XS)
    for got in (ge2.grad(f, argnums)(W, H, XS), ge2.jit(ge2.grad(f, argnums))(W, H, XS)):
        all_close(got, want, rtol=1e-10, atol=1e-12)


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CASES)
def test_forward_second_and_batched_derivatives_of_a_scan(case):
    step, more, first = CASES[case]
    f, g = rnn(lax.scan, step, first, **more), rnn(python_scan, step, first, **more)
    ts = (W + 1, H - 1, XS * 2)
    all_close(ge2.jvp(f, (W, H, XS), ts), ge2.jvp(g, (W, H, XS), ts), rtol=1e-10)
    _, push = ge2.linearize(f, W, H, XS)
    np.testing.assert_allclose(push(*ts), ge2.jvp(g, (W, H, XS), ts)[1], rtol=1e-10)
    hf, hg = (ge2.jit(ge2.hessian(k, 1))(W, H, XS) for k in (f, g))
    np.testing.assert_allclose(hf, hg, rtol=1e-9, atol=1e-11)
    ws, hs = np.stack([W, W / 2]), np.stack([H, H - 1])
    for axes, args in (
        ((0, None, None), (ws, H, XS)),
        ((None, 0, None), (W, hs, XS)),
        ((None, None, 1), (W, H, XS[:, None] + np.ones((1, 2, 1)))),
    ):
        a, b = (ge2.jit(ge2.vmap(ge2.grad(k, 1), axes))(*args) for k in (f, g))
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_a_loop_of_no_rounds(executor):
    f = ge2.jit(lambda h, xs: lax.scan(lambda c, x: (c + x, c * x), h, xs))
    carry, ys = f(H, XS[:0])
    np.testing.assert_array_equal(carry, H)
    assert ys.shape == (0, 3)
    grads = ge2.jit(
        ge2.grad(lambda h, xs: lax.scan(lambda c, x: (c + x, c), h, xs)[0].sum(), (0, 1))
    )(H, XS[:0])
    np.testing.assert_array_equal(grads[0], np.ones(3))
    assert grads[1].shape == (0, 3)
    assert ge2.jit(lambda x: lax.fori_loop(3, 1, lambda i, c: c + 1, x))(2.0) == 2.0


def test_containers_and_python_numbers_are_carried(executor):
    def step(c, x):
        return {"n": c["n"] + 1, "total": c["total"] + x["a"] * c["n"]}, {
            "seen": c["n"],
            "x": x["a"],
        }

    f = ge2.jit(lambda xs: lax.scan(step, {"n": 0, "total": np.float32(0)}, {"a": xs, "b": None}))
    carry, ys = f(np.arange(4, dtype=np.float32))
    assert carry["n"] == 4 and carry["total"] == 14 and carry["total"].dtype == np.float32
    np.testing.assert_array_equal(ys["seen"], np.arange(4))
    assert ys["x"].dtype == np.float32


def test_an_index_does_not_widen_what_it_meets(executor):
    x = np.ones(3, np.float32)
    y = ge2.jit(lambda x: lax.fori_loop(2, 5, lambda i, c: c * 0.5 + i, x))(x)
    want = x
    for i in range(2, 5):
        want = want * 0.5 + i
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, want)


def test_a_while_loop_under_every_transform_it_has(executor):
    def newton(a):
        return lax.while_loop(lambda v: abs(v * v - a) > 1e-12 * a, lambda v: 0.5 * (v + a / v), a)

    a = np.array([2.0, 9.0, 100.0, 0.5])
    for x in a:
        np.testing.assert_allclose(ge2.jit(newton)(x), np.sqrt(x), rtol=1e-12)
        np.testing.assert_allclose(ge2.jit(ge2.jacfwd(newton))(x), 0.5 / np.sqrt(x), rtol=1e-6)
    np.testing.assert_allclose(ge2.jit(ge2.vmap(newton))(a), np.sqrt(a), rtol=1e-12)
    np.testing.assert_allclose(
        ge2.jit(ge2.vmap(ge2.jacfwd(newton)))(a), 0.5 / np.sqrt(a), rtol=1e-6
    )


def test_elements_of_a_batch_end_at_different_rounds(executor):
    f = ge2.jit(
        ge2.vmap(
            lambda x, n: lax.while_loop(
                lambda v: v[0] < n, lambda v: (v[0] + 1, v[1] * 2.0), (0, x)
            )
        )
    )
    count, y = f(np.ones(4), np.array([0, 3, 1, 7]))
    np.testing.assert_array_equal(count, [0, 3, 1, 7])
    np.testing.assert_array_equal(y, [1, 8, 2, 128])
    shared = ge2.vmap(
        lambda x: lax.while_loop(lambda v: v[0] < 3, lambda v: (v[0] + 1, v[1] * x), (0, x))
    )
    np.testing.assert_array_equal(ge2.jit(shared)(np.array([1.0, 2.0])), ([3, 3], [1, 16]))


def test_a_bound_that_is_traced(executor):
    f = ge2.jit(lambda n, x: lax.fori_loop(0, n, lambda i, c: c + x * i, x))
    assert f(4, 2.0) == 14 and f(0, 2.0) == 2
    np.testing.assert_array_equal(ge2.jit(ge2.vmap(f))(np.arange(4), np.ones(4)), [1, 1, 2, 4])


def test_a_bound_that_a_transform_is_given_is_known():
    """As n of grad(f)(x, n), which JAX passes as it is: so the loop has a reverse derivative."""
    f = lambda x, n: lax.fori_loop(n - n, n + 1, lambda i, c: c * x, 1.0)  # noqa: E731
    assert ge2.grad(f)(2.0, 2) == 12 and ge2.grad(f)(2.0, np.int64(1)) == 4
    assert ge2.grad(ge2.grad(f))(2.0, 2) == 12
    np.testing.assert_array_equal(ge2.vmap(ge2.grad(f), (0, None))(np.arange(3.0), 2), [0, 3, 12])
    with pytest.raises(NoRuleError, match="fori_loop with Python ints"):
        ge2.jit(ge2.grad(f))(2.0, 2)


def test_a_while_loop_says_what_has_a_reverse_derivative():
    with pytest.raises(
        NoRuleError, match=r"(?s)no reverse derivative.*test_loops.py.*fori_loop with Python ints"
    ):
        ge2.grad(lambda x: lax.while_loop(lambda v: v < 10, lambda v: v * x, x))(2.0)


def test_nested_loops(executor):
    def f(x):
        def outer(c, row):
            inner = lax.fori_loop(0, 3, lambda i, v: np.sin(v) + i * row[0], c)
            return inner, lax.scan(lambda a, r: (a * r, a), 1.0, row)[0]

        c, ys = lax.scan(outer, x[0, 0], x)
        return c + ys.sum()

    def g(x):
        c, total = x[0, 0], 0.0
        for row in x:
            for i in range(3):
                c = np.sin(c) + i * row[0]
            total = total + row[0] * row[1] * row[2]
        return c + total

    np.testing.assert_allclose(ge2.jit(f)(XS), g(XS), rtol=1e-12)
    np.testing.assert_allclose(ge2.jit(ge2.grad(f))(XS), ge2.grad(g)(XS), rtol=1e-10, atol=1e-12)


def test_a_branch_inside_a_loop_and_a_loop_inside_a_branch(executor):
    def f(x, n):
        def step(c, r):
            c = lax.cond(r[0] > 0, lambda c: c * r, lambda c: c + np.sin(r), c)
            return c, None

        def looped(y):
            return lax.scan(step, y, x)[0]

        return lax.cond(n > 2, looped, lambda y: y, x[0]).sum()

    def g(x):
        c = x[0]
        for r in x:
            c = c * r if r[0] > 0 else c + np.sin(r)
        return c.sum()

    np.testing.assert_allclose(ge2.jit(f)(XS, 3), g(XS), rtol=1e-12)
    np.testing.assert_allclose(ge2.jit(f)(XS, 1), XS[0].sum(), rtol=1e-12)
    np.testing.assert_allclose(ge2.jit(ge2.grad(f))(XS, 3), ge2.grad(g)(XS), rtol=1e-10, atol=1e-12)


@pytest.mark.exhaustive("executor")
@pytest.mark.parametrize("batch_size", [None, 1, 2, 6, 10])
def test_map(batch_size, executor):
    f = ge2.jit(lambda xs: lax.map(lambda x: (x.sum(), x * 2), xs, batch_size=batch_size))
    total, double = f(XS)
    np.testing.assert_allclose(total, XS.sum(1))
    np.testing.assert_array_equal(double, XS * 2)
    np.testing.assert_allclose(
        ge2.grad(lambda xs: f(xs)[0].sum() ** 2)(XS), np.full_like(XS, 2 * XS.sum())
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("n", [1, 2, 3, 8, 13])
@pytest.mark.parametrize("reverse", [False, True])
def test_an_associative_scan(n, reverse):
    x = rng.standard_normal((2, n, 2, 2))

    def f(x):
        return lax.associative_scan(lambda a, b: a @ b, x, reverse=reverse, axis=1)

    want, order = np.empty_like(x), range(n)
    for t in reversed(order) if reverse else order:
        before = t + 1 if reverse else t - 1
        first = t == (n - 1 if reverse else 0)
        want[:, t] = x[:, t] if first else want[:, before] @ x[:, t]
    np.testing.assert_allclose(ge2.jit(f)(x), want, rtol=1e-9, atol=1e-12)
    found = ge2.jit(ge2.grad(lambda x: (f(x) ** 2).sum()))(x)
    step = 1e-6 * rng.standard_normal(x.shape)
    slope = ((f(x + step) ** 2).sum() - (f(x - step) ** 2).sum()) / 2
    np.testing.assert_allclose((found * step).sum(), slope, rtol=1e-6)


def following(first, second):
    """Of h[t] = a[t] * h[t-1] + b[t]: two steps as one."""
    (a, b), (c, d) = first, second
    return a * c, c * b + d


def recurrence(a, b):
    h, found = np.zeros_like(b[0]), np.empty_like(b)
    for t in range(len(b)):
        h = a[t] * h + b[t]
        found[t] = h
    return found


# Rows of eight that are all alike, with a shorter first one, of seven; of one row, of a row and one.
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("n", "lanes"), [*((n, ()) for n in (1, 2, 7, 8, 9, 16, 63, 65, 519)), (67, (3,)), (10, (0,))]
)
@pytest.mark.parametrize(("fn", "reverse"), [(following, True), (ge2.jit(following), False)])
def test_an_associative_scan_of_elementwise_steps(n, lanes, reverse, fn):
    a, b = np.tanh(rng.standard_normal((n, *lanes))), rng.standard_normal((n, *lanes))

    def f(a, b):
        return lax.associative_scan(fn, (a, b), reverse=reverse)[1]

    turned = slice(None, None, -1 if reverse else 1)
    np.testing.assert_allclose(
        ge2.jit(f)(a, b), recurrence(a[turned], b[turned])[turned], rtol=1e-9, atol=1e-12
    )
    found = ge2.jit(ge2.grad(lambda a, b: (f(a, b) ** 2).sum(), (0, 1)))(a, b)
    want = ge2.grad(lambda a, b: (written_out(a[turned], b[turned]) ** 2).sum(), (0, 1))(a, b)
    for x, y in zip(found, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-8, atol=1e-10)


def written_out(a, b):
    h, found = np.zeros_like(b[0]), []
    for t in range(len(b)):
        h = a[t] * h + b[t]
        found.append(h)
    return np.stack(found)


def merged(first, second):
    """Of logsumexp, and of the softmax of what goes before: a scan whose numbers depend on each other."""
    (m, s, count), (n, t, more) = first, second
    most = np.maximum(m, n)
    return most, s * np.exp(m - most) + t * np.exp(n - most), count + more


def latest(first, second):
    """A product, and the last of what goes with it, of which no element before is a part."""
    return first[0] * second[0] * 0.9, second[1]


@pytest.mark.parametrize("fn", [following, merged, latest])
@pytest.mark.parametrize("reverse", [False, True])
def test_derivatives_of_an_associative_scan_are_scans(fn, reverse):
    leaves = tuple(np.tanh(rng.standard_normal((3, 20))) for _ in range(2))
    count = (np.ones((3, 20), np.int32),) if fn is merged else ()

    def scanned(*xs):
        found = lax.associative_scan(fn, (*xs, *count), reverse, axis=1)
        return np.sin(found[0]) + found[1] ** 2

    def in_turn(*xs):
        elements = [tuple(x[:, t] for x in (*xs, *count)) for t in range(20)]
        found = [elements.pop(-1 if reverse else 0)]
        while elements:
            found.append(fn(found[-1], elements.pop(-1 if reverse else 0)))
        found = found[::-1] if reverse else found
        return np.stack([np.sin(y[0]) + y[1] ** 2 for y in found], 1)

    def derivatives(f):
        slopes = ge2.grad(lambda *xs: (f(*xs) ** 2).sum(), (0, 1))
        along = tuple(np.cos(7 * x) for x in leaves)
        return [
            f(*leaves), *slopes(*leaves), ge2.jvp(f, leaves, along)[1], *ge2.jvp(slopes, leaves, along)[1],
        ]  # fmt: skip

    text = str(ge2.make_jaxpr(ge2.grad(lambda x, y: scanned(x, y).sum()))(*leaves))
    assert text.count("= associative_scan") == 2  # one forward, one back
    for x, y in zip(derivatives(scanned), derivatives(in_turn), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-11)


def test_a_batch_of_associative_scans_is_one():
    a, b = np.tanh(rng.standard_normal((2, 4, 30)))
    f = lambda a, b: lax.associative_scan(following, (a, b))[1]  # noqa: E731
    for axes in ((0, 0), (1, 0), (None, 0)):
        x = a[0] if axes[0] is None else np.moveaxis(a, 0, axes[0])
        found = ge2.jit(ge2.vmap(f, axes))(x, b)
        want = [recurrence(a[0 if axes[0] is None else i], b[i]) for i in range(4)]
        np.testing.assert_allclose(found, want, rtol=1e-12)


def test_an_associative_scan_of_numbers_around_it_and_of_what_is_no_element():
    a = np.tanh(rng.standard_normal(40))
    half, table = np.float64(0.5), np.arange(40.0)

    def decayed(x, y):
        return x * half + y if x.ndim else y  # no associative function, but each sees the same

    def looked_up(x, y):
        return x + y + table[: x.shape[0]] * 0

    ge2.make_jaxpr(lambda a: lax.associative_scan(decayed, a))(a)
    found = ge2.jit(lambda a: lax.associative_scan(looked_up, a))(a)  # reads an array: no kernel
    np.testing.assert_allclose(found, np.cumsum(a))


def test_an_associative_scan_in_c_is_a_loop_down_rows_or_regions_of_eight():
    scan = ge2.jit(lambda a, b: lax.associative_scan(following, (a, b))[1])
    assert len(scan.lower(*np.ones((2, 512))).kernels) <= 17  # three levels; of two at once, 53
    assert len(scan.lower(*np.ones((2, 512, 64))).kernels) <= 3


def test_an_associative_scan_of_products_halves_what_there_is():
    calls = []

    def product(a, b):
        calls.append(a.shape)
        return a @ b

    ge2.make_jaxpr(lambda x: lax.associative_scan(product, x))(np.ones((512, 2, 2)))
    assert len(calls) <= 2 * 9 + 1, calls  # one more to see what it computes


def test_checkpoint_inside_a_scan():
    def loss(scan, wrap):
        return lambda w, h, xs: scan(wrap(partial(cell, w)), h, xs)[0].sum()

    f, g = loss(lax.scan, ge2.checkpoint), loss(python_scan, lambda k: k)
    all_close(
        ge2.jit(ge2.grad(f, (0, 2)))(W, H, XS),
        ge2.grad(g, (0, 2))(W, H, XS),
        rtol=1e-10,
        atol=1e-12,
    )


def test_forward_mode_stacks_no_residuals():
    text = str(
        ge2.make_jaxpr(lambda xs: ge2.jvp(lambda xs: lax.scan(cell_sum, H, xs)[0], (xs,), (xs,)))(
            XS
        )
    )
    (line,) = [line for line in text.splitlines() if "= scan[" in line]
    assert line.split("=")[0].count("f64[6") == 0


def cell_sum(h, x):
    return np.tanh(h * x), None


def test_only_what_changes_is_stacked_for_the_derivative():
    """Elements are read again, constants once; the tanh alone is kept of each round."""
    graph = ge2.make_jaxpr(
        ge2.grad(lambda w, h, xs: lax.scan(lambda h, x: (np.tanh(h * w + x), None), h, xs)[0].sum())
    )
    text = str(graph(W[0], H, XS))
    (line,) = [line for line in text.splitlines() if "= scan_saving[" in line]
    # its slope, and the carry that w is multiplied with
    assert line.split("=")[0].count("f64[6,3]") <= 2


@pytest.mark.parametrize("batched", [False, True])
def test_a_switch(executor, batched):
    branches = [lambda x: x + 1, lambda x: (x * x).astype(x.dtype), np.sin, lambda x: x * 0]

    def f(i, x):
        return lax.switch(i, branches, x)

    x, every = np.linspace(0.1, 1, 5), np.array([-3, 0, 1, 2, 3, 9])
    want = np.stack([branches[min(max(i, 0), 3)](x) for i in every])
    slopes = np.stack([[1 + 0 * x, 2 * x, np.cos(x), 0 * x][min(max(i, 0), 3)] for i in every])
    slope = ge2.grad(lambda i, x: f(i, x).sum(), 1)
    if batched:
        np.testing.assert_allclose(ge2.jit(ge2.vmap(f, (0, None)))(every, x), want, rtol=1e-12)
        np.testing.assert_allclose(
            ge2.jit(ge2.vmap(slope, (0, None)))(every, x), slopes, rtol=1e-12
        )
        return
    for i, w, s in zip(every, want, slopes, strict=True):
        np.testing.assert_allclose(ge2.jit(f)(i, x), w, rtol=1e-12)
        np.testing.assert_allclose(f(i, x), w, rtol=1e-12)
        np.testing.assert_allclose(ge2.jit(slope)(i, x), s, rtol=1e-12)
        assert ge2.jit(f)(int(i), x)[0] == pytest.approx(w[0])


def test_results_that_are_stacked_anyway_are_read_again():
    """The slope of tanh is made of them; only the carry that w is
    multiplied with is stacked for it.
    """
    f = lambda w, h, xs: (lax.scan(lambda h, x: (np.tanh(h @ w + x),) * 2, h, xs)[1] ** 2).sum()  # noqa: E731
    eqns = ge2.make_jaxpr(ge2.grad(f))(W, H, XS).graph.eqns
    (saving,) = [e.op for e in eqns if e.op.name == "scan_saving"]
    assert saving.residuals == 1
    assert saving.results == (1,)


def test_a_loop_costs_what_its_rounds_do():
    f = lambda xs: lax.scan(lambda c, x: (c * x, None), xs[0], xs)[0]  # noqa: E731
    flops = [ge2.jit(f).lower(XS[:n]).cost_analysis()["flops"] for n in (2, 6)]
    assert flops == [2 * 3, 6 * 3]


# ------------------------------------------------------------------------------------------- errors


def check(error, *parts):
    text = str(error.value)
    assert "test_loops.py" in text, text
    for part in parts:
        assert part in text, text


def test_a_carry_that_changes():
    with pytest.raises(TypeRuleError) as error:
        lax.scan(lambda c, x: ({"a": c["a"].astype(np.float32)}, None), {"a": H}, XS)
    check(error, "the carry at ['a'] is f64[3] before", "f32[3] after", "astype")
    with pytest.raises(TypeRuleError) as error:
        lax.fori_loop(0, 3, lambda i, c: c[:, None], H)
    check(error, "f64[3] before", "f64[3,1] after")
    with pytest.raises(TypeRuleError) as error:
        lax.while_loop(lambda c: True, lambda c: (c, c), H)
    check(error, "while_loop", "differ")


def test_other_mistakes():
    with pytest.raises(TypeRuleError) as error:
        lax.scan(lambda c, x: c + x, 0.0, XS[0])
    check(error, "(carry, result)", "return carry, None")
    with pytest.raises(InputError) as error:
        lax.scan(lambda c, x: (c, x), 0.0, (XS, XS[:2]))
    check(error, "xs[0] has 6, xs[1] has 2", "x[:2]")
    with pytest.raises(InputError) as error:
        lax.scan(lambda c, x: (c, x), 0.0)
    check(error, "length=n")
    with pytest.raises(InputError) as error:
        lax.scan(lambda c, x: (c, x), 0.0, 3.0)
    check(error, "first axis")
    with pytest.raises(TypeRuleError) as error:
        lax.while_loop(lambda c: c > 0, lambda c: c, H)
    check(error, "bool scalar", "np.any")
    with pytest.raises(TypeRuleError) as error:
        lax.fori_loop(0, 2.5, lambda i, c: c, H)
    check(error, "integer")
    with pytest.raises(Ge2Error) as error:
        lax.scan(lambda c, x: (c if x > 0 else -c, None), 0.0, XS[0])
    check(error, "from one iteration of scan to the next")
    with pytest.raises(InputError) as error:
        lax.scan(lambda c, x: (c, None), "text", XS)
    check(error, "init of scan holds a str")
    with pytest.raises(TypeRuleError) as error:
        ge2.jit(lambda i, x: lax.switch(i, [lambda x: x, lambda x: x, lambda x: x[0]], x))(1, H)
    check(error, "branch 0", "branch 2", "f64[3]", "f64[]")
    with pytest.raises(TypeRuleError) as error:
        lax.switch(1.0, [np.sin], H)
    check(error, "integer scalar")
    with pytest.raises(InputError) as error:
        lax.switch(1, [], H)
    check(error, "at least one branch", "[f, g]")
    with pytest.raises(TypeRuleError) as error:
        ge2.jit(lambda x: lax.scan(lambda c, e: c + e, 0.0, x))(H)
    check(error, "it returned f64[]")


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("scan", lambda f: lax.scan(f, 0.0, H)),
        ("while_loop", lambda f: lax.while_loop(f, lambda c: c, H)),
        ("while_loop", lambda f: lax.while_loop(lambda c: False, f, H)),
        ("fori_loop", lambda f: lax.fori_loop(0, 3, f, H)),
        ("map", lambda f: lax.map(f, H)),
        ("cond", lambda f: lax.cond(True, np.sin, f, H)),
        ("switch", lambda f: lax.switch(0, [np.sin, f], H)),
        ("a transform", lambda f: ge2.grad(f)(1.0)),
    ],
)
def test_what_is_no_function(name, call):
    with pytest.raises(InputError) as error:
        call(np.float64(3.0))
    check(error, f"{name} takes a function; got", "(float64)", "f, and not f(x)")


def test_what_a_derivative_adds_to_a_loop_comes_from_the_line_of_the_loop():
    def f(w, xs):
        def step(h, x):
            h = np.tanh(h @ w + x)
            return h, h.sum()

        return lax.scan(step, xs[0], xs)[1].sum()

    def every(graph):
        for eqn in graph.eqns:
            yield eqn
            for inner in getattr(eqn.op, "graphs", tuple)():
                yield from every(inner)

    graph = ge2.make_jaxpr(ge2.grad(f))(np.eye(3), np.ones((4, 3))).graph
    assert {str(eqn.source).split(" in ")[1] for eqn in every(graph)} == {"f", "step"}


def test_an_associative_scan_combines_element_by_element_along_an_axis_there_is():
    with pytest.raises(
        TypeRuleError, match=r"combines f64\[3,3\] to f64\[3\](?s:.*)element by element"
    ):
        lax.associative_scan(lambda a, b: (a * b).sum(0), XS)
    with pytest.raises(TypeRuleError, match=r"at \['n'\] to f64\[1\]"):
        lax.associative_scan(lambda a, b: {"n": a["n"] * 0.5}, {"n": np.arange(3)})
    with pytest.raises(InputError, match="along axis 2; got f64"):
        lax.associative_scan(np.add, XS, axis=2)


def test_a_loop_has_no_negative_length():
    with pytest.raises(InputError, match="0 or more; got -1"):
        lax.scan(lambda c, x: (c, x), 0.0, None, length=-1)


def test_an_array_from_outside_is_indexed_by_a_counter_as_the_error_says():
    with pytest.raises(Ge2Error, match=r"try  ge2.numpy.take\(XS, i, axis=0\)"):
        lax.fori_loop(0, 3, lambda i, c: c + XS[i], H)
    found = lax.fori_loop(0, 3, lambda i, c: c + ge2.numpy.take(XS, i, axis=0), H)
    np.testing.assert_allclose(found, H + XS[:3].sum(0))
