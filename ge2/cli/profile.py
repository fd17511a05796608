"""`ge2 profile FILE.py:function --args ...`: where the time of a call goes, kernel by kernel."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

import numpy as np

import ge2
from ge2.base.config import config
from ge2.base.formatting import count_words, size_words, table
from ge2.cli.load import add_function, add_output, deliver, named
from ge2.dispatch.profile import ROUNDS, Profile, Row, profile
from ge2.program.records import PLACES, cut
from ge2.targets.cuda.device import upload
from ge2.targets.cuda.load import gpu as cuda
from ge2.targets.cuda.load.driver import driver

HEAD: Final = (
    "kernel", "by", "calls", "us", "of roofline", "bytes", "operations", "registers", "shared", "occupancy",
    "of",
)  # fmt: skip
PLAIN: Final = HEAD.index("registers")
DRAWN: Final = "arrays hold drawn numbers: floating ones normal, others 0 or 1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
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


def run(options: argparse.Namespace) -> int:
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
