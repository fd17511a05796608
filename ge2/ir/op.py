"""The type of an array, and an operation: one frozen value that holds its parameters and all of its rules."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, final

import numpy as np

from ge2.base.arrays import PYTHON, on_gpu, short
from ge2.base.errors import InputError, NoRuleError
from ge2.base.pytree import register_leaf
from ge2.base.record import outlines, record
from ge2.base.source import here

if TYPE_CHECKING:
    from ge2.ir.graph import Graph


# -------- The type of an array: what is known of it before it is computed.


Dims = tuple[int, ...]


class Shaped:
    """The attributes that follow from a shape."""

    __slots__ = ()
    shape: Dims

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@record
class ArrayType(Shaped):
    """Shape, dtype, and whether it is weak: a Python number, whose dtype yields to any array's.

    >>> print(ArrayType((2, 3), np.dtype("float32")))
    f32[2,3]
    """

    shape: Dims
    dtype: np.dtype
    weak: bool = False

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def with_shape(self, shape: Dims) -> ArrayType:
        return ArrayType(shape, self.dtype)

    def with_dtype(self, dtype: np.dtype) -> ArrayType:
        return ArrayType(self.shape, dtype)

    def __str__(self) -> str:
        return f"{'~' if self.weak else ''}{short(self.dtype)}[{','.join(map(str, self.shape))}]"


@register_leaf
@record
class ShapeDtypeStruct(Shaped):
    """The shape and dtype of an array that is not there; with `weak_type`, of a Python number.

    InputError for a shape that is no sequence of sizes, or a dtype that is none.

    >>> s = ShapeDtypeStruct((2, 3), "float32")
    >>> s, s.ndim, s.size
    (ShapeDtypeStruct(shape=(2, 3), dtype=dtype('float32')), 2, 6)
    """

    shape: Dims
    dtype: Any
    weak_type: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", checked_shape(self.shape))
        object.__setattr__(self, "dtype", checked_dtype(self.dtype))

    @property
    def type(self) -> ArrayType:
        return ArrayType(self.shape, self.dtype, self.weak_type)

    def __dlpack__(self) -> Any:
        raise BufferError("a ShapeDtypeStruct has no elements")


def no_struct(what: str) -> InputError:
    return InputError(f"the {what}", where=here(), fix="ge2.ShapeDtypeStruct((2, 3), np.float32)")


def checked_shape(shape: Any) -> Dims:
    sizes = tuple(shape) if isinstance(shape, Iterable) and not isinstance(shape, str) else (None,)
    if not all(hasattr(n, "__index__") and n >= 0 for n in sizes):
        raise no_struct(f"shape of a ShapeDtypeStruct is a tuple of sizes; got {shape!r}")
    return tuple(n.__index__() for n in sizes)


def checked_dtype(dtype: Any) -> np.dtype:
    found: np.dtype | None = None
    with suppress(TypeError):
        found = None if dtype is None else np.dtype(dtype)
    if found is None:
        raise no_struct(f"dtype of a ShapeDtypeStruct is a dtype or its name; got {dtype!r}")
    return found


_scalars: dict[type, ArrayType] = {t: ArrayType((), d, weak=True) for t, d in PYTHON.items()}


def is_traced(x: Any) -> bool:
    """True of a value of a trace, which has a cell in place of elements."""
    return hasattr(x, "cell")


def type_of(value: Any) -> ArrayType:
    """The type of a traced value, an array, a NumPy scalar or a Python number."""
    weak = _scalars.get(type(value))
    if weak is not None:
        return weak
    own = getattr(value, "type", None)
    if isinstance(own, ArrayType):
        return own
    if isinstance(value, (np.ndarray, np.generic)):
        return ArrayType(value.shape, value.dtype)
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(shape, tuple) and isinstance(dtype, np.dtype):
        return ArrayType(shape, dtype)
    raise InputError(
        f"{type(value).__name__} is neither an array nor a number", fix="np.asarray(x)"
    )


# ------------------------------------------------------------------------------------------- value
# The vocabulary of rules: what a derivative or batching rule may ask of an array.
#
# Rules call methods of the values they are given and import no other operation, so no two operation
# files need each other. The operators broadcast and promote as NumPy's do.


Number = bool | int | float | complex
Pair = tuple[Dims, Dims]


class Value(Protocol):
    @property
    def type(self) -> ArrayType: ...
    @property
    def shape(self) -> Dims: ...
    @property
    def ndim(self) -> int: ...
    @property
    def dtype(self) -> np.dtype: ...

    def __neg__(self) -> Value: ...
    def __invert__(self) -> Value: ...
    def __add__(self, other: Any) -> Value: ...
    def __radd__(self, other: Any) -> Value: ...
    def __sub__(self, other: Any) -> Value: ...
    def __rsub__(self, other: Any) -> Value: ...
    def __mul__(self, other: Any) -> Value: ...
    def __rmul__(self, other: Any) -> Value: ...
    def __truediv__(self, other: Any) -> Value: ...
    def __rtruediv__(self, other: Any) -> Value: ...
    def __pow__(self, other: Any) -> Value: ...
    def __and__(self, other: Any) -> Value: ...
    def __or__(self, other: Any) -> Value: ...
    def __lt__(self, other: Any) -> Value: ...
    def __le__(self, other: Any) -> Value: ...
    def __gt__(self, other: Any) -> Value: ...
    def __ge__(self, other: Any) -> Value: ...

    # elementwise
    def same(self, other: Any) -> Value: ...  # ==, as bool
    def differs(self, other: Any) -> Value: ...  # !=, as bool
    def select(self, a: Any, b: Any) -> Value: ...  # self is a bool mask: a where it holds, else b
    # the elementwise op of this name, e.g. "sin"
    def pointwise(self, name: str, *others: Any) -> Value: ...
    def cast(self, dtype: np.dtype, weak: bool = False) -> Value: ...
    def conj(self) -> Value: ...  # the value itself where it is real
    def zeros(self) -> Value: ...  # of this shape and dtype
    def ones(self) -> Value: ...

    # reductions over the given axes, which leave the shape
    def fold_sum(self, axes: Dims) -> Value: ...
    def fold_prod(self, axes: Dims) -> Value: ...
    def fold_max(self, axes: Dims) -> Value: ...
    def fold_or(self, axes: Dims) -> Value: ...

    # shape
    # broadcast_in_dim: axis i becomes axis dims[i]
    def spread(self, shape: Dims, dims: Dims) -> Value: ...
    def reorder(self, order: Dims) -> Value: ...  # transpose
    def reshaped(self, shape: Dims) -> Value: ...
    def move_axis(self, source: int, target: int) -> Value: ...
    def sliced(self, start: Dims, stop: Dims, step: Dims) -> Value: ...
    # with zeros; negative low/high crop
    def padded(self, low: Dims, high: Dims, inner: Dims) -> Value: ...
    def reversed_along(self, axes: Dims) -> Value: ...
    # concatenate [self, *others]
    def joined(self, others: Sequence[Value], axis: int) -> Value: ...
    # iota of that shape along axis
    def count(self, shape: Dims, axis: int, dtype: np.dtype) -> Value: ...

    # products, indices, scans
    def dot(
        self, other: Value, contract: Pair, beside: Pair = ((), ()), **params: Any
    ) -> Value: ...
    def gathered(self, axes: Dims, *indices: Value) -> Value: ...
    def scatter_added(self, axes: Dims, updates: Value, *indices: Value) -> Value: ...
    def running(self, kind: str, axis: int, reverse: bool = False) -> Value: ...  # "sum", "prod"
    def sorting(self, axis: int) -> Value: ...  # argsort, stable


# -------- An operation: one frozen value that holds its parameters and all of its rules.


Axis = int | None  # the axis a value is batched along; None for one shared value
Values = Sequence[Value]
Axes = Sequence[Axis]
Batched = tuple[Values, Axes]
Cotangents = Sequence[Value | None]  # None is zero throughout
Pushed = tuple[Values, Cotangents]  # results and their tangents
Flags = tuple[bool, ...]
ADD_RULE = "a rule in the operation's class (CONTRIBUTING.md, 'add an op')"


class Lowering:
    """The way of an operation to a kernel: data that `codegen` reads, never code it calls."""

    __slots__ = ()


@final
@record
class CostClass:
    """The cost of one element of an operation, on any processor.

    `instructions` counts simple ones, such as an addition. A `transcendental` function is counted
    apart from flops, as XLA does. `compile_seconds` is what gcc takes at -O3 for one more of them
    in a kernel, measured on one core of a server.
    """

    name: str
    instructions: int
    transcendental: bool = False
    compile_seconds: float = 0.0007


# fmt: off
FREE      = CostClass("free", 0)  # an index expression of whatever reads it
SIMPLE    = CostClass("simple", 1)
DIVISION  = CostClass("division", 4)  # a rounding and a small power too
BRANCHING = CostClass("branching", 16)  # cases or a loop
ROOT      = CostClass("root",       4, transcendental=True, compile_seconds=0.012)
FUNCTION  = CostClass("function",  16, transcendental=True, compile_seconds=0.012)
LOGARITHM = CostClass("logarithm", 16, transcendental=True, compile_seconds=0.04)  # of two tables
POWER     = CostClass("power",     16, transcendental=True, compile_seconds=0.05)
# of several ranges
PERIODIC  = CostClass("periodic",  16, transcendental=True, compile_seconds=0.06)
# fmt: on


class Op:  # not an ABC, whose `isinstance` costs more than most passes do
    """An operation with its parameters, for example `ReduceSum(axes=(1,))`.

    Subclasses are abstract (a family of operations) or final (one operation); a final
    class is a frozen dataclass, so two equal operations are interchangeable and an
    operation can be part of a cache key.

    What the compiler asks of an operation are the attributes below; they stand in its class, or in
    its line of a table, and nowhere else is there a list of names.
    """

    __slots__ = ()
    name: str
    lowering: Lowering | None = None
    cost: CostClass = SIMPLE  # of an element of its result
    several: ClassVar[bool] = False  # calling it gives a tuple of results rather than one
    linear: bool = False  # in all of its inexact inputs together
    is_view: ClassVar[bool] = False  # result i has elements of input i, under other indices
    retypes: ClassVar[bool] = False  # the same numbers, or the same bits, in another dtype
    may_alias: ClassVar[bool] = True  # what its reference returns may be memory of its inputs
    exact: bool = False  # of numbers that a dtype has it makes numbers that the dtype has
    jumps: bool = False  # an operand's rounding error may change the result by a whole step
    edition: int = 0  # of a user's own operation, which may be defined again under its name

    def graphs(self) -> tuple[Graph, ...]:
        """The graphs it holds."""
        return ()

    @property
    def effect(self) -> str | None:
        """Its kind of effect.

        An equation with one is never dropped, merged, or moved before another such.
        """
        return None

    @abstractmethod
    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        """The types of the results, or a TypeRuleError that says what was wrong."""

    @abstractmethod
    def reference(self, *arrays: Any) -> Any:
        """The meaning, in numpy; a tuple if there are `several` results.

        Kernels are judged against it.
        """

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        """The cotangent of each input, given those of the results; None for
        zero or where none is wanted.
        """
        raise NoRuleError(
            f"{self.name} has no derivative",
            fix=f"ge2.stop_gradient(x), ge2.custom_vjp, or {ADD_RULE}",
        )

    def jvp(self, ts: Cotangents, ys: Values, xs: Values) -> Cotangents:
        """The tangent of each result, given those of the inputs.

        Left out, it is the transpose of `vjp`.
        """
        raise NoRuleError(
            f"{self.name} has no forward derivative", fix=f"ge2.custom_jvp, or {ADD_RULE}"
        )

    def batch(self, xs: Values, axes: Axes, size: int) -> Batched:
        """The operation over one more axis of that size: the results,
        and where each has the new axis.
        """
        raise NoRuleError(
            f"{self.name} cannot be batched", fix=f"a Python loop over the axis, or {ADD_RULE}"
        )

    def __call__(self, *args: Any) -> Any:
        ys = _current.get().apply(self, args)
        return tuple(ys) if self.several else ys[0]

    def params(self) -> dict[str, Any]:
        """Its parameters by name, as the text form prints them."""
        shown = [f.name for f in outlines(type(self)) if f.shown and f.name != "name"]
        return {name: getattr(self, name) for name in shown}

    def __str__(self) -> str:
        return self.name


class Derive(Protocol):
    """Derivatives and batches of graphs, passed to the rules of operations that hold graphs.

    With `apart`, forward rules record values in equations that read no
    tangents, so that these can wait.
    """

    @property
    def apart(self) -> bool: ...

    @property
    def fuses(self) -> bool: ...

    def vjp(
        self, graph: Graph, wanted: Flags, held: Flags | None = None
    ) -> tuple[Graph, Graph, int]:
        """(inputs) -> (outputs, residuals); (residuals, cotangents) ->
        those of the wanted; how many.

        `held` says of the inputs, then of the outputs, which are kept anyway; by default all.
        """

    def again(self, graph: Graph, wanted: Flags, rule: tuple[Any, ...]) -> tuple[Graph, Graph, int]:
        """As `vjp`, but saved is what a policy's rule allows, and all else computed again."""

    def jvp(self, graph: Graph, active: Flags) -> Graph:
        """(inputs, tangents of the active ones) -> (outputs, tangents of the inexact outputs)."""

    def linear(self, graph: Graph, active: Flags) -> tuple[Graph, Graph, int]:
        """(inputs) -> (outputs, residuals); (residuals, tangents) ->
        tangents; how many residuals.
        """

    def batch(
        self, graph: Graph, batched: Flags, size: int, out: Flags | None = None
    ) -> tuple[Graph, Flags]:
        """The graph over a new first axis of the batched inputs; which outputs
        have it (`out`: must have).
        """

    def trace(self, f: Callable[..., Sequence[Any]], types: Sequence[ArrayType]) -> Graph:
        """The graph of a function of arrays of these types."""

    def run(self, graph: Graph, args: Sequence[Any]) -> list[Any]:
        """The results of a graph, as part of what is traced."""

    def zeros(self, t: ArrayType) -> Any:
        """Zeros of a type."""


