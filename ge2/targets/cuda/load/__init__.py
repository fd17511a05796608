"""Loading: NVRTC, the driver, cuBLASLt, arenas."""
