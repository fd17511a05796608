"""Functions along axes: running sums, sorting and searching."""
