"""NumPy's functions over values: traced ones are recorded, arrays are computed with.

The names, arguments, defaults and dtypes are NumPy's. What differs: half types keep their dtype in
products and reductions, which accumulate in float32, and bfloat16 and fp8 promote as float16 does.
"""

from typing import Any as _Any

import numpy as _np

# isort: off
# fmt: off
from ge2.base.tracebacks import hides as _hides
from ge2.base.tracebacks import publish as _publish
from ge2.numpy import rare as rare
from ge2.numpy.composite import (
    allclose, angle, argwhere, around, array_equal, array_equiv, astype, clip, copy, finfo, fix,
    flatnonzero, iinfo, imag, isclose, iscomplex, iscomplexobj, isneginf, isposinf, isreal, isrealobj,
    nan_to_num, nonzero, real, round, select, sinc, where,
)
from ge2.numpy.creation import (
    arange, array, asanyarray, asarray, ascontiguousarray, diag_indices_from, empty, empty_like, eye,
    full, full_like, geomspace, identity, indices, iota, linspace, logspace, ones, ones_like, tri,
    tril_indices_from, triu_indices_from, vander, zeros, zeros_like,
)
from ge2.numpy.rare import (
    bfloat16, bool_, can_cast, complex128, complex64, dtype, e, euler_gamma, float16, float32,
    float64, float8_e4m3fn, float8_e5m2, inf, int16, int32, int64, int8, isdtype, isscalar,
    issubdtype, iterable, nan, ndarray, ndim, newaxis, pi, promote_types, result_type, shape, size,
    uint16, uint32, uint64, uint8,
)
from ge2.numpy.elementwise import (
    abs, absolute, acos, acosh, add, arccos, arccosh, arcsin, arcsinh, arctan, arctan2, arctanh, asin,
    asinh, atan, atan2, atanh, bitwise_and, bitwise_count, bitwise_invert, bitwise_left_shift,
    bitwise_not, bitwise_or, bitwise_right_shift, bitwise_xor, cbrt, ceil, conj, conjugate, copysign,
    cos, cosh, deg2rad, degrees, divide, divmod, equal, exp, exp2, expm1, fabs, float_power, floor,
    floor_divide, fmax, fmin, fmod, frexp, gcd, greater, greater_equal, heaviside, hypot, invert,
    isfinite, isinf, isnan, isnat, lcm, ldexp, left_shift, less, less_equal, log, log10, log1p, log2,
    logaddexp, logaddexp2, logical_and, logical_not, logical_or, logical_xor, maximum, minimum, mod,
    modf, multiply, negative, nextafter, not_equal, positive, pow, power, rad2deg, radians, reciprocal,
    remainder, right_shift, rint, sign, signbit, sin, sinh, spacing, sqrt, square, subtract, tan, tanh,
    true_divide, trunc,
)
from ge2.numpy.composite import (
    append, array_split, block, column_stack, concat, concatenate, dsplit, dstack, hsplit, hstack,
    split, stack, unstack, vsplit, vstack,
)
from ge2.numpy.access.selecting import getitem, setitem
from ge2.numpy.products import (
    cross, dot, dot_general, einsum, inner, kron, matmul, matvec, outer, tensordot, trace, vdot, vecdot,
    vecmat,
)
from ge2.numpy.axes.scans import argmax, argmin, nanargmax, nanargmin
from ge2.numpy.axes import (
    all, amax, amin, any, average, count_nonzero, logsumexp, max, mean, min, nanmax, nanmean,
    nanmin, nanprod, nanstd, nansum, nanvar, prod, ptp, std, sum, var,
)
from ge2.numpy.axes.scans import (
    cummax, cummin, cumprod, cumsum, cumulative_prod, cumulative_sum, diff, ediff1d, nancumprod,
    nancumsum, trapezoid, unwrap,
)
from ge2.numpy.access.selecting import (
    choose, compress, copyto, extract, fill_diagonal, ix_, one_hot, place, put, put_along_axis, putmask,
    repeat, take, take_along_axis, unravel_index,
)
from ge2.numpy.shapes import (
    atleast_1d, atleast_2d, atleast_3d, broadcast_arrays, broadcast_shapes, broadcast_to, diag, diagflat,
    diagonal, expand_dims, flip, fliplr, flipud, matrix_transpose, meshgrid, moveaxis, permute_dims,
    ravel, reshape, roll, rollaxis, rot90, squeeze, swapaxes, tile, transpose, tril, triu,
)
from ge2.numpy.axes.scans import convolve, corrcoef, correlate, cov, gradient, polyval
from ge2.numpy.axes.sorting import (
    argpartition, argsort, digitize, interp, isin, median, partition, percentile, quantile,
    searchsorted, sort,
)
from ge2.numpy.elementwise import UFUNCS, operators
from numpy import __array_api_version__, __array_namespace_info__
from ge2.numpy.rare import OUT_AT, SHARING, as_ufuncs, functions, sharing, ufunc_method, writing

