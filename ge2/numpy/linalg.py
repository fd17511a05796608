"""Norms, and the names of `numpy.linalg` for products."""

from __future__ import annotations

__all__: list[str] = []
