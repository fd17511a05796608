"""CuPy's arrays in, CuPy's arrays out: the functions of the CPU, unchanged."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.base.errors import DeviceError, InPlaceError, InputError, NonFiniteError
from ge2.base.source import Ge2Warning
from ge2.targets.cuda.load.gpu import cupy
from tests.exhaustive import sampled
from tests.kernels.made_cases import softmax


def close(y: Any, w: Any) -> None:
    assert type(y).__module__.startswith("cupy")
    assert y.dtype == w.dtype and y.shape == w.shape
    largest = np.abs(w).max(initial=1.0)
    # rounds add up in another order
    np.testing.assert_allclose(y.get(), w, rtol=2e-6, atol=5e-6 * largest)


def test_a_jitted_function(cp: Any, rng: np.random.Generator) -> None:
    x = rng.standard_normal((33, 70), np.float32)
    close(ge2.jit(softmax)(cp.asarray(x)), softmax(x))


def test_a_derivative_of_three_arguments(cp: Any, rng: np.random.Generator) -> None:
    x, w, b = (rng.standard_normal(s, np.float32) for s in ((20, 30), (30, 10), (10,)))

    def loss(x: Any, w: Any, b: Any) -> Any:
        return (np.tanh(x @ w + b) ** 2).sum()

    for f in (ge2.grad(loss, (0, 1, 2)), ge2.jit(ge2.grad(loss, (0, 1, 2)))):
        for y, want in zip(
            f(*map(cp.asarray, (x, w, b))), ge2.grad(loss, (0, 1, 2))(x, w, b), strict=True
        ):
            close(y, want)


def test_arrays_made_inside_and_closed_over(cp: Any) -> None:
    table = cp.arange(5, dtype=np.float32)
    f = ge2.jit(lambda x: x * table + np.arange(5, dtype=np.float32) + 1)
    y = f(cp.ones(5, np.float32))
    assert y.get().tolist() == [1.0, 3.0, 5.0, 7.0, 9.0]
    table[:] = 0
    assert f(cp.ones(5, np.float32)).get().tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_any_strides_and_offsets(cp: Any, rng: np.random.Generator) -> None:
    x = rng.standard_normal((20, 31), np.float32)
    y = cp.asarray(x)
    f = ge2.jit(lambda x: x * 2 + 1)
    for cut in (np.s_[:, ::-1], np.s_[1:, 1:], np.s_[::3, 2::5], np.s_[5]):
        close(f(y[cut]), x[cut] * 2 + 1)
    close(f(y.T), x.T * 2 + 1)


def test_numbers_and_scalars(cp: Any) -> None:
    f = ge2.jit(lambda x, lr: x - lr * x)
    close(f(cp.ones(3, np.float32), 0.5), np.full(3, 0.5, np.float32))
    close(f(cp.ones(3, np.float32), np.float32(0.25)), np.full(3, 0.75, np.float32))


def test_mixing_is_an_error_that_names_both(cp: Any) -> None:
    with pytest.raises(DeviceError, match=r"(?s)a on GPU 0 and b on the CPU.*cupy.asarray"):
        ge2.jit(lambda a, b: a + b)(cp.ones(3), np.ones(3))


def test_a_loop_and_a_branch(cp: Any, rng: np.random.Generator) -> None:
    x = rng.standard_normal((7, 5), np.float32)

    def run(x: Any) -> Any:
        total, rows = ge2.lax.scan(lambda h, v: (h * 0.5 + v, h), np.zeros(5, np.float32), x)
        return ge2.lax.cond(total.sum() > 0, lambda: rows * 2, lambda: rows)

    close(ge2.jit(run)(cp.asarray(x)), ge2.jit(run)(x))


def recurrent(w: Any, x: Any) -> Any:
    return ge2.lax.scan(lambda h, v: ((h := np.tanh(h @ w + v)), h), np.zeros(5, np.float32), x)


def counted(n: Any) -> Any:
    first = np.int32(0), np.float32(0), np.float32(1)
    return ge2.lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[2], c[1] + c[2]), first)


def nested(x: Any) -> Any:
    def within(h: Any, v: Any) -> Any:
        return ge2.lax.fori_loop(0, 3, lambda i, a: a * v[1:4] + i, h[:3]).sum() + h, h

    return ge2.lax.scan(within, np.zeros(5, np.float32), x)


def fixed(x: Any) -> Any:
    """A part of the carry stays, a result is always the same number."""
    first = np.float32(2), np.float32(1)
    return ge2.lax.scan(lambda h, v: ((h[0], h[1] + v * h[0]), np.float32(3)), first, x)


LOOPS = {
    "a carry that is stacked as well": (recurrent, (5, 5), (6, 5)),
    "its derivative": (
        ge2.grad(lambda w, x: (recurrent(w, x)[1] ** 2).sum(), (0, 1)),
        (5, 5),
        (6, 5),
    ),
    "backwards": (
        lambda x: ge2.lax.scan(
            lambda h, v: (h * 0.5 + v, h * v), np.zeros(5, np.float32), x, reverse=True
        ),
        (6, 5),
    ),
    "numbers, four bytes apart": (
        lambda x: ge2.lax.scan(lambda h, v: (h + v, (h, v)), np.float32(0), x),
        (13,),
    ),
    "rows of 12 bytes": (
        lambda x: ge2.lax.scan(lambda h, v: (h + v, (h * v, v @ v)), np.zeros(3, np.float32), x),
        (9, 3),
    ),
    "rows of 64 bytes": (
        lambda x: ge2.lax.scan(lambda h, v: (h + v, np.exp(h)), np.zeros(16, np.float32), x),
        (4, 16),
    ),
    "a carry whose parts change places": (
        lambda x: ge2.lax.scan(
            lambda h, v: ((h[1], h[0] + v), h[0]), (np.float32(0), np.float32(1)), x
        ),
        (4,),
    ),
    "what stays": (fixed, (4,)),
    "no rounds": (
        lambda x: ge2.lax.scan(lambda h, v: (h + v, h), np.ones(5, np.float32), x),
        (0, 5),
    ),
    "one in another": (nested, (7, 5)),
    "a view of the middle": (
        lambda x: ge2.lax.scan(lambda h, v: (h + v, h), x[0, 1:], x[1:, 1:]),
        (5, 6),
    ),
    "a count": (lambda x: ge2.lax.fori_loop(0, 5, lambda i, a: a * 0.5 + i, x), (9,)),
    "a branch": (
        lambda x: ge2.lax.cond(x.sum() > 0, lambda x: (x * 2, x), lambda x: (x, x[::-1]), x),
        (9,),
    ),
    "one of three branches": (
        lambda x: ge2.lax.switch(
            (x[0] * 0 + 5).astype(int), [lambda x: x, np.exp, lambda x: -x], x
        ),
        (9,),
    ),
    "each for itself": (
        ge2.vmap(lambda a: ge2.lax.while_loop(lambda c: c < 5, lambda c: c * 2 + 1, abs(a))),
        (4,),
    ),
    "Python numbers": (
        lambda x: ge2.lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, c[1] * 2), (0, x))[1],
        (3,),
    ),
    "rows that come in rows": (lambda x: ge2.lax.map(lambda r: np.cumsum(r)[::-1], x), (4, 3)),
}


def leaves_of(tree: Any) -> list[Any]:
    return list(ge2.tree_util.tree_leaves(tree))


def alike(found: Any, want: Any) -> None:
    for y, w in zip(leaves_of(found), leaves_of(want), strict=True):
        close(y, np.asarray(w))


@pytest.mark.exhaustive("off")
@pytest.mark.parametrize("off", [(), ("resident",)], ids=["in one kernel", "round by round"])
@pytest.mark.parametrize("name", LOOPS)
def test_loops(cp: Any, rng: np.random.Generator, name: str, off: tuple[str, ...]) -> None:
    f, *shapes = LOOPS[name]
    arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    want, given = f(*arrays), [*map(cp.asarray, arrays)]
    run = ge2.jit(f)
    with config.using(passes_off=off):
        for _ in range(2):
            alike(run(*given), want)
    for x, y in zip(arrays, given, strict=True):
        assert y.get().tolist() == x.tolist(), "an argument was written over"


def test_loops_outside_jit(cp: Any, rng: np.random.Generator) -> None:
    x = rng.standard_normal((6, 5), np.float32)
    w = rng.standard_normal((5, 5), np.float32)
    alike(recurrent(cp.asarray(w), cp.asarray(x)), recurrent(w, x))
    derivative = LOOPS["its derivative"][0]
    alike(derivative(cp.asarray(w), cp.asarray(x)), derivative(w, x))


def test_a_predicate_decides(cp: Any) -> None:
    count, _, value = ge2.jit(counted)(cp.asarray(np.int32(9)))
    assert (int(count), float(value)) == (9, 55.0)
    count, _, value = ge2.jit(counted)(cp.asarray(np.int32(0)))
    assert (int(count), float(value)) == (0, 1.0)


def test_results_of_a_loop_are_the_callers(cp: Any) -> None:
    f = ge2.jit(lambda x: ge2.lax.scan(lambda h, v: (h, h), x, x[None] * 2))
    x = cp.ones(4, np.float32)
    h, ys = f(x)
    h[...] = 7
    assert x.get().tolist() == [1.0] * 4 and ys.get().tolist() == [[1.0] * 4]


# --------------------------------------------------------------------------------------- transforms


@ge2.custom_vjp
def doubled(x: Any) -> Any:
    return x * 2


doubled.defvjp(lambda x: (x * 2, x), lambda r, g: (g * r,))


def branchy(x: Any) -> Any:
    return (x * 2).sum() if x.sum() > 0 else (x * 3).sum()


def in_place(x: Any) -> Any:
    y = x.copy()
    y += 1
    y[1] = 5
    y[2:] *= 3
    return y


def pulled(x: Any) -> Any:
    y, pull = ge2.vjp(np.sin, x)
    return y, pull(x)


def pushed(x: Any) -> Any:
    y, push = ge2.linearize(np.sin, x)
    return y, push(x)


FUNCTIONS = {
    "vmap": ge2.vmap(lambda a: np.tanh(a).sum()),
    "vmap of grad": ge2.vmap(ge2.grad(lambda x: (x * x).sum())),
    "jvp": lambda x: ge2.jvp(np.sin, (x,), (x,)),
    "vjp": pulled,
    "linearize": pushed,
    "hessian": lambda x: ge2.hessian(lambda x: (np.sin(x) * x).sum())(x[0]),
    "jacfwd": lambda x: ge2.jacfwd(lambda x: np.sin(x) * x)(x[0]),
    "a gradient that reads nothing": ge2.grad(lambda x: (x * 3).sum()),
    "a branch of Python": ge2.grad(branchy),
    "in place": lambda x: ge2.grad(lambda x: in_place(x).sum())(x),
    "an index": ge2.grad(lambda x: x[np.array([0, 0, 2])].sum()),
    "a rule": ge2.grad(lambda x: doubled(x).sum()),
    "checkpoint": ge2.grad(ge2.checkpoint(lambda x: np.sin(np.sin(x)).sum())),
    "a jitted part": ge2.grad(lambda x: ge2.jit(lambda y: (y * y).sum())(x)),
    "auxiliary": ge2.value_and_grad(lambda x: ((x * x).sum(), {"a": x + 1}), has_aux=True),
    "a list": lambda x: ge2.numpy.stack([x, x * 2]),
    "a function of ge2.numpy": ge2.numpy.tanh,
    "the same twice": lambda x: ge2.vmap(lambda r: (r, r, r * 1))(x),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FUNCTIONS)
def test_without_jit(cp: Any, rng: np.random.Generator, name: str) -> None:
    """Every operation is a program of its own, and what comes back lies on the GPU."""
    x = rng.standard_normal((4, 5)).astype(np.float32)
    alike(FUNCTIONS[name](cp.asarray(x)), FUNCTIONS[name](x))


LIKE = {
    "zeros_like": ge2.numpy.zeros_like,
    "full_like": lambda x: ge2.numpy.full_like(x, x[0]),
    "imag": ge2.numpy.imag,
    "isreal": ge2.numpy.isreal,
    "nonzero": lambda x: ge2.numpy.nonzero(x > 0),
    "argwhere": lambda x: ge2.numpy.argwhere(x > 0),
    "tril_indices_from": ge2.numpy.tril_indices_from,
    "diag_indices_from": ge2.numpy.diag_indices_from,
    "where": lambda x: ge2.numpy.where(x > 0),
}


@pytest.mark.parametrize("name", LIKE)
def test_what_is_like_an_array_lies_beside_it(cp: Any, rng: np.random.Generator, name: str) -> None:
    x = rng.standard_normal((4, 4)).astype(np.float32)
    alike(LIKE[name](cp.asarray(x)), LIKE[name](x))


def test_a_branch_on_what_a_function_closes_over(cp: Any) -> None:
    """The trace looked at it, so another content is another trace."""
    w = cp.ones(3, np.float32)
    f = ge2.jit(lambda x: x * 2 if w.sum() > 0 else x * 3)
    assert f(cp.ones(3, np.float32)).get().tolist() == [2.0] * 3
    w[...] = -1
    assert f(cp.ones(3, np.float32)).get().tolist() == [3.0] * 3


def test_signatures(cp: Any) -> None:
    f = ge2.jit(lambda x: x * 2)
    assert type(f(np.ones(3, np.float32))) is np.ndarray
    f(cp.ones(3, np.float32))
    assert "f32[3] against f32[3] on GPU 0" in str(f.cache_report())
    (info,) = leaves_of(f.lower(cp.ones(3, np.float32)).args_info)
    assert (info.shape, info.dtype, info.weak_type) == ((3,), np.float32, False)


def test_trees(cp: Any, rng: np.random.Generator) -> None:
    def step(p: Any, x: Any) -> Any:
        def loss_of(p: Any) -> Any:
            return ((x @ p["w"] + p["b"]) ** 2).mean()

        loss, grads = ge2.value_and_grad(loss_of)(p)
        return ge2.tree.map(lambda a, g: a - 0.1 * g, p, grads), loss

    x = rng.standard_normal((4, 5), np.float32)
    p = {"w": rng.standard_normal((5, 3), np.float32), "b": np.zeros(3, np.float32)}
    on_gpu = ge2.tree.map(cp.asarray, p)
    for f in (step, ge2.jit(step)):
        alike(f(on_gpu, cp.asarray(x)), step(p, x))
        alike(f(p=on_gpu, x=cp.asarray(x)), step(p, x))


def test_what_a_function_closes_over(cp: Any) -> None:
    class Model:
        def __init__(self, w: Any) -> None:
            self.w = w

        def __call__(self, x: Any) -> Any:
            return x * self.w

    x, w = cp.ones(3, np.float32), cp.asarray(np.float32([1, 2, 3]))
    model = Model(w)
    for f in (model, lambda x: model(x), lambda x, w=w: x * w):
        run, derivative = ge2.jit(f), ge2.grad(lambda x, f=f: f(x).sum())
        assert run(x).get().tolist() == [1.0, 2.0, 3.0]
        assert derivative(x).get().tolist() == [1.0, 2.0, 3.0]
        assert ge2.jit(derivative)(x).get().tolist() == [1.0, 2.0, 3.0]
        w *= 2
        assert run(x).get().tolist() == [2.0, 4.0, 6.0]
        w /= 2


OPERATORS = {
    "+": (lambda a, b: a + b, float), "-": (lambda a, b: a - b, float), "*": (lambda a, b: a * b, float),
    "/": (lambda a, b: a / b, float), "**": (lambda a, b: a**b, float), "//": (lambda a, b: a // b, float),
    "%": (lambda a, b: a % b, float), "@": (lambda a, b: a @ b, float),
    "divmod": (lambda a, b: divmod(a, b)[1] + divmod(a, b)[0], float),
    "<": (lambda a, b: (a < b) * a + 0 * b, float), "<=": (lambda a, b: (a <= b) * b + 0 * a, float),
    ">": (lambda a, b: (a > b) * a + 0 * b, float), ">=": (lambda a, b: (a >= b) * b + 0 * a, float),
    "==": (lambda a, b: (a == b) * a + 0 * b, float), "!=": (lambda a, b: (a != b) * a + 0 * b, float),
    "&": (lambda a, b: a & b, int), "|": (lambda a, b: a | b, int), "^": (lambda a, b: a ^ b, int),
    "<<": (lambda a, b: a << b, int), ">>": (lambda a, b: a >> b, int),
    "np.add": (lambda a, b: np.add(a, b), float), "np.divide": (lambda a, b: np.divide(a, b), float),
    "np.dot": (lambda a, b: np.dot(a, b), float), "np.where": (lambda a, b: np.where(a < b, a, b), float),
    "np.maximum": (lambda a, b: np.maximum(a, b), float),
    "ge2.numpy.matmul": (lambda a, b: ge2.numpy.matmul(a, b), float),
    "cupy.add": (lambda a, b: cupy().add(a, b), float),
    "cupy.power": (lambda a, b: cupy().power(a, b), float),
    "cupy.left_shift": (lambda a, b: cupy().left_shift(a, b), int),
}  # fmt: skip


@pytest.mark.exhaustive("side")
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", OPERATORS)
def test_cupys_array_beside_a_traced_value(
    cp: Any, rng: np.random.Generator, name: str, side: str
) -> None:
    """It stands in no argument, so it is CuPy's own; what is done with it
    reaches ge2 all the same.
    """
    f, kind = OPERATORS[name]
    x, c = (
        rng.integers(1, 5, (3, 3)).astype(np.int32 if kind is int else np.float64) for _ in range(2)
    )
    if kind is float:
        x, c = x + 0.25, c + rng.choice([0.0, 0.25], c.shape)

    def of(c: Any) -> Any:
        return (lambda x: f(c, x)) if side == "left" else (lambda x: f(x, c))

    if name.startswith("cupy."):
        own, theirs = (
            of(cp.asarray(c)),
            lambda x: getattr(np, name[5:])(*((c, x) if side == "left" else (x, c))),
        )
    else:
        own, theirs = of(cp.asarray(c)), of(c)
    given = cp.asarray(x)
    alike(ge2.jit(own)(given), theirs(x))
    rows = cp.asarray(np.stack([x, x + 1]))
    alike(ge2.vmap(own)(rows), np.stack([theirs(x), theirs(x + 1)]))
    if kind is float:
        found, wanted = (ge2.grad(lambda x, g=g: g(x).sum()) for g in (own, theirs))
        alike(found(given), wanted(x))
        alike(ge2.jit(found)(given), wanted(x))


def test_python_numbers_that_are_traced(cp: Any) -> None:
    c = cp.asarray(np.float32([1, 2, 4]))
    for f, want in (
        (lambda s: (c * s).sum(), 7.0),
        (lambda s: (c - s).sum(), -3.0),
        (lambda s: (s / c).sum(), 1.75),
    ):
        assert float(ge2.grad(f)(2.0)) == want


def test_what_cupy_keeps_to_itself(cp: Any) -> None:
    """Where no other way is left the error says what to write."""
    c, x = cp.asarray(np.float32([1, 2, 3])), cp.ones(3, np.float32)
    for f in (lambda x: cp.matmul(c, x), lambda x: np.matmul(c, x), lambda x: cp.matmul(x, c)):
        with pytest.raises(
            InputError, match=r"(?s)CuPy's own, as cupy.matmul.*  at  .*x @ y for a product"
        ):
            ge2.grad(f)(x)

    def in_place(x: Any) -> Any:
        y = c.copy()
        y += x
        return y.sum()

    with pytest.raises(InPlaceError, match=r"(?s)into a real array.*  try  y = (y \+ x|f\(x\))"):
        ge2.grad(in_place)(x)

    def product_in_place(x: Any) -> Any:
        y = c.copy()
        y @= x
        return y

    assert ge2.grad(product_in_place)(x).get().tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("layout", ["plain", "odd address", "strided", "Fortran"])
def test_arguments_that_are_written(cp: Any, layout: str) -> None:
    """The caller's arrays change, of any strides and at any address,
    and twice: captured graphs too.
    """

    def f(x: Any, y: Any, i: int) -> Any:
        x[1:-1] = 0.5 * (x[:-2] + x[2:])
        y += x[:, 0]
        x[0] = 7.0
        x[i] = y[0]
        return x

    whole = cp.asarray(np.arange(80, dtype=np.float32).reshape(5, 16) % 7)
    x = {
        "plain": whole[:, :4].copy(), "odd address": whole.reshape(-1)[1:21].reshape(5, 4),
        "strided": whole[:, ::4], "Fortran": cp.asarray(np.ones((4, 5), np.float32)).T,
    }[layout]  # fmt: skip
    y, other = cp.asarray(np.ones(5, np.float32)), x.get()
    mine = y.get()
    g = ge2.jit(f)
    for i in range(4):
        assert g(x, y, i) is x
        f(other, mine, i)
        np.testing.assert_allclose(x.get(), other, 1e-6)
        np.testing.assert_allclose(y.get(), mine, 1e-6)


def test_written_arguments_that_overlap(cp: Any) -> None:
    g = ge2.jit(lambda a, b: np.add(a, b, out=a))
    u = cp.asarray(np.arange(6, dtype=np.float32))
    with pytest.raises(InPlaceError, match="a and b of <lambda> share memory"):
        g(u[1:], u[:-1])
    g(u[:3], u[3:])
    assert u.get().tolist() == [3.0, 5.0, 7.0, 3.0, 4.0, 5.0]


def test_random_numbers(cp: Any) -> None:
    key = ge2.random.key(3)
    f = ge2.jit(lambda k, x: x + ge2.random.uniform(ge2.random.split(k)[1], (3,), np.float32))
    alike(f(cp.asarray(key), cp.ones(3, np.float32)), f(key, np.ones(3, np.float32)))
    alike(ge2.random.normal(cp.asarray(key), (3,)), ge2.random.normal(key, (3,)))


def test_donated_memory(cp: Any) -> None:
    f = ge2.jit(lambda x, y: (x + y, y.sum()), donate_argnums=0)
    x = cp.ones(64, np.float32)
    place = x.data.ptr
    found, _ = f(x, cp.ones(64, np.float32))
    assert found.data.ptr == place and found.get().tolist() == [2.0] * 64


def test_what_is_not_donated(cp: Any) -> None:
    f = ge2.jit(lambda x, y: (x + y, y.sum()), donate_argnums=0)
    base = cp.ones(65, np.float32)
    with pytest.warns(Ge2Warning, match="was not donated: it is a view"):
        f(base[:64], cp.ones(64, np.float32))
    assert base.get().tolist() == [1.0] * 65
    g = ge2.jit(lambda x, y: (x + y, y.sum()), donate_argnums=0)
    with pytest.warns(Ge2Warning, match="was not donated: it overlaps another argument"):
        g(base, base)
    assert base.get().tolist() == [1.0] * 65


def test_donated_memory_is_spoilt_when_checked(cp: Any) -> None:
    x = cp.ones(4, np.float32)
    with config.using(check=True):
        ge2.jit(lambda x: x.sum(), donate_argnums=0)(x)
    assert np.isnan(x.get()).all()


def test_the_references(cp: Any) -> None:
    with config.using(executor="reference"):
        y, two = ge2.jit(lambda x: (x * 2, 2.0))(cp.ones(3, np.float32))
        assert y.get().tolist() == [2.0] * 3 and two == 2.0
        assert ge2.numpy.tanh(cp.zeros(2)).get().tolist() == [0.0, 0.0]


def test_a_nan_is_named(cp: Any) -> None:
    with ge2.debug_nans(), pytest.raises(NonFiniteError, match="log made a NaN"):
        ge2.jit(lambda x: np.log(x))(-cp.ones(3, np.float32))


def test_prints_and_callbacks(cp: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: Any) -> Any:
        ge2.debug.print("sum {}", x.sum())
        shape = ge2.ShapeDtypeStruct(x.shape, x.dtype)
        return ge2.pure_callback(lambda v: np.asarray(v) * 2, shape, x) + 1

    assert ge2.jit(f)(cp.ones(3, np.float32)).get().tolist() == [3.0] * 3
    assert capsys.readouterr().out == "sum 3.0\n"


@ge2.extend.op
class Turned(ge2.extend.Op):
    """Each element plus the one before it, around the last axis; CUDA of a user's own."""

    share: float
    name = "test_turned"
    batch = ge2.extend.in_front

    def infer(self, x: Any) -> Any:
        return (x,)

    def reference(self, x: Any) -> Any:
        return (x + self.share * np.roll(x, 1, -1)).astype(x.dtype)

    def vjp(self, cts: Any, ys: Any, xs: Any, wanted: Any) -> Any:
        return [cts[0] + self.share * np.roll(cts[0], -1, -1)]

    def launch(self, x: Any) -> Any:
        return (2, 3), (16, 2)

    helpers = "static inline $T before_$t(const $T *row, int64_t i, int64_t n) { return row[(i + n - 1) % n]; }"
    cuda = """
    const int64_t n = x_shape[x_ndim - 1];
    for (int64_t p = thread; p < x_size; p += threads)
        y[p] = x[p] + (y_t)share * before_$t(x + p / n * n, p % n, n);
    """


