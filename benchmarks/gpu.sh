#!/usr/bin/env bash
# What only a GPU shows, in one go. Writes to $OUT, or to gpu-out, first of all what it met (versions.txt).
#   gpu.sh tests      every test that is marked `gpu`, on eight processes
#   gpu.sh accuracy   how far float32's functions are off, at all numbers
#   gpu.sh sanitize   memcheck, racecheck, initcheck and synccheck over some laws and programs (PICK chooses)
#   gpu.sh kernels    every line of `benchmarks cuda` beside JAX and torch (ONLY chooses, QUICK=1 cuts sizes)
#   gpu.sh programs   every line of `benchmarks programs-cuda` beside JAX and CuPy (likewise)
# LIMIT is the time in seconds that each may take. The exit code is 1 if one of them failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
out=${OUT:-gpu-out}
mkdir -p "$out"
out=$(cd "$out" && pwd)
export PYTHONPATH=. PYTHONUNBUFFERED=1
if [[ -z ${GE2_CACHE_DIR:-} ]]; then
    GE2_CACHE_DIR=$(mktemp -d)
    trap 'rm -rf "$GE2_CACHE_DIR"' EXIT
fi
export GE2_CACHE_DIR
quiet=(-q -p no:cacheprovider -p no:benchmark)

versions() {
    {
        echo "$(date -u +%Y-%m-%dT%H:%MZ), commit ${COMMIT:-$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)}"
        nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv,noheader
        timeout 60 python3 -c "
from benchmarks.cuda.machine import device
from benchmarks.record import describe
print(describe(device()))"
    } >"$out/versions.txt" 2>&1
    cat "$out/versions.txt"
}

tests() {
    timeout "${LIMIT:-420}" python3 -m pytest tests/gpu tests/templates -m gpu -n 8 "${quiet[@]}" --durations=5 >"$out/tests.txt" 2>&1
    local code=$?
    grep -aE "^(FAILED|ERROR)" "$out/tests.txt" | head -40
    tail -n 1 "$out/tests.txt"
    return $code
}

accuracy() {
    timeout "${LIMIT:-300}" python3 -m pytest tests/gpu/test_accuracy.py -s "${quiet[@]}" >"$out/accuracy.txt" 2>&1
    local code=$?
    tail -n 1 "$out/accuracy.txt"
    return $code
}

# One tool over the laws and programs, in a process of its own; but for what takes long there, what asks for more
# memory than there is, which the tools report, and what counts the driver's, of which they take some.
inspect() {
    local tool=$1 log=$2 code long="ten_thousand or 512-32 or 264-256 or 300-64"
    local greedy="more_than or without_memory or whole_after or checkpoint_that or failed_call or torch or process_ends"
    local counted="growth or is_released"
    [[ $tool != racecheck ]] || long+=" or 65-7 or conds or forwards or donated_carry"
    timeout "${LIMIT:-240}" compute-sanitizer --tool "$tool" --error-exitcode 9 --log-file "$log/$tool.log" \
        python3 -m pytest tests/gpu/test_gpu_{laws,programs,rows,resident,memory,sums}.py \
        -k "(${PICK:-gpu}) and not ($long) and not ($greedy) and not ($counted)" \
        "${quiet[@]}" >"$log/$tool.tests" 2>&1
    code=$?
    echo "$tool: exit $code; $(tail -n 1 "$log/$tool.tests"); $(tail -n 1 "$log/$tool.log")"
    grep -aE "^(FAILED|ERROR)" "$log/$tool.tests" | head -20
    return $code
}

# All four at once: each waits for the processor, hardly for the GPU.
sanitize() {
    local log worst=0 tool tools=(memcheck racecheck initcheck synccheck) running=()
    log=$(mktemp -d)
    for tool in "${tools[@]}"; do
        inspect "$tool" "$log" >"$log/$tool.said" &
        running+=($!)
    done
    for each in "${running[@]}"; do wait "$each" || worst=1; done
    for tool in "${tools[@]}"; do
        cat "$log/$tool.said"
        head -n 60 "$log/$tool.log"
    done >"$out/sanitizers.txt"
    cat "$log"/*.said
    rm -rf "$log"
    return $worst
}

kernels() { benchmark cuda kernels; }
programs() { benchmark programs-cuda programs; }

# An interrupt, not an end: what was measured by then is printed and kept.
benchmark() {
    local suite=$1 name=$2 code
    # shellcheck disable=SC2086 # several names
    timeout --signal=INT --kill-after=20 "${LIMIT:-500}" python3 -m benchmarks "$suite" --keep "$out" \
        ${ONLY:+--only $ONLY} ${QUICK:+--quick} >"$out/$name.txt" 2>"$out/$name.err"
    code=$?
    cat "$out/$name.txt"
    [[ $code == 0 ]] || grep -aE "^[A-Za-z.]*(Error|Exception)" "$out/$name.err" | head -20
    tail -n 5 "$out/$name.err"
    return $code
}

failed=0
versions
for what in "${@:-tests}"; do
    case $what in
        tests | accuracy | sanitize | kernels | programs) "$what" || failed=1 ;;
        *) echo "there is no ${what@Q}; there are tests, accuracy, sanitize, kernels and programs" >&2 && failed=1 ;;
    esac
done
exit $failed
