"""Choosing a kernel: problems, families of kernels, and the choice between them."""
