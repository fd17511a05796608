"""Texts of errors about names that a module does not have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

# fmt: off
ELSEWHERE: Final = {  # names that users of JAX look for
    "PRNGKey": "ge2.random.key(seed)",
    "block_until_ready": "the result itself: it is NumPy's array, and is ready",
    "device_get": "x itself, NumPy's array; x.get() of CuPy's",
    "device_put": "np.asarray(x), or cupy.asarray(x): a function runs where its arguments are",
    "named_call": "ge2.named_scope(name)",
    "pmap": "ge2.vmap, on one device",
    "conv": "np.convolve of one axis; np.lib.stride_tricks.sliding_window_view and np.einsum of more",
    "dot": "np.dot, or ge2.numpy.dot_general",
}
# fmt: on


def lacking(module: str, name: str, names: Iterable[str]) -> str:
    """The text of an AttributeError: the name, and one of the module's that is like it.

    >>> print(lacking("ge2", "gard", ["grad", "jit"]))
    module 'ge2' has no attribute 'gard'
      try  ge2.grad
    """
    from difflib import get_close_matches  # for errors alone

    near = get_close_matches(name, list(names), 1, cutoff=0.7)
    fix = ELSEWHERE.get(name) or (f"{module}.{near[0]}" if near else "")
    return f"module {module!r} has no attribute {name!r}" + (f"\n  try  {fix}" if fix else "")
