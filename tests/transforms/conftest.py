"""Transforms are functions from graph to graph, whose results hold on every executor."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HERE = f"{Path(__file__).parent}{os.sep}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).startswith(HERE):
            item.add_marker("any_executor")
