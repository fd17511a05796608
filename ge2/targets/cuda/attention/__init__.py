"""Attention as kernels in CUDA: what scores are, and how tiles are taken."""
