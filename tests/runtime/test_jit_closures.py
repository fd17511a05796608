"""What a function reads besides its arguments: looked at again at each call, never frozen."""

from __future__ import annotations

import functools
import gc
import sys
import types
import weakref
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

import ge2
from ge2.errors import Ge2Warning, ImpureError, InPlaceError, TraceError

pytestmark = pytest.mark.any_executor

X = np.array([1.0, 2.0, 3.0])
W = np.ones(3)
RATE = 0.5
MODE = "add"
TABLE = np.array([2, 0, 1])
PARAMS: dict[str, Any] = {"w": np.ones(3), "layers": [np.ones(3)]}
COUNT = 0
SEEN: list[int] = []


@dataclass
class Settings:
    w: Any
    rate: float


class Plain:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


CONFIG = Settings(np.ones(3), 2.0)
OBJECT = Plain(rate=2.0, inner=Plain(w=np.ones(3)))


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    for name in ("W", "RATE", "MODE", "TABLE", "PARAMS", "CONFIG", "OBJECT", "COUNT", "helper"):
        monkeypatch.setitem(globals(), name, globals()[name])
    SEEN.clear()


def helper(x):
    return x * W


def put(**names):
    globals().update(names)


def traced(f):
    """`f` compiled, and a list that grows by one at each trace."""
    traces: list[int] = []

    @functools.wraps(f)
    def counting(x):
        traces.append(1)
        return f(x)

    return ge2.jit(counting), traces


def follows(f, change, traces):
    """That a change takes effect, in this many traces all told."""
    jitted, seen = traced(f)
    np.testing.assert_allclose(jitted(X), f(X))
    change()
    np.testing.assert_allclose(jitted(X), f(X))
    np.testing.assert_allclose(jitted(X), f(X))
    assert len(seen) == traces


# ------------------------------------------------------------------------------------------- arrays


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x * W,
        lambda x: x * W[::-1] + W.T,
        lambda x: x + W.sum() * 2,
        lambda x: x + np.stack([W, W * 2])[1],
        lambda x: sum([x * w for w in (W,)]),
        lambda x: helper(x) + 1,
        lambda x: sum(map(helper, [x])),
        lambda x: ge2.grad(lambda y: np.sum(helper(y) ** 2))(x),
        lambda x: ge2.vmap(lambda y, w: y * w)(x, W * 3),
    ],
)  # fmt: skip
def test_a_changed_global_array_takes_effect_without_a_new_trace(f):
    follows(f, lambda: put(W=np.array([1.0, 5.0, -1.0])), 1)


def test_an_array_changed_in_place_takes_effect():
    w = np.ones(3)
    follows(lambda x: x * w + (w * 2).sum(), lambda: w.__setitem__(1, 7.0), 1)


def test_cells_defaults_and_containers():
    w, params = np.ones(3), {"a": [np.ones(3), (np.ones(3), 2.0)]}

    def change():
        nonlocal w
        w = w * 3
        params["a"][0] = params["a"][0] + 2
        params["a"][1][0][:] = 5

    follows(lambda x: x * w + params["a"][0] * params["a"][1][0], change, 1)


TASKS: dict[str, Any] = {"sum": lambda x: TASKS["scaled"](x).sum(), "scaled": lambda x: x * W}


def test_a_table_of_functions_that_two_functions_name_is_one():
    def scaled(x):
        return TASKS["scaled"](x)

    f, traces = traced(lambda x: scaled(x) + TASKS["sum"](x))
    np.testing.assert_array_equal(f(X), X + 6)
    put(W=np.full(3, 2.0))
    np.testing.assert_array_equal(f(X), 2 * X + 12)
    assert len(traces) == 1


def test_default_arrays_are_inputs():
    w = np.ones(3)

    def f(x, w=w, *, v=w):
        return x * w + v.T

    follows(f, lambda: w.__setitem__(0, 9.0), 1)


def test_dataclasses_modules_and_plain_objects():
    follows(lambda x: x * CONFIG.w.T, lambda: put(CONFIG=Settings(W * 4, 2.0)), 1)
    follows(lambda x: x * OBJECT.inner.w, lambda: setattr(OBJECT.inner, "w", W * 4), 1)
    module = types.ModuleType("weights_of_a_user")
    module.w = np.ones(3)
    follows(lambda x: x * module.w, lambda: setattr(module, "w", W * 4), 1)


