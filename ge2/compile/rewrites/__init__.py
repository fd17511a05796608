"""Rewrites of a whole graph for which `choose` is asked."""
