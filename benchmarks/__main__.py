"""Runs a suite, prints its table and keeps the results as JSON."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.options import Options
from benchmarks.record import Row, save
from benchmarks.table import show

SUITES = {
    "cpu": {
        "compile_time": (),
        "nesting": (),
        "fused": ("fused-time", "fused-error"),
        "rowwise": ("softmax", "layernorm", "logsumexp", "softmax-grad", "layernorm-grad", "logsumexp-grad"),
        "several": ("gelu", "adam", "standardise", "distances", "stencil"),
        "watched": (
            *("cross-entropy", "cross-entropy-grad", "cumsum", "transpose", "gather", "scatter-add"),
            *("pad", "mlp", "leading-sum", "variance"),
        ),
        "loops": (
            *("scan", "scan-grad", "dense-scan", "dense-scan-grad", "rnn-grad", "newton", "per-example"),
            *("rnn-loop", "layers"),
        ),
        "call": (),
        "imports": (),
        "digits": (),
        "start": (),
        "regions": (),
    },
    "cuda": {
        "gpu_kernels": (
            *("gelu", "adam", "squares", "layernorm", "layernorm-grad", "softmax", "softmax-columns"),
            *("cross-entropy", "cumsum", "columns", "transpose"),
        ),
    },
}
RESULTS = Path(__file__).parent / "results"


def main() -> int:
    options = parse()
    asked = Options(options.quick, options.rounds, frozenset(options.only))
    rows: list[Row] = []
    for name, parts in SUITES[options.suite].items():
        if not asked.only or asked.only & {name, *parts}:
            print(f"running {name} ...", file=sys.stderr, flush=True)
            rows += import_module(f"benchmarks.{name}").run(asked)
    print(show(rows))
    if not options.quick and not options.only:
        print(f"\nkept as {save(rows, options.suite, RESULTS)}")
    return int(options.strict and any(row.missed for row in rows))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", default=(), help="these workloads or lines; keeps no results"
    )
    parser.add_argument(
        "--rounds", type=int, default=0, metavar="N", help="how often each candidate is timed"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, few repetitions; keeps no results")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target was missed")
    found = parser.parse_args()
    known = {name for suite, parts in SUITES[found.suite].items() for name in (suite, *parts)}
    if unknown := [name for name in found.only if name not in known]:
        parser.error(f"there is no workload {unknown[0]!r}; there are {', '.join(sorted(known))}")
    return found


if __name__ == "__main__":
    sys.exit(main())
