"""The record of measurements: classes of problems, what is believed, and what it costs to ask."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from ge2.base.cache import Cache
from ge2.base.config import config
from ge2.choice import Family, Measured, Pin, Prefs, Problem, Variant, record
from ge2.choice import choose as choices
from ge2.choice.choose import Choice, choose, written
from ge2.choice.record import class_of, code_of, keep
from ge2.cli import main
from ge2.cli.kernels import stale_lines
from ge2.codegen.text import whole
from ge2.ir import ArrayType
from ge2.ops.shape import Transpose


class Chip:
    kind = "a chip"


class Offer(Family[Chip, str]):
    target = "here"

    def __init__(self, name: str, *names: str, seconds: float | None = None) -> None:
        self.title, self.names, self.predicted = name, names, seconds

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.title

    def refuses(self, problem: Problem, caps: Chip | None) -> str:
        return ""

    def variants(self, problem: Problem, caps: Chip) -> tuple[Variant, ...]:
        return tuple(map(Variant, self.names))

    def seconds(self, problem: Problem, variant: Variant, caps: Chip) -> float | None:
        return self.predicted

    def kernels(self, problem: Problem, variant: Variant, caps: Chip) -> str:
        return variant.name


A, B = Offer("a", "one", "two"), Offer("b", "other")
CHIP = Chip()


def problem(*shape: int, layout: bool = True) -> Problem:
    x = ArrayType(shape, np.dtype(np.float32))
    y = x.with_shape(shape[::-1])
    lie = (whole("in", 0, x.shape), whole("out", 0, y.shape)) if layout else ()
    return Problem(Transpose((1, 0)), (x,), (y,), "here", operands=lie)


def row(family: str, variant: str, median: float, **more: Any) -> Measured:
    return Measured(family, variant, median, code=more.pop("code", code_of(variant)), **more)


def chosen(*shape: int, **prefs: Any) -> Choice:
    return choose(problem(*shape), CHIP, Prefs(**prefs), (A, B))


def told(*shape: int, **prefs: Any) -> tuple[str, str]:
    found = chosen(*shape, **prefs)
    return found.taken.title, found.by


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(record, "_taken", {})
    monkeypatch.setattr(choices, "_stale", {})
    with config.using(cache_dir=str(tmp_path)):
        record.forget()
        yield tmp_path
    record.forget()


# ----------------------------------------------------------------------------------------- classes


def test_a_class_rounds_extents() -> None:
    assert class_of(problem(101, 3)) == class_of(problem(97, 3))
    assert class_of(problem(100, 3)) != class_of(problem(104, 3))  # by 8
    assert class_of(problem(128, 3)) != class_of(problem(129, 3))
    assert class_of(problem(5, 3)) != class_of(problem(7, 3))  # small ones are spelt out
    assert class_of(problem(1, 3)) != class_of(problem(2, 3))
    near, far = class_of(problem(257, 3)), class_of(problem(1025, 3))
    assert class_of(problem(130, 3)).is_near(near) and not class_of(problem(130, 3)).is_near(far)


def test_a_class_knows_how_arrays_lie() -> None:
    from dataclasses import replace

    plain = problem(4, 6)
    x, y = plain.operands
    turned = replace(plain, operands=(replace(x, strides=(1, 4)), y))
    apart = replace(plain, operands=(replace(x, strides=(8, 1)), y))
    shifted = replace(plain, operands=(replace(x, offset=1), y))
    classes = {class_of(each).text for each in (plain, turned, apart, shifted)}
    assert len(classes) == 4


# ------------------------------------------------------------------------------------------ belief


def test_the_winner_of_a_race_is_taken() -> None:
    assert told(100, 3) == ("a, one", "order")
    rows = [row("a", "one", 3.0), row("a", "two", 2.0), row("b", "other", 1.0)]
    keep("a chip", class_of(problem(100, 3)), True, rows)
    assert told(100, 3) == ("b, other", "measured")
    assert told(108, 3) == ("b, other", "measured")  # of one class
    assert told(100, 3, tune="off") == ("a, one", "order")
    assert told(100, 3, without=("b",)) == ("a, two", "measured")
    assert [c.title for c in chosen(100, 3).others] == ["a, two", "a, one"]
    assert "measured 1e+06 us, spread 0.0%, by measurement" in str(chosen(100, 3))


def test_it_takes_all_to_be_measured_or_raced() -> None:
    keep("a chip", class_of(problem(100, 3)), False, [row("b", "other", 1.0)])
    assert told(100, 3) == ("a, one", "order")
    keep("a chip", class_of(problem(100, 3)), False, [row("a", "one", 3.0), row("a", "two", 2.0)])
    assert told(100, 3) == ("b, other", "measured")


def test_what_is_nearly_as_fast_comes_in_its_order() -> None:
    rows = [row("a", "one", 1.02), row("a", "two", 1.01), row("b", "other", 1.0)]
    keep("a chip", class_of(problem(100, 3)), True, rows)
    assert told(100, 3) == ("a, one", "measured")
    assert told(100, 3, without=("a",)) == ("b, other", "measured")


def test_what_failed_never_wins() -> None:
    failed = row("a", "one", 0.0, failure="it writes outside of its result")
    keep("a chip", class_of(problem(8, 3)), True, [failed, row("a", "two", 2.0)])
    found = chosen(8, 3)
    assert (found.taken.title, found.by) == ("a, two", "measured")
    assert str(found).startswith("not a, one: it writes outside of its result\na, two")
    rows = [
        row(*each, 0.0, failure="wrong") for each in (("a", "one"), ("a", "two"), ("b", "other"))
    ]
    keep("a chip", class_of(problem(8, 3)), True, rows)
    assert told(8, 3) == ("a, one", "order")  # something has to serve


def test_what_is_stale_is_shown_and_not_believed() -> None:
    old = row("b", "other", 1.0, code="of another text")
    keep("a chip", class_of(problem(8, 3)), True, [row("a", "one", 3.0), row("a", "two", 2.0), old])
    with choices.made_once({}):
        assert chosen(8, 3).by == "measured" and not record.stale()  # nothing is written yet
        found, kernels = written(chosen(8, 3))
        assert (found.taken.title, found.by, kernels) == ("a, one", "order", "one")
        assert "b, other, measured 1e+06 us, spread 0.0%, of another text" in str(found)
        assert chosen(8, 3).taken.title == "a, one"  # and stays
    record.forget()
    (entry,) = record.stale()
    assert entry.rows == (old,) and entry.problem == class_of(problem(8, 3)).text
    assert stale_lines([entry]).startswith("of another text today: b, other for heretranspose ")
    keep("a chip", class_of(problem(8, 3)), True, [row("b", "other", 1.0)])
    assert not record.stale()


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of that of the package."""
    monkeypatch.setattr(record, "SHIPPED", str(tmp_path))
    monkeypatch.setattr("ge2.choice.SHIPPED", str(tmp_path))
    return tmp_path


