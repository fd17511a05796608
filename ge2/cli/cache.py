"""`ge2 cache` lists and empties the disk cache; `ge2 plot` draws the log of a training run."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ge2.base.cache import Cache, Entry, cache
from ge2.base.config import config
from ge2.base.errors import ArgumentError, CacheTrouble, Ge2Error, InputError
from ge2.base.record import record
from ge2.base.source import size_words, table
from ge2.choice.record import store
from ge2.cli import deliver
from ge2.io.training import read_log

# -------- `ge2 cache ACTION`: what the cache of compiled kernels holds, whether it is sound, and
# less of it.


SHORT = 12  # characters of a key: enough to tell entries apart
ENDLESS = 1 << 62
ORDER = ("kind", "name", "source", "made", "seconds", "compiler", "options", "version")
KINDS = {
    "cubin": "cubins",
    "PTX": "PTX",
    "C program": "C programs",
    "compiler": "facts of compilers",
    "texts": "rendered texts",
    "measurements": "measurements",
    "check": "checks of kernels of your own",
    "unknown": "of unknown kind",
}


@record
class Answer:
    """The outcome of an action: for programs, for people, and for the shell."""

    data: Any
    text: str
    code: int = 0


def cache_arguments(parser: argparse.ArgumentParser) -> None:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print JSON and nothing else")
    common.add_argument("-o", "--output", metavar="FILE", help="write to a file, not to the screen")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)
    for name, action in ACTIONS.items():
        sub = actions.add_parser(
            name, parents=[common], help=action.__doc__, description=action.__doc__
        )
        if name == "show":
            sub.add_argument(
                "key", metavar="KEY", help="a key as `list` prints it, or how one begins"
            )
        if name == "verify":
            sub.add_argument("--remove", action="store_true", help="remove what is damaged")
        if name in ("list", "verify", "clear"):
            sub.add_argument("--kind", choices=KINDS, help="of what is of this kind alone")
        if name == "prune":
            sub.add_argument(
                "--limit", type=megabytes, metavar="MB", help="in place of GE2_CACHE_LIMIT"
            )


def megabytes(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is no number of megabytes")
    return int(text)


def run_cache(options: argparse.Namespace) -> int:
    answer = ACTIONS[options.action](Stores(cache(), store()), options)
    text = json.dumps(answer.data, indent=1) if options.json else answer.text
    deliver(text, options.output)
    return answer.code


@record
class Stores:
    """The stores on disk: compiled code, which has a limit, and measurements, which have none."""

    compiled: Cache
    measured: Cache

    @property
    def path(self) -> str | None:
        return self.compiled.path

    @property
    def limit(self) -> int:
        return self.compiled.limit

    def entries(self, verify: bool = False) -> list[Entry]:
        found = self.compiled.entries(verify) + self.measured.entries(verify)
        return sorted(found, key=lambda e: (-e.used, e.key))

    def remove(self, entries: list[Entry]) -> list[Entry]:
        own = {entry.key for entry in self.measured.entries()}
        self.measured.remove([entry for entry in entries if entry.key in own])
        self.compiled.remove([entry for entry in entries if entry.key not in own])
        return entries


# -------------------------------------------------------------------------------------- the actions


def info(kept: Stores, options: argparse.Namespace) -> Answer:
    """where it is, how much it holds, and how much it may hold"""
    entries = kept.entries()
    total = sum(entry.size for entry in entries)
    damaged = sum(bool(entry.trouble) for entry in entries)
    limit = kept.limit
    kinds = {kind: totals(of_kind(entries, kind)) for kind in present(entries)}
    data = {
        "folder": kept.path,
        "entries": len(entries),
        "bytes": total,
        "limit": limit,
        "damaged": damaged,
        "kinds": kinds,
    }
    rows = [
        ("folder", str(kept.path)),
        ("entries", str(len(entries))),
        ("size", f"{size_words(total)} of {size_words(limit) if limit else 'any size'}"),
    ]
    rows += [
        (f"  {KINDS[kind]}", f"{found['entries']}, {size_words(found['bytes'])}")
        for kind, found in kinds.items()
    ]
    if entries:
        rows += [("last used", when(entries[0].used)), ("longest idle", when(entries[-1].used))]
    if damaged:
        rows += [("damaged", f"{damaged}; see 'ge2 cache verify'")]
    return Answer(data, table(rows))


def list_(kept: Stores, options: argparse.Namespace) -> Answer:
    """all that it holds, the last used first"""
    entries = of_kind(kept.entries(), options.kind)
    if not entries:
        return Answer([], f"{kept.path} holds {'nothing' if not options.kind else 'no such entry'}")
    head = ("key", "kind", "size", "last used", "compiled in", "name", "source")
    rows = [head, *map(listed, entries)]
    return Answer([as_data(entry) for entry in entries], table(rows))


def show(kept: Stores, options: argparse.Namespace) -> Answer:
    """all that is known of one entry"""
    entry = the_one(kept.entries(verify=True), options.key)
    known = [(name, entry.about[name]) for name in ORDER if name in entry.about]
    more = [(name, str(value)) for name, value in entry.about.items() if name not in ORDER]
    rows = [
        ("key", entry.key),
        ("state", entry.trouble or "sound"),
        ("size", size_words(entry.size)),
    ]
    return Answer(as_data(entry), table([*rows, ("last used", when(entry.used)), *known, *more]))


def verify(kept: Stores, options: argparse.Namespace) -> Answer:
    """read every entry, and compare it with its checksum"""
    entries = of_kind(kept.entries(verify=True), options.kind)
    damaged = [entry for entry in entries if entry.trouble]
    if options.remove:
        kept.remove(damaged)
    words = f"{len(entries)} entries, {len(damaged)} damaged"
    if damaged:
        words += (
            ", now removed"
            if options.remove
            else "; they are made again when needed, or go by --remove"
        )
    lines = [f"{entry.key}  {entry.trouble}" for entry in damaged]
    data = {
        "entries": len(entries),
        "damaged": {entry.key: entry.trouble for entry in damaged},
        "removed": bool(options.remove),
    }
    return Answer(data, "\n".join([*lines, words]), 1 if damaged and not options.remove else 0)


def prune(kept: Stores, options: argparse.Namespace) -> Answer:
    """remove what was not used for longest, until the rest is within the limit; no measurements"""
    limit = options.limit if options.limit is not None else config.cache_limit or ENDLESS
    return removed(kept.compiled.prune(limit << 20))


def clear(kept: Stores, options: argparse.Namespace) -> Answer:
    """remove everything but measurements, which took longest to make; or all of a kind"""
    if options.kind:
        return removed(kept.remove(of_kind(kept.entries(), options.kind)))
    answer, left = removed(kept.compiled.clear()), len(kept.measured.entries())
    if not left:
        return answer
    more = f"{left} measurements are kept: --kind measurements"
    return Answer({**answer.data, "kept": left}, f"{answer.text}; {more}")


ACTIONS: dict[str, Callable[[Stores, argparse.Namespace], Answer]] = {
    "info": info,
    "list": list_,
    "show": show,
    "verify": verify,
    "prune": prune,
    "clear": clear,
}


# ---------------------------------------------------------------------------------------- the words


def removed(entries: list[Entry]) -> Answer:
    total = sum(entry.size for entry in entries)
    data = {"removed": [entry.key for entry in entries], "bytes": total}
    count = len(entries)
    return Answer(
        data, f"removed {count} {'entry' if count == 1 else 'entries'}, {size_words(total)}"
    )


def of_kind(entries: list[Entry], kind: str | None) -> list[Entry]:
    """The entries of a kind; without one, all."""
    return [entry for entry in entries if kind in (None, kind_of(entry))]


def kind_of(entry: Entry) -> str:
    """Its kind, as far as this version knows it."""
    return entry.kind if entry.kind in KINDS else "unknown"


def present(entries: list[Entry]) -> list[str]:
    return [kind for kind in KINDS if of_kind(entries, kind)]


def totals(entries: list[Entry]) -> dict[str, int]:
    return {"entries": len(entries), "bytes": sum(entry.size for entry in entries)}


def the_one(entries: list[Entry], start: str) -> Entry:
    """The entry whose key begins so."""
    found = [entry for entry in entries if entry.key.startswith(start)]
    if not found:
        raise CacheTrouble(f"the cache has no entry {start}", fix="ge2 cache list")
    if len(found) > 1:
        keys = ", ".join(entry.key for entry in found[:3])
        raise ArgumentError(
            f"{len(found)} keys begin with {start!r}", where=keys, fix="more of the key"
        )
    return found[0]


def as_data(entry: Entry) -> dict[str, Any]:
    return {
        "key": entry.key,
        "kind": kind_of(entry),
        "bytes": entry.size,
        "used": entry.used,
        "about": entry.about,
        "trouble": entry.trouble,
    }


def listed(entry: Entry) -> tuple[str, ...]:
    seconds = f"{entry.about['seconds']} s" if "seconds" in entry.about else ""
    name = f"damaged: {entry.trouble}" if entry.trouble else entry.about.get("name", "")
    source = entry.about.get("source", "")
    size, used = size_words(entry.size), when(entry.used)
    return (entry.key[:SHORT], kind_of(entry), size, used, seconds, name, source)


def when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


# -------- `ge2 plot LOG`: the curves of logs that `ge2.io.progress` wrote, as a picture.


def plot_arguments(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("logs", nargs="+", metavar="LOG", help="a file that ge2.io.progress(log=...) wrote")
    option("-o", "--output", metavar="FILE", help="the picture; LOG.png unless told")
    option("--y", default="loss", metavar="NAME", help="what is drawn (%(default)s)")
    option("--x", default="step", metavar="NAME", help="against what (%(default)s), as seconds")
    option("--smooth", type=share, default=0.0, metavar="S", help="0 to 1: the weight of the past")
    option("--log-y", action="store_true", help="a logarithmic axis")


def share(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 1.0
    if not 0 <= found < 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return found


def run_plot(options: argparse.Namespace) -> int:
    curves = {path: curve(path, options.x, options.y) for path in options.logs}
    path = options.output or f"{os.path.splitext(options.logs[0])[0]}.png"
    picture = drawn(curves, options)
    try:
        picture.savefig(path, dpi=120)
    except (OSError, ValueError) as error:  # no such folder; no such format
        raise Ge2Error(f"{path} cannot be written: {error}", fix="-o curve.png") from None
    for name, (_, ys) in curves.items():
        print(f"{name}: {len(ys)} steps, {options.y} {ys[0]:.4g} to {ys[-1]:.4g}")
    print(path)
    return 0


def curve(path: str, x: str, y: str) -> tuple[Any, Any]:
    """Two columns of a log, where both are numbers."""
    try:
        found = read_log(path)
    except OSError as error:
        raise Ge2Error(f"{path} cannot be read: {error.strerror}") from None
    for name in (x, y):
        if name not in found or not len(found[name]):
            what = f"{path} has no numbers named {name!r}"
            have = (
                ", ".join(found)
                if len(found) > 1
                else "ge2.io.progress(..., log=path), record(loss=loss)"
            )
            raise InputError(what, fix=f"--{'x' if name == x else 'y'} with one of {have}")
    there = ~(np.isnan(found[x]) | np.isnan(found[y]))
    return found[x][there], found[y][there]


def drawn(curves: dict[str, tuple[Any, Any]], options: argparse.Namespace) -> Any:
    """The figure. InputError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        what = f"ge2 plot draws by matplotlib, which cannot be imported: {error}"
        raise InputError(what, fix="pip install 'ge2[plot]'") from None
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, (xs, ys) in curves.items():
        line = axes.plot(xs, smoothed(ys, options.smooth), label=os.path.basename(name))[0]
        if options.smooth:
            axes.plot(xs, ys, color=line.get_color(), alpha=0.25, linewidth=0.8)
    axes.set(xlabel=options.x, ylabel=options.y, yscale="log" if options.log_y else "linear")
    axes.grid(alpha=0.3)
    if len(curves) > 1:
        axes.legend()
    return figure


def smoothed(ys: Any, weight: float) -> Any:
    """The exponential mean of a curve, without the bias of its begin.

    >>> smoothed(np.array([1.0, 1.0, 2.0]), 0.5)
    array([1.        , 1.        , 1.57142857])
    """
    mean, total, found = 0.0, 0.0, []
    for y in ys:
        mean, total = weight * mean + (1 - weight) * y, weight * total + (1 - weight)
        found.append(mean / total)
    return np.array(found)
