"""Tables of cases of which a plain run takes a seeded tenth, and `pytest --all` every one.

A case is drawn by a hash of its name and of the seed, so that a new case leaves those of others as
they were; of each group at least one is taken. The seed is the day of the commit that is checked
out: a commit has one sample, wherever and whenever it is tested, those of a day share it, and
within weeks most cases have run. `--sample-seed` (GE2_TEST_SEED) draws another.
"""

from __future__ import annotations

import subprocess
import zlib
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
SHARE = 10


@dataclass
class Sampling:
    """How this run draws; set once by the command line."""

    every: bool = False
    seed: str = "0"


SAMPLING = Sampling()


def day_of_commit(folder: Path) -> str:
    """The day of the commit that is checked out, "2026-01-31"; "0" where git knows of none."""
    command = "git", "log", "-1", "--format=%cs"
    try:
        found = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return "0"
    return found.stdout.strip() or "0"


def sampled(
    cases: Iterable[T],
    name: Callable[[T], str] = str,
    group: Callable[[T], Hashable] = lambda case: None,
) -> list[T]:
    """A tenth of the cases, in their order, and at least one of each group; all under `--all`."""
    return covering(cases, name, lambda case: {group(case)})


def covering(
    cases: Iterable[T],
    name: Callable[[T], str],
    groups: Callable[[T], set[Hashable]],
    share: Callable[[T], int] = lambda case: SHARE,
) -> list[T]:
    """A tenth of the cases, or one of `share`, and of those that belong to groups of which it has none as few as
    may be, found one by one: that which belongs to most of them.
    """
    cases = list(cases)
    if SAMPLING.every:
        return cases
    places = [place_of(name(case)) for case in cases]
    drawn = {i for i, place in enumerate(places) if place % share(cases[i]) == 0}
    left = [*map(groups, cases)]
    covered = set[Hashable]().union(*(left[i] for i in drawn))
    lacking = [
        (-len(has), place, i) for i, (has, place) in enumerate(zip(left, places, strict=True))
    ]
    heapify(lacking)
    while lacking:  # what the others have found may have made one's number too high
        count, place, best = heappop(lacking)
        left[best] = left[best] - covered
        if len(left[best]) == -count:
            drawn.add(best)
            covered |= left[best]
        elif left[best]:
            heappush(lacking, (-len(left[best]), place, best))
    return [case for i, case in enumerate(cases) if i in drawn]


def examples(count: int) -> int:
    """Of so many examples of a property a quarter; all under `--all`."""
    return count if SAMPLING.every else max(count // 4, 5)


def place_of(name: str) -> int:
    return zlib.crc32(f"{SAMPLING.seed} {name}".encode())


def is_sampled(name: str, share: int = SHARE) -> bool:
    return SAMPLING.every or place_of(name) % share == 0


def sample_items(items: list[pytest.Item]) -> list[pytest.Item]:
    """Tests to run: of those marked `exhaustive(*names)`, one or more for each
    value of these parameters, in each function or in its table; `share=20`: a twentieth.
    """
    marked = [
        item for item in items if item.get_closest_marker("exhaustive") and not lacks_gpu(item)
    ]
    texts: dict[int, str] = {}  # of values, some of which say all that a chip has
    groups = lambda item: groups_of(item, texts)  # noqa: E731
    kept = set(map(id, covering(marked, lambda item: item.nodeid, groups, share_of)))
    left = set(map(id, marked)) - kept
    return [item for item in items if id(item) not in left]


def lacks_gpu(item: pytest.Item) -> bool:
    """Whether it is skipped because it needs a GPU and there is none."""
    marks = {m.name for m in item.iter_markers() if m.name != "skipif" or m.args[:1] == (True,)}
    return "gpu" in marks and bool(marks & {"skip", "skipif"})


def skipped_once(items: list[pytest.Item]) -> list[pytest.Item]:
    """All tests, but of each function that lacks a GPU one alone, which says so: thousands would
    take seconds.
    """
    lacking = {item.nodeid.partition("[")[0]: item for item in items if lacks_gpu(item)}
    said = set(lacking.values())
    return [item for item in items if item in said or not lacks_gpu(item)]


def share_of(item: Any) -> int:
    return int(item.get_closest_marker("exhaustive").kwargs.get("share", SHARE))


def groups_of(item: Any, texts: dict[int, str]) -> set[Hashable]:
    """Each has one case or more: the function with values of all names, or, of functions that are
    one table, the function, and in the table each value of each name.
    """
    mark = item.get_closest_marker("exhaustive")
    function, params = item.nodeid.partition("[")[0], item.callspec.params
    table = mark.kwargs.get("table")

    def text(name: str) -> str:
        value = params[name]
        if id(value) not in texts:
            texts[id(value)] = str(value)
        return texts[id(value)]

    if table is None:
        if mark.args and {*params} == {*mark.args}:
            raise pytest.UsageError(f"{function}: a mark that names all parameters draws all cases")
        return {(function, tuple(map(text, mark.args)))}
    return {function, *((table, name, text(name)) for name in mark.args)}
