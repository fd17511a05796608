"""Kernel families of the CUDA target."""
