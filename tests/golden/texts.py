"""The text of a golden file: a program after the last pass, its steps, kernels and launches."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import ge2
from ge2.base.config import config
from ge2.base.source import table
from ge2.choice import Problem, prefs
from ge2.choice.choose import settled
from ge2.cli.show import assemblers
from ge2.compile import compile_graph
from ge2.compile.catalog import catalog_of, plan_text
from ge2.compile.executable import Executable
from ge2.ir import write
from ge2.program import Program as Compiled
from ge2.targets.c.tuning import Caps as CpuCaps
from ge2.targets.cuda.assemble import CudaAssembler
from ge2.targets.cuda.device import Caps
from ge2.targets.cuda.emulator import OfflineDevice
from ge2.targets.cuda.families import FAMILIES
from ge2.targets.cuda.limits import H200
from tests.golden.programs import Program
from tests.small import SMALL_CHIP

DEVICES = {"cuda": OfflineDevice(H200), "small_chip": OfflineDevice(SMALL_CHIP)}
CAPS = {"c": CpuCaps(2), "cpu": CpuCaps(2), "cuda": Caps.of(DEVICES["cuda"])}
EXECUTORS = {"c": "c", "blocked": "blocked", "cuda": "c", "small_chip": "c"}
# the functions of a C file that its launcher, or a loop, calls
RUN = re.compile(r"^(?:static |GE2_FN )?int \w+\(\n    char \*const \*p", re.MULTILINE)
KINDS = ("kernel", "copy", "matmul", "library")


def text_of(name: str, program: Program, target: str) -> str:
    """All that a golden file shows of a program for a target."""
    # whatever the kernels of this machine's BLAS are
    wide = patch("ge2.targets.c.libraries.is_narrow", lambda: False)
    packing = patch("ge2.targets.c.libraries.unpacked", lambda: 0)
    with wide, packing, config.using(
        executor=EXECUTORS[target], threads=2, passes_off=program.off, dump="", nvtx=False,
    ):  # fmt: skip
        executable = compiled(name, program, target)
        parts = [*parts_of(executable, program.plan)]
    return "\n".join(f"{f' {title} ':=^100}\n{text.strip()}\n" for title, text in parts)


def compiled(name: str, program: Program, target: str) -> Executable:
    """The program, with nothing compiled."""
    with config.using(executor="reference"):
        entry = (
            ge2.jit(program.function, donate_argnums=program.donate).trace(*program.arguments).entry
        )
    return compile_graph(
        entry.graph,
        donated=entry.donated,
        name=name,
        device=DEVICES.get(target),
        writes=entry.writes,
    )


def parts_of(executable: Executable, plan: bool) -> Iterator[tuple[str, str]]:
    """Headings and texts. A C file begins with the graph, and so need not come after it."""
    program = executable.program
    found = [*assemblers(executable)] if executable.device is not None else [executable.unbuilt()]
    if plan or "c" not in found[0].texts:
        yield "graph after the last pass", write(program.graph)
    yield "steps", "\n".join(steps(program))
    if plan:
        yield "memory plan", memory_plan(executable, found[0])
    for n, assembler in enumerate(found):
        for title, text in texts_of(assembler, not plan):
            yield f"{title} of inner program {n}" if n else title, text


def texts_of(assembler: Any, kernels: bool) -> Iterator[tuple[str, str]]:
    """The kernels, and what each call runs."""
    if isinstance(assembler, CudaAssembler):
        for text in dict.fromkeys(assembler.kernels.texts) if kernels else ():
            yield "kernel", text
        yield "launches", assembler.texts["python"]
        return
    if "c" in assembler.texts:
        text = assembler.texts["c"]
        yield "c", text if kernels else text[min(found.start() for found in RUN.finditer(text)) :]
    if "python" in assembler.texts:
        own = (each.text() for each in assembler.made if each.language == "python" and kernels)
        for text in dict.fromkeys(own):
            yield "kernel", text
        yield "python", assembler.texts["python"]


def memory_plan(executable: Executable, assembler: Any) -> str:
    """The plan without the lines of the user's file."""
    bare = [replace(step, eqn=replace(step.eqn, source=None)) for step in executable.program.steps]
    program = replace(executable.program, steps=tuple(bare))
    return plan_text(program, assembler.arena.offsets(), assembler.arena.nbytes)


def steps(program: Compiled, margin: str = "") -> Iterator[str]:
    """Each step with the family of kernels that is chosen for it; below a
    loop, those of its body.
    """
    rows = [(str(s.number), s.kind, s.name, choice_of(s, program)) for s in program.steps]
    for step, line in zip(program.steps, table(rows).split("\n") if rows else [], strict=True):
        yield f"{margin}{line}".rstrip()
        for inner in program.inner.get(step.number, ()):
            yield from steps(inner, f"{margin}    ")


def choice_of(step: Any, program: Compiled) -> str:
    """The family and the variant that are chosen for a step, its arrays where
    they are in the program.
    """
    eqn = step.eqn
    if step.kind not in KINDS or any(v.type.weak for v in eqn.outs):
        return ""
    problem = Problem.of(eqn, program.target, program.operand, step.shared)
    caps, catalog = CAPS.get(program.target), catalog_of(program.target)
    if program.target == "cuda" and step.kind != "library":
        catalog = FAMILIES  # as the assembler asks
    return settled(eqn.choice, problem, caps, prefs(), catalog).taken.title
