"""What is timed on a GPU, by family."""