def test_what_is_computed_from_attributes_is_not_frozen():
    follows(lambda x: x @ OBJECT.inner.w.T, lambda: setattr(OBJECT.inner, "w", W * 4), 1)
    module = types.ModuleType("more_weights_of_a_user")
    module.w = np.ones(3)
    follows(lambda x: x * module.w[::-1] + module.w.sum(), lambda: setattr(module, "w", W * 4), 1)
    follows(lambda x: x * module.w.T, lambda: module.w.__setitem__(0, 7.0), 1)


class Network:
    def __init__(self):
        self.w, self.rate = np.ones(3), 2.0

    @property
    def scaled(self):
        return self.w.T * self.rate

    def predict(self, x):
        return self.hidden(x) + self.scaled

    def hidden(self, x):
        return x * self.w.T * self.rate

    __call__ = predict

    @functools.partial(ge2.jit, static_argnums=0)
    def static(self, x):
        return self.predict(x)


def test_objects_of_plain_classes_are_never_stale():
    """Through properties, methods and calls; as the object of a bound method;
    as a static argument.
    """
    for make in (
        lambda n: lambda x: x * n.scaled,
        lambda n: lambda x: n.predict(x),
        lambda n: lambda x: n(x),
        lambda n: lambda x: apply(n, x),
        lambda n: n.predict,
        lambda n: n,
    ):
        network = Network()
        f = ge2.jit(make(network))
        plain = make(network)
        for w, rate, entries in ((W, 2.0, 1), (W * 3, 2.0, 1), (W, 4.0, 2)):
            network.w, network.rate = w, rate
            np.testing.assert_array_equal(f(X), plain(X))
            assert len(f.cache_report().entries) == entries
        assert type(network.w) is np.ndarray


def apply(network, x):
    return network.predict(x) - network.w


def test_a_static_self_is_never_stale():
    network = Network()
    for w, rate in ((W, 2.0), (W * 3, 2.0), (W, 4.0)):
        network.w, network.rate = w, rate
        np.testing.assert_array_equal(network.static(X), network.predict(X))
    assert len(Network.static.cache_report().entries) == 2


def test_an_attribute_of_a_class_decides_by_its_contents():
    class Constants:
        w = np.ones(3)

    follows(lambda x: x * Constants.w.T, lambda: setattr(Constants, "w", W * 4), 2)


def test_attributes_that_a_trace_assigns():
    counter = Plain(count=0, w=np.ones(3))

    @ge2.jit
    def f(x):
        counter.last = len(x)
        return x * counter.w

    f(X)
    assert counter.last == 3

    @ge2.jit
    def g(x):
        counter.w = x
        return x * counter.w

    with pytest.raises(ImpureError, match=r"the attribute w of a Plain was assigned"):
        g(X)
    assert type(counter.w) is np.ndarray


def test_other_types_and_structures_are_new_signatures():
    follows(lambda x: x * W, lambda: put(W=np.ones(3, np.float32) * 2), 2)
    follows(lambda x: x * W, lambda: put(W=np.ones((2, 3)) * 2), 2)
    follows(lambda x: x + sum(PARAMS["layers"]), lambda: PARAMS["layers"].append(np.ones(3) * 5), 2)


def test_two_names_of_one_array_may_part():
    a = b = np.ones(3)

    def change():
        nonlocal b
        b = b * 5

    follows(lambda x: x * a - b, change, 2)


def test_an_array_that_is_also_an_argument():
    f = ge2.jit(lambda x: x * 2 + W)
    np.testing.assert_array_equal(f(W), W * 3)


def test_a_jitted_or_differentiated_helper_is_looked_into():
    inner = ge2.jit(helper)
    follows(lambda x: inner(x) + 1, lambda: put(W=W * 3), 1)
    slope = ge2.grad(lambda y: np.sum(y * y * W))
    follows(slope, lambda: put(W=W * 5), 1)


def test_a_partial_and_a_bound_method():
    w = np.ones(3)
    follows(functools.partial(lambda w, x: x * w.T, w), lambda: w.__setitem__(0, 9.0), 1)

    @ge2.tree_util.register_pytree_node_class
    class Model:
        def __init__(self, w):
            self.w = w

        def tree_flatten(self):
            return (self.w,), None

        @classmethod
        def tree_unflatten(cls, data, children):
            return cls(*children)

        def apply(self, x):
            return x * self.w.T

    model = Model(np.ones(3))
    f = ge2.jit(model.apply)
    np.testing.assert_array_equal(f(X), X)
    model.w = W * 4
    np.testing.assert_array_equal(f(X), X * 4)


