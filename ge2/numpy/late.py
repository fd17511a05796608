"""Names of `ge2.numpy` that programs rarely need: a module is imported when one
of its names is asked for.

`MODULES` are functions of ours, `PASSED` NumPy's own objects, `REFUSED` what NumPy has and we have
not, with the reason and what to write instead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache, wraps
from importlib import import_module
from types import FunctionType
from typing import Any, final

import numpy as np

from ge2.base.tracebacks import hides_methods, published
from ge2.numpy.creation import OUTSIDE
from ge2.numpy.options import in_trace, into

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
        "delete", "insert", "packbits", "ravel_multi_index", "resize", "unpackbits",
    ),
    "rare.grids": ("c_", "mgrid", "ndenumerate", "ogrid", "r_", "sliding_window_view"),
    "rare.histograms": (
        "bincount", "histogram", "histogram2d", "histogram_bin_edges", "histogramdd", "nanmedian",
        "nanpercentile", "nanquantile",
    ),
    "rare.padding": ("pad",),
    "rare.polynomials": ("poly", "polyadd", "polyder", "polydiv", "polyfit", "polyint", "polymul", "polysub", "roots"),
    "rare.special": ("i0", "kaiser"),
}
OTHERS: dict[str, tuple[str, ...]] = {  # not in the main namespace: where NumPy keeps its own
    "lib.stride_tricks": ("sliding_window_view",),
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
        return getattr(import_module(f"ge2.{home}"), name, None)
    return find(name) if name in HOME and theirs(name) is function else None


def lacking(name: str) -> str:
    """The text of an error about a name that is not here: the reason and what
    to write, as NumPy has it.
    """
    if name in REFUSED:
        reason, fix = REFUSED[name]
        return f"ge2.numpy has no {name}: {reason}\n  try  {fix}"
    from difflib import get_close_matches  # for errors alone

    near = get_close_matches(name, [*HOME, *PASSED, *vars(np)], 1, cutoff=0.8)
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
    "split", "array_split", "hsplit", "vsplit", "dsplit", "unstack",
)  # fmt: skip


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


WRITING: dict[Function, Function] = {}  # one object under all of its names


def writing(ours: Function, name: str) -> Function:
    """The function, which with `out=` is NumPy's own: that asks the traced values among its arguments."""
    at = OUT_AT[name]

    @wraps(ours)
    def function(*args: Any, **more: Any) -> Any:
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
