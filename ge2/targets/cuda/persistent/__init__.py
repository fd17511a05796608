"""Persistent kernels: loops and branches whose values stay in registers and shared memory."""
