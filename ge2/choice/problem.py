"""Problems: what a kernel is chosen for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, Generic, TypeVar, final

from ge2.base.config import config
from ge2.base.record import record
from ge2.codegen.text import Operand
from ge2.ir import ArrayType, Atom, Eqn, Graph, Op, Var

ACCESS: Final = 16  # bytes of the widest access


@final
@record
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
@record
class Pin:
    """A variant of a family that is to be taken for problems of a class, or for all (`problem` "");
    without the name of a variant, the best of the family.
    """

    family: str
    variant: str = ""
    problem: str = ""


@final
@record
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
@record
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
    # the content hash of its kernels, where it is the same for all problems; else "", and it is known
    # when they are written
    code: ClassVar[str] = ""
    step_kind: ClassVar[str] = "kernel"  # the kind of step of a program that it serves
    kin: ClassVar[str] = ""  # the family of whose predictions its own are made
    # whether results may be written over arrays of which the same elements are read
    over: ClassVar[bool] = True

    @abstractmethod
    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        """The reason why no kernel of the family serves the problem; "" if one does."""

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
        return True

    @abstractmethod
    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Code:
        """The kernels of a variant of a settled problem."""
