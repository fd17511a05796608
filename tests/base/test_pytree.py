"""Trees: apart and together for every kind of container, key paths, structures
as keys, and the errors.
"""

from __future__ import annotations

import copy
import pickle
import sys
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import InitVar, dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge2 import tree, tree_util
from ge2.base import pytree, treedef
from ge2.base.errors import PytreeError


class Point(NamedTuple):
    x: Any
    y: Any


Other = namedtuple("Other", ["x", "y"])


@dataclass(frozen=True)
class Layer:
    w: Any
    bias: Any
    size: int = field(default=3, metadata={"static": True})


@dataclass(slots=True, kw_only=True)
class Slotted:
    x: Any
    twice: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.twice = 2


@tree_util.register_pytree_node_class
@dataclass(eq=True)
class Special:
    a: Any
    b: Any
    tag: str

    def tree_flatten(self) -> Any:
        return (self.b, self.a), self.tag

    @classmethod
    def tree_unflatten(cls, tag: str, children: Any) -> Special:
        b, a = children
        return cls(a, b, tag)


class Keyed:
    def __init__(self, parts: dict[str, Any]) -> None:
        self.parts = parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keyed) and self.parts == other.parts

    __hash__ = None


tree_util.register_pytree_with_keys(
    Keyed,
    lambda k: ([(tree_util.GetAttrKey(name), x) for name, x in k.parts.items()], tuple(k.parts)),
    lambda names, xs: Keyed(dict(zip(names, xs, strict=True))),
)

KEYS = st.one_of(
    st.text("aB.'\"\\\0 é€𝄞", max_size=3),  # of all letters, hypothesis makes tables for seconds
    st.integers(-3, 3),
    st.booleans(),
    st.tuples(st.integers(0, 2)),
    st.none(),
)


