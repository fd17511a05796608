"""Operations on one element at a time: their base, and the headers of their expressions."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from functools import cache
from typing import Any, final

import numpy as np

from ge2.base.arrays import BOOL, COMPLEX, EXTENDED, FLOAT32, HALF, INTEGERS, SHORT
from ge2.base.errors import ShapeError, TypeRuleError
from ge2.base.record import hashed_record, record
from ge2.base.source import templates
from ge2.ir import (
    ArrayType,
    Axes,
    Axis,
    Batched,
    Cotangents,
    Dims,
    Flags,
    Lowering,
    Number,
    Op,
    Value,
    Values,
)
from ge2.ir.graph import BRANCHING, SIMPLE, CostClass

# -------- The base of operations on one element at a time, and the makers of their tables.


Partial = Callable[..., Value | Number]  # dy/dx of (y, *xs)
Numpy = Callable[..., Any]
KINDS = {"b": "bool", "i": "integer", "f": "float", "c": "complex"}


@record
class Pointwise(Lowering):
    """One expression per element, in functions of `templates/*/include`; `{0}`, ... are the inputs.

    `header` says by its subject which header defines them; each target knows the file. `numpy` is
    how NumPy writes the result to `{y}`, in statements parted by `; `, where the operation is no
    ufunc. A user's own expression may be in functions of `helpers`, and be another one in `cuda`.
    """

    expression: str
    helpers: str = ""
    cuda: str = ""
    header: str = "basic"
    numpy: str = ""


KIND: dict[np.dtype, str] = {BOOL: "b"}
KIND.update((d, "i") for d in INTEGERS)
KIND.update((d, "c") for d in COMPLEX)


def kind(dtype: np.dtype) -> str:
    """b, i, f or c: what a table's column `takes` is made of."""
    return KIND.get(dtype, "f")


def same(dtype: np.dtype) -> np.dtype:
    return dtype


def boolean(dtype: np.dtype) -> np.dtype:
    return BOOL


class Pointlike(Op):
    """The base of all operations on single elements: shapes, batching."""

    __slots__ = ()
    cost: CostClass = BRANCHING
    through_float32: bool = True  # half types may be computed in float32 and rounded

    def shape_of(self, types: Sequence[ArrayType]) -> Dims:
        """The one shape of the operands that are not scalars."""
        shape: Dims = ()
        for t in types:
            if t.shape and t.shape != shape:
                if shape:
                    listed = ", ".join(map(str, types))
                    raise ShapeError(
                        f"{self.name} takes arrays of one shape, or scalars; got {listed}",
                        fix="np.broadcast_to(x, shape), or the function of that name, which broadcasts",
                    )
                shape = t.shape
        return shape

    def batch(self, xs: Values, axes: Axes, size: int) -> Batched:
        pairs = list(zip(xs, axes, strict=True))
        shape = max(
            (x.shape if a is None else x.shape[:a] + x.shape[a + 1 :] for x, a in pairs), key=len
        )
        return (self(*(stretch(x, a, (size, *shape)) for x, a in pairs)),), (0,)


def stretch(x: Value, axis: Axis, shape: Dims) -> Value:
    """Repeats `x` along the axes of `shape` it lacks; a shared scalar stays a scalar."""
    if axis is not None:
        x = x.move_axis(axis, 0)
        return x.spread(shape, tuple(range(x.ndim)))
    return x.spread(shape, tuple(range(1, x.ndim + 1))) if x.ndim else x


def sum_to(x: Value, shape: Dims) -> Value:
    """Undoes the repetition of a scalar operand."""
    return x.fold_sum(tuple(range(x.ndim))) if x.ndim and not shape else x


def in_float32(f: Callable[..., Any]) -> Callable[..., Any]:
    """The meaning for half types that NumPy does not know: computed in float32, rounded once."""

    def reference(*xs: Any) -> Any:
        dtype = getattr(xs[0], "dtype", None)
        if dtype not in EXTENDED:
            return f(*xs)
        y = f(*(x.astype(FLOAT32) for x in xs))
        return y.astype(dtype) if y.dtype == FLOAT32 else y

    return reference


