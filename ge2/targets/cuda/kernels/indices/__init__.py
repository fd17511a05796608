"""Kernels that read and write at indices."""
