"""Silence about floating point, as `np.errstate(all="ignore")` gives it, at
an eighth of its price.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def _direct() -> tuple[Callable[[], Any], Callable[[Any], object]]:
    from numpy._core import umath

    silent, variable = umath._make_extobj(all="ignore"), umath._extobj_contextvar
    return lambda: variable.set(silent), variable.reset


def _public() -> tuple[Callable[[], Any], Callable[[Any], object]]:
    return lambda: np.seterr(all="ignore"), lambda old: np.seterr(**old)


try:
    hush, restore = _direct()
    restore(hush())
except (ImportError, AttributeError, TypeError):  # these names are NumPy's own, and may change
    hush, restore = _public()
