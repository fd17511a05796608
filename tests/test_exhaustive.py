"""A plain run takes the same tenth each time, of each group at least one; `--all` takes all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests import exhaustive
from tests.exhaustive import Sampling, is_sampled, sample_items, sampled

CASES = [f"{op} of {dtype}" for op in ("sin", "cos", "tan") for dtype in range(200)]


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exhaustive, "SAMPLING", Sampling())


def test_a_tenth_is_taken_in_order_and_a_new_case_moves_no_other() -> None:
    found = sampled(CASES)
    assert 40 < len(found) < 80
    assert found == [case for case in CASES if case in found]
    more = sampled(["another", *CASES[:300], "and one", *CASES[300:]])
    assert set(found) - set(more) == set() and set(more) - set(found) <= {"another", "and one"}


def test_each_group_has_one() -> None:
    groups = {case: i for i, case in enumerate(CASES)}
    assert sampled(CASES, group=groups.__getitem__) == CASES
    assert {case.split()[0] for case in sampled(CASES[::50], group=lambda case: case.split()[0])} == {
        "sin", "cos", "tan",
    }  # fmt: skip
    assert len(sampled(CASES[:3])) >= 1 and sampled([]) == []


def test_another_seed_takes_another_tenth_and_all_are_all(monkeypatch: pytest.MonkeyPatch) -> None:
    found = sampled(CASES)
    monkeypatch.setattr(exhaustive, "SAMPLING", Sampling(seed="1"))
    assert len(set(sampled(CASES)) & set(found)) < len(found) / 2
    monkeypatch.setattr(exhaustive, "SAMPLING", Sampling(every=True))
    assert sampled(CASES) == CASES and all(map(is_sampled, CASES))


def item(name: str, mark: Any, **params: Any) -> Any:
    return SimpleNamespace(
        nodeid=name, get_closest_marker=lambda _: mark, callspec=SimpleNamespace(params=params)
    )


def test_what_is_not_marked_stays() -> None:
    mark = pytest.mark.exhaustive("op").mark
    marked = [
        item(f"test_it[{op}-{n}]", mark, op=op, n=n) for op in ("sin", "cos") for n in range(50)
    ]
    others = [item(f"test_that[{n}]", None) for n in range(30)]
    found = sample_items([*others[:9], *marked, *others[9:]])  # type: ignore[arg-type]
    assert [each for each in found if each in others] == others
    assert {each.callspec.params["op"] for each in found if each not in others} == {"sin", "cos"}  # type: ignore[attr-defined]
    assert len(found) < 30 + 25
