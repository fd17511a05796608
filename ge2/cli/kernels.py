"""`ge2 kernels ACTION FOLDER`: a kernel of your own checked beside its function, raced, or named in
the project's file.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from ge2.cli.load import add_output, deliver
from ge2.dispatch.pins import FILE, enrolled
from ge2.dispatch.user_kernels import LIMIT, bench, check


def add_arguments(parser: argparse.ArgumentParser) -> None:
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


def run(options: argparse.Namespace) -> int:
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
