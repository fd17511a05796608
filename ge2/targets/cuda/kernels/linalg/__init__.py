"""Linear algebra of small matrices in CUDA, a file a family."""