def ship(folder: Path, *rows: Any, **more: Any) -> None:
    """Writes the file of a device, of two classes."""
    made = tuple(row(*each, **more) for each in rows)
    found = [record.Entry(class_of(problem(n, 3)).text, "a chip", True, made) for n in (8, 64)]
    (folder / "a_chip.jsonl").write_text(f"no entry\n{record.text_of(found)}")
    record.forget()


def test_a_shipped_row_decides_and_the_users_stands_above_it(shipped: Path) -> None:
    ship(shipped, ("a", "one", 3.0), ("a", "two", 2.0), ("b", "other", 9.0))
    assert told(8, 3) == told(64, 3) == ("a, two", "measured")
    keep("a chip", class_of(problem(8, 3)), True, [row("b", "other", 1.0), row("a", "one", 3.0)])
    assert told(8, 3) == ("b, other", "measured") and told(64, 3) == ("a, two", "measured")


def test_a_stale_shipped_row_is_ignored_and_named(shipped: Path, capsys: Any) -> None:
    ship(shipped, ("a", "one", 3.0), ("a", "two", 2.0), ("b", "other", 1.0), code="another")
    assert written(chosen(8, 3))[0].taken.title == "a, one"
    record.forget()
    assert main(["tune", "--report"]) == 0
    assert "of another text today: b, other for " in capsys.readouterr().out


def test_predictions_are_corrected_by_what_was_measured() -> None:
    """Of a class that the record lacks: by the factor of the family, on this kind of device."""
    catalog = Offer("a", "one", seconds=2.0), Offer("b", "other", seconds=1.0)

    def taken(**prefs: Any) -> str:
        found = choose(problem(500, 3), CHIP, Prefs(**prefs), catalog)
        assert found.by == "predicted"
        return str(found.taken)

    assert taken() == "b, other, predicted 1e+06 us"
    rows = [row("a", "one", 1.0, predicted=2.0), row("b", "other", 3.0, predicted=1.0)]
    keep("a chip", class_of(problem(8, 3)), True, rows)
    assert taken() == "a, one, predicted 1e+06 us"
    assert taken(tune="off") == "b, other, predicted 1e+06 us"


def test_what_was_predicted_in_doubt_says_nothing_of_other_problems() -> None:
    """A doubted time is a hundredfold: as a factor, its race would cancel every later doubt."""
    sure, doubted = row("a", "one", 2.0, predicted=1.0), row("a", "two", 1.0, predicted=100.0)
    entry = record.Entry("a class", "a chip", True, (sure, doubted))
    assert record.ratios_of([entry]) == {("a chip", "a"): [2.0]}


