"""Benchmarks that tests run are about what they show: nothing is timed for long, or waited for."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.timing.SAMPLE", 0.0)
    monkeypatch.setattr("benchmarks.timing.PAUSE", 0.0)
    monkeypatch.setattr("benchmarks.cuda.measure.SAMPLE", 0.0)
    monkeypatch.setattr("benchmarks.cuda.small_products.COUNT", 2)
    monkeypatch.setattr("ge2.cli.demo.ROUNDS", 3)
