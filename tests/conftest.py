"""How every test runs: seeded, without a deadline, each graph verified, each kind of
equation read back from its text.
"""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import sys
import sysconfig
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

from tests.exhaustive import SAMPLING, is_sampled

# Set before ge2 is imported, so that it holds in subprocesses of tests too.
os.environ.setdefault("GE2_CHECK", "1")
os.environ.setdefault("GE2_TRACEBACK", "full")  # a failure shows where in ge2 it was
if "GE2_CACHE_DIR" not in os.environ:  # one for all processes of a run, and none of the user's
    os.environ["GE2_CACHE_DIR"] = tempfile.mkdtemp(prefix="ge2-tests-")
    atexit.register(shutil.rmtree, os.environ["GE2_CACHE_DIR"], True)


def link_bytecode(folder: str) -> None:
    """What is installed has its bytecode, which Python looks for in the folder alone: each first
    process that imports NumPy, JAX or SciPy would compile them, in seconds.
    """
    for place in {sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")}:
        for root, folders, files in os.walk(place):
            folders[:] = [name for name in folders if name not in ("site-packages", "test")]
            if os.path.basename(root) != "__pycache__":
                continue
            beside = folder + os.path.splitdrive(os.path.dirname(root))[1]
            os.makedirs(beside, exist_ok=True)
            for name in files:
                if name.endswith(f"{sys.implementation.cache_tag}.pyc"):
                    os.symlink(os.path.join(root, name), os.path.join(beside, name))


if "BYTECODE_OF_TESTS" not in os.environ:  # that child processes share
    os.environ["BYTECODE_OF_TESTS"] = tempfile.mkdtemp(prefix="ge2-bytecode-")
    atexit.register(shutil.rmtree, os.environ["BYTECODE_OF_TESTS"], True)
    with suppress(OSError):
        link_bytecode(os.environ["BYTECODE_OF_TESTS"])
# where the tree is to have none, workers share it there, too
if "PYTEST_XDIST_WORKER" in os.environ and sys.dont_write_bytecode:
    sys.dont_write_bytecode, sys.pycache_prefix = False, os.environ["BYTECODE_OF_TESTS"]

COMMON: dict[str, Any] = {"deadline": None, "database": None, "print_blob": True}
# it measures the machine, not the test
COMMON["suppress_health_check"] = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("ci", derandomize=True, max_examples=20, **COMMON)
hypothesis.settings.register_profile("all", derandomize=True, **COMMON)
hypothesis.settings.register_profile("explore", max_examples=1000, **COMMON)
hypothesis.settings.load_profile("ci")  # pytest --hypothesis-profile=explore looks harder

# of threads, blocks and launches in the emulator: by their numbers, or the last first, which takes
# a quarter longer
ORDERS = (0, 0, 0, 1)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--all") and not config.getoption("--hypothesis-profile"):
        hypothesis.settings.load_profile("all")


def pytest_collection_finish() -> None:
    """What all tests of this process share. As fixtures it would take longer, many thousand times."""
    processes_share_bytecode()
    compiler_is_looked_for()
    if SAMPLING.every:  # of equations that differ in their numbers alone the text is read back, too
        stage = import_module("ge2.trace.stage")  # `ge2.trace.stage` is a function, too
        stage.alike = lambda eqn: {stage.look(eqn)}


def processes_share_bytecode() -> None:
    """Python compiles ge2 once for all child processes of a run, also where
    the user's compiles leave nothing in the tree: half a second each.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.setdefault("PYTHONPYCACHEPREFIX", os.environ["BYTECODE_OF_TESTS"])


def compiler_is_looked_for() -> None:
    """Where there is none, that is said once, here, and is no failure of the
    first test that compiles.
    """
    from ge2.targets.c.launcher import native

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        native()  # which programs of a machine's first process do without until it is there


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests compile at -Og, but for a seeded twentieth of them, which compile C as users do, and
    those marked full_options, and all under `--all`; they are others than those drawn of tables, or
    else each of those would compile as users do. The emulator has an order by the test's name where
    that asks for none.
    """
    import ge2.choice as built
    from ge2.base.config import config as settings
    from tests.quick import compile_quickly

    built.forget()  # the choices of a test do not depend on programs of others
    if "GE2_SHIM_SEED" not in os.environ:
        settings.update(shim_seed=ORDERS[zlib.crc32(item.nodeid.encode()) % len(ORDERS)])

    full = item.get_closest_marker("full_options") is not None or SAMPLING.every
    compile_quickly(not (full or is_sampled(f"options of {item.nodeid}", 20)), not full)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Tests marked any_executor compile no C, but for a seeded tenth of
    them, and all under `--all`.
    """
    if item.get_closest_marker("any_executor") is None or is_sampled(item.nodeid):
        return (yield)
    from ge2.base.config import config

    with config.using(executor="blocked"):
        return (yield)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Caches of a file's programs are not looked through in each later test."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture
def collector_sees_modules() -> Iterator[None]:
    """For tests of who refers to a value, where the answer is a module."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers of the test's own: the same in each run, in any order, on
    any number of processes.
    """
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden anew")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], str]:
    """Compares a text with a file of tests/golden, or writes the file under --update-golden."""

    def compare(name: str, text: str) -> str:
        path = Path(__file__).parent / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"tests/golden/{name} is missing; pytest --update-golden writes it"
        assert text == path.read_text()
        return text

    return compare
