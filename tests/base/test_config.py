"""Settings: from the environment, for the process, for one context; and what
is said of mistakes.
"""

from __future__ import annotations

import contextvars
import gc
import logging
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest

from ge2.base import source
from ge2.base.config import FIELDS, Config, Settings, config, variable
from ge2.base.errors import InputError
from ge2.base.record import record
from ge2.base.source import Ge2Warning, warn
from tests.threads import on_threads


@record
class Unit:
    name: str


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = config.snapshot()
    yield
    config.update(**{name: getattr(before, name) for name in FIELDS})
    gc.collect()
    assert type(config) is Config


def run(code: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("GE2_")}
    return subprocess.run(
        [sys.executable, *options, "-c", f"from ge2.base.config import config\n{code}"],
        env=kept | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )


def test_defaults() -> None:
    out = run("print(config.snapshot())")
    assert out.stdout.strip() == repr(Settings())
    assert out.stderr == ""


def test_the_environment_is_read() -> None:
    environment = {
        "GE2_CHECK": "1",
        "GE2_DISABLE_JIT": "no",
        "GE2_EXECUTOR": "reference",
        "GE2_THREADS": "3",
        "GE2_LOG_COMPILES": "TRUE",
        "GE2_PASSES_OFF": "fuse, fold,",
        "GE2_DUMP": "dumps",
    }
    out = run("print(config.snapshot()); print(config.key)", "-W", "error", **environment)
    wanted = Settings(True, False, "reference", 3, True, ("fuse", "fold"), "dumps")
    key = (
        "(True, 'reference', 3, ('fuse', 'fold'), '', '', False, False, False, False, 'auto', "
        "True, '', 'cached', (), True, 32, (), (), 0)"
    )
    assert out.stdout.splitlines() == [repr(wanted), key]


def test_a_misspelt_variable_warns_once_with_the_nearest_name() -> None:
    out = run("config.check; config.threads", GE2_CHEKC="1", GE2_TEST_PROFILE="x")
    assert out.stderr.count("Ge2Warning") == 1
    assert (
        "<string>:1: Ge2Warning: GE2_CHEKC is set in the environment, but ge2 has no such setting"
        in out.stderr
    )
    assert "try  GE2_CHECK\n" in out.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("GE2_CHECK", "maybe", "GE2_CHECK='maybe': is neither 1 nor 0; False is used"),
        ("GE2_THREADS", "many", "GE2_THREADS='many': is no whole number; 0 is used"),
        ("GE2_THREADS", "-1", "GE2_THREADS='-1': must not be negative; 0 is used"),
        ("GE2_TUNING", "7", "GE2_TUNING='7': is given by config.using alone; () is used"),
        (
            "GE2_EXECUTOR",
            "cuda",
            "must be 'c' or 'blocked' or 'emulator' or 'reference'; 'c' is used",
        ),
    ],
)
def test_a_bad_value_warns_when_it_is_read_and_the_default_holds(
    name: str, text: str, said: str
) -> None:
    code = "import sys; print('imported', file=sys.stderr); config.snapshot(); print(config.snapshot())"
    out = run(code, **{name: text})
    before, after = out.stderr.split("imported\n")
    assert before == ""
    assert said in after
    assert after.count("Ge2Warning") == 1
    assert out.stdout.strip() == repr(Settings())


def test_no_mistake_stops_the_import_even_where_warnings_are_errors() -> None:
    out = run("print(config.threads)", "-W", "error", GE2_THREDS="1", GE2_THREADS="x")
    assert out.stdout == "0\n"


def test_records_are_handed_in_by_their_class_and_are_part_of_the_key() -> None:
    small, large = Unit("small"), Unit("large")
    assert config.tuned(large) is large
    key = config.key
    with config.using(tuning=(3, small)):
        assert config.tuned(large) is small and config.tuned("none") == "none"
        assert config.key != key
    with pytest.raises(InputError, match="must be a tuple of records; got 3"):
        config.update(tuning=3)


def test_update_is_for_the_process() -> None:
    config.update(threads=5, passes_off=["fuse"])
    seen: list[object] = []
    on_threads(lambda: seen.append((config.threads, config.passes_off, config.thread_count())))
    assert seen == [(5, ("fuse",), 5)]
    config.update(threads=0)
    assert config.thread_count() >= 1


def test_using_is_for_this_thread() -> None:
    inside, done = threading.Event(), threading.Event()
    seen: list[int] = []

    def other() -> None:
        inside.wait(10)
        seen.append(config.threads)
        with config.using(threads=9):
            seen.append(config.threads)
        seen.append(config.threads)
        done.set()

    config.update(threads=2)
    thread = threading.Thread(target=other)
    thread.start()
    with config.using(threads=7):
        inside.set()
        assert done.wait(10)
        assert config.threads == 7
    thread.join()
    assert seen == [2, 9, 2]
    assert config.threads == 2


