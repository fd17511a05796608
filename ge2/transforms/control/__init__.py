"""Loops, branches and solvers as functions of functions."""
