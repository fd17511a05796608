"""Kernels as a user sees them: which one is chosen for a problem, and why.

>>> import numpy as np, ge2
>>> choice = ge2.kernels.select("dot_general", [np.ones((64, 64)), np.ones((64, 64))], "sm_90a",
...                             contract=((1,), (0,)), beside=((), ()))
>>> choice.taken.family.name, choice.by
('small product in CUDA', 'order')
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ge2.base.config import config
from ge2.base.errors import InputError, NoRuleError
from ge2.base.source import here
from ge2.base.tracebacks import publish
from ge2.choice.choose import Candidate as Candidate
from ge2.choice.choose import Choice as Choice
from ge2.choice.choose import choose, settled
from ge2.choice.problem import Measured as Measured
from ge2.choice.problem import Pin as Pin
from ge2.choice.problem import Prefs as Prefs
from ge2.choice.problem import Problem, prefs
from ge2.compile.catalog import catalog_of, check_family, family_names
from ge2.compile.compile import how_to_make, stand_in
from ge2.dispatch.op_call import FUNCTIONS, function_of, op_of
from ge2.dispatch.pins import unpin as unpin
from ge2.dispatch.pins import use as use
from ge2.dispatch.user_kernels import bench as bench
from ge2.dispatch.user_kernels import check as check
from ge2.dispatch.user_kernels import launch as launch
from ge2.dispatch.user_kernels import register as register
from ge2.dispatch.user_kernels import registered as registered
from ge2.dispatch.user_kernels import unregister as unregister
from ge2.ir import Eqn, Graph, Op, Var, type_of
from ge2.ops import KNOWN
from ge2.program import Program, Step
from ge2.targets.cuda.device import Device
from ge2.targets.cuda.limits import Limits
from ge2.transforms.arguments import make_jaxpr

__all__ = [
    "Candidate", "Choice", "Measured", "Pin", "Prefs", "bench", "check", "families", "launch", "names",
    "register", "registered", "select", "unpin", "unregister", "use",
]  # fmt: skip


def names() -> tuple[str, ...]:
    """The names that `ge2.op_call` and `select` know: of functions, then of operations.

    >>> "sdpa" in names(), "dot_general" in names()
    (True, True)
    """
    return (*FUNCTIONS, *KNOWN)


def families() -> tuple[str, ...]:
    """The names of the families of kernels, which preferences may name.

    >>> "product by BLAS" in families()
    True
    """
    return family_names()


def select(
    op: str | Op,
    problem: Sequence[Any] | Problem,
    hw_caps: Any = None,
    prefs: Prefs | None = None,
    **attributes: Any,
) -> Choice:
    """The choice of a kernel for an operation on operands like these.

    `op`: an operation, or a name of `names()` with its attributes. `problem`: arrays, or
    ShapeDtypeStructs, of which the first have layouts where they are NumPy's; or a `Problem`.
    `hw_caps`: None is where programs run now; "sm_90a" or a `Limits` is such a GPU, which need not
    be here; "c" is the processor. `prefs`: None are those of the settings.

    Raises InputError for names that there are not, with the nearest, and for a function that becomes
    more than one kernel; NoRuleError where every family refuses the problem.
    """
    wanted = preferences() if prefs is None else known(prefs)
    device = device_of(hw_caps)
    if isinstance(problem, Problem):
        return chosen(replace(problem, target=target_of(device)), device, wanted)
    if not isinstance(problem, list | tuple):
        what = f"select takes a list of arrays, the operands of {op}; got {problem!r:.60}"
        raise InputError(what, where=here(), fix="[x]")
    operands = [*problem]
    with config.using(executor="c" if hw_caps == "c" else config.executor):
        program = program_of(graph_of(op, operands, attributes), device)
    step = only_kernel(program, op)
    found = Problem.of(step.eqn, program.target, program.operand, step.shared)
    return chosen(as_they_lie(found, step, program, operands), device, wanted)


def preferences() -> Prefs:
    for name in config.prefer:
        check_family(name.removeprefix("-").strip())
    return prefs()


def known(given: Any) -> Prefs:
    """The preferences. InputError for what is none, and for names that there are not."""
    if not isinstance(given, Prefs):
        what = f"prefs are ge2.kernels.Prefs; got {given!r:.60}"
        raise InputError(what, where=here(), fix="ge2.kernels.Prefs(tune='off')")
    if given.tune not in (modes := ("off", "cached", "on")):
        what = f"Prefs(tune=) is {' or '.join(map(repr, modes))}; got {given.tune!r:.60}"
        raise InputError(what, where=here(), fix="tune='cached'")
    for name in (*given.only, *given.without, *(pin.family for pin in given.pins)):
        check_family(name)
    return given


def device_of(caps: Any) -> Device | None:
    """The device that limits or words name; None is the processor."""
    if caps is None:
        return stand_in()
    if isinstance(caps, str) and caps == "c":
        return None
    if hasattr(caps, "limits"):
        return caps  # type: ignore[no-any-return]
    if isinstance(caps, str | Limits):
        from ge2.targets.cuda.emulator import OfflineDevice, limits_of

        return OfflineDevice(caps if isinstance(caps, Limits) else limits_of(architecture(caps)))
    what = f"hw_caps is an architecture, limits or a device; got {caps!r:.60}"
    raise InputError(what, where=here(), fix="'sm_90a', 'c', or None")


def architecture(text: str) -> str:
    if not text.startswith("sm_") or not text[3:].rstrip("af").isdecimal():
        raise InputError(f"{text!r} is no architecture", where=here(), fix="'sm_90a'")
    return text


def target_of(device: Device | None) -> str:
    return how_to_make("select", device).target


def graph_of(op: str | Op, operands: list[Any], attributes: Mapping[str, Any]) -> Graph:
    types = [type_of(x) for x in operands]
    if isinstance(op, str) and op in FUNCTIONS:
        graph: Graph = make_jaxpr(function_of(op, attributes))(*operands).graph
        return graph
    made = op_of(op, attributes) if isinstance(op, str) else op
    inputs, outs = tuple(map(Var, types)), tuple(map(Var, made.infer(*types)))
    return Graph(inputs, (Eqn(made, inputs, outs),), outs)


def program_of(graph: Graph, device: Device | None) -> Program:
    how = how_to_make("select", device)
    return how.scheduled(how.rewritten(graph))


def only_kernel(program: Program, op: str | Op) -> Step:
    """The kernel that an operation is."""
    found = [s for s in program.steps if s.kind in ("kernel", "copy", "matmul", "library")]
    if len(found) == 1:
        return found[0]
    name, steps = op if isinstance(op, str) else op.name, ", ".join(s.name for s in found)
    what = f"{name} becomes {len(found)} kernels on {program.target}: {steps or 'nothing is left'}"
    raise InputError(what, where=here(), fix="ge2.explain(f)(*args), which shows all choices")


def as_they_lie(problem: Problem, step: Step, program: Program, operands: list[Any]) -> Problem:
    """The problem with the strides of the arrays that it was asked with."""
    numbers = {v: n for n, v in enumerate(program.graph.inputs)}
    lies = list(problem.operands)
    for n, a in enumerate(step.eqn.inputs):
        x = operands[numbers[a]] if isinstance(a, Var) and a in numbers else None
        if isinstance(x, np.ndarray) and x.size and not lies[n].value:
            strides = tuple(s // x.itemsize for s in x.strides)
            loose = x.__array_interface__["data"][0] // x.itemsize % (16 // min(x.itemsize, 16))
            lies[n] = replace(lies[n], strides=strides, loose=loose)
    return replace(problem, operands=tuple(lies))


def chosen(problem: Problem, device: Device | None, wanted: Prefs) -> Choice:
    """The choice among the families of the target; of NumPy's functions where none serves."""
    caps, catalog = caps_of(problem.target, device), catalog_of(problem.target)
    try:
        return settled(None, problem, caps, wanted, tuple(f for f in catalog if f.target))
    except NoRuleError:
        return choose(problem, caps, wanted, catalog)


def caps_of(target: str, device: Device | None) -> Any:
    """The limits that kernels are written by."""
    if device is not None:
        from ge2.targets.cuda.device import Caps as CudaCaps

        return CudaCaps.of(device)
    from ge2.compile.pipeline import tuning_now
    from ge2.targets.c.blas import services
    from ge2.targets.c.tuning import Caps

    return Caps(config.thread_count(), bool(services().dgemm), tuning_now().c)


publish(globals())


def __dir__() -> list[str]:
    return __all__
