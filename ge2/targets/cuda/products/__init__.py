"""Kernels of matrix products, and the layouts of their operands."""
