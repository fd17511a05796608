"""Blocked NumPy: the executor of the C target where there is no compiler."""
