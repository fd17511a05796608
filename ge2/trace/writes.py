"""The arrays that a function writes: its arguments, and those that NumPy makes for it.

Of arguments: what a trace finds out, what a call checks, how they change. The graph of such a
function yields the last contents of each written argument beside its results.
"""

from __future__ import annotations

import ast
import builtins
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, update_wrapper, wraps
from threading import Lock, local
from types import FrameType, ModuleType
from typing import Any, Final, NoReturn, final

import numpy as np

from ge2.base.arrays import COMPLEX, FLOATS, INTEGERS
from ge2.base.errors import (
    ConcretizationTypeError,
    Ge2Error,
    InPlaceError,
    ReadOnlyError,
    TracerArrayConversionError,
    TracerBoolConversionError,
    TracerIntegerConversionError,
)
from ge2.base.record import record
from ge2.base.source import MISSING, Expression, Source, callee, here, is_of_library
from ge2.ops.elementwise import ConvertElementType
from ge2.trace.concrete import SWALLOWING
from ge2.trace.tracer import is_traced
from ge2.trace.views import is_view, may_be_writable, meet, repeats, share


@final
@record
class Write:
    """One argument that is written: its place among the inputs, the line that does it, whether only
    the memory of an array in C order has the meaning that was assumed.
    """

    input: int
    line: Source | None
    ordered: bool = False


@final
@record
class Writes:
    """The written arguments.

    `names`: of all inputs; `results`: for each result its place among the graph's outputs, where a
    written argument that is returned is the caller's array itself.
    """

    title: str
    names: tuple[str, ...]
    each: tuple[Write, ...]
    results: tuple[int, ...]

    @property
    def inputs(self) -> tuple[int, ...]:
        return tuple(w.input for w in self.each)

    @property
    def written(self) -> tuple[str, ...]:
        """The names that the user gives those arguments."""
        return tuple(self.names[w.input] for w in self.each)

    def __str__(self) -> str:
        lines = [f" ({w.line})" if w.line else "" for w in self.each]
        return "writes " + ", ".join(
            self.names[w.input] + line for w, line in zip(self.each, lines, strict=True)
        )

    def of(self, found: Sequence[Any]) -> list[Any]:
        """The results among the values that begin with the written arguments."""
        return [found[i] for i in self.results]

    def of_inputs(self, arrays: Sequence[Any]) -> list[Any]:
        """The written arguments."""
        return [arrays[w.input] for w in self.each]

    def carried(self, arrays: Sequence[Any], found: list[Any]) -> list[Any]:
        """The writes found, with each last contents replaced by the argument,
        which now has them.
        """
        for n, w in enumerate(self.each):
            x = arrays[w.input]
            if found[n] is not x:
                change(x, found[n], self.names[w.input], self.title)
                found[n] = x
        return found

    # --------------------------------------------------------------------------------------- checks

    def check_given(self, arrays: Sequence[Any]) -> None:
        """As `check`, of arrays or traced values."""
        if any(map(is_traced, arrays)):
            self.check_traced(arrays)
        else:
            self.check(arrays)

    def check(self, arrays: Sequence[Any]) -> None:
        """ReadOnlyError, InPlaceError unless each array can be written and
        shares no memory with another.
        """
        for w in self.each:
            x = arrays[w.input]
            if not getattr(x.flags, "writeable", True):
                self.refuse_read_only(w, x)
            if not (x.flags.c_contiguous or x.flags.f_contiguous) and repeats(x):
                self.refuse_repeats(w)
            if w.ordered and not x.flags.c_contiguous:
                self.refuse_order(w)
            if x.base is not None or any(
                y is x or is_view(y) for j, y in enumerate(arrays) if j != w.input
            ):
                self.check_apart(w, arrays)

    def check_traced(self, arrays: Sequence[Any]) -> None:
        """InPlaceError if a traced value that is written may share memory with another argument."""
        for w in self.each:
            for j, y in enumerate(arrays):
                if j != w.input and is_traced(y) and meet(arrays[w.input], y):
                    self.refuse_overlap(w.input, j)

    def check_apart(self, w: Write, arrays: Sequence[Any]) -> None:
        x = arrays[w.input]
        for j, y in enumerate(arrays):
            if j != w.input and share(x, y):
                self.refuse_overlap(w.input, j)

    def refuse_overlap(self, i: int, j: int) -> NoReturn:
        same = "share memory, and one of them is written"
        what = f"{self.names[i]} and {self.names[j]} of {self.title} {same}: {self}"
        raise InPlaceError(what, where=here(), fix="pass a copy of one of them, as x.copy()")

    def refuse_read_only(self, w: Write, x: Any) -> NoReturn:
        what = f"assignment destination is read-only: {self.names[w.input]} of {self.title}, which {self}"
        fix = "pass a copy, x.copy()"
        if may_be_writable(x):
            fix += ", or x.flags.writeable = True"
        raise ReadOnlyError(what, where=here(), fix=fix)

    def refuse_repeats(self, w: Write) -> NoReturn:
        what = f"{self.names[w.input]} of {self.title} has elements that share memory, as a broadcast array"
        raise InPlaceError(
            f"{what}, and the function {self}", where=here(), fix="pass a copy, x.copy()"
        )

    def refuse_order(self, w: Write) -> NoReturn:
        name = self.names[w.input]
        what = f"{name} of {self.title} is not in C order, so a reshape or ravel of it may be a copy in NumPy"
        raise InPlaceError(
            f"{what}, and the function {self}",
            where=here(),
            fix=f"pass np.ascontiguousarray({name}), or write {name}[...] without a reshape",
        )


