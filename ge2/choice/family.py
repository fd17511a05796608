"""Families of kernels: what each must answer to be chosen, and to write what was chosen."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Generic, TypeVar, final

from ge2.base.record import record
from ge2.choice.problem import Problem

Caps = TypeVar("Caps")  # the limits of what kernels run on, a record of the target's
Code = TypeVar("Code")  # kernels as the assembler of the target takes them


@final
@record
class Variant:
    """One of the ways in which a family does a problem; `plan` is what was
    worked out to offer it.
    """

    name: str = ""
    plan: Any = None


ONLY = (Variant(),)


class Family(ABC, Generic[Caps, Code]):
    """Kernels of one skeleton, or one library function.

    `caps` are the limits of the chip, or of the processor; None before it is known which it is.
    """

    name: ClassVar[str]
    target: ClassVar[str] = ""  # the one it serves; "" for any

    @abstractmethod
    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        """The reason why no kernel of the family serves the problem; "" if one does."""

    def variants(self, problem: Problem, caps: Caps) -> Iterable[Variant]:
        """Ways to do a problem that is not refused, the preferred one first; at least one."""
        return ONLY

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float | None:
        """The predicted time of a call in seconds; None where there is no prediction."""
        return None

    @abstractmethod
    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Code:
        """The kernels of a variant of a settled problem."""
