"""Kernels of your own for functions of yours: checked, registered, and raced with those of ge2.

A folder holds a text in C or CUDA and `kernel.toml`, which names the NumPy function that the text
computes. `check` runs it beside the function; `register` makes it a candidate wherever `jit` finds
the function in a program; `bench` times it beside what ge2 does, and the faster is taken from then
on. `docs/design/user_kernels.md` says what the file may hold.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache
from statistics import median
from typing import Any, Final, final

import numpy as np

from ge2.base.cache import VERSION, cache, content_key
from ge2.base.config import config, environment_with
from ge2.base.detect import toolchain
from ge2.base.errors import CompileError, CompilerTrouble, DeviceError, Ge2Error, InputError
from ge2.base.record import record
from ge2.base.source import Printed, counted, here, size_words, table
from ge2.base.tracebacks import hides
from ge2.choice import Measured, Problem, prefs
from ge2.choice import record as kept
from ge2.choice.arguments import Refused
from ge2.choice.choose import choose
from ge2.choice.record import class_of
from ge2.choice.user_kernels import Kernel, Part, load
from ge2.compile import compile_graph
from ge2.compile.catalog import USER_KERNELS
from ge2.compile.executable import Executable
from ge2.compile.race import benches, verified
from ge2.compile.user_kernels import caps_of, catalog, choice_of
from ge2.compile.user_kernels.operations import (
    Role,
    full,
    graph_of,
    names_of,
    operation,
    role_of,
    roles,
    types_of,
)
from ge2.dispatch import jit
from ge2.ir import ArrayType, Eqn, Graph, Var
from ge2.ops.user_ops import Own
from ge2.passes.context import Context
from ge2.program.assembler import HostClock, seconds
from ge2.targets.cuda.assemble.bench import clock_of
from ge2.targets.cuda.device import Device, upload
from ge2.targets.cuda.emulator import OfflineDevice, ShimDevice
from ge2.targets.cuda.limits import H200
from ge2.targets.cuda.load import gpu, loaded_nvrtc

LANGUAGES: Final = {"c": "C", "cuda": "CUDA"}
ROUNDS: Final = 15
LEAST: Final = 2e-4  # seconds that a time is of
COMPILER: Final = re.compile(r"error: (.+)\n *\d+ \|(.*)")
LIMIT: Final = 600  # seconds that a check may take

# --------------------------------------------------------------------------------------- checking


@final
@record
class Case:
    """A text on one example. `ran`: what ran it; "" if nothing did, for the reason `unrun`. `error`:
    "" if its results were those of the function, and nothing else was written.
    """

    kernel: str
    language: str
    variant: str
    arguments: str
    ran: str = ""
    error: str = ""
    unrun: str = "compiled, never run"

    @property
    def verdict(self) -> str:
        return self.error or (f"passed, by {self.ran}" if self.ran else self.unrun)


Tell = Callable[[Case], object]


@final
@record
class Checked(Printed):
    """The findings of a check: a case for each text, variant and example. Printed, a table."""

    title: str
    cases: tuple[Case, ...]

    def passed(self, language: str) -> bool:
        """True if all of a language ran, and none was wrong."""
        own = [case for case in self.cases if case.language == language]
        return bool(own) and all(case.ran and not case.error for case in own)

    def __str__(self) -> str:
        head = ("kernel", "text", "variant", "arguments", "")
        rows = [
            (c.kernel, LANGUAGES[c.language], c.variant, c.arguments, c.verdict.partition("\n")[0])
            for c in self.cases
        ]
        long = dict.fromkeys(c.error for c in self.cases if "\n" in c.error)
        found = [w for w in LANGUAGES if any(c.language == w for c in self.cases)]
        words = (
            f"{LANGUAGES[w]} {'passed' if self.passed(w) else 'has not passed'}" for w in found
        )
        return "\n".join([table([head, *rows]), *long, f"{self.title}: {', '.join(words)}"])


@hides
def check(
    folder: str,
    *,
    apart: bool = False,
    limit: int = LIMIT,
    only: str = "",
    tell: Tell | None = None,
) -> Checked:
    """Runs the texts of a folder on its examples, beside the NumPy function.

    Results are filled with NaN before and are between guard bands. CUDA is run by a GPU if there is
    one, else by the emulator, and compiled alone where neither can. What passed is kept, with
    the texts it was, for `register`. `apart`: each language in a process of its own for at most
    `limit` seconds, so that what crashes or hangs stops nothing. `only` names one language; `tell`
    is called with each case, when it begins and when it is known.

    InputError, with file and line, where `kernel.toml` is wrong.
    """
    kernel = load(folder)
    languages = [w for w in kernel.languages if only in ("", w)]
    if apart:
        lost = (case for w in languages for case in checked_apart(kernel, w, limit))
        return Checked(kernel.name, tuple(lost))
    found = Checked(kernel.name, tuple(cases(kernel, languages, tell or (lambda case: None))))
    for language in languages:
        if found.passed(language):
            ran = {case.ran for case in found.cases if case.language == language}
            keep_passed(kernel, language, ", ".join(sorted(ran)))
    return found


def checked_apart(kernel: Kernel, language: str, limit: int) -> Iterator[Case]:
    """A check by another process; what it finds is kept by that. Of what was not begun, nothing is
    known.
    """
    words = [sys.executable, "-m", "ge2", "kernels", "check", kernel.file, "--lines", language]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=limit, check=False)
        output, why = done.stdout, done.stderr.strip().removeprefix("ge2: ")
        why = f"the process died, by signal {-done.returncode}" if done.returncode < 0 else why
    except subprocess.TimeoutExpired as late:
        output = (late.stdout or b"").decode() if isinstance(late.stdout, bytes) else ""
        why = f"it took more than {limit} s"
    with suppress(ValueError):  # a line that was cut off
        told = [Case(**json.loads(line)) for line in output.splitlines() if line.startswith("{")]
        yield from told[1::2]
        if len(told) % 2:
            yield replace(told[-1], error=why or "it failed")
            return
        if told:
            return
    yield Case(kernel.name, language, "", "", "", why or "it failed")


def told_apart(action: str, kernel: Kernel, limit: int) -> tuple[Any, str]:
    """The findings of another process, under the settings of this one; or None, and what became of
    it.
    """
    words = [sys.executable, "-m", "ge2", "kernels", action, kernel.file, "--here", "--json"]
    given = {"GE2_CACHE_DIR": config.cache_dir, "GE2_THREADS": str(config.threads or "")}
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=limit, check=False,
            env=environment_with(**{name: text for name, text in given.items() if text}),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None, f"it took more than {limit} s"
    if done.returncode < 0:
        return None, f"the process died, by signal {-done.returncode}"
    with suppress(ValueError):
        return json.loads(done.stdout), ""
    said = done.stderr.strip().removeprefix("ge2: ")
    return None, said or f"it ended the process, with {done.returncode}"


def cases(kernel: Kernel, languages: Sequence[str], tell: Tell) -> Iterator[Case]:
    for role, number, words in parts_of(kernel):
        for language in [w for w in role.text.languages if w in languages]:
            for variant in role.text.variants:
                name = ", ".join(f"{word}={n}" for word, n in variant)
                begun = Case(role.text.name, language, name, words)
                tell(begun)
                found = case(begun, role, number, variant)
                tell(found)
                yield found


def parts_of(kernel: Kernel) -> Iterator[tuple[Role, int, str]]:
    """The parts of a kernel that are run on each example: its function, or operation, then all
    gradients.
    """
    for number, words in enumerate(kernel.args):
        yield role_of(kernel, number), number, words
    for number, words in enumerate(kernel.args if kernel.gradient is not None else ()):
        yield next(roles(kernel)), number, words


def case(found: Case, role: Role, number: int, variant: tuple[tuple[str, int], ...]) -> Case:
    """A case that is begun, and what came of it."""
    language = found.language
    try:
        graph = one_step(role, number, variant)
    except Refused as why:
        return replace(found, error=f"it is not for this example: {why}")
    except CompileError as error:  # of a template
        return replace(found, error=f"CompileError: {error}")
    try:
        device, ran = where(language, role.text)
        if not ran and needs_gpu(role.text, language):
            return replace(found, unrun="never run: it needs a GPU")
        try:
            return run_in(found, graph, device, ran)
        except CompileError:
            if language == "c" or not has_nvrtc():
                raise
            # of CUDA that the emulator cannot compile, such as PTX
            return run_in(found, graph, OfflineDevice(H200), "")
    except Refused as why:
        return replace(found, error=f"it is not for this example: {why}")
    except CompilerTrouble as trouble:
        parts = [part for part in role.text.parts if part.language in (language, "helpers")]
        return replace(found, error=refused_at(parts, str(trouble)))
    except (Ge2Error, ArithmeticError, LookupError, ValueError, OSError) as error:
        return replace(found, error=f"{type(error).__name__}: {error}")


def refused_at(parts: Sequence[Part], said: str) -> str:
    """The message of a C compiler, at the line of the user's files that it shows."""
    found = COMPILER.search(said)
    words, shown = (found[1], found[2]) if found is not None else ("", "")
    for part in parts if shown else ():
        lines = [line.strip() for line in part.text.splitlines()]
        if shown.strip() in lines:
            line = lines.index(shown.strip()) + 1
            return f"CompileError: {words}\n  at   {part.path}:{line}\n{shown}"
    return f"CompilerTrouble: {said}"


