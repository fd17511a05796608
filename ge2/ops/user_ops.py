"""Operations that are not ours: what a user's class inherits, and the register of their names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from itertools import count
from types import MappingProxyType
from typing import Any, ClassVar, final

import numpy as np

from ge2.base.arrays import PYTHON
from ge2.base.errors import ArgumentError, NoRuleError, TypeRuleError
from ge2.base.record import finished, record
from ge2.base.source import Source, here, pattern
from ge2.ir import (
    ArrayType,
    Axes,
    Batched,
    Eqn,
    Evaluate,
    Graph,
    Op,
    Values,
    Var,
    current,
    type_of,
)
from ge2.ops import OWN, REPLACED, TABLE
from ge2.ops.graphs.control import to_front, with_axis
from ge2.ops.graphs.loops import ScanLoop

BUILT_IN = frozenset(TABLE)
EDITIONS = count(1)  # an elementwise operation that is defined again is another
WORD = pattern(r"[a-z_][a-z0-9_]*")
RESERVED = frozenset(("threads", "y"))


@final
@record
class Foreign:
    """A user's kernel in one language, where that is more than one text.

    `texts`: bodies that run one after another, each launched as `launches` says; `workspace`: bytes
    that they share. In place of them `stock`, which writes the kernels of ge2 by a template of the
    user's; or `function` of a `library`, or of a prebuilt `binary`.
    """

    texts: tuple[str, ...] = ()
    launches: tuple[Any, ...] = (None,)
    helpers: str = ""
    workspace: int = 0
    stock: Callable[[Any, Any], Any] | None = None
    library: str = ""
    binary: str = ""
    function: str = ""


class Own(Op):
    """An operation of your own: fields are its parameters, methods its rules.

    Decorate it with `op`.

    `infer` and `reference` are needed. `vjp`, `jvp` and `batch` are as for the operations of ge2;
    without `jvp` forward mode is the transpose of `vjp`; without `batch`, vmap is a loop over the
    axis (`in_front` does better where leading axes are alike).

    `c` is the body of a C function, which `jit` compiles into its program. In it the operands are
    pointers to their elements, in C order, under the names that the parameters of `reference` have;
    those of `*xs` are `xs0`, `xs1`, ...; the result is `y`, or `y0`, `y1`, ... of several. For an
    array `x` there are also the type `x_t` of its elements, `x_shape[]`, `x_ndim` and `x_size`. The
    fields that are numbers have their names; `threads` is how many threads may be used. Half types
    are passed as float32, and results rounded to them. `$t` stands for the dtype of the first
    operand as our functions spell it (`ge2_tanh_$t`), `$T` for its C type. `helpers` stands before
    the function, once. Without `c`, the reference runs.

    `cuda` is the body of a CUDA kernel, which is compiled by NVRTC and launched where `jit` runs on
    a GPU: what one thread of many does. All names are those of `c`, with the same types, but for
    `threads`: how many threads there are in all, of which this is number `thread`. There is one for
    each element of the (first) result, and those beyond the last return before the text begins, so
    `y[thread] = ...` is right; `launch` says otherwise. Functions of `helpers` need no
    `__device__`. Without `cuda`, the reference runs there.
    """

    __slots__ = ()
    c: ClassVar[str] = ""
    cuda: ClassVar[str] = ""
    helpers: ClassVar[str] = ""
    operands: ClassVar[tuple[str, ...]] = ()
    defined: ClassVar[Source | None] = None  # where the class stands in the user's program
    # of texts that are files: each, and its path
    files: ClassVar[tuple[tuple[str, str], ...]] = ()
    foreign: ClassVar[Mapping[str, Foreign]] = MappingProxyType({})  # by language

    def __call__(self, *args: Any) -> Any:
        """On real arrays, what the reference gives is compared with the type rule."""
        values = [x if hasattr(x, "dtype") or type(x) in PYTHON else np.asarray(x) for x in args]
        if not isinstance(current(), Evaluate):
            return super().__call__(*values)
        types = self.infer(*map(type_of, values))
        ys = super().__call__(*values)
        judge(self, types, ys)
        return ys

    def launch(self, *types: ArrayType) -> Any:
        """The launch of `cuda` on operands of these types: `(blocks, threads)`, or those and the
        bytes of dynamic shared memory. Blocks, and the threads of each, are a number or a tuple of
        up to three. All of them run the text, whatever their number. None: one for each element of
        the result.
        """
        return None

    def kernel_in(self, language: str, *types: ArrayType) -> Foreign:
        """The kernel that it has in a language."""
        if language in self.foreign:
            return self.foreign[language]
        own = self.c if language == "c" else self.cuda
        launch = self.launch(*types) if language == "cuda" else None
        return Foreign((own,), (launch,), self.helpers)

    def operations(self, *types: ArrayType) -> int:
        """Operations of a call on operands of these types, for reports: one for each element of the
        results unless a class says otherwise.
        """
        return sum(t.size for t in self.infer(*types))

    def batch(self, xs: Values, axes: Axes, size: int) -> Batched:
        """A loop that applies the operation at each place of the axis."""
        moved = to_front(xs, axes)
        own = [
            x.type if a is None else x.type.with_shape(x.shape[1:])
            for x, a in zip(moved, axes, strict=True)
        ]
        inputs, outs = tuple(map(Var, own)), tuple(map(Var, self.infer(*own)))
        shared = [i for i, a in enumerate(axes) if a is None]
        order = [*shared, *(i for i, a in enumerate(axes) if a is not None)]
        body = Graph(tuple(inputs[i] for i in order), (Eqn(self, inputs, outs),), outs)
        return ScanLoop(body, size, len(shared), 0)(*(moved[i] for i in order)), [0] * len(outs)


def in_front(op: Op, xs: Values, axes: Axes, size: int) -> Batched:
    """The `batch` of an operation that treats its leading axes alike:
    the new axis becomes the first.

    Write `batch = ge2.extend.in_front` in its class.
    """
    ys = op(*with_axis(xs, axes, (True,) * len(xs), size))
    ys = ys if op.several else (ys,)
    return ys, [0] * len(ys)


def checked(rule: Callable[..., Any]) -> Callable[..., tuple[ArrayType, ...]]:
    """A type rule that is sure to return types."""

    @wraps(rule)
    def infer(self: Op, *types: ArrayType) -> tuple[ArrayType, ...]:
        found = rule(self, *types)
        if isinstance(found, tuple) and found and all(isinstance(t, ArrayType) for t in found):
            return found
        got = (
            ", ".join(type(t).__name__ for t in found)
            if isinstance(found, tuple)
            else type(found).__name__
        )
        what = f"infer of {self.name} is to return a tuple of types; it returned {got or 'none'}"
        raise TypeRuleError(what, where=here(), fix="return (x,)")

    return infer


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
            raise TypeRuleError(
                what, fix=f"y.astype({t.dtype}) in the reference, or another type rule"
            )


# -------------------------------------------------------------------------------------- registering


def op(cls: type[Own]) -> type[Own]:
    """Makes a class of yours an operation: a frozen record of its parameters,
    known to the text by its name.

    Defined again under its name (in a notebook, say) it takes the place of the old one.
    ArgumentError if a rule is lacking or the name is one of ge2's own.

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
    made = finished(record(cls))
    made.infer = checked(made.infer)  # type: ignore[method-assign]
    made.operands = tuple(f"*{p.name}" if p.kind is p.VAR_POSITIONAL else p.name for p in found)
    made.defined = here()
    if made.c or made.cuda:
        check_operands(made)
    register(made.name, made)
    return made


