"""Tests of one operation each that are compiled many operations at a time.

A test of the name of an operation is one item, so `-k sinc` runs its cases and names it; what it
compiles is a file for the group of its operation, of those that the run has selected.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, final

import numpy as np
import pytest

from tests.laws.test_laws import NAMES

GROUPS = 12
Rng = np.random.Generator
Errors = dict[str, list[str]]  # by the name of an operation
Case = TypeVar("Case")
Cases = Callable[[str, Rng], Iterable[Case]]  # those of an operation
Run = Callable[[list[Case]], Sequence[str]]  # an error for each case, or ""
RUNS: dict[tuple[str, int], Errors] = {}  # of this process: by test and group


def rng_of(name: str) -> Rng:
    """Random numbers of an operation, whatever else is compiled beside it."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def group_of(name: str) -> int:
    """Names in a row are one group: where tests are shared out among processes, few groups are
    compiled by two.
    """
    return NAMES.index(name) * GROUPS // len(NAMES)


@final
@dataclass
class Batch:
    """The operations of the group of one, which are to be compiled with it."""

    test: str
    name: str
    names: list[str] = field(default_factory=list)

    def check(self, cases: Cases[Case], run: Run[Case]) -> None:
        """Fails with the errors of this operation. Of a group that cannot be
        compiled each operation is compiled by itself.
        """
        key = self.test, group_of(self.name)
        if key not in RUNS:
            try:
                RUNS[key] = errors_of(self.names, cases, run)
            except Exception:
                if len(self.names) == 1:
                    raise
                RUNS[key] = {}
        errors = RUNS[key].get(self.name)
        if errors is None:
            errors = errors_of([self.name], cases, run)[self.name]
        assert not errors, "\n".join(errors)


def errors_of(names: Sequence[str], cases: Cases[Case], run: Run[Case]) -> Errors:
    """The errors of each operation, whose cases are run together."""
    found = [(name, case) for name in names for case in cases(name, rng_of(name))]
    errors: Errors = {name: [] for name in names}
    for (name, _), error in zip(found, run([case for _, case in found]), strict=True):
        errors[name] += [error] if error else []
    return errors


@pytest.fixture(scope="session")
def selected(request: pytest.FixtureRequest) -> dict[str, set[str]]:
    """The operations for which this run has a test, by the test."""
    items: Any = request.session.items
    found: dict[str, set[str]] = defaultdict(set)
    for item in items:
        test, _, name = item.nodeid.rstrip("]").partition("[")
        found[test].add(name)
    return found


@pytest.fixture
def batch(request: pytest.FixtureRequest, name: str, selected: dict[str, set[str]]) -> Batch:
    """The operations of the group of `name` for which this run has the same test."""
    test = request.node.nodeid.partition("[")[0]
    group = [other for other in NAMES if group_of(other) == group_of(name)]
    return Batch(test, name, [other for other in group if other in selected[test]])
