"""Programs with loops and branches that several tests of persistent kernels run."""

from __future__ import annotations

from typing import Any

import numpy as np

from ge2 import lax


def either(x: Any, times: int = 10) -> Any:
    """Branches, one after another, each by a sum of what the one before made."""
    for _ in range(times):
        x = lax.cond(x.sum() > 0, lambda x: x * 0.5 - 1, lambda x: x * 2.0 + 1, x)
    return x


def counted(x: Any, most: int = 10_000) -> Any:
    """Iterations of little work on each element, and how many there were."""
    return lax.while_loop(
        lambda c: c[0] < most, lambda c: (c[0] + 1, c[1] * 0.999 + 1), (np.int32(0), x)
    )


def inner_stacks(w: Any, h: Any, xs: Any) -> Any:
    """A scan whose body scans, and reads what that stacked backwards."""

    def step(h: Any, x: Any) -> Any:
        h = np.tanh(h @ w + x)
        _, ys = lax.scan(lambda c, _: (c * 0.5 + h, c), h, None, length=3)
        return h + ys[::-1].sum(0) * 0.1, (ys * 2).max(0)

    return lax.scan(step, h, xs)
