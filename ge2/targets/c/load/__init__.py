"""Calling compiled programs: the launcher, BLAS, threads, memory of results."""