@final
class Changing:
    """Finds which arguments a trace changes in place.

    Their last contents are outputs, before the results.

    `first` is the number of inputs before the arguments; `positions` are the leaves that those are.
    """

    def __init__(
        self, first: int, positions: Sequence[int], donated: frozenset[int] = frozenset()
    ) -> None:
        self.first, self.positions, self.donated = first, positions, donated
        self.each: list[tuple[int, Any]] = []  # inputs that are written, with their cells
        self.results: list[int] = []  # places of the results among the outputs
        # leaves of which it matters whether they are NumPy's scalars
        self.scalars: dict[int, bool] = {}

    def outputs(self, xs: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        """The last contents of what was written, then the results that are none of those arrays."""
        given = list(enumerate(xs))[self.first :]
        for leaf, (_, x) in zip(self.positions, given, strict=True):
            if not x.type.shape and (changed(x.cell) or (x.owner.writes and indexes(x))):
                self.scalars[leaf] = not x.cell.is_array
        kept = [leaf not in self.donated for leaf in self.positions]
        written = [
            pair for pair, k in zip(given, kept, strict=True) if k and written_to(pair[1].cell)
        ]
        self.each = [(i, x.cell) for i, x in written]
        cells = [x.cell for _, x in written]
        found, self.results = [x for _, x in written], []
        for y in results:
            same = cells.index(y.cell) if is_traced(y) and y.cell in cells else len(found)
            self.results.append(same)
            if same == len(found):
                found.append(y)
        return found

    def writes(self, title: str, names: Sequence[str]) -> Writes | None:
        """The writes known when the trace is over; None if there are none. `names`: of inputs."""
        if not self.each:
            return None
        before = len(names) - self.first - len(self.positions)
        found = [(before + i, cell.argument) for i, cell in self.each]
        each = [Write(i, argument.line, argument.ordered) for i, argument in found]
        return Writes(title, tuple(names), tuple(each), tuple(self.results))


def changed(cell: Any) -> bool:
    """True if an argument was changed in place, or bound anew by an operator that would have."""
    return cell.argument is not None and (cell.argument.rebound or written_to(cell))


def indexes(x: Any) -> bool:
    """True if an argument indexes an array, which tells NumPy's scalars from arrays."""
    return x.cell.argument is not None and x.cell.argument.index and not x.type.weak


def written_to(cell: Any) -> bool:
    """True if an argument's cell was written; one whose contents are in doubt
    says so when it is read.
    """
    return cell.argument is not None and bool(cell.version or cell.doubt)


def is_scalar(leaf: Any) -> bool:
    """True for NumPy's scalar, or a value traced as one: it never changes in place."""
    return isinstance(leaf, np.generic) or (is_traced(leaf) and not leaf.cell.is_array)


def change(x: Any, value: Any, name: str, title: str) -> None:
    """Gives an argument its last contents, NumPy's or CuPy's array or a traced value."""
    if is_traced(x):
        x.write(value, f"{title}, which writes {name},")
    elif is_traced(value):
        what = f"{title} writes {name}, which is a real array here, and what is written is traced"
        fix = (
            "pass np.zeros_like(x) of a traced x, or x.copy() of an argument, which can be written"
        )
        raise InPlaceError(what, where=here(), fix=fix)
    else:
        x[...] = value


# -------- Arrays that NumPy makes while a function is traced. `y = np.zeros(3); y[0] = x[0]` writes
# a traced value into a real array, which cannot hold it. Nor can `np.array([x[0], 1.0])`, nor has a
# real table an element at a traced index. NumPy asks nobody when it makes an array from no array
# (NEP 35's `like=` has to be written by the user), nor does `math`. So a function that fails for
# such a reason is traced once more, and what its own lines make by the functions below is traced
# from the beginning. Only then: of what NumPy made all is known without a search.

EMPTY: Final = (
    "zeros", "ones", "empty", "full", "zeros_like", "ones_like", "empty_like", "full_like", "copy",
)  # fmt: skip
# of elements that are given: as long as NumPy can make them, they are its own at first, since they
# may be kept for later calls; if that is not enough either, they are traced in a third trace
GIVEN: Final = (
    "array", "asarray", "asanyarray", "ascontiguousarray", "eye", "identity", "arange", "linspace",
    "logspace", "geomspace", "indices", "tri", "fromfunction", "meshgrid", "tile", "repeat", "diag",
    "asfortranarray", "require", "ndenumerate",
)  # fmt: skip
JOINERS: Final = ("r_", "c_")
METHODS: Final = ("reduce", "accumulate", "reduceat", "outer", "at")  # of ufuncs, of lists, too
SCALARS: Final = frozenset([dtype.type for dtype in (*INTEGERS, *FLOATS, *COMPLEX)])
HOMES: Final = (np, np.linalg, np.fft)  # of functions that are to take lists of traced values
# functions of `math`, by their names in NumPy and in scipy.special where those are others
OF_NUMPY: Final = {
    "acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan",
    "atan2": "arctan2", "atanh": "arctanh", "pow": "power",
} | {name: name for name in (
    "cbrt", "copysign", "cos", "cosh", "degrees", "exp", "exp2", "expm1", "fabs", "fmod", "hypot",
    "isfinite", "isinf", "isnan", "log10", "log1p", "log2", "radians", "sin", "sinh", "sqrt", "tan",
    "tanh",
)}  # fmt: skip
OF_SPECIAL: Final = {"erf": "erf", "erfc": "erfc", "gamma": "gamma", "lgamma": "gammaln"}
OF_TWO: Final = ("atan2", "copysign", "fmod", "hypot", "pow")
TO_INTEGERS: Final = ("ceil", "floor", "trunc")
# errors of a real array that meets a traced value; `if x > 0`, of their family, has no part in it
OF_REAL_ARRAYS: Final = (
    ConcretizationTypeError,
    InPlaceError,
    TracerArrayConversionError,
    TracerIntegerConversionError,
)
_here = local()  # `turn`: which trace of a function this thread makes after the first
_lock = Lock()
_threads: list[int] = []  # as many as trace so
_replaced: list[tuple[dict[str, Any], str, Any, Any]] = []  # names, a name, what it was, and is
TURNS: Final = (1, 2)


def may_be_made_traced(error: Exception) -> bool:
    """True if a function that failed so may pass where what it makes by NumPy is traced."""
    return type(error) in OF_REAL_ARRAYS and not turn()


def turn() -> int:
    return getattr(_here, "turn", 0)


def for_user(original: Any = None) -> bool:
    """True if what calls the caller is a function of the user's, in a thread that traces so; what a
    module makes while it is imported stays there. `original`: the function that is called.
    """
    if not turn():
        return False
    frame = sys._getframe(2)
    code = frame.f_code
    if code.co_name == "<module>" or is_of_library(code.co_filename):
        return False
    return original is None or calls(frame, original)


def calls(frame: FrameType, original: Any) -> bool:
    """True if a line of the user's calls the function itself. Compiled modules have no frames: what
    `np.random.uniform` makes by `np.empty`, it reads in memory.
    """
    name, func = original.__name__, callee(frame.f_code, frame.f_lasti)
    value = MISSING if func is None else Expression(func, (), frame).value(func)
    if value is not MISSING and value == original:
        return True
    if isinstance(func, ast.Attribute):
        return bool(func.attr == name)
    apart = type(value) is not partial
    if isinstance(func, ast.Name) and apart and value is not vars(builtins).get(func.id):
        return False
    return name in frame.f_code.co_names  # `map(np.array, rows)`; or there is no source


@final
class Instead:
    """A function of NumPy's that is replaced: `call` where a function of the user's calls it, and for
    all else, and all others, the original.
    """

    def __init__(self, original: Any, call: Callable[..., Any]) -> None:
        self.original, self.call = original, call
        update_wrapper(self, original)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (self.call if for_user(self.original) else self.original)(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.original, name)
        return of_lists(found) if name in METHODS and for_user() else found

    def __eq__(self, other: object) -> bool:
        return other is self.original or other is self

    def __hash__(self) -> int:
        return hash(self.original)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.original)


