"""Answers of traced values to the protocols of Python and NumPy, and to SciPy's functions."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from operator import attrgetter
from types import CodeType, FunctionType, TracebackType
from typing import Any, Final, final

import numpy as np

from ge2 import numpy as gnp
from ge2.base.arrays import BOOL, INEXACT, can_cast, host, python_type
from ge2.base.errors import InPlaceError, InputError, NoRuleError
from ge2.base.source import here
from ge2.base.tracebacks import CALLS, hides, hides_methods, is_raise
from ge2.ir import current, is_traced, type_of
from ge2.numpy.elementwise import UFUNCS
from ge2.trace import concrete
from ge2.trace.operators import put_at_chosen
from ge2.trace.views import settled

# ------------------------------------------------------------------------------------------ absent
# Attributes of NumPy's arrays that a traced value has not, and what to write instead of each.


LAYOUT: Final = "np.copy(x) where layout matters: a traced value has no memory yet"
ITSELF: Final = "x itself, an array as NumPy's"
BYTES: Final = "x.astype(dtype), or the function of the array before it is traced"
FILES: Final = "ge2.debug.callback(f, x), or the array after the function has returned"

# fmt: off
INSTEAD: Final[dict[str, str]] = {
    **dict.fromkeys(("base", "data", "ctypes", "setflags"), LAYOUT),
    **dict.fromkeys(("byteswap", "getfield", "setfield"), BYTES),
    **dict.fromkeys(("dump", "dumps", "tobytes", "tofile"), FILES),
    **dict.fromkeys(("cpu", "detach", "numpy", "to_numpy", "value", "values"), ITSELF),
    **dict.fromkeys(("iat", "iloc", "loc"), "x[i]"),
    "append":    "np.append(x, value), which is a new array",
    "is_integer": "x % 1 == 0",
    "length":    "x.size, or len(x)",
    "device":    "jit(f, device=...), or the device of the array before it is traced",
    "itemset":   "x[i] = value",
    "newbyteorder": BYTES,
    "ptp":       "np.ptp(x)",
    "resize":    "np.resize(x, shape), which gives a new array",
    "to_device": "the device of the arguments",
}
# fmt: on


# --------------------------------------------------------------------------------------- protocols


INTERNAL = frozenset(("cell", "owner", "escaped"))
SUMMING = frozenset((np.sum, np.prod, np.cumsum, np.cumprod))


@final
class OfTheClass:
    """A method for who asks the class for it; who asks a value gets None.

    NumPy looks on the class for `__array_ufunc__`. CuPy's operators look on the value,
    and leave `x + y` to us where they find None (NEP 13); else they would take us for
    NumPy's array, which is what we say we are.
    """

    __slots__ = ("method",)

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method

    def __get__(self, value: object, owner: type) -> Callable[..., Any] | None:
        return self.method if value is None else None


@hides_methods
class Protocols:
    """NumPy's protocols and Python's conversions."""

    __slots__ = ()
    __array_priority__ = 1000.0

    # ---------------------------------------------------------------------------------------- NumPy

    def _ufunc(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **more: Any
    ) -> Any:
        if method == "__call__" and out is None and not more:
            call = UFUNCS.get(ufunc)
            if call is not None:
                return call(*inputs)
        return special_ufunc(ufunc, method, inputs, out, more)

    __array_ufunc__ = OfTheClass(hides(_ufunc))

    def __array_function__(
        self, function: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        call = gnp.FUNCTIONS.get(function) or gnp.rare.ours_of(function)
        if call is None:
            raise missing(f"{function.__module__}.{function.__name__}")
        out, at = kwargs.pop("out", None), gnp.rare.OUT_OF.get(function)
        if at is not None and len(args) > at:
            out, args = args[at], (*args[:at], None, *args[at + 1 :])
        if function in SUMMING and len(args) < 3:  # by position 2 comes the dtype
            kwargs |= summed_as(out, args[0] if args else None, kwargs)
        y = settled(function, args, kwargs, call(*args, **kwargs))
        if out is None:
            return y
        casting = "no" if function == np.dot else "same_kind"
        return written(out, y, function.__name__, exact=True, casting=casting)

    def shared_by(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], y: Any
    ) -> Any:
        """The result of a function of ge2.numpy, as NumPy's of that name shares memory with this
        array.
        """
        return settled(function, args, kwargs, y)

    def __cupy_override_elementwise_kernel__(self, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        """A function of CuPy's own of single elements, as `cupy.add(x, y)`
        or, in place, `x += y`.
        """
        name = str(getattr(kernel, "name", "")).removeprefix("cupy_")
        ufunc = getattr(np, name, None)
        if not isinstance(ufunc, np.ufunc):
            what = f"{name or type(kernel).__name__} of CuPy's own is given a traced value"
            raise InputError(
                what, where=here(), fix="the function of numpy or of ge2.numpy of that name"
            )
        if len(args) > ufunc.nin:
            args, kwargs = args[: ufunc.nin], kwargs | {"out": args[ufunc.nin :]}
        return self._ufunc(ufunc, "__call__", *args, **kwargs)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        return gnp

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(host(concrete.value_of(self, "array")), dtype=dtype)

    def is_known(self) -> bool:
        """False of what NumPy would ask for the elements of in vain: to know costs no error."""
        return not self.usable or concrete.knowable(self)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """NumPy's array class, or that of a Python number, so that `isinstance` holds while tracing as
        it does without.
        """
        return python_type(self.type.dtype) if self.type.weak else np.ndarray

    # --------------------------------------------------------------------------------------- Python

    def __bool__(self) -> bool:
        return bool(concrete.number(self, "bool"))

    def __int__(self) -> int:
        return int(concrete.number(self, "int"))

    def __index__(self) -> int:
        if self.type.dtype.kind not in "iu" or self.type.shape:
            raise TypeError("only integer scalar arrays can be converted to a scalar index")
        return int(concrete.number(self, "int"))

    def __float__(self) -> float:
        return float(concrete.number(self, "float"))

    def __complex__(self) -> complex:
        return complex(concrete.number(self, "float"))

    def __round__(self, digits: int | None = None) -> Any:
        if digits is None:
            return int(gnp.rint(self) if self.type.dtype in INEXACT else self)
        if not self.type.weak:
            return gnp.round(self, digits)
        y = gnp.round(gnp.operators["pos"](self), digits)
        return y.cast(y.type.dtype, weak=True)

    def __floor__(self) -> int:
        return int(gnp.floor(self))

    def __ceil__(self) -> int:
        return int(gnp.ceil(self))

    def __trunc__(self) -> int:
        return int(self)

    def item(self, *args: int) -> Any:
        return np.asarray(host(concrete.value_of(self, "float"))).item(*args)

    def tolist(self) -> Any:
        return np.asarray(host(concrete.value_of(self, "float"))).tolist()

    def __repr__(self) -> str:
        return f"<{self.label()}>"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(concrete.number(self, "format"), spec) if spec else str(self)

    def __getattr__(self, name: str) -> Any:
        # Python and NumPy ask for many that are not there
        if name.startswith("__") or name in INTERNAL:
            raise AttributeError(name)
        if hasattr(type(self), name):
            return object.__getattribute__(self, name)  # a property that failed: its own error
        if hasattr(np.ndarray, name):
            raise AttributeError(str(missing(f"numpy.ndarray.{name}")))
        lines = [f"{self!r} has no attribute {name}", f"  at   {here()}", instead_of(name)]
        raise AttributeError("\n".join(filter(None, lines)), name=name, obj=self)

    def __reduce__(self) -> Any:
        raise self.escaped()

    def __copy__(self) -> Any:
        """An array of the function that runs now, which may change it, whoever's this one is."""
        trace: Any = current()
        if trace is self.owner or not self.usable:
            return self.renamed()
        y = trace.lift_atom(trace.atom(self))
        y.cell.array = self.cell.is_array
        return y

    def renamed(self) -> Any:
        """The value under another name, in its own trace."""
        y = type(self)(self.owner, self.atom)  # type: ignore[call-arg]
        y.cell.array = self.cell.is_array
        return y

    def __deepcopy__(self, memo: Any) -> Any:
        return self.__copy__()


