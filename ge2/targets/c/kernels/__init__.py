"""Kernel families of the C target."""