def has_nvrtc() -> bool:
    with suppress(CompilerTrouble):
        return bool(loaded_nvrtc())
    return False


def run_in(found: Case, graph: Graph, device: Device | None, ran: str) -> Case:
    """A case with what `ran` it, or what was wrong."""
    with config.using(executor="c"):
        executable = compile_graph(graph, device=device)
        if isinstance(device, OfflineDevice):
            executable.build()
            return found
        for bench in benches(executable):
            with bench.here():
                taken = choose(bench.problem, bench.caps, prefs(), bench.catalog).taken
                _, wrong = verified(bench, bench.prepared(taken))
                return replace(found, ran=ran, error=wrong)
    return replace(found, error="it computes nothing")


def where(language: str, kernel: Kernel) -> tuple[Device | None, str]:
    """The device that runs a kernel's text in a language here, and its name; "" if it only
    compiles.
    """
    if language == "c":
        if toolchain() is None:
            raise CompilerTrouble("there is no C compiler in use", fix="ge2 doctor")
        return None, "this processor"
    with suppress(DeviceError):
        device = gpu.current_gpu()
        return device, device.limits.name
    if toolchain() is not None and not needs_gpu(kernel, language):
        return ShimDevice(), "the emulator"
    return OfflineDevice(H200), ""


def needs_gpu(kernel: Kernel, language: str) -> bool:
    """True of what only a GPU can run: a prebuilt binary, a library that launches kernels."""
    return language == "cuda" and bool(kernel.cubin or dict(kernel.functions).get("cuda"))