def test_a_function_that_is_an_argument_is_looked_into():
    apply = ge2.jit(lambda g, x: g(x))
    w = np.ones(3)

    def g(x):
        return x * w.T

    np.testing.assert_array_equal(apply(g, X), X)
    w = w * 3
    np.testing.assert_array_equal(apply(g, X), X * 3)
    assert len(apply.cache_report().entries) == 1


def test_a_custom_rule_is_looked_into():
    @ge2.custom_jvp
    def scaled(x):
        return x * W

    scaled.defjvps(lambda t, y, x: t * W)
    follows(lambda x: scaled(x) + ge2.grad(lambda y: np.sum(scaled(y)))(x), lambda: put(W=W * 3), 1)


def test_the_graph_shows_hidden_inputs_before_the_arguments():
    graph = ge2.jit(lambda x: x @ W).trace(X).jaxpr
    assert len(graph.inputs) == 2


def test_contents_that_the_trace_looked_at_are_part_of_the_signature():
    """An index table in a Python loop: its values decide the graph."""

    def f(x):
        return sum(x[i] * n for n, i in enumerate(TABLE.tolist()))

    follows(f, lambda: put(TABLE=np.array([2, 0, 1])), 1)  # equal contents
    follows(f, lambda: put(TABLE=np.array([0, 1, 2])), 2)
    follows(f, lambda: TABLE.__setitem__(0, 1), 2)


def test_an_index_from_a_table_needs_no_look():
    follows(
        lambda x: sum(x[i] * n for n, i in enumerate(TABLE)),
        lambda: put(TABLE=np.array([0, 1, 2])),
        1,
    )


def test_a_branch_on_a_closed_over_array():
    follows(lambda x: x if W.sum() > 0 else -x, lambda: put(W=-W), 2)


def test_arrays_made_inside_are_constants():
    follows(lambda x: x * np.arange(3.0) + np.eye(3)[0], lambda: None, 1)


def test_arrays_that_ge2_does_not_compute_with_are_objects():
    names = np.array(["a", "b"])
    follows(lambda x: x * len(names), lambda: None, 1)


# ----------------------------------------------------------------------------- numbers and the rest


def test_a_changed_number_or_string_is_a_new_signature():
    follows(lambda x: x * RATE, lambda: put(RATE=0.25), 2)
    follows(lambda x: x + 1 if MODE == "add" else x - 1, lambda: put(MODE="subtract"), 2)
    follows(lambda x: x * CONFIG.rate, lambda: setattr(CONFIG, "rate", 3.0), 2)
    follows(lambda x: x * OBJECT.rate, lambda: setattr(OBJECT, "rate", 3.0), 2)


def test_a_number_and_its_return_find_the_old_trace():
    rate = 1.0
    f, seen = traced(lambda x: x * rate)
    for rate in (1.0, 2.0, 1.0, 2.0):
        np.testing.assert_array_equal(f(X), X * rate)
    assert len(seen) == 2


def test_nan_and_signed_zero():
    rate = float("nan")
    f, seen = traced(lambda x: x * rate)
    f(X)
    f(X)
    assert len(seen) == 1
    rate = 0.0
    f(X)
    rate = -0.0
    assert np.signbit(f(X)).all()
    assert len(seen) == 3


def test_a_function_that_is_rebound():
    follows(lambda x: helper(x), lambda: put(helper=lambda x: x + 100), 2)


def test_lambdas_made_in_a_loop():
    functions = [ge2.jit(lambda x, i=i: x * i) for i in range(3)]
    assert [f(2.0) for f in functions] == [0.0, 2.0, 4.0]
    late = [ge2.jit(lambda x: x * i) for i in range(3)]  # noqa: B023 as in Python, they all see the last
    assert [f(2.0) for f in late] == [4.0, 4.0, 4.0]


def test_counters_that_are_only_counted_cause_no_trace():
    calls = {"f": 0}
    count = 0

    @ge2.jit
    def f(x):
        global COUNT
        nonlocal count
        count += 1
        COUNT += 1
        SEEN.append(len(x))
        calls["f"] += 1
        return x * W

    for _ in range(3):
        f(X)
    assert (count, COUNT, SEEN, calls) == (1, 1, [3], {"f": 1})


