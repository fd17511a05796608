"""The helpers of this package: dtypes, and checks of arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, TypeVar

import numpy as np

from ge2.base.dtypes import COMPLEX, FLOAT32, FLOATS, HALF, known, short
from ge2.base.errors import ArgumentError, InputError, ShapeError
from ge2.base.source import here

F = TypeVar("F", bound=Callable[..., Any])
Axes = int | tuple[int, ...] | None


def array(x: Any) -> Any:
    """The argument itself if it is an array (traced, NumPy's or CuPy's), else NumPy's array of it."""
    return x if hasattr(x, "dtype") else np.asarray(x)


def wide(x: Any) -> Any:
    """The values in which a function of x is computed: float32 for half types."""
    x = array(x)
    return x.astype(np.float32) if x.dtype in HALF else x


def rounds_once(f: F) -> F:
    """A function of one array that computes half types in float32 and rounds once, at the end."""

    @wraps(f)
    def function(x: Any, *args: Any, **kwargs: Any) -> Any:
        x = array(x)
        if x.dtype not in HALF:
            return f(x, *args, **kwargs)
        return f(x.astype(np.float32), *args, **kwargs).astype(x.dtype)

    return function  # type: ignore[return-value]


def described(x: Any) -> str:
    """The type of an array as in a graph's text, f32[2,3].

    >>> described(np.ones((2, 3), np.float32))
    'f32[2,3]'
    """
    x = array(x)
    return f"{short(x.dtype) if known(x.dtype) else x.dtype}[{','.join(map(str, x.shape))}]"


def check_floats(name: str, **arrays: Any) -> None:
    """InputError for an argument that has no floats."""
    for role, x in arrays.items():
        if array(x).dtype not in FLOATS | COMPLEX:
            what = f"{name}: {role} holds floats; got {described(x)}"
            raise InputError(what, where=here(), fix=f"{role}.astype(np.float32)")


def check_same_shape(name: str, a: Any, b: Any, roles: tuple[str, str]) -> None:
    """ShapeError for two arrays of which one would be repeated in silence."""
    if array(a).shape != array(b).shape:
        what = (
            f"{name}: {roles[0]} and {roles[1]} have one shape; got {described(a)}, {described(b)}"
        )
        as_many = array(a).size == array(b).size
        fix = f"{roles[1]}.reshape({roles[0]}.shape)"
        fix = fix if as_many else f"np.broadcast_to({roles[1]}, {roles[0]}.shape), if that is meant"
        raise ShapeError(what, where=here(), fix=fix)


def check_last(module: Any, x: Any, weight: Any, axis: int = 0, method: str = "") -> None:
    """ShapeError for an array whose last axis has another size than that axis of a weight."""
    shape, size, name = (
        array(x).shape,
        size_of(module, weight, axis),
        type(module).__name__ + method,
    )
    if not shape or shape[-1] != size:
        got = described(x)
        what = f"{name} takes arrays whose last axis has {size} elements; got {got}"
        raise ShapeError(what, where=here(), fix=f"an input of shape (..., {size})")


def size_of(module: Any, weight: Any, axis: int = 0) -> int:
    """The size of a weight along an axis. InputError for a module that was made of numbers, as in
    torch, where it takes arrays.
    """
    try:
        return int(weight.shape[axis])
    except (AttributeError, IndexError):
        what = f"{type(module).__name__} is made of arrays, and was given {weight!r:.60}"
        raise InputError(what, where=here(), fix=by_init(type(module))) from None


def by_init(kind: Any) -> str:
    """The call that makes a module of that kind, with the names of what it needs."""
    needed = (p.name for p in signature(kind.init).parameters.values() if p.default is p.empty)
    return f"{kind.__name__}.init({', '.join(n for n in needed if n != 'options')})"


def check_rate(name: str, rate: float, key: Any) -> None:
    """ArgumentError for a rate of dropout that is none, InputError for one without a key."""
    if not 0 <= rate < 1:
        what = f"{name}: a rate is in [0, 1); got {rate!r:.60}"
        raise ArgumentError(what, where=here(), fix="rate=0.1")
    if rate and key is None:
        what = f"{name} of rate {rate} is random, and was given no key"
        fix = "key=ge2.random.fold_in(key, step), or training=False"
        raise InputError(what, where=here(), fix=fix)


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """ArgumentError for a word that is not one of those that there are."""
    if value not in choices:
        what = f"{name} is one of {', '.join(map(repr, choices))}; got {value!r:.60}"
        raise ArgumentError(what, where=here(), fix=repr(choices[0]))


def same_dtype(x: Any) -> np.dtype[Any]:
    """The dtype in which a loss of x is returned: float32 for half types."""
    dtype = array(x).dtype
    return FLOAT32 if dtype in HALF else dtype
