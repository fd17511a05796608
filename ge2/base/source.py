"""Which line of the user's program made a value: the first frame that lies outside ge2 and NumPy."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import CodeType, FrameType

import numpy

from ge2.base.record import record

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
LIBRARIES = (
    PACKAGE,
    os.path.dirname(os.path.abspath(numpy.__file__)) + os.sep,
    contextlib.__file__,  # a `with` of ours that looks at a setting, or warns
    "<__array_function__ internals>",
    "<frozen importlib",
    "<ge2 kernel",
    "<a record>",
)
_inner: dict[CodeType, bool] = {}
_scope: ContextVar[str] = ContextVar("ge2_scope", default="")


@record
class Source:
    """A place in the user's program. The line number is worked out only when it is printed."""

    code: CodeType
    lasti: int
    scope: str = ""  # the names that the user gave to this part of the program, outermost first

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

    @property
    def within(self) -> str:
        """The function, and the scope if there is one."""
        return f"{self.function} ({self.scope})" if self.scope else self.function

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line} in {self.within}"


def user_frame(depth: int = 1) -> FrameType | None:
    """The nearest frame, from the caller outward, that is neither ge2's, NumPy's, nor contextlib's."""
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
    return None if frame is None else Source(frame.f_code, frame.f_lasti, _scope.get())


@contextmanager
def named_scope(name: str) -> Iterator[None]:
    """Gives a name to what is traced inside: the kernels' table and the errors show it after the function.

    Scopes nest, as `encoder/attention`. It is a decorator of functions too.

    >>> import numpy as np, ge2
    >>> @named_scope("encoder")
    ... def f(x):
    ...     with named_scope("norm"):
    ...         return x / np.sqrt(np.sum(x * x))
    >>> ge2.jit(f).lower(np.ones(3)).kernels[0].lines
    ('<doctest ge2.base.source.named_scope[1]>:4 in f (encoder/norm)',)
    """
    outer = _scope.get()
    token = _scope.set(f"{outer}/{name}" if outer else name)
    try:
        yield
    finally:
        _scope.reset(token)


def of_function(f: object) -> Source | None:
    """Where a Python function is defined."""
    code = getattr(f, "__code__", None)
    return Source(code, 0) if isinstance(code, CodeType) else None