@final
class ScalarType:
    """A class of NumPy's scalars that is replaced: the user's `np.float32(x)` of a traced value has
    that dtype, as `x.astype` has; all else it is for, its class does: it is equal to it.
    """

    def __init__(self, original: type[np.generic]) -> None:
        self.original, self.dtype = original, np.dtype(original)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        x: Any = as_one(args[0]) if len(args) == 1 and not kwargs and for_user() else None
        if not is_traced(x):
            return self.original(*args, **kwargs)
        from ge2.numpy import asarray  # here: it is made of traced values itself

        return asarray(x, self.dtype) if x.shape else ConvertElementType(self.dtype)(x)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)

    def __instancecheck__(self, x: Any) -> bool:
        return isinstance(x, self.original)

    def __subclasscheck__(self, cls: Any) -> bool:
        return issubclass(cls, self.original)

    def __or__(self, other: Any) -> Any:
        return self.original | other

    def __ror__(self, other: Any) -> Any:
        return other | self.original

    def __eq__(self, other: object) -> bool:  # as a class, which leaves the rest to a dtype
        return True if other is self.original or other is self else NotImplemented

    def __hash__(self) -> int:
        return hash(self.original)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.original)


@contextmanager
def making_traced(number: int, users: Iterable[dict[str, Any]]) -> Iterator[None]:
    """Inside, NumPy's functions that make an array from no traced one make a traced one, where a
    function of the user's calls them in this thread; other threads and libraries get what they
    always get. `number`: of the turn, which says of which functions. `users`: the names of modules of
    the user's, among which `from numpy import zeros` has bound some.
    """
    with _lock:
        _threads.append(1)
        if len(_threads) == 1:
            for (module, name), instead in replacements().items():
                replace_name(vars(module), name, instead)
        instead = {id(original): new for _, _, original, new in _replaced}
        for names in users:
            if instead.keys().isdisjoint(map(id, list(names.values()))):
                continue  # hundreds of modules, of which few have one
            for name, value in list(names.items()):
                if id(value) in instead:
                    replace_name(names, name, instead[id(value)])
    _here.turn = number
    try:
        yield
    finally:
        _here.turn = 0
        with _lock:
            _threads.pop()
            if not _threads:
                for names, name, original, instead in _replaced:
                    if names.get(name) is instead:
                        names[name] = original
                _replaced.clear()


