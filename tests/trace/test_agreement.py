"""A function gives the same traced as run plainly:

NumPy's functions, operators and methods, all dtypes.
"""

from __future__ import annotations

import inspect
import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ge2
from ge2.base.errors import Ge2Error, NoRuleError
from tests.exhaustive import examples

DTYPES = ("?", "i1", "u2", "i4", "i8", "u8", "f2", "f4", "f8", "c8", "c16")

ONE: dict[str, Callable[[Any], Any]] = {
    "-x": operator.neg,
    "+x": operator.pos,
    "abs(x)": abs,
    "~x": operator.invert,
    "x.T": lambda x: x.T,
    "x.real": lambda x: x.real,
    "x.imag": lambda x: x.imag,
    "x.sum()": lambda x: x.sum(),
    "x.sum(0)": lambda x: x.sum(0),
    "x.sum(axis=-1, keepdims=True)": lambda x: x.sum(axis=-1, keepdims=True),
    "x.prod(-1)": lambda x: x.prod(-1),
    "x.max()": lambda x: x.max(),
    "x.min(0)": lambda x: x.min(0),
    "x.mean(0)": lambda x: x.mean(0),
    "x.var(ddof=0)": lambda x: x.var(ddof=0),
    "x.std(0)": lambda x: x.std(0),
    "x.any()": lambda x: x.any(),
    "x.all(0)": lambda x: x.all(0),
    "x.argmax()": lambda x: x.argmax(),
    "x.argmin(-1)": lambda x: x.argmin(-1),
    "x.cumsum(0)": lambda x: x.cumsum(0),
    "x.cumprod()": lambda x: x.cumprod(),
    "x.clip(0, 2)": lambda x: x.clip(0, 2),
    "x.round()": lambda x: x.round(),
    "x.ravel()": lambda x: x.ravel(),
    "x.flatten()": lambda x: x.flatten(),
    "x.reshape(-1, 1)": lambda x: x.reshape(-1, 1),
    "x.reshape((1, -1))": lambda x: x.reshape((1, -1)),
    "x.transpose()": lambda x: x.transpose(),
    "x.swapaxes(0, -1)": lambda x: x.swapaxes(0, -1),
    "x.squeeze()": lambda x: x.squeeze(),
    "x.repeat(2, 0)": lambda x: x.repeat(2, 0),
    "x.take([0, -1], 0)": lambda x: x.take([0, -1], 0),
    "x.copy()": lambda x: x.copy(),
    "x.astype('f4')": lambda x: x.astype("f4"),
    "x.conj()": lambda x: x.conj(),
    "x.conjugate()": lambda x: x.conjugate(),
    "x.argsort(0)": lambda x: x.argsort(0, stable=True),
    "x.dot(x.T)": lambda x: x.dot(x.T),
    "x[0]": lambda x: x[0],
    "x[..., ::-1]": lambda x: x[..., ::-1],
    "x[None]": lambda x: x[None],
    "x[[0, -1]]": lambda x: x[[0, -1]],
    "x[-1, ..., None]": lambda x: x[-1, ..., None],
    "x.diagonal()": lambda x: x.diagonal(),
    "x.trace()": lambda x: x.trace(),
    "np.sin": np.sin,
    "np.exp": np.exp,
    "np.sqrt": np.sqrt,
    "np.tanh": np.tanh,
    "np.square": np.square,
    "np.sign": np.sign,
    "np.floor": np.floor,
    "np.isnan": np.isnan,
    "np.logical_not": np.logical_not,
    "np.cumsum": np.cumsum,
    "np.sort": np.sort,
    "np.diff": np.diff,
    "np.zeros_like": np.zeros_like,
    "np.ones_like(x, int)": lambda x: np.ones_like(x, int),
    "np.full_like": lambda x: np.full_like(x, 1),
    "np.stack": lambda x: np.stack([x, x]),
    "np.concatenate": lambda x: np.concatenate([x, x], -1),
    "np.split": lambda x: np.split(x, 1)[0],
    "np.where": lambda x: np.where(x > 0, x, 1) if x.dtype != bool else np.where(x, x, 0),
    "np.mean": np.mean,
    "np.pad": lambda x: np.pad(x, 1),
    "np.tile": lambda x: np.tile(x, 2),
    "np.roll": lambda x: np.roll(x, 1),
    "np.outer": lambda x: np.outer(x, x),
    "np.tril": lambda x: np.tril(np.outer(x, x)),
    "np.max": lambda x: np.max(x, axis=0, initial=1),
    "np.sum(where)": lambda x: np.sum(x, where=x > 0),
    "np.einsum": lambda x: np.einsum("...i,...i->...", x, x),
    "x[x > 0] = 0": lambda x: set_where(x),
    "len": lambda x: x * len(x),
    "shape": lambda x: x.reshape(x.shape[::-1]) * x.ndim + x.size,
}
TWO: dict[str, Callable[[Any, Any], Any]] = {
    "x + y": operator.add,
    "x - y": operator.sub,
    "x * y": operator.mul,
    "x / y": operator.truediv,
    "x // y": operator.floordiv,
    "x % y": operator.mod,
    "x < y": operator.lt,
    "x >= y": operator.ge,
    "x == y": operator.eq,
    "x != y": operator.ne,
    "x & y": operator.and_,
    "x | y": operator.or_,
    "x ^ y": operator.xor,
    "x @ y.T": lambda x, y: x @ y.T,
    "np.maximum": np.maximum,
    "np.arctan2": np.arctan2,
    "np.where(x > y)": lambda x, y: np.where(x == y, x, y),
    "np.logaddexp": np.logaddexp,
    "np.dot": lambda x, y: np.dot(x, y.T),
    "np.copysign": np.copysign,
    "divmod": lambda x, y: divmod(x, y)[1],
    "np.stack": lambda x, y: np.stack(np.broadcast_arrays(x, y)),
    "x[0] * y": lambda x, y: x[0] * y,
    "np.add.reduce": lambda x, y: np.add.reduce(x + y),
    "np.multiply.outer": np.multiply.outer,
    "np.add.accumulate": lambda x, y: np.add.accumulate(x + y),
    "np.append": np.append,
    "x * 2 + y": lambda x, y: x * 2 + y,
    "1.5 * x - y": lambda x, y: 1.5 * x - y,
    "x ** 3": lambda x, y: x**3,
    "y - np.float32(2)": lambda x, y: y - np.float32(2),
    "np.inner": np.inner,
    "np.vdot": np.vdot,
    "np.tensordot": lambda x, y: np.tensordot(x, y.T, 1),
    "np.hypot": np.hypot,
}