class GraphOp(Op):
    """An operation that holds graphs; its rules are given `derive`.

    Before reverse mode reads an equation's results, the operation may become one that also yields
    what its cotangents need (`saving`); `vjp` is then asked of that one.
    """

    __slots__ = ()
    several: ClassVar[bool] = True

    @property
    def effect(self) -> str | None:
        """The effect of something in its graphs."""
        return next((graph.effect for graph in self.graphs() if graph.effect), None)

    @abstractmethod
    def graphs(self) -> tuple[Graph, ...]:
        """The graphs it holds."""

    def saving(self, wanted: Flags, derive: Derive) -> Op:
        """The same operation with further results, the residuals of its derivative."""
        return self

    def jvp_with(self, derive: Derive, ts: Cotangents, xs: Values) -> Pushed:
        """The results and their tangents."""
        raise NoRuleError(
            f"{self.name} has no forward derivative", fix=f"ge2.custom_jvp, or {ADD_RULE}"
        )

    def batch_with(self, derive: Derive, xs: Values, axes: Axes, size: int) -> Batched:
        """As `batch`."""
        raise NoRuleError(
            f"{self.name} cannot be batched", fix=f"a Python loop over the axis, or {ADD_RULE}"
        )


def has_effect(op: Op) -> bool:
    """True if an operation, or one in the graphs that it holds, has an effect."""
    return op.effect is not None


