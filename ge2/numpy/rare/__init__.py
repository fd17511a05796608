"""Names of NumPy's that are no functions of elements: dtypes, constants, and functions that programs
rarely need, whose modules are imported when one is asked for.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache, wraps
from importlib import import_module
from types import FunctionType
from typing import Any, final

import ml_dtypes
import numpy as np

from ge2.base.arrays import (
    BOOL,
    COMPLEX,
    EXTENDED,
    FLOATS,
    INEXACT,
    INTEGERS,
    UINT8,
    promote,
    real_part,
)
from ge2.base.arrays import can_cast as allowed
from ge2.base.errors import ArgumentError, ShapeError
from ge2.base.source import here
from ge2.base.tracebacks import hides_methods, published
from ge2.ir import ArrayType, type_of
from ge2.numpy import elementwise
from ge2.numpy.access import getitem
from ge2.numpy.composite import stack
from ge2.numpy.creation import OUTSIDE
from ge2.numpy.promotion import (
    as_dtype,
    cast,
    in_trace,
    into,
    kind_of,
    lift,
    one_axis,
    reshape,
    result_of,
)
from ge2.ops.elementwise import COMPLEX_OF, IMAG, REAL_PART
from ge2.ops.sort import BitcastConvertType

# -------- Names of `ge2.numpy` that programs rarely need: a module is imported when one of its
# names is asked for.
# `MODULES` are functions of ours, `PASSED` NumPy's own objects, `REFUSED` what NumPy has and we
# have not, with the reason and what to write instead.


# fmt: off
MODULES: dict[str, tuple[str, ...]] = {
    "rare.applying": (
        "apply_along_axis", "apply_over_axes", "asfortranarray", "common_type", "einsum_path",
        "fromfunction", "lexsort", "min_scalar_type", "piecewise", "real_if_close", "require",
        "sort_complex",
        # of known elements NumPy's own
        "array2string", "array_repr", "array_str", "asarray_chkfinite", "bartlett", "blackman",
        "diag_indices", "fromiter", "hamming", "hanning", "intersect1d", "isfortran", "mask_indices",
        "may_share_memory", "save", "savetxt", "savez", "savez_compressed", "setdiff1d",
        "setxor1d", "shares_memory", "tril_indices", "trim_zeros", "triu_indices", "union1d", "unique",
        "unique_all", "unique_counts", "unique_inverse", "unique_values",
    ),
    "access.at": ("at",),
    "rare.editing": (
        "delete", "insert", "packbits", "poly", "polyadd", "polyder", "polydiv", "polyfit", "polyint",
        "polymul", "polysub", "ravel_multi_index", "resize", "roots", "unpackbits",
    ),
    "rare.grids": ("c_", "mgrid", "ndenumerate", "ogrid", "pad", "r_", "sliding_window_view"),
    "rare.histograms": (
        "bincount", "histogram", "histogram2d", "histogram_bin_edges", "histogramdd", "nanmedian",
        "nanpercentile", "nanquantile",
    ),
    "rare.special": ("i0", "kaiser"),
}
OTHERS: dict[str, tuple[str, ...]] = {  # not in the main namespace: where NumPy keeps its own
    "lib.stride_tricks": ("as_strided", "sliding_window_view"),
}
PASSED: tuple[str, ...] = (
    "False_", "ScalarType", "True_", "base_repr", "binary_repr", "bool", "broadcast", "byte", "bytes_",
    "cdouble", "character", "clongdouble", "complexfloating", "csingle", "double", "errstate", "exceptions",
    "flatiter", "flexible", "floating", "format_float_positional", "format_float_scientific", "from_dlpack",
    "frombuffer", "fromfile", "frompyfunc", "fromregex", "fromstring", "generic", "genfromtxt",
    "get_include", "get_printoptions", "getbufsize", "geterr", "geterrcall", "half", "index_exp", "inexact",
    "info", "int_", "intc", "integer", "intp", "little_endian", "load", "loadtxt", "long", "longdouble",
    "longlong", "mintypecode", "ndindex", "nditer", "nested_iters", "number", "object_", "poly1d",
    "printoptions", "random", "s_", "sctypeDict", "set_printoptions", "setbufsize", "seterr", "seterrcall",
    "short", "show_config", "show_runtime", "signedinteger", "single", "str_", "testing", "typecodes",
    "typename", "typing", "ubyte", "ufunc", "uint", "uintc", "uintp", "ulong", "ulonglong",
    "unsignedinteger", "ushort", "vectorize", "void",
)
TIMES = ("ge2 computes with booleans and numbers", "numpy, and x.astype('int64') for what is computed")
TEXTS = ("ge2 computes with booleans and numbers", "numpy itself")
MATRICES = ("a matrix multiplies with *, which arrays of numbers do not", "np.array, and @")
RECORDS = ("a record has fields of several dtypes", "a dict or a dataclass of arrays, which are pytrees")
INNER = ("it is a part of NumPy itself, not of arrays", "numpy itself")
REFUSED: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("busday_count", "busday_offset", "busdaycalendar", "datetime64", "datetime_as_string",
                     "datetime_data", "is_busday", "timedelta64"), TIMES),
    **dict.fromkeys(("char", "strings"), TEXTS),
    **dict.fromkeys(("asmatrix", "bmat", "matrix"), MATRICES),
    **dict.fromkeys(("rec", "recarray", "record"), RECORDS),
    **dict.fromkeys(("core", "ctypeslib", "f2py", "test", "__version__"), INNER),
    **dict.fromkeys(("complex256", "float128"), ("GPUs and vector units have no such numbers", "float64")),
    "emath": ("the dtype of its results depends on the values", "x.astype(complex) before np.sqrt"),
    "ma": ("a masked array is two arrays", "the data and a mask, with np.where"),
    "memmap": ("it lies in a file", "np.asarray(numpy.memmap(...))"),
    "polynomial": ("its classes hold plain coefficients", "np.polyval and its like"),
    "row_stack": ("NumPy takes it away", "np.vstack"),
}
EARLIER = {  # names of NumPy 1
    "Inf": "inf", "NaN": "nan", "alltrue": "all", "cumproduct": "cumprod", "float_": "float64", "in1d": "isin",
    "msort": "sort", "product": "prod", "sometrue": "any", "trapz": "trapezoid",
}
# fmt: on
LISTED = "docs/functions.md lists those it does"
PARTS = ("fft", "lib", "linalg")  # of NumPy, whole: modules here, too
OFFERED: list[str] = [*(n for names in MODULES.values() for n in names), *PASSED]
HOME = {name: module for module, names in MODULES.items() for name in names}
FROM_ELSEWHERE = {name: home for home, names in OTHERS.items() for name in names}


@cache
def find(name: str) -> Any:
    """The object of that name; KeyError if there is none."""
    if name in HOME:
        found = getattr(import_module(f"ge2.numpy.{HOME[name]}"), name)
        found = writing(found, name) if name in OUT_AT else found
        return published(found, "ge2.numpy") if type(found) is FunctionType else found
    if name in PASSED:
        return getattr(np, name)
    if name in PARTS:
        return import_module(f"ge2.numpy.{name}")
    raise KeyError(name)


def theirs(name: str) -> Any:
    """NumPy's object of that name; None if it has none."""
    found: Any = np
    for part in (*FROM_ELSEWHERE.get(name, "").split("."), name):
        found = getattr(found, part, None) if part else found
    return found


