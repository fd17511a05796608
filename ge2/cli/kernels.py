"""`ge2 kernels ACTION FOLDER`: a kernel of your own checked beside its function, or raced."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ge2.cli.load import add_output, deliver
from ge2.dispatch.user_kernels import LIMIT, bench, check


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)
    for name, summary in (
        ("check", "run it on its examples, beside the NumPy function that it computes"),
        ("bench", "time it beside what ge2 does, and keep the times for jit to choose by"),
    ):
        sub = actions.add_parser(name, help=summary, description=summary)
        sub.add_argument("folder", metavar="FOLDER", help="that of a kernel.toml")
        add_output(sub)
        sub.add_argument(
            "--limit", type=int, default=LIMIT, metavar="S", help="seconds it may take"
        )
        sub.add_argument("--here", action="store_true", help="in this process, not in one apart")


def run(options: argparse.Namespace) -> int:
    found: Any
    if options.action == "check":
        found = check(options.folder, apart=not options.here, limit=options.limit)
        wrong = any(case.error for case in found.cases)
        data = {"kernel": found.title, "cases": [fields_of(each) for each in found.cases]}
    else:
        found = bench(options.folder, apart=not options.here, limit=options.limit)
        wrong = bool(found.failed)
        times = [fields_of(each) for each in found.times]
        data = {"kernel": found.title, "device": found.device, "times": times}
    deliver(json.dumps(data, indent=1) if options.json else str(found), options.output)
    return int(wrong)


def fields_of(each: Any) -> dict[str, Any]:
    return {name: getattr(each, name) for name in each.__dataclass_fields__}
