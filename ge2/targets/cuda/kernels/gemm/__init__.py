"""Matrix products on tensor cores, by kernels of ours."""