def ours_of(function: Any) -> Any:
    """Our function for one of NumPy's, if its module is one of `MODULES` or `PARTS`; else None."""
    name, home = getattr(function, "__name__", ""), getattr(function, "__module__", None) or ""
    if home.removeprefix("numpy.") in PARTS:
        found = getattr(import_module(f"ge2.{home}"), name, None)
        return SHARED.get(found, found)
    return find(name) if name in HOME and theirs(name) == function else None


def lacking(name: str) -> str:
    """The text of an error about a name that is not here: the reason and what
    to write, as NumPy has it.
    """
    if name in REFUSED:
        reason, fix = REFUSED[name]
        return f"ge2.numpy has no {name}: {reason}\n  try  {fix}"
    from difflib import get_close_matches  # for errors alone

    names = [] if name[:1] == "_" else [*HOME, *PASSED, *vars(np)]  # as `errors.lacking` does
    near = get_close_matches(name, names, 1, cutoff=0.8)
    known = [EARLIER[name]] if name in EARLIER else near
    other = f"np.{known[0]}" if known else f"ge2.extend.elementwise, or ge2.pure_callback; {LISTED}"
    return f"module 'ge2.numpy' has no attribute {name!r}\n  try  {other}"


# ------------------------------------------------------------------------------------------ tables
# From NumPy's own function objects to the functions of this package: what a
# traced value answers with.


Function = Callable[..., Any]


