"""Kernels that are fixed beforehand: pins of edited ones, and races on demand."""

from __future__ import annotations

import json
import os
import re
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, final

from ge2.base.cache import VERSION, cache, content_key
from ge2.base.config import config
from ge2.base.errors import ArgumentError, CompileError, CompilerTrouble, InputError
from ge2.base.record import record
from ge2.base.source import Printed, here, table
from ge2.base.tracebacks import hides
from ge2.choice import Pin
from ge2.choice.bench import Bench
from ge2.choice.choose import SAVED, Candidate
from ge2.choice.saved import Pinned, Saved, SavedFamily, key_of, read
from ge2.choice.user_kernels import Part, at_line, check_keys, load, parsed
from ge2.compile.catalog import check_family
from ge2.compile.race import Racer, Tuned, benches, lasting, on_stderr, timed, tune, verified
from ge2.dispatch.user_kernels import LANGUAGES, has_passed, refused_at, register

if TYPE_CHECKING:
    from ge2.dispatch.jitted import Jitted


# -------- This module holds pins: edited kernels of ge2, and a project's file that lists all user
# kernels.


FILE: Final = "ge2-pins.toml"
NO_FILE: Final = "ge2 kernels register FOLDER, or f.pin, which write one"
AGAIN: Final = "the kernel as f.lower(*args).kernels[i].save writes it now, and another edit of it"
KEYS: Final = {"kernels": "texts", "prefer": "texts", "pin": "tables"}
OF_PIN: Final = dict.fromkeys(("family", "variant", "problem", "kernel"), "a text")


@hides
def use(path: str = FILE) -> tuple[Pin, ...]:
    """Registers the kernels that a file names, and pins problems to families as the file describes;
    returns all pins in force.

    `kernels` and `prefer` are lists of folders, as `register` takes them, from the file's own;
    those of `prefer` are taken even where nothing was measured. Each `[[pin]]` has a `family`,
    perhaps a `variant`, and perhaps a `problem`: the class that `ge2 explain --all` prints. Its
    kernel is taken wherever it does not refuse. Or it has a `kernel`: a file that `f.pin` has
    checked, which is taken for its problem. Programs that are built stay as they are.

    InputError, with file and line, where the file is wrong; and as `register`.
    """
    path, found = os.path.abspath(path), parsed(path, NO_FILE)
    check_keys(path, found, KEYS, "a file of pins")
    folder = os.path.dirname(path)
    for prefer, key in ((False, "kernels"), (True, "prefer")):
        for each in found.get(key, ()):
            register(os.path.join(folder, each), prefer=prefer)
    said = found.get("pin", ())
    for each in said:
        check_pin(path, each)
    for each in said:
        if "kernel" in each:
            take(passed(os.path.join(folder, each["kernel"])))
    new = tuple(pin_of(path, each) for each in said if "family" in each)
    older = [pin for pin in config.pins if pin not in new]
    pins: Any = (*new, *older)
    if pins != config.pins:
        config.update(pins=pins)
    return pins  # type: ignore[no-any-return]


@final
@record
class Enrolled(Printed):
    """A kernel that a project's file names, and for each language whether it is used. It prints as
    a table.
    """

    title: str
    file: str
    texts: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        rows = [("kernel", "text", ""), *((self.title, *each) for each in self.texts)]
        return f"{table(rows)}\n{self.title} is named in {self.file}"


@hides
def enrolled(folder: str, file: str, prefer: bool = False) -> Enrolled:
    """Adds a kernel's folder to a project's file. InputError if none of its texts has passed
    `check`.
    """
    kernel = load(folder)
    register(folder, prefer=prefer)
    file = os.path.abspath(file)
    name = os.path.relpath(kernel.folder, os.path.dirname(file)).replace(os.sep, "/")
    found = parsed(file) if os.path.exists(file) else {}
    check_keys(file, found, KEYS, "a file of pins")
    for key, is_own in (("kernels", not prefer), ("prefer", prefer)):
        listed = [each for each in found.get(key, ()) if each != name]
        change_list(file, key, [*listed, name] if is_own else listed)
    texts = tuple(
        (LANGUAGES[w], "taken" if has_passed(kernel, w) else "left out: it has never run")
        for w in kernel.languages
    )
    return Enrolled(kernel.name, file, texts)


