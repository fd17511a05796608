"""Kernels of the lines of an array along an axis: running sums, orders, the largest elements."""