def replace_name(names: dict[str, Any], name: str, instead: Any) -> None:
    _replaced.append((names, name, names[name], instead))
    names[name] = instead


def users_namespaces(error: BaseException) -> Iterable[dict[str, Any]]:
    """The names of the user's modules, and of functions without one through which an error came."""
    found = []
    for name, module in list(sys.modules.items()):
        if type(module) is ModuleType:  # a subclass may load what it stands for
            file = vars(module).get("__file__")
            if name == "__main__" or (isinstance(file, str) and not is_of_library(file)):
                found.append(vars(module))
    at = error.__traceback__
    while at is not None:
        if not is_of_library(at.tb_frame.f_code.co_filename):
            found.append(at.tb_frame.f_globals)
        at = at.tb_next
    return {id(names): names for names in found}.values()


def replacements() -> dict[tuple[ModuleType, str], Any]:
    """The functions that replace those of NumPy and `math`, by module and name."""
    from ge2 import numpy as ours  # here: they are made of traced values themselves
    from ge2.numpy.lib import stride_tricks
    from ge2.numpy.rare import special

    plain = {name: getattr(np, theirs) for name, theirs in OF_NUMPY.items()}
    plain |= {name: getattr(special, theirs) for name, theirs in OF_SPECIAL.items()}
    plain |= {name: getattr(np, name) for name in TO_INTEGERS}
    plain["log"] = logarithm
    found: dict[tuple[ModuleType, str], Any] = {
        (math, name): of_numbers(getattr(math, name), instead)
        for name, instead in plain.items()
        if hasattr(math, name)  # cbrt and exp2 are of Python 3.11
    }
    for home in HOMES:
        for name, f in vars(home).items():
            if isinstance(f, np.ufunc | type(np.sum)):
                found[home, name] = Instead(f, of_lists(f))
    for name in (*EMPTY, *GIVEN):
        original = getattr(np, name)
        found[np, name] = Instead(original, maker(original, getattr(ours, name), name in GIVEN))
    scalars = {kind: ScalarType(kind) for kind in SCALARS}
    for name, kind in vars(np).items():
        if isinstance(kind, type) and kind in SCALARS:
            found[np, name] = scalars[kind]
    tricks = np.lib.stride_tricks
    found[tricks, "as_strided"] = Instead(tricks.as_strided, stride_tricks.as_strided)
    for name in JOINERS:
        found[np, name] = Joiner(getattr(np, name), getattr(ours, name))
    return found


