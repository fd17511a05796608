"""Doctests: an example belongs to the module that defines its function, not to those that publish it."""

from __future__ import annotations

from types import FunctionType

import pytest
from _pytest.doctest import DoctestItem


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if not (isinstance(item, DoctestItem) and is_published(item))]


def is_published(item: DoctestItem) -> bool:
    """True for the example of a function that another module defines, which has it, too."""
    module = item.dtest.globs
    value = module.get(item.dtest.name.rpartition(".")[2])
    return isinstance(value, FunctionType) and value.__globals__["__name__"] != module["__name__"]
