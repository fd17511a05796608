"""The call of a compiled program from Python: the launcher, its threads, memory of results."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Final, NoReturn, final
from weakref import getweakrefcount

import numpy as np

from ge2.base.arrays import NUMBERS, hush, restore, short
from ge2.base.command import ABI, Awaited, Provisional
from ge2.base.compiler import extension, is_known, python_headers
from ge2.base.detect import toolchain
from ge2.base.errors import (
    AS_FLOAT,
    NEGATIVE_POWER,
    CompilerTrouble,
    Ge2Error,
    InputError,
    locate,
)
from ge2.base.record import after_fork, record
from ge2.base.source import logger, templates
from ge2.ir import Dims
from ge2.targets.c.libraries import FAILURES, services
from ge2.targets.c.tuning import Results

# -------- Memory of results that nobody holds any more serves later calls: fresh memory costs a
# fault every 4 KiB.
# An array is used again only if this list is the last that knows it: any name, container, view or
# buffer of the caller's counts as a reference. Small results are not worth it, and very large ones
# are not kept from others.


# KEPT of launcher.c: arrays of each result, of which one may be the argument of the call that makes
# the next
COUNT = 2
COUNTED = getattr(sys, "_is_gil_enabled", lambda: True)() and hasattr(sys, "getrefcount")


def references(arrays: list[Any]) -> int:
    """Returns how often an array counts as referred to that only a local name knows:
    the interpreter decides.
    """
    x = arrays.pop(0)
    return sys.getrefcount(x) if COUNTED else 0


ALONE = references([np.empty(0)])


def worth_keeping(nbytes: int, tuning: Results) -> bool:
    return COUNTED and tuning.least <= nbytes <= tuning.most


@final
class Kept:
    """Makes the arrays of one result."""

    __slots__ = ("arrays", "dtype", "shape")

    def __init__(self, shape: Dims, dtype: np.dtype) -> None:
        self.shape, self.dtype = shape, dtype
        self.arrays: list[Any] = []

    def __call__(self) -> Any:
        arrays = self.arrays
        for _ in range(len(arrays)):
            try:
                x = arrays.pop(0)  # so that no other thread counts it meanwhile
            except IndexError:
                break
            free = sys.getrefcount(x) == ALONE and not getweakrefcount(x)
            arrays.append(x)
            if free and x.flags.writeable and x.shape == self.shape and x.dtype == self.dtype:
                return x
        x = np.empty(self.shape, self.dtype)
        arrays.append(x)
        del arrays[:-COUNT]
        return x


# -------- A few threads that share the blocks of a kernel; made when first needed, and again in a
# forked child.


Kernel = Callable[..., None]


@final
class Job:
    """One thread's share of a launch. Whoever claims it first runs it, or lets it go."""

    __slots__ = ("arguments", "claim", "done", "error", "kernel")

    def __init__(self, kernel: Kernel, arguments: Sequence[Any]) -> None:
        self.kernel, self.arguments = kernel, arguments
        self.claim, self.done = Lock(), Lock()
        self.done.acquire()
        self.error: BaseException | None = None

    def run(self) -> None:
        if not self.claim.acquire(blocking=False):
            return
        try:
            self.kernel(*self.arguments)
        except BaseException as error:  # noqa: BLE001 it is raised again where the result is awaited
            self.error = error
        finally:
            self.done.release()

    def settle(self) -> None:
        """Waits for the job if some thread has begun it; otherwise nobody will."""
        if not self.claim.acquire(blocking=False):
            self.done.acquire()


_jobs: SimpleQueue[Job] = SimpleQueue()
_threads: list[Thread] = []
_lock = Lock()


