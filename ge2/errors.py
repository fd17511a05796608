"""Every error that ge2 raises on purpose, as one tree: see `ge2.base.errors`."""

from __future__ import annotations

from ge2.base.errors import ArgumentError as ArgumentError
from ge2.base.errors import CacheTrouble as CacheTrouble
from ge2.base.errors import CompileError as CompileError
from ge2.base.errors import CompilerTrouble as CompilerTrouble
from ge2.base.errors import ConcretizationTypeError as ConcretizationTypeError
from ge2.base.errors import DeviceError as DeviceError
from ge2.base.errors import FileError as FileError
from ge2.base.errors import FrozenError as FrozenError
from ge2.base.errors import Ge2Error as Ge2Error
from ge2.base.errors import GradientError as GradientError
from ge2.base.errors import ImpureError as ImpureError
from ge2.base.errors import InPlaceError as InPlaceError
from ge2.base.errors import InputError as InputError
from ge2.base.errors import KernelError as KernelError
from ge2.base.errors import MemoryLimitError as MemoryLimitError
from ge2.base.errors import NonFiniteError as NonFiniteError
from ge2.base.errors import NoRuleError as NoRuleError
from ge2.base.errors import NotAValue as NotAValue
from ge2.base.errors import OutOfBoundsError as OutOfBoundsError
from ge2.base.errors import OutOfMemoryError as OutOfMemoryError
from ge2.base.errors import ParseError as ParseError
from ge2.base.errors import PytreeError as PytreeError
from ge2.base.errors import ReadOnlyError as ReadOnlyError
from ge2.base.errors import RetraceError as RetraceError
from ge2.base.errors import ShapeError as ShapeError
from ge2.base.errors import TraceError as TraceError
from ge2.base.errors import TracerArrayConversionError as TracerArrayConversionError
from ge2.base.errors import TracerBoolConversionError as TracerBoolConversionError
from ge2.base.errors import TracerIntegerConversionError as TracerIntegerConversionError
from ge2.base.errors import TypeRuleError as TypeRuleError
from ge2.base.errors import UnexpectedTracerError as UnexpectedTracerError
from ge2.base.errors import UnknownSetting as UnknownSetting
from ge2.base.errors import VerifyError as VerifyError
from ge2.base.errors import WideningError as WideningError
from ge2.base.errors import ZeroWeightsError as ZeroWeightsError
from ge2.base.source import Ge2Warning as Ge2Warning
from ge2.base.tracebacks import publish

publish(globals(), advise=True)

for _each in [each for each in globals().values() if isinstance(each, type)]:
    _each.__module__ = __name__  # which is what a traceback calls them
