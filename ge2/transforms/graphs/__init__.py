"""Functions from graph to graph: derivatives, batches, what is kept and what is computed again."""