def test_an_operation_of_ones_own(cp: Any, rng: np.random.Generator) -> None:
    f = Turned(0.5)
    for dtype in (np.float32, np.float64, np.float16):
        x = rng.integers(-9, 9, (33, 17)).astype(dtype)
        program = ge2.jit(lambda x: f(x.T * 2) + 1)
        alike(program(cp.asarray(x)), f.reference(x.T * 2) + 1)
        assert "test_turned_kernel" in program.lower(cp.asarray(x)).compile().as_text("cuda")
    derivative = ge2.jit(ge2.grad(lambda x: (f(x) * x).sum()))
    alike(derivative(cp.asarray(x)), derivative(x))
    ge2.test_util.check_op(f, [x[:3, :5].astype(np.float64), x[0]])


def test_the_largest_elements(cp: Any, rng: np.random.Generator) -> None:
    """Ties, NaN and zeros of both signs; short lines, long ones, cut ones, and
    more than a block keeps.
    """
    cases = (
        ((7, 5), 2, 1), ((3, 1025), 33, 1), ((1025, 3), 33, 0), ((1, 1 << 17), 500, 1),
        ((2, 900), 600, 1),
    )  # fmt: skip
    table = product(cases, (np.float32, np.float64, np.float16, np.int64, np.uint8, bool))
    for (shape, k, axis), dtype in sampled(table, group=lambda case: case[0]):
        x = rng.integers(0 if dtype in (np.uint8, bool) else -9, 9, shape).astype(dtype)
        if x.dtype.kind == "f":
            x[rng.random(shape) < 0.1] = np.nan
            x[rng.random(shape) < 0.1] = -0.0
        f = ge2.jit(lambda x, k=k, axis=axis: ge2.lax.top_k(x, k, axis))
        for y, want in zip(f(cp.asarray(x)), f(x), strict=True):
            assert y.get().tobytes() == np.ascontiguousarray(want).tobytes(), (shape, dtype)
    derivative = ge2.jit(ge2.grad(lambda x: (ge2.lax.top_k(x, 3)[0] ** 2).sum()))
    x = rng.standard_normal((4, 300))
    alike(derivative(cp.asarray(x)), derivative(x))


