"""Programs in processes of their own: what the first call, an import or another setting costs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import final

ROOT = Path(__file__).parent.parent


@final
@dataclass(frozen=True, slots=True)
class Finished:
    """How long a process took, from before its start to after its end, and what it printed."""

    seconds: float
    said: str


def caches(folder: str) -> dict[str, str]:
    """Variables by which ge2 and JAX keep all that they compile in a folder."""
    return {
        "GE2_CACHE_DIR": str(Path(folder, "ge2")),
        "JAX_COMPILATION_CACHE_DIR": str(Path(folder, "jax")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def fresh(program: str, **variables: str) -> Finished:
    """Runs the text of a program; `variables` are added to its environment."""
    environment = {
        k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"
    } | variables
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    return Finished(time.perf_counter() - began, done.stdout)