def containers(child: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    named = st.dictionaries(st.sampled_from("abcd"), child, max_size=3)
    return st.one_of(
        st.lists(child, max_size=4),
        st.lists(child, max_size=3).map(tuple),
        st.dictionaries(KEYS, child, max_size=4),
        named.map(OrderedDict),
        named.map(lambda d: defaultdict(list, d)),
        st.builds(Point, child, child),
        st.builds(Layer, child, child, st.integers(0, 2)),
        st.builds(Slotted, x=child),
        st.builds(Special, child, child, st.sampled_from("st")),
        named.map(Keyed),
    )


TREES = st.recursive(st.integers() | st.none(), containers, max_leaves=12)


def same(a: Any, b: Any) -> bool:
    """Equal, with types: 1 and True, or a tuple and a namedtuple, are not the same."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return sorted(map(repr, a)) == sorted(map(repr, b)) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Layer):
        return same((a.w, a.bias, a.size), (b.w, b.bias, b.size))
    return a == b


@given(TREES)
def test_a_tree_comes_apart_and_together(x: Any) -> None:
    leaves, shape = pytree.flatten(x)
    assert same(pytree.unflatten(shape, leaves), x)
    assert shape.num_leaves == len(leaves) == str(shape).count("*")
    assert all(type(leaf) is int for leaf in leaves)


@given(TREES)
def test_equal_trees_have_equal_structures_and_hashes(x: Any) -> None:
    a, b = pytree.structure(x), pytree.structure(copy.deepcopy(x))
    assert a == b
    assert hash(a) == hash(b)
    assert copy.deepcopy(a) is a
    assert not pytree.mismatch(a, b)


@given(TREES)
def test_structures_pickle(x: Any) -> None:
    shape = pytree.structure(x)
    again = pickle.loads(pickle.dumps(shape))
    assert again == shape
    assert hash(again) == hash(shape)
    assert same(again.unflatten(pytree.leaves(x)), x)
    assert again is shape or not shape.shared


def test_a_pickled_structure_of_a_class_that_is_not_registered_here_says_so() -> None:
    rebuild, (_, aux, children) = pytree.structure([1, 2]).__reduce__()
    with pytest.raises(PytreeError, match="a node of set, which is not registered here"):
        rebuild(set, aux, children)


def test_ravel_and_back() -> None:
    x = {"w": np.ones((2, 3), np.float32), "b": [np.arange(2), 1.5], "none": None}
    vector, unravel = tree.ravel(x)
    assert vector.dtype == np.float64
    assert vector.tolist() == [0, 1, 1.5, 1, 1, 1, 1, 1, 1]
    again = unravel(vector)
    assert [(a.dtype, a.shape) for a in tree.leaves(again)] == [
        (np.dtype(int), (2,)),
        (np.dtype(float), ()),
        (np.dtype("f4"), (2, 3)),
    ]
    assert tree.ravel([])[1](np.zeros(0)) == []
    with pytest.raises(PytreeError, match="a vector of 9 elements; got an array of shape"):
        unravel(vector[:3])


@given(TREES, TREES)
def test_structures_differ_exactly_where_mismatch_says_so(x: Any, y: Any) -> None:
    a, b = pytree.structure(x), pytree.structure(y)
    assert (a == b) == (not pytree.mismatch(a, b))
    if a != b:
        assert "differ at" in pytree.mismatch(a, b)


@given(TREES)
def test_each_leaf_has_a_key_path_of_its_own(x: Any) -> None:
    found, shape = pytree.flatten_with_path(x)
    assert [leaf for _, leaf in found] == pytree.leaves(x)
    paths = pytree.key_paths(shape)
    assert [path for path, _ in found] == paths
    texts = [pytree.keystr(path) for path in paths]
    assert len(set(texts)) == len(texts)


@given(TREES)
def test_map_keeps_the_structure(x: Any) -> None:
    y = tree.map(lambda a, b: (a, b), x, x)
    assert pytree.flatten_up_to(pytree.structure(x), y) == [(a, a) for a in pytree.leaves(x)]


@given(TREES)
def test_stopping_at_no_node_changes_nothing(x: Any) -> None:
    assert pytree.flatten(x, lambda _: False) == pytree.flatten(x)


@given(TREES)
def test_emptied_tables_cost_no_correctness(x: Any) -> None:
    before = pytree.structure(x)
    for table in (treedef._SHARED, treedef._FLAT, treedef._SEEN, treedef._KEYS):
        table.clear()
    after = pytree.structure(x)
    assert before == after
    assert hash(before) == hash(after)


# --- what is a node, and what a leaf


def test_dict_keys_are_sorted_and_their_order_is_no_matter() -> None:
    leaves, shape = pytree.flatten({"b": 1, "a": 2})
    assert leaves == [2, 1]
    assert shape == pytree.structure({"a": 0, "b": 0})
    assert hash(shape) == hash(pytree.structure({"a": 0, "b": 0}))
    assert (
        pytree.leaves({2: "x", "b": "y", 1: "z"})
        == pytree.leaves({"b": "y", 1: "z", 2: "x"})
        == ["z", "x", "y"]
    )


def test_an_ordered_dict_keeps_its_order() -> None:
    ba, ab = OrderedDict(b=1, a=2), OrderedDict(a=2, b=1)
    assert pytree.leaves(ba) == [1, 2]
    assert pytree.structure(ba) != pytree.structure(ab)


class Color(StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({1: 0}, {True: 0}),
        ({"red": 0}, {Color.RED: 0}),
        ({(0, 1): 0}, {(False, True): 0}),
        (Layer(0, 0, 1), Layer(0, 0, True)),
        (Layer(0, 0, 0.0), Layer(0, 0, -0.0)),
        (Point(0, 0), (0, 0)),
        (Point(0, 0), Other(0, 0)),
        ({}, defaultdict(list)),
        (defaultdict(int), defaultdict(list)),
        ((), None),
        ([], ()),
    ],
)
def test_structures_that_equality_alone_would_confuse(a: Any, b: Any) -> None:
    for x in (a, b, a):
        assert same(pytree.unflatten(*reversed(pytree.flatten(x))), x)
    assert pytree.structure(a) != pytree.structure(b)


def test_none_is_a_node_without_leaves() -> None:
    assert pytree.flatten(None) == ([], pytree.structure(None))
    assert pytree.leaves([1, None, 2]) == [1, 2]
    assert pytree.leaves([1, None], is_leaf=lambda x: x is None) == [1, None]


def test_a_default_dict_keeps_its_factory() -> None:
    x = tree.map(lambda v: v, defaultdict(list, a=1))
    assert x.default_factory is list


def test_static_fields_are_in_the_structure() -> None:
    leaves, shape = pytree.flatten(Layer(1, 2, size=5))
    assert leaves == [1, 2]
    assert shape.unflatten([3, 4]) == Layer(3, 4, size=5)
    assert str(shape) == "PyTreeDef(Layer(w=*, bias=*, size=5))"


def test_a_dataclass_is_built_by_its_constructor() -> None:
    x = tree.map(lambda v: v + 1, Slotted(x=1))
    assert (x.x, x.twice) == (2, 2)


@dataclass
class NeedsMore:
    x: Any
    scale: InitVar[int]


@dataclass
class OwnConstructor:
    x: Any

    def __init__(self) -> None:
        self.x = 1


class Stack(list):
    pass


@pytest.mark.parametrize(
    ("x", "why"),
    [
        (np.zeros(3), ""),
        (Layer, ""),
        (3, ""),
        (Stack([1]), "Stack is a subclass of list that is not registered"),
        (NeedsMore(1, 2), "the constructor of NeedsMore needs scale besides its fields"),
        (
            OwnConstructor(),
            "the constructor of OwnConstructor does not take all of its fields by name",
        ),
    ],
)
def test_leaves_and_why_they_are(x: Any, why: str) -> None:
    leaves, shape = pytree.flatten([x])
    assert leaves[0] is x
    assert str(shape) == "PyTreeDef([*])"
    assert pytree.why_leaf(x) == why


def test_a_class_may_be_declared_a_leaf() -> None:
    @dataclass
    class Value:
        x: int

    @dataclass
    class Sub(Value):
        y: int

    assert pytree.leaves(Sub(1, 2)) == [1, 2]
    tree_util.register_leaf(Value)
    assert pytree.leaves([Value(1), Sub(1, 2)]) == [Value(1), Sub(1, 2)]


def test_text_of_structures() -> None:
    assert str(pytree.structure({"a": 1, "b": [1, 2]})) == "PyTreeDef({'a': *, 'b': [*, *]})"
    assert str(pytree.structure((1,))) == "PyTreeDef((*,))"
    assert repr(pytree.structure(Point(1, None))) == "PyTreeDef(Point(x=*, y=None))"
    assert str(pytree.structure(defaultdict(list, a=1))) == "PyTreeDef(defaultdict(list, {'a': *}))"
    assert str(pytree.structure(OrderedDict(a=1))) == "PyTreeDef(OrderedDict({'a': *}))"
    assert str(pytree.structure(Special(1, 2, "t"))) == "PyTreeDef(Special['t'](*, *))"


def test_key_paths_read_as_python() -> None:
    x = {"w": [Layer(1, 2)], 3: Point(1, 2)}
    assert [pytree.keystr(p) for p in pytree.key_paths(pytree.structure(x))] == [
        "[3].x",
        "[3].y",
        "['w'][0].w",
        "['w'][0].bias",
    ]
    assert (
        pytree.keystr(pytree.key_paths(pytree.structure(Special(1, 2, "")))[1])
        == "[<flat index 1>]"
    )


def test_partial() -> None:
    f = tree_util.Partial(max, 5, key=3)
    assert pytree.leaves(f) == [5, 3]
    g = tree.map(lambda x: x * 2, f)
    assert (g.func, g.args, g.keywords) == (max, (10,), {"key": 6})
    assert pytree.structure(f) != pytree.structure(tree_util.Partial(min, 5, key=3))
    assert [pytree.keystr(p) for p in pytree.key_paths(pytree.structure(f))] == [
        ".args[0]",
        ".keywords['key']",
    ]


# --- one tree against another


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        (
            {"l": [0, 0, [1, 2, 3]]},
            {"l": [0, 0, (1, 2, 3)]},
            "at ['l'][2]: a list of 3 against a tuple of 3",
        ),
        ({"a": [1, 2]}, {"a": [1]}, "at ['a']: a list of 2 against a list of 1"),
        (
            [{"x": 1, "y": 2}],
            [{"x": 1, "z": 2}],
            "at [0]: key 'y' is only in params and key 'z' is only in grads",
        ),
        ({"x": 1, "y": 2}, {"x": 1}, "at the top: key 'y' is only in params"),
        (1, [1], "at the top: a leaf against a list of 1"),
        ([None], [1], "at [0]: None against a leaf"),
        (
            Layer(1, 2),
            Layer(1, 2, 9),
            "at the top: Layer(w=*, bias=*, size=3) against Layer(w=*, bias=*, size=9)",
        ),
        (Point(1, (1,)), Point(1, Other(1, 2)), "at .y: a tuple of 1 against an Other"),
    ],
)
def test_the_first_difference_is_named(a: Any, b: Any, text: str) -> None:
    said = pytree.mismatch(pytree.structure(a), pytree.structure(b), "params", "grads")
    assert said == f"params and grads differ {text}"


def test_map_names_the_place_of_a_mismatch() -> None:
    with pytest.raises(PytreeError) as error:
        tree.map(
            lambda x, y, z: x, {"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]}, {"a": [1, {"c": 2}]}
        )
    assert str(error.value).splitlines()[0] == (
        "the first tree and tree 3 differ at ['a'][1]: "
        "key 'b' is only in the first tree and key 'c' is only in tree 3"
    )
    with pytest.raises(
        PytreeError, match=r"differ at \[0\]: a list of 1 against a leaf \(ndarray\)"
    ):
        tree.map(lambda x, y: x, [[1]], [np.zeros(1)])


def test_further_trees_may_go_on_below_a_leaf() -> None:
    assert tree.map(lambda x, y: y, {"a": 1}, {"a": [1, None]}) == {"a": [1, None]}
    assert tree.map(lambda x, y: y, [1], [None]) == [None]
    assert tree.map(lambda x, y: y, {"red": 1}, {Color.RED: 2}) == {"red": 2}


def test_a_wrong_number_of_leaves() -> None:
    with pytest.raises(
        PytreeError, match=r"PyTreeDef\(\[\*, \*\]\) has 2 leaves, but 3 were given"
    ):
        pytree.unflatten(pytree.structure([1, 2]), [1, 2, 3])


def test_broadcast_prefix() -> None:
    full = ([1, 2], {"a": 3, "b": (4, None)}, None)
    assert pytree.broadcast_prefix(0, full) == [0, 0, 0, 0]
    assert pytree.broadcast_prefix((0, None, 7), full) == [0, 0, None, None]
    assert pytree.broadcast_prefix((0, {"a": 1, "b": None}, None), full) == [0, 0, 1, None]
    assert pytree.broadcast_prefix(((0, 1), 2), ("x", "y"), lambda x: x == (0, 1)) == [(0, 1), 2]
    with pytest.raises(
        PytreeError, match=r"the prefix and the tree differ at \[1\]: key 'b' is only in the tree"
    ):
        pytree.broadcast_prefix((0, {"a": 1}, 0), full)


def test_a_tree_that_contains_itself() -> None:
    x: dict[str, Any] = {"a": [1]}
    x["a"].append(x)
    with pytest.raises(
        PytreeError, match=r"contains itself: the dict at \['a'\]\[1\] is the one at the top"
    ):
        pytree.flatten(x)
    y: list[Any] = [0]
    y.append(y)
    with pytest.raises(
        PytreeError, match=r"contains itself: the list at \['k'\]\[1\] is the one at \['k'\]"
    ):
        tree.map(abs, {"k": y}, is_leaf=lambda _: False)


def test_a_tree_that_is_too_deep() -> None:
    x: list[Any] = []
    for _ in range(sys.getrecursionlimit() * 2):
        x = [x]
    with pytest.raises(PytreeError, match="nested deeper than Python's recursion limit"):
        pytree.flatten(x)


def test_static_data_must_hash_and_compare() -> None:
    with pytest.raises(
        PytreeError, match=r"the static data of a Layer cannot be hashed .* size=\[1\]"
    ):
        hash(pytree.structure(Layer(1, 2, [1])))  # type: ignore[arg-type]
    a, b = (pytree.structure(Layer(1, 2, np.zeros(2))) for _ in range(2))  # type: ignore[arg-type]
    with pytest.raises(PytreeError, match="the static data of a Layer cannot be compared"):
        assert a == b


# --- registration


def test_a_class_is_registered_once() -> None:
    for known in (dict, Special, tree_util.Partial):
        with pytest.raises(PytreeError, match=f"{known.__name__} is already a pytree node"):
            tree_util.register_pytree_node(known, lambda x: ((), None), lambda *_: None)


def test_registering_a_class_that_was_a_leaf() -> None:
    class Late(Stack):
        pass

    assert len(pytree.leaves(Late([1, 2]))) == 1
    tree_util.register_pytree_node(Late, lambda x: (iter(x), None), lambda _, xs: Late(xs))
    assert pytree.leaves(Late([1, 2])) == [1, 2]
    assert type(tree.map(abs, Late([1]))) is Late


def test_what_registration_refuses() -> None:
    with pytest.raises(PytreeError, match="register_pytree_node takes a class; got 3"):
        tree_util.register_pytree_node(3, None, None)  # type: ignore[arg-type,var-annotated]
    with pytest.raises(PytreeError, match="int has no tree_flatten"):
        tree_util.register_pytree_node_class(int)

    class Bad:
        pass

    tree_util.register_pytree_node(Bad, lambda x: [1, 2, 3], lambda *_: Bad())  # type: ignore[arg-type,return-value]
    with pytest.raises(PytreeError, match="the flatten function of Bad must return"):
        pytree.flatten(Bad())


def test_register_dataclass() -> None:
    @dataclass
    class Model:
        w: Any
        name: str

    for data, meta, said in (
        (["w"], [], "the field 'name' is neither data nor static"),
        (["w", "v"], ["name"], "has no field 'v'"),
        (["w", "name"], ["name"], "'name' is both data and static"),
        (["w"], None, "needs data_fields and meta_fields"),
    ):
        with pytest.raises(PytreeError, match=said):
            tree_util.register_dataclass(Model, data, meta)
    assert tree_util.register_dataclass(Model, ["w"], ["name"]) is Model
    assert pytree.leaves(Model(1, "m")) == [1]
    assert pytree.structure(Model(1, "m")) != pytree.structure(Model(1, "n"))


# --- the public module


def test_tree_functions() -> None:
    x = {"a": [1, 2], "b": 3}
    assert tree.reduce(lambda p, q: p + q, x) == 6
    assert tree.reduce(lambda p, q: p + q, x, 10) == 16
    assert tree.all({"a": True, "b": []})
    assert not tree.all([True, 0])
    assert tree.leaves_with_path(x)[0] == ((tree_util.DictKey("a"), tree_util.SequenceKey(0)), 1)
    named = tree.map_with_path(
        lambda path, p, q: tree_util.keystr(path, simple=True, separator="/") + str(p + q), x, x
    )
    assert named == {"a": ["a/02", "a/14"], "b": "b6"}
    assert tree_util.tree_map is tree.map
    with pytest.raises(TypeError):
        tree.reduce(max, [])


def test_transpose() -> None:
    rows = [{"a": 1, "b": (2, 3)}, {"a": 4, "b": (5, 6)}]
    outer, inner = tree.structure([0, 0]), tree.structure(rows[0])
    columns = {"a": [1, 4], "b": ([2, 5], [3, 6])}
    assert tree.transpose(outer, inner, rows) == tree.transpose(outer, None, rows) == columns
    assert tree.transpose(inner, outer, columns) == rows
    with pytest.raises(
        PytreeError,
        match=r"inner and part 1 of the tree differ at the top: key 'b' is only in inner",
    ):
        tree.transpose(outer, inner, [rows[0], {"a": 4}])
    with pytest.raises(PytreeError, match="the outer structure has no leaves"):
        tree.transpose(tree.structure([]), None, [])
