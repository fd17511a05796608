"""A command whose output cannot be written says so in a line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is always full")
def test_a_full_disk_is_a_line_and_an_exit_code() -> None:
    code = "import sys; from ge2.cli import main; sys.exit(main(['cache', 'list']))"
    with FULL.open("w") as output:
        run = subprocess.run(
            [sys.executable, "-c", code],
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert run.returncode == 1
    assert run.stderr == "ge2: the output cannot be written: No space left on device\n"
