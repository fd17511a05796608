"""The CUDA target: kernels, launches, graphs, and an emulator that runs them on the CPU."""
