"""A plain run takes the same tenth each time, of each group at least one; `--all` takes all."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ge2.base import detect
from tests import exhaustive, quick
from tests.exhaustive import (
    Sampling,
    covering,
    day_of_commit,
    is_sampled,
    lacks_gpu,
    sample_items,
    sampled,
    skipped_once,
)
from tests.together import needs_compiler

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


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_the_seed_is_the_day_of_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert day_of_commit(tmp_path) == "0", "no checkout"
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2026-01-31T23:59:59+00:00")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=ge2", "-c", "user.email=ge2@example.org"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *command], check=True)
    assert day_of_commit(tmp_path) == "2026-01-31"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert day_of_commit(tmp_path) == "0", "no git"


def test_the_fewest_cases_cover_what_the_tenth_lacks() -> None:
    pairs = [(a, b) for a in range(6) for b in range(6)]
    found = covering(pairs, str, lambda pair: {("a", pair[0]), ("b", pair[1])})
    assert {a for a, _ in found} == {b for _, b in found} == set(range(6))
    assert 6 <= len(found) <= 8 and set(sampled(pairs)) - set(found) <= {pairs[0]}
    tenth = [case for case in CASES if is_sampled(case)]
    assert sampled(CASES, group=lambda case: case.split()[0]) == tenth, "which covers all groups"


class Item(SimpleNamespace):
    __hash__ = object.__hash__


def item(name: str, *marks: Any, **params: Any) -> Any:
    found = {mark.name: mark for mark in marks}
    return Item(
        nodeid=name, get_closest_marker=found.get, iter_markers=found.values,
        callspec=SimpleNamespace(params=params),
    )  # fmt: skip


def test_what_is_not_marked_stays() -> None:
    mark = pytest.mark.exhaustive("op").mark
    marked = [
        item(f"test_it[{op}-{n}]", mark, op=op, n=n) for op in ("sin", "cos") for n in range(50)
    ]
    others = [item(f"test_that[{n}]") for n in range(30)]
    found = sample_items([*others[:9], *marked, *others[9:]])  # type: ignore[arg-type]
    assert [each for each in found if each in others] == others
    assert {each.callspec.params["op"] for each in found if each not in others} == {"sin", "cos"}  # type: ignore[attr-defined]
    assert len(found) < 30 + 25


def test_a_twentieth_is_a_part_of_the_tenth() -> None:
    some, fewer = (
        {x.nodeid for x in sample_items([item(f"test_it[{n}]", mark, n=n) for n in range(600)])}
        for mark in (pytest.mark.exhaustive().mark, pytest.mark.exhaustive(share=20).mark)
    )
    assert 40 < len(some) < 80 and 20 < len(fewer) < 40 and fewer < some


def test_a_mark_that_would_draw_every_case_is_refused() -> None:
    with pytest.raises(pytest.UsageError, match="test_it: a mark that names all parameters"):
        sample_items([item("test_it[sin]", pytest.mark.exhaustive("op").mark, op="sin")])


def test_functions_of_a_table_share_what_they_cover() -> None:
    mark = pytest.mark.exhaustive("op", table="waves").mark
    marked = [
        item(f"test_{f}[{op}-{n}]", mark, op=op, n=n)
        for f in ("it", "that") for op in range(20) for n in range(3)
    ]  # fmt: skip
    found = sample_items(marked)
    assert {each.callspec.params["op"] for each in found} == set(range(20))  # type: ignore[attr-defined]
    assert {each.nodeid.partition("[")[0] for each in found} == {"test_it", "test_that"}
    assert 20 <= len(found) < 32


def test_what_lacks_a_gpu_says_so_once_a_function_and_is_no_case_of_a_table() -> None:
    table, gpu = pytest.mark.exhaustive("op").mark, pytest.mark.gpu.mark
    lacks, there = (
        pytest.mark.skipif(True, reason="").mark,
        pytest.mark.skipif(False, reason="").mark,
    )
    places = {"cpu": [table], "gpu": [table, gpu, lacks], "another": [table, gpu, there]}
    items = [
        item(f"test_it[{op}-{place}]", *marks, op=op, place=place)
        for op in ("sin", "cos", "tan")
        for place, marks in places.items()
    ]
    some = skipped_once(items)
    assert [each.nodeid for each in some if each not in items[0::3] + items[2::3]] == [
        "test_it[tan-gpu]"
    ]
    drawn = [each for each in sample_items(some) if not lacks_gpu(each)]
    assert {each.callspec.params["op"] for each in drawn} == {"sin", "cos", "tan"}


@needs_compiler
def test_quick_options_come_and_go() -> None:
    """The header that is compiled already is there, or else nobody would see that it is not."""
    found = []
    for each in (True, False, True):
        quick.compile_quickly(each)
        tools = detect.toolchain()
        assert tools is not None and ("-Og" in tools.flags) is each is ("-O3" not in tools.flags)
        found.append(tools.flags)
    assert found[0] == found[2] == (*quick.swapped(found[1], "-O3", "-Og"), *quick.more())
    if "gcc" in tools.path and sys.platform.startswith("linux"):
        kept = Path(quick.more()[0].removeprefix("-I"))
        names = ("ge2/core.h.gch/plain", "shim/shim.h.gch/plain", "shim/shim.h.gch/watched")
        assert all((kept / name).stat().st_size > 1 << 20 for name in names)