def instead_of(name: str) -> str:
    """The line of an error about an attribute that arrays have not: a function
    of that name, or a name like it.
    """
    if name in INSTEAD:
        return f"  try  {INSTEAD[name]}"
    if name in gnp.__all__ and callable(getattr(gnp, name)):
        return f"  try  np.{name}(x)"
    from difflib import get_close_matches  # for errors alone

    near = get_close_matches(name, [n for n in dir(np.ndarray) if n[0] != "_"], 1, cutoff=0.7)
    return f"  try  x.{near[0]}" if near else ""


def special_ufunc(
    ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], out: Any, more: dict[str, Any]
) -> Any:
    """A ufunc with `out=`, `where=` or `dtype=`, or one of its methods."""
    call = UFUNCS.get(ufunc)
    if call is None:
        from ge2.numpy.rare import applying

        call = applying.of_scipy(ufunc)
    if call is None:
        raise missing(applying.full_name(ufunc))
    if method != "__call__":
        call = gnp.ufunc_method(ufunc, method)
        if method == "at" and is_traced(inputs[0]):
            return put_in_place(call, *inputs)
        if method in ("reduce", "accumulate") and ufunc in (np.add, np.multiply):
            more |= summed_as(out, inputs[0], more)
        return (
            call(*inputs, **more)
            if out is None
            else written(out, call(*inputs, **more), ufunc.__name__, exact=True)
        )
    if out is None:
        return call(*inputs, **more)
    mask, casting = more.pop("where", True), more.get("casting", "same_kind")
    return written(out, call(*inputs, **more), ufunc.__name__, mask, casting=casting)