def test_a_counter_that_is_read_is_never_stale():
    count = 0

    @ge2.jit
    def f(x):
        nonlocal count
        count += 1
        return x * count

    assert [f(1.0) for _ in range(4)] == [1.0, 2.0, 3.0, 4.0]


def test_an_array_that_the_function_replaces_is_an_error():
    w = np.ones(3)

    @ge2.jit
    def f(x):
        nonlocal w
        w = w * 2
        return x * w

    with pytest.raises(
        ImpureError, match=r"f assigns to w(.|\n)*test_jit_closures.py(.|\n)*return the new w"
    ):
        f(X)
    np.testing.assert_array_equal(w, 1.0)

    @ge2.jit
    def g(x):
        global W
        W = W * 2
        return x * W

    with pytest.raises(ImpureError, match="g assigns to W"):
        g(X)
    np.testing.assert_array_equal(W, 1.0)


def test_an_array_that_the_function_changes_in_place_is_an_error():
    w = np.ones(3)

    @ge2.jit
    def f(x):
        w[0] = 2.0
        return x * w

    with pytest.raises(InPlaceError, match="w"):
        f(X)
    np.testing.assert_array_equal(w, 1.0)


def test_a_name_that_is_bound_later():
    def f(x):
        return x * LATER  # noqa: F821

    jitted = ge2.jit(f)
    with pytest.raises(NameError, match="LATER"):
        jitted(X)
    put(LATER=2.0)
    try:
        np.testing.assert_array_equal(jitted(X), X * 2)
        put(LATER=3.0)
        np.testing.assert_array_equal(jitted(X), X * 3)
    finally:
        del globals()["LATER"]


def test_a_container_that_holds_itself():
    knot: list[Any] = []
    knot.append(knot)
    follows(lambda x: x * len(knot), lambda: None, 1)


@pytest.mark.parametrize("reach", ["dict", "list", "globals", "module"])
def test_what_a_container_that_holds_itself_holds_besides(reach):
    module = types.ModuleType("module")
    names: dict[str, Any] = module.__dict__ if reach in ("globals", "module") else {}
    names.update(rate=2.0, names=names)
    rates: list[Any] = [2.0]
    rates.append(rates)
    jitted = ge2.jit(
        (lambda x: x * rates[0])
        if reach == "list"
        else (lambda x: x * module.names["rate"])  # as `names = globals()` of a module
        if reach == "module"
        else (lambda x: x * names["rate"])
    )
    np.testing.assert_array_equal(jitted(X), X * 2)
    names["rate"] = rates[0] = 3.0
    np.testing.assert_array_equal(jitted(X), X * 3)


def test_a_module_may_hold_masked_arrays():
    module = types.ModuleType("module")
    vars(module).update(names=vars(module), rate=2.0, masked={1: np.ma.masked}, held=np.ma.ones(2))
    jitted = ge2.jit(lambda x: x * module.rate * len(module.names["masked"]))
    np.testing.assert_array_equal(jitted(X), X * 2)
    module.masked[2] = np.ma.masked
    np.testing.assert_array_equal(jitted(X), X * 4)


def test_objects_that_many_objects_hold_are_looked_into_once():
    class Pair:
        def __init__(self, inner: Any) -> None:
            self.left = self.right = inner

    first = end = types.SimpleNamespace(rate=2.0)
    for _ in range(40):  # 2 ** 40 ways lead to the end
        first = Pair(first)  # type: ignore[assignment]

    def rate(x):
        pair: Any = first
        while isinstance(pair, Pair):
            pair = pair.left if len(x) else pair.right
        return x * pair.rate

    jitted = ge2.jit(rate)
    for _ in range(12):  # as often as it takes until code is generated that finds the same again
        np.testing.assert_array_equal(jitted(X), X * 2)
    end.rate = 3.0
    np.testing.assert_array_equal(jitted(X), X * 3)


def test_functions_that_know_each_other():
    def even(x, n):
        return x * W if n == 0 else odd(x, n - 1)

    def odd(x, n):
        return -x * W.T if n == 0 else even(x, n - 1)

    follows(lambda x: even(x, 5), lambda: put(W=W * 2), 1)


