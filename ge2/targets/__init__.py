"""Targets: each with its kernel families, emitters, assembler and loader; none imports another."""
