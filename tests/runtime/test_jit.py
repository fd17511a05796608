"""`jit`: what counts as a signature, what may be an argument, what comes
back, and how it is used.
"""

from __future__ import annotations

import enum
import functools
import operator
from collections import namedtuple
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.dispatch import jitted
from ge2.errors import InputError, UnexpectedTracerError
from tests.runtime.counted import Counted, X

pytestmark = pytest.mark.any_executor

# ------------------------------------------------------------------------------------ the signature


def test_one_trace_for_many_values():
    f = Counted(lambda x, scale: x * scale + 1)
    for scale in (0.5, 2.0, -3.0):
        np.testing.assert_array_equal(f(X * scale, scale), X * scale * scale + 1)
    assert f.traces == 1


def test_a_step_counter_and_a_learning_rate_are_arguments():
    f = Counted(lambda w, rate, step: (w - rate * w / step, step + 1))
    w, step = X, 1
    for rate in (0.1, 0.2, 0.3):
        w, step = f(w, rate, step)
    assert f.traces == 1
    assert (step, type(step)) == (4, int)


@pytest.mark.parametrize(
    "other",
    [
        X.astype(np.float32), X[:2], X[None], np.array([1, 2, 3]), 1.0, 1, True, 1j, np.float64(1),
        np.array(1.0), [X], {"a": X}, {"b": X}, (X,), None, "a", "b", b"a", np.float32, np.dtype(np.float32),
        int, ..., slice(1), slice(2), range(3),
    ],
    ids=lambda x: f"{type(x).__name__}-{str(x)[:20]}",
)  # fmt: skip
def test_types_structures_and_static_values_are_told_apart(other):
    """0-d arrays and NumPy scalars alone share their type."""
    f = Counted(lambda tree: ge2.tree.leaves(tree) and None)
    f(X)
    for _ in range(2):
        f(other)
    assert f.traces == 2


def test_strong_and_weak_scalars():
    f = ge2.jit(lambda x, y: x * y)
    x = np.ones(2, np.float32)
    assert f(x, 2.0).dtype == np.float32
    assert f(x, np.float64(2)).dtype == np.float64
    assert f(x, np.array(2.0)).dtype == np.float64
    assert f(3, 4) == 12
    assert type(f(3, 4)) is int
    assert type(f(3, 0.5)) is float
    assert type(f(True, 2)) is int


def test_settings_that_change_what_is_compiled_are_part_of_the_signature():
    f = Counted(lambda x: x + 1)
    f(X)
    with ge2.config.using(passes_off=("fuse",)):
        np.testing.assert_array_equal(f(X), X + 1)
    f(X)
    assert f.traces == 2


def test_kwargs_in_any_order_are_one_signature():
    """Of a function of `**kw`, which sees the order, they are two."""
    f = Counted(lambda a, b: a - b)
    assert f(a=1, b=2) == f(b=2, a=1) == -1
    assert f.traces == 1
    g = Counted(lambda **kw: kw["a"] - kw["b"])
    assert g(a=1, b=2) == g(b=2, a=1) == -1
    assert g.traces == 2


def test_the_oldest_signature_is_forgotten_first(monkeypatch):
    monkeypatch.setattr(jitted, "TRACES", 2)
    f = Counted(lambda x: x + 1)
    for n in (1, 2, 3):
        f(np.ones(n))
    f(np.ones(3))
    assert f.traces == 3
    f(np.ones(1))
    assert f.traces == 4


# --------------------------------------------------------------------------------- static arguments


def test_static_arguments_by_number_and_by_name():
    def power(x, n):
        return x if n == 1 else x * power(x, n - 1)

    for options in (
        {"static_argnums": 1},
        {"static_argnums": (-1,)},
        {"static_argnames": "n"},
        {"static_argnames": ["n"]},
    ):
        f = Counted(power, **options)
        np.testing.assert_array_equal(f(X, 3), X**3)
        np.testing.assert_array_equal(f(X, n=3), X**3)
        np.testing.assert_array_equal(f(X, 2), X**2)
        assert f.traces == 3, options  # a positional and a keyword argument differ in structure


def test_static_arguments_differ_by_type():
    f = Counted(lambda x, n: x * n, static_argnums=1)
    assert f(1.0, 2) == f(1.0, 2.0) == 2.0
    assert type(f(1, True)) is int
    assert f(1.0, -0.0) == 0.0
    assert str(f(1.0, -0.0)) == "-0.0"
    assert f.traces == 4
    f(1.0, float("nan"))
    f(1.0, float("nan"))
    assert f.traces == 5


