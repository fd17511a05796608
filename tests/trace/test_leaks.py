"""A traced value used outside its trace is an error at that line, which names
the value and who kept it.
"""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import ge2
from ge2 import compile as compiler
from ge2.base.errors import InPlaceError, UnexpectedTracerError
from ge2.ir import Evaluate, current
from ge2.trace import Input, stage
from ge2.trace.concrete import holder
from tests.threads import on_threads

X = np.ones(3)
KEPT: list[Any] = []
TABLE: dict[str, Any] = {}
GLOBAL: Any = None


class Layer:
    def __init__(self) -> None:
        self.memory: Any = None
        self.parts: list[Any] = []


class Slotted:
    __slots__ = ("memory",)


def in_global() -> Any:
    def f(x: Any) -> Any:
        global GLOBAL
        GLOBAL = np.sin(x)
        return np.sum(x)

    ge2.grad(f)(X)
    return lambda: GLOBAL + 1, "the global GLOBAL of"


def in_global_list() -> Any:
    KEPT.clear()
    ge2.grad(lambda x: (KEPT.append(np.sin(x)), np.sum(x))[1])(X)
    return lambda: np.exp(KEPT[0]), "[0] of the global KEPT of"


def in_global_dict() -> Any:
    TABLE.clear()
    ge2.grad(lambda x: (TABLE.update(loss=[np.sin(x)]), np.sum(x))[1])(X)
    return lambda: TABLE["loss"][0].sum(), "[0] of ['loss'] of the global TABLE of"


def in_attribute() -> Any:
    layer = Layer()
    ge2.grad(lambda x: (setattr(layer, "memory", np.sin(x)), np.sum(x))[1])(X)
    return lambda: layer.memory.T * 2, "the attribute memory of a Layer"


def in_list_of_attribute() -> Any:
    layer = Layer()
    ge2.grad(lambda x: (layer.parts.append(np.sin(x)), np.sum(x))[1])(X)
    return lambda: layer.parts[0][0], "[0] of the attribute parts of a Layer"


def in_slot() -> Any:
    layer = Slotted()
    ge2.grad(lambda x: (setattr(layer, "memory", np.sin(x)), np.sum(x))[1])(X)
    return lambda: layer.memory.reshape(-1, 1), "the attribute memory of a Slotted"


def in_closure() -> Any:
    hidden: Any = None

    def f(x: Any) -> Any:
        nonlocal hidden
        hidden = np.sin(x)
        return np.sum(x)

    ge2.grad(f)(X)
    return lambda: hidden * 2, "the variable hidden of a function around"


IN_MODULES = (in_global, in_global_list, in_global_dict)
IN_OBJECTS = (in_attribute, in_list_of_attribute, in_slot, in_closure)


@pytest.mark.parametrize("hide", [*IN_MODULES, *IN_OBJECTS])
def test_a_leaked_value_is_named_with_its_line_and_who_kept_it(
    hide: Any, request: pytest.FixtureRequest
) -> None:
    if hide in IN_MODULES:
        request.getfixturevalue("collector_sees_modules")
    use, kept = hide()
    with pytest.raises(UnexpectedTracerError) as caught:
        use()
    what, where, fix = str(caught.value).split("\n")
    assert what.startswith("a traced f64[3] made at test_leaks.py:")
    assert "outlived the trace of" in what
    assert f"; {kept}" in what
    assert what.endswith("still holds it")
    assert where.startswith("  at   test_leaks.py:")
    assert (
        fix == "  try  return x, y: a value leaves the function as its result, not by being stored"
    )


def leaked(f: Any = lambda x: x * 2) -> Any:
    kept: list[Any] = []
    ge2.make_jaxpr(lambda theta: (kept.append(f(theta)), theta)[1])(X)
    return kept[0]


# fmt: off
USES: dict[str, Any] = {
    "ufunc":       lambda y: np.sin(y),
    "function":    lambda y: np.concatenate([y, y]),
    "ge2.numpy":   lambda y: ge2.numpy.sum(y),
    "operator":    lambda y: 1 - y,
    "method":      lambda y: y.sum(),
    "compare":     lambda y: y > 0,
    "index":       lambda y: y[1:],
    "T":           lambda y: np.expand_dims(y, 0).T,
    "setitem":     lambda y: y.__setitem__(0, 1.0),
    "fill":        lambda y: y.fill(0),
    "iadd":        lambda y: y.__iadd__(1),
    "out":         lambda y: np.add(X, X, out=y),
    "iterate":     lambda y: list(y),
    "matmul":      lambda y: y @ y,
    "argument":    lambda y: ge2.grad(lambda x: np.sum(x))(y),
    "captured":    lambda y: ge2.grad(lambda x: np.sum(x * y))(X),
    "pickle":      lambda y: pickle.dumps(y),
    "bool":        lambda y: bool((y.cell, y)[1][0]),
}
# fmt: on


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_every_use_after_the_trace_is_refused(use: Any) -> None:
    with pytest.raises(
        UnexpectedTracerError, match=r"outlived the trace of <lambda> \(test_leaks.py:\d+\)"
    ):
        use(leaked())


