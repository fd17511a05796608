"""Functions that an expression may call: those that the headers of each target define."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache

import numpy as np

from ge2.base.dtypes import FLOAT32, HALF, SHORT
from ge2.base.errors import TypeRuleError
from ge2.base.source import templates
from ge2.ops.pointlike import Pointwise

CALL = re.compile(r"\b([A-Za-z_]\w*)((?:\$t\w*)?)(?:<-?\w+>)?\s*\(")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
DEFINE = re.compile(r"^[ \t]*#[ \t]*define (\w+)\(([^)]*)\)(.*)$", re.MULTILINE)
OURS = re.compile(r"\bge2_\w+")
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
    text = COMMENT.sub("", text.replace("\\\n", " "))
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
