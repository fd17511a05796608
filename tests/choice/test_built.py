"""A new batch size takes the kernels that were built for another one, where predictions allow it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ge2.choice as built
from benchmarks.cuda import gpt2
from ge2.base.arrays import expecting
from ge2.base.config import config
from ge2.choice import Prefs
from ge2.choice.choose import Choice, choose
from ge2.codegen import environment
from ge2.compile import compile_graph
from ge2.compile.executable import Executable
from ge2.targets.cuda.emulator import OfflineDevice
from ge2.targets.cuda.limits import H200
from tests.choice.test_record import CHIP, Offer, problem

NETWORK = gpt2.Size(layers=1, heads=12, width=768, batch=8, words=2048)
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)


def planned(batch: int) -> Executable:
    """A training step for an H200 that is not at hand."""
    size = replace(NETWORK, batch=batch)
    params = gpt2.start(size.layers, size.width, size.words, size.length)
    tokens = np.zeros((batch, size.length + 1), np.int32)
    call = gpt2.ours(params, tokens, size)
    with config.using(executor="c"), expecting("sm_90a"):
        entry = call.step.trace(*call.held, tokens).entry
        return compile_graph(
            entry.graph, donated=entry.donated or (), name=entry.title, device=OfflineDevice(H200),
            writes=entry.writes, iotas=entry.iotas(),
        )  # fmt: skip


def texts(made: Executable) -> set[str]:
    """The texts of its kernels, but for comments, as a compiler gets them."""
    sources = made.unbuilt().kernels.sources.values()  # type: ignore[attr-defined]
    return {" ".join(COMMENT.sub("", source.text()).split()) for source in sources}


def test_a_step_of_a_smaller_batch_compiles_nothing() -> None:
    first, alone = planned(8), texts(planned(6))
    had = texts(first)
    assert alone - had, "without a program before, predictions take other kernels"
    built.keep(first.decided or [])
    assert not texts(planned(6)) - had
    assert len(texts(planned(4)) - had) <= 3
    assert len(texts(planned(12)) - had) <= 6  # sorts of more indices than are ranked at once


def test_the_texts_of_a_step_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None holds a variable, whose text would be printed anew in each process, by Jinja."""
    with config.using(cache_dir=str(tmp_path)):
        had = texts(planned(8))
        monkeypatch.setattr(environment, "rendered", lambda template, view: pytest.fail(template))
        assert texts(planned(8)) == had


# ----------------------------------------------------------------------------------- small problems


def catalog(first: float, second: float) -> tuple[Any, ...]:
    return Offer("a", "one", seconds=first), Offer("b", "other", seconds=second)


def taken(extent: int, first: float, second: float, **prefs: Any) -> Choice:
    return choose(problem(extent, 3), CHIP, Prefs(**prefs), catalog(first, second))


@pytest.fixture
def program() -> built.Decisions:
    """A program that was built for 100 lines: of the second family."""
    found: built.Decisions = []
    with built.deciding(found):
        assert taken(100, 3.0, 2.0).taken.title == "b, other"
        assert taken(100, 2.0, 2.1).taken.title == "a, one"  # not by what it decided itself
    del found[1:]
    built.keep(found)
    return found


def test_a_neighbour_takes_what_was_built(program: built.Decisions) -> None:
    near = taken(60, 2.0, 2.1)
    assert (near.taken.title, near.by) == ("b, other", "built")
    assert "as built for its like" in str(near) and "or a, one" in str(near)
    assert taken(60, 2.0, 2.1, tune="off").by == "predicted"


@pytest.mark.parametrize("extent", [1, 1000])
def test_what_is_no_neighbour_does_not(program: built.Decisions, extent: int) -> None:
    assert (taken(extent, 2.0, 2.1).taken.title) == "a, one"


def test_what_would_lose_more_than_compiling_takes_does_not(program: built.Decisions) -> None:
    assert taken(60, 2.0, 3.0).taken.title == "a, one"
    assert taken(60, 20e-6, 35e-6).taken.title == "b, other"  # 15 us of a call
    assert taken(60, 5e-6, 12e-6).taken.title == "a, one"  # more than twice as long


def test_a_program_that_was_not_built_decides_nothing() -> None:
    found: built.Decisions = []
    with built.deciding(found):
        taken(100, 3.0, 2.0)
    assert found and taken(60, 2.0, 2.1).taken.title == "a, one"


def test_preferences_are_no_precedent() -> None:
    found: built.Decisions = []
    with built.deciding(found):
        assert taken(100, 2.0, 2.1, without=("a",)).taken.title == "b, other"
        assert taken(100, 2.0, 2.1, only=("b",)).taken.title == "b, other"
    assert not found


def test_a_family_that_hesitates_serves_where_it_was_built(
    program: built.Decisions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Offer, "hesitates", lambda self, *_: "why" if self.name == "b" else "")
    assert taken(60, 2.0, 2.1).taken.title == "b, other"
    found = taken(1000, 2.0, 1.0)
    assert found.taken.title == "a, one" and "not b: why" in map(str, found.candidates)
