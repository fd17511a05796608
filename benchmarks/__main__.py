"""Runs a suite, prints its table and keeps the results as JSON."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from benchmarks.options import Options
from benchmarks.programs import GROUPS, programs
from benchmarks.record import Failure, Row, save
from benchmarks.table import brief, show

PROGRAMS = (*GROUPS, *(program.name for program in programs()))  # by group, or one by one
SUITES = {
    "cpu": {
        "compile_time": (),
        "nesting": (),
        "fused": ("fused-time", "fused-error"),
        "rowwise": (
            "softmax",
            "layernorm",
            "logsumexp",
            "softmax-grad",
            "layernorm-grad",
            "logsumexp-grad",
        ),
        "several": ("gelu", "adam", "standardise", "distances", "stencil"),
        "watched": (
            *(
                "cross-entropy",
                "cross-entropy-grad",
                "cumsum",
                "transpose",
                "gather",
                "scatter-add",
            ),
            *("pad", "mlp", "layer", "tiny-products", "leading-sum", "variance"),
        ),
        "loops": (
            *(
                "scan",
                "scan-grad",
                "dense-scan",
                "dense-scan-grad",
                "rnn-grad",
                "newton",
                "per-example",
            ),
            *("rnn-loop", "layers"),
        ),
        "element_loops": (
            *(
                "forward-substitution",
                "thomas",
                "cholesky",
                "lu",
                "over-relaxation",
                "gauss-seidel",
            ),
            *(
                "levinson",
                "smoothing",
                "lindley",
                "kalman",
                "horner",
                "products-with-resets",
                "viterbi",
            ),
            *("edit-distance", "common-subsequence", "prefix-sums", "cellular-automaton", "sieve"),
            *("knapsack", "shortest-paths", "python-loops"),
        ),
        "long_chains": ("chain-1000", "chain-100000", "chain-1000000"),
        "stencils": (
            *("heat", "wave", "upwind", "lax-friedrichs", "burgers", "shallow-water"),
            *("poisson", "diffusion", "fdtd-line", "fdtd", "gray-scott", "curl"),
        ),
        "call": (),
        "eager": (),
        "imports": (),
        "digits": (),
        "gpt_step": (),
        "matrix_vectors": (),
        "unrolled": (),
        "start": (),
        "regions": (),
    },
    "cuda": {
        "cuda.nvrtc": ("compile", "first-call"),
        "cuda.first": ("nothing-cached", "cached", "other-batch"),
        "cuda.demo": ("step", "steps"),
        "cuda.programs": (
            "call",
            "replay",
            "mlp",
            "memory",
            "rnn-scan",
            "rnn-loop",
            "while",
            "cond",
        ),
        "cuda.grid": ("wide-while", "wide-cond", "wide-stencil", "wide-rnn", "wide-rnn-grad"),
        "cuda.overlap": ("early-chain", "early-mlp", "early-demo"),
        "cuda.kernels": (
            *(
                "softmax-long",
                "gelu",
                "adam",
                "squares",
                "layernorm",
                "layernorm-grad",
                "softmax",
                "softmax-columns",
            ),
            *("cross-entropy", "cumsum", "columns", "transpose"),
            *("vector", "vector-left", "few-columns"),
        ),
        "cuda.small": (
            *("small-columns-128", "small-columns-256", "small-mask-128", "small-mask-256"),
            *("small-loss-128", "small-loss-256", "small-bias-128", "small-bias-256"),
        ),
        "cuda.moves": (
            *(
                "gather-int32",
                "gather-int64",
                "gather-elements",
                "scatter-add",
                "scatter-add-few",
                "scatter",
            ),
            *("concatenate", "concatenate-many", "five-points", "slopes", "pad"),
        ),
        "cuda.candidates": (
            *("nearest", "standardised", "softmax-down", "pull", "sort-rows", "sort-middle"),
            *("bags", "embedding", "small-tanh", "long-softmax"),
        ),
        "cuda.scans": (
            "cumsum-rows",
            "cumsum-columns",
            "cumsum-f64",
            "cumprod",
            "cummax",
            "recurrence",
        ),
        "cuda.draws": ("uniform", "normal"),
        "cuda.operands": ("cast", "mask", "norm"),
        "cuda.contractions": ("wide", "square", "large", "tiny", "odd", "digits"),
        "cuda.layers": (
            *("dense-gradients", "gated-gradients", "gated", "halves", "halves-gradients"),
            *("residual", "before", "before-residual", "chain"),
        ),
        "cuda.attention": (
            *("causal", "full", "one", "short", "narrow", "causal-slopes", "full-slopes"),
            *("one-slopes", "short-slopes", "narrow-slopes"),
            *("decoding", "decoding-one"),
        ),
        "cuda.gpt2": ("gpt2-small", "gpt2-medium", "gpt2-curve-bf16", "gpt2-curve-f32"),
        "cuda.products": (
            *("product-wide", "product-square", "product-large", "product-tf32", "product-f32"),
            *("product-f64", "product-at", "product-bt", "product-batched"),
        ),
        "cuda.small_products": (
            *(
                "small-first",
                "small-second",
                "small-third",
                "small-third-back",
                "small-third-weight",
            ),
            *("small-second-back", "small-second-weight", "small-first-weight"),
            *("thin-last", "thin-last-back", "thin-last-weight"),
        ),
        "cuda.sorts": ("sort", "argsort", "sort-rows", "sort-longer-rows", "middle-of-rows"),
    },
    "programs": {"programs": PROGRAMS},
    "first-calls": {"first_calls": PROGRAMS},
    "programs-cuda": {"cuda.suite": PROGRAMS},
}
RESULTS = Path(__file__).parent / "results"


# one thread for each library that is timed
ALONE = {
    "BENCHMARKS_ALONE": "1",
    **dict.fromkeys(("GE2_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
}


def main() -> int:
    options = parse()
    if options.alone and "BENCHMARKS_ALONE" not in os.environ:
        os.sched_setaffinity(
            0, {max(os.sched_getaffinity(0))}
        )  # JAX's threads follow the processors
        os.execve(
            sys.executable, [sys.executable, "-m", "benchmarks", *sys.argv[1:]], os.environ | ALONE
        )
    asked = Options(options.quick, options.rounds, frozenset(options.only))
    rows: list[Row] = []
    failures: list[Failure] = []
    device: dict[str, str] = (
        import_module("benchmarks.cuda.machine").device() if "cuda" in options.suite else {}
    )
    try:
        for found in measured(options.suite, asked):
            (failures if isinstance(found, Failure) else rows).append(found)  # type: ignore[arg-type]
            print(f"    {brief(found)}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        failures.append(Failure("all further lines", "interrupted"))
    print(show(rows, device, failures))
    folder = options.keep or (None if options.quick or options.only else RESULTS)
    if folder:
        print(f"\nkept as {save(rows, options.suite, folder, device, failures)}")
    return int(bool(failures) or (options.strict and any(row.missed for row in rows)))


def measured(suite: str, asked: Options) -> Iterator[Row | Failure]:
    """Each line as it is found, so that what was measured is kept whatever follows."""
    for name, parts in SUITES[suite].items():
        if not asked.only or asked.only & {short(name), *parts}:
            print(f"running {name} ...", file=sys.stderr, flush=True)
            yield from import_module(f"benchmarks.{name}").run(asked)


def short(name: str) -> str:
    """A module's name without its package's."""
    return name.rpartition(".")[2]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        default=(),
        help="these workloads or lines; keeps no results",
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep the results there, whatever was run"
    )
    parser.add_argument(
        "--rounds", type=int, default=0, metavar="N", help="how often each candidate is timed"
    )
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, few repetitions; keeps no results"
    )
    parser.add_argument(
        "--alone",
        action="store_true",
        help="on one processor, in its CPU time: for a machine that others share (Linux)",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target was missed")
    found = parser.parse_args()
    known = {
        name for suite, parts in SUITES[found.suite].items() for name in (short(suite), *parts)
    }
    if unknown := [name for name in found.only if name not in known]:
        parser.error(f"there is no workload {unknown[0]!r}; there are {', '.join(sorted(known))}")
    return found


if __name__ == "__main__":
    sys.exit(main())
