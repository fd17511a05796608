"""Functions of `ge2.numpy` that programs rarely need, imported when one is asked for."""
