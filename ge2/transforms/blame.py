"""An error of a rule names the line of the user's program that the equation came from."""

from __future__ import annotations

from types import TracebackType

from ge2.base.errors import Ge2Error, VerifyError
from ge2.base.source import here
from ge2.ir import Eqn


class blamed:
    """A context in which the rules of an equation run."""

    __slots__ = ("eqn",)

    def __init__(self, eqn: Eqn) -> None:
        self.eqn = eqn

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        place = self.eqn.source or here()
        if isinstance(error, Ge2Error) and not isinstance(error, VerifyError) and place is not None:
            head, *rest = str(error).split("\n")
            if not any(line.startswith("  at   ") for line in rest):
                error.args = ("\n".join([head, f"  at   {place}", *rest]),)
