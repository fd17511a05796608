"""What needs a GPU is marked `gpu`, and skipped where there is none."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ge2.base.config import config
from ge2.dispatch import cache
from ge2.targets.cuda.launch import library_call
from ge2.targets.cuda.load import driver
from ge2.targets.cuda.load.gpu import cupy


@pytest.fixture
def cp() -> Any:
    return cupy()


@pytest.fixture
def xp(cp: Any) -> Any:
    return cp


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="module")
def extension() -> None:
    """It is there from the first call on."""
    assert library_call.made_now() is not None


@pytest.fixture
def anew() -> None:
    """Equal graphs of other tests are forgotten, so that counts begin at zero."""
    cache.forget()


@pytest.fixture(scope="module")
def library_products() -> Iterator[None]:
    """Small products are the library's too: calls that are captured, no nodes of our own."""
    before = config.passes_off
    config.update(passes_off=(*before, "small_products", "products_to_sums"))
    yield
    config.update(passes_off=before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = f"{Path(__file__).parent}{os.sep}"
    found = driver()
    lacks = (
        "no GPU"
        if not (found and found.gpus)
        else ""
        if importlib.util.find_spec("cupy")
        else "no CuPy"
    )
    for item in items:
        if str(item.path).startswith(here):  # of 30,000: a second by `is_relative_to`
            item.add_marker(pytest.mark.gpu)
            if lacks:
                item.add_marker(pytest.mark.skip(reason=lacks))
