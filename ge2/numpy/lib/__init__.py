"""`numpy.lib`, of which arrays need `stride_tricks`."""

from ge2.numpy.lib import stride_tricks

__all__ = ["stride_tricks"]