__all__ = [  # noqa: RUF022 the tables first
    "FUNCTIONS", "UFUNCS", "__array_api_version__", "__array_namespace_info__",
    "fft", "lib", "linalg", "operators", "ufunc_method",
    "abs", "absolute", "acos", "acosh", "add", "all", "allclose", "amax", "amin", "angle", "any",
    "append", "arange", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh",
    "argmax", "argmin", "argpartition", "argsort", "argwhere", "around", "array", "array_equal",
    "array_equiv", "array_split", "asanyarray", "asarray", "ascontiguousarray", "asin", "asinh",
    "astype", "atan", "atan2", "atanh", "atleast_1d", "atleast_2d", "atleast_3d", "average", "bfloat16",
    "bitwise_and", "bitwise_count", "bitwise_invert", "bitwise_left_shift", "bitwise_not", "bitwise_or",
    "bitwise_right_shift", "bitwise_xor", "block", "bool_", "broadcast_arrays", "broadcast_shapes",
    "broadcast_to", "can_cast", "cbrt", "ceil", "choose", "clip", "column_stack", "complex128",
    "complex64", "compress", "concat", "concatenate", "conj", "conjugate", "convolve", "copy",
    "copysign", "copyto", "corrcoef", "correlate", "cos", "cosh", "count_nonzero", "cov", "cross",
    "cummax", "cummin", "cumprod", "cumsum", "cumulative_prod", "cumulative_sum", "deg2rad", "degrees",
    "diag", "diag_indices_from", "diagflat", "diagonal", "diff", "digitize", "divide", "divmod", "dot",
    "dot_general", "dsplit", "dstack", "dtype", "e", "ediff1d", "einsum", "empty", "empty_like", "equal",
    "euler_gamma", "exp", "exp2", "expand_dims", "expm1", "extract", "eye", "fabs", "fill_diagonal",
    "finfo", "fix", "flatnonzero", "flip", "fliplr", "flipud", "float16", "float32", "float64",
    "float8_e4m3fn", "float8_e5m2", "float_power", "floor", "floor_divide", "fmax", "fmin", "fmod",
    "frexp", "full", "full_like", "gcd", "geomspace", "getitem", "gradient", "greater", "greater_equal",
    "heaviside", "hsplit", "hstack", "hypot", "identity", "iinfo", "imag", "indices", "inf", "inner",
    "int16", "int32", "int64", "int8", "interp", "invert", "iota", "isclose", "iscomplex",
    "iscomplexobj", "isdtype", "isfinite", "isin", "isinf", "isnan", "isnat", "isneginf", "isposinf",
    "isreal", "isrealobj", "isscalar", "issubdtype", "iterable", "ix_", "kron", "lcm", "ldexp",
    "left_shift", "less", "less_equal", "linspace", "log", "log10", "log1p", "log2", "logaddexp",
    "logaddexp2", "logical_and", "logical_not", "logical_or", "logical_xor", "logspace", "logsumexp",
    "matmul", "matrix_transpose", "matvec", "max", "maximum", "mean", "median", "meshgrid", "min",
    "minimum", "mod", "modf", "moveaxis", "multiply", "nan", "nan_to_num", "nanargmax", "nanargmin",
    "nancumprod", "nancumsum", "nanmax", "nanmean", "nanmin", "nanprod", "nanstd", "nansum", "nanvar",
    "ndarray", "ndim", "negative", "newaxis", "nextafter", "nonzero", "not_equal", "one_hot", "ones",
    "ones_like", "outer", "partition", "percentile", "permute_dims", "pi", "polyval", "positive",
    "place", "pow", "power", "prod", "promote_types", "ptp", "put", "put_along_axis", "putmask", "quantile",
    "rad2deg", "radians", "ravel", "real", "reciprocal", "remainder", "repeat", "reshape", "result_type",
    "right_shift", "rint", "roll", "rollaxis", "rot90", "round", "searchsorted", "select", "setitem",
    "shape", "sign", "signbit", "sin", "sinc", "sinh", "size", "sort", "spacing", "split", "sqrt",
    "square", "squeeze", "stack", "std", "subtract", "sum", "swapaxes", "take", "take_along_axis", "tan",
    "tanh", "tensordot", "tile", "trace", "transpose", "trapezoid", "tri", "tril", "tril_indices_from",
    "triu", "triu_indices_from", "true_divide", "trunc", "uint16", "uint32", "uint64", "uint8",
    "unravel_index", "unstack", "unwrap", "vander", "var", "vdot", "vecdot", "vecmat", "vsplit",
    "vstack", "where", "zeros", "zeros_like",
]

# fmt: on

FUNCTIONS = functions(globals(), __all__)  # from NumPy's function objects to the functions here
as_ufuncs(UFUNCS)
__all__.extend(rare.OFFERED)
globals().update({name: writing(globals()[name], name) for name in OUT_AT if name in globals()})
globals().update({name: sharing(globals()[name], getattr(_np, name)) for name in SHARING})
_publish(globals())


def __getattr__(name: str) -> _Any:
    try:
        found = rare.find(name)
    except KeyError:
        raise AttributeError(rare.lacking(name)) from None
    globals()[name] = found
    return found


globals()["__getattr__"] = _hides(__getattr__)  # not by @: types are checked by the function


def __dir__() -> list[str]:
    return sorted({*__all__, *rare.PARTS})