@final
@hashed_record
class Elementwise(Pointlike):
    """An operation on scalars, applied to each element of arrays of one shape and dtype.

    `partials` has dy/dx for each input, None where it is zero throughout. An operation that is not
    holomorphic says itself how it pushes tangents and pulls cotangents (`push`, `pull`).
    """

    name: str
    ufunc: Callable[..., Any] = field(compare=False, repr=False)
    takes: str = field(compare=False, repr=False)
    lowering: Pointwise = field(compare=False, repr=False)
    partials: tuple[Partial | None, ...] = field(compare=False, repr=False)
    result: Callable[[np.dtype], np.dtype] = field(compare=False, repr=False, default=same)
    push: Callable[..., Value] | None = field(compare=False, repr=False, default=None)
    pull: Callable[..., Cotangents] | None = field(compare=False, repr=False, default=None)
    through_float32: bool = field(compare=False, repr=False, default=True)
    cost: CostClass = field(compare=False, repr=False, default=BRANCHING)
    linear: bool = field(compare=False, repr=False, default=False)
    exact: bool = field(compare=False, repr=False, default=False)
    jumps: bool = field(compare=False, repr=False, default=False)
    dense: bool = field(compare=False, repr=False, default=False)  # see `unary`
    # the same of Python numbers
    python: Numpy | None = field(compare=False, repr=False, default=None)
    edition: int = field(repr=False, default=0)  # of a user's own, which may be defined again

    def params(self) -> dict[str, Any]:
        return {}

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        widest = types[0]
        dtype = widest.dtype
        for t in types:
            if t.dtype is not dtype and t.dtype != dtype:
                raise self.refuse("arrays of one dtype", types)
            if t.shape and t.shape != widest.shape:
                if widest.shape:
                    self.shape_of(types)  # raises
                widest = t
        if len(types) != len(self.partials):
            raise self.refuse(f"{len(self.partials)} arrays", types)
        if kind(dtype) not in self.takes:
            raise self.refuse(" or ".join(KINDS[k] for k in self.takes) + " arrays", types)
        if self.edition:
            self.check_calls(dtype)
        if self.result is same and not widest.weak:
            return (widest,)  # the type itself: most equations have that of an operand
        return (ArrayType(widest.shape, self.result(dtype), all(t.weak for t in types)),)

    def check_calls(self, dtype: np.dtype) -> None:
        """TypeRuleError if the expression calls a function that no header defines."""

        check_calls(self.name, self.lowering, dtype, self.result(dtype))

    def refuse(self, wanted: str, types: Sequence[ArrayType]) -> TypeRuleError:
        listed = ", ".join(map(str, types))
        what = f"{self.name} takes {wanted}; got {listed}"
        return TypeRuleError(what, fix="the function of ge2.numpy, which promotes, or x.astype")

    def reference(self, *arrays: Any) -> Any:
        if self.through_float32 and getattr(arrays[0], "dtype", None) in EXTENDED:
            return in_float32(self.ufunc)(*arrays)
        return self.ufunc(*arrays)

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        (ct,), (y,) = cts, ys
        if self.pull is not None:
            return self.pull(ct, y, *xs)
        return [
            sum_to(scaled(ct, p(y, *xs)), x.shape) if p is not None and w else None
            for p, x, w in zip(self.partials, xs, wanted, strict=True)
        ]

    def jvp(self, ts: Cotangents, ys: Values, xs: Values) -> Cotangents:
        (y,) = ys
        if self.push is not None:
            return [self.push(ts[0], y, *xs)]
        total: Value | None = None
        for t, p in zip(ts, self.partials, strict=True):
            if t is not None and p is not None:
                term = scaled(t, p(y, *xs))
                term = term.spread(y.shape, ()) if term.ndim < y.ndim else term
                total = term if total is None else total + term
        return [total]


