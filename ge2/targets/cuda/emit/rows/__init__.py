"""Kernels whose threads lie along a row."""