def logarithm(x: Any, base: Any = None) -> Any:
    return np.log(x) if base is None else np.log(x) / np.log(base)


def of_lists(original: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays that takes lists of traced values, too, as NumPy takes those of numbers."""

    def called(*args: Any, **kwargs: Any) -> Any:
        if original.__name__ in SWALLOWING:
            return original(*map(as_one, args), **kwargs)
        try:
            return original(*args, **kwargs)
        except (*OF_REAL_ARRAYS, TracerBoolConversionError):
            given = [as_one(x) for x in args]
            named = {name: as_one(x) for name, x in kwargs.items()}
            if all(
                a is b
                for a, b in zip((*args, *kwargs.values()), (*given, *named.values()), strict=True)
            ):
                raise
        return original(*given, **named)

    return called


def as_one(x: Any) -> Any:
    """A list in which there are traced values as one array."""
    from ge2.numpy import array  # here: it is made of traced values itself

    return array(x) if type(x) in (list, tuple) and holds_traced(x) else x


def holds_traced(x: Sequence[Any]) -> bool:
    return any(is_traced(y) or (type(y) in (list, tuple) and holds_traced(y)) for y in x)


def maker(
    original: Callable[..., Any], ours: Callable[..., Any], given: bool
) -> Callable[..., Any]:
    """`ours`, where it knows how, in place of `original`: not for strings, objects and records.
    `given`: of elements, which in the first turn NumPy makes if it can.
    """

    def made(*args: Any, **kwargs: Any) -> Any:
        if is_traced(kwargs.get("like")):  # an array that ours made
            del kwargs["like"]
        first, second = (original, ours) if given and turn() == TURNS[0] else (ours, original)
        try:
            return first(*args, **kwargs)
        except (Ge2Error, TypeError, ValueError):
            return second(*args, **kwargs)  # or its error

    return made


def of_numbers(original: Callable[..., Any], numpys: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, but NumPy's function of the same meaning where a function of the user's calls it
    with traced real numbers. As Python's it computes in float64, and gives a Python number.
    """
    name = original.__name__
    counts = (1, 2) if name == "log" else (2,) if name in OF_TWO else (1,)

    @wraps(original)
    def computed(*args: Any) -> Any:
        traced = [a for a in args if is_traced(a)]
        plain = all(not a.type.shape and a.type.dtype.kind != "c" for a in traced)
        if not traced or not plain or len(args) not in counts or not for_user():
            return original(*args)
        y = numpys(*[a.astype(np.float64) if is_traced(a) else a for a in args])
        if name in TO_INTEGERS:
            y = y.astype(np.int64)
        return y if y.type.dtype == np.bool_ else ConvertElementType(y.type.dtype, weak=True)(y)

    return computed


@final
class Joiner:
    """`np.r_` and `np.c_`, which take what they join as an index."""

    def __init__(self, original: Any, ours: Any) -> None:
        self.original, self.ours = original, ours

    def __getitem__(self, key: Any) -> Any:
        if not for_user():
            return self.original[key]
        try:
            return self.original[key] if turn() == TURNS[0] else self.ours[key]
        except (Ge2Error, TypeError, ValueError):
            return self.ours[key]
