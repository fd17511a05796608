"""An error of a rule names the line of the user's program that the equation came from."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from ge2.base.errors import Ge2Error, TypeRuleError, VerifyError
from ge2.base.source import here
from ge2.ir import Eqn, Op

ENTRIES = {
    "vjp": "a list with a cotangent, or None for zero, for each operand",
    "jvp": "a list with a tangent, or None for zero, for each result",
    "batch": "the results, and where each has the new axis: [y], [0]",
}


class blamed:
    """A context in which the rules of an equation run."""

    __slots__ = ("eqn",)

    def __init__(self, eqn: Eqn) -> None:
        self.eqn = eqn

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        place = self.eqn.source or here()
        if isinstance(error, Ge2Error) and not isinstance(error, VerifyError) and place is not None:
            head, *rest = str(error).split("\n")
            if not any(line.startswith("  at   ") for line in rest):
                error.args = ("\n".join([head, f"  at   {place}", *rest]),)


def entries(found: Any, count: int, op: Op, rule: str) -> Any:
    """What a rule returned, if it has an entry for each of so many."""
    if isinstance(found, list | tuple) and len(found) == count:
        return found
    got = str(len(found)) if isinstance(found, list | tuple) else f"a {type(found).__name__}"
    what = f"{rule} of {op.name} is to return a list of {count}; it returned {got}"
    raise TypeRuleError(what, fix=ENTRIES[rule])
