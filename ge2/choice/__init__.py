"""Problems that kernels are chosen for, families of kernels, and the grounds: speeds, measurements,
and the variants that this process has built.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import astuple
from functools import cache as once
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NamedTuple, TypeVar, final

from ge2.base import record as records
from ge2.base.arrays import COMPLEX128, FLOAT64
from ge2.base.cache import FORMAT, content_key
from ge2.base.config import cache_folder, config
from ge2.base.record import hashed_record, holding
from ge2.base.source import FOLDER
from ge2.codegen.text import Operand
from ge2.ir import ArrayType, Atom, Eqn, Graph, Op, Var
from ge2.ops.graphs.region import Region
from ge2.program import computing

if TYPE_CHECKING:
    from ge2.choice.record import ProblemClass

# -------- Problems: what a kernel is chosen for.


ACCESS: Final = 16  # bytes of the widest access


@final
@hashed_record
class Problem:
    """An operation on types, and where its arrays are once layouts are settled.

    `operands`: layout and alignment of each input, then of each result; none before that is known.
    `shared`: pairs (result, input) that are the same memory.
    """

    op: Op
    inputs: tuple[ArrayType, ...]
    outs: tuple[ArrayType, ...]
    target: str = "cpu"
    shared: frozenset[tuple[int, int]] = frozenset()
    operands: tuple[Operand, ...] = ()

    @staticmethod
    def of(
        eqn: Eqn,
        target: str = "cpu",
        operand: Callable[[str, int, Atom], Operand] | None = None,
        shared: frozenset[tuple[int, int]] = frozenset(),
    ) -> Problem:
        """The problem that a kernel of an equation is chosen for. `operand(role, number, value)`:
        where the array of an input or a result is, once that is known.
        """
        types = tuple(a.type for a in eqn.inputs), tuple(v.type for v in eqn.outs)
        if operand is None:
            return Problem(eqn.op, *types, target, shared)
        lie = [operand("in", i, a) for i, a in enumerate(eqn.inputs)]
        lie += [operand("out", i, v) for i, v in enumerate(eqn.outs)]
        return Problem(eqn.op, *types, target, shared, tuple(lie))

    @property
    def settled(self) -> bool:
        """True if it is known where the arrays are."""
        return bool(self.operands) or not (self.inputs or self.outs)

    @property
    def arrays(self) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
        """The operands of the inputs and of the results."""
        n = len(self.inputs)
        return self.operands[:n], self.operands[n:]

    def placed(self, graph: Graph) -> dict[Var, Operand]:
        """The operands of the inputs and results of the graph that the operation holds."""
        pairs = zip((*graph.inputs, *graph.outputs), self.operands, strict=True)
        return {v: x for v, x in pairs if isinstance(v, Var)}


def described(problem: Problem) -> str:
    """The computation of a kernel, for the comment above it."""
    inputs, results = (", ".join(map(str, types)) for types in (problem.inputs, problem.outs))
    return f"{results} = {problem.op} of {inputs}"


# ------------------------------------------------------------------------------------------- prefs
# Preferences: what a user wants or does not want among kernels.


@final
@records.record
class Pin:
    """A variant of a family that is to be taken for problems of a class, or for all (`problem` "");
    without the name of a variant, the best of the family.
    """

    family: str
    variant: str = ""
    problem: str = ""


@final
@records.record
class Prefs:
    """Preferences of a user. `off`: names of passes, families and rules of choice that are switched
    off. `tune`: "off", "cached" (what was measured decides where it was) or "on" (it is measured
    when a program is built). `only`: of families that serve a problem these are taken, if any is
    among them; `without`: these never are. `deterministic`: no variants that add up in another
    order each time. `workspace`: bytes of scratch that a call of a library may have.
    """

    off: frozenset[str] = frozenset()
    tune: str = "cached"
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    deterministic: bool = True
    workspace: int = 32 << 20
    pins: tuple[Pin, ...] = ()

    def refuses(self, name: str) -> str:
        """The reason why nothing of that name is chosen; "" if it may be."""
        if name in self.off:
            return f"{name} is switched off"
        if name in self.without:
            return "the preferences leave it out"
        return (
            f"the preferences take {' or '.join(self.only)}"
            if self.only and name not in self.only
            else ""
        )

    def refuses_variant(self, variant: Variant) -> str:
        """The reason why a variant is not chosen, its own if it has one."""
        if variant.refusal or variant.ordered or not self.deterministic:
            return variant.refusal
        return "it adds up in another order each time, and the settings want the same bits"


def prefs() -> Prefs:
    """The preferences that the settings of now express."""
    return Prefs(
        frozenset(config.passes_off), config.tune,
        tuple(name for name in config.prefer if not name.startswith("-")),
        tuple(name[1:].strip() for name in config.prefer if name.startswith("-")),
        config.deterministic, config.workspace << 20, config.pins,  # type: ignore[arg-type]
    )  # fmt: skip


# ------------------------------------------------------------------------------------------ family
# Families of kernels: what each must answer to be chosen, and to write what was chosen.


Caps = TypeVar("Caps")  # the limits of what kernels run on, a record of the target's
Code = TypeVar("Code")  # kernels as the assembler of the target takes them


@final
@records.record
class Variant:
    """One of the ways in which a family does a problem; `plan` is what was worked out to offer it,
    `refusal` the reason why it is not offered, if only working it out showed that. `ordered`: it
    adds up in the same order each time. `caps`: the limits, or numbers of tuning, by which its
    kernels are written in place of the target's.
    """

    name: str = ""
    plan: Any = None
    refusal: str = ""
    ordered: bool = True
    caps: Any = None


ONLY = (Variant(),)


class Family(ABC, Generic[Caps, Code]):
    """Kernels of one skeleton, or one library function.

    `caps` are the limits of the chip, or of the processor; None before it is known which it is.
    """

    name: ClassVar[str]
    target: ClassVar[str] = ""  # the one it serves; "" for any
    ops: ClassVar[tuple[type[Op], ...]] = (Op,)  # classes of operations that it serves
    kinds: ClassVar[tuple[str, ...]] = ()  # of regions that it serves, if it is for some alone
    # the content hash of its kernels, where it is the same for all problems; else "", and it is known
    # when they are written
    code: ClassVar[str] = ""
    step_kind: ClassVar[str] = "kernel"  # the kind of step of a program that it serves
    kin: ClassVar[str] = ""  # the family of whose predictions its own are made
    # whether results may be written over arrays of which the same elements are read
    over: ClassVar[bool] = True
    # whether its kernels write results of any strides, as parts of other arrays are
    anywhere: ClassVar[bool] = False
    # whether it leaves steps apart that other families take as one
    in_steps: ClassVar[bool] = False
    ranked: ClassVar[bool] = True  # whether predictions decide for all problems: see `is_ranked`

    def serves(self, op: Op) -> bool:
        """True if kernels of the family are for operations of this kind; others it is not asked for."""
        of_kind = not self.kinds or (isinstance(op, Region) and op.kind in self.kinds)
        return of_kind and isinstance(op, self.ops)

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        """The reason why no kernel of the family serves a problem of such an operation; "" if one
        does.
        """
        return ""

    @final
    def refusal(self, problem: Problem, caps: Caps | None) -> str:
        """The reason why no kernel of the family serves a problem of any operation."""
        return self.refuses(problem, caps) if self.serves(problem.op) else self.unserved(problem.op)

    @final
    def unserved(self, op: Op) -> str:
        """The reason why it has no kernel of an operation that it does not serve."""
        return f"it serves other operations than {op.name}"

    def hesitates(self, problem: Problem, caps: Caps | None) -> str:
        """The reason why others are thought to be better at a problem that it does not refuse; "" if
        none is known. It is as good as a refusal, but where a program before was built with it.
        """
        return ""

    def variants(self, problem: Problem, caps: Caps) -> Iterable[Variant]:
        """Ways to do a problem that is not refused, the preferred one first; at least one, which
        may be refused itself.
        """
        return ONLY

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float | None:
        """The predicted time of a call in seconds; None where there is no prediction."""
        return None

    def is_ranked(self, problem: Problem, caps: Caps | None) -> bool:
        """True if predictions decide for a problem; else the order does, which was measured, and they are for
        people.
        """
        return self.ranked

    @abstractmethod
    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Code:
        """The kernels of a variant of a settled problem."""


# -------- A measurement of a kernel, and whether there are any: what a first call has to know of
# the record.


class Measured(NamedTuple):  # a record takes three times as long to read
    """The time of a variant of a family, in seconds: `median` of several runs, and their `spread`
    as a part of it.

    `code` is the content hash of its kernels but for their numbers, `verified` how far its results
    were from the reference, in words; `failure` is the reason why it did not serve, and then it has no time.
    `predicted`: the time that was expected, 0 if none was. `stale`: its kernels have another text
    today, so it is shown and not believed.
    """

    family: str
    variant: str = ""
    median: float = 0.0
    spread: float = 0.0
    code: str = ""
    device: str = ""
    driver: str = ""
    libraries: tuple[tuple[str, str], ...] = ()
    when: str = ""
    verified: str = ""
    failure: str = ""
    predicted: float = 0.0
    stale: bool = False

    @property
    def believed(self) -> bool:
        """True if its time may decide a choice."""
        return not self.failure and not self.stale and self.median > 0.0

    def __str__(self) -> str:
        if self.failure:
            words = f"failed when measured: {self.failure}"
        else:
            words = f"measured {self.median * 1e6:.3g} us, spread {self.spread:.1%}"
        return f"{words}, of another text" if self.stale else words


# ------------------------------------------------------------------------------- is there a record


TUNED: Final = "tuned"  # the folder of measurements, in that of the cache
SHIPPED: Final = os.path.join(FOLDER, "choice", "shipped")  # those that come with the package


def recorded_keys() -> frozenset[str]:
    """The keys of all that this user measured, looked up once a process."""
    return listed(_folder(config.cache_dir))


@once
def _folder(setting: str) -> str:
    folder = cache_folder()
    return os.path.join(folder, TUNED, f"v{FORMAT}") if folder else ""


@once
def listed(folder: str) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder) if folder else ())
    except OSError:
        return frozenset()


@once
def key_of(device: str) -> str:
    """The key of all that is known of a kind of device."""
    return content_key("tuned", device)


@once
def shipped_name(device: str) -> str:
    """The file with what ships for a kind of device."""
    return f"{''.join(c if c.isalnum() else '_' for c in device.lower())}.jsonl"


def is_measured(device: str) -> bool:
    """True if there are measurements of a kind of device to read."""
    return key_of(device) in recorded_keys() or shipped_name(device) in listed(SHIPPED)


# -------- The speed of a device, for predictions: measured limits, and the time that they imply.
# The limits are probed once a device, when something is tuned, and kept with the record; until then
# they are those of a data sheet.


@final
@records.record
class Speed:
    """The work of a device in a second: bytes that it moves from and to memory (`moved`), and from
    and to caches of `cache` bytes (`cached`); operations in float32 and in float64, in kernels of
    ours and, in float32, in products of the library. `launch`: seconds that a kernel takes at
    least. `functions`: operations that exp or tanh counts as.
    """

    moved: float
    cached: float
    cache: int
    single: float
    double: float
    products: float
    launch: float
    functions: int = 8

    def of(
        self, problem: Problem, *, passes: float = 1.0, launches: int = 1, rate: float = 1.0
    ) -> float:
        """The seconds of a problem: its bytes, `passes` times, or its operations at that part of the
        `rate`, whichever takes longer, and launches.
        """
        moved, done = bytes_of(problem), operations(problem, self.functions)
        memory = passes * moved / self.rate_of(moved)
        return launches * self.launch + max(memory, done / (self.computed(problem) * rate))

    def rate_of(self, moved: int) -> float:
        """Bytes in a second, where so many are moved."""
        return self.cached if moved < self.cache else self.moved

    def computed(self, problem: Problem) -> float:
        """Operations in a second of the widest dtype of a problem."""
        double = any(t.dtype in (FLOAT64, COMPLEX128) for t in (*problem.inputs, *problem.outs))
        return self.double if double else self.single


def bytes_of(problem: Problem) -> int:
    """The bytes of all arrays; of an axis along which elements repeat, those that are there."""
    types = (*problem.inputs, *problem.outs)
    if not problem.operands:
        return sum(t.nbytes for t in types if not t.weak)
    found = 0
    for t, x in zip(types, problem.operands, strict=True):
        if not x.value:
            real = (n for n, s in zip(t.shape, x.strides, strict=True) if s or n == 0)
            found += t.dtype.itemsize * math.prod(real)
    return found


def operations(problem: Problem, functions: int) -> int:
    inputs, outs = tuple(map(Var, problem.inputs)), tuple(map(Var, problem.outs))
    done = computing(Eqn(problem.op, inputs, outs))
    return done.flops + functions * done.transcendentals


# -------- Speeds of devices as they were probed.


_known: dict[tuple[str | None, str], Speed] = {}


def speed_key(kind: str) -> str:
    return content_key("speed", kind)


def speed_of(kind: str, usual: Speed) -> Speed:
    """The probed speed of a kind of device, or else the usual one: that alone, if nothing measured
    is to decide.
    """
    if config.tune == "off":
        return usual
    place = config.cache_dir, kind
    if place not in _known:
        _known[place] = probed(kind) or usual
    return _known[place]


def probed(kind: str) -> Speed | None:
    """The probed speed of a kind of device, here or as it ships; None if nothing was probed."""
    here = speed_key(kind) in recorded_keys()
    if not here and not is_measured(kind):
        return None
    import json

    from ge2.choice.record import shipped, store, told_in

    try:
        if here:
            return Speed(*json.loads(store().get(speed_key(kind)) or b""))
        return Speed(*told_in(shipped(kind).splitlines(), "speed"))
    except (ValueError, TypeError):
        return None


def keep_speed(kind: str, speed: Speed) -> None:
    import json

    from ge2.choice.record import forget, store

    about = {"kind": "measurements", "name": "speed", "device": kind}
    store().put(speed_key(kind), json.dumps(astuple(speed)).encode(), about)
    _known.clear()
    forget()


# -------- Variants that this process has built, so that a new batch size compiles nothing.
# Predictions of two variants are often closer to each other than either is to the truth, and which
# is less changes with each extent. So a problem takes the variant that an earlier program was built
# with for a problem of its class or of a neighbouring one, unless what its prediction loses is
# worth the time to compile another kernel. Choices within one program do not depend on each other.


@final
@records.record
class Reuse:
    """The choice of what is built over what is predicted to be quicker."""

    near: float = 1.15  # times the least prediction: those of products are off by as much
    # seconds of a call that compiling is not worth: 0.2 s of a kernel, over as many calls as a network
    # of ten layers has in a thousand steps; but for a kernel that would take more than `far` times the
    # least prediction
    lost: float = 0.2 / 1e4
    far: float = 2.0
    kept: int = 64  # classes of one form that are kept


REUSE: Final = Reuse()

Name = tuple[str, str]  # of a family, and of its variant
Decisions = list[tuple[Problem, Any, Name]]  # a problem, the limits of what runs it, what was taken

_now: ContextVar[Decisions | None] = ContextVar("ge2_decisions", default=None)
_new: Decisions = []  # of programs that were built, whose classes nobody has asked for
_built: dict[tuple[str, str], dict[ProblemClass, set[Name]]] = {}


def deciding(found: Decisions | None) -> AbstractContextManager[Decisions | None]:
    """Inside, what no measurement decides is added to `found`, if that is a list."""
    return holding(_now, found)


def note(problem: Problem, caps: Any, name: Name) -> None:
    """Notes what was decided, for the program that is being made, if one is."""
    found = _now.get()
    if found is not None and caps is not None and problem.settled:
        found.append((problem, caps, name))


def keep(found: Decisions) -> None:
    """Keeps the decisions of a program that was built, for those after it."""
    _new.extend(found)
    found.clear()


def forget() -> None:
    """Forgets what was built."""
    _new.clear()
    _built.clear()


def is_near(seconds: float, least: float) -> bool:
    """True if a kernel that takes so long by prediction is not worth compiling another one.

    >>> is_near(11e-5, 10e-5), is_near(3e-5, 2e-5), is_near(5e-6, 2e-6)
    (True, True, False)
    """
    t = config.tuned(REUSE)
    return seconds <= t.near * least or (seconds <= t.far * least and seconds - least <= t.lost)


def names_near(problem: Problem, caps: Any) -> set[Name]:
    """Returns the families and variants that were built for problems like this one."""
    if not (_new or _built) or caps is None or not problem.settled:
        return set()
    from ge2.choice.record import class_of  # nobody pays for it in the first program

    while _new:
        other, its, name = _new.pop()
        found = class_of(other)
        kept = _built.setdefault((str(its.kind), found.form), {})
        if found in kept or len(kept) < config.tuned(REUSE).kept:
            kept.setdefault(found, set()).add(name)
    own = class_of(problem)
    kept = _built.get((str(caps.kind), own.form), {})
    return {name for other, names in kept.items() if other.is_near(own) for name in names}
