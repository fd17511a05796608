"""`ge2 kernels`, `tune`, `explain`, `profile`: a program's kernels checked, raced, explained and timed."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from statistics import median
from typing import Any, Final

import numpy as np

import ge2
from ge2.base.config import config
from ge2.base.errors import InputError
from ge2.base.source import count_words, size_words, table
from ge2.choice import Measured
from ge2.choice.record import ROW, Entry, entries, ratios_of, stale
from ge2.cli import FUNCTION, Look, add_executor, add_function, add_output, deliver, named
from ge2.compile.race import Tuned, on_stderr, tune
from ge2.dispatch.explain import explain
from ge2.dispatch.explanation import ROUNDS, Explanation, Profile, Row, profile
from ge2.dispatch.pins import FILE, enrolled
from ge2.dispatch.user_kernels import LIMIT, bench, check
from ge2.program.records import PLACES, cut
from ge2.targets.cuda.device import upload
from ge2.targets.cuda.load import driver
from ge2.targets.cuda.load import gpu as cuda

# -------- `ge2 kernels ACTION FOLDER`: a kernel of your own checked beside its function, raced, or
# named in the project's file.


def kernels_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)
    for name, summary in (
        ("check", "run it on its examples, beside the NumPy function that it computes"),
        ("bench", "time it beside what ge2 does, and keep the times for jit to choose by"),
        ("register", "name it in the file that ge2.kernels.use reads, if it passed"),
    ):
        sub = actions.add_parser(name, help=summary, description=summary)
        sub.add_argument("folder", metavar="FOLDER", help="that of a kernel.toml")
        add_output(sub)
        if name != "register":
            sub.add_argument(
                "--limit", type=int, default=LIMIT, metavar="S", help="seconds it may take"
            )
            sub.add_argument(
                "--here", action="store_true", help="in this process, not in one apart"
            )
        if name == "check":
            sub.add_argument("--lines", default="", help=argparse.SUPPRESS)  # of one language
        if name == "register":
            sub.add_argument(
                "--prefer", action="store_true", help="also where nothing was measured"
            )
            sub.add_argument("--file", default=FILE, metavar="TOML", help=f"{FILE}, unless told")


def run_kernels(options: argparse.Namespace) -> int:
    found: Any
    if options.action == "check" and options.lines:
        check(options.folder, only=options.lines, tell=tell)
        return 0
    if options.action == "check":
        found = check(options.folder, apart=not options.here, limit=options.limit)
        wrong = any(case.error for case in found.cases)
        data = {"kernel": found.title, "cases": [fields_of(each) for each in found.cases]}
    elif options.action == "register":
        found, wrong = enrolled(options.folder, options.file, options.prefer), False
        data = {"kernel": found.title, "file": found.file, "texts": dict(found.texts)}
    else:
        found = bench(options.folder, apart=not options.here, limit=options.limit)
        wrong = bool(found.failed)
        times = [fields_of(each) for each in found.times]
        data = {"kernel": found.title, "device": found.device, "times": times}
    deliver(json.dumps(data, indent=1) if options.json else str(found), options.output)
    return int(wrong)


def tell(case: Any) -> None:
    """A case as a line, for the process that waits for it."""
    print(json.dumps(fields_of(case)), flush=True)


def fields_of(each: Any) -> dict[str, Any]:
    return {name: getattr(each, name) for name in each.__dataclass_fields__}


# -------- `ge2 tune FILE.py:function --args ...`: races for its kernels, which the record keeps.


def tune_arguments(parser: argparse.ArgumentParser) -> None:
    add_function(parser)
    parser._positionals._group_actions[-1].nargs = "?"  # without one, all that was measured
    option = parser.add_argument
    option("--budget", type=float, default=30.0, help="seconds to measure (%(default)s)")
    option("--again", action="store_true", help="measure what is in the record, too")
    add_executor(parser, "c", "emulator")
    option(
        "--report", action="store_true", help="print how far predictions are off, of all measured"
    )
    add_output(parser)


def run_tune(options: argparse.Namespace) -> int:
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

    with config.using(executor=options.executor or config.executor, tune="cached"):
        look, there = placed(options)
        with there():
            executable = look.lowered().executable
            return tune(executable, options.budget, on_stderr, options.again)


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


# -------- `ge2 profile FILE.py:function --args ...`: where the time of a call goes, kernel by
# kernel.


HEAD: Final = (
    "kernel", "by", "calls", "us", "of roofline", "bytes", "operations", "registers", "shared", "occupancy",
    "of",
)  # fmt: skip
PLAIN: Final = HEAD.index("registers")
DRAWN: Final = "arrays hold drawn numbers: floating ones normal, others 0 or 1"


def profile_arguments(parser: argparse.ArgumentParser) -> None:
    add_function(parser)
    option = parser.add_argument
    option("--device", choices=("cuda", "cpu"), help="where; cuda if there is a GPU, unless told")
    option("--executor", choices=("c", "blocked"), help="on the CPU, in place of GE2_EXECUTOR")
    option("--rounds", type=positive, default=ROUNDS, help="how often, at most (%(default)s)")
    option("--cold", action="store_true", help="empty the caches before each step")
    add_output(parser)


def positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is no number of rounds")
    return int(text)


def run_profile(options: argparse.Namespace) -> int:
    put, here = place(options.device or usual())
    with here(), config.using(executor=options.executor or config.executor):
        look = named(options, Drawn(put))
        look.lowered()
        args, kwargs = tuple(look.args), look.kwargs
        found = profile(look.function, args, kwargs, options.rounds, options.cold)
    text = json.dumps(as_data(found), indent=1) if options.json else "\n".join(report(found))
    deliver(text, options.output)
    return 0


def usual() -> str:
    known = driver()
    return "cuda" if known and known.gpus else "cpu"


def place(where: str) -> tuple[Callable[[Any], Any], Callable[[], Any]]:
    """A function that puts an array there, and one that makes it the current device.

    DeviceError if there is no GPU.
    """
    if where == "cpu":
        return lambda x: x, nullcontext
    device = cuda.current_gpu()
    return partial(upload, device), device.here


def placed(
    options: argparse.Namespace, arch: str = "", run: bool = False
) -> tuple[Look, Callable[[], Any]]:
    """The function with arguments where `ge2.jit` would have them on this machine, on the GPU, if
    there is one and neither an executor nor an architecture is asked for; and what makes that the
    current device. `run`: the arguments are to be arrays elsewhere, too.
    """
    where = "cpu" if options.executor or arch else usual()
    put, there = place(where)
    look = named(options, Drawn(put) if run or where == "cuda" else None)
    look.on_gpu = where == "cuda"
    return look, there


class Drawn:
    """Arguments as arrays of the device: those of the file, and drawn ones
    where only a type is given.
    """

    def __init__(self, put: Callable[[Any], Any]) -> None:
        self.put, self.rng = put, np.random.default_rng(0)

    def __call__(self, x: Any) -> Any:
        if isinstance(x, ge2.ShapeDtypeStruct):
            return self.put(self.drawn(x.shape, np.dtype(x.dtype)))
        return self.put(x) if isinstance(x, np.ndarray) else x

    def drawn(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        if dtype.kind in "bui":
            return self.rng.integers(0, 2, shape).astype(dtype)
        x = self.rng.standard_normal(shape, np.float32)
        return (
            x + 1j * self.rng.standard_normal(shape, np.float32) if dtype.kind == "c" else x
        ).astype(dtype)


# ---------------------------------------------------------------------------------------- the words


def report(found: Profile) -> Iterator[str]:
    """Lines of text: what was measured and how, the table, its sum beside the whole."""
    yield f"{found.title} on {found.device}; {ceilings_words(found)}, measured just now"
    caches = "emptied before each step" if found.cold else "as the step before leaves them"
    yield f"medians of {found.rounds} rounds, {found.how}, caches {caches}; {DRAWN}"
    yield f"a step that does nothing reads as {microseconds(found.nothing)} us; what is near that has a ~"
    yield ""
    if found.rows:
        yield rows_table(found.rows)
        yield ""
    lines = [
        ("all rows", microseconds(found.total), ""),
        ("a whole call", microseconds(found.whole), "by the host's clock, its steps not timed"),
        ("between", microseconds(found.whole - found.total), between(found)),
    ]
    yield table(lines, right=frozenset((1,)))
    yield from (f"{each.name} {each.slow}" for each in found.rows if each.slow)


def rows_table(found: Sequence[Row]) -> str:
    """The rows, without what only a GPU's kernels have where there are none."""
    rows = [HEAD, *map(row, found)]
    if not any(each.by == "CUDA" for each in found):
        rows = [(*each[:PLAIN], each[-1]) for each in rows]
    return table(rows, right=frozenset(range(2, len(rows[0]) - 1)))


