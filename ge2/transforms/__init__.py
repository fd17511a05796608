"""Derivatives and batches: functions from graph to graph, and the functions of functions made of them."""