class Functions(dict[Function, Function]):
    """The table, which looks for what it lacks among the modules that are
    imported when asked for.
    """

    def __missing__(self, function: Function) -> Function:
        found = ours_of(function)
        if found is None:
            raise KeyError(function)
        self[function] = found
        return found  # type: ignore[no-any-return]


def functions(namespace: Mapping[str, Any], names: Iterable[str]) -> dict[Function, Function]:
    """NumPy's functions of those names, each with ours."""
    table: dict[Function, Function] = {}
    for name in names:
        # which would import numpy.fft
        theirs = None if name in PARTS else getattr(np, name, None)
        if callable(theirs) and not isinstance(theirs, np.ufunc | type):
            table[theirs] = namespace[name]
    return Functions(table)


# ------------------------------------------------------------------------------------ shared memory

# Functions whose result shares memory with what they were given; a traced value is notified, so
# that a later change in place is seen by both.
SHARING = (
    "transpose", "permute_dims", "swapaxes", "moveaxis", "rollaxis", "matrix_transpose", "reshape", "ravel",
    "squeeze", "expand_dims", "atleast_1d", "atleast_2d", "atleast_3d", "flip", "fliplr", "flipud", "rot90",
    "real", "imag", "broadcast_to", "broadcast_arrays", "diagonal", "diag", "einsum",
    "split", "array_split", "hsplit", "vsplit", "dsplit", "unstack", "nan_to_num",
)  # fmt: skip


SHARED: dict[Any, Function] = {}  # to each of them what it is without that


def sharing(ours: Function, theirs: Function) -> Function:
    """The function, telling a traced argument what NumPy's function makes of its memory."""

    @wraps(ours)
    def function(*args: Any, **more: Any) -> Any:
        if args and type(args[0]) is np.ndarray:
            args = (in_trace(args[0], OUTSIDE), *args[1:])
        y = ours(*args, **more)
        for x in (*args, *more.values()):
            told = getattr(x, "shared_by", None)
            if told is not None:
                return told(theirs, args, more, y)
        return y

    SHARED[function] = ours
    return function


# --------------------------------------------------------------------------------- arrays to write to

# Functions that take `out=`, each with the place of it among its arguments.
# fmt: off
OUT_AT = {
    **dict.fromkeys(("isneginf", "isposinf", "fix", "modf", "frexp"), 1),
    **dict.fromkeys((
        "all", "amax", "amin", "any", "argmax", "argmin", "around", "choose", "concat", "concatenate", "dot",
        "max", "median", "min", "nanargmax", "nanargmin", "nanmax", "nanmedian", "nanmin", "outer", "ptp",
        "round", "stack", "divmod", "matmul", "matvec", "vecdot", "vecmat",
    ), 2),
    **dict.fromkeys((
        "clip", "compress", "cumprod", "cumsum", "cumulative_prod", "cumulative_sum", "mean", "nancumprod",
        "nancumsum", "nanmean", "nanpercentile", "nanprod", "nanquantile", "nanstd", "nansum", "nanvar",
        "percentile", "prod", "quantile", "std", "sum", "take", "var",
    ), 3),
    "trace": 5,
    "einsum": sys.maxsize,
}
# fmt: on
OUT_OF: dict[Function, int] = {getattr(np, name): at for name, at in OUT_AT.items()}


REDUCTIONS = ("all", "amax", "amin", "any", "max", "mean", "min", "prod", "std", "sum", "var")
WRITING: dict[Function, Function] = {}  # one object under all of its names


def writing(ours: Function, name: str) -> Function:
    """The function, which with `out=` is NumPy's own: that asks the traced values among its arguments."""
    at, reduces = OUT_AT[name], name in REDUCTIONS

    @wraps(ours)
    def function(*args: Any, **more: Any) -> Any:
        if reduces and args and hasattr(type(args[0]), "reduced"):  # of what a mask chooses
            return args[0].reduced(getattr(np, name), *args[1:], **more)
        if more.get("out") is None and (len(args) <= at or args[at] is None):
            return ours(*args, **more)
        return into(getattr(np, name), args, more)

    return WRITING.setdefault(ours, function)


# -------------------------------------------------------------------------------- methods of ufuncs


def ufunc_method(ufunc: np.ufunc, method: str) -> Function:
    """Meaning of `ufunc.method` for traced values; where it has none, an error
    that says what to write.
    """
    from ge2.numpy.ufuncs import method_of  # programs that use none need not wait for it

    return method_of(ufunc, method)


