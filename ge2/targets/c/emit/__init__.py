"""Emitters of C: the types and reductions that all of them write."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np

from ge2.base.arrays import (
    BFLOAT16,
    BOOL,
    COMPLEX,
    COMPLEX64,
    COMPLEX128,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    FP8,
    HALF,
)
from ge2.codegen.axes import Loop, Work
from ge2.codegen.kernel_values import Held, Param
from ge2.codegen.text import Text
from ge2.codegen.user_kernels import BITS as USER_BITS
from ge2.codegen.user_kernels import INTEGER, NAMED, Spelling, subjects
from ge2.codegen.user_kernels import SUFFIX as SUFFIX
from ge2.codegen.user_kernels import baked as baked
from ge2.ir import Graph
from ge2.ops.reduce import ArgReduce
from ge2.targets.c.tuning import Regions

# -------- How the vocabulary of lowerings is spelt in C: types, numbers handed over, which header
# has what.


STORED: dict[np.dtype, str] = {  # the type of an element of an array
    BOOL: "uint8_t", FLOAT32: "float", FLOAT64: "double",
    COMPLEX64: "float _Complex", COMPLEX128: "double _Complex", **INTEGER, **USER_BITS,
}  # fmt: skip
HELD = {**STORED, **dict.fromkeys(HALF, "float"), BOOL: "_Bool"}  # of a value between equations
GATHERED = {**HELD, BOOL: "uint8_t"}  # of a state: gcc 12 writes vectors of _Bool past their place
MEMBER = {"b": "i", "i": "i", "u": "i", "f": "f", "c": "c"}  # of ge2_number

C = Spelling(
    STORED,
    HELD,
    truth=("0", "1"),
    infinity=("__builtin_inff()", "__builtin_inf()"),
    nan=('__builtin_nanf("")', '__builtin_nan("")'),
    rounded=frozenset(("f16",)),
)
expression, retyped, spelt, number = C.expression, C.retyped, C.spelt, C.number


def helpers_of(text: str, dtype: np.dtype) -> tuple[str, ...]:
    """Returns what stands before kernels with a user's C in them; C's own functions are at hand
    there.
    """
    own = (textwrap.dedent(spelt(text, dtype)).strip(),) if text else ()
    return ("#include <math.h>", *own)


def argument(index: str, dtype: np.dtype) -> str:
    """A number that the caller handed over, as a value of that type."""
    if dtype in COMPLEX:
        f = "f32" if dtype.itemsize == 8 else "f64"
        return f"ge2_complex_{f}({index}.c[0], {index}.c[1])"
    if dtype in HALF:
        return f"(float){index}.f"
    return f"({HELD[dtype]}){index}.{MEMBER[dtype.kind]}"


# Which header defines a function: by the kind of the type it is named after, then by the function.
FLOAT_HEADERS = {  # by the subject that an operation names
    "exp": "float_exp", "log": "float_log", "trig": "float_trig", "power": "float_power",
    "erf": "special", "special": "special",
}  # fmt: skip
PARTS_HEADERS = {"exp": "complex_exp", **dict.fromkeys(("log", "log2", "log10"), "complex_log")}
BY_SIGN = {
    "ge2_random_": "random", "ge2_panel_": "panels", "ge2_slivers": "panels",
    "GE2_PRODUCT_WITH_ITSELF": "self_product", "GE2_PRODUCT_WITH_LINES": "vector_product",
    "GE2_PRODUCT_OF_LINES": "vector_product", "ge2_numpy_": "numpy_loops",
}  # fmt: skip
BY_FIRST = {  # the first word of a name
    **dict.fromkeys(("search", "sort", "top", "turned"), "sort"), "lines": "sort_lines",
    "select": "select", "transpose": "transpose", "index": "index", "random": "random",
}  # fmt: skip
BY_ANGLE = frozenset(("sin", "cos", "tan"))  # float64: functions that are called, a header each
REMAINDERS = frozenset(("fmod", "rem", "floor_div"))  # of floats
FOLDS = frozenset(("indexed", "first", "at", "argmax", "argmin", "compensate", "compensated"))


def headers(text: str) -> tuple[str, ...]:
    """The headers that a text needs, by the functions it names.

    >>> headers("ge2_add_f32(ge2_tanh_f32(x), ge2_cast_i32_f32(i))")
    ('cast', 'float_basic', 'float_exp')
    """
    found = {header(name, suffix) for name, suffix in NAMED.findall(text)}
    named = {header for sign, header in BY_SIGN.items() if sign in text}
    return tuple(sorted(found | named))


def types(text: str) -> tuple[str, ...]:
    """The types for which a text needs the functions of headers that have some for each.

    >>> types("ge2_add_i32(ge2_index_i64(x), ge2_cast_f64_i32(i))")
    ('i32', 'i64')
    """
    return tuple(sorted({suffix for _, suffix in NAMED.findall(text)}))


@cache
def header(name: str, suffix: str) -> str:
    if (name, suffix) == ("cast_f32", "f16"):  # by an instruction of the processor
        return "float16"
    if name.startswith("cast_") or name in ("cast", "rounded"):
        return "cast"
    if name.startswith("attend_"):
        return "attend"
    if name in FOLDS and suffix in ("c64", "c128"):
        return "complex"
    if name in FOLDS or name in ("lowest", "highest", "simd_max", "simd_min"):
        return "fold"
    if name.startswith("sort_value"):
        return "select"
    if (first := name.split("_")[0]) in BY_FIRST:
        return BY_FIRST[first]
    if suffix == "f64" and name in BY_ANGLE:
        return f"float_{name}"
    if suffix in ("f32", "f64") and name in REMAINDERS:
        return "float_remainder"
    if suffix in ("f32", "f64"):
        return (
            "complex"
            if name == "complex"
            else FLOAT_HEADERS.get(subjects().get(name, ""), "float_basic")
        )
    if suffix in ("c64", "c128"):
        return PARTS_HEADERS.get(name, "complex")
    return "bool" if suffix == "bool" else "integer"


# -------- Reductions in C: the state that gathers a result, how it begins, and how it takes in a
# value.


ADDED = ("reduce_sum", "reduce_prod")
EXTREME = ("reduce_max", "reduce_min")
WIDER = {FLOAT32: FLOAT64, COMPLEX64: COMPLEX128}
REAL = (FLOAT32, FLOAT64)
BITS = {
    "reduce_sum": "|", "reduce_or": "|", "reduce_max": "|",
    "reduce_prod": "&", "reduce_and": "&", "reduce_min": "&",
}  # fmt: skip


def op_of(w: Work) -> Any:
    assert w.step is not None and w.step.eqn is not None
    return w.step.eqn.op


def word(w: Work) -> str:
    """Returns what a reduction gathers, in a word: sum, max, argmin."""
    return str(op_of(w).name).removeprefix("reduce_")


def gathers_index(w: Work) -> bool:
    return isinstance(op_of(w), ArgReduce)


def state_dtype(w: Work) -> np.dtype:
    """Sums and products of floats are gathered in the next wider type."""
    dtype = w.xs[0].dtype
    return WIDER.get(dtype, dtype) if op_of(w).name in ADDED else dtype


def state_type(w: Work) -> str:
    return f"ge2_indexed_{SUFFIX[w.xs[0].dtype]}" if gathers_index(w) else GATHERED[state_dtype(w)]


def in_runs(w: Work) -> bool:
    """True if it is a sum or product of floats, taken in short runs, which a wide type gathers."""
    return w.xs[0].dtype in (*REAL, COMPLEX128) and op_of(w).name in ADDED


def compensated(w: Work) -> bool:
    """True if no wider type can gather the sums of runs: then what they round
    away is gathered too.
    """
    return op_of(w).name == "reduce_sum" and state_dtype(w) == w.xs[0].dtype


def run_length(works: Collection[Work], tuning: Regions) -> int:
    """Returns how many elements the wider type, or the compensated sum, takes in at once."""
    exact = [w.xs[0].dtype for w in works if compensated(w)]
    if COMPLEX128 in exact and not vectorises(works):  # which are added one by one
        return tuning.exact_run // 8
    return tuning.exact_run if exact else tuning.run


def apart(w: Work) -> bool:
    """True if an innermost loop looks for NaN beside the extreme itself, which is quicker."""
    return w.xs[0].dtype in REAL and op_of(w).name in EXTREME


def start(w: Work, dtype: np.dtype | None = None) -> str:
    """Returns what the state is of nothing at all."""
    text = op_of(w).lowering.start
    if "(" in text:
        return expression(text, [], w.xs[0].dtype, w.xs[0].dtype)
    return {"false": "0", "true": "1"}.get(text) or number(int(text), dtype or state_dtype(w))


def taken_in(w: Work, state: str, value: str, index: str = "", steady: bool = False) -> str:
    """The statement that takes a value into the state; `index` is its place along the axis. `steady`:
    it has no branch, as a loop around it has vectors.
    """
    op, dtype = op_of(w), w.xs[0].dtype
    if gathers_index(w):
        taken = expression(
            f"ge2_{op.name}_next({{0}}, {{1}}, {{2}})", [state, value, index], dtype, dtype
        )
        return f"{state} = {taken};"
    return merged(w, state, value, steady)


def taken_with_nan(
    w: Work, state: str, nan: str, value: str, index: str, comment: str
) -> tuple[Text, Text]:
    """The statements that take a float into the place of an extreme, and into that of the first NaN.

    With both in one state gcc chooses between truths, and has no vectors.
    """
    dtype = w.xs[0].dtype
    call = f"ge2_{op_of(w).name}_number({{0}}, {{1}}, {{2}})"
    taken = expression(call, [state, value, index], dtype, dtype)
    first = f"{nan} = ge2_least({nan}, {value} != {value} ? {index} : INT64_MAX);"
    return Text(first), Text(f"{state} = {taken};", comment)


def merged(w: Work, state: str, other: str, steady: bool = False) -> str:
    """The statement that makes one of two states."""
    op, dtype = op_of(w), w.xs[0].dtype
    if op.name in ADDED and dtype != BOOL and dtype not in COMPLEX:
        return f"{state} {'+' if op.name == 'reduce_sum' else '*'}= {other};"
    typed = dtype if gathers_index(w) else state_dtype(w)
    merge = op.lowering.merge if steady else running(op.lowering.merge, typed)
    return f"{state} = {expression(merge, [state, other], typed, typed)};"


def running(merge: str, dtype: np.dtype) -> str:
    """The expression that takes a value into a state: an extreme of floats by a branch."""
    if dtype not in REAL:
        return merge
    return merge.replace("ge2_max(", "ge2_running_max(").replace("ge2_min(", "ge2_running_min(")


def larger(w: Work, state: str, value: str) -> str:
    """The extreme of numbers that are not NaN."""
    return f"{state} = {value} {'>' if op_of(w).name == 'reduce_max' else '<'} {state} ? {value} : {state};"


def clause(w: Work) -> str:
    """Returns how OpenMP's `simd` is told of it; nothing where it cannot be, or need not.

    Whole numbers may be taken in any order, so that a compiler sees by itself what they fold to.
    What a clause names is an array over the lanes to gcc 12: it reads beyond it where a choice in the
    loop leaves a state as it is, for then it loads the state under a mask.
    """
    op, dtype = op_of(w), w.xs[0].dtype
    if gathers_index(w) or dtype in COMPLEX:
        return ""
    if (
        dtype.kind in "iu"
        and dtype.itemsize > 1
        and (dtype.itemsize > 2 or op.name != "reduce_prod")
    ):
        return ""
    if dtype == BOOL:
        return BITS[op.name]
    if op.name in EXTREME:
        return word(w) if apart(w) else f"ge2_{word(w)}_{SUFFIX[dtype]}"
    return {"reduce_sum": "+", "reduce_prod": "*"}[op.name]


def vectorises(works: Iterable[Work]) -> bool:
    """True if the compiler can take several elements of such a loop at a time."""
    folds = [w for w in works if w.kind == "fold" and not is_complex_sum(w)]
    return not any(gathers_index(w) or any(x.dtype in COMPLEX for x in w.xs) for w in folds)


def is_complex_sum(w: Work) -> bool:
    """True of a sum of complex numbers, which vectors take by parts."""
    return w.kind == "fold" and w.xs[0].dtype in COMPLEX and op_of(w).name == "reduce_sum"


def takes_computed(makers: Mapping[Held, Work]) -> bool:
    """True if extremes of floats, or their places, are of what the kernel computes: not of an array."""
    folds = (w for w in makers.values() if w.kind == "fold" and w.xs[0].dtype in REAL)
    found = (makers.get(w.xs[0]) for w in folds if apart(w) or gathers_index(w))
    return any(maker is not None and maker.kind == "compute" for maker in found)


def parts_of(part: str) -> tuple[Text, Text]:
    """The real sums that make a complex one, and that one once the loop has ended."""
    both = f"ge2_complex_f64({part}_re, {part}_im)"
    declared = f"double {part}_re = 0.0, {part}_im = 0.0;"
    return Text(declared), Text(f"const double _Complex {part} = {both};")


def by_parts(part: str, value: str, comment: str) -> list[Text]:
    """The statements that add a complex number to such sums."""
    return [
        Text(f"{part}_re += __real__ {value};", comment),
        Text(f"{part}_im += __imag__ {value};"),
    ]


def has_byte_floats(graph: Graph) -> bool:
    """True if an array has floats of a byte each, whose conversions are long."""
    types = (a.type.dtype for a in (*graph.inputs, *graph.outputs))
    return any(dtype in HALF and dtype.itemsize == 1 for dtype in types)


def few_lanes(works: Iterable[Work], tuning: Regions) -> int:
    """The elements that a loop has at once which has arrays of bytes, and many operations on numbers
    of four bytes or more; 0 of other loops. A vector of bytes would be several of each of those, all
    of them written out, which no register has; of few bytes all vectors are as short as theirs.
    """
    wide = [w for w in works if w.kind == "compute" and any(x.dtype.itemsize >= 4 for x in w.xs)]
    read = {x.dtype.itemsize for w in works for x in w.xs if isinstance(x.leaf, Param)}
    written = {w.param.var.type.dtype.itemsize for w in works if w.param is not None}
    if len(wide) < tuning.crowded or 1 not in read | written:
        return 0
    parts = {x.dtype.itemsize // (1 + (x.dtype.kind == "c")) for w in wide for x in w.xs}
    return tuning.beside_bytes[4 not in parts]


def bytes_of(ctype: str) -> int:
    """The size of a C type."""
    known = {"double": 8, "float": 4, "_Bool": 1, "float _Complex": 8, "double _Complex": 16}
    if ctype.startswith("ge2_indexed"):  # an index beside it
        return 24 if ctype.endswith("c128") else 16
    return known.get(ctype) or int("".join(filter(str.isdigit, ctype))) // 8


# simple operations of a conversion from and to float32, and of rounding a float32 to a half type
WIDENING = {FLOAT16: 12, BFLOAT16: 2, **dict.fromkeys(FP8, 12)}
NARROWING = {FLOAT16: 14, BFLOAT16: 8, **dict.fromkeys(FP8, 16)}


def converting(works: list[Work], outs: list[Param]) -> tuple[list[Work], list[Param]]:
    """The works with what conversions of half types cost, which no equation says."""
    for w in works:
        source, kept = w.xs[0].dtype if w.xs else None, w.step.eqn if w.step else None
        if w.kind == "compute" and kept is None:
            w.converting = WIDENING.get(source, 0)
        elif w.param is not None:
            w.converting = NARROWING.get(w.param.var.type.dtype, 0)
        elif w.y is not None and kept is not None and kept.op.name == "convert_element_type":
            w.converting = NARROWING.get(kept.outs[0].type.dtype, 0)
    return works, outs


def is_long(loop: Loop, root: Loop, sizes: Mapping[int, int], tuning: Regions) -> bool:
    """True if a loop goes over all elements of a large array, or a task of them, and does much."""
    spec, cost = loop.spec, sum(w.cost for w in loop.works)
    if spec is None or spec.role != "task" or loop.parent is not root or spec.axes[1:]:
        return False
    return sizes[spec.axes[0]] >= tuning.long and cost >= tuning.heavy


def wrapped(text: str) -> str:
    return f"({text})" if " " in text else text
