"""Functions of `numpy.lib.stride_tricks`."""

from __future__ import annotations

import numpy as np

from ge2.numpy.rare import grids, sharing
from ge2.numpy.shapes import broadcast_arrays, broadcast_shapes, broadcast_to

sliding_window_view = sharing(grids.sliding_window_view, np.lib.stride_tricks.sliding_window_view)
as_strided = sharing(grids.as_strided, np.lib.stride_tricks.as_strided)
broadcast_to = sharing(broadcast_to, np.broadcast_to)
broadcast_arrays = sharing(broadcast_arrays, np.broadcast_arrays)

__all__ = [
    "as_strided",
    "broadcast_arrays",
    "broadcast_shapes",
    "broadcast_to",
    "sliding_window_view",
]