def ceilings_words(found: Profile) -> str:
    most = found.ceilings
    double = f", {count_words(int(most.double))} in float64" if most.double else ""
    return (
        f"copies {most.moved / 1e9:.1f} GB/s, computes {count_words(int(most.single))} operations/s"
        f" in float32{double}"
    )


def between(found: Profile) -> str:
    if found.whole >= found.total:
        return "making arrays, launching, and waiting for that"
    return "less than none: steps that are timed one by one do not overlap, or find colder caches"


def row(of: Row) -> tuple[str, ...]:
    figures = of.figures
    numbers = ("", "", "")
    if figures is not None:
        numbers = (str(figures.registers), size_words(figures.shared), f"{figures.occupancy:.0%}")
        if figures.spills:
            numbers = (f"{figures.registers} and spills", *numbers[1:])
    return (
        of.name, of.by, str(of.launches), f"{'~' if of.rough else ''}{microseconds(of.seconds)}",
        "" if of.share is None else f"{of.share:.0%}", size_words(of.read + of.written),
        count_words(of.operations), *numbers, cut(of.places, PLACES, ", "),
    )  # fmt: skip


def microseconds(seconds: float) -> str:
    """
    >>> microseconds(12.3456e-6), microseconds(0.0123456), microseconds(-1e-6)
    ('12.3', '12346', '-1.0')
    """
    value = seconds * 1e6
    return f"{value:.1f}" if abs(value) < 1000 else f"{value:.0f}"


