"""The timeline of a program's memory: who is there when, and in whose
place; compared with the plan.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ge2
from ge2.base.config import config
from ge2.program import END
from ge2.program.timeline import (
    ALIGNMENT,
    Lifetime,
    Room,
    Row,
    Timeline,
    lowest,
    lowest_in_time,
    plan,
    reusing,
)
from tests.together import needs_compiler

F32 = np.dtype(np.float32)
EXECUTORS = [pytest.param(name, marks=needs_compiler) for name in ("c", "shim")] + [
    "blocked",
    "reference",
]


def struct(*shape: int) -> Any:
    return ge2.ShapeDtypeStruct(shape, F32)


def step(w: Any, b: Any, x: Any) -> Any:
    h = np.tanh(x @ w + b)
    g = np.tanh(h @ w)
    return w - 0.1 * (x.T @ g), (h * g).sum(0)


def timeline(f: Any, *args: Any, executor: str, **options: Any) -> tuple[Timeline, Any]:
    with config.using(executor=executor):
        low = ge2.jit(f, **options).lower(*args)
        return low.memory_timeline(), low.memory_analysis()


ARGS = struct(64, 64), struct(64), struct(500, 64)


@pytest.mark.exhaustive
@pytest.mark.parametrize("executor", EXECUTORS)
def test_rows_are_all_that_the_analysis_counts(executor: str) -> None:
    found, memory = timeline(step, *ARGS, executor=executor, donate_argnums=0)
    by_kind: dict[str, int] = {}
    for row in found.rows:
        by_kind[row.kind] = by_kind.get(row.kind, 0) + row.nbytes
    assert by_kind["argument"] == memory.arguments
    assert by_kind["result"] == memory.outputs
    assert (
        sum(row.nbytes for row in found.rows if row.kind == "result" and row.reuse)
        == memory.donated
    )
    if executor != "reference":
        assert (
            max(row.at + row.nbytes for row in found.rows if row.at >= 0)
            <= memory.arena
            == found.arena
        )


@pytest.mark.exhaustive
@pytest.mark.parametrize("executor", EXECUTORS[:3])
def test_nobody_takes_the_memory_of_what_lives(executor: str) -> None:
    found, _ = timeline(ge2.grad(lambda *a: step(*a)[0].sum(), (0, 1)), *ARGS, executor=executor)
    rows = {row.name.partition(" of ")[0]: row for row in found.rows if row.at >= 0}
    for row in rows.values():
        for name in row.reuse:
            other = rows[name]
            assert other.dies < row.born
            assert other.at < row.at + row.nbytes and row.at < other.at + other.nbytes
    assert any(row.reuse for row in rows.values())


def test_a_donated_argument_is_named() -> None:
    found, _ = timeline(step, *ARGS, executor="blocked", donate_argnums=0)
    (new,) = (row for row in found.rows if row.kind == "result" and row.type == "f32[64,64]")
    assert new.reuse == (found.rows[0].name,)
    assert not new.lives(0)  # that memory is the argument's


def test_lines_are_those_that_make_the_value() -> None:
    """Of a region, the line of the equation whose value it is."""
    found, _ = timeline(step, *ARGS, executor="blocked")
    lines = {row.line.split(":")[1] for row in found.rows if row.kind in ("arena", "result")}
    begin = step.__code__.co_firstlineno
    assert {f"{begin + n} in step" for n in (1, 2, 3)} <= lines


def test_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    found, _ = timeline(step, *ARGS, executor="blocked", donate_argnums=0)
    head, titles, *rows = str(found).split("\n")
    most = found.at(found.fullest)
    assert head.startswith(f"{len(found.program.steps)} steps, arena of ")
    assert f"most is in use at step {found.fullest}, " in head
    assert titles.split() == ["buffer", "is", "bytes", "born", "dies", "reuse", "of", "line"]
    assert len(rows) == len(found.rows)
    assert rows[0].split()[:5] == ["a:f32[64,64]", "argument", "16.0", "KB", "call"]
    assert [row.nbytes for row in most] == sorted((row.nbytes for row in most), reverse=True)


def test_the_fullest_step_is_the_fullest() -> None:
    found, _ = timeline(step, *ARGS, executor="blocked")
    moving = [row for row in found.rows if row.kind in ("arena", "scratch", "library")]

    def used(n: int) -> int:
        return sum(row.nbytes for row in moving if row.lives(n))

    numbers = [s.number for s in found.program.steps]
    assert used(found.fullest) == max(map(used, numbers))


def test_a_program_that_does_nothing() -> None:
    found, _ = timeline(lambda x: x, struct(3), executor="blocked")
    assert found.fullest == -1 or found.program.steps
    assert "arena of 0 B" in str(found)


def test_loops_have_scratch_of_their_own() -> None:
    def f(x: Any) -> Any:
        return ge2.lax.while_loop(lambda c: c.sum() < 1e3, lambda c: np.tanh(c @ c) * 2, x)

    with config.using(executor="blocked"):
        found = ge2.jit(f).lower(struct(32, 32)).memory_timeline()
    assert any(row.kind == "scratch" and row.title.endswith("of while") for row in found.rows), str(
        found
    )


def rows_of(rng: np.random.Generator, count: int, most: int = 50) -> list[Row]:
    lives = []
    for n in range(count):
        first = int(rng.integers(0, count))
        lives.append(
            (
                f"v{n}",
                Lifetime(int(rng.integers(1, 900)), first, first + int(rng.integers(0, most))),
            )
        )
    made = plan([life for _, life in lives])
    rooms = [Room(*each, at) for each, at in zip(lives, made.offsets, strict=True)]
    rows = [
        Row(r.name, "", "arena", r.life.nbytes, r.life.first, r.life.last, r.offset) for r in rooms
    ]
    return sorted(rows, key=lambda row: row.born)


@pytest.mark.parametrize("seed", range(8))
def test_whose_memory_it_is_is_who_had_each_byte_last(seed: int) -> None:
    """Against a map of all bytes."""
    bytes_: dict[int, str] = {}
    for row in reusing(rows_of(np.random.default_rng(seed), 60)):
        place = range(row.at, row.at + row.nbytes)
        assert set(row.reuse) == {bytes_[n] for n in place if n in bytes_}
        bytes_.update(dict.fromkeys(place, row.name))


def test_many_arrays_take_little_time() -> None:
    rows = rows_of(np.random.default_rng(0), 20_000)
    began = time.perf_counter()
    assert len(list(reusing(rows))) == len(rows)
    assert time.perf_counter() - began < 5


def test_a_row_lives_from_its_birth_to_its_death() -> None:
    row = Row("x", "f32[3]", "arena", 12, 2, 4)
    assert [row.lives(n) for n in range(6)] == [False, False, True, True, True, False]
    assert Row("x", "f32[3]", "argument", 12, -1, 0).lives(5)
    assert Row("y", "", "result", 12, 3, END).cells()[3:5] == ("3", "end")


LIVES = st.builds(
    lambda nbytes, first, more: Lifetime(nbytes, first, first + more),
    st.sampled_from((0, 1, 64, 100, 4096)) | st.integers(1, 1 << 20),
    st.integers(0, 12),
    st.integers(0, 6) | st.just(END),
)


@given(st.lists(LIVES, max_size=30), st.randoms())
def test_the_lowest_places_are_those_found_pair_by_pair(lives: Any, random: Any) -> None:
    order = random.sample(range(len(lives)), len(lives))
    want = lowest(lives, order, lambda i, j: lives[i].meets(lives[j]), ALIGNMENT)
    assert lowest_in_time(lives, order, ALIGNMENT) == want
