"""Things of modules that may not be imported: what nobody has imported, no value is of."""

from __future__ import annotations

import sys
from typing import Any


def loaded(module: str, *names: str) -> tuple[Any, ...]:
    """What a module has under these names; nothing if nobody has imported it, which takes its time.

    >>> isinstance(1, loaded("numpy.no_such_module", "MaskedArray")), loaded("sys", "path") == (sys.path,)
    (False, True)
    """
    found = sys.modules.get(module)
    return tuple(getattr(found, name) for name in names if hasattr(found, name))


def is_masked(x: object) -> bool:
    """Whether it is one of NumPy's masked arrays."""
    return isinstance(x, loaded("numpy.ma", "MaskedArray"))


def as_array(x: object, name: str) -> str:
    """The code that makes an array of an object that is `name` in a call;
    nothing if no plain way does.

    >>> from fractions import Fraction
    >>> as_array(Fraction(1, 2), "x"), as_array({1}, "x")
    ('float(x)', 'np.array(sorted(x))')
    """
    cls = type(x)
    if hasattr(cls, "to_numpy"):  # a DataFrame, Series or Index
        return f"{name}.to_numpy()"
    if hasattr(cls, "__float__") and not hasattr(cls, "dtype"):
        return f"float({name})"
    return f"np.array(sorted({name}))" if isinstance(x, set | frozenset) else ""


def numpy_generators() -> tuple[type, ...]:
    """The classes of NumPy's generators of random numbers, if there can be any."""
    return loaded("numpy.random", "Generator", "RandomState")
