"""Whether what a program gives is what NumPy does."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import ge2


def agree(found: Any, wanted: Any, rtol: float) -> None:
    """All arrays have the dtypes and shapes that are wanted; whole numbers
    are equal, others near.
    """
    for y, w in zip(
        ge2.tree_util.tree_leaves(found), ge2.tree_util.tree_leaves(wanted), strict=True
    ):
        w = np.asarray(w)
        assert y.dtype == w.dtype and y.shape == w.shape
        exact = w.dtype.kind in "biu"
        given = {} if exact else {"rtol": rtol, "atol": rtol}
        to = np.float32 if w.dtype == ml_dtypes.bfloat16 else w.dtype
        check = np.testing.assert_array_equal if exact else np.testing.assert_allclose
        check(y.astype(to), w.astype(to), **given)


def drawn(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    """Normal numbers, the same for a seed."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)