def set_where(x: Any) -> Any:
    y = x.copy()
    y[y == 1] = 0
    return y


def arrays(draw: Any) -> Any:
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(st.sampled_from([(2, 3), (3,), (1, 3), (3, 1), (0, 3)]))
    low = 0 if dtype.kind in "u?" else -3
    values = draw(st.lists(st.integers(low, 4), min_size=6, max_size=6))
    return np.resize(np.array(values) / (2 if dtype.kind in "fc" else 1), shape).astype(dtype)


def plainly(f: Callable[..., Any], *args: Any) -> Any:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return f(*args)


def agrees(got: Any, want: Any, text: str) -> None:
    want = np.asarray(want)
    got = np.asarray(got)
    assert (got.dtype, got.shape) == (want.dtype, want.shape), text
    if want.dtype.kind in "fc":
        resolution = np.finfo(want.dtype).eps
        np.testing.assert_allclose(
            got, want, rtol=16 * resolution, atol=16 * resolution, err_msg=text
        )
    else:
        np.testing.assert_array_equal(got, want, err_msg=text)


@settings(max_examples=examples(500))
@given(st.data())
def test_small_functions_agree_with_numpy(data: st.DataObject) -> None:
    x, y = arrays(data.draw), arrays(data.draw)
    names = [data.draw(st.sampled_from([*ONE, *TWO])) for _ in range(data.draw(st.integers(1, 4)))]

    def f(x: Any, y: Any) -> Any:
        for name in names:
            if name in ONE:
                x = ONE[name](x)
            else:
                x, y = TWO[name](x, y), x
            x = np.atleast_1d(x)
        return x

    text = f"{names} of {x!r}, {y!r}"
    try:
        want = plainly(f, x, y)
    except (TypeError, ValueError, IndexError, OverflowError):
        with pytest.raises((TypeError, ValueError, IndexError, OverflowError)):
            ge2.make_jaxpr(f)(x, y)
        return
    if np.asarray(want).dtype.kind not in "?iufc" or np.asarray(want).dtype == np.longdouble:
        return
    closed = ge2.make_jaxpr(f)(x, y)
    agrees(plainly(closed, x, y)[0], want, text)


