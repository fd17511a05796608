"""NumPy's functions over values: traced ones are recorded, arrays are computed with.

The names, arguments, defaults and dtypes are NumPy's. What differs: half types keep their dtype in products
and reductions, which accumulate in float32, and bfloat16 and fp8 promote as float16 does.
"""

# fmt: off
from ge2.numpy import linalg as linalg
from ge2.numpy.composite import (
    allclose, angle, argwhere, around, array_equal, array_equiv, astype, clip, copy, finfo, fix,
    flatnonzero, iinfo, imag, isclose, iscomplex, iscomplexobj, isneginf, isposinf, isreal, isrealobj,
    nan_to_num, nonzero, real, round, select, sinc, where,
)
from ge2.numpy.creation import (
    arange, array, asanyarray, asarray, ascontiguousarray, empty, empty_like, eye, full, full_like,
    geomspace, identity, indices, iota, linspace, logspace, ones, ones_like, tri, vander, zeros,
    zeros_like,
)
from ge2.numpy.elementwise import (
    Function, abs, absolute, acos, acosh, add, arccos, arccosh, arcsin, arcsinh, arctan, arctan2,
    arctanh, asin, asinh, atan, atan2, atanh, bitwise_and, bitwise_count, bitwise_invert,
    bitwise_left_shift, bitwise_not, bitwise_or, bitwise_right_shift, bitwise_xor, cbrt, ceil, conj,
    conjugate, copysign, cos, cosh, deg2rad, degrees, divide, divmod, equal, exp, exp2, expm1, fabs,
    float_power, floor, floor_divide, fmax, fmin, fmod, frexp, gcd, greater, greater_equal, heaviside,
    hypot, invert, isfinite, isinf, isnan, isnat, lcm, ldexp, left_shift, less, less_equal, log, log10,
    log1p, log2, logaddexp, logaddexp2, logical_and, logical_not, logical_or, logical_xor, maximum,
    minimum, mod, modf, multiply, negative, nextafter, not_equal, positive, pow, power, rad2deg, radians,
    reciprocal, remainder, right_shift, rint, shaped, sign, signbit, sin, sinh, spacing, sqrt, square,
    subtract, tan, tanh, true_divide, trunc,
)
from ge2.numpy.reductions import (
    all, amax, amin, any, argmax, argmin, average, count_nonzero, logsumexp, max, mean, min, nanmax,
    nanmean, nanmin, nanprod, nanstd, nansum, nanvar, prod, ptp, std, sum, var,
)
from ge2.numpy.scans import (
    Function, accumulating, cummax, cummin, cumprod, cumsum, cumulative, cumulative_prod, cumulative_sum,
    diff, ediff1d, nancumprod, nancumsum, trapezoid, unwrap,
)
from ge2.numpy.shape import (
    append, array_split, atleast_1d, atleast_2d, atleast_3d, block, broadcast_arrays, broadcast_shapes,
    broadcast_to, column_stack, concat, concatenate, diag, diagflat, diagonal, dsplit, dstack,
    expand_dims, flip, fliplr, flipud, hsplit, hstack, matrix_transpose, meshgrid, moveaxis,
    permute_dims, ravel, repeat, reshape, roll, rollaxis, rot90, split, squeeze, stack, swapaxes, tile,
    trace, transpose, tril, triu, unstack, vsplit, vstack,
)
from ge2.numpy.elementwise import UFUNCS, operators
from ge2.numpy.tables import functions, ufunc_method

# fmt: on

__all__ = [
    "FUNCTIONS", "UFUNCS", "linalg", "operators", "ufunc_method",
    "Function", "Function", "abs", "absolute", "accumulating", "acos", "acosh", "add", "all", "allclose",
    "amax", "amin", "angle", "any", "append", "arange", "arccos", "arccosh", "arcsin", "arcsinh",
    "arctan", "arctan2", "arctanh", "argmax", "argmin", "argwhere", "around", "array", "array_equal",
    "array_equiv", "array_split", "asanyarray", "asarray", "ascontiguousarray", "asin", "asinh",
    "astype", "atan", "atan2", "atanh", "atleast_1d", "atleast_2d", "atleast_3d", "average",
    "bitwise_and", "bitwise_count", "bitwise_invert", "bitwise_left_shift", "bitwise_not", "bitwise_or",
    "bitwise_right_shift", "bitwise_xor", "block", "broadcast_arrays", "broadcast_shapes",
    "broadcast_to", "cbrt", "ceil", "clip", "column_stack", "concat", "concatenate", "conj", "conjugate",
    "copy", "copysign", "cos", "cosh", "count_nonzero", "cummax", "cummin", "cumprod", "cumsum",
    "cumulative", "cumulative_prod", "cumulative_sum", "deg2rad", "degrees", "diag", "diagflat",
    "diagonal", "diff", "divide", "divmod", "dsplit", "dstack", "ediff1d", "empty", "empty_like",
    "equal", "exp", "exp2", "expand_dims", "expm1", "eye", "fabs", "finfo", "fix", "flatnonzero", "flip",
    "fliplr", "flipud", "float_power", "floor", "floor_divide", "fmax", "fmin", "fmod", "frexp", "full",
    "full_like", "gcd", "geomspace", "greater", "greater_equal", "heaviside", "hsplit", "hstack",
    "hypot", "identity", "iinfo", "imag", "indices", "invert", "iota", "isclose", "iscomplex",
    "iscomplexobj", "isfinite", "isinf", "isnan", "isnat", "isneginf", "isposinf", "isreal", "isrealobj",
    "lcm", "ldexp", "left_shift", "less", "less_equal", "linspace", "log", "log10", "log1p", "log2",
    "logaddexp", "logaddexp2", "logical_and", "logical_not", "logical_or", "logical_xor", "logspace",
    "logsumexp", "matrix_transpose", "max", "maximum", "mean", "meshgrid", "min", "minimum", "mod",
    "modf", "moveaxis", "multiply", "nan_to_num", "nancumprod", "nancumsum", "nanmax", "nanmean",
    "nanmin", "nanprod", "nanstd", "nansum", "nanvar", "negative", "nextafter", "nonzero", "not_equal",
    "ones", "ones_like", "permute_dims", "positive", "pow", "power", "prod", "ptp", "rad2deg", "radians",
    "ravel", "real", "reciprocal", "remainder", "repeat", "reshape", "right_shift", "rint", "roll",
    "rollaxis", "rot90", "round", "select", "shaped", "sign", "signbit", "sin", "sinc", "sinh",
    "spacing", "split", "sqrt", "square", "squeeze", "stack", "std", "subtract", "sum", "swapaxes",
    "tan", "tanh", "tile", "trace", "transpose", "trapezoid", "tri", "tril", "triu", "true_divide",
    "trunc", "unstack", "unwrap", "vander", "var", "vsplit", "vstack", "where", "zeros", "zeros_like",
]

FUNCTIONS = functions(globals(), __all__)  # from NumPy's function objects to the functions here