def test_what_is_not_known_names_the_closed_over_array():
    f = ge2.jit(lambda x: float((x * W).sum()))
    with pytest.raises(TraceError, match="depends on x"):
        f(X)


def test_a_function_that_names_nothing_pays_nothing():
    f = ge2.jit(lambda x: np.sin(x) + len(x.shape))
    f(X)
    assert f._closure.empty
    assert f._plain


def test_functions_of_libraries_are_not_followed():
    import json

    f = ge2.jit(lambda x: x * len(json.dumps([1])))
    f(X)
    assert len(f._closure.plan.scopes) == 1


def test_a_thousand_lambdas_leave_nothing_behind():
    import gc
    import weakref

    alive = []
    for i in range(1000):
        f = ge2.jit(lambda x, i=i: x + i % 3)
        f(X)
        alive.append(weakref.ref(f))
    del f
    gc.collect()
    assert not [ref for ref in alive if ref() is not None]
    assert sys.getrefcount(X) < 100


FRESH = np.eye(2)


class Reads:
    def __call__(self, x: Any) -> Any:
        return x @ FRESH.T  # a view of the global, made where no traced value stands


def test_what_a_method_makes_of_a_global_is_not_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads()
    f = ge2.jit(lambda x: reads(x))
    assert f(np.ones(2)).tolist() == [1, 1]
    monkeypatch.setitem(globals(), "FRESH", FRESH * 5)
    assert f(np.ones(2)).tolist() == [5, 5]


def test_what_a_method_makes_of_a_global_that_is_also_read_directly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = Reads()
    f = ge2.jit(lambda x: reads(x) + x @ FRESH)
    assert f(np.ones(2)).tolist() == [2, 2]
    monkeypatch.setitem(globals(), "FRESH", FRESH * 5)
    assert f(np.ones(2)).tolist() == [10, 10]


# ------------------------------------------------------------------------- looked at by code of its own


class Base:
    factor = 1.0

    def scaled(self, x):
        return x * self.factor


class Held(Base):
    """Of every sort of thing that a function may read."""

    def __init__(self):
        self.w, self.rate, self.inner = X.copy(), 2.0, Slotted()
        self.rows, self.table = [X.copy(), 1.0], {"a": X.copy(), "b": 3}

    def __call__(self, x):
        return self.scaled(x) + self.w * self.rate + self.inner.k + self.rows[0] + self.table["a"]


class Slotted:
    __slots__ = ("k",)

    def __init__(self):
        self.k = 4.0


class Fields(NamedTuple):
    w: Any
    k: float


@dataclass
class Point:
    w: Any
    k: float = 2.0


def once_calm(f, change):
    """What f returns after a change, when code of its own has told that nothing changed before."""
    with ge2.config.using(executor="blocked"):
        compiled = ge2.jit(f)
        for _ in range(5):
            np.testing.assert_array_equal(compiled(X), f(X))
        assert compiled._closure is not None and compiled._closure.same is not None
        change()
        for _ in range(4):
            np.testing.assert_array_equal(compiled(X), f(X))


def reshaped(x):
    x.shape = (1, *x.shape)


def in_class(monkeypatch, name, value):
    return lambda m: monkeypatch.setattr(Held, name, value, raising=False)