def change_list(file: str, key: str, names: Sequence[str]) -> None:
    """Replaces a list in a project's file, or adds it at the top."""
    text = ""
    with suppress(FileNotFoundError), open(file, encoding="utf-8") as opened:
        text = opened.read()
    line = f"{key} = [{', '.join(map(json.dumps, names))}]\n"
    there = re.search(rf"^{key}\s*=\s*\[[^\]]*\][^\n]*\n?", text, re.MULTILINE)
    if there is not None:
        text = text[: there.start()] + (line if names else "") + text[there.end() :]
    elif names:
        text = line + text
    with open(file, "w", encoding="utf-8") as opened:
        opened.write(text)


def check_pin(path: str, said: dict[str, Any]) -> None:
    check_keys(path, said, OF_PIN, "a pin")
    if "family" not in said and "kernel" not in said:
        raise at_line(path, "[[pin", "a pin names no family", 'family = "...", or kernel = "k.cu"')
    if "kernel" in said and len(said) > 1:
        other = next(key for key in said if key != "kernel")
        raise at_line(path, other, f"a pin has a kernel, or a {other}", 'kernel = "k.cu" alone')


def pin_of(path: str, said: dict[str, Any]) -> Pin:
    try:
        check_family(said["family"])
    except InputError as error:
        raise at_line(
            path, "family", str(error).split("\n")[0], str(error).split("try  ")[-1]
        ) from None
    return Pin(said["family"], said.get("variant", ""), said.get("problem", ""))


# -------------------------------------------------------------------------------- kernels that are saved


def pin(function: Jitted[..., Any], path: str, args: Any, kwargs: Any, file: str) -> Pinned:
    """Checks a saved kernel against the reference, times it beside the original, and uses it from
    now on; `file` names it.
    """
    saved = read(path)
    bench = bench_of(function, saved, args, kwargs)
    family = family_of(saved, bench.catalog)
    if why := family.refusal(bench.problem, bench.caps):
        raise InputError(f"{saved.name} is not pinned: {why}", where=saved.path, fix=AGAIN)
    original = family.candidate(bench.problem, bench.caps)
    assert original is not None
    with bench.here():
        racers = [Racer(original), Racer(Candidate(family))]
        for racer in racers:
            racer.run, racer.failure = checked(bench, racer.candidate, saved)
        if why := racers[1].failure:
            raise InputError(f"{saved.name} is not pinned: {why}", where=saved.path, fix=AGAIN)
        timed(bench, [r for r in racers if r.run is not None], float("inf"))
    about = {"kind": "check", "name": saved.name, "source": saved.path, "version": VERSION}
    cache().put(pass_key(saved), b"passed", about)
    _passed.add(pass_key(saved))
    take(saved)
    if file:
        note(saved, file)
    words = f"{bench.step.eqn.op.name} of {', '.join(map(str, bench.problem.inputs))}"
    before, now = (racer.median if racer.times else 0.0 for racer in racers)
    return Pinned(saved.name, words, bench.caps.kind or "here", before, now)


def checked(bench: Bench, candidate: Candidate, saved: Saved) -> tuple[Any, str]:
    """Returns a function that runs a candidate, or the reason why its results are wrong.
    CompileError if it does not compile.
    """
    try:
        return verified(bench, bench.prepared(candidate))
    except CompilerTrouble as trouble:
        with open(saved.path, encoding="utf-8") as file:
            part = Part("c", saved.path, file.read())
        raise CompileError(refused_at((part,), str(trouble))) from None


