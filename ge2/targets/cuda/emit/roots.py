"""Divisors of several numbers: a root is made with its inverse, any other with its reciprocal.

A root and a division are each a dozen instructions and a branch, most of which are about operands
near the bounds of their type. A root of what is known to be no tiny number is far from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from ge2.base.arrays import FLOAT32, FLOAT64, HALF
from ge2.codegen.axes import Home, Work
from ge2.codegen.kernel_values import Held
from ge2.codegen.text import Text
from ge2.ir import Literal
from ge2.targets.cuda.emit.words import SUFFIX

Makers = Mapping[Held, Work]
DIVISOR = {FLOAT32: "ge2_divisor", FLOAT64: "ge2_divisor_of_f64"}  # prepared (`divide.cuh`)
LEAST = 2.0**-100  # whose root a kernel makes with its inverse (`include/ge2/root.cuh`), and more
MOST = 2.0**20  # numbers that are divided by it, and as little as one over this


def name_of(w: Work | None) -> str:
    """The operation of a work; "" for what is none."""
    eqn = None if w is None or w.step is None else w.step.eqn
    return eqn.op.name if w is not None and w.kind == "compute" and eqn is not None else ""


def is_rounding(w: Work) -> bool:
    return name_of(w) == "convert_element_type" and w.step.eqn.outs[0].type.dtype in HALF  # type: ignore[union-attr]


def divided_by(
    readers: Mapping[Held, Sequence[Work]], makers: Makers, homes: Mapping[Held, Home]
) -> dict[Held, list[Work]]:
    """The roots by which two numbers or more are divided, and those divisions."""
    found = {}
    for y, w in makers.items():
        if name_of(w) != "sqrt" or y.dtype != FLOAT32 or homes[y].dims:
            continue
        if least(w.xs[0], makers) < LEAST:
            continue
        over = [r for r in readers.get(y, ()) if is_over(r, y, makers)]
        if len(over) > 1:
            found[y] = over
    return found


def is_over(w: Work, root: Held, makers: Makers) -> bool:
    """True of a number that is divided by a root, or of one over the root."""
    if name_of(w) != "div" or w.xs[1] is not root:
        return False
    x = w.xs[0]
    while name_of(w := makers.get(x)) == "neg":  # type: ignore[assignment]
        (x,) = w.xs
    one = name_of(w) == "div" and is_moderate(w.xs[0]) and w.xs[1] is root
    return one or is_moderate(x)


def is_moderate(x: Held) -> bool:
    number = number_of(x)
    return number is not None and 1 / MOST <= abs(number) <= MOST


def number_of(x: Held) -> float | None:
    return float(x.leaf.value) if isinstance(x.leaf, Literal) else None  # type: ignore[arg-type]


def is_power(x: Held) -> bool:
    """True of a power of two, by which a product is exact."""
    number = number_of(x)
    return number is not None and abs(math.frexp(number)[0]) == 0.5


def least(x: Held, makers: Makers) -> float:
    """A number that no value is below, as far as the equations that make it tell.

    Sums, squares and absolute values of what is rounded keep to the bounds of exact ones.
    """
    number, w = number_of(x), makers.get(x)
    if number is not None:
        return number
    name = name_of(w)
    if w is None or not name:
        return -math.inf
    if name in ("square", "abs", "sqrt", "exp") or (name == "mul" and w.xs[0] is w.xs[1]):
        return 0.0
    if name == "multiply_add" and w.xs[0] is w.xs[1]:
        return least(w.xs[2], makers)
    if name == "add":
        return sum(least(each, makers) for each in w.xs)
    return -math.inf


def prepared(
    works: Iterable[Work],
    alike: Callable[[Held, Held], bool],
    fresh: Callable[[str], str],
    operand: Callable[[Held], str],
) -> tuple[dict[Held, str], list[Text]]:
    """The names of what many elements are divided by, brought into the form that quotients are made
    of, and the lines that bring it there. `alike`: whether elements of a dividend have one divisor.
    """
    found, lines = dict[Held, str](), list[Text]()
    for w in works:
        if w.step is None or w.step.eqn is None or w.step.eqn.op.name != "div" or w.y is None:
            continue
        x, by = w.xs
        if by in found or w.y.dtype not in DIVISOR or not alike(x, by):
            continue
        name = found[by] = fresh("by")
        made = f"ge2_divisor_{SUFFIX[w.y.dtype]}({operand(by)})"
        lines.append(Text(f"const {DIVISOR[w.y.dtype]} {name} = {made};"))
    return found, lines
