"""Small programs that read something from outside: a change is seen as NumPy
sees it, or refused by name.
"""

from __future__ import annotations

import argparse
import array
import collections
import contextvars
import ctypes
import datetime
import decimal
import functools
import operator
import os
import pathlib
import random
import secrets
import sys
import time
import types
import uuid
import weakref
from dataclasses import dataclass
from fractions import Fraction
from time import perf_counter as tick
from typing import Any, NamedTuple

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.dispatch.closures import capture, unchanged
from ge2.errors import ImpureError, InputError, TracerArrayConversionError

DRAWN = np.random.default_rng(15)
X = DRAWN.normal(size=3)
RATE = 2.0
FILE = pathlib.Path(__file__)
VARIABLE: contextvars.ContextVar[Any] = contextvars.ContextVar("VARIABLE")


class Slots:
    __slots__ = ("later", "rate", "w")

    def __init__(self) -> None:
        self.rate, self.w = 2.0, np.ones(3)


class MoreSlots(Slots):
    bias = 1.0


class Made:
    """An object that its class makes by code of its own."""

    def __new__(cls) -> Made:
        made = object.__new__(cls)
        made.rate = 2.0
        return made

    rate: float


class Described:
    def __get__(self, owner: Any, cls: Any = None) -> Any:
        return STATE["described"]


STATE = {"described": 2.0}


class Kind(type):
    rate = 2.0

    @property
    def described(cls) -> Any:
        return STATE["described"]


class Holder(metaclass=Kind):
    w = np.ones(3)
    scale = 2.0
    described_here = Described()

    @property
    def state(self) -> Any:
        return STATE["described"]

    def times(self, x: Any) -> Any:
        return x * STATE["described"]


def double(x: Any) -> Any:
    return x * 2


def triple(x: Any) -> Any:
    return x * 3


def rate_of(thing: Any, x: Any) -> Any:
    return x * thing.rate


def scale_of(thing: Any, x: Any) -> Any:
    return x * thing.scale


def buffer() -> Any:
    return (ctypes.c_double * 3)(1.0, 2.0, 3.0)


def module() -> Any:
    found: Any = types.ModuleType("settings_of_a_user")
    found.rate, found.w = 2.0, np.ones(3)
    sys.modules["settings_of_a_user"] = found
    return found


def importing(x: Any, _: Any) -> Any:
    import settings_of_a_user

    return x * settings_of_a_user.rate + settings_of_a_user.w.T


def importing_from(x: Any, _: Any) -> Any:
    from settings_of_a_user import rate, w

    return x * rate + w[::-1]


def with_attribute(kind: Any = types.SimpleNamespace, **attributes: Any) -> Any:
    return kind(**attributes)


def callee() -> Any:
    return types.FunctionType(double.__code__, globals())


class Scaled:
    def __init__(self) -> None:
        self.rate, self.w = 2.0, np.ones(3)

    def times(self, x: Any) -> Any:
        return x * self.rate

    def plus(self, x: Any) -> Any:
        return x + self.w.T


class Lazy:
    def __init__(self) -> None:
        self.held = {"rate": 2.0}

    def __getattr__(self, name: str) -> Any:
        return self.held[name]  # a KeyError where AttributeError is asked


def scaled_by(by: Any, x: Any) -> Any:
    return x * by[0]


def matched(x: Any, o: Any) -> Any:
    match o:
        case Slots(rate=rate):
            return x * rate


@functools.singledispatch
def dispatched(x: Any) -> Any:
    return x


@dispatched.register(np.ndarray)
def _(x: Any) -> Any:
    return x * STATE["described"]


def put(name: str, value: Any) -> Any:
    return lambda thing: setattr(thing, name, value)


def put_item(at: Any, value: Any) -> Any:
    return lambda thing: operator.setitem(thing, at, value)


def put_state(_: Any) -> None:
    STATE["described"] += 1.0


ONES = 4 * np.ones(3)
PAIRS = [("a", "f8"), ("b", "i4")]
getter = operator.attrgetter("rate")