def bench_of(function: Jitted[..., Any], saved: Saved, args: Any, kwargs: Any) -> Bench:
    """Returns the step of a program that a file belongs to; InputError if the programs of a
    function have none.
    """
    entries = [function.entry_of(args, kwargs)] if args or kwargs else [*function.entries()]
    for entry in entries:
        for bench in benches(entry.ready()):
            if key_of(bench.problem) == saved.problem:
                return bench
    what = f"no program of {function._title} has the kernel that {saved.name} was saved from"
    fix = f'f.pin("{saved.name}", *args), with the arguments that it was saved for'
    raise InputError(what, where=here(), fix=fix)


def family_of(saved: Saved, catalog: Any) -> SavedFamily:
    if saved.target == "cuda":
        from ge2.targets.cuda.kernels import CudaSaved

        return CudaSaved(saved, catalog)
    from ge2.targets.c.kernels.generated import CSaved

    return CSaved(saved, catalog)


def take(saved: Saved) -> None:
    """Uses a file's kernel for its problem, in programs that are built from now on."""
    SAVED[saved.problem] = lambda catalog: family_of(saved, catalog)
    config.renew()


def unpin(path: str) -> None:
    """Reverts what `f.pin`, or a file of pins, did with a kernel."""
    SAVED.pop(read(path).problem, None)
    config.renew()


_passed: set[str] = set()


def pass_key(saved: Saved) -> str:
    return content_key("saved kernel", VERSION, saved.key)


def passed(path: str) -> Saved:
    """Parses a file that has passed its check in its present form; InputError if it has not."""
    saved = read(path)
    if pass_key(saved) not in _passed and cache().get(pass_key(saved)) is None:
        what = f"{saved.name} has never run: it did not pass a check as it is now"
        raise InputError(what, where=saved.path, fix=f'f.pin("{saved.name}")')
    return saved


def note(saved: Saved, file: str) -> None:
    """Adds a pin to a project's file if it is not there."""
    file, known = os.path.abspath(file), dict[str, Any]()
    with suppress(FileNotFoundError), open(file, "rb") as opened:
        known = tomllib.load(opened)
    name = os.path.relpath(saved.path, os.path.dirname(file)).replace(os.sep, "/")
    if not any(each.get("kernel") == name for each in known.get("pin", ())):
        with open(file, "a", encoding="utf-8") as opened:
            opened.write(f'[[pin]]\nkernel = "{name}"\n')


# -------- Tuning: kernels of a function, or of all that is built inside a `with`, are raced and
# recorded.


@contextmanager
def tuning(budget: float = 30.0) -> Iterator[None]:
    """Inside the `with`, the kernels of each program that is built are measured first, for `budget`
    seconds in all; what wins is recorded, and taken from then on.

    Programs that were built before stay as they are. Progress goes to stderr. ArgumentError for a
    budget that is no number of seconds.

    >>> import numpy as np, ge2
    >>> with ge2.tuning(budget=0.0), ge2.config.using(progress="off"):
    ...     ge2.jit(np.tanh)(np.zeros(3))
    array([0., 0., 0.])
    """
    with lasting(time.monotonic() + checked_budget(budget)), config.using(tune="on"):
        yield


def tuned(
    function: Jitted[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    budget: float,
    again: bool,
) -> Tuned:
    """The races for the kernels that a call runs. If one has another winner than was taken, calls
    from then on build their programs anew.
    """
    with config.using(tune="cached" if config.tune == "on" else config.tune):
        executable = function.entry_of(args, kwargs).ready()
    found = tune(executable, checked_budget(budget), on_stderr, again)
    if found.changed:
        config.renew()
    return found


def checked_budget(budget: Any) -> float:
    if isinstance(budget, int | float) and budget >= 0:
        return budget
    what = f"a budget is a number of seconds, 0 or more; got {budget!r}"
    raise ArgumentError(what, where=here(), fix="budget=30")