def put_in_place(call: Callable[..., Any], x: Any, key: Any, *values: Any) -> None:
    """`ufunc.at`, also at indices that a traced mask chooses."""

    def put(longer: Any, *given: Any) -> Any:
        call(longer, *given)
        return longer

    new = put_at_chosen(x, key, values, put)
    if new is None:
        call(x, key, *values)
    else:
        x[...] = new


def summed_as(out: Any, x: Any, more: dict[str, Any]) -> dict[str, Any]:
    """The dtype of a sum or product: that of `out`, if it is given, none is,
    and it holds what is summed.
    """
    out = out[0] if isinstance(out, tuple) else out
    if out is None or x is None or more.get("dtype") is not None or not hasattr(out, "dtype"):
        return {}
    if out.dtype == BOOL:
        return {}  # NumPy's is a logical function
    return (
        {"dtype": out.dtype}
        if can_cast(type_of(gnp.asarray(x)).dtype, out.dtype, "same_kind")
        else {}
    )


def written(
    out: Any, y: Any, name: str, mask: Any = True, exact: bool = False, casting: str = "same_kind"
) -> Any:
    """`out=`: a traced array takes the result, a real one cannot; `exact` asks
    for the result's own shape.
    """
    outs, ys = (out if isinstance(out, tuple) else (out,)), (y if isinstance(y, tuple) else (y,))
    for target, value in zip(outs, ys, strict=True):
        if target is None:
            continue
        if not hasattr(target, "write"):
            raise InPlaceError(
                f"numpy.{name} was asked to write a traced value into a real array",
                where=here(),
                fix=instead_of_writing(),
            )
        given, t = type_of(value), target.type
        if not exact and given.ndim <= t.ndim and given.shape != t.shape:
            # as NumPy does, where the result is smaller than out
            value = gnp.broadcast_to(value, t.shape)
            given = type_of(value)
        if given.shape != t.shape or not target.cell.is_array:
            raise InPlaceError(
                f"numpy.{name}: {given} does not fit into out, {t}", where=here(), fix="y = f(x)"
            )
        if not can_cast(given.dtype, t.dtype, casting):
            fix = f"y = f(x).astype(np.{t.dtype})"
            raise InPlaceError(
                f"numpy.{name}: {given} cannot be cast to the dtype of out, {t}",
                where=here(),
                fix=fix,
            )
        target._replace(
            value if mask is True else gnp.where(mask, value, target), f"out= of numpy.{name}"
        )
    each = tuple(
        [value if target is None else target for target, value in zip(outs, ys, strict=True)]
    )
    return each if len(each) > 1 else each[0]


def instead_of_writing() -> str:
    """The fix for `y += x` or `out=y`, of an array that is not traced."""
    from ge2.base.source import expression  # here and below: only errors pay for it
    from ge2.trace.hints import in_place

    return in_place(expression())


def missing(name: str) -> NoRuleError:
    """The error for a function that ge2 does not trace."""
    from ge2.base.source import expression
    from ge2.trace.hints import without

    where, fix = here(), without(name, expression())
    return NoRuleError(f"{name} is not among the functions that ge2 traces", where=where, fix=fix)


# -------- Notes on errors that functions of others raise for a traced value, of which they know
# nothing.


def explain(error: Exception) -> None:
    """Adds the user's line and a fix, if that line passed a traced value to a function that is
    neither the user's nor ours.
    """
    from ge2.base.source import Source, expression_at
    from ge2.trace.hints import hint

    at = users_last(error)
    if at is None or any(words in str(error) for words in CALLS):
        return
    found = expression_at(at.tb_frame, at.tb_lasti)
    first = next(passed(found), None) if found is not None else None
    if first is None or is_raise(at.tb_frame.f_code, at.tb_lasti):
        return
    name = first.owner.names.get(first.atom, "") if first.owner.kind == "jit" else ""
    place = Source(at.tb_frame.f_code, at.tb_lasti)
    error.add_note(f"  at   {place}\n  try  {hint('array', name, found)}")


def users_last(error: Exception) -> TracebackType | None:
    """The innermost line of the user's; None if it led into ge2."""
    from ge2.base.source import is_library, is_package

    at, found = error.__traceback__, None
    while at is not None:
        code = at.tb_frame.f_code
        if not is_library(code):
            found = at
        elif is_package(code) and found is not None:
            return None
        at = at.tb_next
    return found