@final
@hides_methods
class Method:
    """`reduce`, `accumulate`, `reduceat`, `outer` or `at` of a function that
    is a ufunc in NumPy.
    """

    __slots__ = ("name", "ufunc")

    def __init__(self, ufunc: np.ufunc, name: str) -> None:
        self.ufunc, self.name = ufunc, name

    def __call__(self, *args: Any, **more: Any) -> Any:
        return in_trace(into(getattr(self.ufunc, self.name), args, more))

    def __repr__(self) -> str:
        return f"<ge2.numpy.{self.ufunc.__name__}.{self.name}>"


DESCRIBED = ("identity", "nargs", "nin", "nout", "ntypes", "signature", "types")


def as_ufuncs(table: Mapping[np.ufunc, Function]) -> None:
    """Gives the functions the methods and attributes of NumPy's ufuncs."""
    for ufunc, function in table.items():
        described = {name: getattr(ufunc, name) for name in DESCRIBED}
        vars(function).update(described, **{name: Method(ufunc, name) for name in METHODS})


METHODS = ("accumulate", "at", "outer", "reduce", "reduceat")


# -------- Dtypes, questions about them, and constants, under NumPy's names.


bool_ = np.bool_
int8, int16, int32, int64 = np.int8, np.int16, np.int32, np.int64
uint8, uint16, uint32, uint64 = np.uint8, np.uint16, np.uint32, np.uint64
float16, float32, float64 = np.float16, np.float32, np.float64
complex64, complex128 = np.complex64, np.complex128
bfloat16, float8_e4m3fn, float8_e5m2 = (
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
)
dtype, ndarray = np.dtype, np.ndarray
e, pi, inf, nan, newaxis, euler_gamma = math.e, math.pi, math.inf, math.nan, None, np.euler_gamma

KINDS = {
    "bool": frozenset((BOOL,)), "numeric": INTEGERS | INEXACT, "integral": INTEGERS, "real floating": FLOATS,
    "complex floating": COMPLEX, "signed integer": frozenset(d for d in INTEGERS if d.kind == "i"),
    "unsigned integer": frozenset(d for d in INTEGERS if d.kind == "u"),
}  # fmt: skip