def test_derivatives_are_checked(cp: Any) -> None:
    ge2.test_util.check_grads(lambda x: np.sin(x).sum(), (cp.ones(3),), order=2)


def test_mixing_with_what_is_closed_over(cp: Any) -> None:
    w = np.ones(3)
    with pytest.raises(DeviceError, match=r"x on GPU 0 and w, which it closes over, on the CPU"):
        ge2.jit(lambda x: x * w)(cp.ones(3))


def test_mixing_without_jit(cp: Any) -> None:
    with pytest.raises(DeviceError, match=r"(?s)a on GPU 0 and b on the CPU.*cupy.asarray"):
        ge2.grad(lambda a, b: (a * b).sum())(cp.ones(3), np.ones(3))


def test_ahead_of_time(cp: Any) -> None:
    x = cp.ones(3, np.float32)
    compiled = ge2.jit(lambda x: x * 2).lower(x).compile()
    assert compiled(x).get().tolist() == [2.0] * 3
    assert "pointwise" in compiled.as_text("cuda")


def test_a_dump(cp: Any, tmp_path: Path) -> None:
    with config.using(dump=str(tmp_path)):
        ge2.jit(lambda x: np.tanh(x) * 3.5)(cp.ones(3, np.float32))
    names = {path.name.partition("-")[2] for path in tmp_path.iterdir()}
    assert {"program.cu", "program.py", "plan.txt", "repro.py"} <= names


def test_arrays_of_torch_and_jax(cp: Any) -> None:
    torch = pytest.importorskip("torch")
    y = ge2.jit(lambda x: x * 2)(torch.ones(3, device="cuda"))
    assert isinstance(y, cp.ndarray) and y.get().tolist() == [2.0, 2.0, 2.0]


def test_the_current_stream(cp: Any) -> None:
    f = ge2.jit(lambda x: x * 2 + 1)
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        y = f(cp.ones(1 << 20, np.float32))
    stream.synchronize()
    assert float(y.sum()) == 3 * (1 << 20)


def test_a_result_is_the_callers(cp: Any) -> None:
    f = ge2.jit(lambda x: (x, x * 1))
    x = cp.ones(4, np.float32)
    a, b = f(x)
    a[0] = 5
    assert float(x[0]) == 1 and float(b[0]) == 1


def test_large_arrays_have_wide_places(cp: Any) -> None:
    """More than 2^31 elements."""
    n = (1 << 31) + 5
    x = cp.zeros(n, np.int8)
    x[-1] = 3
    assert int(ge2.jit(lambda x: x + np.int8(1))(x)[-1]) == 4
    assert int(ge2.jit(lambda x: x.max())(x)) == 3
