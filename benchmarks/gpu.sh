#!/usr/bin/env bash
# What only a GPU shows, in one go. Writes to $OUT, or to gpu-out.
#   gpu.sh tests      every test that is marked `gpu`, on eight processes
#   gpu.sh accuracy   how far float32's functions are off, at all numbers
#   gpu.sh sanitize   memcheck, racecheck, initcheck and synccheck over some laws and programs (PICK chooses)
#   gpu.sh kernels    single kernels beside JAX and torch (ONLY chooses)
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${OUT:-gpu-out}
mkdir -p "$out"
export PYTHONPATH=. PYTHONUNBUFFERED=1
export GE2_CACHE_DIR=${GE2_CACHE_DIR:-$(mktemp -d)}
quiet=(-q -p no:cacheprovider -p no:benchmark)

tests() {
    timeout "${LIMIT:-420}" python3 -m pytest tests/gpu tests/templates -m gpu -n 8 "${quiet[@]}" --durations=5 >"$out/tests.txt" 2>&1
    grep -aE "^(FAILED|ERROR)" "$out/tests.txt" | head -40
    tail -n 1 "$out/tests.txt"
}

accuracy() {
    timeout "${LIMIT:-300}" python3 -m pytest tests/gpu/test_accuracy.py -s "${quiet[@]}" >"$out/accuracy.txt" 2>&1
    tail -n 1 "$out/accuracy.txt"
}

sanitize() {
    local log=$(mktemp -d)
    for tool in memcheck racecheck initcheck synccheck; do
        timeout "${LIMIT:-140}" compute-sanitizer --tool "$tool" --error-exitcode 9 --log-file "$log/log" \
            python3 -m pytest tests/gpu/test_gpu_laws.py tests/gpu/test_gpu_programs.py -k "${PICK:-gpu}" "${quiet[@]}" >"$log/tests" 2>&1
        echo "$tool: exit $?; $(tail -n 1 "$log/tests"); $(tail -n 1 "$log/log")"
        head -n 60 "$log/log" >>"$out/sanitizers.txt"
    done | tee -a "$out/sanitizers.txt"
}

kernels() {
    # shellcheck disable=SC2086 # several names
    timeout "${LIMIT:-500}" python3 -m benchmarks cuda ${ONLY:+--only $ONLY} >"$out/kernels.txt" 2>"$out/kernels.err"
    cat "$out/kernels.txt"
    tail -n 5 "$out/kernels.err"
    cp benchmarks/results/cuda-*.json "$out/" 2>/dev/null
}

for what in "${@:-tests}"; do
    "$what"
done
