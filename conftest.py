"""Options of the whole suite; doctests: an example belongs to the module that
defines its function.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from _pytest.doctest import DoctestItem

from tests.exhaustive import SAMPLING, day_of_commit, sample_items, skipped_once

# NumPy's own threads would only stand in the way of other workers
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ge2")
    group.addoption(
        "--all", action="store_true", help="every case of each table, not a seeded tenth"
    )
    group.addoption(
        "--sample-seed",
        default=os.environ.get("GE2_TEST_SEED"),
        help="which tenth is drawn (GE2_TEST_SEED); by default the day of the commit",
    )


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background jobs begin so
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.option.sample_seed is None:  # of workers it is set: they draw as who started them
        config.option.sample_seed = day_of_commit(config.rootpath)
    SAMPLING.every, SAMPLING.seed = config.option.all, config.option.sample_seed
    gc.set_threshold(
        10_000
    )  # collections take a hundredth of the time; where jax is imported, more


def pytest_report_header(config: pytest.Config) -> str:
    if SAMPLING.every:
        return "sample: every case"
    return f"sample: --sample-seed={SAMPLING.seed} repeats it"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests of a file stay with one worker while there is work, so that what
    they share is made once.
    """
    if config.getoption("dist") != "load":  # something else was asked for than the default of -n
        return None
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


@pytest.hookimpl(trylast=True)  # after -k and -m, so that what is asked for by name has a case
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    found = [item for item in items if not (isinstance(item, DoctestItem) and is_published(item))]
    some = skipped_once(found)
    drawn = some if SAMPLING.every else sample_items(some)
    kept = set(drawn)
    config.hook.pytest_deselected(items=[item for item in found if item not in kept])
    items[:] = drawn


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """The collector leaves the tests themselves alone, millions of objects that it
    would look through while they are made and in each test.
    """
    gc.disable()
    import_share()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def import_share() -> None:
    """Workers of a run begin with different tests, so that each writes a part of the bytecode, with
    its assertions rewritten, and finds that of the others; so with the constants of ge2's modules,
    from which Hypothesis draws and which it keeps in a folder.
    """
    worker, count = (os.environ.get(f"PYTEST_XDIST_WORKER{name}") for name in ("", "_COUNT"))
    if worker is None or count is None:
        return
    tests = sorted(Path(__file__).parent.glob("tests/*/test_*.py"))
    for path in tests[int(worker.removeprefix("gw")) :: int(count)]:
        with suppress(Exception, pytest.skip.Exception):  # which it says where it is collected
            import_module(f"tests.{path.parent.name}.{path.stem}")
    with suppress(Exception):  # of a part of Hypothesis that is its own
        from hypothesis.internal.constants_ast import constants_from_module

        ours = sorted(name for name in sys.modules if name.partition(".")[0] == "ge2")
        for name in ours[int(worker.removeprefix("gw")) :: int(count)]:
            constants_from_module(sys.modules[name])


def is_published(item: DoctestItem) -> bool:
    """True for the example of a function that another module defines, which has it, too."""
    module = item.dtest.globs
    value = module.get(item.dtest.name.rpartition(".")[2])
    return isinstance(value, FunctionType) and value.__globals__["__name__"] != module["__name__"]