@pytest.mark.parametrize("value", [[1], {"a": 1}, X], ids=lambda x: type(x).__name__)
def test_an_unhashable_static_argument_is_named(value):
    with pytest.raises(InputError, match="the static argument sizes of <lambda> cannot be hashed"):
        ge2.jit(lambda x, sizes: x, static_argnums=1)(X, value)


def test_static_arguments_that_are_not_there():
    with pytest.raises(InputError, match=r"static_argnums names argument 3, but .* takes 1"):
        ge2.jit(lambda x: x, static_argnums=3)
    with pytest.raises(
        InputError, match=r"'n', which is no parameter(.|\n)*try  static_argnames='x'"
    ):
        ge2.jit(lambda x: x, static_argnames="n")
    with pytest.raises(InputError, match="ints"):
        ge2.jit(lambda x: x, static_argnums="x")


def test_static_and_donated_exclude_each_other():
    with pytest.raises(InputError, match="argument 0 is both static and donated"):
        ge2.jit(lambda x: x, static_argnums=0, donate_argnums=0)


def test_a_static_argument_left_to_its_default():
    f = ge2.jit(lambda x, n=2: x * n, static_argnames="n")
    assert (f(1.0), f(1.0, 3), f(1.0, n=4)) == (2.0, 3.0, 4.0)


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def test_enums_and_functions_as_arguments():
    f = Counted(lambda x, colour, act: act(x) if colour is Colour.RED else x)
    np.testing.assert_array_equal(f(X, Colour.RED, np.negative), -X)
    np.testing.assert_array_equal(f(X, Colour.BLUE, np.negative), X)
    np.testing.assert_array_equal(f(X, Colour.RED, np.square), X * X)
    f(X, Colour.RED, np.negative)
    assert f.traces == 3


# ------------------------------------------------------------------------------- what may be jitted


def test_as_a_decorator_with_and_without_options():
    @ge2.jit
    def plain(x):
        """Doc."""
        return x + 1

    @ge2.jit(static_argnums=1)
    def powers(x, n):
        return x**n

    assert (plain(1), powers(2.0, 3)) == (2, 8.0)
    assert (plain.__name__, plain.__doc__, plain.__wrapped__(5)) == ("plain", "Doc.", 6)
    assert "jit of plain" in repr(plain)


def test_partials_callables_ufuncs_and_builtins():
    class Adder:
        def __call__(self, x):
            return x + 1

    np.testing.assert_array_equal(ge2.jit(functools.partial(np.subtract, 1.0))(X), 1.0 - X)
    np.testing.assert_array_equal(ge2.jit(Adder())(X), X + 1)
    np.testing.assert_array_equal(ge2.jit(np.sin)(X), np.sin(X))
    np.testing.assert_array_equal(ge2.jit(np.dot)(X, X), X @ X)
    np.testing.assert_array_equal(ge2.jit(operator.add)(X, X), X + X)
    np.testing.assert_array_equal(ge2.jit(ge2.jit(np.cos))(X), np.cos(X))


class Layer:
    def __init__(self, w):
        self.w = w

    @ge2.jit
    def __call__(self, x):
        return x @ self.w

    @ge2.jit(static_argnums=0)
    def static(self, x):
        return x @ self.w

    @staticmethod
    @ge2.jit
    def double(x):
        return 2 * x

    @classmethod
    def scaled(cls, x):
        return 3 * x


@dataclass
class Data:
    w: Any
    name: str = field(default="a", metadata={"static": True})

    @ge2.jit
    def apply(self, x):
        return x @ self.w if self.name == "a" else -(x @ self.w)


def test_methods():
    layer = Layer(X)
    with pytest.raises(
        InputError,
        match=r"self of __call__ .* is a Layer(.|\n)*node_class above Layer(.|\n)*static_argnums",
    ):
        layer(X)
    assert layer.static(X) == X @ X
    assert Layer.double(2) == layer.double(2) == 4
    assert ge2.jit(Layer.scaled)(2) == 6


def test_a_method_of_a_dataclass_sees_its_changes():
    data = Data(X)
    assert data.apply(X) == X @ X
    data.w = X * 2
    assert data.apply(X) == X @ X * 2
    data.name = "b"
    assert data.apply(X) == -(X @ X) * 2
    assert "dot_general" in str(data.apply.trace(X))


def test_a_static_self_is_an_object_by_its_hash():
    one, two = Layer(X), Layer(X * 2)
    assert one.static(X) * 2 == two.static(X)


