"""Records: what a dataclass does, with methods that are compiled once for all of as many fields."""

from __future__ import annotations

import dataclasses
import pickle
from dataclasses import field
from typing import Any, ClassVar

import pytest

from ge2.base.record import (
    _compiled,
    finished,
    hashed_record,
    mutable,
    outlines,
    record,
    single,
)


@record
class Point:
    limit: ClassVar[int] = 3
    x: int
    note: str = field(default="", compare=False, repr=False)
    y: int = 2
    twice: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "twice", 2 * self.x)


@record
class Near(Point):
    far: bool = False


@mutable
class Counter:
    n: int
    seen: list[Any] = field(default_factory=list)


def test_a_record_is_a_dataclass() -> None:
    p, names = Point(1, y=5), ["x", "note", "y", "twice"]
    assert [f.name for f in dataclasses.fields(Point)] == names
    assert [f.name for f in outlines(Point)] == names
    assert dataclasses.is_dataclass(p) and Point.__match_args__ == ("x", "note", "y")
    assert (dataclasses.replace(p, x=4).twice, repr(p)) == (8, "Point(x=1, y=5, twice=2)")
    assert pickle.loads(pickle.dumps(p)) == p == Point(1, "other", 5) != Point(1)
    assert hash(p) == hash(Point(1, "other", 5))
    assert not hasattr(p, "__dict__")
    with pytest.raises(dataclasses.FrozenInstanceError):
        p.x = 3  # type: ignore[misc]
    with pytest.raises(TypeError, match="argument: 'x'"):
        Point()  # type: ignore[call-arg]


class Counted:
    """An object that counts how often its hash is worked out."""

    times = 0

    def __hash__(self) -> int:
        self.times += 1
        return 7


@hashed_record
class Key:
    part: Counted
    n: int = 0


def test_a_hashed_record_works_out_its_hash_once() -> None:
    part = Counted()
    key = Key(part, 2)
    assert hash(key) == hash(key) == hash(Key(part, 2)) != hash(Key(part, 3))
    assert part.times == 3
    assert {key: "found"}[Key(part, 2)] == "found"
    assert hash(dataclasses.replace(key, n=3)) == hash(Key(part, 3))
    assert [f.name for f in dataclasses.fields(Key)] == ["part", "n"]
    assert not hasattr(key, "__dict__") and repr(Key(part)).endswith(", n=0)")


def test_records_inherit_fields_and_mutables_have_defaults_of_their_own() -> None:
    near = Near(1, far=True)
    assert dataclasses.asdict(near) == {"x": 1, "note": "", "y": 2, "twice": 2, "far": True}
    a, b = Counter(1), Counter(n=2)
    a.seen.append(3)
    a.n += 1
    assert (a.n, a.seen, b.seen, a == Counter(2)) == (2, [3], [], False)


def test_methods_are_compiled_once_for_all_records_of_as_many_fields() -> None:
    def pair(a: str, b: str) -> Any:
        return single(type("Pair", (), {"__annotations__": {a: "int", b: "int"}}))

    pair("a1", "a0")
    assert (pair("a1", "a0")(1, 2).a1, pair("a1", "a0")(a0=1, a1=2).a1) == (1, 2)
    before = _compiled.cache_info().misses
    assert pair("left", "right")(right=1, left=2).right == 1
    assert _compiled.cache_info().misses == before


@pytest.mark.parametrize("defaults", [{}, {"x": 1}])
def test_a_finished_record_does_not_change_when_it_is_used(defaults: dict[str, int]) -> None:
    made: Any = finished(record(type("Op", (), {"__annotations__": {"x": "int"}, **defaults})))
    before = dict(vars(made))
    assert made(2) == made(x=2)
    assert (repr(made(2)), hash(made(2))) == ("Op(x=2)", hash((2,)))
    assert dataclasses.replace(made(2), x=3).x == 3
    assert vars(made) == before
