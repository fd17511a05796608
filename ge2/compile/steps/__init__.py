"""Steps of a program: their kinds, and writes into slices that need none of their own."""