def scaled(ct: Value | None, by: Value | Number) -> Value:
    """A cotangent times a partial derivative, without a product by 1 or -1."""
    assert ct is not None
    if issubclass(type(by), int | float):
        return ct if by == 1 else -ct if by == -1 else ct * by
    return ct * by


# The makers of tables. `dense`: NumPy's loop goes wrong where both its input and its output have
# gaps between their elements (seen in NumPy 2.4.6).


def unary(
    name: str, f: Numpy, takes: str, cost: CostClass, c: str, d: Partial | None,
    header: str = "basic", numpy: str = "", **more: Any,
) -> Elementwise:  # fmt: skip
    lowering = Pointwise(c, header=header, numpy=numpy)
    return Elementwise(name, f, takes, lowering, (d,), cost=cost, **more)


def binary(
    name: str, f: Numpy, takes: str, cost: CostClass, c: str, da: Partial | None, db: Partial | None,
    header: str = "basic", **more: Any,
) -> Elementwise:  # fmt: skip
    return Elementwise(name, f, takes, Pointwise(c, header=header), (da, db), cost=cost, **more)


def test(name: str, f: Numpy, takes: str, c: str, **more: Any) -> Elementwise:
    return Elementwise(name, f, takes, Pointwise(c), (None,), boolean, cost=SIMPLE, **more)


def relation(name: str, f: Numpy, takes: str, c: str, python: Numpy) -> Elementwise:
    return Elementwise(
        name, f, takes, Pointwise(c), (None, None), boolean, cost=SIMPLE, python=python
    )


# -------- Functions that an expression may call: those that the headers of each target define.


CALL = re.compile(r"\b([A-Za-z_]\w*)((?:\$t\w*)?)(?:<-?\w+>)?\s*\(")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
DEFINE = re.compile(r"^[ \t]*#[ \t]*define (\w+)\(([^)]*)\)(.*)$", re.MULTILINE)
OURS = re.compile(r"\bge2_\w+")
# a macro of a header in C that is called for a type, where a source needs that
OF_A_TYPE = re.compile(r"(?<!define )\bGE2_FOR\((\w+), *")
LONGEST = 1000  # characters of the arguments of a macro
# ISO C 9899:1999, 7.12, and what CUDA has beside it; each is there with an f, too
MATH = (
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 "
    "fabs fdim floor fma fmax fmin fmod frexp hypot ilogb isfinite isinf isnan isnormal ldexp "
    "lgamma llrint llround log log10 log1p log2 logb lrint lround modf nan nearbyint nextafter "
    "pow remainder remquo rint round scalbln scalbn signbit sin sinh sqrt tan tanh tgamma trunc "
    "abs labs j0 j1 jn y0 y1 yn sizeof"
)
CUDA = (
    "cospi sinpi cyl_bessel_i0 cyl_bessel_i1 erfcinv erfcx erfinv exp10 max min norm norm3d "
    "norm4d normcdf normcdfinv rcbrt rhypot rnorm rsqrt"
)


@cache
def targets() -> tuple[str, ...]:
    """The targets that have headers, by the names of their folders."""
    return tuple(n for n in sorted(os.listdir(templates())) if os.path.isdir(folder(n)))


def folder(target: str) -> str:
    return templates(target, "include", "ge2")


