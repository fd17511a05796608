"""A benchmark of one step: memory and inputs for its candidates, and the results they must have."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Final, final

import numpy as np

from ge2.base.arrays import COMPLEX, COMPLEX128, FLOAT64, HALF, INEXACT, python_type, real_part
from ge2.base.config import config
from ge2.base.record import computed, record
from ge2.choice import Problem, prefs
from ge2.choice.choose import Candidate, Catalog, candidates
from ge2.choice.record import code_of
from ge2.codegen.layout import Layout
from ge2.ir import ArrayType, Atom, Dims, Eqn, Evaluate, Literal, Var
from ge2.ops.dot import DotGeneral
from ge2.ops.graphs.contraction import is_contraction, steps_of
from ge2.ops.sort import SearchSorted
from ge2.program import Buffer, Program, Step, computing
from ge2.program.assembler import Clock

# -------- Inputs of large products whose lines repeat, so that their reference takes no time.
# NumPy takes a minute for a product of 600 Gflop, and a library on the device is a candidate
# itself, which proves nothing of its own errors. So rows of the left operand and columns of the
# right one repeat after a prime number of lines: the product repeats as they do, and is computed of
# the lines that differ and of all terms. A prime is no multiple of a tile, so that what is in the
# place of another element differs from it, but for one that is a multiple of 251 lines away.


LARGE: Final = 1 << 33  # operations, from which on a reference takes a second
PERIOD: Final = 251  # lines along the last axis of an operand's lines,
FEW: Final = 7  # and along the others

Repeats = dict[int, Dims]  # the extents of what repeats, by the number of the input


def repeats_of(eqn: Eqn) -> Repeats:
    """Returns how inputs of a step repeat: operands of its products, if those are large."""
    found: Repeats = {}
    made = is_contraction(eqn.op) and steps_of(eqn.op).prologues
    if made or computing(eqn).operations < LARGE:
        return found
    for op, numbers in products_of(eqn):
        if numbers[0] == numbers[1]:
            return {}  # its lines are terms, too
        a, b = (eqn.inputs[n].type for n in numbers)
        for n, t, free in zip(numbers, (a, b), op.free(a, b), strict=True):
            most = {axis: PERIOD if axis == free[-1] else FEW for axis in free}
            small = tuple(min(size, most.get(axis, size)) for axis, size in enumerate(t.shape))
            if found.setdefault(n, small) != small:
                return {}
    return found


def products_of(eqn: Eqn) -> Iterator[tuple[DotGeneral, tuple[int, int]]]:
    """The products of a step of arrays that it reads, each with the numbers of its operands."""
    if isinstance(eqn.op, DotGeneral):
        yield eqn.op, (0, 1)
    if is_contraction(eqn.op):
        op = steps_of(eqn.op)
        for each in op.products:
            a, b = (op.graph.inputs.index(x) for x in each.inputs if isinstance(x, Var))
            yield op.dot, (a, b)


def lines_once(x: Any, small: Dims) -> Any:
    """The part of an array that repeats."""
    return x[tuple(map(slice, small))]


def repeated(x: Any, shape: Dims) -> Any:
    """An array of a shape that is another one, over and over, along each axis that is longer.

    >>> repeated(np.array([[1, 2]]), (2, 5)).tolist()
    [[1, 2, 1, 2, 1], [1, 2, 1, 2, 1]]
    """
    for axis, size in enumerate(shape):
        if (has := x.shape[axis]) != size:
            before, after = x.shape[:axis], x.shape[axis + 1 :]
            many = np.broadcast_to(
                x[(slice(None),) * axis + (None,)], (*before, -(-size // has), *x.shape[axis:])
            )
            x = many.reshape(*before, -1, *after)[(slice(None),) * axis + (slice(size),)]
    return x


def repeated_reference(eqn: Eqn, given: Sequence[Any], repeats: Repeats) -> Sequence[Any]:
    """The results of a step on arrays whose lines repeat so."""
    found = [
        product(op, [lines_once(given[n], repeats[n]) for n in numbers], of)
        for (op, numbers), of in zip(products_of(eqn), outs_of(eqn), strict=True)
    ]
    if not is_contraction(eqn.op):
        return found
    op = steps_of(eqn.op)
    known = dict(zip(op.graph.inputs, given, strict=True)) | dict(
        zip(op.places, found, strict=True)
    )
    return Evaluate().apply(op.region, [known[x] for x in op.region.graph.inputs])


def outs_of(eqn: Eqn) -> list[Dims]:
    """The shapes of the products of a step."""
    products = steps_of(eqn.op).products if is_contraction(eqn.op) else (eqn,)
    return [e.outs[0].type.shape for e in products]


def product(op: DotGeneral, operands: Sequence[Any], shape: Dims) -> Any:
    """A product of a shape, of the lines of its operands that differ."""
    (y,) = Evaluate().apply(op, operands)
    return repeated(y, shape)


# -------- One step of a program on a bench: memory in which its candidates run, and what they
# should make.
# Every array is between guard bands, results are filled with NaN before each run, and everything
# that is not a result must be as it was. So what is wrong, or writes outside, is found before it is
# timed.


GUARD: Final = 256  # bytes on either side; a multiple of every alignment that kernels rely on
NOTHING: Final = 0xFF  # a byte: floating numbers of such bytes are NaN
SEED: Final = 17
CONDITION: Final = 8  # roundings inside of a step, beside those of its inputs
BLOCK: Final = 1 << 15  # elements that are compared at once
DRAWN: Final = 4194301  # numbers that are drawn for an array: a prime, so that rows differ
STRANDS: Final = 16  # sums side by side, as NumPy's and ours have: each errs by its own terms
OUTSIDE: Final = "it writes outside of its result"
OF_SCRATCH: Final = "it writes outside of its workspace"
Run = Callable[[], object]


# -------------------------------------------------------------------------------------- comparing


def difference(y: Any, w: Any, t: ArrayType, scale: float = 1.0, slack: float = 1.0) -> str:
    """In what a computed array differs from the one that is wanted; nothing if it does not.

    `scale`: of numbers beside which a rounding error is small; `slack`: how many times as large it
    may be as that of a few operations.
    """
    if np.asarray(y).dtype != t.dtype or np.shape(y) != t.shape:
        return f"{np.asarray(y).dtype}{np.shape(y)} instead of {t}"
    rtol = slack * tolerance(t.dtype)
    return "" if is_close(y, w, rtol, rtol * scale) else f"{y}, not {w}"


def is_close(y: Any, w: Any, rtol: float, atol: float) -> bool:
    """`np.allclose`, NaN being like NaN: in blocks that stay in a cache, on as many threads as the
    settings allow.
    """
    y, w = np.asarray(y).reshape(-1), np.asarray(w).reshape(-1)
    starts = range(0, y.size, BLOCK)
    count = min(config.thread_count(), len(starts))
    block = partial(is_close_at, y, w, rtol, atol)
    if count < 2:
        return all(map(block, starts))
    with ThreadPoolExecutor(count) as pool:
        return all(pool.map(block, starts))


def is_close_at(y: Any, w: Any, rtol: float, atol: float, start: int) -> bool:
    """Compares one block; the longer way is for infinities, NaN and differences."""
    part = slice(start, start + BLOCK)
    if y.dtype not in INEXACT:
        return np.array_equal(y[part], w[part])
    a, b = widened(y[part]), widened(w[part])
    with np.errstate(all="ignore"):
        if (np.abs(a - b) < atol + rtol * np.abs(b)).all():
            return True
    return bool(np.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True))


def tolerance(dtype: np.dtype) -> float:
    """Sums may be taken in another order; half types are rounded once, from float32."""
    return (2 if dtype in HALF else 16) * eps(dtype) if dtype in INEXACT else 0


def widened(x: Any) -> Any:
    """In float64 or complex128."""
    x = np.asarray(x)
    return x.astype(COMPLEX128 if x.dtype in COMPLEX else FLOAT64) if x.dtype in INEXACT else x


def eps(dtype: np.dtype) -> float:
    dtype = real_part(dtype)
    if dtype not in HALF:
        return float(np.finfo(dtype).eps)
    return 2.0**-7 if dtype.itemsize == 2 and dtype.kind == "V" else 2.0**-10


# ------------------------------------------------------------------------------------------ memory


@final
@record
class Array:
    """An array of the step as part of the memory of a buffer."""

    type: ArrayType
    layout: Layout
    buffer: Buffer

    def of(self, memory: Any) -> Any:
        """The array in a memory of bytes with guard bands."""
        t, size = self.type, self.type.dtype.itemsize
        if not t.size:
            return np.empty(t.shape, t.dtype)
        first = memory[GUARD + self.layout.offset * size :]
        strides = tuple(n * size for n in self.layout.strides)
        one = first[:size].view(np.dtype((np.void, size)))
        held = np.lib.stride_tricks.as_strided(one, t.shape, strides)
        return held.view(t.dtype) if t.ndim else held.reshape(1).view(t.dtype).reshape(())


def aligned(nbytes: int) -> Any:
    """Bytes of an array between guard bands; it is where the widest access may begin."""
    memory = unfilled(nbytes)
    memory.fill(NOTHING)
    return memory


def guarded(nbytes: int) -> Any:
    """As aligned, but for what is between guard bands."""
    memory = unfilled(nbytes)
    memory[:GUARD] = memory[GUARD + nbytes :] = NOTHING
    return memory


def unfilled(nbytes: int) -> Any:
    memory = np.empty(nbytes + 3 * GUARD, np.uint8)
    return memory[-memory.ctypes.data % GUARD :][: nbytes + 2 * GUARD]


def copied(memory: Any) -> Any:
    """Bytes of the host, and as aligned."""
    copy = unfilled(memory.size - 2 * GUARD)
    copy[...] = memory
    return copy


@final
class Images:
    """The memory of all that a step reads and writes, as it is before a run."""

    def __init__(self, program: Program, step: Step, signs: bool) -> None:
        self.program, self.eqn = program, step.eqn
        self.rng = np.random.default_rng(SEED)
        self.signs = signs
        self.outs = [self.array(v) for v in step.eqn.outs]
        self.inputs = [self.array(a) if is_array(a) else None for a in step.eqn.inputs]
        arrays = [x for x in (*self.inputs, *self.outs) if x is not None]
        self.repeats = self.repeating(arrays)
        self.buffers = {id(x.buffer): x.buffer for x in arrays}
        self.most = self.indices()
        self.numbers = {a: self.number(a) for a in step.eqn.inputs if not is_array(a)}

    def array(self, a: Atom) -> Array:
        assert isinstance(a, Var)
        buffer = self.program.buffers[a]
        return Array(a.type, self.program.layout(a), buffer.base or buffer)

    def repeating(self, arrays: Sequence[Array]) -> Repeats:
        """The operands whose lines repeat, if each has memory of its own."""
        found = repeats_of(self.eqn)
        mine = [self.inputs[n] for n in found]
        apart = all(
            x is not None
            and sum(y.buffer is x.buffer for y in arrays) == 1
            and 0 not in x.layout.strides
            for x in mine
        )
        return found if apart else {}

    def indices(self) -> int:
        """Whole numbers are drawn below it: any may be an index."""
        sizes = [n for x in self.inputs if x is not None for n in x.type.shape if n > 1]
        return min([*sizes, 1 << 15])

    @computed
    def bytes(self) -> dict[int, Any]:
        """The memory of each buffer."""
        operands = [self.inputs[n] for n in self.repeats]
        lines = {
            id(x.buffer) for x in operands if x is not None and x.type.size == x.buffer.type.size
        }
        read = {id(x.buffer) for x in self.inputs if x is not None} - lines
        found = {
            n: guarded(b.type.nbytes) if n in lines else self.image(b, n in read)
            for n, b in self.buffers.items()
        }
        for x, small in zip(operands, self.repeats.values(), strict=True):
            assert x is not None
            drawn = self.drawn(replace(x.type, shape=small))
            x.of(found[id(x.buffer)])[...] = repeated(drawn, x.type.shape)
        return found

    def image(self, buffer: Buffer, is_read: bool) -> Any:
        """NaN between guard bands; drawn numbers between them if the step reads it: of a long array
        some are there again.
        """
        t = buffer.type
        memory = guarded(t.nbytes) if is_read else aligned(t.nbytes)
        if is_read and t.size:
            few = t.size > DRAWN and not isinstance(self.eqn.op, SearchSorted)
            drawn = self.drawn(replace(t, shape=(DRAWN,)) if few else t)
            drawn = np.ascontiguousarray(drawn).reshape(-1).view(np.uint8)
            inner = memory[GUARD : GUARD + t.nbytes]
            for first in range(0, t.nbytes, drawn.size):
                inner[first : first + drawn.size] = drawn[: t.nbytes - first]
        return memory

    def drawn(self, t: ArrayType) -> Any:
        """Numbers near 1, whose sums and products are well conditioned; an eighth of them negative
        where `signs` are wanted. Whole numbers are indices.
        """
        rng, dtype = self.rng, t.dtype
        if dtype.kind == "b":
            return rng.integers(0, 2, t.shape).astype(dtype)
        if dtype.kind in "iu":
            return rng.integers(0, self.most, t.shape).astype(dtype)
        x = rng.random(t.shape, np.float32) + np.float32(0.5)
        if self.signs:
            x = np.where(rng.random(t.shape, np.float32) < 0.125, -x, x)
        if dtype in COMPLEX:
            x = x + 0.25j * rng.random(t.shape, np.float32)
        if isinstance(self.eqn.op, SearchSorted):
            x = np.sort(x)
        return x.astype(dtype)

    def number(self, a: Atom) -> Any:
        return a.value if isinstance(a, Literal) else python_type(a.type.dtype)(1)

    def given(self) -> list[Any]:
        """The arrays and numbers that the step reads."""
        return [
            self.numbers[a] if x is None else np.array(x.of(self.bytes[id(x.buffer)]))
            for a, x in zip(self.eqn.inputs, self.inputs, strict=True)
        ]

    @computed
    def wanted(self) -> list[Any]:
        """The results, by the reference."""
        return self.reference(self.given())

    @computed
    def scales(self) -> list[float]:
        """Of each result the largest number, 1 at least."""
        return [*map(scale_of, self.wanted)]

    def reference(self, given: Sequence[Any]) -> list[Any]:
        with np.errstate(all="ignore"):
            if self.repeats:
                return [*map(np.asarray, repeated_reference(self.eqn, given, self.repeats))]
            return [np.asarray(y) for y in Evaluate().apply(self.eqn.op, given)]

    @computed
    def condition(self) -> float:
        """The factor by which a rounding error of its inputs is larger in the results of the
        reference.
        """
        given = [self.rounded(x, self.repeats.get(n)) for n, x in enumerate(self.given())]
        most = 1.0
        for y, w, scale in zip(self.reference(given), self.wanted, self.scales, strict=True):
            if w.dtype in INEXACT and w.size:
                away = np.abs(widened(y) - widened(w)) / (scale * tolerance(w.dtype))
                most = max(most, float(np.max(away[np.isfinite(away)], initial=0.0)))
        return most

    def rounded(self, x: Any, small: Dims | None = None) -> Any:
        """Floating numbers a bit off, to either side; `small`: the extents of what repeats."""
        if not isinstance(x, np.ndarray) or x.dtype not in INEXACT:
            return x
        if small is not None:
            return repeated(self.rounded(lines_once(x, small)), x.shape)
        signs = self.rng.integers(-1, 2, x.shape)
        return (widened(x) * (1 + 2 * signs * eps(x.dtype))).astype(x.dtype)

    @property
    def slack(self) -> float:
        """The distance that sums of many terms may have from those of the reference, which errs as
        well, as a multiple of what a few terms may: rounding errors grow with the root of their
        number.
        """
        done = computing(self.eqn).operations
        terms = done / max(min((x.type.size for x in self.outs), default=1), 1)
        return max(1.0, math.sqrt(terms) / STRANDS)

    def wrong(self, found: dict[int, Any]) -> str:
        """The reason why the memory after a run is not what it should be; "" if it is."""
        for x, w, scale in zip(self.outs, self.wanted, self.scales, strict=True):
            y = np.array(x.of(found[id(x.buffer)]))
            if not difference(y, w, x.type, scale, self.slack):
                continue
            slack = self.slack * self.condition * CONDITION
            if difference(y, w, x.type, scale, slack):
                outside = self.outside(found)
                return f"its result is {wrong_at(y, w, x.type, scale, slack)}" + (
                    f"; {outside}" if outside else ""
                )
        return self.outside(found)

    def outside(self, found: dict[int, Any]) -> str:
        """The reason to refuse a run that wrote outside its results, in the memory that is given; ""
        if it did not.
        """
        results = {id(x.buffer) for x in self.outs}
        rest = {n: memory.copy() if n in results else memory for n, memory in found.items()}
        for x in self.outs:
            if x.type.size:
                x.of(rest[id(x.buffer)])[...] = x.of(self.bytes[id(x.buffer)])
        for n, memory in rest.items():
            if not np.array_equal(memory, self.bytes[n]):
                return OUTSIDE
        return ""


def wrong_at(y: Any, w: Any, t: ArrayType, scale: float, slack: float) -> str:
    """The first place where a result differs, and how many do."""
    rtol = slack * tolerance(t.dtype)
    same = np.isclose(widened(y), widened(w), rtol=rtol, atol=rtol * scale, equal_nan=True)
    places = np.argwhere(~same)
    at = tuple(map(int, places[0]))
    where = f" at {list(at)}" if at else ""
    empty = ", as if it were not written," if y[at] != y[at] else ""
    return f"{y[at]}{empty}{where}, not {w[at]}; {len(places)} of {y.size} are wrong"


def scale_of(w: Any) -> float:
    """The largest number of a result, 1 at least."""
    if w.dtype not in INEXACT:
        return 1.0
    sizes = np.abs(widened(w))
    return max(float(np.max(sizes[np.isfinite(sizes)], initial=0.0)), 1.0)


def is_array(a: Atom) -> bool:
    return isinstance(a, Var) and not a.type.weak


# ------------------------------------------------------------------------------------------- bench


@final
@record
class Prepared:
    """A compiled candidate. `code`: all that tells it from others; `bound`: what runs it in memory,
    by the buffers of the images.
    """

    code: tuple[object, ...]
    bound: Callable[[dict[int, Any], Images], Run]


class Bench(ABC):
    """A step of a program, and what runs its candidates; a target says how."""

    def __init__(self, program: Program, step: Step, catalog: Catalog, caps: Any) -> None:
        self.program, self.step, self.catalog, self.caps = program, step, catalog, caps

    @property
    @abstractmethod
    def problem(self) -> Problem:
        """The problem that kernels are chosen for, its arrays where they are in the program."""

    @property
    @abstractmethod
    def clock(self) -> Clock:
        """The clock that times a run."""

    @property
    def colds(self) -> tuple[Clock, ...]:
        """Further clocks, that empty caches before."""
        return ()

    @abstractmethod
    def put(self, memory: Any) -> Any:
        """Bytes as memory of the device: a copy."""

    @abstractmethod
    def get(self, memory: Any) -> Any:
        """Memory of the device as bytes of the host."""

    @abstractmethod
    def prepared(self, candidate: Candidate) -> Prepared:
        """A candidate, compiled."""

    def ahead(self, candidate: Candidate) -> Run:
        """A function that compiles a candidate on any thread; `prepared` then finds it compiled, or
        raises its error again.
        """
        return partial(self.prepared, candidate)

    @computed
    def offered(self) -> tuple[Candidate, ...]:
        """The candidates that may serve, whatever was measured of them."""
        fair = replace(prefs(), tune="off", pins=(), only=())
        found = candidates(self.problem, self.caps, fair, self.catalog)
        return tuple(c for c in found if not c.refusal)

    def code(self, candidate: Candidate) -> str:
        """The content hash of the kernels that a candidate has today."""
        family, variant = candidate.family, candidate.variant
        kernels = family.kernels(self.problem, variant, variant.caps or self.caps)
        return family.code or code_of(kernels)

    def here(self) -> AbstractContextManager[Any]:
        return nullcontext()

    @computed
    def images(self) -> tuple[Images, ...]:
        """The inputs that candidates are checked with: positive numbers, then some negative ones
        among them.
        """
        return tuple(Images(self.program, self.step, signs) for signs in (False, True))

    def memory(self, images: Images) -> dict[int, Any]:
        return {n: self.put(memory) for n, memory in images.bytes.items()}

    def scratch(self, memory: dict[int, Any], nbytes: int) -> Any:
        """Memory for a run's own use, beside what the step has: NaN between guard bands, which
        `wrong` looks at.
        """
        made = self.blank(nbytes)
        memory[id(made)] = made
        return made[GUARD : GUARD + nbytes]

    def blank(self, nbytes: int) -> Any:
        return self.put(aligned(nbytes))

    def is_same(self, images: Images, memory: dict[int, Any], n: int) -> bool:
        """True if the memory of a buffer is as before the run."""
        return np.array_equal(self.get(memory[n]), images.bytes[n])

    def wrong(self, images: Images, memory: dict[int, Any]) -> str:
        """The reason why memory after a run is not what it should be; "" if it is."""
        results = {id(x.buffer) for x in images.outs}
        if why := images.wrong({n: self.get(memory[n]) for n in results}):
            return why
        rest = (n for n in images.bytes if n not in results)
        if not all(self.is_same(images, memory, n) for n in rest):
            return OUTSIDE
        scratch = (memory[n] for n in memory if n not in images.bytes)
        return "" if all(map(is_whole, scratch)) else OF_SCRATCH


def is_whole(memory: Any) -> bool:
    """True if the guard bands of a memory are as `aligned` made them."""
    return all(bool((band == NOTHING).all()) for band in (memory[:GUARD], memory[-GUARD:]))
