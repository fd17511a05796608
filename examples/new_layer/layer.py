"""A layer as it is written first: channel attention, in NumPy.

Each image's channels are weighed by gates that a small network computes from their means.
"""

from __future__ import annotations

import numpy as np


def channel_attention(x, squeeze, excite):
    """The images with each channel times its gate.

    `x`: f32[n, s, c], s places of c channels; `squeeze`: f32[c, r]; `excite`: f32[r, c].
    """
    pooled = x.mean(1)
    hidden = np.maximum(pooled @ squeeze, 0)
    gate = 1 / (1 + np.exp(-(hidden @ excite)))
    return x * gate[:, None, :]
