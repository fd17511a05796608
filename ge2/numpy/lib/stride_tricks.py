"""Functions of `numpy.lib.stride_tricks`."""

from __future__ import annotations

from ge2.numpy.rare.grids import sliding_window_view
from ge2.numpy.shapes import broadcast_arrays, broadcast_shapes, broadcast_to

__all__ = ["broadcast_arrays", "broadcast_shapes", "broadcast_to", "sliding_window_view"]
