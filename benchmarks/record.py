"""What a benchmark leaves: rows, and around them the machine, the versions and the commit."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import geometric_mean
from typing import Any, final

from ge2 import config

PACKAGES = (
    "ge2",
    "numpy",
    "ml_dtypes",
    "jax",
    "autograd",
    "torch",
    "cupy-cuda13x",
    "cupy-cuda12x",
    "scikit-learn",
)


@final
@dataclass(frozen=True, slots=True)
class AtMost:
    """A bound on our value; with a peer, that many times the peer's value if that is larger."""

    bound: float
    times: float = 0.0
    peer: str = ""

    def reached(self, ours: float, others: Mapping[str, float]) -> bool | None:
        return ours <= max(self.bound, self.times * others.get(self.peer, 0.0))


@final
@dataclass(frozen=True, slots=True)
class Faster:
    """How many times faster than the peer we must be; None, not judged, where
    the peer did not run.
    """

    times: float
    peer: str

    def reached(self, ours: float, others: Mapping[str, float]) -> bool | None:
        return others[self.peer] / ours >= self.times if self.peer in others else None


Target = AtMost | Faster


@final
@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    `ours` and `others` are in `unit`: seconds, equations, times (a ratio), ...
    """

    work: str
    unit: str
    ours: float
    others: Mapping[str, float] = field(default_factory=dict)
    targets: tuple[Target, ...] = ()
    layout: str = ""  # "float32, C order"
    sizes: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)  # of a peer: what to know of its value

    @property
    def verdicts(self) -> list[bool | None]:
        return [target.reached(self.ours, self.others) for target in self.targets]

    @property
    def missed(self) -> bool:
        return False in self.verdicts


@final
@dataclass(frozen=True, slots=True)
class Failure:
    """A line that could not be measured, and why."""

    work: str
    reason: str


def mean_of(work: str, rows: Sequence[Row], *targets: Target) -> Row:
    """The geometric mean of what rows in seconds found: each peer's time over
    ours, which counts as 1.
    """
    peers = set.intersection(*(set(row.others) for row in rows))
    ratios = {
        peer: geometric_mean(row.others[peer] / row.ours for row in rows) for peer in sorted(peers)
    }
    layout = "; ".join(dict.fromkeys(row.layout for row in rows))
    return Row(work, "times", 1.0, ratios, targets, layout, {"rows": [row.work for row in rows]})


def save(
    rows: Sequence[Row],
    suite: str,
    folder: Path,
    device: Mapping[str, str] | None = None,
    failures: Sequence[Failure] = (),
) -> Path:
    now = datetime.now(UTC)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{suite}-{now:%Y%m%d-%H%M%S}.json"
    kept = report(rows, suite, now, device or {}) | {
        "failures": [asdict(failure) for failure in failures]
    }
    path.write_text(json.dumps(kept, indent=1) + "\n")
    return path


def report(
    rows: Sequence[Row], suite: str, now: datetime, device: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "suite": suite,
        "when": now.isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "device": dict(device),
        "versions": {"python": platform.python_version(), **versions()},
        "settings": settings(),
        "rows": [as_json(row) for row in rows],
    }


def as_json(row: Row) -> dict[str, Any]:
    judged = zip(row.targets, row.verdicts, strict=True)
    targets = [{"kind": type(t).__name__, **asdict(t), "reached": reached} for t, reached in judged]
    return asdict(row) | {"targets": targets}


def settings() -> dict[str, Any]:
    """What ran our programs, on how many threads, and what of time was counted."""
    clock = "CPU" if "BENCHMARKS_ALONE" in os.environ else "wall"
    return {"executor": config.executor, "threads": config.thread_count(), "clock": clock}


def machine() -> dict[str, Any]:
    pages = (
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    )
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_gib": round(pages / 2**30, 1),
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), ""
    )


def versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The commit that was measured; a `+` says that the files differ from it.

    COMMIT tells it of a copy.
    """
    if told := os.environ.get("COMMIT"):
        return told
    run = [["git", "rev-parse", "--short=12", "HEAD"], ["git", "status", "--porcelain"]]
    try:
        head, changes = (
            subprocess.run(c, capture_output=True, text=True, check=True).stdout for c in run
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.strip() + ("+" if changes.strip() else "")


def describe(device: Mapping[str, str] | None = None) -> str:
    facts = machine()
    found = ", ".join(f"{name} {number}" for name, number in versions().items())
    how = f"{config.executor} on {config.thread_count()} threads"
    gpu = "".join(f"{name} {fact}, " for name, fact in (device or {}).items())
    return f"{gpu}{facts['processor']}, {facts['cores']} cores; Python {sys.version.split()[0]}, {found}; {how}"
