"""Runs a suite, prints its table and keeps the results as JSON."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.record import Row, save
from benchmarks.table import show

SUITES = {"cpu": ("compile_time", "nesting", "fused", "call", "imports", "digits")}
RESULTS = Path(__file__).parent / "results"


def main() -> int:
    options = parse()
    names = [name for name in SUITES[options.suite] if not options.only or name in options.only]
    rows: list[Row] = []
    for name in names:
        print(f"running {name} ...", file=sys.stderr, flush=True)
        rows += import_module(f"benchmarks.{name}").run(quick=options.quick)
    print(show(rows))
    if not options.quick and not options.only:
        print(f"\nkept as {save(rows, options.suite, RESULTS)}")
    return int(options.strict and not all(row.reached for row in rows))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these workloads alone; keeps no results")
    parser.add_argument("--quick", action="store_true", help="small sizes, few repetitions; keeps no results")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target was missed")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