# name: what is outside, the program, the change. `o` is closed over; the
# programs run as written in NumPy.
SEEN: dict[str, tuple[Any, Any, Any]] = {
    "a number in slots": (Slots, lambda x, o: x * o.rate, put("rate", 5.0)),
    "an array in slots": (Slots, lambda x, o: x @ o.w.T, put("w", ONES)),
    "an array in slots, in place": (Slots, lambda x, o: x * o.w[::-1], lambda o: put_item(0, 9.0)(o.w)),
    "slots handed on": (Slots, lambda x, o: rate_of(o, x), put("rate", 5.0)),
    "slots of a base": (MoreSlots, lambda x, o: x * o.rate + o.bias, put("rate", 5.0)),
    "a dict beside slots": (MoreSlots, lambda x, o: x * o.bias, put("bias", 5.0)),
    "a class with __new__": (Made, lambda x, o: rate_of(o, x), put("rate", 5.0)),
    "a column": (lambda: np.zeros(3, PAIRS), lambda x, o: x + o["a"], put_item("a", 4.0)),
    "a record": (lambda: np.rec.array([(1.0, 2)] * 3, dtype=PAIRS), lambda x, o: x * o.a, put_item("a", 4.0)),
    "an array of objects": (lambda: np.array([1.0, "a"], object), lambda x, o: x * o[0], put_item(0, 3.0)),
    "an array of dates": (
        lambda: np.array(["2020-01-01"], "M8[D]"), lambda x, o: x * o[0].astype(int),
        put_item(0, np.datetime64("2021-01-01")),
    ),
    "an array of strings": (lambda: np.array(["a"]), lambda x, o: x * (o[0] == "a"), put_item(0, "b")),
    "long doubles": (lambda: np.ones(3, np.longdouble), lambda x, o: x * float(o[0]), put_item(0, 3.0)),
    "an array of ctypes": (buffer, lambda x, o: x * o[1], put_item(1, 5.0)),
    "a number of ctypes": (lambda: ctypes.c_double(2.0), lambda x, o: x * o.value, put("value", 5.0)),
    "a view of memory": (lambda: memoryview(bytearray(b"\2")), lambda x, o: x * o[0], put_item(0, 4)),
    "bytes": (lambda: bytearray(b"\2"), lambda x, o: x * o[0], put_item(0, 4)),
    "an array of Python's": (lambda: array.array("d", [2.0]), lambda x, o: x * o[0], put_item(0, 4.0)),
    "a namespace": (lambda: with_attribute(rate=2.0), lambda x, o: x * o.rate, put("rate", 4.0)),
    "a namespace's array": (lambda: with_attribute(w=ONES), lambda x, o: x @ o.w.T, put("w", X)),
    "a namespace handed on": (
        lambda: with_attribute(argparse.Namespace, rate=2.0), lambda x, o: rate_of(o, x), put("rate", 4.0),
    ),
    "an attribute by name": (Slots, lambda x, o: x * getattr(o, "rate"), put("rate", 4.0)),  # noqa: B009
    "attrgetter": (Slots, lambda x, o: x * operator.attrgetter("rate")(o), put("rate", 4.0)),
    "attrgetter, made outside": (Slots, lambda x, o: x * getter(o), put("rate", 4.0)),
    "a module": (module, lambda x, o: x * o.rate + o.w.T, put("w", ONES)),
    "a module by name": (module, lambda x, o: x * getattr(o, "rate"), put("rate", 4.0)),  # noqa: B009
    "a module handed on": (module, lambda x, o: rate_of(o, x), put("rate", 4.0)),
    "an import inside": (module, importing, put("rate", 4.0)),
    "an import inside, of an array": (module, importing, put("w", np.arange(3.0))),
    "names imported inside": (module, importing_from, put("rate", 4.0)),
    "a context variable": (lambda: VARIABLE, lambda x, o: x * o.get(2.0), lambda o: o.set(5.0)),
    "a context variable's array": (lambda: VARIABLE, lambda x, o: x * o.get(X), lambda o: o.set(ONES)),
    "a descriptor": (Holder, lambda x, o: x * o.described_here, put_state),
    "a descriptor of a class": (lambda: Holder, lambda x, o: x * o.described_here, put_state),
    "a property": (Holder, lambda x, o: x * o.state, put_state),
    "a method of an object made inside": (lambda: Holder, lambda x, o: o().times(x), put_state),
    "a property of a metaclass": (lambda: Holder, lambda x, o: x * o.described, put_state),
    "an attribute of a metaclass": (
        lambda: Holder, lambda x, o: x * o.rate, lambda _: put("rate", 7.0)(Kind),
    ),
    "a class": (lambda: Holder, lambda x, o: x * o.scale, put("scale", 6.0)),
    "a class handed on": (lambda: Holder, lambda x, o: scale_of(o, x), put("scale", 8.0)),
    "the class of an object": (Holder, lambda x, o: scale_of(o, x), lambda o: put("scale", 9.0)(Holder)),
    "an array of a class": (lambda: Holder, lambda x, o: x * o.w.T, lambda o: put_item(0, 3.0)(o.w)),
    "the code of a function": (callee, lambda x, o: o(x), put("__code__", triple.__code__)),
    "an attribute of a function": (
        lambda: put("rate", 2.0)(double) or double, lambda x, o: x * o.rate, put("rate", 4.0),
    ),
    "a ChainMap": (lambda: collections.ChainMap({"a": 2.0}), lambda x, o: x * o["a"], put_item("a", 4.0)),
    "a deque of arrays": (
        lambda: collections.deque([np.ones(3)]), lambda x, o: x * o[0], lambda o: put_item(0, 3.0)(o[0]),
    ),
    "a method": (lambda: Scaled().times, lambda x, o: o(x), lambda o: put("rate", 4.0)(o.__self__)),
    "a method's array": (
        lambda: Scaled().plus, lambda x, o: o(x), lambda o: put_item(0, 9.0)(o.__self__.w),
    ),
    "a method in a table": (
        lambda: {"f": [Scaled().times]}, lambda x, o: o["f"][0](x),
        lambda o: put("rate", 4.0)(o["f"][0].__self__),
    ),
    "a method in an attribute": (
        lambda: with_attribute(f=Scaled().plus), lambda x, o: o.f(x),
        lambda o: put("w", X)(o.f.__self__),
    ),
    "a partial in a table": (
        lambda: [functools.partial(scaled_by, [2.0])], lambda x, o: o[0](x),
        lambda o: put_item(0, 4.0)(o[0].args[0]),
    ),
    "a partial's array in an attribute": (
        lambda: with_attribute(f=functools.partial(scaled_by, [np.ones(3)])), lambda x, o: o.f(x),
        lambda o: put_item(0, 4.0)(o.f.args[0][0]),
    ),
    "a method of a dict": (
        lambda: {"a": 2.0}.get, lambda x, o: x * o("a"), lambda o: put_item("a", 4.0)(o.__self__),
    ),
    "a method of an array": (
        lambda: np.ones(3).dot, lambda x, o: x * o(x), lambda o: put_item(0, 4.0)(o.__self__),
    ),
    "an attribute by name in a generator": (
        Slots, lambda x, o: sum(x * getattr(o, name) for name in ("rate",)), put("rate", 4.0),
    ),
    "an attribute by getattr under another name": (
        lambda: (getattr, Slots()), lambda x, o: x * o[0](o[1], "rate"),
        lambda o: put("rate", 4.0)(o[1]),
    ),
    "a pattern": (Slots, matched, put("rate", 4.0)),
    "functions by type": (
        lambda: dispatched, lambda x, o: o(x), lambda o: put_state(o) or o.register(float, double),
    ),
    "a polynomial": (lambda: np.poly1d([1.0, 2.0]), lambda x, o: o(x), put_item(1, 5.0)),
    "a polynomial's coefficient": (
        lambda: np.polynomial.Polynomial([1.0, 2.0]), lambda x, o: x * o.coef[1],
        lambda o: put_item(1, 5.0)(o.coef),
    ),
    "an object that makes up its attributes": (
        Lazy, lambda x, o: x * o.rate, lambda o: put_item("rate", 4.0)(o.held),
    ),
    "frozen keys": (lambda: {"a": frozenset([0.0])}, lambda x, o: x * np.copysign(1, next(iter(o["a"]))),
                    put_item("a", frozenset([-0.0]))),
}  # fmt: skip


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(sys.modules, "settings_of_a_user", types.ModuleType("settings_of_a_user"))
    monkeypatch.setitem(STATE, "described", 2.0)
    monkeypatch.setattr(Holder, "scale", 2.0)
    monkeypatch.setattr(Holder, "w", np.ones(3))
    monkeypatch.setattr(Kind, "rate", 2.0)
    with config.using(executor="reference"):
        yield