@cache
def defined(target: str) -> frozenset[str]:
    """Our functions that the headers of a target define; those that a macro defines are written out.

    >>> {"ge2_tanh_f32", "ge2_erf_f64"} <= defined("c") & defined("cuda")
    True
    """
    from pathlib import Path  # hardly ever needed

    folders = folder(target), templates("include", "ge2")
    paths = (os.path.join(each, name) for each in folders for name in sorted(os.listdir(each)))
    text = "\n".join(Path(path).read_text("utf-8") for path in paths)
    text = OF_A_TYPE.sub(r"\1(", COMMENT.sub("", text.replace("\\\n", " ")))
    macros = {m[1]: (m[2].replace(" ", "").split(","), m[3]) for m in DEFINE.finditer(text)}
    pieces = {n: m for n, m in macros.items() if pastes(n, macros, frozenset())}
    return frozenset(OURS.findall(DEFINE.sub("", text))) | frozenset(
        name for piece in expanded(DEFINE.sub("", text), pieces) for name in OURS.findall(piece)
    )


Macros = dict[str, tuple[list[str], str]]


def pastes(name: str, macros: Macros, seen: frozenset[str]) -> bool:
    """True if the macro, or one that it names, makes names of pieces."""
    body = macros[name][1]
    inner = {n for n in re.findall(r"\w+", body) if n in macros} - seen
    return "##" in body or any(pastes(n, macros, seen | {name}) for n in inner)


def expanded(text: str, macros: Macros) -> Iterator[str]:
    """The body of each macro that is called in the text, with its arguments in it."""
    for call in re.finditer(rf"\b({'|'.join(macros) or '-'})\(", text):
        parameters, body = macros[call[1]]
        given = dict(zip(parameters, arguments(text, call.end()), strict=False))
        words = re.split(r"(\w+)", body)
        found = "".join(given.get(word, word) for word in words)
        found = re.sub(r"\s*##\s*", "", found)
        yield found
        yield from expanded(found, {n: m for n, m in macros.items() if n != call[1]})


def arguments(text: str, start: int) -> list[str]:
    """The arguments of a call whose parenthesis opens before `start`."""
    found, depth = [""], 0
    for c in text[start : start + LONGEST]:
        if c == ")" and not depth:
            break
        depth += (c in "({[") - (c in ")}]")
        if c == "," and not depth:
            found.append("")
        else:
            found[-1] += c
    return [each.strip() for each in found]


@cache
def lacking(code: Pointwise, target: str, dtype: np.dtype, to: np.dtype) -> tuple[str, ...]:
    """The functions that an expression of operands of a dtype calls, and that nothing defines.

    >>> lacking(Pointwise("ge2_sinn({0})"), "c", np.dtype("f4"), np.dtype("f4"))
    ('ge2_sinn_f32',)
    """
    short = SHORT[FLOAT32 if dtype in HALF else dtype]
    text = code.cuda or code.expression if target == "cuda" else code.expression
    helpers = code.helpers.replace("$t", short)
    names = [spelt(m[1], m[2], short, SHORT[to]) for m in CALL.finditer(text)]
    return tuple(n for n in names if not known(n, helpers, target))


def spelt(name: str, rest: str, short: str, to: str) -> str:
    """The name as it stands in a kernel, where the dtype is part of it."""
    if rest:
        return name + rest.replace("$t", short)
    if name == "ge2_cast":
        return f"ge2_cast_{short}_{to}"
    return f"{name}_{short}" if name.startswith("ge2_") else name


def known(name: str, helpers: str, target: str) -> bool:
    if re.search(rf"\b{name}\b", helpers) or "#include" in helpers:
        return True
    if name.startswith("ge2_"):
        return name in defined(target)
    if name.startswith("__"):  # the compiler's own
        return True
    words = f"{MATH} {CUDA}".split() if target == "cuda" else MATH.split()
    return name in words or name.removesuffix("f") in words


def check_calls(name: str, code: Pointwise, dtype: np.dtype, to: np.dtype) -> None:
    """TypeRuleError if the expression calls what the headers of some target do not define."""
    for target in targets():
        for function in lacking(code, target, dtype, to):
            from difflib import get_close_matches  # for errors alone

            near = get_close_matches(function, defined(target), 1)
            what = f"{name} calls {function}, which no header of target {target} defines"
            raise TypeRuleError(
                what, fix=" or ".join([*near, "a function of that name in helpers"])
            )
