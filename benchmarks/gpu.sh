#!/usr/bin/env bash
# One command for a machine with a GPU and no network: build, test, measure, sanitize, in 8 minutes.
#
# What it needs it says itself if it is missing. Writes gpu.log and gpu.json to RESULTS_DIR
# (build/gpu/results by default). A stage that fails or hangs does not keep the next from running;
# the exit status tells in the end. STAGES chooses among them:
# "build kernels pytest benchmark sanitize e2e"; the last takes what time the others left.
# PEER_WHEELS names a folder with wheels of the kernels in gpu_peers.py, to be measured as well.
# It ends within TOTAL_SECONDS, and GRACE_SECONDS for a last stage that does not want to; no stage
# takes more than STAGE_SECONDS.
set -uo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
RESULTS_DIR=$(mkdir -p "${RESULTS_DIR:-build/gpu/results}" && cd "${RESULTS_DIR:-build/gpu/results}" && pwd)
STAGES=${STAGES:-build kernels pytest benchmark sanitize e2e}
TOTAL_SECONDS=${TOTAL_SECONDS:-470}
STAGE_SECONDS=${STAGE_SECONDS:-$TOTAL_SECONDS}
GRACE_SECONDS=${GRACE_SECONDS:-10}
SITE=$PWD/build/gpu/site
PEERS=$PWD/build/gpu/peers
LOGS=$PWD/build/gpu/logs
rm -rf "$LOGS" # nobody takes an old log for one of this run
mkdir -p "$LOGS"
rm -f "$RESULTS_DIR"/gpu.log "$RESULTS_DIR"/gpu{,-e2e}.json
export PYTHONPATH=$SITE:$PEERS PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1
failed=()

wanted() { [[ " $STAGES " == *" $1 "* ]]; }
left() { echo $((TOTAL_SECONDS > SECONDS ? TOTAL_SECONDS - SECONDS : 0)); }
least() { echo $(($1 < $2 ? $1 : $2)); }

# limited SECONDS COMMAND...: 124 or 137 if it had to be ended, with all that it started.
limited() {
    local seconds=$1
    shift
    seconds=$(least "$seconds" "$(least "$STAGE_SECONDS" "$(left)")")
    [ "$seconds" -gt 0 ] || return 124
    timeout --kill-after="$GRACE_SECONDS" "$seconds" "$@"
}

# result NAME STATUS SECONDS
result() {
    case $2 in
    0) echo "== $1: ok in $3 s" ;;
    124 | 137) echo "== $1: FAILED: out of time after $3 s" ;;
    *) echo "== $1: FAILED ($2) in $3 s" ;;
    esac
    [ "$2" = 0 ] || failed+=("$1")
}

# stage NAME SECONDS LINES COMMAND...: run it into a log, show the log's last lines.
stage() {
    local name=$1 seconds=$2 lines=$3 status=0 begin=$SECONDS
    shift 3
    if [ "$(left)" = 0 ]; then
        echo "== $name: FAILED: not started: $TOTAL_SECONDS s are over"
        failed+=("$name")
        return 1
    fi
    limited "$seconds" "$@" > "$LOGS/$name.log" 2>&1 || status=$?
    { echo "==== $name"; cat "$LOGS/$name.log"; } >> "$RESULTS_DIR/gpu.log"
    result "$name" $status $((SECONDS - begin))
    tail -n "$lines" "$LOGS/$name.log" | cut -c1-240
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
    limited 60 "$PYTHON" - $STAGES <<'END'
import importlib.util
import shutil
import sys

needs = {
    "build": ["pip", "scikit_build_core", "pybind11", "cmake", "ninja"],
    "pytest": ["pytest"],
    "e2e": ["transformers"],
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
    local status=$?
    case $status in
    0) ;;
    124 | 137) echo "a Python that starts: $PYTHON has not said what it lacks in time" ;;
    *) echo "a Python that starts: $PYTHON ended with status $status" ;;
    esac
}

command -v nvcc > /dev/null || PATH=$PATH:/usr/local/cuda/bin
architecture=$(limited 30 nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null | head -1 | tr -d .)
lacks=$([ -n "$architecture" ] || echo "an NVIDIA GPU: nvidia-smi names none"; missing)
if [ -n "$lacks" ]; then
    echo "gpu.sh: this machine lacks" >&2
    echo "$lacks" | sed 's/^/  /' >&2
    exit 2
fi

if wanted build; then
    export FLASHBERTSCORE_CUDA=ON FLASHBERTSCORE_CUDA_ARCHITECTURES=$architecture-real
    # Both at once: each alone leaves most processors idle.
    begin=$SECONDS
    limited 240 make -j"$(nproc)" build/gpu/kernel_test GPU_ARCHITECTURE="sm_$architecture" \
        > "$LOGS/build-kernels.log" 2>&1 &
    kernels=$!
    stage build 240 2 "$PYTHON" -m pip install --no-build-isolation --no-deps --no-index -q \
        --upgrade --target "$SITE" .
    wait $kernels
    result build-kernels $? $((SECONDS - begin))
    { echo "==== build-kernels"; cat "$LOGS/build-kernels.log"; } >> "$RESULTS_DIR/gpu.log"
    tail -n 5 "$LOGS/build-kernels.log" | cut -c1-240
    stage import 60 3 "$PYTHON" -c 'import flashbertscore as f; print(f.build_info())'
fi
if wanted kernels; then stage kernels 120 14 build/gpu/kernel_test; fi
if wanted pytest; then
    laws=tests/test_laws.py
    [ "$(left)" = 0 ] || limited 60 "$PYTHON" -c 'import hypothesis' 2> /dev/null ||
        { echo "== without $laws: hypothesis is not installed"; laws=; }
    if stage pytest 150 25 "$PYTHON" -m pytest -q -p no:cacheprovider --tb=line -W default \
        -k "cuda and not emulated" tests/test_{cuda,edge_shapes,equation,invalid_inputs}*.py \
        tests/test_{alignment,gradients,layouts,nan_inf,order_invariance,rules}.py $laws; then
        # All skipped is no success.
        grep -q " passed" "$LOGS/pytest.log" || { echo "no test passed"; failed+=(pytest); }
    fi
fi
if wanted benchmark; then
    if [ -n "${PEER_WHEELS:-}" ]; then
        stage peers 60 2 "$PYTHON" -m pip install --no-deps --no-index -q --upgrade \
            --target "$PEERS" "$PEER_WHEELS"/*.whl
    fi
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
