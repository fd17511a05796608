"""What a benchmark leaves: rows, and around them the machine, the versions and the commit."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("ge2", "numpy", "ml_dtypes", "jax", "torch", "scikit-learn")


@dataclass(frozen=True, slots=True)
class Target:
    """What must be reached: a bound on our value, or on how many times faster than `peer` we are."""

    bound: float
    peer: str = ""

    def reached(self, ours: float, others: Mapping[str, float]) -> bool:
        return others[self.peer] / ours >= self.bound if self.peer else ours <= self.bound


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `ours` and `others` are in `unit`: seconds, equations, or times (a ratio)."""

    work: str
    unit: str
    ours: float
    others: Mapping[str, float] = field(default_factory=dict)
    target: Target | None = None
    dtype: str = ""
    sizes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reached(self) -> bool:
        return self.target is None or self.target.reached(self.ours, self.others)


def save(rows: list[Row], suite: str, folder: Path) -> Path:
    now = datetime.now(UTC)
    folder.mkdir(exist_ok=True)
    path = folder / f"{suite}-{now:%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps(report(rows, suite, now), indent=1) + "\n")
    return path


def report(rows: list[Row], suite: str, now: datetime) -> dict[str, Any]:
    return {
        "suite": suite,
        "when": now.isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "versions": {"python": platform.python_version(), **versions()},
        "rows": [asdict(row) | {"reached": row.reached} for row in rows],
    }


def machine() -> dict[str, Any]:
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(pages / 2**30, 1),
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The commit that was measured; a `+` says that the files differ from it."""
    run = [["git", "rev-parse", "--short=12", "HEAD"], ["git", "status", "--porcelain"]]
    try:
        head, changes = (subprocess.run(c, capture_output=True, text=True, check=True).stdout for c in run)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.strip() + ("+" if changes.strip() else "")


def describe() -> str:
    facts = machine()
    found = ", ".join(f"{name} {number}" for name, number in versions().items())
    return f"{facts['processor']}, {facts['cores']} cores; Python {sys.version.split()[0]}, {found}"
