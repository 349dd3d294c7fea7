#!/usr/bin/env bash
# One command for a machine with a GPU and no network: build, test, measure, sanitize.
#
# Needs nvcc, a C++20 compiler, and Python with torch, pybind11, scikit-build-core, ninja and
# pytest. Writes gpu.log and gpu.json to RESULTS_DIR (build/gpu/results by default). A stage that
# fails does not keep the next from running; the exit status tells in the end. STAGES chooses among
# them: "build kernels pytest benchmark e2e sanitize".
set -uo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
RESULTS_DIR=$(mkdir -p "${RESULTS_DIR:-build/gpu/results}" && cd "${RESULTS_DIR:-build/gpu/results}" && pwd)
STAGES=${STAGES:-build kernels pytest benchmark e2e sanitize}
SITE=$PWD/build/gpu/site
LOGS=$PWD/build/gpu/logs
mkdir -p "$LOGS"
export PYTHONPATH=$SITE PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
failed=()

# stage NAME SECONDS LINES COMMAND...: run it into a log, show the log's last lines.
stage() {
    local name=$1 seconds=$2 lines=$3 status=0
    shift 3
    local begin=$SECONDS
    timeout --kill-after=10 "$seconds" "$@" > "$LOGS/$name.log" 2>&1 || status=$?
    { echo "==== $name"; cat "$LOGS/$name.log"; } >> "$RESULTS_DIR/gpu.log"
    echo "== $name: $([ $status = 0 ] && echo ok || echo "FAILED ($status)") in $((SECONDS - begin)) s"
    tail -n "$lines" "$LOGS/$name.log" | cut -c1-240
    [ $status = 0 ] || failed+=("$name")
    return $status
}
wanted() { [[ " $STAGES " == *" $1 "* ]]; }

architecture=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
if [ -z "$architecture" ]; then
    echo "gpu.sh: no GPU: nvidia-smi names none" >&2
    exit 2
fi

if wanted build; then
    export FLASHBERTSCORE_CUDA=ON FLASHBERTSCORE_CUDA_ARCHITECTURES=$architecture-real
    # Both at once: each alone leaves most processors idle.
    make -j"$(nproc)" build/gpu/kernel_test GPU_ARCHITECTURE="sm_$architecture" \
        > "$LOGS/build-kernels.log" 2>&1 &
    kernels=$!
    stage build 240 2 "$PYTHON" -m pip install --no-build-isolation --no-deps --no-index -q \
        --upgrade --target "$SITE" .
    wait $kernels || { failed+=(build-kernels); tail -n 5 "$LOGS/build-kernels.log"; }
    "$PYTHON" -c 'import flashbertscore as f; print(f.build_info())'
fi
if wanted kernels; then stage kernels 120 14 build/gpu/kernel_test; fi
if wanted pytest; then
    stage pytest 150 25 "$PYTHON" -m pytest -q -p no:cacheprovider --tb=line -W default \
        -k "cuda and not emulated" tests/test_{cuda,edge_shapes,equation,invalid_inputs}*.py \
        tests/test_{laws,layouts,nan_inf,order_invariance,rules}.py
fi
if wanted benchmark; then
    stage benchmark 300 60 "$PYTHON" benchmarks/gpu.py --seconds "${BENCHMARK_SECONDS:-200}" \
        --out "$RESULTS_DIR/gpu.json"
    mkdir -p benchmarks/results
    cp "$RESULTS_DIR/gpu.json" "benchmarks/results/gpu-sm_$architecture.json" 2> /dev/null
fi
if wanted e2e; then
    stage e2e 180 16 "$PYTHON" benchmarks/gpu_e2e.py --seconds "${E2E_SECONDS:-100}" \
        --out "$RESULTS_DIR/gpu-e2e.json"
    cp "$RESULTS_DIR/gpu-e2e.json" "benchmarks/results/gpu-e2e-sm_$architecture.json" 2> /dev/null
fi
if wanted sanitize; then
    for tool in memcheck racecheck synccheck initcheck; do
        stage "$tool" 60 3 compute-sanitizer --tool "$tool" --error-exitcode 1 \
            build/gpu/kernel_test tour
    done
fi

echo "== ${#failed[@]} stages failed: ${failed[*]:-none}; all output in $RESULTS_DIR/gpu.log; $SECONDS s"
[ ${#failed[@]} = 0 ]