@pytest.mark.parametrize(
    "wrong",
    [3, X, None.__class__, classmethod(len)],
    ids=["number", "array", "class", "classmethod"],
)
def test_what_is_no_function(wrong):
    if isinstance(wrong, type):
        assert callable(ge2.jit(wrong))
        return
    with pytest.raises(InputError, match="jit"):
        ge2.jit(wrong)


def test_generators_and_coroutines_are_refused():
    def generator(x):
        yield x

    async def coroutine(x):
        return x

    for function in (generator, coroutine):
        with pytest.raises(InputError, match=function.__name__):
            ge2.jit(function)


def test_devices():
    assert ge2.jit(lambda x: x + 1, device="cpu")(1) == 2
    with pytest.raises(InputError, match="no device 'tpu'"):
        ge2.jit(lambda x: x, device="tpu")


# ---------------------------------------------------------------------------------- wrong arguments


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.array([None]), "object"),
        (np.array(["a"]), "<U1"),
        (np.array(["2020-01-01"], "M8[D]"), r"datetime64\[D\]"),
        (np.ma.array([1.0], mask=[True]), "masked"),
        (np.ones(2, ">f8"), "another order"),
        (np.zeros(1, [("a", "f4")]), "booleans and numbers"),
        (np.ones(1, np.longdouble), "booleans and numbers"),
        ({1, 2}, "a set"),
        (object(), "an object"),
        (Layer(X), "a Layer"),
        (np.random.default_rng(), "random generator"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)  # fmt: skip
def test_a_wrong_argument_is_named_with_its_place(value, words):
    f = ge2.jit(lambda params, x: x)
    with pytest.raises(
        InputError,
        match=rf"params\['w'\]\[1\] of <lambda> .*{words}(.|\n)*at   test_jit.py:\d+ in test_a(.|\n)*try",
    ) as error:
        f({"w": [X, value]}, X)
    assert isinstance(error.value, TypeError)


def test_keyword_arguments_are_named_too():
    with pytest.raises(InputError, match=r"rate of .* is a set"):
        ge2.jit(lambda x, rate: x)(X, rate=set())


def test_other_arrays_come_through_dlpack():
    class Foreign:
        def __init__(self, x):
            self.x = x

        def __dlpack__(self, **options):
            return self.x.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.x.__dlpack_device__()

    np.testing.assert_array_equal(ge2.jit(lambda x: x * 2)(Foreign(X)), X * 2)


@pytest.mark.parametrize("error", [BufferError, RuntimeError, ValueError, TypeError])
def test_arrays_that_dlpack_does_not_carry_are_refused_with_the_reason(error):
    class Foreign:
        def __dlpack__(self, **options):
            raise error("it is sparse")

        def __dlpack_device__(self):
            return 1, 0

    with pytest.raises(ge2.errors.InputError, match="x of .* is a Foreign, .*: it is sparse"):
        ge2.jit(lambda x: x)(Foreign())


def test_arrays_of_others_inside_a_trace_are_refused():
    class Foreign:  # of PyTorch, say, whose arrays have a method `type`
        shape, dtype, __array_ufunc__ = (3,), "float", None

        def type(self):
            return "float"

        def __dlpack__(self):
            """As a transform that is not compiled does not call."""

    for transform in (ge2.grad, ge2.vmap, lambda f: lambda x: ge2.vjp(f, x)):
        with pytest.raises(
            ge2.errors.InputError, match="x of .* is a Foreign, .*\n.*\n  try  ge2.jit"
        ):
            transform(lambda x: x)(Foreign())
    for f in (lambda x: x + Foreign(), lambda x: np.float64(1) * x < Foreign()):
        with pytest.raises(ge2.errors.InputError, match="Foreign is neither an array nor a number"):
            ge2.jit(f)(X)


def test_array_kinds_that_are_arrays(tmp_path):
    mapped = np.memmap(tmp_path / "x", np.float64, "w+", shape=(3,))
    mapped[:] = X
    readonly = X.copy()
    readonly.flags.writeable = False
    f = ge2.jit(lambda x: x * 2)
    for x in (mapped, readonly, np.repeat(X, 2)[::2], X[::-1][::-1]):
        y = f(x)
        assert type(y) is np.ndarray
        np.testing.assert_array_equal(y, X * 2)


# ------------------------------------------------------------------------------------------ results


Pair = namedtuple("Pair", "a b")


def test_results_have_the_functions_structure():
    f = ge2.jit(lambda x: {"pair": Pair(x, None), "list": [x + 1, 2.0, (3,)]})
    y = f(X)
    assert type(y["pair"]) is Pair
    assert y["pair"].b is None
    assert y["list"][1:] == [2.0, (3,)]
    np.testing.assert_array_equal(y["list"][0], X + 1)
    assert ge2.jit(lambda x: None)(X) is None