def as_data(found: Profile) -> dict[str, Any]:
    most = found.ceilings
    return {
        "function": found.title,
        "device": found.device,
        "rounds": found.rounds,
        "cold": found.cold,
        "nothing": found.nothing,
        "ceilings": {
            "bytes_per_second": most.moved,
            "float32_per_second": most.single,
            "float64_per_second": most.double or None,
        },
        "kernels": [row_data(each) for each in found.rows],
        "total": found.total,
        "whole": found.whole,
    }


def row_data(of: Row) -> dict[str, Any]:
    plain = (
        "name",
        "by",
        "launches",
        "seconds",
        "rough",
        "read",
        "written",
        "operations",
        "share",
        "slow",
    )
    figures = ("registers", "shared", "spills", "occupancy")
    return {
        **{name: getattr(of, name) for name in plain},
        **{name: getattr(of.figures, name, None) for name in figures},
        "lines": of.places,
    }


# -------- `ge2 explain FILE.py:function --args ...`: for each kernel what it covers, the
# candidates, and why its neighbours are kernels of their own.


def explain_arguments(parser: argparse.ArgumentParser) -> None:
    add_function(parser)
    option = parser.add_argument
    add_executor(parser, "c", "blocked", "emulator")
    option("--arch", default="", help="as CUDA for such a GPU, which need not be here: sm_90a")
    option("--time", action="store_true", help="run it on drawn arrays, and time each kernel")
    option("--all", action="store_true", help="with equations, and kernels of other operations")
    option("--html", action="store_true", help="as a page for a browser")
    add_output(parser)


def run_explain(options: argparse.Namespace) -> int:
    with config.using(executor=options.executor or config.executor):
        look, there = placed(options, options.arch, options.time)
        with there():
            found = of(look, options)
    deliver(text_of(found, options), options.output)
    return 0


def of(look: Look, options: argparse.Namespace) -> Explanation:
    ask = explain(look.function, arch=options.arch, time=options.time)
    found: Explanation = look.guarded(ask)
    return found


def text_of(found: Explanation, options: argparse.Namespace) -> str:
    if options.json:
        return found.as_json()
    return found._repr_html_() if options.html else found.text(options.all)