def isdtype(dtype: Any, kind: Any) -> bool:
    """True if a dtype is of a kind, or of one of several, as `numpy.isdtype`; half types are real
    floating.

    >>> isdtype(bfloat16, "real floating")
    True
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    found = np.dtype(dtype)
    if not isinstance(kind, str):
        return bool(found == np.dtype(kind))
    if kind not in KINDS:
        raise ArgumentError(
            f"kind argument is a string, but {kind!r} is not a known kind name.",
            where=here(),
            fix=", ".join(KINDS),
        )
    return found in KINDS[kind]


def result_type(*arrays_and_dtypes: Any) -> Any:
    """The dtype that holds all arguments, arrays or dtypes; Python numbers
    yield, as `numpy.result_type`.
    """
    return result_of(tuple([_kind(x) for x in arrays_and_dtypes]))


def _kind(x: Any) -> Any:
    if isinstance(x, np.dtype | type | str):
        return as_dtype(x)
    return kind_of(type_of(lift(x)))


def promote_types(type1: Any, type2: Any) -> Any:
    """The smallest dtype that holds both, as `numpy.promote_types`; half types promote as float16.

    >>> promote_types(bfloat16, float16)
    dtype('float32')
    """
    return promote(as_dtype(type1), as_dtype(type2))


def can_cast(from_: Any, to: Any, casting: str = "safe") -> bool:
    """True if a cast is allowed by a rule, as `numpy.can_cast`; of an array its dtype counts."""
    # np.float32 has one for its values
    of_value = hasattr(from_, "dtype") and not isinstance(from_, type)
    return allowed(as_dtype(from_.dtype if of_value else from_), as_dtype(to), casting)


def issubdtype(arg1: Any, arg2: Any) -> bool:
    """As `numpy.issubdtype`, with bfloat16 and fp8 under `numpy.floating`."""
    if arg1 in EXTENDED or arg1 in {d.type for d in EXTENDED}:
        return np.issubdtype(np.float16, arg2) if arg2 != np.float16 else False
    return np.issubdtype(arg1, arg2)


def shape(a: Any) -> tuple[int, ...]:
    """The shape of an array, as `numpy.shape`."""
    return type_of(lift(a)).shape


def ndim(a: Any) -> int:
    """The number of axes of an array."""
    return type_of(lift(a)).ndim


def size(a: Any, axis: int | tuple[int, ...] | None = None) -> int:
    """The number of elements of an array, or along some of its axes."""
    t = type_of(lift(a))
    if axis is None:
        return t.size
    axes = axis if isinstance(axis, tuple) else (axis,)
    return math.prod(t.shape[one_axis(each, t.ndim, a)] for each in axes)


def isscalar(element: Any) -> bool:
    """True if the argument is a number, not an array; weak traced values are numbers."""
    t = getattr(element, "type", None)
    return t.weak if t is not None and hasattr(t, "weak") else np.isscalar(element)


def iterable(y: Any) -> bool:
    """True if the argument has elements to go through."""
    return hasattr(y, "__iter__") and not (hasattr(y, "type") and not type_of(y).shape)


# -------------------------------------------------------------------------------------------- bits
# The bytes of an array as elements of another dtype, least significant byte first.


def view(x: Any, dtype: Any) -> Any:
    """The bytes of `x` as elements of another dtype, as `x.view(dtype)`.

    With elements of another size the last axis grows or shrinks. Real and imaginary
    parts are differentiated through; the bits of a number have no derivative. Raises
    ShapeError if the bytes do not suffice.

    >>> view(np.array([1.0, -0.0], np.float32), np.uint32)
    array([1065353216, 2147483648], dtype=uint32)
    >>> view(np.array([1 + 2j]), np.float64)
    array([1., 2.])
    """
    x, target = lift(x), as_dtype(dtype)
    t = type_of(x)
    if t.dtype == target:
        return cast(x, target)
    shape = viewed_shape(t, target)
    parts = UINT8 if target == BOOL else real_part(target)
    y = regrouped(parts_of(x), parts)
    pairs = reshape(y, (*shape, target.itemsize // parts.itemsize))
    first = getitem(pairs, (..., 0))
    if target in COMPLEX:
        return COMPLEX_OF(first, getitem(pairs, (..., 1)))
    return elementwise.not_equal(first, 0) if target == BOOL else first


def viewed_shape(t: ArrayType, target: np.dtype) -> tuple[int, ...]:
    old, new = t.dtype.itemsize, target.itemsize
    if old == new:
        return t.shape
    if not t.shape:
        what = f"view of {t} as {target}: an array of no axes keeps the size of its elements"
        raise ShapeError(what, where=here(), fix="x[None].view(dtype)")
    if t.shape[-1] * old % new:
        what = f"view of {t} as {target}: the last axis has {t.shape[-1] * old} bytes, no multiple of {new}"
        raise ShapeError(what, where=here(), fix="another dtype, or x padded along its last axis")
    return (*t.shape[:-1], t.shape[-1] * old // new)


def parts_of(x: Any) -> Any:
    """The real and imaginary parts, or the one number, of each element along the last axis."""
    t = type_of(x)
    if t.dtype in COMPLEX:
        pairs = stack([REAL_PART(x), IMAG(x)], -1)
        return reshape(pairs, (*t.shape[:-1], 2 * t.shape[-1]) if t.shape else (2,))
    x = cast(x, UINT8) if t.dtype == BOOL else x
    return x if t.shape else reshape(x, (1,))


def regrouped(x: Any, dtype: np.dtype) -> Any:
    """The bytes of the last axis as numbers of another dtype."""
    t = type_of(x)
    old, new = t.dtype.itemsize, dtype.itemsize
    if old == new:
        return same_size(x, dtype)
    bits, small = same_size(x, unsigned(old)), unsigned(min(old, new))
    shifts = [8 * small.itemsize * i for i in range(max(old, new) // small.itemsize)]
    if old > new:
        cut = [cast(elementwise.right_shift(bits, bits_type(s, bits)), small) for s in shifts]
        return same_size(reshape(stack(cut, -1), (*t.shape[:-1], t.shape[-1] * old // new)), dtype)
    groups = cast(
        reshape(bits, (*t.shape[:-1], t.shape[-1] * old // new, len(shifts))), unsigned(new)
    )
    y = getitem(groups, (..., 0))
    for i, s in enumerate(shifts[1:], 1):
        y = elementwise.bitwise_or(
            y, elementwise.left_shift(getitem(groups, (..., i)), bits_type(s, y))
        )
    return same_size(y, dtype)


def same_size(x: Any, dtype: np.dtype) -> Any:
    return x if type_of(x).dtype == dtype else BitcastConvertType(dtype)(x)


def unsigned(size: int) -> np.dtype:
    return np.dtype(f"u{size}")


def bits_type(number: int, like: Any) -> Any:
    """A number in the dtype of an array."""
    return type_of(like).dtype.type(number)
