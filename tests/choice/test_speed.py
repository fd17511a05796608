"""Predictions: what limits of a device say of a problem, and the probe that measures them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ge2
import ge2.choice as built
from ge2 import compile
from ge2.base.config import config
from ge2.choice import Prefs, Speed, bytes_of, record
from ge2.choice.choose import candidates
from ge2.kernels import select
from ge2.targets.c.tuning import Caps
from ge2.targets.cuda.limits import A100, H200, Limits

ROUND = Speed(1e9, 4e9, 1000, 1e10, 5e9, 2e10, 1e-6, functions=8)
MATRIX = {"contract": ((1,), (0,)), "beside": ((), ())}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[None]:
    with config.using(cache_dir=str(tmp_path)):
        record.forget()
        built._known.clear()
        yield
    record.forget()
    built._known.clear()


def test_the_slower_of_bytes_and_operations() -> None:
    x = np.ones((1000, 1000), np.float32)
    added = select("add", [x, x], "c").problem
    assert bytes_of(added) == 12_000_000
    assert ROUND.of(added) == pytest.approx(1e-6 + 12e-3)
    assert ROUND.of(added, passes=2, launches=3) == pytest.approx(3e-6 + 24e-3)
    product = select("dot_general", [x, x], "c", **MATRIX).problem
    assert ROUND.of(product) == pytest.approx(1e-6 + 2e9 / 1e10)
    assert ROUND.of(product, rate=2.0) == pytest.approx(1e-6 + 1e9 / 1e10)
    wide = select("dot_general", [x.astype(float)] * 2, "c", **MATRIX).problem
    assert ROUND.of(wide) == pytest.approx(1e-6 + 2e9 / 5e9)
    small = select("tanh", [x[0, :100]], "c").problem
    assert ROUND.of(small) == pytest.approx(1e-6 + 800 / 4e9)


def test_elements_that_repeat_are_there_once() -> None:
    row = np.broadcast_to(np.ones(1000, np.float32), (1000, 1000))
    assert bytes_of(select("add", [row, row], "c").problem) == 4_000_000 + 2 * 4000


def test_a_probe_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("COPIED", 1 << 15), ("ELEMENTS", 1 << 13), ("SIDE", 16)):
        monkeypatch.setattr(compile, name, value)
    caps = Caps(2)
    assert caps.speed == caps.usual
    found = compile.probe(caps, None)
    assert caps.speed == found and min(found.moved, found.single, found.double, found.launch) > 0
    assert built.probed(Caps(1).kind) is not None  # variants do with one thread
    monkeypatch.setattr(compile, "processor", None)
    assert compile.probe(caps, None) == found
    assert not record.entries()  # it is no measurement of a kernel


def test_every_candidate_has_a_prediction() -> None:
    x = ge2.ShapeDtypeStruct((512, 512), np.float32)
    for caps in ("c", "sm_90a"):
        for name, xs, attributes in (
            ("softmax", [x], {}), ("dot_general", [x, x], MATRIX), ("cumsum", [x], {"axis": 1, "reverse": False}),
        ):  # fmt: skip
            choice = select(name, xs, caps, **attributes)
            assert choice.by == "order"  # which was measured on these
            possible = [c for c in choice.candidates if not c.refusal]
            assert possible and all(c.predicted and c.predicted > 0 for c in possible)


def test_on_a_chip_nobody_tuned_for_predictions_decide() -> None:
    x = ge2.ShapeDtypeStruct((2048, 2048), np.float32)
    for chip, by in (
        (H200, "order"),
        (A100, "predicted"),
        (Limits("Other", "sm_89", 40), "predicted"),
    ):
        choice = select("dot_general", [x, x], chip, **MATRIX)
        assert (choice.taken.title, choice.by) == ("product by BLAS", by)
    slow = Speed(1e12, 2e12, 1 << 20, 1e13, 5e12, 1e11, 1e-6)
    caps = choice.caps
    built.keep_speed(caps.kind, slow)  # a library that is slow there
    again = select("dot_general", [x, x], chip, **MATRIX)
    assert again.taken.title == "product in CUDA"
    times = [
        c.predicted for c in candidates(again.problem, caps, Prefs(), again.catalog) if c.predicted
    ]
    assert len(times) == 2 and replace(slow, launch=1.0) != slow
