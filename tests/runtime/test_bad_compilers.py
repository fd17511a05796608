"""A compiler that is missing, hangs, dies or makes junk costs a warning and
some time, never the answer.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT = 2
SCRIPTS = {
    "hangs": "sleep 60",
    "is killed": "kill -9 $$",
    "prints 10 MB": "head -c 10000000 /dev/zero | tr '\\0' x; exit 1",
    "prints 10 MB and succeeds": "head -c 10000000 /dev/zero | tr '\\0' x; exit 0",
    "writes junk": 'while [ "$1" != -o ]; do shift || exit 0; done; head -c 5000 /dev/urandom > "$2"',
    "writes nothing": "exit 0",
    "refuses": "echo no >&2; exit 1",
}
PROGRAM = """
import json, time, warnings
import numpy as np
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import ge2
    from ge2.base.config import config
    x = np.linspace(-3, 3, 50, dtype=np.float32).reshape(5, 10)
    f = ge2.jit(lambda x: np.exp(x - x.max(1, keepdims=True)).sum(1))
    began = time.perf_counter()
    y = f(x)
    seconds = time.perf_counter() - began
    g = ge2.jit(lambda x: x @ x.T + 1)
    again = time.perf_counter()
    z = g(x)
    again = time.perf_counter() - again
right = np.allclose(y, np.exp(x - x.max(1, keepdims=True)).sum(1)) and np.allclose(z, x @ x.T + 1)
said = [str(w.message) for w in caught if issubclass(w.category, ge2.errors.Ge2Warning)]
print(json.dumps([right, seconds, again, said]))
"""


def run(tmp_path, cc: str) -> tuple[bool, float, float, list[str]]:
    env = {
        **os.environ,
        "GE2_CC": cc,
        "GE2_COMPILE_TIMEOUT": str(LIMIT),
        "GE2_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": str(ROOT),
        "OPENBLAS_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    return found[0], found[1], found[2], found[3]


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", SCRIPTS)
@pytest.mark.skipif(os.name != "posix", reason="the compilers are shell scripts")
def test_the_answer_is_right_and_one_warning_says_why(kind: str, tmp_path) -> None:
    script = tmp_path / "cc"
    script.write_text(f"#!/bin/sh\n{SCRIPTS[kind]}\n")
    script.chmod(script.stat().st_mode | stat.S_IEXEC)
    right, first, second, said = run(tmp_path, str(script))
    assert right
    assert first < LIMIT + 1 and second < LIMIT + 1
    assert len(said) == 1 and "NumPy runs instead" in said[0] and "try" in said[0]


def test_no_compiler_is_asked_for(tmp_path) -> None:
    right, _, _, said = run(tmp_path, "none")
    assert right
    assert len(said) == 1 and "asks for no compiler" in said[0]


def test_a_compiler_that_is_not_there(tmp_path) -> None:
    right, first, _, said = run(tmp_path, str(tmp_path / "nowhere"))
    assert right and first < LIMIT + 1
    assert len(said) == 1 and "nowhere" in said[0]
