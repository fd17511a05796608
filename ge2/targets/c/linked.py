"""Programs as C functions of a library, called by ctypes where no extension can be compiled."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from ctypes import CFUNCTYPE, PYFUNCTYPE, addressof, c_char, c_int, c_int64, c_void_p
from struct import pack_into
from typing import Any, Final, final

import numpy as np

from ge2.base.compile_times import current, finding, had, spent
from ge2.base.compiler import Library, library
from ge2.base.record import computed
from ge2.ir import ArrayType, Var
from ge2.program import Program, Step
from ge2.targets.c.launcher import Array, Checks, Input, Kept, Number, Output, forked, make_launcher
from ge2.targets.c.libraries import services
from ge2.targets.c.loops import IN_C, Need, Segment
from ge2.targets.c.native import Native, cheaper, packed
from ge2.targets.c.tuning import Caps

# -------- A program cut into C functions and what Python does between them, compiled as one
# library.


BYTES = np.dtype(np.uint8)
LOADED = "nothing compiled: the same code is loaded for other sizes"
_loaded: set[str] = set()  # keys of libraries that serve a program of this process


@final
class Linked:
    """`whole` is the one segment of a program that needs nothing of Python but its own numbers.

    With `apart` there is none: Python makes its results, and hands it its scratch. With `singly`
    each step is a function of its own.
    """

    def __init__(
        self, program: Program, caps: Caps, title: str, apart: bool = False, singly: bool = False
    ) -> None:
        self.program, self.threads, self.singly = program, caps.threads, singly
        self.native = Native(program, caps, title)
        self.title = title
        self.known = False  # whether its library was loaded already
        self.parts: list[Segment | Step] = []
        self.unseen = unseen(program)
        self.whole: Segment | None = None
        if self.is_whole() and not apart:
            self.whole = self.native.segment(self.program.steps, direct=True)
        else:
            self.cut()

    @property
    def segments(self) -> list[Segment]:
        return [part for part in self.parts if isinstance(part, Segment)]

    def is_whole(self) -> bool:
        program = self.program
        if any(step.kind not in (*IN_C, "view", "host") for step in program.steps):
            return False
        if not any(step.kind in IN_C for step in program.steps):
            return False
        given = set(program.graph.inputs)
        storage = [
            program.buffers[v].storage
            for v in program.graph.outputs
            if isinstance(v, Var) and v not in given
        ]
        return set(storage) <= {"output", "host"}

    def cut(self) -> None:
        """Runs of steps in C; what Python computes stays between them, its
        own numbers come first.
        """
        early = self.early()
        self.parts += early
        run: list[Step] = []
        for step in self.program.steps:
            if step in early:
                continue
            if step.kind in IN_C:
                run.append(step)
                if self.singly:
                    self.close(run)
            elif step.kind == "view":
                run.append(step)
                if not self.unseen.issuperset(step.eqn.outs):
                    self.close(run)
                    self.parts.append(step)
            else:
                self.close(run)
                self.parts.append(step)
        self.close(run)

    def close(self, run: list[Step]) -> None:
        if any(step.kind in IN_C for step in run):
            self.parts.append(self.native.segment(run, direct=False))
        run.clear()

    def early(self) -> list[Step]:
        """Equations on Python numbers that need no other result."""
        known = {v for v in self.program.graph.inputs if v.type.weak}
        found = []
        for step in self.program.steps:
            inputs = {a for a in step.eqn.inputs if isinstance(a, Var)}
            if step.kind == "host" and inputs <= known:
                known |= {*step.eqn.outs}
                found.append(step)
        return found

    # -- compiling

    @computed
    def source(self) -> str:
        return self.native.source()

    @computed
    def library(self) -> Library:
        symbol = next(run.name for run in self.native.runs if not run.inner)
        source, usual = self.source, () if services().whole else ("-DGE2_NO_BLAS",)
        flags = cheaper(self.title, self.native, source, usual)
        with spent("compile"), finding() as noted:
            found = library(source, self.title, flags, symbol=symbol, alone=True)
        tally = current()
        if tally is not None:
            tally.kernels.append(had(f"{self.title}, a C library", noted))
        self.known = found.key in _loaded
        _loaded.add(found.key)
        return found

    @property
    def how(self) -> str:
        if not self.native.runs:
            return "nothing compiled: it has no kernels"
        found = self.library
        if self.known:
            return LOADED
        return "found in the cache" if found.cached else f"compiled in {found.seconds:.2f} s"

    def launcher(self, segment: Segment, arena: int, offsets: Mapping[int, int]) -> Any:
        """The segment as a function of arrays."""
        sizes = [offsets[id(n)] if isinstance(n, Need) else n for n in segment.sizes]
        return make_launcher(
            self.library.address(segment.name), self.inputs(segment), self.outputs(segment), sizes=sizes,
            numbers=packed(segment.constants), arena=arena, threads=self.threads, lines=self.native.sources,
            heavy=segment.work >= self.native.tuning.files.heavy, owner=self.library,
        )  # fmt: skip

    def inputs(self, segment: Segment) -> list[Input]:
        if not segment.direct:
            return [
                *(
                    Array(BYTES, (a.nbytes,), True)
                    if isinstance(a, Need)
                    else array(a.type, i in segment.written)
                    for i, a in enumerate(segment.arrays)
                ),
                *(number(v.type) for v in segment.hosts),
            ]
        return [number(v.type) if v.type.weak else array(v.type) for v in self.given(segment)]

    def given(self, segment: Segment) -> list[Var]:
        """Returns what a whole program is called with: arguments that C reads, then
        what Python makes of others.
        """
        inputs = [v for v in self.program.graph.inputs if not v.type.weak or v in segment.hosts]
        later = [v for v in segment.hosts if v not in set(inputs)]
        return [*inputs, *self.native.computed(segment.steps), *later]

    def outputs(self, segment: Segment) -> list[Output]:
        if not segment.direct:
            return []
        buffers = self.program.buffers
        names = {buffers[v].name: i for i, v in enumerate(self.given(segment))}
        found = []
        for v in outputs(self.program):
            donor, written = buffers[v].donor, buffers[v].written
            found.append(
                Output(v.type.dtype, v.type.shape, names[donor] if donor else -1, written=written)
            )
        return found


def outputs(program: Program) -> list[Var]:
    """The results that a launcher makes, each once."""
    made = [
        v
        for v in program.graph.outputs
        if isinstance(v, Var) and program.buffers[v].storage == "output"
    ]
    return list(dict.fromkeys(made))


def unseen(program: Program) -> frozenset[Var]:
    """Views that only C reads."""
    seen = {v for v in program.graph.outputs if isinstance(v, Var)}
    for step in reversed(program.steps):
        python = step.kind not in (*IN_C, "view")
        if python or (step.kind == "view" and not seen.isdisjoint(step.eqn.outs)):
            seen |= {a for a in step.eqn.inputs if isinstance(a, Var)}
    views = {v for step in program.steps if step.kind == "view" for v in step.eqn.outs}
    there = {v for v in views if program.buffers[v].storage == "output"}  # made in that form
    return frozenset(views - seen | there)


def array(t: ArrayType, written: bool = False) -> Array:
    return Array(t.dtype, t.shape, written)


def number(t: ArrayType) -> Number:
    return Number({"b": "b", "i": "i", "u": "i", "f": "f", "c": "c"}.get(t.dtype.kind, "f"))


# -------- The launcher where no extension can be compiled: ctypes calls the program, slower but the
# same.


TYPES: Final = (c_int, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_void_p)
C_CONTIGUOUS, OWNDATA, ALIGNED, WRITEABLE = 0x1, 0x4, 0x100, 0x400
READABLE = C_CONTIGUOUS | ALIGNED
OURS = READABLE | OWNDATA | WRITEABLE
ALIGNMENT, NUMBER, POINTER = 64, 16, 8
FORMATS: Final = {"b": "=q", "i": "=q", "f": "=d", "c": "=dd"}
EXACT: Final = {"b": bool, "i": int, "f": float, "c": complex}
ndarray = np.ndarray

# ----------------------------------------------------------------------------------------- pointers


def pointer_by_header(x: Any, at: Callable[[int], c_void_p] = c_void_p.from_address) -> int:
    """The first field of an array, after what every object has, is where its memory begins."""
    return at(id(x) + HEADER).value or 0


def pointer_by_name(x: Any) -> int:
    return int(x.ctypes.data)


def headers_are_plain() -> bool:
    """True if arrays are laid out in this interpreter as `pointer_by_header` believes."""
    if sys.implementation.name != "cpython":
        return False
    whole = np.empty(64, np.uint8)
    samples = (
        whole,
        whole[3:],
        whole[::-1],
        np.empty((2, 0)),
        np.empty(()),
        np.broadcast_to(whole, (3, 64)),
    )
    return all(pointer_by_header(x) == x.ctypes.data for x in samples)


HEADER: Final = object.__basicsize__
pointer: Callable[[Any], int] = pointer_by_header if headers_are_plain() else pointer_by_name


# ------------------------------------------------------------------------------------------- frames


@final
class Frame:
    """The values that one call needs beside its arrays; used again by later calls."""

    __slots__ = ("arena", "constants", "error", "fixed", "k", "p", "services")

    def __init__(
        self, pointers: int, weak: int, numbers: bytes, arena: int, services: bytes
    ) -> None:
        self.p = (c_void_p * max(pointers, 1))()
        self.k = bytearray(NUMBER * weak + 1)  # written by `pack_into`
        self.k[NUMBER * weak :] = numbers or b"\0"
        self.error = (c_int64 * 5)()
        self.services = bytearray(services) + addressof(self.error).to_bytes(POINTER, sys.byteorder)
        self.arena = np.empty(arena + ALIGNMENT, np.uint8) if arena else None
        k, lib = ((c_char * len(b)).from_buffer(b) for b in (self.k, self.services))
        self.constants = (k, lib)  # which keeps the bytes where they are
        scratch = 0 if self.arena is None else self.arena.ctypes.data
        self.fixed = (
            addressof(self.p),
            addressof(k),
            scratch + -scratch % ALIGNMENT,
            addressof(lib),
        )


# ----------------------------------------------------------------------------------------- the call


@final
class PlainLauncher:
    """A compiled program as a function of arrays, which returns a list of arrays."""

    __slots__ = (
        "checks", "frames", "held", "inputs", "most", "outputs", "owner", "run", "shape", "sizes", "threads",
    )  # fmt: skip

    def __init__(
        self,
        address: int,
        inputs: Sequence[Input],
        outputs: Sequence[Output],
        sizes: bytes,
        numbers: bytes,
        arena: int,
        threads: int,
        heavy: bool,
        services: bytes,
        checks: Checks,
        owner: object,
    ) -> None:
        prototype = CFUNCTYPE(*TYPES) if heavy else PYFUNCTYPE(*TYPES)
        self.run = prototype(address)
        self.checks, self.owner, self.threads = checks, owner, threads
        self.held = (c_char * max(len(sizes), 1)).from_buffer_copy(sizes or b"\0")
        self.sizes = addressof(self.held)
        self.inputs = [x if isinstance(x, Array) else x.kind for x in inputs]
        self.outputs = [
            (y.dtype, y.shape, y.donor, Kept(y.shape, y.dtype) if y.kept else None, y.written)
            for y in outputs
        ]
        arrays = sum(isinstance(x, Array) for x in inputs)
        self.shape = (arrays + len(outputs), len(inputs) - arrays, numbers, arena, services)
        self.frames: list[Frame] = []
        self.most = max(threads + 1, 4)

    def __call__(self, *args: Any) -> list[Any]:
        if len(args) != len(self.inputs):
            raise TypeError(f"a compiled graph takes {len(self.inputs)} arrays; got {len(args)}")
        try:
            frame = self.frames.pop()
        except IndexError:
            frame = Frame(*self.shape)
        try:
            return self.launch(frame, args)
        finally:
            if len(self.frames) < self.most:
                self.frames.append(frame)

    def launch(self, frame: Frame, args: Sequence[Any]) -> list[Any]:
        xs, count = self.read(frame, args)
        results = self.make(frame, args, xs, count)
        p, k, arena, services = frame.fixed
        threads = 1 if forked else self.threads
        if code := self.running(frame, p, self.sizes, k, arena, threads, services):
            found = tuple(frame.error)
            frame.error[:] = [0] * 5
            self.checks.fail(code, *found[1:])
        return results

    def running(self, frame: Frame, *words: int) -> Any:
        """The program's code; raises what a signal's handler raised meanwhile."""
        try:
            return self.run(*words)
        except BaseException as error:
            frame.error[:] = [0] * 5
            if isinstance(error, SystemError) and error.__cause__ is not None:
                raise error.__cause__ from None  # ctypes did not expect an exception
            raise

    def read(self, frame: Frame, args: Sequence[Any]) -> tuple[list[Any], int]:
        """Hands over the arguments; returns those that the program reads, and
        how many are arrays.
        """
        p, slot, weak, xs = frame.p, 0, 0, []
        for i, (x, wanted) in enumerate(zip(args, self.inputs, strict=True)):
            if type(wanted) is str:
                x = x if type(x) is EXACT[wanted] else self.checks.prepare(i, x)
                write(frame.k, weak, wanted, x)
                weak += NUMBER
            else:
                if not fits(x, wanted):  # type: ignore[arg-type]
                    x = self.checks.prepare(i, x)
                p[slot] = pointer(x)
                slot += 1
            xs.append(x)
        return xs, slot

    def make(self, frame: Frame, args: Sequence[Any], xs: Sequence[Any], slot: int) -> list[Any]:
        """The results, still empty."""
        p, results = frame.p, []
        for dtype, shape, donor, kept, written in self.outputs:
            if donor >= 0 and donates(args[donor], xs[donor], written):
                y = xs[donor]
            else:
                y = np.empty(shape, dtype) if kept is None else kept()
            p[slot] = pointer(y)
            slot += 1
            results.append(y)
        return results


def fits(x: Any, wanted: Array) -> bool:
    """True if the program can read, or write, an argument where it stands."""
    if not (type(x) is ndarray or isinstance(x, ndarray)) or x.shape != wanted.shape:
        return False
    if x.dtype is not wanted.dtype and x.dtype != wanted.dtype:
        return False
    needed = READABLE | WRITEABLE if wanted.written else READABLE
    return bool(x.flags.num & needed == needed)


def donates(given: Any, read: Any, written: bool) -> bool:
    if given is not read:
        return False
    flags = READABLE | WRITEABLE if written else OURS
    return (written or type(given) is ndarray) and given.flags.num & flags == flags


def write(k: bytearray, at: int, kind: str, x: Any) -> None:
    if kind == "c":
        pack_into("=dd", k, at, x.real, x.imag)
    elif kind == "i" and not -(1 << 63) <= x < 1 << 63:
        raise OverflowError("int too big to convert")
    else:
        pack_into(FORMATS[kind], k, at, x)
