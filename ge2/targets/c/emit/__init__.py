"""Emitters of C: a region, its reductions and its parameters as text."""
