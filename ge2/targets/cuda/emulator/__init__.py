"""An emulator: CUDA sources compiled for the CPU, a fiber a thread."""