def sees(call: Any, plain: Any, change: Any) -> None:
    """That the calls are NumPy's before a change, after it, and again; and
    that the change matters.
    """
    before = plain(X)
    for _ in range(4):  # from the third call on all is compared by code of its own
        np.testing.assert_allclose(call(X), before)
    change()
    after = plain(X)
    assert not np.allclose(before, after)
    np.testing.assert_allclose(call(X), after)
    np.testing.assert_allclose(call(X), after)


@pytest.mark.parametrize("name", SEEN)
def test_a_change_outside_is_seen(name: str) -> None:
    make, f, change = SEEN[name]

    def run() -> None:
        thing = make()
        sees(ge2.jit(lambda x: f(x, thing)), lambda x: f(x, thing), lambda: change(thing))

    contextvars.copy_context().run(run)


def test_the_view_of_a_dict_that_cannot_be_written() -> None:
    inner = {"w": np.ones(3), "rate": 2.0}
    view = types.MappingProxyType(inner)
    jitted = ge2.jit(lambda x: x * view["rate"] + view["w"].T)
    for name, value in (("rate", 5.0), ("w", ONES), ("rate", 2.0)):
        sees(
            jitted,
            lambda x: x * inner["rate"] + inner["w"],
            lambda n=name, v=value: inner.update({n: v}),
        )
    inner["w"][:] = DRAWN.normal(size=3)
    np.testing.assert_allclose(jitted(X), X * 2 + inner["w"])


