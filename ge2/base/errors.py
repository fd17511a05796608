"""Every error that ge2 raises on purpose.

Ge2Error
├── TypeRuleError                     an operation was applied to arrays it does not accept
│   └── ShapeError                    ... because their shapes do not fit (also a ValueError)
│       └── OutOfBoundsError          ... because an axis or an index lies outside (also an IndexError)
├── InputError                        an argument is of a kind that ge2 does not take
│   ├── NotAValue                     an operand is of a class that NumPy knows nothing of
│   ├── UnknownSetting                there is no setting of that name (also an AttributeError)
│   ├── ArgumentError                 ... of a value that the function does not take (also a ValueError)
│   ├── ZeroWeightsError              ... weights that sum to zero (also a ZeroDivisionError)
│   └── PytreeError                   two containers differ in structure (also a ValueError)
├── TraceError                        a traced value was used in a way its trace does not allow
│   ├── ConcretizationTypeError       its value was asked for where it is not known
│   │   ├── TracerBoolConversionError
│   │   ├── TracerIntegerConversionError
│   │   └── TracerArrayConversionError
│   ├── UnexpectedTracerError         it was used outside its trace
│   ├── InPlaceError                  it was changed in place in a way that is not supported
│   │   └── ReadOnlyError             ... because its memory is read-only (also a ValueError)
│   └── ImpureError                   the traced function drew random numbers or has another side effect
├── WideningError                     a value became wider than `jit(widest=...)` allows
├── RetraceError                      a jitted function was called with more signatures than it was to have
├── NonFiniteError                    a result holds NaN or infinity where that was to be an error
├── FrozenError                       a field of a module was assigned to (also a FrozenInstanceError)
├── FileError                         a file of arrays is damaged, or does not fit what it is loaded into
├── GradientError                     a derivative was asked of something that has none
├── NoRuleError                       an operation lacks the rule that a transform asked for
├── ParseError                        a text is not a graph
├── VerifyError                       a graph is malformed: a bug in ge2, never in the user's program
├── MemoryLimitError                  a program does not fit in the memory it was given (also a MemoryError)
│   └── OutOfMemoryError              ... or in what its GPU has left
├── CompileError                      a generated kernel was refused by its compiler
│   └── CompilerTrouble               ... or the compiler is missing, hangs or makes junk
├── DeviceError                       a GPU was asked for that is not there or cannot be used
├── KernelError                       a CUDA kernel did, where it could be seen, what has no meaning
└── CacheTrouble                      the cache on disk cannot be used
"""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Final

from numpy.linalg import LinAlgError

DEEPER = "sys.setrecursionlimit(10_000), of frames that calls inside each other may have"


class Ge2Error(Exception):
    """An error with a remedy: what happened, where, and what to write instead."""

    def __init__(self, what: str, *, where: object = None, fix: str = "") -> None:
        lines = [what]
        if where is not None and str(where):
            lines.append(f"  at   {where}")
        if fix:
            lines.append(f"  try  {fix}")
        super().__init__("\n".join(lines))


class TypeRuleError(Ge2Error, TypeError):
    """Raised far below the user's line, which it looks up itself."""

    def __init__(self, what: str, *, where: object = None, fix: str = "") -> None:
        from ge2.base.source import here  # the errors come before all else

        super().__init__(what, where=here() if where is None else where, fix=fix)


class ShapeError(TypeRuleError, ValueError): ...


class OutOfBoundsError(ShapeError, IndexError): ...


class InputError(Ge2Error, TypeError): ...


class NotAValue(InputError): ...


class UnknownSetting(InputError, AttributeError): ...  # so that `hasattr` and `copy` work


class ArgumentError(InputError, ValueError): ...


class ZeroWeightsError(ArgumentError, ZeroDivisionError): ...


class PytreeError(InputError, ValueError): ...


class TraceError(Ge2Error, TypeError): ...


class ConcretizationTypeError(TraceError): ...


class TracerBoolConversionError(ConcretizationTypeError): ...


class TracerIntegerConversionError(ConcretizationTypeError): ...


class TracerArrayConversionError(ConcretizationTypeError): ...


class UnexpectedTracerError(TraceError): ...


class InPlaceError(TraceError): ...


class ReadOnlyError(InPlaceError, ValueError): ...


class FrozenError(Ge2Error, FrozenInstanceError): ...


class ImpureError(TraceError): ...


class WideningError(Ge2Error, TypeError): ...


class RetraceError(Ge2Error, RuntimeError): ...


class NonFiniteError(Ge2Error, FloatingPointError): ...


class FileError(Ge2Error, ValueError): ...


class GradientError(Ge2Error, TypeError): ...


# so that `except NotImplementedError` catches it
class NoRuleError(Ge2Error, NotImplementedError): ...


class ParseError(Ge2Error, ValueError): ...


class VerifyError(Ge2Error): ...


class CompileError(Ge2Error): ...


class CompilerTrouble(CompileError): ...


class TooLong(CompilerTrouble): ...


class DeviceError(Ge2Error, RuntimeError): ...


class KernelError(Ge2Error, RuntimeError): ...


class MemoryLimitError(Ge2Error, MemoryError): ...


class OutOfMemoryError(MemoryLimitError): ...


class CacheTrouble(Ge2Error): ...


NEGATIVE_POWER: Final = "Integers to negative integer powers are not allowed."
AS_FLOAT: Final = "x.astype(float) ** n"
BY_VALUES: Final = LinAlgError, IndexError, ValueError  # among them are those that `locate` knows


def locate(error: Exception, source: object) -> None:
    """Adds the user's line to an error that NumPy raises for values of a program, and a fix."""
    if not isinstance(error, LinAlgError | IndexError) and str(error) != NEGATIVE_POWER:
        return
    noted = any("  at   " in note for note in getattr(error, "__notes__", ()))
    if source is not None and not noted:
        fix = fix_of(error)
        error.add_note(f"  at   {source}" + (f"\n  try  {fix}" if fix else ""))


def fix_of(error: Exception) -> str:
    """The code to write instead, for an error that NumPy raises; "" where none is known."""
    if isinstance(error, IndexError):
        return ""
    if str(error) == NEGATIVE_POWER:
        return AS_FLOAT
    if "converge" in str(error):
        return "np.isfinite(a) of the matrix first"
    return "a + 1e-8 * np.eye(len(a)), or except np.linalg.LinAlgError around the call"