CHANGES = {
    "an attribute's elements": lambda m: m.w.__setitem__(0, 9.0),
    "an attribute": lambda m: setattr(m, "rate", 5.0),
    "its type": lambda m: setattr(m, "rate", 2),
    "an array": lambda m: setattr(m, "w", X + 1),
    "the dtype of an array": lambda m: setattr(m, "w", X.astype(np.float32)),
    "the shape of an array": lambda m: reshaped(m.w),
    "an element of a list": lambda m: m.rows.__setitem__(0, X * 2),
    "a value of a dict": lambda m: m.table.__setitem__("a", X * 2),
    "a slot": lambda m: setattr(m.inner, "k", 7.0),
    "an inner object": lambda m: setattr(m, "inner", type("Other", (), {"k": 8.0})()),
    "an attribute before the class's": lambda m: setattr(m, "factor", 3.0),
    "the whole dict": lambda m: setattr(m, "__dict__", {**m.__dict__, "rate": 6.0}),
    "a method of the object": lambda m: setattr(m, "scaled", lambda x: x * 11),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_inside_an_object_is_seen(change):
    m = Held()
    once_calm(lambda x: m(x), lambda: change(m))


@pytest.mark.parametrize(
    ("cls", "name", "value"),
    [
        (Base, "factor", 3.0),
        (Held, "factor", 4.0),
        (Base, "scaled", lambda self, x: x * 12),
        (Held, "scaled", lambda self, x: x * 13),
        (Held, "__call__", lambda self, x: x - self.w),
    ],
)
def test_a_change_of_a_class_is_seen(cls, name, value, monkeypatch):
    m = Held()
    change = partial(monkeypatch.setattr, cls, name, value, raising=False)
    once_calm(lambda x: m(x), change)
    monkeypatch.undo()
    once_calm(lambda x: m.scaled(x), change)


def test_a_change_of_a_container_is_seen():
    fields, point, pair, rows = Fields(X.copy(), 2.0), Point(X.copy()), (X.copy(), [1.0]), [1.0]
    scale = partial(lambda k, x: x * k["by"], {"by": 2.0})
    once_calm(lambda x: fields.w * x * fields.k, lambda: fields.w.__setitem__(0, 5.0))
    once_calm(lambda x: point.w * x * point.k, lambda: setattr(point, "k", 3.0))
    once_calm(lambda x: pair[0] * x * pair[1][0], lambda: pair[1].__setitem__(0, 4.0))
    once_calm(lambda x: x * len(rows), lambda: rows.append(2.0))
    once_calm(lambda x: scale(x), lambda: scale.args[0].update(by=3.0))


def test_a_change_of_a_function_is_seen():
    def helper(x, k=2.0, *, more=1.0):
        return x * k * more

    once_calm(lambda x: helper(x), lambda: setattr(helper, "__defaults__", (3.0,)))
    once_calm(lambda x: helper(x), lambda: helper.__kwdefaults__.update(more=4.0))
    other = (lambda x, k=2.0, *, more=1.0: x - k).__code__
    once_calm(lambda x: helper(x), lambda: setattr(helper, "__code__", other))


def test_one_array_in_place_of_two_is_seen():
    m = Held()
    m.rows[0] = X.copy()
    once_calm(lambda x: m.w + m.rows[0] * x, lambda: setattr(m, "w", m.rows[0]))


def test_an_array_that_nobody_else_has_is_not_kept():
    m = Held()
    f, kept = ge2.jit(lambda x: m(x)), weakref.ref(m.w)
    for _ in range(5):
        f(X)
    m.w = None
    gc.collect()  # of cycles that tracing leaves
    assert kept() is None


def test_what_changes_at_each_call_gets_no_code_again_and_again():
    m, made = Held(), []
    f = ge2.jit(lambda x: x * m.w)
    for i in range(60):
        if i % 6 == 0:
            m.w = X + i
        np.testing.assert_array_equal(f(X), X * m.w)
        made.append(f._closure.same)
    assert len(set(made) - {None}) == 2  # soon, and after more calls; then no more


SCALE = 2.0


@dataclass
class Scaled:
    """A pytree with methods."""

    w: Any
    by = 3.0

    def __call__(self, x):
        return self.w * x * SCALE * self.by


class Pair(NamedTuple):
    w: Any

    def __call__(self, x):
        return self.w * x * SCALE


@pytest.mark.parametrize("cls", [Scaled, Pair])
@pytest.mark.parametrize("argument", [True, False])
def test_what_methods_of_a_pytree_read_is_seen(cls, argument, monkeypatch):
    """Whether it is an argument, or closed over, or in a container of either."""
    m = cls(X.copy())
    given, f = ([m],), (lambda ms, x: ms[0](x)) if argument else (lambda x: m(x))
    args = (*given, X) if argument else (X,)
    compiled = ge2.jit(f)
    changes = [
        lambda: monkeypatch.setitem(globals(), "SCALE", 5.0),
        lambda: monkeypatch.setattr(Scaled, "by", 7.0),
        lambda: monkeypatch.setattr(cls, "__call__", lambda self, x: self.w - x),
    ]
    with ge2.config.using(executor="blocked"):
        for change in (lambda: None, *changes):
            change()
            for _ in range(5):
                np.testing.assert_array_equal(compiled(*args), f(*args))


class Named:
    def __init__(self):
        self.parts = ({"b": np.ones(2), "a": {"d": np.ones(2), "c": np.zeros(2)}},)

    def __call__(self, x):
        return x * next(iter(self.parts[0].values()))


@pytest.mark.any_executor
@pytest.mark.parametrize(
    "transform", [ge2.jit, lambda f: lambda *xs, **ks: ge2.value_and_grad(f)(*xs, **ks)[0]]
)
def test_dicts_are_iterated_in_the_order_of_their_keys(transform):
    """A trace, and each later call, sees the keys as they were inserted; so does its caller."""

    def last_minus_first(d):
        first, *_, last = d.values()
        return ge2.numpy.sum(last["y"] ** 2 - first["y"])

    f = transform(last_minus_first)
    one, two = {"y": np.full(2, 3.0)}, {"y": np.full(2, 5.0)}
    for given in ({"w": one, "a": two}, {"a": one, "w": two}, {"w": two, "a": one}):
        for _ in range(3):
            assert f(given) == last_minus_first(given)
            default = defaultdict(dict, given)
            assert f(default) == last_minus_first(default)


def test_results_keep_the_order_of_keys_and_equal_keywords_are_traced_once():
    f = ge2.jit(lambda d, **more: {"z": d["w"], "more": more, **d})
    given = {"w": np.ones(2), "a": 1.0}
    for _ in range(3):
        made = f(given, y=1, b=2)
        assert (list(made), list(made["more"])) == (["z", "more", "w", "a"], ["y", "b"])
    assert list(ge2.grad(lambda d: (d["w"] * d["a"]).sum())(given)) == ["w", "a"]
    g = ge2.jit(lambda x, y: x - y)
    assert (g(y=1.0, x=3.0), g(x=3.0, y=1.0)) == (2.0, 2.0)
    assert "1 signature," in str(g.cache_report())
    f(dict(reversed(given.items())), y=1, b=2)
    assert "order of the keys" in str(f.cache_report())


def test_the_order_of_a_closed_over_dict_is_looked_at_again():
    held = {"w": 1.0, "b": 2.0}
    f = ge2.jit(lambda x: x * next(iter(held.values())))
    assert f(1.0) == 1.0
    held = {"b": 2.0, "w": 1.0}
    assert f(1.0) == 2.0


def test_dicts_that_are_closed_over_keep_the_order_of_their_keys():
    d = {"b": np.ones(2), "a": {"d": np.ones(2), "c": np.zeros(2)}}

    def f(x):
        return x * d["b"], [*d, *d["a"]].index("c")

    assert ge2.jit(f)(np.ones(2))[1] == 3
    np.testing.assert_array_equal(ge2.jit(Named())(np.ones(2)), 1)


def test_an_element_of_a_container_from_outside_that_is_replaced_is_an_error():
    """An optimiser that kept its moments in a dict had those of the first call for ever."""
    state = {"m": np.zeros(3), "calls": 0}
    layers = [[np.ones(3)]]

    @ge2.jit
    def moments(x):
        state["m"] = state["m"] * 0.9 + x
        return state["m"]

    @ge2.jit
    def stack(x):
        layers[0][0] = layers[0][0] + x
        return layers[0][0]

    class Rule:
        def __init__(self):
            self.moments = {"w": np.zeros(3)}

        def step(self, x):
            self.moments["w"] = self.moments["w"] + x
            return self.moments["w"]

    for f, kind in (
        (moments, "'m' of a dict"),
        (stack, "0 of a list"),
        (ge2.jit(Rule().step), "'w' of a dict"),
    ):
        with pytest.raises(ImpureError, match=f"element {kind} from outside was replaced"):
            f(X)
    np.testing.assert_array_equal(state["m"], 0.0)


def test_what_else_is_put_into_a_container_beside_arrays_is_there_afterwards():
    @dataclass
    class Counted:
        w: np.ndarray
        calls: int = 0

    state, items, counted = {"w": np.ones(3), "calls": 0}, [np.ones(3)], Counted(np.ones(3))

    @ge2.jit
    def f(x):
        state["calls"] = state["calls"] + 1
        items.append("seen")
        counted.calls = counted.calls + 1
        return x * state["w"] * items[0] * counted.w

    f(X)
    np.testing.assert_array_equal(f(X), X)
    assert state["calls"] == counted.calls == 2 and items[1:] == ["seen", "seen"]

    @ge2.jit
    def g(x):
        state["last"] = x * 2
        return x * state["w"]

    with pytest.warns(Ge2Warning, match="a traced value was put into a dict from outside"):
        g(X)
    assert "last" not in state
