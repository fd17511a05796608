"""How Python calls a compiled program: a function of arrays that returns a list of new arrays.

There are two of one behaviour: an extension in C (`templates/c/launcher.c`), compiled
once a machine, and the same by ctypes where that is not possible, or not yet. Arguments
that are arrays just as the program wants them are read where they stand; any other goes
through `Checks`, which both share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NoReturn, final

import numpy as np

from ge2.base.dtypes import NUMBERS, short
from ge2.base.errors import AS_FLOAT, NEGATIVE_POWER, Ge2Error, InputError
from ge2.base.interpreter import after_fork, hush, restore
from ge2.base.record import record
from ge2.ir import Dims
from ge2.targets.c.load.blas import services
from ge2.targets.c.load.extension import Launcher, Native, launcher
from ge2.targets.c.load.outputs import worth_keeping
from ge2.targets.c.tuning import Results

INDEX: Final = 1  # GE2_INDEX
POWER: Final = 2  # GE2_POWER
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
        from ge2.targets.c.load.plain_launcher import PlainLauncher

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
    """What of a call is not worth C: arguments that have to be converted or refused, and errors."""

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
