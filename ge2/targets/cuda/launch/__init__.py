"""Launches: templates, dependencies, nodes of graphs, and calls made in C."""
