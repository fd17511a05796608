#!/usr/bin/env bash
# What only a GPU shows, in one go: its tests, then kernels beside JAX and torch. Writes to $OUT, or to gpu-out.
# gpu.sh [tests|kernels|all]
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${OUT:-gpu-out}
mkdir -p "$out"
export PYTHONPATH=. GE2_CACHE_DIR=$out/../ge2-cache PYTHONUNBUFFERED=1
what=${1:-all}
if [[ $what != kernels ]]; then
    timeout 420 python3 -m pytest tests/gpu -n 8 -q -p no:cacheprovider -p no:benchmark --durations=5 >"$out/tests.txt" 2>&1
    tail -n 3 "$out/tests.txt"
    grep -aE "^(FAILED|ERROR)" "$out/tests.txt" | head -40
fi
if [[ $what != tests ]]; then
    timeout 500 python3 -m benchmarks cuda ${ONLY:+--only $ONLY} >"$out/kernels.txt" 2>"$out/kernels.err"
    cat "$out/kernels.txt"
    tail -n 5 "$out/kernels.err"
    cp benchmarks/results/cuda-*.json "$out/" 2>/dev/null
fi