def test_the_values_of_a_dict() -> None:
    inner = {"a": 2.0}
    values = inner.values()
    plain = lambda x: x * sum(values)  # noqa: E731
    sees(ge2.jit(plain), plain, lambda: inner.update(b=3.0))


def test_a_function_that_was_put_into_a_table_is_followed() -> None:
    table: dict[str, Any] = {"f": double}
    jitted = ge2.jit(lambda x: table["f"](x))
    jitted(X)
    table["f"] = lambda x: x * STATE["described"]
    sees(jitted, lambda x: table["f"](x), lambda: put_state(None))


def test_contents_that_come_back_find_a_trace_with_those_contents() -> None:
    first, second = np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0])
    held = collections.deque([first])
    jitted = ge2.jit(lambda x: x * held[0])
    np.testing.assert_array_equal(jitted(X), X * first)
    held[0] = second
    first[:] = 9.0  # the array of the first trace
    np.testing.assert_array_equal(jitted(X), X * second)


class Unit:
    """One of very many objects, which a registry of their class and lists of theirs hold."""

    known: dict[Any, Any]
    chosen: set[str]

    def __init__(self, rate: float, bases: list[Unit]) -> None:
        self.rate, self.bases, self.powers, self.w = rate, bases, [1.0], X[:1]


UNITS: dict[str, Any] = {
    "an attribute": lambda units: put("rate", 7.0)(units[-1]),
    "an element of a list": lambda units: put_item(0, 3.0)(units[-1].powers),
    "an array": lambda units: put("w", ONES[:1])(units[-1]),
    "a key": lambda units: Unit.known.update(scale=Unit.known.pop("rate")),
    "a key that is no string": lambda units: Unit.known.update({(1,): Unit.known.pop((0,))}),
    "an element of a set": lambda units: Unit.chosen.symmetric_difference_update({"b", "c"}),
    "an element of many": lambda units: put_item(-1, Unit(5.0, []))(units),
}


