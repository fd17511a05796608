"""Operations that are not ours: what a user's class inherits, and the register of their names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import count
from typing import Any, ClassVar

import numpy as np

from ge2.base.dtypes import PYTHON
from ge2.base.errors import ArgumentError, NoRuleError, TypeRuleError
from ge2.base.record import record
from ge2.base.source import here
from ge2.ir import ArrayType, Axis, Batched, Evaluate, Op, Value, current, type_of
from ge2.ops import OWN, REPLACED, TABLE
from ge2.ops.shape import BroadcastInDim

BUILT_IN = frozenset(TABLE)
EDITIONS = count(1)  # an elementwise operation that is defined again is another
WORD = re.compile(r"[a-z_][a-z0-9_]*")
RESERVED = frozenset(("threads", "y"))


class Own(Op):
    """An operation of your own: fields are its parameters, methods its rules. Decorate it with `op`.

    `infer` and `reference` are needed. `vjp`, `jvp` and `batch` are as for the operations of ge2; without
    `jvp` forward mode is the transpose of `vjp`; without `batch`, vmap
    repeats the operation for each place of the axis (`in_front` does better where leading axes are alike).

    `c` is the body of a C function, which `jit` compiles into its program. In it the operands are
    pointers to their elements, in C order, under the names that the parameters of `reference` have; those
    of `*xs` are `xs0`, `xs1`, ...; the result is `y`, or `y0`, `y1`, ... of several. For an array `x`
    there are also the type `x_t` of its elements, `x_shape[]`, `x_ndim` and `x_size`. The fields that are
    numbers have their names; `threads` is how many threads may be used. Half types are handed over as
    float32, and results rounded to them. `$t` stands for the dtype of the first operand as our functions
    spell it (`ge2_tanh_$t`), `$T` for its C type. `helpers` stands before the function, once. Without
    `c`, the reference runs.

    `cuda` is the same body for one thread of many; it is kept, and not run yet.
    """

    __slots__ = ()
    c: ClassVar[str] = ""
    cuda: ClassVar[str] = ""
    helpers: ClassVar[str] = ""
    operands: ClassVar[tuple[str, ...]] = ()

    def __call__(self, *args: Any) -> Any:
        """On real arrays, what the reference gives is compared with the type rule."""
        values = [x if hasattr(x, "dtype") or type(x) in PYTHON else np.asarray(x) for x in args]
        if not isinstance(current(), Evaluate):
            return super().__call__(*values)
        types = self.infer(*map(type_of, values))
        ys = super().__call__(*values)
        judge(self, types, ys)
        return ys

    def batch(self, xs: Sequence[Value], axes: Sequence[Axis], size: int) -> Batched:
        """The operation for each place of the axis, one after another."""
        rows = [self._at(xs, axes, i) for i in range(size)]
        if not rows:
            shapes = [
                x.shape if a is None else x.shape[:a] + x.shape[a + 1 :]
                for x, a in zip(xs, axes, strict=True)
            ]
            types = self.infer(*(ArrayType(s, x.dtype) for s, x in zip(shapes, xs, strict=True)))
            return [BroadcastInDim((0, *t.shape), ())(t.dtype.type(0)) for t in types], [0] * len(types)
        stacked = [[y.reshaped((1, *y.shape)) for y in column] for column in zip(*rows, strict=True)]
        return [first.joined(rest, 0) for first, *rest in stacked], [0] * len(stacked)

    def _at(self, xs: Sequence[Value], axes: Sequence[Axis], i: int) -> tuple[Value, ...]:
        ys = self(*(x if a is None else taken(x, a, i) for x, a in zip(xs, axes, strict=True)))
        return ys if self.several else (ys,)


def taken(x: Value, axis: int, i: int) -> Value:
    """One place of an axis."""
    n = x.ndim
    start = tuple(i if a == axis else 0 for a in range(n))
    stop = tuple(i + 1 if a == axis else size for a, size in enumerate(x.shape))
    return x.sliced(start, stop, (1,) * n).reshaped(x.shape[:axis] + x.shape[axis + 1 :])


def in_front(op: Op, xs: Sequence[Value], axes: Sequence[Axis], size: int) -> Batched:
    """The `batch` of an operation that treats its leading axes alike: the new axis becomes the first.

    Write `batch = ge2.extend.in_front` in its class.
    """
    given = [
        x.spread((size, *x.shape), tuple(range(1, x.ndim + 1))) if a is None else x.move_axis(a, 0)
        for x, a in zip(xs, axes, strict=True)
    ]
    ys = op(*given)
    ys = ys if op.several else (ys,)
    return ys, [0] * len(ys)


def judge(op: Op, types: Sequence[ArrayType], ys: Any) -> None:
    """TypeRuleError if the reference gave another type than the type rule says."""
    found = ys if op.several else (ys,)
    if len(found) != len(types):
        what = f"the reference of {op.name} returns {len(found)} results; its type rule has {len(types)}"
        raise TypeRuleError(what, fix="several = True in its class, for a tuple of results")
    for t, y in zip(types, found, strict=True):
        got = type_of(y)
        if got.shape != t.shape or (got.dtype != t.dtype and not t.weak):
            what = f"the reference of {op.name} returns {got}; its type rule says {t}"
            raise TypeRuleError(what, fix=f"y.astype({t.dtype}) in the reference, or another type rule")


# -------------------------------------------------------------------------------------------- registering


def op(cls: type[Own]) -> type[Own]:
    """Makes a class of yours an operation: a frozen record of its parameters, known to the text by its name.

    Defined again under its name (in a notebook, say) it takes the place of the old one. ArgumentError if a
    rule is lacking or the name is one of ge2's own.

    >>> import numpy as np, ge2
    >>> @op
    ... class Shift(Own):
    ...     by: float
    ...     name = "shift"
    ...     def infer(self, x): return (x,)
    ...     def reference(self, x): return x + self.by
    ...     c = "for (int64_t i = 0; i < x_size; i++) y[i] = x[i] + by;"
    >>> ge2.jit(Shift(2.0))(np.zeros(2))
    array([2., 2.])
    """
    check_class(cls)
    found = list(inspect.signature(cls.reference).parameters.values())[1:]
    made = record(cls)
    made.operands = tuple(f"*{p.name}" if p.kind is p.VAR_POSITIONAL else p.name for p in found)
    if made.c:
        check_operands(made)
    register(made.name, made)
    return made


def check_class(cls: Any) -> None:
    """That all is there that an operation needs."""
    if not (isinstance(cls, type) and issubclass(cls, Own)):
        what = "ge2.extend.op decorates a class"
        raise ArgumentError(what, where=here(), fix="class F(ge2.extend.Op): ...")
    check_name(getattr(cls, "name", None), cls.__name__)
    for rule in ("infer", "reference"):
        if getattr(cls, rule) is getattr(Op, rule):
            raise NoRuleError(f"{cls.__name__} has no {rule}", where=here(), fix=f"def {rule}(self, x): ...")
    for word in ("c", "cuda", "helpers"):
        if not isinstance(getattr(cls, word), str):
            what = f"{word} of {cls.__name__} is a {type(getattr(cls, word)).__name__}"
            raise ArgumentError(what, where=here(), fix="a text")


def check_operands(made: type[Own]) -> None:
    """That each name means one thing in C."""
    others = {f.name for f in fields(made)} | RESERVED  # type: ignore[arg-type]
    for name in made.operands:
        if name in others or re.fullmatch(r"y\d+", name):
            what = f"the reference of {made.__name__} has an operand {name}, which means another thing in C"
            raise ArgumentError(what, where=here(), fix="another name")


def check_name(name: Any, whose: str) -> None:
    if not isinstance(name, str) or not WORD.fullmatch(name):
        what = f"{whose} has no name of small letters, digits and _: {name!r}"
        near = whose.lower()
        raise ArgumentError(what, where=here(), fix=repr(f"my_{near}" if near in BUILT_IN else near))
    if name in BUILT_IN:
        raise ArgumentError(f"{name} is an operation of ge2", where=here(), fix=f"my_{name}")


def register(name: str, make: Callable[..., Op]) -> None:
    """The text of graphs knows the operation from now on."""
    if name in OWN:
        REPLACED.add(name)
    OWN[name] = make