def passed(found: Any) -> Iterator[Any]:
    """The traced values that are named in the arguments of a call, or in an index."""
    import ast

    match found.node:
        case ast.Call(args=args, keywords=keywords):
            parts: list[ast.AST] = [*args, *keywords]
        case ast.Subscript(slice=index):
            parts = [index]
        case _:
            parts = []
    for part in parts:
        for node in ast.walk(part):
            value = found.value(node)
            if is_traced(value):
                yield value


# -------- SciPy's functions that are written in Python, given traced values.
# NumPy hands its own functions and ufuncs to an argument's class, so a traced value answers for
# itself. What SciPy writes in Python, as `logsumexp`, asks for an array of the elements first,
# which nobody has while a function is traced. So once a program that has imported a module of
# SciPy's traces a function, those of its functions that ge2 has look at their arguments, and hand
# traced ones to ours. For all others they do what they did, and whoever holds one, by
# `from scipy.linalg import inv` or as an attribute, has to change nothing.


# modules of SciPy's that may be imported yet, and were not when a trace began
PENDING: Final = {
    "scipy.special", "scipy.linalg", "scipy.integrate", "scipy.fft._basic_backend",
    "scipy.fft._realtransforms_backend", "scipy.signal", "scipy.spatial.distance", "scipy.stats",
}  # fmt: skip
VAR_KEYWORD: Final = inspect.Parameter.VAR_KEYWORD
VAR_POSITIONAL: Final = inspect.Parameter.VAR_POSITIONAL
POSITIONAL_ONLY: Final = inspect.Parameter.POSITIONAL_ONLY
# SciPy's own function and ours, by the module and the name
_theirs: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}


def take_over() -> None:
    """Has SciPy's functions that are in Python take traced values, of the modules that a program
    has imported.
    """
    from ge2.numpy.rare.of_scipy import OURS

    for module in PENDING & sys.modules.keys():
        try:
            PENDING.remove(module)
        except KeyError:
            continue  # another thread has it
        for name, ours in OURS[module].items():
            with suppress(AttributeError):  # of another version of SciPy's
                take_over_one(module, name, attrgetter(name)(sys.modules[module]), ours)


def take_over_one(module: str, name: str, function: Any, ours: Callable[..., Any]) -> None:
    if not isinstance(function, FunctionType):
        return
    signature = inspect.signature(function)
    key = f"{module}:{name}"
    _theirs[key] = own(function), of_their_arguments(ours, signature)
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__code__ = stand_in(function, key)
    function.__defaults__ = function.__kwdefaults__ = None


def own(function: FunctionType) -> FunctionType:
    """Another function of the same code."""
    found = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    found.__kwdefaults__ = function.__kwdefaults__
    return found


def stand_in(function: FunctionType, key: str) -> CodeType:
    """Code that needs nothing of the module that it is put into. It names the variables of the
    function's closure, which it does not read.
    """

    def of_ge2_too(*args: Any, **kwargs: Any) -> Any:
        from ge2.trace.protocols import called

        return called("KEY", args, kwargs)

    code = of_ge2_too.__code__
    known = tuple([key if each == "KEY" else each for each in code.co_consts])
    free = function.__code__.co_freevars
    return code.replace(co_name=function.__name__, co_consts=known, co_freevars=free)


def called(key: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """SciPy's function of real arrays, and ours if any argument is traced and ours knows how."""
    from ge2.trace.writes import holds_traced

    theirs, ours = _theirs[key]
    if holds_traced(args) or (kwargs and holds_traced((*kwargs.values(),))):
        y = ours(*args, **kwargs)
        if y is not NotImplemented:
            return tuple(y) if isinstance(y, tuple) else y
    return theirs(*args, **kwargs)


def of_their_arguments(ours: Callable[..., Any], theirs: inspect.Signature) -> Callable[..., Any]:
    """`ours`, called with SciPy's arguments: of those that it lacks, it takes SciPy's defaults and
    what says how a thing is done, and answers all else by NotImplemented.
    """
    from ge2.numpy.rare.of_scipy import OPTIONS

    kinds = {each.kind for each in theirs.parameters.values()}
    known = inspect.signature(ours).parameters
    if VAR_POSITIONAL in kinds or POSITIONAL_ONLY in {each.kind for each in known.values()}:
        return ours

    def called_so(*args: Any, **kwargs: Any) -> Any:
        bound = theirs.bind(*args, **kwargs)
        bound.apply_defaults()
        given: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            given |= value if theirs.parameters[name].kind is VAR_KEYWORD else {name: value}
        for name in given.keys() - known.keys() - OPTIONS:
            if name not in theirs.parameters or given[name] is not theirs.parameters[name].default:
                return NotImplemented
        return ours(**{name: value for name, value in given.items() if name in known})

    return called_so
