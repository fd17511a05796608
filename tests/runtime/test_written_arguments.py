"""Arguments that a jitted function writes: the caller's arrays change
as under NumPy, or not at all.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.errors import Ge2Warning, InPlaceError, NonFiniteError, ReadOnlyError
from tests.trace.test_in_place import MAKE, STEPS, VIEW, Program, run

Array = Any
EXECUTORS = ["c", "blocked", "reference"]


def arrays(*shapes: tuple[int, ...]) -> list[Array]:
    rng = np.random.default_rng(7)
    return [rng.standard_normal(shape) for shape in shapes]


# ------------------------------------------------------------------ programs as they are written


def heat(u: Array) -> None:
    u[1:-1, 1:-1] += 0.1 * (
        u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]
    )
    u[0] = u[-1] = 0.0
    u[:, 0] = u[:, -1] = 0.0


def wave(old: Array, now: Array, new: Array, c: float) -> None:
    new[1:-1] = 2 * now[1:-1] - old[1:-1] + c * (now[2:] - 2 * now[1:-1] + now[:-2])
    old[:] = now
    now[:] = new


def fdtd(ez: Array, hx: Array, hy: Array, c: float) -> None:
    hx[:, :-1] -= c * (ez[:, 1:] - ez[:, :-1])
    hy[:-1, :] += c * (ez[1:, :] - ez[:-1, :])
    ez[1:-1, 1:-1] += c * (hy[1:-1, 1:-1] - hy[:-2, 1:-1] - hx[1:-1, 1:-1] + hx[1:-1, :-2])


def gauss_seidel(a: Array, b: Array, x: Array) -> None:
    for i in range(4):
        x[i] = (b[i] - a[i, :i] @ x[:i] - a[i, i + 1 :] @ x[i + 1 :]) / (a[i, i] + 9.0)


def lu(a: Array) -> Array:
    for k in range(3):
        a[k + 1 :, k] /= a[k, k]
        a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])
    return a


def butterflies(x: Array) -> None:
    """The Walsh-Hadamard transform, in place."""
    h = 1
    while h < len(x):
        for i in range(0, len(x), 2 * h):
            a, b = x[i : i + h].copy(), x[i + h : i + 2 * h].copy()
            x[i : i + h], x[i + h : i + 2 * h] = a + b, a - b
        h *= 2


def periodic(u: Array) -> None:
    u[0], u[-1] = u[-2], u[1]


def reflecting(u: Array, v: Array) -> None:
    u[:, 0], u[:, -1] = u[:, 1], u[:, -2]
    v[0, :], v[-1, :] = -v[1, :], -v[-2, :]


def filled(x: Array, out: Array) -> Array:
    np.multiply(x, 2, out=out)
    np.add(out[1:], x[:-1], out=out[1:])
    return out


def upwind(q: Array, f: Array, c: float) -> None:
    f[1:] = c * q[:-1]
    f[0] = f[-1]
    q[:-1] -= f[1:] - f[:-1]


def clipped_steps(p: Array, g: Array, m: Array) -> None:
    m *= 0.9
    m += g
    p -= 0.1 * np.clip(m, -0.5, 0.5)


def sorted_shift(x: Array, i: int) -> None:
    x.sort()
    x[i] = 9.0
    x[1:] = x[:-1]
    x[::-1] += x


ROUTINES: list[tuple[Callable[..., Any], list[Any]]] = [
    (heat, arrays((6, 7))),
    (wave, [*arrays((9,), (9,), (9,)), 0.3]),
    (fdtd, [*arrays((5, 6), (5, 6), (5, 6)), 0.5]),
    (gauss_seidel, arrays((4, 4), (4,), (4,))),
    (lu, arrays((4, 4))),
    (butterflies, arrays((8,))),
    (periodic, arrays((6,))),
    (reflecting, arrays((4, 5), (5, 4))),
    (filled, arrays((6,), (6,))),
    (upwind, [*arrays((8,), (8,)), 0.4]),
    (clipped_steps, arrays((3, 4), (3, 4), (3, 4))),
    (sorted_shift, [*arrays((6,)), 2]),
]


def all_routines(given: list[list[Any]]) -> list[Any]:
    return [routine(*args) for (routine, _), args in zip(ROUTINES, given, strict=True)]


@pytest.mark.parametrize("executor", ["c", "blocked"])
def test_routines_that_write_their_arguments_run_as_they_stand(executor: str) -> None:
    given = [args for _, args in ROUTINES]
    ours, theirs = copy.deepcopy(given), copy.deepcopy(given)
    with ge2.config.using(executor=executor):
        f = ge2.jit(all_routines)
        for _ in range(3):
            want, got = all_routines(theirs), f(ours)
            for (routine, _), xs, ys in zip(ROUTINES, theirs, ours, strict=True):
                for x, y in zip(xs, ys, strict=True):
                    np.testing.assert_allclose(y, x, 1e-12, 1e-12, err_msg=f"{routine.__name__}")
    for x, y, xs, ys in zip(want, got, theirs, ours, strict=True):
        assert [y is each for each in ys] == [x is each for each in xs]


# --------------------------------------------------------------------------------- random programs


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "plain": lambda x: x.copy(),
    "Fortran": lambda x: np.array(x, order="F"),
    "every other": lambda x: np.repeat(x, 2, -1)[..., ::2],
    "reversed": lambda x: x[::-1].copy()[::-1],
}
BASE = [np.arange(6.0).reshape(2, 3) - 1, np.array([3.0, 1.0, 2.0]), np.arange(9.0).reshape(3, 3)]


def drawn(rng: random.Random) -> tuple[Program, list[str]]:
    """Steps, most of which write, and the layouts of the arguments."""
    first, second = len(MAKE), len(MAKE) + len(VIEW)
    kinds = [(0, first), (first, second), (second, len(STEPS)), (second, len(STEPS))]
    steps = [rng.randrange(*rng.choice(kinds)) for _ in range(rng.randint(1, 6))]
    program = [(s, rng.randrange(rng.choice((3, 9))), rng.randrange(9)) for s in steps]
    return program, [rng.choice(["plain", "plain", *LAYOUTS]) for _ in BASE]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("executor", "count"), [("reference", 150), ("blocked", 40), ("c", 6)])
def test_random_programs_change_their_arguments_as_numpy_does(executor: str, count: int) -> None:
    rng, refused = random.Random(20), 0
    for _ in range(count):
        program, names = drawn(rng)
        theirs, ours, before = (
            [LAYOUTS[n](x) for n, x in zip(names, BASE, strict=True)] for _ in range(3)
        )
        text = f"{names} " + "; ".join(f"{STEPS[s][0]} with {i}, {j}" for s, i, j in program)
        with np.errstate(all="ignore"):
            taken = run(program, [x.copy("K") for x in before])[1]
            want = run(program, list(theirs), taken)[0]
        f = ge2.jit(
            lambda *xs, p=tuple(program), t=tuple(taken): tuple(run(list(p), list(xs), list(t))[0])
        )
        try:
            with ge2.config.using(executor=executor):
                got = f(*ours)
        except InPlaceError:
            refused, want, got, theirs = refused + 1, [], [], before
        for x, y in zip([*want, *theirs], [*got, *ours], strict=True):
            np.testing.assert_array_equal(y, x, err_msg=text, strict=True)
    assert refused <= count // 20


# --------------------------------------------------------------------------- nothing if it fails


def out_of_range(x: Array, i: Array) -> Array:
    x += 1
    return x[i]


def written_out_of_range(x: Array, i: Array) -> None:
    x[0] = 7
    x[i] = 8


def one_bad_read(x: Array, i: Array) -> None:
    old = x.copy()
    x *= 2
    x += old[i]


def halved(x: Array, i: Array) -> None:
    """Writes at indices that a loop finds."""
    x[0] = 5.0
    x[...] = ge2.lax.fori_loop(0, 2, lambda k, y: y * y[i + k], x)


@pytest.mark.exhaustive("executor")
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("f", [out_of_range, written_out_of_range, one_bad_read, halved])
def test_an_index_out_of_range_changes_nothing(f: Any, executor: str) -> None:
    x = np.arange(4.0)
    with ge2.config.using(executor=executor):
        g = ge2.jit(f)
        g(x, 1)
        before = x.copy()
        with pytest.raises(IndexError):
            g(x, 9)
        np.testing.assert_array_equal(x, before)
        g(x, 1)
    again = before.copy()
    f(again, 1)
    np.testing.assert_array_equal(x, again)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_exception_in_a_callback_changes_nothing(executor: str) -> None:
    def host(v: Array) -> Array:
        if v > 3:
            raise RuntimeError("too large")
        return v

    def f(x: Array) -> None:
        x[0] += 2
        x += ge2.pure_callback(host, ge2.ShapeDtypeStruct((), np.float64), x[0])

    x = np.zeros(3)
    with ge2.config.using(executor=executor):
        g = ge2.jit(f)
        g(x)
        np.testing.assert_array_equal(x, [4.0, 2.0, 2.0])
        with pytest.raises(RuntimeError, match="too large"):
            g(x)
    np.testing.assert_array_equal(x, [4.0, 2.0, 2.0])


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_nan_under_debug_nans_changes_nothing(executor: str) -> None:
    @ge2.jit
    def f(x: Array) -> None:
        np.sqrt(x, out=x)

    x = np.array([4.0, -1.0])
    with ge2.config.using(executor=executor, debug_nans=True):
        with pytest.raises(NonFiniteError):
            f(x)
        np.testing.assert_array_equal(x, [4.0, -1.0])
        f(x[:1])
    np.testing.assert_array_equal(x, [2.0, -1.0])


# -------------------------------------------------------------------------------- what is refused


@ge2.jit
def shift(a: Array, b: Array) -> None:
    a += b


def test_arguments_that_overlap_are_refused_by_name_unless_they_are_only_read() -> None:
    u = np.arange(6.0)
    with pytest.raises(
        InPlaceError, match=r"a and b of shift share memory.*writes a \(test_written"
    ) as caught:
        shift(u[1:], u[:-1])
    assert "at   test_written_arguments.py:" in str(caught.value)
    with pytest.raises(InPlaceError, match="share memory"):
        shift(u, u)
    np.testing.assert_array_equal(u, np.arange(6.0))
    shift(u[:3], u[3:])
    shift(u[::2], u[1::2])
    np.testing.assert_array_equal(u, [8, 5, 10, 3, 9, 5])
    np.testing.assert_array_equal(ge2.jit(lambda a, b: a + b)(u, u), 2 * u)


def test_memory_that_cannot_be_written_is_refused_as_numpy_does() -> None:
    x, y = np.zeros(3), np.ones(3)
    x.flags.writeable = False
    with pytest.raises(
        ValueError, match="assignment destination is read-only: a of shift"
    ) as caught:
        shift(x, y)
    assert isinstance(caught.value, ReadOnlyError)
    repeated = np.lib.stride_tricks.as_strided(np.zeros(1), (3,), (0,))
    overlapping = np.lib.stride_tricks.as_strided(np.zeros(4), (2, 3), (8, 8))
    for bad in (repeated, overlapping):
        with pytest.raises(InPlaceError, match="a of shift has elements that share memory"):
            shift(bad, np.ones(3))
    shift(y, x)


def test_closed_over_arrays_stay_refused() -> None:
    w = np.zeros(3)

    def f(x: Array) -> Array:
        np.add(w, x, out=w)
        return x

    with pytest.raises(
        InPlaceError, match="would change the caller's array: w is an array from outside"
    ):
        ge2.jit(f)(np.ones(3))
    assert not w.any()


def test_a_closed_over_array_that_is_also_written_as_an_argument_is_refused() -> None:
    w = np.ones(3)

    def f(x: Array) -> None:
        x += w

    g = ge2.jit(f)
    y = np.zeros(3)
    g(y)
    np.testing.assert_array_equal(y, w)
    with pytest.raises(InPlaceError, match="x and w of .*f share memory"):
        g(w)


def test_writing_through_a_reshape_asks_for_an_array_in_c_order() -> None:
    @ge2.jit
    def f(x: Array) -> None:
        x.reshape(-1)[1] = 7.0

    x = np.zeros((2, 3))
    f(x)
    assert x[0, 1] == 7.0
    turned = np.zeros((3, 2)).T
    with pytest.raises(InPlaceError, match="x of .*f is not in C order"):
        f(turned)
    assert not turned.any()


# ---------------------------------------------------------------------- what comes in, and goes out


@ge2.tree_util.register_dataclass
@dataclass
class State:
    x: Array
    v: Array


def test_leaves_of_trees_are_written_where_they_lie() -> None:
    @ge2.jit
    def f(state: State, more: dict[str, list[Array]], *, k: Array) -> None:
        state.x += state.v
        more["a"][0][:, 0] = 5.0
        k.T[0] = state.x

    state = State(np.zeros(2), np.ones(2))
    more, k = {"a": [np.zeros((2, 2))]}, np.zeros((2, 2))
    a, x = more["a"][0], state.x
    for _ in range(3):
        assert f(state, more, k=k) is None
    assert state.x is x
    np.testing.assert_array_equal(x, [3.0, 3.0])
    np.testing.assert_array_equal(a, [[5.0, 0.0], [5.0, 0.0]])
    np.testing.assert_array_equal(k, [[3.0, 0.0], [3.0, 0.0]])


def test_a_written_argument_that_is_returned_is_the_callers_own_array() -> None:
    @ge2.jit
    def f(x: Array, y: Array) -> Any:
        x *= 2
        return {"x": (x, x), "part": x[1:], "y": y, "copy": +x}

    x, y = np.ones(3), np.zeros(2)
    found = f(x, y)
    assert found["x"][0] is x and found["x"][1] is x
    assert not any(
        np.shares_memory(found[name], z) for name in ("part", "y", "copy") for z in (x, y)
    )
    for name, want in (("part", [2.0, 2.0]), ("y", y), ("copy", x)):
        np.testing.assert_array_equal(found[name], want)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_result_that_equals_what_was_written_has_memory_of_its_own(executor: str) -> None:
    @ge2.jit
    def f(x: Array, y: Array) -> Any:
        old = x.copy()
        x += 1
        y[...] = x
        return x.copy(), old, np.add(x, 0)

    with ge2.config.using(executor=executor):
        x, y = np.zeros(4), np.ones(4)
        found = f(x, y)
    assert not any(np.shares_memory(a, b) for a in found for b in (x, y))
    np.testing.assert_array_equal(
        [x, y, *found], [[1.0] * 4, [1.0] * 4, [1.0] * 4, [0.0] * 4, [1.0] * 4]
    )


def test_arguments_change_places() -> None:
    @ge2.jit
    def swap(x: Array, y: Array) -> None:
        x[...], y[...] = y.copy(), x.copy()

    x, y = np.zeros(3), np.ones(3)
    swap(x, y)
    np.testing.assert_array_equal([x, y], [[1.0] * 3, [0.0] * 3])


def test_a_jitted_function_inside_another_writes_its_values() -> None:
    step = ge2.jit(lambda a, b: a.__iadd__(b))

    @ge2.jit
    def f(x: Array) -> Array:
        y = np.zeros_like(x[0])
        step(x[0], x[1])
        step(y, x[0])
        assert step(y, x[1]) is y
        return y

    x = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(f(x), [6.0, 9.0, 12.0])
    np.testing.assert_array_equal(x, [[3.0, 5.0, 7.0], [3.0, 4.0, 5.0]])
    with pytest.raises(InPlaceError, match="a and b of <lambda> share memory"):
        ge2.jit(lambda x: step(x[1:], x[:-1]))(np.zeros(4))
    with pytest.raises(InPlaceError, match="a, which is a real array here"):
        ge2.jit(lambda x: step(np.hamming(3), x))(np.zeros(3))


def test_scalars_are_bound_anew_and_arrays_without_axes_change() -> None:
    @ge2.jit
    def f(x: Any) -> Any:
        before = x
        x += 1
        return before * x

    zero = np.array(2.0)
    for _ in range(2):
        assert f(np.float64(2.0)) == 6.0
        assert f(2.0) == 6.0
    assert f(zero) == 9.0 and zero == 3.0
    assert f(zero) == 16.0 and zero == 4.0
    assert f(np.float64(2.0)) == 6.0


def test_a_donated_argument_may_be_written_and_gives_its_memory() -> None:
    f = ge2.jit(lambda x: x.__iadd__(1), donate_argnums=0)
    x = np.zeros(8)
    with ge2.config.using(check=False):
        y = f(x)
    np.testing.assert_array_equal(y, np.ones(8))
    assert np.shares_memory(x, y)


# ------------------------------------------------------------------- under derivatives and batching


def weighted(w: Array, buffer: Array, count: Array) -> Array:
    buffer[1:] = w[1:] * 2
    buffer += 1
    count += 1
    return np.sum(buffer * w)


TRANSFORMS: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "grad": ge2.grad,
    "value_and_grad": ge2.value_and_grad,
    "jit of grad": lambda f: ge2.jit(ge2.grad(f)),
    "grad of jit": lambda f: ge2.grad(ge2.jit(f)),
    "vmap of grad": lambda f: ge2.vmap(ge2.grad(f), (None, None, None), axis_size=2),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_what_is_neither_differentiated_nor_batched_may_be_written(name: str) -> None:
    w, ours, theirs = np.arange(3.0), np.ones(3), np.ones(3)
    counts = np.zeros(2, int), np.zeros(2, int)
    g = TRANSFORMS[name](weighted)
    for _ in range(2):
        g(w, ours, counts[0])
        weighted(w, theirs, counts[1])
        np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(*counts)


def test_primals_that_have_no_derivative_may_be_written() -> None:
    def f(x: Any, count: Array) -> Any:
        count += 1
        return 2.0 * x

    count = np.zeros(2, int)
    assert ge2.jvp(f, (1.0, count), (1.0, count))[1] == 2.0
    assert ge2.vjp(f, 1.0, count)[1](1.0)[0] == 2.0
    assert ge2.linearize(f, 1.0, count)[1](1.0, count) == 2.0
    np.testing.assert_array_equal(ge2.vmap(f, (0, None))(np.ones(2), count), [2.0, 2.0])
    np.testing.assert_array_equal(count, [4, 4])


def test_what_is_differentiated_or_batched_is_refused_and_unchanged() -> None:
    def f(x: Array) -> Array:
        x[0] = 1.0
        return np.sum(x)

    x = np.zeros((2, 2))
    for g, why in (
        (ge2.grad(f), "differentiated"),
        (ge2.jit(ge2.grad(f)), "differentiated"),
        (lambda x: ge2.jvp(f, (x,), (x,)), "differentiated"),
        (lambda x: ge2.vjp(f, x), "differentiated"),
        (lambda x: ge2.linearize(f, x), "differentiated"),
        (ge2.vmap(f), "batched"),
        (ge2.vmap(ge2.jit(f)), "batched"),
    ):
        with pytest.raises(InPlaceError, match=rf"(?s)which is {why}.*x = x.copy\(\) first"):
            g(x)
    with pytest.raises(InPlaceError, match="buffer what differs along the mapped axis"):
        ge2.vmap(weighted, (0, None, None))(x, np.zeros(2), np.zeros(2, int))
    with pytest.raises(InPlaceError, match="buffer and w of .* share memory"):
        ge2.grad(weighted)(x[0], x[0], np.zeros(2, int))
    assert not x.any()


# ---------------------------------------------------------------------------------------- the plan


@pytest.mark.parametrize(
    "f",
    [
        lambda x, i: x.__iadd__(1),
        lambda x, i: x.__setitem__(i, 1.0),
        lambda x, i: x.__setitem__((0, slice(None)), 2.0),
        lambda x, i: (x.__setitem__((0, slice(1)), 2.0), x.__setitem__((-1, slice(1)), 3.0))[:0],
        lambda x, i: np.sqrt(x, out=x),
    ],
)
def test_what_reads_the_old_contents_no_more_is_computed_in_the_argument(f: Any) -> None:
    made = ge2.jit(f).lower(np.ones((64, 64)), 3).memory_analysis()
    assert made.donated == 64 * 64 * 8
    assert made.peak < 1024


def test_what_may_fail_is_computed_beside_the_argument() -> None:
    """Unless it is known before the first write: that all indices are inside."""

    def found_later(x: Array, i: Array) -> None:
        x[0] += 1
        x[x[1].astype(int)] = 2.0

    for f, args in ((found_later, (3,)), (halved, (3,))):
        assert ge2.jit(f).lower(np.ones(512), *args).memory_analysis().donated == 0
    for f in (out_of_range, written_out_of_range, one_bad_read):
        assert ge2.jit(f).lower(np.ones(512), 3).memory_analysis().donated == 512 * 8


def test_what_is_read_of_an_argument_after_it_was_written_is_copied_before() -> None:
    """Not the whole argument: boundary conditions cost what they touch, arrays
    that change places a copy.
    """
    u, v = np.ones((64, 64)), np.ones((64, 64))
    made = ge2.jit(reflecting).lower(u, v).memory_analysis()
    assert made.donated == 2 * u.nbytes and made.arena < u.nbytes // 4
    made = ge2.jit(wave).lower(*arrays((512,), (512,), (512,)), 0.3).memory_analysis()
    assert made.donated == 3 * 512 * 8 and made.arena <= 512 * 8


def test_programs_say_what_they_write() -> None:
    @ge2.jit
    def f(x: Array, y: Array) -> None:
        y[0] = x[1]

    f(np.ones(2), np.ones(2))
    assert re.search(r"writes y \(test_written_arguments.py:\d+ in .*f\)", str(f.report()))
    assert f.report().writes == ("y",)
    traced = f.trace(np.ones(2), np.ones(2))
    assert "writes y (" in str(traced) and traced.out_info is None
    lowered = f.lower(np.ones(2), np.ones(2))
    assert [row.reuse for row in lowered.memory_timeline().rows if row.kind == "result"] == [("b",)]
    assert lowered.compile()(np.ones(2), y := np.zeros(2)) is None
    assert y[0] == 1.0


@pytest.mark.any_executor
def test_a_scalar_index_gives_a_view_and_an_array_without_axes_a_copy() -> None:
    def f(x: Any, i: Any) -> Any:
        y = x.copy()
        row = y[i]
        row += 1
        return y, row

    g, x = ge2.jit(f), np.arange(6.0).reshape(3, 2)
    for i in (np.int64(2), np.array(2), np.int64(1), np.array(0)):
        for got, want in zip(g(x, i), f(x, i), strict=True):
            np.testing.assert_array_equal(got, want)
    assert "are NumPy's scalars" in str(g.cache_report())
    reads = ge2.jit(lambda x, i: x[i] * 2)  # nothing is written: one trace serves both
    reads(x, np.int64(2)), reads(x, np.array(1))
    assert "1 signature," in str(reads.cache_report())


def assigns(p: Any) -> None:
    p["w"] = p["w"] * 2


def appends(p: Any) -> None:
    p["more"].append(p["w"])


def pops(p: Any) -> Any:
    return p.pop("w")


@pytest.mark.any_executor
@pytest.mark.parametrize(
    ("change", "name"), [(assigns, "p"), (appends, r"p\['more'\]"), (pops, "p")]
)
@pytest.mark.parametrize("transform", [ge2.jit, lambda f: lambda p: ge2.vmap(f)(p)])
def test_a_container_that_is_changed_and_not_returned_warns(
    transform: Any, change: Any, name: str
) -> None:
    given = {"w": np.ones(2), "more": [np.ones(2)]}

    def f(p: Any) -> Any:
        return change(p) if change is pops else (change(p), p["w"])[1]

    with pytest.warns(Ge2Warning, match=rf"f \(.*\) changes {name}, a container"):
        transform(f)(given)
    assert list(given) == ["w", "more"]
    assert len(given["more"]) == 1


@pytest.mark.any_executor
def test_a_container_that_is_changed_and_returned_does_not_warn() -> None:
    def f(p: Any) -> Any:
        assigns(p)
        appends(p)
        return {"new": p}

    found = ge2.jit(f)({"w": np.ones(2), "more": []})["new"]
    np.testing.assert_array_equal(found["more"][0], found["w"])
    np.testing.assert_array_equal(found["w"], 2)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda x: x, r"x.copy\(\), or x.flags.writeable = True$"),
        (lambda x: x[1:], r"x.copy\(\)$"),
        (lambda x: np.frombuffer(x.tobytes()), r"x.copy\(\)$"),
    ],
)
def test_what_numpy_will_not_make_writable_is_to_be_copied(make: Any, says: str) -> None:
    x = np.ones(3)
    x.flags.writeable = False
    with pytest.raises(ValueError, match=says):
        ge2.jit(lambda x: np.put(x, 0, 2.0))(make(x))
