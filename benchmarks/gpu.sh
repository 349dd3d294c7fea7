#!/usr/bin/env bash
# One command for a machine with a GPU and no network: build, test, measure, sanitize, in 8 minutes.
#
# What it needs it says itself if it is missing. Writes gpu.log and gpu.json to RESULTS_DIR
# (build/gpu/results by default). A stage that fails does not keep the next from running; the exit
# status tells in the end. STAGES chooses among them:
# "build kernels pytest benchmark sanitize e2e"; the last takes what time the others left.
# PEER_WHEELS names a folder with wheels of the kernels in gpu_peers.py, to be measured as well.
set -uo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
RESULTS_DIR=$(mkdir -p "${RESULTS_DIR:-build/gpu/results}" && cd "${RESULTS_DIR:-build/gpu/results}" && pwd)
STAGES=${STAGES:-build kernels pytest benchmark sanitize e2e}
TOTAL_SECONDS=${TOTAL_SECONDS:-470}
SITE=$PWD/build/gpu/site
PEERS=$PWD/build/gpu/peers
LOGS=$PWD/build/gpu/logs
mkdir -p "$LOGS"
export PYTHONPATH=$SITE:$PEERS PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
failed=()

wanted() { [[ " $STAGES " == *" $1 "* ]]; }
left() { echo $((TOTAL_SECONDS > SECONDS ? TOTAL_SECONDS - SECONDS : 0)); }
least() { echo $(($1 < $2 ? $1 : $2)); }

# stage NAME SECONDS LINES COMMAND...: run it into a log, show the log's last lines.
stage() {
    local name=$1 seconds lines=$3 status=0
    seconds=$(least "$2" "$(left)")
    shift 3
    if [ "$seconds" = 0 ]; then
        echo "== $name: not started: $TOTAL_SECONDS s are over"
        failed+=("$name")
        return 1
    fi
    local begin=$SECONDS
    timeout --kill-after=10 "$seconds" "$@" > "$LOGS/$name.log" 2>&1 || status=$?
    { echo "==== $name"; cat "$LOGS/$name.log"; } >> "$RESULTS_DIR/gpu.log"
    echo "== $name: $([ $status = 0 ] && echo ok || echo "FAILED ($status)") in $((SECONDS - begin)) s"
    tail -n "$lines" "$LOGS/$name.log" | cut -c1-240
    [ $status = 0 ] || failed+=("$name")
    return $status
}

# Prints what the wanted stages lack, a line each.
missing() {
    if wanted build; then
        command -v nvcc > /dev/null || echo "nvcc: put a CUDA toolkit's bin folder on PATH"
        command -v make > /dev/null || echo "make"
        command -v "${CXX:-c++}" > /dev/null || echo "a C++20 compiler: ${CXX:-c++} is not found"
    fi
    if wanted sanitize; then
        command -v compute-sanitizer > /dev/null ||
            echo "compute-sanitizer: part of a CUDA toolkit; or leave 'sanitize' out of STAGES"
    fi
    if ! command -v "$PYTHON" > /dev/null; then
        echo "Python: $PYTHON is not found; name another in PYTHON"
        return
    fi
    "$PYTHON" - $STAGES <<'END'
import importlib.util
import shutil
import sys

needs = {
    "build": ["pip", "scikit_build_core", "pybind11", "cmake", "ninja"],
    "pytest": ["pytest", "hypothesis", "transformers", "sentencepiece"],
}
stages = [stage for stage in sys.argv[1:] if stage in needs]
modules = ["torch", *(module for stage in stages for module in needs[stage])]
absent = [m for m in modules if not importlib.util.find_spec(m) and not shutil.which(m)]
for module in absent:
    print(f"Python package {module}: not installed for {sys.executable}")
if "torch" not in absent:
    import torch

    if not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        print(f"a GPU for torch: torch {torch.__version__}, {built}, finds none")
END
}

command -v nvcc > /dev/null || PATH=$PATH:/usr/local/cuda/bin
architecture=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null | head -1 | tr -d .)
lacks=$([ -n "$architecture" ] || echo "an NVIDIA GPU: nvidia-smi names none"; missing)
if [ -n "$lacks" ]; then
    echo "gpu.sh: this machine lacks" >&2
    echo "$lacks" | sed 's/^/  /' >&2
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
    grep -q " passed" "$LOGS/pytest.log" || failed+=(no-test-passed) # all skipped is no success
fi
if wanted benchmark; then
    if [ -n "${PEER_WHEELS:-}" ]; then
        stage peers 60 2 "$PYTHON" -m pip install --no-deps --no-index -q --upgrade \
            --target "$PEERS" "$PEER_WHEELS"/*.whl
    fi
    rm -f "$RESULTS_DIR/gpu.json"
    # The last 180 s are for the kernels of others, 40 s each, and for compute-sanitizer.
    cases=$(least "${BENCHMARK_SECONDS:-200}" $(($(left) - 180)))
    stage benchmark 320 60 "$PYTHON" benchmarks/gpu.py --seconds "$cases" --peer-seconds 40 \
        --out "$RESULTS_DIR/gpu.json"
    mkdir -p benchmarks/results
    cp "$RESULTS_DIR/gpu.json" "benchmarks/results/gpu-sm_$architecture.json" 2> /dev/null
fi
if wanted sanitize; then
    for tool in memcheck racecheck synccheck initcheck; do
        stage "$tool" 60 3 compute-sanitizer --tool "$tool" --error-exitcode 1 \
            build/gpu/kernel_test tour
    done
fi

if wanted e2e; then
    stage e2e 180 16 "$PYTHON" benchmarks/gpu_e2e.py --seconds "$(least "${E2E_SECONDS:-100}" "$(left)")" \
        --out "$RESULTS_DIR/gpu-e2e.json"
    cp "$RESULTS_DIR/gpu-e2e.json" "benchmarks/results/gpu-e2e-sm_$architecture.json" 2> /dev/null
fi

echo "== ${#failed[@]} stages failed: ${failed[*]:-none}; all output in $RESULTS_DIR/gpu.log; $SECONDS s"
[ ${#failed[@]} = 0 ]