@pytest.mark.exhaustive("name")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ONE)
def test_each_of_one_array(name: str, dtype: str) -> None:
    x = np.array([[1, 0, 2], [3, 1, 0]]).astype(dtype)
    try:
        want = plainly(ONE[name], x)
    except (TypeError, ValueError, OverflowError):
        with pytest.raises((TypeError, ValueError, OverflowError)):
            ge2.make_jaxpr(ONE[name])(x)
        return
    agrees(plainly(ge2.make_jaxpr(ONE[name])(x), x)[0], want, name)


@pytest.mark.exhaustive("name")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", TWO)
def test_each_of_two_arrays_of_any_dtypes(name: str, dtype: str) -> None:
    x = np.array([[1, 1, 2], [3, 1, 1]]).astype(dtype)
    for other in DTYPES:
        y = np.array([[1, 2, 1], [1, 1, 3]]).astype(other)
        try:
            want = plainly(TWO[name], x, y)
        except (TypeError, ValueError):
            with pytest.raises((TypeError, ValueError)):
                ge2.make_jaxpr(TWO[name])(x, y)
            continue
        agrees(
            plainly(ge2.make_jaxpr(TWO[name])(x, y), x, y)[0], want, f"{name} of {dtype}, {other}"
        )


def test_every_method_and_attribute_of_an_array_is_there_or_says_that_it_is_not() -> None:
    def f(x: Any) -> Any:
        for name in dir(np.ndarray):
            if name.startswith("__"):
                continue
            try:
                getattr(x, name)
            except AttributeError as error:
                absent[name] = str(error)
        return x

    absent: dict[str, str] = {}
    ge2.make_jaxpr(f)(np.ones((3, 2)))
    for name, said in absent.items():
        assert (
            f"numpy.ndarray.{name} is not among the functions that ge2 traces\n  at   test_agreement.py:"
            in said
        )
    assert set(absent) == {
        "base", "byteswap", "ctypes", "data", "device", "dump", "dumps", "getfield",
        "resize", "setfield", "setflags", "to_device", "tobytes", "tofile",
    }  # fmt: skip


def test_arguments_of_methods_are_numpys_in_the_same_order() -> None:
    x = np.arange(6.0).reshape(2, 3)
    out, called = np.zeros((1, 3)), {
        "sum": (0, None, None, True), "prod": (0, None, None, True), "mean": (0, None, None, True),
        "max": (0, None, True, 2.0), "min": (0, None, True, 2.0, x > 1),
        "var": (0, None, None, 1, True), "std": (0, None, None, 1, True),
        "compress": ([True, False], 0, None),
    }  # fmt: skip
    for name, args in called.items():
        want = getattr(x, name)(*args)
        got = ge2.make_jaxpr(lambda x: getattr(x, name)(*args))(x)(x)[0]  # noqa: B023
        agrees(got, want, name)
    agrees(ge2.make_jaxpr(lambda x, y: (x.sum(0, None, y, True), y)[1] * 1)(x, out)(x, out)[-1],
           x.sum(0, keepdims=True), "out")  # fmt: skip


