"""Attention: found in a graph by what its values mean, and the operation that stands for it."""