def test_a_neighbour_compiles_nothing() -> None:
    """A class without measurements takes the variant that this program has for a like one."""
    rows = [row("a", "one", 3.0), row("a", "two", 2.0), row("b", "other", 1.0)]
    keep("a chip", class_of(problem(64, 3)), True, rows)
    assert told(40, 3) == ("a, one", "order")  # nothing is built yet
    assert told(64, 3) == told(40, 3) == told(100, 3) == ("b, other", "measured")
    assert told(1000, 3) == ("a, one", "order")


def test_damage_is_a_miss() -> None:
    keep("a chip", class_of(problem(8, 3)), True, [row("b", "other", 1.0)])
    (path,) = Path(str(record.store().path)).iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    record.forget()
    with pytest.warns(Warning, match="is not used"):
        assert told(8, 3) == ("a, one", "order")


def test_a_pin_is_for_its_class() -> None:
    pin = Pin("b", "other", class_of(problem(8, 3)).key)
    assert told(8, 3, pins=(pin,)) == ("b, other", "pinned")
    assert told(80, 3, pins=(pin,)) == ("a, one", "order")


# ------------------------------------------------------------------------------------------- costs


def test_an_empty_record_is_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    record.forget()
    looks, listed = list[str](), os.listdir

    def counted(path: str) -> list[str]:
        looks.append(path)
        return listed(path)

    monkeypatch.setattr(os, "listdir", counted)
    for n in range(2, 9):
        assert told(n, 3)[1] == "order"
    assert len([p for p in looks if p.endswith(os.path.join("tuned", "v1"))]) == 1


def test_what_is_read_is_kept() -> None:
    """A record that another process changes meanwhile does not change this one's choices."""
    rows = [row("a", "one", 3.0), row("a", "two", 2.0), row("b", "other", 1.0)]
    keep("a chip", class_of(problem(64, 3)), True, rows)
    assert told(64, 3) == ("b, other", "measured")
    for path in Path(str(record.store().path)).iterdir():
        path.unlink()
    assert told(64, 3) == ("b, other", "measured")


def test_the_winner_of_a_race_is_asked_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other families are asked when somebody prints: their refusals stand before it then."""
    asked, refuses = list[str](), Offer.refuses

    def told_of(self: Offer, problem: Problem, caps: Chip | None) -> str:
        asked.append(self.name)
        return "no" if self is A else refuses(self, problem, caps)

    monkeypatch.setattr(Offer, "refuses", told_of)
    keep("a chip", class_of(problem(64, 3)), True, [row("b", "other", 1.0)])
    found = chosen(64, 3)
    assert (found.taken.title, found.by, asked) == ("b, other", "measured", ["b"])
    assert str(found).splitlines()[0] == "not a: no" and asked[1:] == ["a", "b"] * 2


def test_a_race_that_was_won_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the winner fails, the settings are others, or the record is read again."""
    asked, refuses, catalog = list[str](), Offer.refuses, (A, B)

    def told_of(self: Offer, problem: Problem, caps: Chip | None) -> str:
        asked.append(self.name)
        return refuses(self, problem, caps)

    def title(n: int = 64, **prefs: Any) -> str:
        asked.clear()
        return choose(problem(n, 3), CHIP, Prefs(**prefs), catalog).taken.title

    monkeypatch.setattr(Offer, "refuses", told_of)
    monkeypatch.setattr(choices, "_failed", {})
    keep("a chip", class_of(problem(64, 3)), True, [row("a", "two", 2.0), row("b", "other", 1.0)])
    assert (title(), asked) == ("b, other", ["b"])
    assert (title(), asked) == ("b, other", [])
    assert (title(60), asked) == ("b, other", ["b"])  # another problem of the class
    assert (title(without=("b",)), asked) == ("a, two", ["a"])
    assert (title(tune="off"), asked) == ("a, one", ["a"])
    choices.fail(choose(problem(64, 3), CHIP, Prefs(), catalog), "no memory")
    assert (title(), asked) == ("a, two", ["b", "a", "b"])
    record.forget()
    assert title(60) == "b, other"
    assert asked == ["b"]


def test_rows_that_another_process_kept_meanwhile_stay(tmp_path: Path) -> None:
    """This one had looked for a record before there was one."""
    with config.using(cache_dir=str(tmp_path)):
        record.forget()
        assert record.own("chip") == b""
        theirs = record.Entry("theirs", "chip", True, (Measured("a", "one", median=1.0),))
        record.store().put(record.key_of("chip"), record.text_of([theirs]).encode(), {})
        keep("chip", class_of(problem(8, 8)), True, [Measured("a", "two", median=2.0)])
        assert len(record.entries()) == 2
    record.forget()


def test_who_asks_for_a_turn_waits_for_it(tmp_path: Path) -> None:
    store, met = Cache(str(tmp_path)), list[str]()

    def other() -> None:
        with store.turn():
            met.append("other")

    with store.turn():
        thread = Thread(target=other)
        thread.start()
        thread.join(0.2)
        met.append("this")
    thread.join()
    assert met == ["this", "other"]
    with Cache(None).turn():  # nowhere to wait
        pass