def test_the_array_namespace_is_ge2_numpy() -> None:
    def f(x: Any) -> Any:
        xp = x.__array_namespace__()
        assert xp is ge2.numpy
        return xp.sum(xp.exp(x), axis=0)

    np.testing.assert_allclose(ge2.make_jaxpr(f)(np.ones(3))(np.ones(3))[0], 3 * np.e)


def test_a_numpy_function_that_is_not_traced_is_named_with_the_way_to_add_it() -> None:
    with pytest.raises(NoRuleError) as caught:
        ge2.make_jaxpr(lambda x: np.emath.logn(2, x))(np.ones(3))
    what, where, fix = str(caught.value).split("\n")
    assert what.endswith(".logn is not among the functions that ge2 traces")
    assert where.startswith("  at   test_agreement.py:")
    assert "docs/functions.md" in fix


def test_an_array_of_a_foreign_class_may_answer_itself() -> None:
    class Own:
        def __radd__(self, other: Any) -> str:
            return f"own {other!r}"

    seen: list[Any] = []
    ge2.make_jaxpr(lambda x: (seen.append(x + Own()), x)[1])(np.ones(2))
    assert seen == ["own <x, traced f64[2]>"]


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x @ np.ones((4, 4)),
        lambda x: x + np.ones(4),
        lambda x: np.concatenate([x, np.ones((2, 2))]),
        lambda x: x.reshape(5),
        lambda x: x[7],
        lambda x: x[0, 0, 0],
        lambda x: x.sum(axis=3),
        lambda x: x & 1,
        lambda x: np.stack([x, np.ones(3)]),
        lambda x: np.broadcast_to(x, (2, 2)),
        lambda x: x.transpose(0, 0),
        lambda x: np.bitwise_and(x, x),
        lambda x: ge2.numpy.add(x, np.array(["a"])),
        lambda x: x + "a",
        lambda x: np.take(x, [0.5]),
        lambda x: x.astype("M8[s]"),
    ],
)
def test_errors_carry_the_users_line_first_and_a_way_out(f: Any) -> None:
    with pytest.raises((Ge2Error, TypeError)) as caught:
        ge2.make_jaxpr(f)(np.ones((2, 3)))
    lines = str(caught.value).split("\n")
    line = inspect.getsourcelines(f)[1]
    assert any(
        s.startswith("  at   test_agreement.py:") and s.endswith("in <lambda>") for s in lines
    ), lines
    assert line
    assert any(s.startswith("  try  ") for s in lines), lines


@pytest.mark.parametrize("other", [None, "auto", {}, object()], ids=lambda x: type(x).__name__)
def test_no_element_equals_what_knows_no_numbers(other: Any) -> None:
    for x in (np.arange(3.0), np.arange(4).reshape(2, 2), np.float32(1)):
        same, differs = ge2.jit(lambda x: (x == other, x != other))(x)
        agrees(same, x == other, "==")
        agrees(differs, x != other, "!=")
    known = ge2.jit(lambda x, n: x[1] if x[0] == other or n == other else x[0])
    assert known(np.arange(3.0), 2.0) == 0
    with pytest.raises(ge2.errors.NotAValue):
        ge2.jit(lambda x: x == [other, 1.0])(np.arange(2.0))


def test_a_traced_array_is_contiguous_as_results_are() -> None:
    def f(x: Any) -> Any:
        x = x if x.flags["C_CONTIGUOUS"] else np.ascontiguousarray(x)
        assert x.flags.writeable and x[0].flags.f_contiguous and not x.flags.f_contiguous
        return x

    assert np.array_equal(ge2.jit(f)(np.ones((2, 3))), np.ones((2, 3)))
