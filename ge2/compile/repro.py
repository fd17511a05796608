"""A program that shows what ge2 does with one graph, to be run by
itself: in a bug report, or later.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np

from ge2.base.config import config
from ge2.base.gpu import host
from ge2.base.record import record
from ge2.codegen.environment import render
from ge2.compile.executable import Executable
from ge2.ir import Eqn, Graph, Op
from ge2.ops.graphs.effects import DebugCallback, HostOp, PureCallback
from ge2.passes.context import dump, dump_file

if TYPE_CHECKING:
    from pathlib import Path

TEMPLATE = "numpy/repro.py.jinja"
LARGEST = 1 << 28  # bytes of arguments that are written
SETTINGS = ("executor", "threads", "passes_off")


@final
@record
class Text:
    """The view that the template prints."""

    title: str
    file: str
    inputs: str
    graph: str
    settings: str
    version: str
    machine: str


def dump_repro(graph: Graph, executable: Executable) -> None:
    """Writes the program for a graph; what looks at values in Python is left out of it."""
    name = executable.label
    plain = without_callbacks(graph)
    calls = pure_callbacks(plain)
    if calls:
        listed = ", ".join(op.function.title for op in calls)
        text = f"{executable.name} calls Python functions, which no text holds: {listed}"
        dump(f"{name}-repro.py", f"raise SystemExit({text!r})")
        return
    settings = {each: getattr(config, each) for each in SETTINGS}
    view = Text(
        executable.name,
        f"{name}-repro.py",
        f"{name}-inputs.npz",
        literal(str(plain)),
        repr(settings),
        version(),
        f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}",
    )
    dump(f"{name}-repro.py", render(TEMPLATE, view).rstrip("\n"))


def dump_inputs(name: str, arrays: Sequence[Any]) -> None:
    """Writes the arguments of a call, unless they are very large."""
    if sum(np.asarray(x).nbytes for x in map(host, arrays)) > LARGEST:
        return
    named = {f"input_{i}": np.asarray(host(x)) for i, x in enumerate(arrays)}

    def write(path: Path) -> None:
        np.savez(path, **named)  # type: ignore[arg-type]

    dump_file(f"{name}-inputs.npz", write)


def version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    try:
        return version("ge2")
    except PackageNotFoundError:
        return "of a checkout"


def literal(text: str) -> str:
    """The text as Python spells it, its lines as they are if that is possible."""
    return repr(text) if '"""' in text else f'r"""\n{text}\n"""'


# -------------------------------------------------------------------------------- what holds Python


def without_callbacks(graph: Graph) -> Graph:
    """The graph without what is called for its effect alone."""
    eqns = [e for e in graph.eqns if not isinstance(e.op, DebugCallback)]
    return Graph(graph.inputs, tuple(map(quiet, eqns)), graph.outputs, graph.consts)


def quiet(eqn: Eqn) -> Eqn:
    if not any(g.effect for g in eqn.op.graphs()):
        return eqn
    return Eqn(quiet_op(eqn.op), eqn.inputs, eqn.outs, eqn.source)


def quiet_op(op: Any) -> Op:
    """The operation with its graphs as `without_callbacks` leaves them."""
    made: Op = replace(
        op, **{f.name: quiet_value(getattr(op, f.name)) for f in fields(op) if f.init}
    )
    return made


def quiet_value(value: Any) -> Any:
    if isinstance(value, Graph):
        return without_callbacks(value)
    if isinstance(value, tuple):
        return tuple(map(quiet_value, value))
    return value


def pure_callbacks(graph: Graph) -> list[PureCallback]:
    """The calls of Python functions whose results the graph reads."""
    found: list[PureCallback] = []
    for eqn in graph.eqns:
        if isinstance(eqn.op, HostOp):
            found += [eqn.op] if isinstance(eqn.op, PureCallback) else []
        else:
            found += [op for inner in eqn.op.graphs() for op in pure_callbacks(inner)]
    return found
