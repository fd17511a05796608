"""`ge2 explain FILE.py:function --args ...`: for each kernel what it covers, the candidates, and
why its neighbours are kernels of their own.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from ge2.base.config import config
from ge2.cli.load import Look, add_function, add_output, deliver, named
from ge2.cli.profile import Drawn, place, usual
from ge2.dispatch.explain import explain
from ge2.dispatch.explanation import Explanation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_function(parser)
    option = parser.add_argument
    executors = ("c", "blocked", "shim")
    option("--executor", choices=executors, help="in place of GE2_EXECUTOR; shim: for a GPU")
    option("--arch", default="", help="as CUDA for such a GPU, which need not be here: sm_90a")
    option("--time", action="store_true", help="run it on drawn arrays, and time each kernel")
    option("--all", action="store_true", help="with equations, and kernels of other operations")
    option("--html", action="store_true", help="as a page for a browser")
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    with config.using(executor=options.executor or config.executor):
        found = of(named(options, drawn() if options.time else None), options)
    deliver(text_of(found, options), options.output)
    return 0


def drawn() -> Callable[[Any], Any]:
    """A function that makes arrays of types: on the GPU, if there is one."""
    return Drawn(place(usual())[0])


def of(look: Look, options: argparse.Namespace) -> Explanation:
    ask = explain(look.function, arch=options.arch, time=options.time)
    found: Explanation = look.guarded(ask)
    return found


def text_of(found: Explanation, options: argparse.Namespace) -> str:
    if options.json:
        return found.as_json()
    return found._repr_html_() if options.html else found.text(options.all)
