"""Control flow on a device: recorded, unrolled, iterated by the host, or conditional nodes."""
