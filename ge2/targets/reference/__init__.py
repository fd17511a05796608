"""The reference target: NumPy's own functions, operation by operation."""