def test_using_nests_and_ends_with_an_error() -> None:
    config.update(threads=1, check=False)
    with config.using(threads=2, check=True), config.using(threads=3):
        assert (config.threads, config.check) == (3, True)
        config.update(executor="reference", threads=4)
        assert (config.threads, config.executor) == (3, "reference")
        assert config.snapshot().threads == 3
    assert config.threads == 4
    with pytest.raises(KeyError), config.using(threads=6):
        raise KeyError
    assert config.threads == 4


def test_a_copied_context_keeps_what_it_was_made_with() -> None:
    config.update(threads=1)
    with config.using(threads=2):
        context = contextvars.copy_context()
    assert config.threads == 1
    assert context.run(lambda: config.threads) == 2
    del context
    gc.collect()
    assert type(config) is Config


def test_the_key_follows_what_changes_compilation() -> None:
    first = config.key
    config.update(log_compiles=True, dump="x")
    assert config.key == first
    with config.using(executor="reference"):
        assert config.key != first
        config.update(check=not config.check)
        assert config.key[0] == config.check
    assert config.key != first
    assert hash(config.key) is not None


def test_the_emulator_has_its_old_name_too():
    with config.using(executor="shim"):
        assert config.executor == "emulator"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"thread": 1}, r"there is no setting 'thread'\n  at   .*\n  try  threads"),
        ({"threads": "1"}, "config.threads must be a whole number; got '1'"),
        (
            {"tune": "sometimes"},
            "config.tune must be 'off' or 'cached' or 'on'; got 'sometimes'(.|\n)*try  tune='cached'",
        ),
        ({"threads": True}, "config.threads must be a whole number; got True"),
        ({"threads": -1}, "config.threads must not be negative; got -1"),
        ({"check": 1}, "config.check must be True or False; got 1"),
        (
            {"executor": "cuda"},
            "config.executor must be 'c' or 'blocked' or 'emulator' or 'reference'; got 'cuda'",
        ),
        ({"passes_off": (1,)}, "config.passes_off must be a tuple of strings"),
    ],
)
def test_wrong_names_and_values_raise(changes: dict[str, object], said: str) -> None:
    before = config.snapshot()
    with pytest.raises(InputError, match=said):
        config.update(**{"log_compiles": not before.log_compiles, **changes})
    with pytest.raises(InputError, match=said), config.using(**changes):
        raise AssertionError("entered")
    assert config.snapshot() == before


def test_reading_and_assigning_a_name() -> None:
    with pytest.raises(AttributeError, match=r"there is no setting 'chek'\n  try  check"):
        config.chek  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"try  config.update\(check=True\)"):
        config.check = True
    assert not hasattr(config, "chek")
    assert dir(config)


def test_the_table_names_every_setting_and_its_variable() -> None:
    rows = repr(config).splitlines()
    assert len(rows) == len(FIELDS)
    for row, name in zip(rows, FIELDS, strict=True):
        assert row.startswith(name)
        assert variable(name) in row


# --- warnings


def test_a_warning_is_at_the_users_line_and_can_be_once() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            warn("something is off", "another way", once="test-key")
        warn("and again")
        warn("and again")
    assert [str(w.message) for w in seen] == [
        "something is off\n  try  another way",
        "and again",
        "and again",
    ]
    assert {w.filename for w in seen} == {__file__}
    assert all(w.category is Ge2Warning for w in seen)


def test_a_with_of_ours_that_warns_does_so_at_the_users_line() -> None:
    """Python's contextlib is between the `with` and what looks at the setting."""
    code = "from ge2.base import compile_times as c\nwith c.making(c.Tally()): pass"
    out = run(code, GE2_PROGRESS="perhaps")
    assert out.stderr.startswith("<string>:3: Ge2Warning: GE2_PROGRESS='perhaps'")


def test_the_logger_is_silent_until_listened_to(caplog: pytest.LogCaptureFixture) -> None:
    assert any(isinstance(h, logging.NullHandler) for h in source.logger().handlers)
    with caplog.at_level(logging.INFO, logger="ge2"):
        source.logger().info("compiled")
    assert "compiled" in caplog.text


def test_equal_settings_have_one_key() -> None:
    """Calls look whether the key is the same object, inside `using` too."""
    before = config.key
    with config.using(executor=config.executor):
        assert config.key is before
    with config.using(executor="reference"):
        inside = config.key
        assert inside is config.key
        assert inside != before
    with config.using(executor="reference"):
        assert config.key is inside
    assert config.key is before


def test_an_update_inside_changes_the_key() -> None:
    with config.using(executor="reference"):
        before = config.key
        config.update(debug_nans=True)
        assert config.key != before
        config.update(debug_nans=False)
        assert config.key is before


def test_a_setting_that_is_not_there_is_not_offered_to_update():
    with pytest.raises(AttributeError, match="no setting 'threds'(.|\n)*threads"):
        config.threds = 1