def check_class(cls: Any) -> None:
    """Refuses a class that lacks what an operation needs."""
    if not (isinstance(cls, type) and issubclass(cls, Own)):
        what = "ge2.extend.op decorates a class"
        raise ArgumentError(what, where=here(), fix="class F(ge2.extend.Op): ...")
    check_name(getattr(cls, "name", None), cls.__name__)
    for rule in ("infer", "reference"):
        if getattr(cls, rule) is getattr(Op, rule):
            raise NoRuleError(
                f"{cls.__name__} has no {rule}", where=here(), fix=f"def {rule}(self, x): ..."
            )
    for word in ("c", "cuda", "helpers"):
        if not isinstance(getattr(cls, word), str):
            what = f"{word} of {cls.__name__} is a {type(getattr(cls, word)).__name__}"
            raise ArgumentError(what, where=here(), fix="a text")


def check_operands(made: type[Own]) -> None:
    """Refuses a name that means two things in C, or in CUDA."""
    others = {f.name for f in fields(made)} | RESERVED | ({"thread"} if made.cuda else set())  # type: ignore[arg-type]
    for name in made.operands:
        if name in others or re.fullmatch(r"y\d+", name):
            what = f"the reference of {made.__name__} has an operand {name}, which means another thing in C"
            raise ArgumentError(what, where=here(), fix="another name")


def check_name(name: Any, whose: str) -> None:
    if not isinstance(name, str) or not WORD.fullmatch(name):
        what = f"{whose} has no name of small letters, digits and _: {name!r}"
        near = whose.lower()
        raise ArgumentError(
            what, where=here(), fix=repr(f"my_{near}" if near in BUILT_IN else near)
        )
    if name in BUILT_IN:
        raise ArgumentError(f"{name} is an operation of ge2", where=here(), fix=f"my_{name}")


def register(name: str, make: Callable[..., Op]) -> None:
    """The text of graphs knows the operation from now on."""
    if name in OWN:
        REPLACED.add(name)
    OWN[name] = make