def test_what_needs_no_value_still_works_so_that_one_can_look() -> None:
    y = leaked()
    assert y.shape == (3,)
    assert y.dtype == np.float64
    assert repr(y) == "<a traced f64[3]>"
    assert len(y) == 3
    assert isinstance(y, np.ndarray)


def test_a_leaked_argument_is_called_by_its_name() -> None:
    with pytest.raises(UnexpectedTracerError, match=r"^theta \(traced f64\[3\]\) outlived"):
        np.sin(leaked(lambda x: x))


def test_a_value_of_an_inner_trace_is_refused_by_the_outer_one() -> None:
    def outer(x: Any) -> Any:
        kept: list[Any] = []
        ge2.grad(lambda y: (kept.append(y * 2), np.sum(y))[1])(x)
        return np.sum(x * kept[0])

    with pytest.raises(
        UnexpectedTracerError,
        match=r"made at test_leaks.py:\d+ in <lambda> outlived the trace of <lambda>",
    ):
        ge2.grad(outer)(X)


def test_a_value_of_a_sibling_trace_is_refused() -> None:
    kept: list[Any] = []

    def outer(x: Any) -> Any:
        ge2.grad(lambda y: (kept.append(y * 2), np.sum(y))[1])(x)
        return np.sum(ge2.grad(lambda y: np.sum(y * kept[0]))(x))

    with pytest.raises(UnexpectedTracerError, match="outlived the trace"):
        ge2.grad(outer)(X)


def test_an_outer_value_is_welcome_inside() -> None:
    f = lambda x: np.sum(ge2.grad(lambda y: np.sum(y * x * x))(X))  # noqa: E731
    np.testing.assert_array_equal(ge2.grad(f)(X), 2 * X)


def whole(y: Any, z: Any) -> None:
    y[0] = z[0]


def through_a_view(y: Any, z: Any) -> None:
    y[1:] += z[1:]


def through_a_view_of_a_view(y: Any, z: Any) -> None:
    y[::-1].reshape(3, 1).T[...] = z


@pytest.mark.parametrize("change", [whole, through_a_view, through_a_view_of_a_view])
def test_changing_an_outer_array_inside_is_refused(change: Any) -> None:
    def outer(x: Any) -> Any:
        y = x * 2

        def inner(z: Any) -> Any:
            change(y, z)
            return np.sum(z)

        return np.sum(ge2.grad(inner)(x) + y)

    with pytest.raises(InPlaceError, match="belongs to the outer function outer"):
        ge2.grad(outer)(X)


@pytest.mark.parametrize(
    "copied",
    [lambda y: y.copy(), np.copy, copy.copy, lambda y: y.astype(y.dtype), lambda y: y[:].copy()],
)
def test_a_copy_of_an_outer_array_may_be_changed_inside(copied: Any) -> None:
    def outer(x: Any) -> Any:
        def inner(carry: Any, row: Any) -> Any:
            y = copied(x)
            y[0] = row
            y[:, 1] += carry[0]
            return carry + y.sum(0), y

        return ge2.lax.scan(inner, x[0], x)

    x = np.arange(6.0).reshape(3, 2)
    carry, wanted = x[0], []
    for row in x:
        wanted.append(np.stack([row, *x[1:]]) + np.array([0, carry[0]]))
        carry = carry + wanted[-1].sum(0)
    found, ys = ge2.jit(outer)(x)
    np.testing.assert_array_equal(found, carry)
    np.testing.assert_array_equal(ys, wanted)


# ------------------------------------------------------------------------------------------ threads


def in_a_thread(f: Any) -> list[Any]:
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(f())
        except Exception as error:  # noqa: BLE001 it is looked at by the test
            found.append(error)

    on_threads(work)
    return found


