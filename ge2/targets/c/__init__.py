"""The C target: one C file for a program, or blocked NumPy where there is no compiler."""
