"""Emitters of CUDA: the kinds of region kernels, their reductions and parameters as text."""