def one_step(role: Role, number: int, variant: tuple[tuple[str, int], ...]) -> Graph:
    """The graph of a kernel alone, on the types of an example."""
    types = types_of(role.kernel, number)
    if role.wanted is not None:
        types = (*types, *(a.type for a in graph_of(Role(role.kernel), types).outputs))
    op = operation(role, types, variant)
    inputs, outs = tuple(map(Var, types)), tuple(map(Var, op.infer(*types)))
    return Graph(inputs, (Eqn(op, inputs, outs),), outs)


_passed: dict[str, str] = {}


def passed_key(kernel: Kernel, language: str) -> str:
    return content_key("kernel check", VERSION, kernel.key, language)


def keep_passed(kernel: Kernel, language: str, ran: str) -> None:
    key = passed_key(kernel, language)
    _passed[key] = ran
    about = {"kind": "check", "name": f"{kernel.name} in {LANGUAGES[language]}", "ran": ran}
    cache().put(key, ran.encode(), {**about, "source": kernel.file, "version": VERSION})


def has_passed(kernel: Kernel, language: str) -> bool:
    key = passed_key(kernel, language)
    return key in _passed or cache().get(key) is not None


# ------------------------------------------------------------------------------------- registering


@hides
def register(folder: str, *, prefer: bool = False) -> str:
    """Makes the kernel of a folder a candidate wherever `jit` finds its function; returns its name.

    It is taken where `bench` found it faster; with `prefer`, also where nothing was measured.
    Programs that are built stay as they are. InputError unless the texts as they are now passed
    `check`; a text that was never run is left out.
    """
    kernel = load(folder)
    ready = [w for w in kernel.languages if has_passed(kernel, w)]
    if not ready:
        listed = " and ".join(LANGUAGES[w] for w in kernel.languages)
        what = f"{kernel.name} has never run: its {listed} did not pass a check as it is now"
        raise InputError(what, where=here(), fix=f"ge2 kernels check {kernel.folder}")
    unregister(kernel.name)
    USER_KERNELS[only(kernel, ready)] = prefer
    config.renew()
    return kernel.name


def only(kernel: Kernel, languages: list[str]) -> Kernel:
    """A kernel with texts of some languages alone."""
    inner = None if kernel.gradient is None else only(kernel.gradient, languages)
    parts = tuple(each for each in kernel.parts if each.language in (*languages, "helpers"))
    functions = tuple(each for each in kernel.functions if each[0] in languages)
    cubin = kernel.cubin if "cuda" in languages else ""
    return replace(kernel, parts=parts, functions=functions, cubin=cubin, gradient=inner)


