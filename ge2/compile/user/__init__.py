"""Kernels and operations of users: where a graph computes what they do, and how they are made."""
