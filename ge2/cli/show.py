"""`ge2 show FILE.py:function --args ...`: what a function becomes, from its
graph to the kernels it runs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from typing import Any, Final

from ge2.base.config import config
from ge2.base.formatting import count_words, size_words
from ge2.base.record import record
from ge2.cli.load import Look, add_function, add_output, columns, deliver, named
from ge2.compile.compile import how_to_make, stand_in

WIDTH = 100
TITLES: Final = {"c": "the C file", "cuda": "the CUDA files", "python": "what Python runs"}
USUAL: Final = ("graph", "widened", "passes", "regions", "kernels")
# fmt: off
DATA: Final = (
    "name", "kind", "function", "calls", "region", "equations", "lines", "read", "written", "operations",
    "language", "source", "slow",
)
# fmt: on
ROW: Final = ("name", "type", "kind", "nbytes", "born", "dies", "at", "reuse", "line")


@record
class Part:
    """A heading and what stands below it."""

    title: str
    text: str


@record
class Shown:
    """The output of a stage: as text, and for programs."""

    parts: tuple[Part, ...]
    data: Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_function(parser)
    option, stages = parser.add_argument, (*STAGES, "all")
    option("--stage", choices=stages, action="append", help="show this alone; may be repeated")
    executors = ("c", "blocked", "shim")
    option("--executor", choices=executors, help="in place of GE2_EXECUTOR; shim: for a GPU")
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    look = named(options)
    with config.using(executor=options.executor or config.executor):
        shown = {name: STAGES[name](look) for name in chosen(options.stage)}
    if options.json:
        text = json.dumps({name: each.data for name, each in shown.items()}, indent=1)
    else:
        parts = [part for each in shown.values() for part in each.parts]
        text = "\n\n".join(f"{f' {part.title} ':=^{WIDTH}}\n{part.text}" for part in parts)
    deliver(text, options.output)
    return 0


def chosen(stages: list[str] | None) -> tuple[str, ...]:
    if not stages:
        return USUAL
    return tuple(STAGES) if "all" in stages else tuple(s for s in STAGES if s in stages)


def graph(look: Look) -> Shown:
    text = str(look.graph())
    return Shown((Part("graph, as traced", text),), text)


def widened(look: Look) -> Shown:
    """The lines at which float32 becomes float64; nothing where there are none."""
    lines = look.traced().widened
    return Shown((Part("float32 becomes float64", "\n".join(lines)),) if lines else (), list(lines))


def passes(look: Look) -> Shown:
    found = list(after_each(look))
    last = found[-1][1] if found else ""
    parts = tuple(
        Part(f"after {name}", words_of(text, changed, last)) for name, text, changed in found
    )
    return Shown(
        parts, [{"name": name, "graph": text, "changed": changed} for name, text, changed in found]
    )


def words_of(text: str, changed: bool, last: str) -> str:
    """A graph that is not shown elsewhere."""
    return "as before" if not changed else "the regions" if text == last else text


def after_each(look: Look) -> Iterator[tuple[str, str, bool]]:
    """Each pass of the pipeline, the graph after it, and whether that is another."""
    entry, device = look.traced().entry, stand_in()
    before = str(entry.graph)
    how = how_to_make(entry.title, device, writes=entry.writes, iotas=entry.iotas())
    for name, graph in how.stages(entry.graph):
        text = str(graph)
        yield name, text, text != before
        before = text


def regions(look: Look) -> Shown:
    text = look.lowered().as_text()
    return Shown((Part("regions, after the last pass", text),), text)


def kernels(look: Look) -> Shown:
    lowered = look.lowered()
    found = lowered.kernels
    named = {f"{kernel.name} {kernel.slow}" for kernel in found}
    others = [words for words in lowered.executable.slow if words not in named]
    parts = [
        Part("kernels", "\n".join([str(found), *others])),
        *(Part(k.name, str(k).rstrip()) for k in found),
    ]
    return Shown(tuple(parts), [kernel_data(k) for k in found])


def kernel_data(kernel: Any) -> dict[str, Any]:
    return {name: getattr(kernel, name) for name in DATA}


def choice(look: Look) -> Shown:
    """The choice of each kernel, loop and library call: the refusals before it, what was taken, and
    what could have been.
    """
    found = {name: str(each) for name, each in look.lowered().choices.items()}
    parts = (Part(f"choice of {name}", text) for name, text in found.items())
    return Shown(tuple(parts), {name: text.splitlines() for name, text in found.items()})


def source(look: Look) -> Shown:
    executable = look.lowered().executable
    texts = {language: text for language in TITLES if (text := executable.text(language))}
    return Shown(
        tuple(Part(TITLES[language], text.strip()) for language, text in texts.items()), texts
    )


def plan(look: Look) -> Shown:
    lowered = look.lowered()
    memory, cost = lowered.memory_analysis(), lowered.cost_analysis()
    bytes_ = {
        name: getattr(memory, name) for name in ("arguments", "outputs", "donated", "arena", "kept")
    }
    rows = [(name, size_words(n)) for name, n in bytes_.items()]
    rows += [
        (name, (size_words if "bytes" in name else count_words)(int(n))) for name, n in cost.items()
    ]
    steps = lowered.executable.report()
    parts = (Part("steps", steps), Part("memory and work of a call", columns(rows, "")))
    return Shown(parts, {"steps": steps.splitlines(), "memory": bytes_, "cost": cost})


def memory(look: Look) -> Shown:
    timeline = look.lowered().memory_timeline()
    rows = [{name: getattr(row, name) for name in ROW} for row in timeline.rows]
    return Shown(
        (Part("memory, step by step", str(timeline)),), {"arena": timeline.arena, "rows": rows}
    )


STAGES: dict[str, Callable[[Look], Shown]] = {
    "graph": graph,
    "widened": widened,
    "passes": passes,
    "regions": regions,
    "kernels": kernels,
    "choice": choice,
    "source": source,
    "plan": plan,
    "memory": memory,
}
