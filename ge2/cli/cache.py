"""`ge2 cache ACTION`: what the cache of compiled kernels holds, whether
it is sound, and less of it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

from ge2.base.cache import Cache, Entry, cache
from ge2.base.config import config
from ge2.base.errors import ArgumentError, CacheTrouble
from ge2.base.formatting import size_words, table
from ge2.base.record import record
from ge2.choice.record import store
from ge2.cli.load import columns, deliver

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
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


def run(options: argparse.Namespace) -> int:
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
    return Answer(data, columns(rows, ""))


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
    return Answer(
        as_data(entry), columns([*rows, ("last used", when(entry.used)), *known, *more], "")
    )


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
