"""The C compiler of this machine: found, run, and its results loaded; compiled once a machine."""
