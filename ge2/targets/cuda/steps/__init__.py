"""Steps of a program for a device: kernels, matrix products, and what the host does."""
