"""Rewrites of loops: equations that repeat become loops, and loops do less in each iteration."""
