"""Programs that fit into a memory limit."""
