"""One command, one table of ratios:

`python -m benchmarks cpu`. One file a workload, peers beside ours.
"""
