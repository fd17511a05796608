"""NumPy's functions whose result a trace cannot hold: of known elements NumPy's own, else an error.

`REASONS` says for each why not, and what to write instead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from ge2.base.errors import ConcretizationTypeError
from ge2.base.source import here
from ge2.ir import type_of
from ge2.numpy.composite import known_elements
from ge2.numpy.plain import any_traced, in_trace

SHAPE = "the shape of its result depends on the values"
SET = (SHAPE, "np.sort(x), np.isin(x, y), or a mask; or the function before the values are traced")
LENGTH = (
    "the length of its result must be known",
    "a number that is not traced; static_argnums= under jit",
)
PRINTS = ("it makes a text of values", 'ge2.debug.print("x = {}", x)')
LAYOUT = ("a traced value has no memory yet", "x.copy(), where it matters")
FILES = (
    "it writes values into a file",
    "ge2.debug.callback(write, x) inside the function; the file itself after it has returned",
)
# fmt: off
REASONS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("intersect1d", "setdiff1d", "setxor1d", "trim_zeros", "union1d", "unique", "unique_all",
                     "unique_counts", "unique_inverse", "unique_values"), SET),
    **dict.fromkeys(("bartlett", "blackman", "diag_indices", "hamming", "hanning", "mask_indices",
                     "tril_indices", "triu_indices"), LENGTH),
    **dict.fromkeys(("array2string", "array_repr", "array_str"), PRINTS),
    **dict.fromkeys(("isfortran", "may_share_memory", "shares_memory"), LAYOUT),
    **dict.fromkeys(("save", "savetxt", "savez", "savez_compressed"), FILES),
    "asarray_chkfinite": ("whether it raises depends on the values", "np.asarray(x), with ge2.debug_nans()"),
    "fromiter": ("it takes plain numbers", "np.stack(list(values))"),
    "roots": ("zeros are eigenvalues", "Newton's method in ge2.lax.while_loop"),
}
# fmt: on
INDICES = frozenset(
    ("diag_indices", "mask_indices", "tril_indices", "triu_indices")
)  # known elements serve better than traced ones


def of_known(name: str) -> Callable[..., Any]:
    """NumPy's function of that name, of known elements."""
    theirs = getattr(np, name)
    reason, fix = REASONS[name]

    @wraps(theirs)
    def function(*args: Any, **more: Any) -> Any:
        if any_traced(args) or any_traced(more):
            args, more = tuple([plain(x) for x in args]), {k: plain(x) for k, x in more.items()}
        y = theirs(*args, **more)
        return y if name in INDICES else in_trace(y)

    def plain(x: Any) -> Any:
        if isinstance(x, list | tuple):
            return type(x)([plain(v) for v in x])
        if not any_traced(x):
            return x
        known = known_elements(x)
        if known is None:
            what = f"np.{name} of a traced {type_of(x)}: {reason}"
            raise ConcretizationTypeError(what, where=here(), fix=fix)
        return known

    return function


def __getattr__(name: str) -> Any:
    if name not in REASONS:
        raise AttributeError(name)
    return of_known(name)