THREADED = (
    np.sin, float, bool, np.asarray, lambda x: x + 1, lambda x: x.reshape(1),
    lambda x: ge2.grad(np.sin)(x),
)  # fmt: skip


@pytest.mark.parametrize("use", THREADED)
def test_another_thread_may_not_use_a_value_while_its_trace_goes_on(use: Any) -> None:
    found: list[Any] = []

    def f(x: Any) -> Any:
        y = x[0] * 2
        found.extend(in_a_thread(lambda: use(y)))
        return np.sum(x)

    ge2.grad(f)(X)
    assert isinstance(found[0], UnexpectedTracerError)
    assert "was used where that function is not being traced, such as another thread" in str(
        found[0]
    )
    assert "made at test_leaks.py" in str(found[0])


def test_threads_trace_on_their_own() -> None:
    def f(x: Any) -> Any:
        (inner,) = in_a_thread(lambda: ge2.grad(lambda y: np.sum(y**3))(X))
        return np.sum(x * inner)

    np.testing.assert_array_equal(ge2.grad(f)(X), 3 * X)


# ------------------------------------------------------------------------------------ errors inside


def test_the_collector_rests_while_what_was_traced_before_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collects, planned = list[bool](), compiler.planned
    monkeypatch.setattr(
        compiler, "planned", lambda *of: (collects.append(gc.isenabled()), planned(*of))[1]
    )
    ge2.jit(lambda x: x * 2).trace(X).lower()
    assert collects == [False]
    assert gc.isenabled()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_exception_while_tracing_leaves_a_clean_state(error: type[BaseException]) -> None:
    kept: list[Any] = []

    def f(x: Any) -> Any:
        kept.append(x * 2)
        ge2.grad(lambda y: (kept.append(y), np.sum(y))[1])(x)
        ge2.vmap(lambda y: (kept.append(y), fail())[0])(x)

    def fail() -> None:
        raise error

    with pytest.raises(error):
        ge2.grad(f)(X)
    assert isinstance(current(), Evaluate)
    assert gc.isenabled()
    assert all(not y.owner.open for y in kept)
    np.testing.assert_array_equal(ge2.grad(lambda x: np.sum(x * x))(X), 2 * X)
    for y in kept:
        with pytest.raises(UnexpectedTracerError, match="outlived"):
            np.sin(y)


def test_an_exception_that_the_function_catches_goes_on_in_the_right_trace() -> None:
    def f(x: Any) -> Any:
        try:
            ge2.grad(lambda y: np.sum(y) + fail())(x)
        except ZeroDivisionError:
            y = x * 2
        return np.sum(y * x)

    def fail() -> float:
        return 1 / 0

    np.testing.assert_array_equal(ge2.grad(f)(X), 4 * X)


def test_a_trace_is_freed_when_its_values_are() -> None:
    gc.collect()
    gc.disable()
    try:
        import weakref

        seen: list[Any] = []
        stage(
            lambda x: [(seen.append(weakref.ref(y := np.sin(x))), y)[1]], [Input(ge2.ir.type_of(X))]
        )
        assert seen[0]() is None
    finally:
        gc.enable()


def test_copies_of_a_value_are_values_of_the_trace() -> None:
    def f(x: Any) -> Any:
        a, b = copy.copy(x), copy.deepcopy([x])[0]
        a += 1
        b *= 2
        return np.sum(a * b * x)

    np.testing.assert_array_equal(ge2.grad(f)(X), 2 * X * (X + 1) + 2 * X * X + 2 * X * (X + 1))


def test_nobody_is_named_where_nobody_is_found() -> None:
    assert holder(object()) == ""


FIRST = """
import gc
import numpy as np
import ge2
{before}
frozen, freeze = [], gc.freeze
gc.freeze = lambda: (frozen.append(gc.get_freeze_count()), freeze())
ge2.jit(np.tanh)(np.ones(9))
young = len(gc.get_objects(generation=0)) + len(gc.get_objects(generation=1))
ge2.jit(np.sin)(np.ones(9))
print(len(frozen), young < 5000, gc.get_freeze_count() > 0)
"""


@pytest.mark.parametrize(
    ("before", "said"), [("", "1 True False"), ("gc.collect(); gc.freeze()", "0 False True")]
)
def test_the_collector_counts_what_the_first_program_made_as_old_once(
    before: str, said: str
) -> None:
    """Unless somebody froze what is to stay frozen."""
    run = [sys.executable, "-c", FIRST.format(before=before)]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stdout.split() == said.split()