@pytest.mark.parametrize("name", UNITS)
def test_of_very_many_objects_a_change_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Unit, "known", {"rate": 2.0, (0,): 3.0}, raising=False)
    monkeypatch.setattr(Unit, "chosen", {"a", "b"}, raising=False)
    first = Unit(2.0, [])
    units = [first, *(Unit(float(i), [first]) for i in range(20))]
    monkeypatch.setattr(unchanged, "MOST", 30)

    def plain(x: Any) -> Any:
        last, known = units[-1], Unit.known
        scale = getattr(last, "rate") * last.powers[0] + known.get("scale", 1.0)  # noqa: B009
        return x * scale * last.w + known.get((1,), 4.0) + len(Unit.chosen & {"a", "b"})

    call = ge2.jit(plain)
    sees(call, plain, lambda: UNITS[name](units))
    for _ in range(6):
        call(X)
    monkeypatch.setattr(capture, "look_into", None)  # none of them is looked into again
    np.testing.assert_allclose(call(X), plain(X))


class Plain:
    rate = 2.0


@pytest.mark.parametrize("make", [Slots, Plain, Made, module, lambda: Plain])
def test_a_static_argument_is_seen_through_its_attributes(make: Any) -> None:
    thing = make()
    jitted = ge2.jit(lambda x, o: x * o.rate, static_argnums=1)
    sees(lambda x: jitted(x, thing), lambda x: x * thing.rate, lambda: put("rate", 3.0)(thing))
    sees(lambda x: jitted(x, thing), lambda x: x * thing.rate, lambda: put("rate", 2.0)(thing))


def test_a_class_among_the_arguments() -> None:
    jitted = ge2.jit(lambda x, c: scale_of(c, x))
    sees(
        lambda x: jitted(x, Holder),
        lambda x: scale_of(Holder, x),
        lambda: put("scale", 5.0)(Holder),
    )


# ---------------------------------------------------------------------------------- refused by name

REFUSED: dict[str, Any] = {
    "time.time": lambda x: x * time.time(),
    "tick": lambda x: x * tick(),
    "time.perf_counter_ns": lambda x: x * time.perf_counter_ns(),
    "datetime.datetime.now": lambda x: x * datetime.datetime.now().timestamp(),
    "datetime.date.today": lambda x: x * datetime.date.today().day,
    "os.environ": lambda x: x * len(os.environ["PATH"]),
    "os.environ.get": lambda x: x * len(os.environ.get("PATH", "")),
    "os.getenv": lambda x: x * len(os.getenv("PATH", "")),
    "os.urandom": lambda x: x * os.urandom(1)[0],
    "os.times": lambda x: x * os.times().user,
    "sys.path": lambda x: x * len(sys.path),
    "os.getcwd": lambda x: x * len(os.getcwd()),
    "uuid.uuid4": lambda x: x * uuid.uuid4().int,
    "secrets.randbelow": lambda x: x * secrets.randbelow(9),
    "open": lambda x: x * len(open(FILE).read()),  # noqa: SIM115
    "FILE.read_text": lambda x: x * len(FILE.read_text()),
    "input": lambda x: x * float(input()),
    "np.load": lambda x: x * np.load("weights.npy"),
    "globals": lambda x: x * globals()["RATE"],
    "eval": lambda x: x * eval("RATE"),
    "sys.modules": lambda x: x * sys.modules[__name__].RATE,
    "sys.argv": lambda x: x * len(sys.argv),
    "np.geterr": lambda x: x * len(np.geterr()["over"]),
    "decimal.getcontext": lambda x: x * decimal.getcontext().prec,
}


def imports_a_clock(x: Any) -> Any:
    from time import time as now

    return x * now()


def imports_os(x: Any) -> Any:
    import os

    return x * len(os.environ)


REFUSED |= {"time.time ": imports_a_clock, "os.environ ": imports_os}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_seen_is_refused_by_name_at_its_line(name: str) -> None:
    with pytest.raises(ImpureError) as found:
        ge2.jit(REFUSED[name])(X)
    assert f"({name.strip()})" in str(found.value)
    assert "test_nothing_frozen.py" in str(found.value)
    assert "outside" in str(found.value) or "argument" in str(found.value)


def test_random_numbers_of_the_library_are_refused() -> None:
    with pytest.raises(ImpureError, match="random numbers"):
        ge2.jit(lambda x: x * random.random())(X)
    system = random.SystemRandom()  # it has no state that could tell
    with pytest.raises(ImpureError, match="a SystemRandom from outside"):
        ge2.jit(lambda x: x * system.random())(X)


