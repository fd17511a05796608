"""Which line of the user's program made a value: the first frame that lies outside ge2 and NumPy."""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType

import numpy

from ge2.base.record import record

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
LIBRARIES = (
    PACKAGE,
    os.path.dirname(os.path.abspath(numpy.__file__)) + os.sep,
    "<__array_function__ internals>",
    "<frozen importlib",
)
_inner: dict[CodeType, bool] = {}


@record
class Source:
    """A place in the user's program. The line number is worked out only when it is printed."""

    code: CodeType
    lasti: int

    @property
    def file(self) -> str:
        return self.code.co_filename

    @property
    def line(self) -> int:
        for start, end, line in self.code.co_lines():
            if start <= self.lasti < end and line is not None:
                return line
        return self.code.co_firstlineno

    @property
    def function(self) -> str:
        return self.code.co_name

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line} in {self.function}"


def user_frame(depth: int = 1) -> FrameType | None:
    """The nearest frame, from the caller outward, that belongs to neither ge2 nor NumPy."""
    frame: FrameType | None = sys._getframe(depth)
    inner = _inner
    while frame is not None:
        code = frame.f_code
        known = inner.get(code)
        if known is None:
            known = inner[code] = code.co_filename.startswith(LIBRARIES)
        if not known:
            return frame
        frame = frame.f_back
    return None


def here() -> Source | None:
    """The user's line that is being executed."""
    frame = user_frame(2)
    return None if frame is None else Source(frame.f_code, frame.f_lasti)


def of_function(f: object) -> Source | None:
    """Where a Python function is defined."""
    code = getattr(f, "__code__", None)
    return Source(code, 0) if isinstance(code, CodeType) else None