def unregister(name: str) -> None:
    """Takes a kernel from the candidates, if it is one."""
    for kernel in [k for k in USER_KERNELS if k.name == name]:
        del USER_KERNELS[kernel]
        config.renew()


def registered() -> tuple[str, ...]:
    """The names of the kernels that are candidates."""
    return tuple(kernel.name for kernel in USER_KERNELS)


@hides
def launch(name: str, buffers: Sequence[Any], stream: Any = None, *, variant: int = 0) -> None:
    """Runs a registered kernel as it is, whatever would be chosen: `buffers` are the arrays of its
    operands, then those of its results, which it writes. On a GPU, in CuPy's `stream`, if one is
    given. `name` may be that of its gradient, `layer_gradient`; `variant` is the number of one.

    InputError for a name that is not registered, with the nearest, for other buffers than it has,
    for types that it is not for, and for a variant and a stream that there are not.
    """
    role = role_named(name)
    known = variant in range(len(role.text.variants))
    if not known or not isinstance(stream, AbstractContextManager | None):
        what = f"no variant {variant!r}" if not known else f"{stream!r} is no CuPy stream"
        raise InputError(what, where=here())
    types = tuple(type_of_buffer(name, x) for x in buffers)
    count = len(names_of(role))
    try:
        op = operation(role, types[:count], role.text.variants[variant])
    except Refused as why:
        raise InputError(f"{name} is not for such buffers: {why}", where=here()) from None
    outs = op.infer(*types[:count])
    if outs != types[count:]:
        wanted, given = (", ".join(map(str, ts)) for ts in ((*types[:count], *outs), types))
        raise InputError(f"{name} takes {wanted}; it is given {given}", where=here())
    with stream if stream is not None else nullcontext():
        launcher(op, count)(*buffers)


def type_of_buffer(name: str, x: Any) -> ArrayType:
    """The type of an array that a launch is given. InputError for what is none."""
    try:
        return ArrayType(tuple(x.shape), np.dtype(x.dtype))
    except AttributeError:
        what = f"{name} takes arrays, of its operands and then of its results; got {x!r:.60}"
        raise InputError(what, where=here(), fix="[x, w, np.empty_like(x)]") from None


@lru_cache(64)
def launcher(op: Own, count: int) -> Any:
    """A function that writes the results of an operation into its last arguments."""

    def run(*buffers: Any) -> None:
        found = op(*buffers[:count])
        for y, out in zip(found if op.several else [found], buffers[count:], strict=True):
            out[...] = y

    return jit(run)


def role_named(name: str) -> Role:
    known = {role.text.name: role for k in USER_KERNELS for role in reversed([*roles(k)])}
    if name not in known:
        near = get_close_matches(name, known, 1, 0.0)
        fix = repr(near[0]) if near else "ge2.kernels.register(folder)"
        raise InputError(f"no kernel {name!r} is registered", where=here(), fix=fix)
    return full(known[name])


# ----------------------------------------------------------------------------------------- racing


@final
@record
class Time:
    """A candidate on an example: seconds of a call, and the bytes of its arrays."""

    kernel: str
    candidate: str
    arguments: str
    seconds: float
    spread: float
    nbytes: int
    won: bool

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.nbytes / self.seconds


@final
@record
class Raced(Printed):
    """The findings of a race. Printed, a table."""

    title: str
    device: str
    times: tuple[Time, ...]
    failed: str = ""  # why nothing was timed, and the kernel is not taken

    def __str__(self) -> str:
        if self.failed:
            return f"{self.title} on {self.device} is not taken: {self.failed}"
        head = ("kernel", "candidate", "arguments", "us", "spread", "bytes", "GB/s", "")
        rows = [
            (t.kernel, t.candidate, t.arguments, f"{t.seconds * 1e6:.3g}", f"{t.spread:.0%}",
             size_words(t.nbytes), f"{t.rate / 1e9:.3g}", "taken" if t.won else "")
            for t in self.times
        ]  # fmt: skip
        words = f"{self.title} on {self.device}, medians of {counted(ROUNDS, 'round')}"
        return f"{table([head, *rows], right=frozenset((3, 4, 5, 6)))}\n{words}"


