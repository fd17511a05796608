"""`ge2 tune FILE.py:function --args ...`: races for its kernels, which the record keeps."""

from __future__ import annotations

import argparse
import json
import math
from statistics import median
from typing import Any

from ge2.base.config import config
from ge2.base.errors import InputError
from ge2.base.formatting import table
from ge2.choice.measured import Measured
from ge2.choice.record import ROW, Entry, entries, ratios_of, stale
from ge2.cli.load import FUNCTION, add_function, add_output, deliver, named
from ge2.compile.race import Tuned, on_stderr, tune


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_function(parser)
    parser._positionals._group_actions[-1].nargs = "?"  # without one, all that was measured
    option = parser.add_argument
    option("--budget", type=float, default=30.0, help="seconds to measure (%(default)s)")
    option("--again", action="store_true", help="measure what is in the record, too")
    executors = ("c", "shim")
    option("--executor", choices=executors, help="in place of GE2_EXECUTOR; shim: for a GPU")
    option(
        "--report", action="store_true", help="print how far predictions are off, of all measured"
    )
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    if options.place is None and not options.report:
        raise InputError("ge2 tune takes a function, or --report", fix=f"ge2 tune {FUNCTION}")
    data: dict[str, Any] = {}
    texts: list[str] = []
    if options.place is not None:
        found = tuned(options)
        data["races"] = [entry_data(race.entry) for race in found.races]
        texts.append(str(found))
    if options.report:
        rows, others = errors(entries()), stale()
        data["predictions"], data["stale"] = rows, [entry_data(entry) for entry in others]
        texts.append(errors_table(rows) if rows else "nothing was measured yet")
        texts += [stale_lines(others)] if others else []
    deliver(json.dumps(data, indent=1) if options.json else "\n\n".join(texts), options.output)
    return 0


def tuned(options: argparse.Namespace) -> Tuned:
    from ge2.cli.profile import place, usual

    with config.using(executor=options.executor or config.executor, tune="cached"):
        on_gpu = options.executor is None and usual() == "cuda"
        look = named(options, drawn() if on_gpu else None)
        with place("cuda" if on_gpu else "cpu")[1]():
            executable = look.lowered().executable
            return tune(executable, options.budget, on_stderr, options.again)


def drawn() -> Any:
    from ge2.cli.profile import Drawn, place

    return Drawn(place("cuda")[0])


def entry_data(entry: Entry) -> dict[str, Any]:
    rows = [dict(zip(ROW, row, strict=False)) for row in entry.rows]
    return {"problem": entry.problem, "device": entry.device, "raced": entry.raced, "rows": rows}


# -------------------------------------------------------------------------------------- predictions


def errors(found: list[Entry]) -> list[dict[str, Any]]:
    """The errors of each family's predictions, on each kind of device: the median of measured over
    predicted, the typical factor around it, and in how many races the prediction chose wrong.
    """
    lost: dict[tuple[str, str], list[float]] = {}
    for entry in found:
        timed = [row for row in entry.rows if row.median and not row.failure]
        if len(timed) > 1 and all(row.predicted for row in timed):
            chosen, best = min(timed, key=by_prediction), min(timed, key=by_median)
            lost.setdefault((entry.device, chosen.family), []).append(chosen.median / best.median)
    return [
        {
            "device": device, "family": family, "measured": len(ratios),
            "over predicted": median(ratios), "off by": spread(ratios),
            "loss": max(lost.get((device, family), [1.0])),
        }
        for (device, family), ratios in sorted(ratios_of(found).items())
    ]  # fmt: skip


def stale_lines(found: list[Entry]) -> str:
    """Rows that decide nothing, since their kernels have another text today."""
    return "\n".join(
        f"of another text today: {', '.join(filter(None, (row.family, row.variant)))} for "
        f"{entry.problem} on {entry.device}, measured {row.when or 'before'}"
        for entry in found
        for row in entry.rows
    )


def by_prediction(row: Measured) -> float:
    return row.predicted


def by_median(row: Measured) -> float:
    return row.median


def spread(ratios: list[float]) -> float:
    """The typical factor between a ratio and their median.

    >>> spread([1.0, 2.0, 4.0])
    2.0
    """
    middle = math.log(median(ratios))
    return math.exp(median(abs(math.log(each) - middle) for each in ratios))


def errors_table(rows: list[dict[str, Any]]) -> str:
    head = "device", "family", "measured", "over predicted", "off by", "most lost"
    lines = [
        (
            each["device"], each["family"], str(each["measured"]),
            f"{each['over predicted']:.2f}", f"{each['off by']:.2f} x", f"{each['loss']:.2f} x",
        )
        for each in rows
    ]  # fmt: skip
    return table([head, *lines], right=frozenset((2, 3, 4, 5)))