def launch(
    kernel: Kernel, parts: int, arrays: Sequence[Any], scratch: Sequence[Sequence[Any]]
) -> None:
    """Runs all parts of a kernel, as many at a time as there are sets of
    scratch; the caller takes part.
    """
    if len(scratch) == 1:
        kernel(range(parts), *arrays, *scratch[0])
        return
    shared: Iterator[int] = iter(range(parts))  # its next() is atomic
    jobs = [Job(kernel, (shared, *arrays, *own)) for own in scratch[1 : min(len(scratch), parts)]]
    staff(len(jobs))
    for job in jobs:
        _jobs.put(job)
    try:
        kernel(shared, *arrays, *scratch[0])
    finally:
        for _ in shared:  # after an error or Ctrl-C, the others stop too
            pass
        for job in jobs:
            job.settle()
    for job in jobs:
        if job.error is not None:
            raise job.error


def staff(count: int) -> None:
    """Sees to it that there are at least that many threads."""
    if len(_threads) >= count:
        return
    with _lock:
        while len(_threads) < count:
            thread = Thread(target=work, args=(_jobs,), name=f"ge2-{len(_threads)}", daemon=True)
            thread.start()
            _threads.append(thread)


def work(jobs: SimpleQueue[Job]) -> None:
    np.seterr(all="ignore")  # for this thread alone
    while True:
        jobs.get().run()


@after_fork
def _after_fork() -> None:
    """The threads of the parent do not exist in the child."""
    global _jobs, _lock
    _jobs, _lock = SimpleQueue(), Lock()
    _threads.clear()


# -------- The launcher as an extension in C.
# It is compiled once a machine; until it is there, ctypes calls programs.
# So the first program of a machine runs as soon as it is compiled itself.


Launcher = Callable[..., list[Any]]
Native = Callable[..., Launcher]  # the extension's type

NAME: Final = "ge2_launcher"
PATIENCE: Final = 0.02  # seconds in which the first program has the processor to itself


def launcher(native: Callable[[Native], Launcher], plain: Callable[[], Launcher]) -> Launcher:
    """A program as it is called by the extension, or by ctypes for as long as there is none."""
    if not EXTENSION.ready():
        found = Provisional(plain(), native)
        if EXTENSION.tell(found):
            return found
    made = EXTENSION.now()
    return plain() if made is None else native(made)


def prepare() -> None:
    """Has another thread load what calls programs, while this one waits for the compiler of one."""
    if not EXTENSION.begun():
        Thread(target=copy_context().run, args=(_prepared,), name=EXTENSION.name).start()


def _prepared() -> None:
    if not EXTENSION.ready():
        import ge2.targets.c.linked  # noqa: F401


def native() -> Native | None:
    """The extension's type; None where it cannot be made or C is not wanted,
    which ctypes makes up for.
    """
    found: Native | None = EXTENSION.now()
    return found


def is_at_hand() -> bool:
    """True if nothing has to be compiled for it: it was before, or cannot be."""
    if toolchain() is None:
        return True
    try:
        return is_known(*parts(), ABI)
    except OSError:
        return True


def compiled() -> Native | None:
    try:
        source, flags = parts()
        module: Any = extension(source, NAME, flags, ABI, {"name": "launcher"})
    except (CompilerTrouble, OSError) as trouble:
        logger().debug("programs are called by ctypes: %s", trouble)
        return None
    found: Native = module.Launcher
    return found


def parts() -> tuple[str, tuple[str, ...]]:
    """The extension's source, and the options that it needs. OSError if a header is missing."""
    folders = {"Python.h": python_headers(), "numpy/arrayobject.h": np.get_include()}
    for header, folder in folders.items():
        os.stat(os.path.join(folder, header))
    path = templates("c", "launcher.c")
    with open(path, encoding="utf-8") as file:
        source = file.read()
    found = ["-O2", "-fno-openmp", "-pthread"]
    if sys.platform == "darwin":  # Python's own symbols are found when it is loaded
        found += ["-undefined", "dynamic_lookup"]
    return source, (*found, *(word for folder in folders.values() for word in ("-isystem", folder)))