@pytest.mark.parametrize(
    "wrong", ["a", object(), np.float32, np.array(["a"])], ids=lambda x: type(x).__name__
)
def test_a_result_that_is_no_array(wrong):
    def function(x):
        return {"y": wrong}

    with pytest.raises(TypeError, match="function(.|\n)*try"):
        ge2.jit(function)(X)


def test_results_are_owned_and_alias_nothing():
    constant = np.arange(3.0)
    f = ge2.jit(lambda x: (x, x, x[:2], x.T, constant, x + 0, np.broadcast_to(x[:1], (4,))))
    found = f(X)
    for i, y in enumerate(found):
        assert y.base is None
        assert y.flags.writeable
        assert y.flags.c_contiguous
        assert not any(np.shares_memory(y, z) for z in (X, constant, *found[:i]))
    again = f(X)
    for y in found:
        y[...] = -1
    np.testing.assert_array_equal(again[0], X)


def test_an_output_is_not_overwritten_by_the_next_call():
    f = ge2.jit(lambda x: np.sin(x) * 2)
    first = f(X)
    kept = first.copy()
    f(X + 1)
    np.testing.assert_array_equal(first, kept)


def test_the_users_errors_come_through_unchanged():
    class Mine(Exception):
        pass

    mine = Mine("what the user says")

    def function(x):
        raise mine

    f = ge2.jit(function)
    for _ in range(2):
        with pytest.raises(Mine) as error:
            f(X)
        assert error.value is mine
        assert error.traceback[-1].name == "function"


# ------------------------------------------------------------------------------------------ nesting


def test_inside_another_jit_it_is_one_equation():
    inner = ge2.jit(lambda x: np.sin(x) * 2)
    outer = Counted(lambda x: inner(x) + inner(x + 1))
    np.testing.assert_allclose(outer(X), 2 * np.sin(X) + 2 * np.sin(X + 1))
    text = str(ge2.make_jaxpr(lambda x: inner(x) + 1)(X))
    assert text.count("jit[") == 1
    assert "title='<lambda>'" in text


def test_under_transforms_it_changes_nothing():
    def f(x):
        return np.sum(np.tanh(x) ** 2)

    g = ge2.jit(f)
    np.testing.assert_allclose(ge2.grad(g)(X), ge2.grad(f)(X))
    np.testing.assert_allclose(ge2.jit(ge2.grad(g))(X), ge2.grad(f)(X))
    np.testing.assert_allclose(ge2.hessian(g)(X), ge2.hessian(f)(X))
    np.testing.assert_allclose(ge2.vmap(g)(np.stack([X, 2 * X])), [f(X), f(2 * X)])
    np.testing.assert_allclose(ge2.jvp(g, (X,), (X,))[1], ge2.jvp(f, (X,), (X,))[1])


def test_a_nested_call_and_a_direct_one_share_the_trace():
    inner = Counted(lambda x: x * 2)
    ge2.jit(lambda x: inner(x) + 1)(X)
    inner(X)
    assert inner.traces == 1


def test_a_function_that_calls_itself():
    @functools.partial(ge2.jit, static_argnums=1)
    def power(x, n):
        return x if n == 1 else x * power(x, n - 1)

    np.testing.assert_array_equal(power(X, 5), X**5)


def test_a_tracer_of_an_outer_function_is_not_remembered():
    inner = None

    def outer(x):
        nonlocal inner
        inner = inner or ge2.jit(lambda y: y * x)
        return inner(2.0).sum()

    np.testing.assert_array_equal(ge2.grad(outer)(X), [2.0, 2.0, 2.0])
    inner = None
    np.testing.assert_array_equal(ge2.jit(outer)(X), 2 * X.sum())


def test_a_leaked_tracer_is_no_argument():
    kept = []
    ge2.jit(lambda x: kept.append(x))(X)
    with pytest.raises(UnexpectedTracerError, match="outlived"):
        ge2.jit(lambda x: x)(kept[0])


def test_a_report_says_that_jit_was_off():
    f = ge2.jit(lambda x: x + 1)
    with ge2.disable_jit():
        f(X)
        with pytest.raises(InputError, match="it ran as plain Python: jit is off"):
            f.report()
    with pytest.raises(InputError, match="has not been called yet\n"):
        f.report()


def test_disable_jit_runs_the_function_itself():
    seen = []

    def function(x):
        seen.append(type(x))
        return x if x.sum() > 0 else -x

    with ge2.disable_jit():
        np.testing.assert_array_equal(ge2.jit(function)(-X), X)
    assert seen == [np.ndarray]