def test_a_polynomial_of_a_traced_value_is_refused_as_others_are() -> None:
    """Though it has no hash, by which a hint looks for it."""
    line = np.polynomial.Polynomial([1.0, 2.0])
    with pytest.raises(TracerArrayConversionError):
        ge2.jit(lambda x: line(x))(X)


def test_a_weak_reference_is_refused() -> None:
    held = Holder()
    reference = weakref.ref(held)
    with pytest.raises(ImpureError, match="weak reference"):
        ge2.jit(lambda x: x * reference().scale)(X)  # type: ignore[union-attr]


def test_a_clock_in_a_helper_is_refused_and_in_a_branch_not_taken_it_is_not() -> None:
    def helper(x: Any, timed: bool) -> Any:
        if timed:
            x = x * time.time()
        return x

    np.testing.assert_array_equal(ge2.jit(lambda x: helper(x, False))(X), X)
    with pytest.raises(ImpureError, match="helper"):
        ge2.jit(lambda x: helper(x, True))(X)


def test_a_clock_in_a_callback_runs_in_each_call() -> None:
    times: list[float] = []

    def f(x: Any) -> Any:
        ge2.debug.callback(lambda _: times.append(time.perf_counter()), x)
        return x * 2

    jitted = ge2.jit(f)
    jitted(X), jitted(X)
    assert len(times) == 2
    assert times[0] < times[1]


def test_the_line_watch_leaves_no_trace_behind() -> None:
    before = sys.gettrace()
    with pytest.raises(ImpureError):
        ge2.jit(REFUSED["time.time"])(X)
    assert sys.gettrace() is before


# --------------------------------------------------------------------- subclasses of NumPy's arrays


class Tagged(np.ndarray):
    tag = "harmless"


class Crossed(np.ndarray):
    def __mul__(self, other: Any) -> Any:
        return np.cross(self, other)


def test_subclasses_are_refused_where_they_compute_otherwise() -> None:
    with pytest.warns(PendingDeprecationWarning):
        matrix = np.asmatrix(np.eye(3))
    masked = np.ma.masked_array([1.0, 2.0, 3.0], [0, 1, 0])
    crossed = np.ones(3).view(Crossed)
    for strange, words in ((matrix, "matrix"), (masked, "mask"), (crossed, "__mul__")):
        for call in (
            lambda s: ge2.jit(lambda x: s * x)(X),
            lambda s: ge2.jit(lambda s, x: s * x)(s, X),
        ):
            with pytest.raises(InputError, match=words):
                call(strange)
    tagged = np.ones(3).view(Tagged)
    np.testing.assert_array_equal(ge2.jit(lambda x: x * tagged)(X), X)
    np.testing.assert_array_equal(ge2.jit(lambda t: t * 2)(tagged), tagged * 2)


# ----------------------------------------------------------------------------------- keys are exact


@dataclass(frozen=True)
class Frozen:
    value: Any


class Pair(NamedTuple):
    first: Any
    second: Any


ZEROS = [0, 0.0, -0.0, False, 0j, Fraction(0), decimal.Decimal(0), np.float64(0), np.float64(-0.0)]
WRAPPED = [
    lambda v: v, lambda v: (v,), lambda v: frozenset([v]), lambda v: (1, frozenset([(v, 2)])),
    Frozen, lambda v: Frozen((Frozen(v),)), lambda v: Pair(1, v), lambda v: frozenset([Frozen(v)]),
]  # fmt: skip


@pytest.mark.parametrize("wrap", WRAPPED)
def test_static_values_are_told_apart_exactly(wrap: Any) -> None:
    seen: list[str] = []
    jitted = ge2.jit(lambda x, v: (x, seen.append(repr(v)))[0], static_argnums=1)
    for _ in range(2):
        for zero in ZEROS:
            jitted(X, wrap(zero))
    assert seen == [repr(wrap(zero)) for zero in ZEROS]


def test_a_traced_value_says_that_it_is_an_array_and_has_a_type_of_its_own() -> None:
    found: list[bool] = []
    ge2.jit(lambda x: (x, found.extend([isinstance(x, np.ndarray), type(x) is np.ndarray]))[0])(X)
    assert found == [True, False]