EXTENSION: Final = Awaited("ge2-launcher", is_at_hand, compiled, PATIENCE)


# -------- How Python calls a compiled program: a function of arrays that returns a list of new
# arrays.
# There are two of one behaviour: an extension in C (`templates/c/launcher.c`), compiled once a
# machine, and the same by ctypes where that is not possible, or not yet. Arguments that are arrays
# just as the program wants them are read where they stand; any other goes through `Checks`, which
# both share.


INDEX: Final = 1  # GE2_INDEX
POWER: Final = 2  # GE2_POWER
MATRIX: Final = 4  # GE2_MATRIX
KINDS: Final[dict[str, tuple[type, tuple[type, ...]]]] = {  # what a number becomes, and of what
    "b": (bool, (bool,)),
    "i": (int, (bool, int)),
    "f": (float, (bool, int, float)),
    "c": (complex, NUMBERS),
}
forked: list[bool] = []  # not empty in a child, where the threads of the parent do not exist
after_fork(lambda: forked.append(True))


@final
@record
class Array:
    """An input that is an array. `written`: the program changes it, so a copy would not do."""

    dtype: np.dtype
    shape: Dims
    written: bool = False


@final
@record
class Number:
    """An input that is a Python number: "b", "i", "f" or "c" for bool, int, float, complex."""

    kind: str


Input = Array | Number


@final
@record
class Output:
    """A result.

    `donor` is the input whose memory it may take, -1 for none; `written`: that input is an argument
    that is written, so it may be a view; `keep`: memory of past results that nobody holds any more
    may serve again, if `results` says that so much is worth it.
    """

    dtype: np.dtype
    shape: Dims
    donor: int = -1
    keep: bool = True
    written: bool = False
    results: Results = Results()

    @property
    def kept(self) -> bool:
        nbytes = math.prod(self.shape) * self.dtype.itemsize
        return self.keep and worth_keeping(nbytes, self.results)


def make_launcher(
    address: int,
    inputs: Sequence[Input],
    outputs: Sequence[Output],
    *,
    sizes: Sequence[int] = (),
    numbers: bytes = b"",
    arena: int = 0,
    threads: int = 1,
    heavy: bool = False,
    lines: Sequence[object] = (),
    owner: object = None,
    plain: bool = False,
) -> Launcher:
    """The `ge2_run` at an address as a function of arrays.

    `sizes` is its `n`; `numbers`, 16 bytes each, follow the Python numbers among the inputs in `k`;
    `arena` is the bytes of scratch that each call has to itself. A `heavy` program runs without the
    interpreter's lock. An index out of range is IndexError at that of the `lines` which its
    equation has, a negative power of integers ValueError. `owner`, which may hold the machine code,
    lives as long as the launcher. `plain`: by ctypes, extension or not.

    A call copies arguments that are not contiguous, refuses those of another type with
    InputError, and takes the memory of a donor only if the array is contiguous,
    writable and, unless it is written, owns it.
    """
    check(inputs, outputs, numbers)
    checks = Checks(tuple(inputs), tuple(lines))
    n = np.array(tuple(sizes), np.int64).tobytes()
    head = services().pack()

    def by_ctypes() -> Launcher:
        from ge2.targets.c.linked import PlainLauncher

        return PlainLauncher(
            address, inputs, outputs, n, numbers, arena, threads, heavy, head, checks, owner
        )

    def natively(extension: Native) -> Launcher:
        made = tuple((y.dtype, y.shape, y.donor, y.kept, y.written) for y in outputs)
        return extension(
            address, tuple(map(outline, inputs)), made,
            n, numbers, arena, 1 if forked else threads, heavy, head, checks.prepare, checks.fail, owner,
        )  # fmt: skip

    return by_ctypes() if plain else launcher(natively, by_ctypes)


def outline(x: Input) -> tuple[Any, ...]:
    """An input as the extension reads it."""
    return (
        (None, (), x.kind, False) if isinstance(x, Number) else (x.dtype, x.shape, "a", x.written)
    )