@hides
def bench(folder: str, *, apart: bool = False, limit: int = LIMIT) -> Raced:
    """Times the kernel of a folder beside what ge2 does for the function, on each example: on a
    GPU if there is one and there is CUDA, else in C. The record keeps it, so that the faster is
    taken from now on, for sizes of the same class. `apart`: in a process of its own for at most
    `limit` seconds; one that crashes or hangs is kept with that reason, and never taken.

    InputError unless the text passed `check`.
    """
    kernel = load(folder)
    language = next((w for w in reversed(kernel.languages) if runs(w)), "")
    if not language or not has_passed(kernel, language):
        what = f"{kernel.name} has no text that ran here and passed"
        raise InputError(what, where=here(), fix=f"ge2 kernels check {kernel.folder}")
    device = where(language, kernel)[0]
    found, why = list[Time](), ""
    if apart:
        told, why = told_apart("bench", kernel, limit)
        found += [] if told is None else [Time(**each) for each in told["times"]]
        kept.forget()
    for role, number, words in parts_of(kernel):
        if language not in role.text.languages:
            continue
        if why:
            keep_lost(role, number, device, why)
        elif not apart:
            found += raced(role, number, words, device)
    config.renew()
    name = "this processor" if device is None else device.limits.name
    return Raced(kernel.name, name, tuple(found), why)


def runs(language: str) -> bool:
    """True if a language runs here as fast as it can."""
    if language == "c":
        return toolchain() is not None
    with suppress(DeviceError):
        gpu.current_gpu()
        return True
    return False


def asked(role: Role, number: int, device: Device | None) -> tuple[Problem, Any]:
    """The problem that an example is, and the limits of what it runs on."""
    types = tuple(v.type for v in one_step(role, number, role.text.variants[0]).inputs)
    context = Context(None if device is None else device.limits, gathers=device is None)
    target, caps = caps_of(context)
    return choice_of(role, types, target, caps, False).problem, caps


def keep_lost(role: Role, number: int, device: Device | None, why: str) -> None:
    """Writes down of all variants why they are not taken."""
    problem, caps = asked(role, number, device)
    mine = catalog(full(role), False)[1]
    rows = [
        Measured(mine.name, each.name, code=mine.code, device=caps.kind, failure=why)
        for each in mine.variants(problem, caps)
    ]
    kept.keep(caps.kind, class_of(problem), False, rows)


def raced(role: Role, number: int, words: str, device: Device | None) -> Iterator[Time]:
    """The times of the variants and of what ge2 does, on one example; the record gets them."""
    problem, caps = asked(role, number, device)
    types = problem.inputs
    other, mine = catalog(full(role), False)
    programs = {(other, ""): graph_of(full(role), types)}
    for variant in mine.variants(problem, caps):
        programs[mine, variant.name] = one_step(role, number, variant.plan)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(t.shape).astype(t.dtype) if t.dtype.kind not in "bui"
              else rng.integers(0, 2, t.shape).astype(t.dtype) for t in types]  # fmt: skip
    times = times_of([*programs.values()], arrays, device)
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    rows = [
        Measured(family.name, name, median(each), spread_of(each), family.code, caps.kind,
                 when=when, verified="passed a check")
        for (family, name), each in zip(programs, times, strict=True)
    ]  # fmt: skip
    kept.keep(caps.kind, class_of(problem), True, rows)
    best = min(rows, key=lambda r: r.median)
    nbytes = sum(t.nbytes for t in (*types, *problem.outs))
    for row in rows:
        title = ", ".join(filter(None, (row.family, row.variant)))
        yield Time(role.text.name, title, words, row.median, row.spread, nbytes, row is best)


def times_of(graphs: list[Graph], arrays: list[Any], device: Device | None) -> list[list[float]]:
    """Seconds of each program, taken in turns."""
    # what kernels are raced with has none of them
    off = (*config.passes_off, "user_kernels")
    with config.using(executor="c", passes_off=off):
        programs = [compile_graph(graph, device=device) for graph in graphs]
        given = arrays if device is None else [upload(device, x) for x in arrays]
        clock = HostClock() if device is None else clock_of(device, False)
        runs = []
        for program in programs:
            program(*given)
            once = seconds(clock, repeated(program, given, 1))
            count = max(1, min(1000, round(LEAST / max(once, 1e-7))))
            runs.append((repeated(program, given, count), count))
        found: list[list[float]] = [[] for _ in programs]
        for _ in range(ROUNDS):
            for (run, count), own in zip(runs, found, strict=True):
                own.append(seconds(clock, run) / count)
        return found


def repeated(program: Executable, given: list[Any], count: int) -> Any:
    def run() -> None:
        for _ in range(count):
            program(*given)

    return run


def spread_of(times: list[float]) -> float:
    ordered = sorted(times)
    return (ordered[3 * len(ordered) // 4] - ordered[len(ordered) // 4]) / median(ordered)