class Reversing(GraphOp):
    """The form of an operation in reverse mode, so that its `vjp` can be asked.

    All other rules are those of the operation that it was, the residuals counted among its results.
    """

    __slots__ = ()

    @abstractmethod
    def plain(self) -> GraphOp:
        """The operation that it was."""

    def saving(self, wanted: Flags, derive: Derive) -> Op:
        return self.plain().saving(wanted, derive)

    def jvp_with(self, derive: Derive, ts: Cotangents, xs: Values) -> Pushed:
        return self.plain().jvp_with(derive, ts, xs)

    def batch_with(self, derive: Derive, xs: Values, axes: Axes, size: int) -> Batched:
        return self.plain().batch_with(derive, xs, axes, size)


class Interpreter(Protocol):
    """Gives operations their meaning: compute them, record them, or match them."""

    def apply(self, op: Op, args: Sequence[Any]) -> Sequence[Any]: ...


# what computes there; the runtime's
ON_GPU: list[Callable[[Op, Sequence[Any]], Sequence[Any]]] = []


class Evaluate:
    """The meaning when there is no other: compute with the references, weak
    numbers staying weak.
    """

    def apply(self, op: Op, args: Sequence[Any]) -> Sequence[Any]:
        elsewhere = False
        for x in args:
            if hasattr(x, "escaped"):  # a traced value has no elements to compute with
                raise x.escaped(op)
            elsewhere = elsewhere or on_gpu(x)
        if elsewhere:
            return ON_GPU[0](op, args)
        with np.errstate(all="ignore"):
            ys = op.reference(*args)
        ys = ys if op.several else (ys,)
        if all(type(x) in PYTHON for x in args):
            types = op.infer(*map(type_of, args))
            return [np.asarray(y).item() if t.weak else y for y, t in zip(ys, types, strict=True)]
        return ys


_current: ContextVar[Interpreter] = ContextVar("interpreter", default=Evaluate())  # noqa: B039 it has no state
current = _current.get


@contextmanager
def interpreting(interpreter: Interpreter) -> Iterator[Interpreter]:
    """Runs the body with `interpreter` giving operations their meaning."""
    token = _current.set(interpreter)
    try:
        yield interpreter
    finally:
        _current.reset(token)