def check(inputs: Sequence[Input], outputs: Sequence[Output], numbers: bytes) -> None:
    """That a program's description makes sense: mistakes here are ge2's own."""
    assert len(numbers) % 16 == 0, "a number has 16 bytes"
    for x in inputs:
        assert isinstance(x, Array) or x.kind in KINDS, f"no number is of kind {x.kind!r}"
    for y in outputs:
        if y.donor >= 0:
            x = inputs[y.donor]
            assert isinstance(x, Array), "a Python number has no memory to give"
            assert (x.dtype, x.shape) == (y.dtype, y.shape), "a donor is of the type of its result"


# ---------------------------------------------------------------------------- the unusual arguments


@final
@record
class Checks:
    """The part of a call that is not worth C: arguments that are converted or refused, and errors."""

    inputs: tuple[Input, ...]
    lines: tuple[object, ...]  # None where a line is not known

    def prepare(self, i: int, x: Any) -> Any:
        """Argument `i` as the program takes it."""
        wanted = self.inputs[i]
        return number(i, x, wanted.kind) if isinstance(wanted, Number) else array(i, x, wanted)

    def fail(self, code: int, index: int, axis: int, size: int, equation: int) -> NoReturn:
        """The error of a program as an exception."""
        where = self.line(equation)
        at = f"\n  at   {where}" if where else ""
        if code == INDEX:
            raise IndexError(f"index {index} is out of bounds for axis {axis} with size {size}{at}")
        if code == POWER:
            raise ValueError(f"{NEGATIVE_POWER}{at}\n  try  {AS_FLOAT}")
        if code == MATRIX:
            error = np.linalg.LinAlgError(FAILURES[index])
            locate(error, where)
            raise error
        raise Ge2Error(f"a compiled program failed with code {code}", where=where)

    def line(self, equation: int) -> str | None:
        line = self.lines[equation] if 0 <= equation < len(self.lines) else None
        return None if line is None else str(line)


def array(i: int, x: Any, wanted: Array) -> Any:
    """A contiguous copy, in this machine's byte order; InputError for another type."""
    if isinstance(x, NUMBERS) and not isinstance(x, np.generic) and wanted.shape == ():
        return converted(x, wanted.dtype)
    if not isinstance(x, np.ndarray | np.generic):
        raise InputError(f"{title(i, wanted)}; got a {type(x).__name__}")
    if x.shape != wanted.shape or x.dtype.newbyteorder("=") != wanted.dtype:
        raise InputError(f"{title(i, wanted)}; got {short(x.dtype)}{list(x.shape)}")
    if not wanted.written:
        return np.array(x, wanted.dtype, order="C")
    flags = x.flags
    if isinstance(x, np.generic) or not (flags.c_contiguous and flags.aligned and flags.writeable):
        raise InputError(f"{title(i, wanted)} to be written, contiguous and writable; got another")
    raise InputError(f"{title(i, wanted)} to be written; got one of the other byte order")


def title(i: int, wanted: Array) -> str:
    return f"input {i} of a compiled graph is {short(wanted.dtype)}{list(wanted.shape)}"


def converted(x: Any, dtype: np.dtype) -> Any:
    """A Python number as an array, silently."""
    loud = hush()
    try:
        return np.asarray(x, dtype)
    finally:
        restore(loud)


def number(i: int, x: Any, kind: str) -> Any:
    """A Python number of a kind from another that it holds, or from an array of one element.

    >>> number(0, np.float32(0.5), "f"), number(0, 2, "c")
    (0.5, (2+0j))
    """
    target, accepted = KINDS[kind]
    value = x.item() if isinstance(x, np.ndarray | np.generic) and x.shape == () else x
    if not isinstance(value, accepted):
        raise InputError(
            f"input {i} of a compiled graph is a Python {target.__name__}; got {x!r:.60}"
        )
    return target(value)
