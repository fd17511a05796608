"""Reading and writing of elements: what stands in brackets, and its functions."""
