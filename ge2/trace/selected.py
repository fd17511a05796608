"""`x[mask]` of a traced mask, which has no shape to give: it lives as long as
`x[mask] += v` needs it.

The elements that a traced mask chooses are as many as its values say, so no traced value can stand
for them. But what is computed of each by itself and written back to where it came from needs no
count: it is computed of all elements, and kept where the mask holds. Elsewhere it is computed of
the first chosen element, so that no NaN of an element that was not chosen reaches a derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import numpy as np

from ge2 import numpy as gnp
from ge2.base.dtypes import can_cast
from ge2.base.errors import ConcretizationTypeError, InPlaceError, OutOfBoundsError
from ge2.base.source import Source, here
from ge2.base.tracebacks import hides_methods
from ge2.numpy.chosen import harmless
from ge2.numpy.composite import known_elements
from ge2.numpy.elementwise import UFUNCS
from ge2.numpy.indexing import as_mask, taken_in_turn

BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.divide, "floordiv": np.floor_divide,
    "mod": np.remainder, "pow": np.power, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "lshift": np.left_shift, "rshift": np.right_shift,
}  # fmt: skip
UNARY = {"neg": np.negative, "pos": np.positive, "abs": np.absolute, "invert": np.invert}


@final
@hides_methods
class Selected:
    """The elements that a traced mask chooses: those of `elements`, an
    array of all, where it holds.
    """

    __slots__ = ("elements", "mask", "of", "place")

    def __init__(self, elements: Any, mask: Any, of: str, place: Source | None) -> None:
        self.elements, self.mask, self.of, self.place = elements, mask, of, place

    def with_elements(self, elements: Any) -> Selected:
        return Selected(elements, self.mask, self.of, self.place)

    def of_elements(self, call: Callable[..., Any], *xs: Any) -> Selected:
        """The function of these elements, or of numbers, values in turn, and
        elements of the same mask.
        """
        return self.with_elements(call(*[self.at_each(x) for x in xs]))

    def at_each(self, x: Any) -> Any:
        """An operand as an array of the elements' shape, or what broadcasts to it."""
        if type(x) is Selected:
            if x.mask.atom is not self.mask.atom:
                raise x.error()
            return x.elements
        left = self.elements.shape[self.mask.ndim :]
        return taken_in_turn(gnp.asarray(x), self.mask, left) if np.ndim(x) > len(left) else x

    def updated(self, call: Callable[..., Any], other: Any) -> Selected:
        """The new elements of `x[mask] += other`, in the dtype of `x`."""
        new = self.of_elements(call, self, other)
        t, old = new.elements.type, self.elements.type
        if not can_cast(t.dtype, old.dtype, "same_kind"):
            what = f"x[mask] op= y: the result {t} cannot be cast to {old}"
            raise InPlaceError(what, where=here(), fix="x = x.astype(float) first")
        return self.with_elements(new.elements.astype(old.dtype))

    def written_to(self, x: Any, key: Any) -> Any:
        """`x` after `x[mask] = self`; an error for another mask than the one of these elements."""
        mask = mask_in(key)
        if mask is None or mask.atom is not self.mask.atom or self.elements.shape != x.shape:
            raise self.error()
        whole = mask.reshaped((*mask.shape, *(1,) * (x.ndim - mask.ndim)))
        return gnp.where(whole, self.elements.astype(x.dtype), x)

    def error(self) -> ConcretizationTypeError:
        what = f"x[mask] has a shape that depends on the values of mask, which is traced {self.mask.type}"
        fix = "np.where(mask, x, other), a function with where=mask, or a mask that is no traced value"
        return ConcretizationTypeError(
            f"{what} (x is {self.of})", where=self.place or here(), fix=fix
        )

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **more: Any) -> Any:
        if method != "__call__" or more or ufunc not in UFUNCS or ufunc.nout != 1:
            raise self.error()
        return self.of_elements(UFUNCS[ufunc], *inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        raise self.error()

    def __getattr__(self, name: str) -> Any:
        if name in HIDDEN:
            raise AttributeError(name)
        raise self.error()

    def __len__(self) -> int:
        raise self.error()

    def __iter__(self) -> Any:
        raise self.error()

    def __bool__(self) -> bool:
        raise self.error()

    def __getitem__(self, key: Any) -> Any:
        raise self.error()

    def __setitem__(self, key: Any, value: Any) -> None:
        raise self.error()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise self.error()


HIDDEN = frozenset(("cell", "escaped", "type"))


def operators(name: str, ufunc: np.ufunc) -> None:
    """Gives the class the three forms of an operator."""
    call = UFUNCS[ufunc]
    setattr(Selected, f"__{name}__", lambda self, other: self.of_elements(call, self, other))
    setattr(Selected, f"__r{name}__", lambda self, other: self.of_elements(call, other, self))
    setattr(Selected, f"__i{name}__", lambda self, other: self.updated(call, other))


def unary(name: str, ufunc: np.ufunc) -> None:
    setattr(Selected, f"__{name}__", lambda self: self.of_elements(UFUNCS[ufunc], self))


for _name in BINARY:
    operators(_name, BINARY[_name])
for _name in UNARY:
    unary(_name, UNARY[_name])


def select(x: Any, mask: Any) -> Selected:
    """The elements that a traced mask chooses; errors of the key itself are NumPy's."""
    own, t = mask.type, x.type
    if own.shape != t.shape[: own.ndim]:
        what = f"boolean index {own} did not match indexed array {t}"
        raise OutOfBoundsError(what, where=here(), fix="a mask of its shape")
    return Selected(harmless(x.__copy__(), mask), mask.__copy__(), str(t), here())


def mask_in(key: Any) -> Any:
    """The traced mask that a key consists of, unless its elements are known; else None."""
    mask = as_mask(key)
    return mask if mask is not None and known_elements(mask) is None else None
