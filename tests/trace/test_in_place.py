"""Changing arrays in place, through any view: NumPy's result, or a clear error; never another result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ge2.base.errors import InPlaceError
from ge2.transforms import grad, make_jaxpr

Program = list[tuple[int, int, int]]  # a step, and the variables that are its a and b

# fmt: off
MAKE: dict[str, Callable[[Any, Any], Any]] = {
    "a.copy()":            lambda a, b: a.copy(),
    "a.copy('K')":         lambda a, b: a.copy("K"),
    "np.copy(a)":          lambda a, b: np.copy(a),
    "a * 2":               lambda a, b: a * 2,
    "a.T + 1":             lambda a, b: a.T + 1,
    "np.zeros_like(a)":    lambda a, b: np.zeros_like(a),
    "np.where(a > 1, a, 0)": lambda a, b: np.where(a > 1, a, 0),
    "a.astype(a.dtype)":   lambda a, b: a.astype(a.dtype),
    "np.concatenate([a])": lambda a, b: np.concatenate([a]),
    "a.flatten()":         lambda a, b: a.flatten(),
    "a[[0, -1]]":          lambda a, b: a[[0, -1]],
    "np.roll(a, 0)":       lambda a, b: np.roll(a, 0),
    "np.tile(a, 1)":       lambda a, b: np.tile(a, 1),
    "np.round(a)":         lambda a, b: np.round(a),
    "a.cumsum()":          lambda a, b: a.cumsum(),
    "np.sum(a, axis=())":  lambda a, b: np.sum(a, axis=()),
    "np.clip(a, None, 9)": lambda a, b: np.clip(a, None, 9),
}
VIEW: dict[str, Callable[[Any, Any], Any]] = {
    "a":                   lambda a, b: a,
    "a[:]":                lambda a, b: a[:],
    "a.T":                 lambda a, b: a.T,
    "a[1:]":               lambda a, b: a[1:],
    "a[::-1]":             lambda a, b: a[::-1],
    "a[::2]":              lambda a, b: a[::2],
    "a[0]":                lambda a, b: a[0],
    "a[-1, ...]":          lambda a, b: a[-1, ...],
    "a[..., 0]":           lambda a, b: a[..., 0],
    "a[..., 1:]":          lambda a, b: a[..., 1:],
    "a[None]":             lambda a, b: a[None],
    "a[:, None]":          lambda a, b: a[:, None],
    "a.reshape(-1)":       lambda a, b: a.reshape(-1),
    "a.reshape(3, -1)":    lambda a, b: a.reshape(3, -1),
    "a.reshape(1, *a.shape)": lambda a, b: a.reshape(1, *a.shape),
    "np.reshape(a=a, shape=-1)": lambda a, b: np.reshape(a, shape=(2, -1)),
    "a.ravel()":           lambda a, b: a.ravel(),
    "np.squeeze(a)":       lambda a, b: np.squeeze(a),
    "np.expand_dims(a, 0)": lambda a, b: np.expand_dims(a, 0),
    "np.flip(a, 0)":       lambda a, b: np.flip(a, 0),
    "np.flip(m=a)":        lambda a, b: np.flip(m=a),
    "np.rot90(a)":         lambda a, b: np.rot90(a),
    "np.rot90(a, k=2)":    lambda a, b: np.rot90(a, k=2),
    "np.swapaxes(a, 0, -1)": lambda a, b: np.swapaxes(a, 0, -1),
    "np.moveaxis(a, 0, -1)": lambda a, b: np.moveaxis(a, 0, -1),
    "np.matrix_transpose(a)": lambda a, b: np.matrix_transpose(a),
    "np.atleast_2d(a)":    lambda a, b: np.atleast_2d(a),
    "np.atleast_3d(a)":    lambda a, b: np.atleast_3d(a),
    "np.split(a, len(a))[0]": lambda a, b: np.split(a, len(a))[0],
    "np.array_split(a, 2)[1]": lambda a, b: np.array_split(a, 2)[1],
    "np.hsplit(a, [1])[1]": lambda a, b: np.hsplit(a, [1])[1],
    "np.unstack(a)[0]":    lambda a, b: np.unstack(a)[0],
    "np.broadcast_to(a, (2, *a.shape))": lambda a, b: np.broadcast_to(a, (2, *a.shape)),
    "np.diagonal(a)":      lambda a, b: np.diagonal(a),
    "np.diag(a)":          lambda a, b: np.diag(a),
    "a.real":              lambda a, b: a.real,
    "next(iter(a))":       lambda a, b: next(iter(a)),
    "list(a)[-1]":         lambda a, b: list(a)[-1],
    "np.einsum('ij->ji', a)": lambda a, b: np.einsum("ij->ji", a),
}
# fmt: on


def iadd(a: Any, b: Any) -> Any:
    a += b
    return a


def imul(a: Any, b: Any) -> Any:
    a *= 2
    return a


def isub_reversed(a: Any, b: Any) -> Any:
    a -= a[::-1]
    return a


def imatmul(a: Any, b: Any) -> Any:
    a @= np.ones((a.shape[-1],) * 2)
    return a


def ipow(a: Any, b: Any) -> Any:
    a **= 2
    a //= 3
    a %= 5
    return a


def running(a: Any, b: Any) -> Any:
    if a.shape != (b.size,):
        raise ValueError("NumPy would write past the end of out")
    np.cumsum(b, out=a)
    return a


def set_item(key: Any, value: Any = None) -> Callable[[Any, Any], Any]:
    def step(a: Any, b: Any) -> Any:
        a[key] = b if value is None else value
        return a

    return step


def scale_item(key: Any) -> Callable[[Any, Any], Any]:
    def step(a: Any, b: Any) -> Any:
        a[key] *= 3
        return a

    return step


def method(name: str, *args: Any) -> Callable[[Any, Any], Any]:
    def step(a: Any, b: Any) -> Any:
        getattr(a, name)(*args)
        return a

    return step


def into(f: Callable[..., Any], *args: Any, **more: Any) -> Callable[[Any, Any], Any]:
    def step(a: Any, b: Any) -> Any:
        f(*[{"a": a, "b": b}.get(x, x) if isinstance(x, str) else x for x in args], **more, out=a)
        return a

    return step


# fmt: off
WRITE: dict[str, Callable[[Any, Any], Any]] = {
    "a += b":              iadd,
    "a *= 2":              imul,
    "a -= a[::-1]":        isub_reversed,
    "a **= 2; //=; %=":    ipow,
    "a @= ones":           imatmul,
    "a[0] = 7":            set_item(0, 7.5),
    "a[...] = b":          set_item(...),
    "a[1:] = b":           set_item(slice(1, None)),
    "a[::-1] = b":         set_item(slice(None, None, -1)),
    "a[[0, 0]] = b":       set_item([0, 0]),
    "a[:, 0] = 4":         set_item((slice(None), 0), 4.0),
    "a[1:] *= 3":          scale_item(slice(1, None)),
    "a[[0, 1, 0]] *= 3":   scale_item([0, 1, 0]),
    "a[..., 0] *= 3":      scale_item((..., 0)),
    "a.sort()":            method("sort"),
    "a.fill(2)":           method("fill", 2),
    "np.add(a, b, out=a)": into(np.add, "a", "b"),
    "np.sin(b, out=a)":    into(np.sin, "b"),
    "np.multiply(b, b, out=a, where)": into(np.multiply, "b", "b", where=np.array([True, False, True])),
    "np.sum(b, 0, out=a)": into(np.sum, "b", (0,)),
    "np.cumsum(b, out=a)": running,
    "np.copyto(a, b)":     lambda a, b: (np.copyto(a, b), a)[1],
    "np.put(a, [0], 5)":   lambda a, b: (np.put(a, [0], 5.0), a)[1],
    "np.fill_diagonal(a)": lambda a, b: (np.fill_diagonal(a.reshape(*a.shape[:2]), 9.0), a)[1],
}
# fmt: on
STEPS = [*MAKE.items(), *VIEW.items(), *WRITE.items()]


def run(program: Program, args: list[Any], only: list[bool] | None = None) -> tuple[list[Any], list[bool]]:
    """All variables after the steps, and which steps NumPy took; `only` says which to take."""
    values = [x + 0 for x in args]  # of the layout of the arguments, which a trace does not know
    done = []
    for k, (step, i, j) in enumerate(program):
        if only is not None and not only[k]:
            continue
        try:
            y = STEPS[step][1](values[i % len(values)], values[j % len(values)])
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError):
            if only is not None:
                raise
            done.append(False)
            continue
        done.append(True)
        if step < len(MAKE) + len(VIEW):
            values.append(y)
    return values, done


def numpy_run(program: Program, args: list[Any]) -> tuple[list[Any], list[bool]]:
    with np.errstate(all="ignore"):
        return run(program, args)


@settings(max_examples=400)
@given(st.lists(st.tuples(st.integers(0, len(STEPS) - 1), st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=8))
def test_programs_that_change_arrays_give_what_numpy_gives(program: Any) -> None:
    args = [np.arange(6.0).reshape(2, 3) - 1, np.array([3.0, 1.0, 2.0]), np.arange(9.0).reshape(3, 3)]
    want, done = numpy_run(program, args)
    text = "; ".join(f"{STEPS[s][0]} with {i}, {j}" for (s, i, j), d in zip(program, done, strict=True) if d)
    try:
        closed = make_jaxpr(lambda *xs: tuple(run(program, list(xs), done)[0]))(*args)
    except InPlaceError:
        return
    turned = numpy_run(program, [np.asfortranarray(x) for x in args])
    for found in (want, turned[0]) if turned[1] == done else (want,):
        for g, w in zip(closed(*args), found, strict=True):
            np.testing.assert_array_equal(g, w, err_msg=text, strict=True)
